"""Writes at places that index tensors name: fused with what computes the values, right for every dtype and for equal indices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import tinycompile
from tinycompile.base.device import Device
from tinycompile.base.meta import TensorMeta
from tinycompile.ir.graph import Node, Ref
from tinycompile.lower.scatter import is_lowered
from tinycompile.ops.record import OPS, Scatter

pytestmark = pytest.mark.cpu

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.int16, torch.int8,
          torch.uint8, torch.bool)  # fmt: skip
Case = tuple[Callable[..., torch.Tensor], tuple[torch.Tensor, ...]]


def data(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Values of a few bits: sums of them are exact in every dtype, or wrap."""
    drawn = torch.randint(-8, 9, shape, generator=torch.Generator().manual_seed(len(shape)))
    return (drawn / 4).to(dtype) if dtype.is_floating_point else drawn.to(dtype)


def places(n: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, n, shape, generator=torch.Generator().manual_seed(n))


ADDING: dict[str, Callable[[torch.dtype], Case]] = {
    "scatter_add": lambda d: (lambda x, i, s: x.scatter_add(1, i, s), (data(d, 4, 6), places(6, 4, 20), data(d, 4, 20))),
    "scatter_add, smaller index": lambda d: (
        lambda x, i, s: torch.scatter_add(x, 0, i, s), (data(d, 5, 6), places(5, 7, 3), data(d, 9, 4))),
    "scatter_reduce": lambda d: (
        lambda x, i, s: x.scatter_reduce(0, i, s, "sum"), (data(d, 9), places(9, 40), data(d, 40))),
    "index_add": lambda d: (lambda x, i, s: x.index_add(0, i, s), (data(d, 5, 6), places(5, 31), data(d, 31, 6))),
    "index_add of columns": lambda d: (
        lambda x, i, s: torch.index_add(x, -1, i, s), (data(d, 6, 5).t(), places(6, 13), data(d, 5, 13))),
    "index_put": lambda d: (
        lambda x, i, s: x.index_put((i,), s, accumulate=True), (data(d, 5, 6), places(5, 31) - 5, data(d, 31, 6))),
    "index_put at pairs": lambda d: (
        lambda x, i, j, s: x.index_put((i, j), s, True), (data(d, 5, 6), places(5, 31), places(6, 31), data(d, 31))),
    "put": lambda d: (lambda x, i, s: x.put(i, s, accumulate=True), (data(d, 5, 6), places(30, 40), data(d, 40))),
    "in place": lambda d: (lambda x, i, s: x.clone().index_add_(0, i, s), (data(d, 5, 6), places(5, 31), data(d, 31, 6))),
}  # fmt: skip
REPLACING: dict[str, Callable[[torch.dtype], Case]] = {
    "scatter": lambda d: (lambda x, i, s: x.scatter(1, i, s), (data(d, 4, 6), places(6, 4, 9), data(d, 4, 9))),
    "scatter of a number": lambda d: (lambda x, i: x.scatter(0, i, 1), (data(d, 4, 6), places(4, 2, 6))),
    "index_copy": lambda d: (lambda x, i, s: x.index_copy(0, i, s), (data(d, 5, 6), places(5, 12), data(d, 12, 6))),
    "index_put": lambda d: (lambda x, i, s: x.index_put((i,), s), (data(d, 50), torch.arange(50).flip(0)[:20], data(d, 20))),
}


def compiled(fn: Callable[..., Any], backend: str = "cpp") -> Any:
    return tinycompile.compile(fn, backend=backend, fullgraph=True, dynamic=False)


def has_library_calls(f: Any) -> bool:
    return "op_" in f.source("wrapper")


@pytest.mark.parametrize("kind", ["adding", "replacing"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_each_dtype(kind: str, dtype: torch.dtype) -> None:
    """Sums are exact, and wrap; of equal indices the last stays, as torch's kernels on a CPU have it. One compile for all."""
    cases = {name: make(dtype) for name, make in (ADDING if kind == "adding" else REPLACING).items()}

    def every(*given: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
        return [fn(*args) for (fn, _), args in zip(cases.values(), given, strict=True)]

    f = compiled(every)
    given = [args for _, args in cases.values()]
    for name, got, want in zip(cases, f(*given), every(*given), strict=True):
        assert torch.equal(got, want) and got.stride() == want.stride() and got.dtype == want.dtype, name
    assert not has_library_calls(f)


@pytest.mark.parametrize("name", ["scatter_add", "index_put at pairs"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.bool], ids=str)
def test_in_tritons_interpreter(name: str, dtype: torch.dtype) -> None:
    fn, args = ADDING[name](dtype)
    assert torch.equal(compiled(fn, "triton")(*args), fn(*args))


def test_a_sum_of_halves_is_rounded_once() -> None:
    """256 + 1 is 256 in bfloat16: added one by one the ones are lost."""
    x, ones = torch.full((1,), 256.0, dtype=torch.bfloat16), torch.ones(64, dtype=torch.bfloat16)
    got = compiled(lambda x, i, s: x.scatter_add(0, i, s))(x, torch.zeros(64, dtype=torch.int64), ones)
    assert got.item() == 320


def test_producers_are_fused_into_it() -> None:
    def fn(x: torch.Tensor, i: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        return torch.zeros(7, 5).index_add(0, (i * 2) % 7, torch.sigmoid(s) * 2) + x

    x, i, s = torch.randn(7, 5), places(9, 40), torch.randn(40, 5)
    f = compiled(fn)
    torch.testing.assert_close(f(x, i, s), fn(x, i, s))
    assert len(f.kernels) == 3 and not has_library_calls(f)


@pytest.mark.parametrize("bad", [-1, 5])
@pytest.mark.parametrize("op", ["scatter_add", "index_add", "index_copy"])
def test_an_index_out_of_range_raises_torchs_error(op: str, bad: int) -> None:
    def fn(x: torch.Tensor, i: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        return getattr(x, op)(0, i, s) + 1

    args = (torch.zeros(5), torch.tensor([0, bad]), torch.ones(2))
    with pytest.raises((RuntimeError, IndexError)) as want:
        fn(*args)
    with pytest.raises(type(want.value)) as got:
        compiled(fn)(*args)
    assert str(got.value) == str(want.value)


def setitem(x: torch.Tensor, i: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    x[i] = s
    return x


PLACED: dict[str, Callable[..., torch.Tensor]] = {
    **{name: lambda x, i, s, n=name: getattr(x, n)(0, i, s) for name in ("scatter_", "scatter_add_", "index_add_", "index_copy_")},
    "scatter_reduce_": lambda x, i, s: x.scatter_reduce_(0, i, s, "sum"),
    "scatter_reduce_ of extremes": lambda x, i, s: x.scatter_reduce_(0, i, s, "amax"),
    "index_reduce_": lambda x, i, s: x.index_reduce_(0, i, s, "amax"),
    "index_put_": lambda x, i, s: x.index_put_((i,), s),
    "index_put_ of sums": lambda x, i, s: x.index_put_((i,), s, accumulate=True),
    "put_": lambda x, i, s: x.put_(i, s),
    "setitem": setitem,
    "out": lambda x, i, s: torch.index_add(x, 0, i, s, out=s),
}  # fmt: skip


UNREAD: dict[str, Callable[..., Any]] = {
    **{name: PLACED[name] for name in PLACED if name not in ("out", "setitem")},
    "index_add_ times": lambda x, i, s: x.index_add_(0, i, s, alpha=3),
    "scatter_reduce_ without itself": lambda x, i, s: x.scatter_reduce_(0, i, s, "sum", include_self=False),
    "scatter_ of a number": lambda x, i, s: x.scatter_(0, i, 2.0),
    "scatter_ of products": lambda x, i, s: x.scatter_(0, i, 2.0, reduce="multiply"),
    "put_ of sums": lambda x, i, s: x.put_(i, s, accumulate=True),
    "index_fill_": lambda x, i, s: x.index_fill_(0, i, 3.0),
}


@pytest.mark.filterwarnings("ignore:index_reduce")
@pytest.mark.parametrize("backend", ["aot_eager", "cpp"])
def test_an_input_that_nobody_reads_is_written(backend: str) -> None:
    """There torch's own kernel writes the few places; its arguments are those of the call."""

    def every(*xs: torch.Tensor) -> None:
        for fn, x in zip(UNREAD.values(), xs, strict=True):
            fn(x, torch.tensor([3, 1]), torch.tensor([0.5, 4.0]))

    want, got = ([torch.arange(5.0) for _ in UNREAD] for _ in range(2))
    every(*want)
    compiled(every, backend)(*got)
    for name, x, y in zip(UNREAD, want, got, strict=True):
        assert torch.equal(x, y), name


@pytest.mark.filterwarnings("ignore:index_reduce")
@pytest.mark.parametrize("name", PLACED)
def test_what_is_written_at_places_is_not_read(name: str) -> None:
    """Neither the values nor the places, be it at the same elements, through a view, or in what the program made."""
    fn, i = PLACED[name], torch.arange(3)
    programs: list[Callable[[torch.Tensor], torch.Tensor]] = [
        lambda x: fn(x, i, x) + 1,
        lambda x: fn(x, i, x.view(3)) + 1,
        lambda x: fn(y := x * 2, i, y) + 1,
        lambda x: fn(y := x.long() * 0 + i, y, i * 2) + 1,
        lambda x: fn(x, i, x * 1) + 1,
    ]
    for program in programs:
        results: list[Any] = []
        for f in (program, tinycompile.compile(program)):
            try:
                results.append(f(torch.tensor([0.5, 1.0, 2.0])))
            except RuntimeError as error:
                results.append(str(error))
        want, got = results
        assert torch.equal(got, want) if isinstance(want, torch.Tensor) else got == want


@pytest.mark.parametrize("args", [
    (torch.zeros(5), 0, torch.zeros(2, dtype=torch.int64), torch.ones(2).double()),
    (torch.zeros(5, 2), 0, torch.zeros(2, dtype=torch.int64), torch.ones(2)),
    (torch.zeros(5), 1, torch.zeros(2, dtype=torch.int64), torch.ones(2)),
    (torch.zeros(5), 0, torch.zeros(3, dtype=torch.int64), torch.ones(2)),
])  # fmt: skip
def test_wrong_calls_raise_torchs_error(args: Any) -> None:
    def fn(x: torch.Tensor, i: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        return x.scatter_add(args[1], i, s)

    with pytest.raises((RuntimeError, IndexError)) as want:
        fn(args[0], *args[2:])
    with pytest.raises(type(want.value)) as got:
        compiled(fn)(args[0], *args[2:])
    assert str(got.value) == str(want.value)


@pytest.mark.parametrize("name", ["scatter", "scatter_add", "index_add", "index_copy", "index_put"])
def test_gradients(name: str) -> None:
    fn, (x, i, s) = {**ADDING, **REPLACING}[name](torch.float64)
    i = i if name.endswith("add") else torch.arange(i.shape[-1]).expand(i.shape) % x.shape[-1 if i.dim() > 1 else 0]
    i, s = i[..., :5], s[..., :5] if i.dim() > 1 else s[:5]
    leaves = [x.requires_grad_(), s.requires_grad_()]
    want = torch.autograd.grad(fn(x, i, s).square().sum(), leaves)
    got = torch.autograd.grad(compiled(fn)(x, i, s).square().sum(), leaves)
    torch.testing.assert_close(got, want)


@pytest.fixture
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def lowered(name: str, device: str, *rest: Any) -> bool:
    """Whether a call of the record on that device would be loops."""
    meta = TensorMeta.contiguous((4,), torch.float32, Device(device))
    lowering = OPS[name].lowering
    assert isinstance(lowering, Scatter)
    return is_lowered(Node("y", "call", name, (Ref("x"), *rest), (), meta), lowering)


def test_where_the_library_adds_in_order_it_does() -> None:
    """Its sums repeat to the bit on a GPU; atomic additions don't."""
    assert lowered("scatter_add", "cuda") and lowered("scatter", "cuda")
    assert lowered("index_put", "cuda", (), Ref("v"), False) and not lowered("index_put", "cuda", (), Ref("v"), True)
    assert not lowered("embedding_dense_backward", "cuda") and lowered("embedding_dense_backward", "cpu")


def test_on_a_gpu_the_librarys_runs_where_results_must_repeat(deterministic: None) -> None:
    assert lowered("scatter_add", "cpu") and not lowered("scatter_add", "cuda") and not lowered("scatter", "cuda")


def test_a_sum_of_picked_entries_reads_no_wild_address_and_keeps_its_fault() -> None:
    """Far apart, so that a wild read is no read of a neighbour's memory."""
    table, compiled = torch.randn(70, 320_003), tinycompile.compile(lambda x, t: F.nll_loss(x, t), dynamic=True)
    target = torch.randint(0, 320_003, (70,))
    torch.testing.assert_close(compiled(table, target), F.nll_loss(table, target))
    target[11] = 320_005
    with pytest.raises(IndexError):
        compiled(table, target)
