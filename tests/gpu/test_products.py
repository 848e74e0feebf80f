"""Generated matrix products on a real card: every way of every kind is right, whoever would win; descriptors' memory, counters of
programs that share sums, CUDA graphs, streams and the disk cache."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import tinycompile
from tests.codegen.triton.products import Made, flat, product_of
from tinycompile.backends import cuda_target
from tinycompile.base.device import Device
from tinycompile.runtime.cache import DiskCache

pytestmark = pytest.mark.gpu
Fn = Callable[..., Any]
Shapes = tuple[tuple[int, ...], ...]
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
ULP = {BF16: 2.0**-8, F16: 2.0**-11, F32: 2.0**-24}


def gelu(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.gelu(F.linear(x, w, b))


def swiglu(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    return F.silu(F.linear(x, w)) * F.linear(x, v)


def residual(x: Tensor, w: Tensor, b: Tensor, r: Tensor) -> Tensor:
    return F.linear(x, w, b) + r


CASES: dict[str, tuple[Fn, Shapes]] = {
    "gelu": (gelu, ((4096, 1024), (2048, 1024), (2048,))),
    "tails": (gelu, ((3, 401, 520), (1000, 520), (1000,))),
    "residual": (residual, ((2100, 512), (776, 512), (776,), (2100, 776))),
    "SwiGLU": (swiglu, ((1500, 1024), (1336, 1024), (1336, 1024))),
    "decode": (gelu, ((16, 8192), (11008, 8192), (11008,))),
    "decode of one row": (gelu, ((1, 8192), (11008, 8192), (11008,))),
    "decode SwiGLU": (swiglu, ((64, 8192), (11008, 8192), (11008, 8192))),
    "long": (gelu, ((64, 1 << 15), (96, 1 << 15), (96,))),
    "columns by rows": (lambda x, w: F.silu(x.t() @ w), ((712, 1200), (712, 904))),
    "batch": (lambda x, w: F.silu(x.transpose(1, 2) @ w), ((40, 256, 320), (40, 256, 136))),
    "heads": (lambda x, w: F.silu(x.transpose(1, 2) @ w), ((4, 500, 8, 64), (4, 8, 64, 200))),
}
WAYS = ("", "persistent", "boxed", "parted", "streamed")
E4M3 = torch.float8_e4m3fn


def made(name: str, dtype: torch.dtype = BF16) -> tuple[Made, list[Tensor]]:
    fn, shapes = CASES[name]
    args = [torch.randn(s, device="cuda", dtype=dtype) for s in shapes]
    return product_of(fn, *args, target=cuda_target(0)), args


def check(product: Made, found: Any, args: list[Tensor]) -> None:
    with torch.no_grad():
        exact = flat(product.fn(*(a.double() for a in args)))
        eager = flat(product.fn(*args))
    for f, e, x in zip(found, eager, exact, strict=True):
        room = 2 * (e.double() - x).abs().max() + ULP[f.dtype] * x.abs().max()
        assert (f.double() - x).abs().max() <= room


@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", CASES)
def test_every_way_is_right(name: str, way: str, dtype: torch.dtype) -> None:
    product, args = made(name, dtype)
    if way and way not in product.ways():
        pytest.skip("not a way for this shape")
    count = len(
        next(k for k in product.source.kernels if k.name == product.plan.choices[0].name + (f"_{way}" if way else "")).configs
    )
    for entrant in sorted({0, count // 2, count - 1}):
        found, told = product.alone(way, entrant).run(args, 0, device=Device("cuda", 0))
        assert "the library" not in told.split(" is used")[0], told
        check(product, found, args)


@pytest.mark.parametrize("m,n,k", [(2048, 1024, 1024), (401, 1040, 528), (16, 11008, 8192)])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("rowwise", [False, True])
def test_float8(rowwise: bool, way: str, m: int, n: int, k: int) -> None:
    if torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("no float8 on this card")

    def scaled(x: Tensor, w: Tensor, s: Tensor, t: Tensor) -> Tensor:
        return F.silu(torch._scaled_mm(x, w.t(), s, t, out_dtype=BF16))

    x, w = torch.randn(m, k, device="cuda").to(E4M3), torch.randn(n, k, device="cuda").to(E4M3)
    s, t = (torch.rand((m, 1) if rowwise else (), device="cuda"), torch.rand((1, n) if rowwise else (), device="cuda"))
    product = product_of(scaled, x, w, s, t, target=cuda_target(0))
    if way and way not in product.ways():
        pytest.skip("not a way for this shape")
    (found,), told = product.alone(way).run((x, w, s, t), 0, device=Device("cuda", 0))
    assert "the library" not in told.split(" is used")[0], told
    sums = (x.double() @ w.double().t()) * s.double() * t.double()
    exact, eager = F.silu(sums), scaled(x, w, s, t)
    room = 2 * (eager.double() - exact).abs().max() + ULP[BF16] * exact.abs().max()
    assert (found.double() - exact).abs().max() <= room


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("right", ["rows", "columns"])
def test_int8(right: str, way: str) -> None:
    x, w = (torch.randint(-128, 128, s, dtype=torch.int8, device="cuda") for s in ((1040, 512), (776, 512)))
    w, s = w if right == "rows" else w.t().contiguous(), torch.rand(1040, 1, device="cuda")

    def dequantised(x: Tensor, w: Tensor, s: Tensor) -> Tensor:
        return torch._int_mm(x, w.t() if right == "rows" else w).float() * s

    product = product_of(dequantised, x, w, s, target=cuda_target(0))
    if way and way not in product.ways():
        pytest.skip("not a way for this shape")
    (found,), told = product.alone(way).run((x, w, s), 0, device=Device("cuda", 0))
    assert "the library" not in told.split(" is used")[0], told
    assert torch.equal(found, dequantised(x, w, s))


def test_every_kind_of_way_was_offered() -> None:
    offered = {way for name in CASES for way in made(name)[0].ways()}
    hopper = torch.cuda.get_device_capability()[0] == 9
    assert offered == {"persistent", "parted", "streamed"} | ({"boxed"} if hopper else set())


@pytest.mark.parametrize("name,way", [("decode", "streamed"), ("long", "parted"), ("gelu", "boxed")])
def test_the_same_bits_on_several_streams_and_in_graphs(name: str, way: str) -> None:
    product, args = made(name)
    if way not in product.ways():
        pytest.skip("not a way on this card")
    call, _ = product.alone(way).built(0, device=Device("cuda", 0))
    given = [args[i] for i in product.order]
    with torch.no_grad():
        (first,) = call(*given)
        for _ in range(20):
            assert torch.equal(call(*given)[0], first)
        streams = [torch.cuda.Stream() for _ in range(4)]
        torch.cuda.synchronize()
        several = []
        for _ in range(5):
            for stream in streams:
                with torch.cuda.stream(stream):
                    several.append(call(*given)[0])
        torch.cuda.synchronize()
        assert all(torch.equal(s, first) for s in several)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            (recorded,) = call(*given)
        for _ in range(3):
            recorded.zero_()
            graph.replay()
            assert torch.equal(recorded, first)


@pytest.mark.parametrize("name,way", [("decode", "streamed"), ("gelu", "boxed")])
def test_a_winner_is_taken_from_the_disk_cache(name: str, way: str, tmp_path: Path) -> None:
    product, args = made(name)
    if way not in product.ways():
        pytest.skip("not a way on this card")
    device = Device("cuda", 0)
    first, _ = product.alone(way).run(args, 0, DiskCache(tmp_path), device)
    second, told = product.alone(way).run(args, None, DiskCache(tmp_path), device)
    assert "as an earlier contest found" in told and torch.equal(first[0], second[0])
    check(product, second, args)


@pytest.mark.parametrize("mode", ["default", "max-autotune"])
@pytest.mark.parametrize("m,n,k", [(1, 768, 768), (8, 768, 768), (64, 1000, 520), (1, 512, 4096)])
def test_alike_products_in_one_launch(m: int, n: int, k: int, mode: str) -> None:
    def projections(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        return tuple(F.linear(x, w[i], b[i]) for i in range(3))

    x, w, b = (torch.randn(s, device="cuda", dtype=BF16) for s in ((m, k), (3, n, k), (3, n)))
    compiled = tinycompile.compile(projections, mode=mode)
    with torch.no_grad():
        first = compiled(x, w, b)
        assert len(compiled.kernels) == 1 and "member" in compiled.kernels[0].source
        for found, exact, eager in zip(
            first, projections(x.double(), w.double(), b.double()), projections(x, w, b), strict=True
        ):
            room = 2 * (eager.double() - exact).abs().max() + ULP[BF16] * exact.abs().max()
            assert (found.double() - exact).abs().max() <= room
        for _ in range(20):
            assert all(torch.equal(again, one) for again, one in zip(compiled(x, w, b), first, strict=True))


@pytest.mark.parametrize("name", CASES)
def test_max_autotune(name: str) -> None:
    fn, shapes = CASES[name]
    args = [torch.randn(s, device="cuda", dtype=BF16) for s in shapes]
    compiled = tinycompile.compile(fn, mode="max-autotune")
    with torch.no_grad():
        product = product_of(fn, *args, target=cuda_target(0))
        check(product, flat(compiled(*args)), args)
        check(product, flat(compiled(*args)), args)
