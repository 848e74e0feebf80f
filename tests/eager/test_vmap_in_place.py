"""Writes in place under vmap that read the memory that they write to, or are of another dtype: what torch's vmap makes of them,
or says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tinycompile as tc
from tinycompile.base import torch_private
from tinycompile.eager.tensor import from_torch
from tinycompile.ops.record import OPS, Pointwise

pytestmark = [pytest.mark.pure, pytest.mark.filterwarnings("ignore:vmap calls", "ignore:There is a performance drop")]

I, M = torch.tensor([0, 2]), torch.tensor([True, False, True])


def outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:  # noqa: BLE001
        return type(error).__name__, str(error)


def listed(value: Any) -> Any:
    return [t.tolist() for t in value] if isinstance(value, (tuple, list)) else value.tolist()


# --- reading what is written -------------------------------------------------------------------------------------------------

_OWN = {
    name: len([a for a in op.schema.args if a.base == "Tensor"])
    for name, op in OPS.items()
    if isinstance(op.lowering, Pointwise) and hasattr(torch.Tensor, f"{name}_")
}
_WHERE: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "a row": (lambda a: a, lambda a: a[1]),
    "every second row": (lambda a: a[::2], lambda a: a[0]),
    "the row before": (lambda a: a[1:], lambda a: a[:-1]),
    "the other half": (lambda a: a[0], lambda a: a[1]),
    "its transpose": (lambda a: a, lambda a: a.t()),
    "itself": (lambda a: a, lambda a: a),
}


def _method(name: str, into: Callable[[Any], Any], of: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda a: getattr(into(a), f"{name}_")(*[of(a)] * (_OWN[name] - 1))


def _put(index: Any, of: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def put(a: Any) -> Any:
        a[index] = of(a)
        return a

    return put


CALLS: dict[str, Callable[[Any], Any]] = {
    "copy_": lambda a: a[1:].copy_(a[:-1]),
    "copy_ of a row": lambda a: a.copy_(a[1]),
    "a slice": _put(slice(1, None), lambda a: a[:-1]),
    "a row everywhere": _put(slice(None), lambda a: a[0]),
    "places": _put(torch.tensor([0, 1]), lambda a: a[1:]),
    "places behind a slice": _put((slice(None), I), lambda a: a[:, 1:]),
    "fill_": lambda a: a.fill_(a[0, 1]),
    "masked_fill_": lambda a: a.masked_fill_(a > 1, a[0, 0]),
    "index_put_": lambda a: a.index_put_((torch.tensor([2, 0, 1]),), a),
    "index_add_": lambda a: a.index_add_(0, torch.tensor([0, 1]), a[1:]),
    "index_copy_": lambda a: a.index_copy_(0, torch.tensor([0, 1]), a[1:]),
    "index_fill_": lambda a: a.index_fill_(0, torch.tensor([1]), a[0, 0]),
    "scatter_": lambda a: a.scatter_(0, torch.zeros(1, 3, dtype=torch.int64), a),
    "scatter_add_": lambda a: a.scatter_add_(0, torch.zeros(2, 3, dtype=torch.int64), a[1:]),
    "put_": lambda a: a.put_(torch.arange(3), a[2]),
    "masked_scatter_": lambda a: a.masked_scatter_(a > 1, a.t()),
    "nextafter_": lambda a: a.nextafter_(a[0]),
    "addmv_": lambda a: a[0].addmv_(a[1:].new_ones(3, 3), a[0]),
    "windows": lambda a: a.view(-1).unfold(0, 3, 2).add_(1) if a.is_contiguous() else a,
    **{f"{name}_ of {where}": _method(name, *_WHERE[where]) for name in _OWN if _OWN[name] > 1 for where in _WHERE},
}


@pytest.mark.skipif(not torch_private.ops_with_kernel("FuncTorchBatched"), reason="torch does not tell which rules it has")
@pytest.mark.parametrize("dim", [0, 2])
@pytest.mark.parametrize("name", CALLS)
def test_what_is_read_where_it_is_written(name: str, dim: int) -> None:
    x = torch.arange(1, 19).view(2, 3, 3) / 4
    word = name.partition("_ of ")[0]
    if word.startswith("bitwise") or word in ("gcd", "lcm"):
        x = torch.arange(1, 19).view(2, 3, 3)
    for laid_out in (x.movedim(0, dim), x.movedim(0, dim).contiguous()):
        for own in (False, True):

            def run(vmap: Any, x: Any) -> Any:
                result = vmap(lambda a: CALLS[name](a * 1 if own else a), in_dims=dim)(x)  # noqa: B023
                return listed((result, x))

            want = outcome(lambda: run(torch.vmap, laid_out.clone()))  # noqa: B023
            assert str(outcome(lambda: run(tc.vmap, from_torch(laid_out.clone())))) == str(want)  # noqa: B023


@pytest.mark.parametrize(
    "name", ["a slice", "a row everywhere", "mul_ of a row", "add_ of the row before", "mul_ of the other half"]
)
@pytest.mark.parametrize("where", ["inside", "outside", "two"])
def test_levels_and_gradients(name: str, where: str) -> None:
    x = torch.arange(1.0, 37).view(2, 2, 3, 3) / 4

    def f(a: Any) -> Any:
        b = a * 1
        return (b * CALLS[name](b).sum()).sum()

    def found(lib: Any, func: Any, x: Any) -> Any:
        if where == "two":
            return lib.vmap(lib.vmap(f), in_dims=1)(x)
        return lib.vmap(func.grad(f))(x[0]) if where == "inside" else func.grad(lambda x: lib.vmap(f)(x).sum())(x[0])

    want = outcome(lambda: found(torch, torch.func, x).tolist())
    assert outcome(lambda: found(tc, tc.func, from_torch(x.clone())).tolist()) == want


@pytest.mark.parametrize("name", ["put_", "nextafter_", "eq_ of a row", "places", "mul_ of a row", "its transpose"])
def test_without_vmap_where_a_tape_follows(name: str) -> None:
    fn = CALLS.get(name) or _method("add", *_WHERE[name])

    def found(x: Any) -> Any:
        y = x.requires_grad_() * 1
        fn(y)
        return y.tolist()

    x = torch.arange(1.0, 10).view(3, 3)
    assert outcome(lambda: found(from_torch(x.clone()))) == outcome(lambda: found(x.clone()))


# --- another dtype -----------------------------------------------------------------------------------------------------------


def _set(index: Any) -> Callable[[Any, Any], Any]:
    def put(a: Any, b: Any) -> Any:
        a[index] = b
        return a

    return put


ZEROS = torch.zeros(2, 4, dtype=torch.int64)
# What is done to a (3, 4) example, and the shape of what is written.
WRITES: dict[str, tuple[Callable[[Any, Any], Any], tuple[int, ...]]] = {
    "places": (_set(I), (2, 4)),
    "places alike": (_set(I), (4,)),
    "places by a number": (_set(I), ()),
    "places behind a slice": (_set((slice(None), I)), (3, 2)),
    "places behind None": (_set((None, I)), (1, 2, 4)),
    "places behind dots": (_set((..., I)), (3, 2)),
    "places and a number": (_set((I, 1)), (2,)),
    "listed": (_set([0, 1]), (2, 4)),
    "with dims in front": (_set(I), (1, 1, 2, 4)),
    "of another shape": (_set(I), (3, 4)),
    "a slice": (_set(slice(1, None)), (2, 4)),
    "a slice of another shape": (_set(slice(0, 2)), (3, 4)),
    "a row": (_set(1), (4,)),
    "a row by a number": (_set(1), ()),
    "a mask": (_set(M), ()),
    "a mask and rows": (_set(M), (2, 4)),
    "index_put_": (lambda a, b: a.index_put_((I,), b), (2, 4)),
    "index_put_ that adds": (lambda a, b: a.index_put_((I,), b, accumulate=True), (2, 4)),
    "index_put": (lambda a, b: torch.index_put(a, (I,), b), (2, 4)),
    "index_add_": (lambda a, b: a.index_add_(0, I, b), (2, 4)),
    "index_copy_": (lambda a, b: a.index_copy_(0, I, b), (2, 4)),
    "index_fill_": (lambda a, b: a.index_fill_(0, I, b), ()),
    "index_reduce_": (lambda a, b: a.index_reduce_(0, I, b, "amax"), (2, 4)),
    "scatter_": (lambda a, b: a.scatter_(0, ZEROS, b), (2, 4)),
    "scatter_add_": (lambda a, b: a.scatter_add_(0, ZEROS, b), (2, 4)),
    "scatter_reduce_": (lambda a, b: a.scatter_reduce_(0, ZEROS, b, "sum"), (2, 4)),
    "masked_fill": (lambda a, b: torch.masked_fill(a, M[:, None], b), ()),
    "masked_fill_": (lambda a, b: a.masked_fill_(M[:, None], b), ()),
    "masked_scatter_": (lambda a, b: a.masked_scatter_(M[:, None].expand(3, 4), b), (2, 4)),
    "put_": (lambda a, b: a.put_(I, b), (2,)),
    "copy_": (lambda a, b: a.copy_(b), (3, 4)),
    "fill_": (lambda a, b: a.fill_(b), ()),
    "add_": (lambda a, b: a.add_(b), (3, 4)),
}


@pytest.mark.parametrize("into", [torch.float32, torch.int64, torch.bool], ids=str)
@pytest.mark.parametrize("name", WRITES)
def test_another_dtype(name: str, into: torch.dtype) -> None:
    fn, shape = WRITES[name]
    for dtype in (torch.float64, torch.int64, torch.float32, torch.bool, torch.uint8):
        for dims in ((0, 0), (0, None), (None, 0)):
            a = (torch.arange(24).view(2, 3, 4) % 5).to(into)
            b = torch.arange(2 * max(1, torch.Size(shape).numel())).view(2, *shape).to(dtype)
            given = [t if d == 0 else t[1] for t, d in zip((a, b), dims, strict=True)]

            def run(vmap: Any, args: list[Any]) -> Any:
                return listed((vmap(fn, in_dims=dims)(*args), args[0]))  # noqa: B023

            want = outcome(lambda: run(torch.vmap, [g.clone() for g in given]))  # noqa: B023
            got = outcome(lambda: run(tc.vmap, [from_torch(g.clone()) for g in given]))  # noqa: B023
            assert got == want, (dtype, dims)
