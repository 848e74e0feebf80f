"""What makes the left operand of a product of few rows (norms, activations) in the product's kernel: where, and that it is right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import tinycompile
from tests.codegen.triton.products import product_of
from tests.codegen.triton.test_skinny import BF16, F16, check, meta, of
from tinycompile.base.target import A100, H100
from tinycompile.runtime.triton_build import compile_offline

pytestmark = pytest.mark.cpu

Fn = Callable[..., Any]


def by_hand(x: Tensor, g: Tensor, w: Tensor) -> Tensor:
    h = x.float()
    h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)
    return F.linear(h.to(x.dtype) * g, w)


def standardised(x: Tensor, g: Tensor, w: Tensor) -> Tensor:
    """Two reductions, one after the other."""
    h = x.float() - x.float().mean(-1, keepdim=True)
    return F.linear((h / (h * h).mean(-1, keepdim=True).sqrt()).to(x.dtype), w)


KINDS: dict[str, Fn] = {
    "rms_norm": lambda x, g, w: F.linear(F.rms_norm(x, x.shape[-1:], g), w),
    "layer_norm": lambda x, g, w: F.gelu(F.linear(F.layer_norm(x, x.shape[-1:], g, g), w)),
    "layer_norm without weights": lambda x, g, w: F.linear(F.layer_norm(x, x.shape[-1:]), w) + g[0],
    "rms norm by hand": by_hand,
    "two reductions": standardised,
    "softmax": lambda x, g, w: F.linear(F.softmax(x.float(), -1).to(x.dtype), w),
    "scaled by the largest": lambda x, g, w: F.linear(x / x.abs().amax(-1, keepdim=True), w),
    "normalize": lambda x, g, w: F.linear(F.normalize(x.float(), dim=-1).to(x.dtype), w),
    "no reduction": lambda x, g, w: F.linear(F.silu(x) * g, w),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(8, 48, 24), (1, 64, 33), (3, 37, 5), (7, 200, 17)], ids=str)
def test_one_kernel_does_all(kind: str, shape: tuple[int, int, int]) -> None:
    rows, inner, columns = shape
    made = check(KINDS[kind], of(rows, inner), of(inner), of(columns, inner))
    assert len(made.plan.kernels) == 1, made.source.wrapper


@pytest.mark.parametrize("kind", ["layer_norm", "two reductions", "softmax"])
def test_programs_that_share_a_sum_make_whole_rows(kind: str) -> None:
    made = check(KINDS[kind], of(2, 3072), of(3072), of(20, 3072))
    assert len(made.plan.kernels) == 1 and "PARTS" in made.source.kernels[0].text


def test_halves_and_layouts() -> None:
    x, g, w = of(2, 3, 40, dtype=F16), of(40, dtype=F16), of(24, 40, dtype=F16)
    for args in ((x, g, w), (x[:1], g, w), (x.transpose(0, 1), g, w), (of(2, 3, 80, dtype=F16)[..., ::2], g, w)):
        assert len(check(KINDS["rms_norm"], *args).plan.kernels) == 1


def test_special_values_are_as_in_a_kernel_of_its_own() -> None:
    x, g, w = of(6, 48), of(48), of(24, 48)
    x[1], x[2, 3], x[3, 5], x[4] = 0.0, float("inf"), float("nan"), 3.0
    for kind in ("rms_norm", "layer_norm", "softmax"):
        made = product_of(KINDS[kind], x, g, w, contests=False)
        (found,), _ = made.run((x, g, w), None)
        wanted = KINDS[kind](x, g, w)
        assert torch.equal(found.isnan(), wanted.isnan())
        torch.testing.assert_close(found, wanted, equal_nan=True, rtol=2e-2, atol=2e-2)


# where the kernel makes more than the operand ------------------------------------------------------------------------------


def block(x: Tensor, y: Tensor, v: Tensor, g: Tensor, w: Tensor) -> Tensor:
    x = x + F.linear(y, v)
    return x + F.linear(F.layer_norm(x, x.shape[-1:], g), w)


def test_a_residual_stream_goes_behind_the_product_before() -> None:
    made = check(block, of(1, 8, 40), of(1, 8, 24), of(40, 24), of(40), of(40, 40), products=2)
    assert len(made.plan.kernels) == 2
    first, second = (k.text for k in made.source.kernels)
    assert "norm_start" not in first and "norm_start" in second


def test_what_the_norm_reads_stays_in_memory() -> None:
    """The product is added to a stream and normalised, each for itself."""

    def fn(x: Tensor, y: Tensor, v: Tensor, g: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        p = F.linear(y, v)
        return x + p, F.linear(F.layer_norm(p, (40,), g), w)

    check(fn, of(8, 40), of(8, 24), of(40, 24), of(40), of(40, 40), products=2)


def test_a_stream_in_float32_is_read_as_it_was_stored() -> None:
    def fn(x: Tensor, y: Tensor, v: Tensor, g: Tensor, w: Tensor) -> Tensor:
        x = x + F.linear(y, v)
        return x.to(BF16) + F.linear(F.rms_norm(x.to(BF16), (40,), g), w)

    made = product_of(fn, *(args := (of(8, 40).float(), of(8, 24), of(40, 24), of(40), of(40, 40))), contests=False)
    (found,), _ = made.run(args, None)
    torch.testing.assert_close(found, fn(*args), rtol=2e-2, atol=2e-2)


def test_several_products_of_one_norm() -> None:
    def projections(x: Tensor, g: Tensor, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        h = F.rms_norm(x, x.shape[-1:], g)
        return F.linear(h, q), F.linear(h, k), F.linear(h, v)

    made = check(projections, of(8, 40), of(40), of(24, 40), of(24, 40), of(24, 40))
    assert len(made.plan.kernels) == 1 and "3 times" in made.source.kernels[0].text

    def swiglu(x: Tensor, g: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        h = F.rms_norm(x, x.shape[-1:], g)
        return x + F.linear(F.silu(F.linear(h, a)) * F.linear(h, b), c)

    made = check(swiglu, of(8, 40), of(40), of(24, 40), of(24, 40), of(40, 24), products=2)
    assert len(made.plan.kernels) == 2, "the activation is cheaper behind the two products than before the next"


def test_a_norm_of_a_product() -> None:
    made = check(
        lambda y, v, g, w: F.linear(F.layer_norm(F.linear(y, v), (40,), g), w),
        of(8, 24),
        of(40, 24),
        of(40),
        of(16, 40),
        products=2,
    )
    assert len(made.plan.kernels) == 2


def test_what_both_operands_are_made_of_is_made_once() -> None:
    for fn in (lambda x, g, w: F.linear(x * g, w * g), lambda x, g, w: F.linear(F.rms_norm(x, (40,), g), w * (1 + g))):
        made = check(fn, of(8, 40), of(40), of(24, 40))
        assert len(made.plan.kernels) == 2  # of one operand it is made in the product


def test_statistics_that_are_stored() -> None:
    """As for a backward: a softmax whose two results of one reduction are kept."""
    x, g, w = of(8, 40), of(40).requires_grad_(), of(24, 40)
    compiled = tinycompile.compile(lambda x, g, w: F.linear(F.softmax(x * g, -1), w), backend="triton")
    compiled(x, g, w).sum().backward()
    found, g.grad = g.grad, None
    F.linear(F.softmax(x * g, -1), w).sum().backward()
    torch.testing.assert_close(found, g.grad, rtol=5e-2, atol=2e-3)
    assert len(compiled.graphs) == 1


# where it stays a kernel ---------------------------------------------------------------------------------------------------

Case = tuple[Fn, tuple[Tensor, ...]]


def overwritten(x: Tensor, g: Tensor, w: Tensor) -> Tensor:
    x = x.clone()
    h = F.rms_norm(x, x.shape[-1:], g)
    x.add_(F.linear(x, w)[:, : x.shape[-1]])
    return F.linear(h, w) + x[:, :1]


def rms(x: Tensor, g: Tensor, w: Tensor) -> Tensor:
    return F.linear(F.rms_norm(x, x.shape[-1:], g), w)


APART: dict[str, Case] = {
    "others see the norm": (lambda x, g, w: (h := F.rms_norm(x, (40,), g), F.linear(h, w)), (of(8, 40), of(40), of(24, 40))),
    "others read it": (
        lambda x, g, w: (F.linear(h := F.rms_norm(x, (40,), g), w), h.sum(-1)),
        (of(8, 40), of(40), of(24, 40)),
    ),
    "what it reduces is stored": (
        lambda x, w: (F.linear(x - (m := x.mean(-1, keepdim=True)), w), m),
        (of(8, 40), of(24, 40)),
    ),
    "a part of the rows": (
        lambda x, g, w: F.linear(F.rms_norm(x, (40,), g)[:, :20], w[:, :20]),
        (of(8, 40), of(40), of(24, 40)),
    ),
    "all but the last of a softmax": (
        lambda x, w: F.linear(F.softmax(x, -1).narrow(-1, 0, 39), w[:, :39]),
        (of(8, 40), of(24, 40)),
    ),
    "many rows": (rms, (of(9, 40), of(40), of(24, 40))),
    "many weights": (rms, (meta(8, 4096), meta(4096), meta(2048, 4096))),
    "the weights are normalised": (lambda x, w: F.linear(x, F.rms_norm(w, (40,))), (of(8, 40), of(24, 40))),
    "much to compute": (lambda x, w: F.linear((x.abs() ** 0.3).sin().tanh(), w), (of(8, 40), of(24, 40))),
    "rows of another length": (
        lambda x, g, w: F.linear(F.rms_norm(x, (8,), g).flatten(1), w),
        (of(4, 5, 8), of(8), of(24, 40)),
    ),
    "a stream that nobody adds to": (
        lambda x, r, g, w: (y := x + r, F.linear(F.rms_norm(y, (40,), g), w)),
        (of(8, 40), of(8, 40), of(40), of(24, 40)),
    ),
}


@pytest.mark.parametrize("why", APART)
def test_others_keep_a_kernel(why: str) -> None:
    fn, args = APART[why]
    made = product_of(fn, *args, contests=False)
    products = [k for k in made.plan.kernels if k.product]
    assert len(made.plan.kernels) == len(products) + 1, made.source.wrapper
    if not args[0].is_meta:
        found, _ = made.run(args, None)
        wanted = fn(*args)
        for f, e in zip(found, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
            torch.testing.assert_close(f, e, rtol=3e-2, atol=3e-2)


def test_what_is_overwritten_is_not_read_later() -> None:
    args = of(8, 40), of(40), of(40, 40)
    made = product_of(overwritten, *args, contests=False)
    (found,), _ = made.run(args, None)
    torch.testing.assert_close(found, overwritten(*args), rtol=3e-2, atol=3e-2)


def test_not_where_one_graph_launches_all_kernels() -> None:
    args = meta(8, 40), meta(40), meta(24, 40)
    assert len(product_of(rms, *args, contests=False).plan.kernels) == 1
    assert len(product_of(rms, *args, target=replace(H100, overlaps=True), contests=False).plan.kernels) == 2


def test_not_beside_a_contest() -> None:
    """The library's way needs the operand in memory."""
    args = meta(8, 40), meta(40), meta(24, 40)
    assert len(product_of(rms, *args).plan.kernels) == 1
    contest = product_of(lambda x, g, w: F.silu(rms(x, g, w)), *args).plan
    assert len(contest.choices) == 1 and any("rms_norm" in "".join(k.nest.origins) for k in contest.kernels)


def test_not_where_sizes_change() -> None:
    x = of(8, 40)
    tinycompile.mark_dynamic(x, 0)
    assert not any(k.product for k in product_of(rms, x, of(40), of(24, 40), contests=False).plan.kernels)


@pytest.mark.parametrize("arch", [80, 90])
@pytest.mark.parametrize("shape", [(1, 768, 2304), (8, 768, 2304), (8, 2048, 2048), (1, 4096, 1024)], ids=str)
@pytest.mark.parametrize("kind", ["rms_norm", "layer_norm", "two reductions"])
def test_compiled_offline_without_spills(kind: str, shape: tuple[int, int, int], arch: int) -> None:
    rows, inner, columns = shape
    args = meta(rows, inner), meta(inner), meta(columns, inner)
    made = product_of(KINDS[kind], *args, target={80: A100, 90: H100}[arch], contests=False)
    (kernel,) = made.source.kernels
    for config in kernel.configs:
        assert compile_offline(kernel, arch, config).spills == 0, kernel.text
