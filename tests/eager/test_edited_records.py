"""Edits of what a record was called with, or gave, between its call and the backward: an error where it is torch's."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from tests.eager.test_autograd_records import cases, inside, ours
from tests.ops.test_gradients import bound, differentiable, doubles, flat
from tinycompile.dispatch import dispatcher
from tinycompile.eager import autograd
from tinycompile.eager.tensor import Tensor, from_torch
from tinycompile.ops.record import Op, Sample

pytestmark = pytest.mark.pure

# Parts of other records, which torch computes otherwise or does not differentiate at all.
_INTERNAL = {"attention_backward", "batch_norm_training", "softmax_stats"}
# Where torch has made a copy of what was given (a product of a tensor that is not dense, a mask of bools as numbers, an index as
# a number, a product of which only the weight is asked for) or watches nothing (kron), the edit is an error of ours all the same.
_STRICTER = {"index", "kron", "linear", "matmul", "rms_norm", "scaled_dot_product_attention"}


def tensors(value: Any) -> list[Any]:
    return [v for v in flat(value) if isinstance(v, (Tensor, torch.Tensor))]


def edit(t: Any) -> None:
    with torch.no_grad():
        if t.dtype.is_floating_point:
            t.add_(0.125)
        elif t.dtype == torch.bool:
            t.logical_not_()
        else:
            t.zero_()


def outcome(results: Any, leaves: list[Any], edited: Any, mine: bool) -> list[Any] | str:
    """The gradients after an edit, or "refused"."""
    targets = [r for r in tensors((results,)) if r.requires_grad]
    seeds: list[Any] = [torch.linspace(0.3, 1, r.numel(), dtype=r.dtype).reshape(tuple(r.shape)) for r in targets]
    edit(edited)
    try:
        if mine:
            autograd.backward(targets, [from_torch(s) for s in seeds])
        else:
            torch.autograd.backward(targets, seeds)
    except RuntimeError as error:
        assert "modified by an inplace operation" in str(error) or "invalid gradient" in str(error)
        return "refused"
    return [None if a.grad is None else torch.as_tensor(a.grad.tolist()) for a in leaves]


def of_leaves(args: Any, alone: int | None) -> Any:
    """The same arguments anew, of which all or one require grad."""
    leaves = [a for a in tensors(args) if a.requires_grad]

    def made(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            wanted = value.requires_grad and (alone is None or value is leaves[alone])
            return value.detach().clone().requires_grad_(wanted)
        return tuple(made(v) for v in value) if isinstance(value, tuple) else value

    return made(args)


def after_an_edit(op: Op, args: Any, at: int, mine: bool) -> list[Any] | str | None:
    """None where there is no such tensor, or nothing to differentiate."""
    torch.manual_seed(0)
    given = ours(args) if mine else args
    results = dispatcher.call_bound(op.name, given) if mine else op.eager(*given)
    places = [*tensors(given), *tensors((results,))]
    if at >= len(places) or not any(r.requires_grad for r in tensors((results,))):
        return None
    return outcome(results, [a for a in tensors(given) if a.requires_grad], places[at], mine)


@pytest.mark.parametrize("op, sample", [p for p in cases() if p.values[0].name not in _INTERNAL])
def test_as_torch(op: Op, sample: Sample) -> None:
    """Each tensor among the arguments and the results is edited."""
    warnings.simplefilter("ignore")
    args = differentiable(inside(op, doubles(bound(op, sample))))
    leaves = sum(a.requires_grad for a in tensors(args))
    alone: list[int | None] = list(range(leaves)) if leaves > 1 and op.name != "group_norm" else []  # torch's crashes
    for one in [None, *alone]:
        for at in range(len(tensors(args)) + 8):
            try:
                expected = after_an_edit(op, of_leaves(args, one), at, mine=False)
            except Exception:  # noqa: BLE001
                pytest.skip("torch refuses the sample, or to write to a result of it")
            if expected is None:
                break
            found = after_an_edit(op, of_leaves(args, one), at, mine=True)
            if found == "refused" and op.name in _STRICTER:
                continue
            if expected == "refused" or found == "refused":
                assert found == expected, (one, at)
                continue
            assert found is not None
            for a, b in zip(found, expected, strict=True):
                if a is None or b is None:
                    assert all(g is None or not g.abs().sum() for g in (a, b))
                else:
                    torch.testing.assert_close(a, b, equal_nan=True)


# In place: ``w`` is a leaf, ``x`` made of it, ``i`` some places, ``m`` a mask of x.
WRITES: dict[str, Callable[[Any, Any, Any, Any], Any]] = {
    "index_fill": lambda w, x, i, m: x.index_fill_(0, i, 2.0),
    "put": lambda w, x, i, m: x.put_(i, w[:2]),
    "scatter_reduce": lambda w, x, i, m: x.scatter_reduce_(0, i, w[:2], "sum"),
    "index_copy": lambda w, x, i, m: x.index_copy_(0, i, w[:2]),
    "masked_scatter": lambda w, x, i, m: x.masked_scatter_(m, w),
    "celu": lambda w, x, i, m: torch.celu_(x),
    "elu": lambda w, x, i, m: F.elu_(x),
    "selu": lambda w, x, i, m: torch.selu_(x),
    "leaky_relu": lambda w, x, i, m: F.leaky_relu(x, 0.1, inplace=True),
    "scatter_reduce_by_torch": lambda w, x, i, m: x.scatter_reduce_(0, i, w[:2], "prod"),
    "copysign": lambda w, x, i, m: x.copysign_(-w),
    "renorm": lambda w, x, i, m: x.view(2, 2).renorm_(2, 0, 0.5),
    "floor_divide_a_view": lambda w, x, i, m: x[:3].div_(w[:3] + 1, rounding_mode="floor"),
    "fill_a_view": lambda w, x, i, m: x[1:].index_fill_(0, i, 2.0),
}


@pytest.mark.parametrize("at", range(4))
@pytest.mark.parametrize("name", WRITES)
def test_in_place(name: str, at: int) -> None:
    def run(mine: bool) -> Any:
        made: list[Any] = [torch.rand(4, dtype=torch.float64), torch.tensor([0, 2]), torch.tensor([True, False, True, False])]
        w, i, m = map(from_torch, made) if mine else made
        x = w.requires_grad_() * 2
        WRITES[name](w, x, i, m)
        return outcome(x, [w], (w, x, i, m)[at], mine)

    torch.manual_seed(0)
    expected = run(False)
    torch.manual_seed(0)
    found = run(True)
    assert (found == "refused") == (expected == "refused")
    if expected != "refused":
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_cross_entropy_by_its_parts(soft: bool, smoothing: float, reduction: str, weighted: bool, dtype: torch.dtype) -> None:
    """The same bits as torch's."""
    x, weight = torch.randn(6, 5).to(dtype), torch.rand(5).to(dtype) if weighted else None
    target = x.softmax(1) if soft else torch.tensor([0, 1, 4, 3, 1, 2])
    found = []
    for wrap in (lambda t: t, from_torch):
        leaf = wrap(x.clone()).requires_grad_()
        options = {"label_smoothing": smoothing, "reduction": reduction, **({} if soft else {"ignore_index": 1})}
        loss: Any = F.cross_entropy(leaf, wrap(target), None if weight is None else wrap(weight), **options)
        leaf.detach().zero_()  # torch keeps the logarithms
        loss.sum().backward()
        found.append((torch.as_tensor(loss.tolist()), torch.as_tensor(leaf.grad.tolist())))
    assert torch.equal(found[1][0], found[0][0])
    torch.testing.assert_close(found[1][1], found[0][1], **({"rtol": 0.02, "atol": 1e-3} if dtype == torch.bfloat16 else {}))
