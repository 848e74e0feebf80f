"""Writes in place under vmap by functions that have no batching rule, and methods that make another view of a tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tinycompile as tc
from tinycompile.eager.tensor import from_torch

pytestmark = [pytest.mark.pure, pytest.mark.filterwarnings("ignore:vmap calls", "ignore:index_reduce", "ignore:dropout2d")]

I, M = torch.tensor([0, 1]), torch.tensor([[True, False], [False, True]])
# Of a (2, 2) example and another.
FLOATS: dict[str, Callable[[Any, Any], Any]] = {
    "round_": lambda a, b: a.round_(decimals=1),
    "fix_": lambda a, b: a.fix_(),
    "nextafter_": lambda a, b: a.nextafter_(b),
    "conj_physical_": lambda a, b: a.conj_physical_(),
    "scatter_": lambda a, b: a.scatter_(0, I[None], b, reduce="add"),
    "scatter_reduce_": lambda a, b: a.scatter_reduce_(0, I[None], b, "prod", include_self=False),
    "addmv_": lambda a, b: a[0].addmv_(b, b[1]),
    "addbmm_": lambda a, b: a.addbmm_(b[None], b[None]),
    "index_add_": lambda a, b: a.index_add_(0, I, b, alpha=2),
    "index_reduce_": lambda a, b: a.index_reduce_(0, I, b, "amax"),
    "index_put_ at a mask": lambda a, b: a.index_put_((M,), b[0]),
    "put_": lambda a, b: a.put_(I, b[0]),
    "torch.zero_": lambda a, b: torch.zero_(a),
    "aten's mul_": lambda a, b: torch.ops.aten.mul_.Tensor(a, b),
    "dropout in evaluation": lambda a, b: torch.nn.functional.dropout2d(a, 0.5, False, True),
    "celu of a flag": lambda a, b: torch.nn.functional.celu(a, inplace=True),
    "logical_and_": lambda a, b: a.logical_and_(b > 1),
    "logical_not_": lambda a, b: a.logical_not_(),
    "eq_": lambda a, b: a.eq_(b),
    "renorm_": lambda a, b: a.renorm_(2, 0, 1.0),
}
NOT_DIFFERENTIABLE = ("nextafter_", "index_reduce_", "scatter_", "scatter_reduce_")
INTEGERS: dict[str, Callable[[Any, Any], Any]] = {
    "lcm_": lambda a, b: a.lcm_(b),
    "gcd_": lambda a, b: a.gcd_(b),
    "a row": lambda a, b: a[1].lcm_(b[0]),
}
VIEWS: dict[str, Callable[[Any], Any]] = {
    "t_": lambda a: a.t_(),
    "transpose_": lambda a: a.transpose_(0, 1),
    "swapaxes_": lambda a: a.swapaxes_(-1, 0),
    "unsqueeze_": lambda a: a.unsqueeze_(1),
    "squeeze_": lambda a: a.unsqueeze_(0).squeeze_(),
    "squeeze_ a dim": lambda a: a.unsqueeze_(-1).squeeze_(-1),
}


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("name", [*FLOATS, *INTEGERS])
def test_as_torch_does_each_example(name: str, dim: int) -> None:
    fn = FLOATS.get(name) or INTEGERS[name]
    a, b = torch.linspace(-1.53, 2.5, 12).view(3, 2, 2), torch.linspace(0.5, 1.5, 12).view(3, 2, 2)
    if name in INTEGERS:
        a, b = torch.arange(1, 13).view(3, 2, 2), torch.arange(4, 16).view(3, 2, 2)
    want, results = a.clone(), []
    results = [fn(row, other).clone() for row, other in zip(want, b, strict=True)]
    got = from_torch(a.movedim(0, dim).contiguous())
    result = tc.vmap(fn, in_dims=(dim, 0))(got, from_torch(b))
    torch.testing.assert_close(got.torch().movedim(dim, 0), want)
    torch.testing.assert_close(result.torch(), torch.stack(results))


@pytest.mark.parametrize("name", [n for n in FLOATS if n not in NOT_DIFFERENTIABLE])
@pytest.mark.parametrize("where", ["inside", "outside", "of a part"])
def test_gradients(name: str, where: str) -> None:
    def f(a: Any, b: Any) -> Any:
        a = a * a
        FLOATS[name](a.view(2, 2) if where == "of a part" else a, b)
        return (a * a).sum()

    a, b = torch.linspace(-1.53, 2.5, 12).view(3, 2, 2), torch.linspace(0.5, 1.5, 12).view(3, 2, 2)
    want = torch.stack([torch.func.grad(f)(*row) for row in zip(a, b, strict=True)])
    if where == "outside":
        got = tc.func.grad(lambda a: tc.vmap(f)(a, from_torch(b)).sum())(from_torch(a))
    else:
        got = tc.vmap(tc.func.grad(f))(from_torch(a), from_torch(b))
    torch.testing.assert_close(got.torch(), want)


@pytest.mark.parametrize("name", VIEWS)
def test_methods_that_make_another_view(name: str) -> None:
    """What vmap was called with becomes one, too."""

    def both(x: Any, vmap: Any) -> Any:
        result = vmap(lambda a: VIEWS[name](a).mul_(a.shape[0]))(x)
        return x.shape, x.tolist(), result.shape, result.tolist()

    x = torch.arange(18.0).view(3, 2, 3)
    assert both(from_torch(x.clone()), tc.vmap) == both(x.clone(), torch.vmap)

    def f(a: Any) -> Any:
        b = a * a
        VIEWS[name](b)[0].mul_(3)
        return (b * torch.arange(1.0, b.shape[-1] + 1)).sum()

    want = torch.vmap(torch.func.grad(f))(x)
    torch.testing.assert_close(tc.vmap(tc.func.grad(f))(from_torch(x)).torch(), want)
    torch.testing.assert_close(tc.func.grad(lambda x: tc.vmap(f)(x).sum())(from_torch(x)).torch(), want)


def test_as_strided_in_place() -> None:
    """torch's vmap leaves the tensor as it was."""
    got = tc.vmap(lambda a: a.as_strided_((2,), (2,), 1))(from_torch(torch.arange(8.0).view(2, 4)))
    assert got.tolist() == [[1.0, 3.0], [5.0, 7.0]]


@pytest.mark.parametrize("wrap", [from_torch, lambda t: t])
def test_what_examples_share_is_not_written_by_each(wrap: Callable[[Any], Any]) -> None:
    w = wrap(torch.ones(2, dtype=torch.int64))
    with pytest.raises(RuntimeError, match=r"output with shape \[2\] doesn't match the broadcast shape \[3, 2\]"):
        tc.vmap(lambda a: torch.ops.aten.lcm_(w, a))(from_torch(torch.ones(3, 2, dtype=torch.int64)))
    assert w.tolist() == [1, 1]
    tc.vmap(lambda a: a + torch.ops.aten.lcm_(w, torch.tensor([2, 3])))(from_torch(torch.ones(3, 2, dtype=torch.int64)))
    assert w.tolist() == [2, 3]


def test_a_result_can_not_be_given() -> None:
    with pytest.raises(RuntimeError, match=r"kthvalue\(out=...\) can't be batched"):
        tc.vmap(lambda a: torch.kthvalue(a, 1, out=(torch.zeros(()), torch.zeros((), dtype=torch.int64))))(torch.ones(2, 3))
