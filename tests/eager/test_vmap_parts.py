"""Under vmap: pieces of a tensor, its data, grids and other expanded tensors that are written to, and pools of integers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import tinycompile as tc
from tinycompile.eager.tensor import from_torch

pytestmark = [
    pytest.mark.pure,
    pytest.mark.filterwarnings("ignore:vmap calls", "ignore:There is a performance", "ignore:Use of"),
]


def outcome(call: Callable[[], Any]) -> Any:
    try:
        return listed(call())
    except Exception as error:  # noqa: BLE001
        return type(error).__name__, str(error)


def listed(value: Any) -> Any:
    return [listed(t) for t in value] if isinstance(value, (tuple, list)) else value.tolist()


def after(write: Callable[[Any], Any], of: Callable[[Any], Any] = lambda a: a * 1) -> Callable[[Any], Any]:
    """What a tensor is after a write to a part of it."""

    def call(a: Any) -> Any:
        b = of(a)
        write(b)
        return b

    return call


def grid(i: int, indexing: str = "ij") -> Callable[[Any], Any]:
    return lambda a: torch.meshgrid(a[0, 0] * 1, a[0, 1] * 1, indexing=indexing)[i]


def wide(a: Any) -> Any:
    return (a[0, 0] * 1).expand(3, 4)


def put(index: Any, value: Any) -> Callable[[Any], Any]:
    return lambda t: t.__setitem__(index, value)


I, M, ZEROS = torch.tensor([0]), torch.tensor([True, False, True]), torch.zeros(1, 4, dtype=torch.int64)
# What is written to a tensor of which several elements are one.
TO_SHARED_ELEMENTS: dict[str, Callable[[Any], Any]] = {
    "add_": lambda t: t.add_(1),
    "add_ of itself": lambda t: t.add_(t),
    "copy_": lambda t: t.copy_(t * 2),
    "fill_": lambda t: t.fill_(1),
    "zero_": lambda t: t.zero_(),
    "pow_": lambda t: t.pow_(2),
    "clamp_": lambda t: t.clamp_(0, 1),
    "eq_": lambda t: t.eq_(1),
    "masked_fill_": lambda t: t.masked_fill_(t > 2, 0),
    "masked_scatter_": lambda t: t.masked_scatter_(t > 1, t * 2),
    "index_put_": lambda t: t.index_put_((I,), t[:1] * 2),
    "index_add_": lambda t: t.index_add_(0, I, t[:1] * 2),
    "index_fill_": lambda t: t.index_fill_(0, I, 1),
    "index_copy_": lambda t: t.index_copy_(0, I, t[:1] * 2),
    "scatter_": lambda t: t.scatter_(0, ZEROS, t * 2),
    "scatter_add_": lambda t: t.scatter_add_(0, ZEROS, t * 2),
    "cumsum_": lambda t: t.cumsum_(0),
    "tril_": lambda t: t.tril_(),
    "fill_diagonal_": lambda t: t.fill_diagonal_(1),
    "relu_": lambda t: F.relu(t, inplace=True),
    "a row": put(0, 5),
    "a column": put((slice(None), 0), 5),
    "places": put(I, 5),
    "a mask": put(M, 5),
}
TENSORS = {"a grid": grid(0), "another grid": grid(1), "a grid by columns": grid(1, "xy"), "an expanded tensor": wide}
CALLS: dict[str, Callable[[Any], Any]] = {
    "unsafe_chunk": lambda a: torch.unsafe_chunk(a, 2, -1),
    "unsafe_split": lambda a: a.unsafe_split(2, 1),
    "unsafe_split, the last smaller": lambda a: torch.unsafe_split(a, 3, -1),
    "unsafe_split of nothing": lambda a: torch.unsafe_split(a, -1),
    "what is split, written": after(lambda b: torch.unsafe_split(b, 2, -1)[0].mul_(2)),
    "what is chunked, written": after(lambda b: b.unsafe_chunk(2, -1)[1].mul_(2)),
    "what is split safely, written": after(lambda b: torch.split(b, 2, -1)[0].mul_(2)),
    "a piece, written": lambda a: torch.unsafe_split(a * 1, 2, -1)[0].mul_(2) * a[..., :2],
    "data": lambda a: a.data,
    "data of a view": lambda a: a[0].data * 2,
    "data of its own": after(lambda b: b.data.add_(1)),
    "data of what is shared": lambda a: a + torch.ones(4).data,
    "meshgrid": lambda a: torch.meshgrid(a[0, 0], a[0, 1], indexing="ij"),
    "meshgrid by columns": lambda a: torch.meshgrid(a[0, 0], a[1, 1], indexing="xy"),
    "meshgrid with a number": lambda a: torch.meshgrid(a[0, 0, 0], a[0, 1], indexing="ij"),
    **{f"{write}: {of}": after(TO_SHARED_ELEMENTS[write], TENSORS[of]) for write in TO_SHARED_ELEMENTS for of in TENSORS},
}


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("name", CALLS)
def test_as_torchs(name: str, dim: int) -> None:
    x = (torch.arange(48.0).view(2, 2, 3, 4) % 7).movedim(0, dim).contiguous()
    want = outcome(lambda: torch.vmap(CALLS[name], dim)(x.clone()))
    assert outcome(lambda: tc.vmap(CALLS[name], dim)(from_torch(x.clone()))) == want


@pytest.mark.parametrize("where", ["inside", "outside"])
@pytest.mark.parametrize("name", [n for n in CALLS if not n.endswith("expanded tensor") and ":" not in n])
def test_gradients(name: str, where: str) -> None:
    """The second grid had none, and a write to what was split was refused."""
    x = torch.arange(48.0).view(2, 2, 3, 4) % 7

    def f(a: Any) -> Any:
        made = CALLS[name](a * 1)
        parts = made if isinstance(made, (tuple, list)) else [made]
        return sum((p**2).sum() * (i + 1) for i, p in enumerate(parts))

    def found(lib: Any, func: Any, x: Any) -> Any:
        return lib.vmap(func.grad(f))(x) if where == "inside" else func.grad(lambda x: lib.vmap(f)(x).sum())(x)

    want = outcome(lambda: found(torch, torch.func, x))
    assert outcome(lambda: found(tc, tc.func, from_torch(x.clone()))) == want


STALE: dict[str, Callable[[Any, Any], Any]] = {
    "a record with a formula": lambda b, v: v.div_(2),
    "a record in parts": lambda b, v: v.nan_to_num_(),
    "no record": lambda b, v: v.fix_(),
    "what it reads": lambda b, v: v.mul_(b),
    "places": lambda b, v: v.__setitem__(torch.tensor([0]), b[1]),
    "the base again": lambda b, v: (v.mul_(2), b.mul_(v)),
}


@pytest.mark.parametrize("where", ["inside", "outside", "alone"])
@pytest.mark.parametrize("name", STALE)
def test_a_view_that_is_written_after_its_base(name: str, where: str) -> None:
    """Its history is its base's since that was written: what was done to the base counted for nothing."""

    def f(a: Any) -> Any:
        b = a * 1
        v = b.t()
        b.mul_(3)
        STALE[name](b, v)
        return (b * torch.arange(1.0, 5).view(2, 2)).sum()

    def found(lib: Any, func: Any, x: Any) -> Any:
        if where == "alone":
            return func.grad(f)(x[0])
        return lib.vmap(func.grad(f))(x) if where == "inside" else func.grad(lambda x: lib.vmap(f)(x).sum())(x)

    x = torch.arange(1.0, 9).view(2, 2, 2) / 4
    want = outcome(lambda: found(torch, torch.func, x))
    got = outcome(lambda: found(tc, tc.func, from_torch(x)))
    assert got == want or want[0] == got[0] == "RuntimeError"


@pytest.mark.parametrize("write", [lambda a: a.transpose_(0, 1), lambda a: a.squeeze_(), lambda a: a.t_(), lambda a: a.mul_(2)])
def test_leaves_of_a_tape_outside(write: Callable[[Any], Any]) -> None:
    x = torch.ones(2, 3, 3)
    want = outcome(lambda: torch.func.grad(lambda x: torch.vmap(write)(x).sum())(x))
    assert outcome(lambda: tc.func.grad(lambda x: tc.vmap(write)(x).sum())(from_torch(x))) == want


@pytest.mark.parametrize("name", ["logical_not_", "logical_and_", "logical_or_", "logical_xor_"])
def test_writes_that_no_tape_sees(name: str) -> None:
    """Also of leaves: what is written keeps its history."""

    def write(a: Any) -> Any:
        return (getattr(a, name)(*([] if name == "logical_not_" else [a > 1])) * 2).sum()

    x = torch.arange(6.0).view(2, 3)
    for f in (write, lambda a: write(a * 1)):
        for lib, func, wrap in ((torch, torch.func, torch.clone), (tc, tc.func, lambda t: from_torch(t.clone()))):
            found = [func.grad(lambda x: lib.vmap(f)(x).sum())(wrap(x)), func.grad(f)(wrap(x)), lib.vmap(func.grad(f))(wrap(x))]  # noqa: B023
            assert all((g == 2).all() for g in found)


def test_data_where_one_example_is_differentiated() -> None:
    def f(a: Any, b: Any) -> Any:
        return (a.data * b.data * a).sum()

    x, y = torch.arange(6.0).view(2, 3), torch.ones(2, 3)
    want = torch.vmap(torch.func.grad(f))(x, y)
    assert torch.equal(tc.vmap(tc.func.grad(f))(from_torch(x), from_torch(y)).torch(), want)
    for lib, func, given in ((torch, torch.func, x), (tc, tc.func, from_torch(x))):
        with pytest.raises(RuntimeError, match="accessing `data` under vmap"):
            func.grad(lambda x: lib.vmap(lambda a: a.data * a)(x).sum())(given)  # noqa: B023


def test_data_is_not_given_to_compiled_code() -> None:
    fn = tc.compile(lambda x: torch.vmap(lambda a: a.data * 2)(x), backend="eager")
    with pytest.raises(RuntimeError, match="accessing `data` under vmap"):
        fn(torch.ones(2, 3))


def test_data_is_not_given() -> None:
    for vmap in (torch.vmap, tc.vmap):
        with pytest.raises(RuntimeError, match="mutating directly with `.data` under vmap"):
            vmap(lambda a: setattr(a, "data", a * 2))(torch.ones(2, 3))


POOLS: dict[str, Callable[[Any], Any]] = {
    "of windows": lambda a: F.max_pool1d(a, 2),
    "of rows alone": lambda a: F.max_pool1d(a[0], 2),
    "in steps": lambda a: F.max_pool1d(a, 3, 1, 1),
    "of listed sizes": lambda a: F.max_pool1d(a, (3,), (1,), (1,)),
    "dilated": lambda a: F.max_pool1d(a, 2, dilation=2),
    "to the end": lambda a: F.max_pool1d(a, 3, 2, ceil_mode=True),
    "torch's": lambda a: torch.max_pool1d(a, 2),
    "with places": lambda a: F.max_pool1d(a, 2, return_indices=True),
}


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.float32], ids=str)
@pytest.mark.parametrize("name", POOLS)
def test_pools(name: str, dtype: torch.dtype) -> None:
    x = (torch.arange(48).view(2, 2, 3, 4) * 5 % 7).to(dtype)
    for dim in (0, 1):
        want = outcome(lambda: torch.vmap(POOLS[name], dim)(x))  # noqa: B023
        assert outcome(lambda: tc.vmap(POOLS[name], dim)(from_torch(x))) == want  # noqa: B023
