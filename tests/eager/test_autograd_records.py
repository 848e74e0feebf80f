"""Every differentiable record on our tape against torch's: first derivatives, and second ones, in float64."""

from __future__ import annotations

import re
import warnings
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import tinycompile
from tests.ops.test_gradients import bound, differentiable, doubles, flat
from tinycompile.dispatch import dispatcher
from tinycompile.eager import autograd
from tinycompile.eager.tensor import Tensor, from_torch
from tinycompile.ops.record import OPS, Op, Sample

pytestmark = pytest.mark.pure

# Random or undefined values; and library ops with results that nobody differentiates (tested through the ops that use them).
_LEFT_OUT = {
    "native_dropout", "dropout", "rand_like", "randn_like", "empty", "empty_like",
    "attention_forward", "cross_entropy_of_linear",  # what they keep for their backward has no formula; their own tests judge them
}  # fmt: skip


def _attention_backward(
    g: Any, q: Any, k: Any, v: Any, mask: Any, out: Any, statistics: Any, causal: bool, scale: float
) -> Any:
    """By torch's autograd through its plain kernel, which can be differentiated again."""
    with sdpa_kernel(SDPBackend.MATH):
        y = F.scaled_dot_product_attention(q, k, v, mask, 0.0, causal, scale=scale)
    return torch.autograd.grad(y, (q, k, v), g, create_graph=True)


def _plain_attention(*args: Any) -> torch.Tensor:
    with sdpa_kernel(SDPBackend.MATH):
        return OPS["scaled_dot_product_attention"].eager(*args)


_JUDGES = {"attention_backward": _attention_backward, "scaled_dot_product_attention": _plain_attention}


def ours(value: Any) -> Any:
    """Leaves of our tape where torch has leaves of its own."""
    if isinstance(value, torch.Tensor):
        mine = from_torch(value.detach())
        return mine.requires_grad_() if value.requires_grad else mine
    return tuple(ours(v) for v in value) if isinstance(value, tuple) else value


def plain(sample: Sample) -> bool:
    return "special" not in repr(sample) and "0," not in repr([s.shape for s in flat(sample.args) if hasattr(s, "shape")])


def inside(op: Op, args: Any) -> Any:
    """Probabilities of 0 and 1 have no second derivative: others in their place."""
    return (args[0].clamp(0.1, 0.9), *args[1:]) if op.name == "binary_cross_entropy" else args


def cases() -> list[Any]:
    """Samples that differ only in the float dtype are one in float64."""
    found = []
    for op in OPS.values():
        if op.name not in _LEFT_OUT:
            samples = {re.sub("b?float(16|32)", "float64", repr(s)): s for s in op.samples() if plain(s)}
            found += [pytest.param(op, s, id=f"{op.name}-{i}") for i, s in enumerate(samples.values())]
    return found


def run(op: Op, args: Any) -> tuple[list[Any], list[Any]]:
    """(results that require grad, leaves)."""
    found = dispatcher.call_bound(op.name, args) if any(isinstance(a, Tensor) for a in flat(args)) else None
    results = found if found is not None else _JUDGES.get(op.name, op.eager)(*args)
    leaves = [a for a in flat(args) if isinstance(a, (Tensor, torch.Tensor)) and a.requires_grad]
    return [r for r in flat(results) if isinstance(r, (Tensor, torch.Tensor)) and r.requires_grad], leaves


@pytest.mark.parametrize("op, sample", cases())
def test_first_and_second_derivatives(op: Op, sample: Sample) -> None:
    warnings.simplefilter("ignore")
    args = differentiable(inside(op, doubles(bound(op, sample))))
    try:
        theirs, leaves = run(op, args)
    except Exception:
        pytest.skip("the sample is an error")
    if not leaves:
        pytest.skip("nothing to differentiate")
    mine, my_leaves = run(op, ours(args))
    if op.name == "convolution_backward":
        mine = [m for m in mine if m.ndim > 1]  # what is not needed is empty
    assert len(mine) == len(theirs)
    if not theirs:
        return
    seeds = [torch.randn_like(r).requires_grad_() for r in theirs]
    my_seeds = [from_torch(s.detach()).requires_grad_() for s in seeds]
    first = derivatives(torch.autograd.grad, theirs, leaves, seeds, create_graph=True)
    my_first = autograd.grad(mine, my_leaves, my_seeds, create_graph=True, allow_unused=True)
    compare(my_first, first)
    pairs = [
        (m, t)
        for m, t in zip(my_first, first, strict=True)
        if m is not None and t is not None and t.requires_grad and t.isfinite().all() and (t.numel() or m.requires_grad)
    ]
    if pairs:
        again = [torch.randn_like(t) for _, t in pairs]
        second = derivatives(torch.autograd.grad, [t for _, t in pairs], [*leaves, *seeds], again)
        my_second = autograd.grad(
            [m for m, _ in pairs], [*my_leaves, *my_seeds], [from_torch(a) for a in again], allow_unused=True
        )
        compare(my_second, second)


def derivatives(*call: Any, **options: Any) -> Any:
    """torch's gradients; skips the test where torch has none."""
    try:
        return call[0](*call[1:], allow_unused=True, **options)
    except RuntimeError as error:
        assert "is not implemented" in str(error) or "invalid gradient" in str(error)
        pytest.skip(f"torch: {error}")


def compare(mine: Any, theirs: Any) -> None:
    for m, t in zip(mine, theirs, strict=True):
        if m is None or t is None:
            rest = t if m is None else m.raw()
            assert rest is None or not rest.abs().sum()
        else:
            torch.testing.assert_close(m.raw(), t, rtol=1e-6, atol=1e-8, equal_nan=True, check_stride=False)


# Parts, operands or numbers are kept where torch keeps none; and torch's second backward of a group norm crashes the process.
_KEPT_ALL_THE_SAME = {
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "addr", "bernoulli", "cumulative_trapezoid", "lerp",
    "round_decimals", "trapezoid", "diagonal_scatter", "einsum", "group_norm", "interpolate", "select_scatter", "slice_scatter",
}  # fmt: skip


@pytest.mark.parametrize("op, sample", [p for p in cases() if p.values[0].name not in _KEPT_ALL_THE_SAME])
def test_a_second_backward_is_refused_where_torch_refuses_it_alone(op: Op, sample: Sample) -> None:
    """What a formula reads for another gradient is no reason."""
    warnings.simplefilter("ignore")
    args = differentiable(inside(op, doubles(bound(op, sample))))
    for alone in range(sum(isinstance(a, torch.Tensor) and a.requires_grad for a in flat(args))):
        given = _of_one(args, alone)
        try:
            theirs, _ = run(op, given)
            seeds = [torch.ones_like(r) for r in theirs]
            for _ in range(2):
                torch.autograd.backward(theirs, seeds)
        except Exception:  # noqa: BLE001  # torch refuses, or the sample is an error
            continue
        mine, _ = run(op, ours(_of_one(args, alone)))
        for _ in range(2):
            autograd.backward(mine, [from_torch(torch.ones_like(r.raw())) for r in mine])


def _of_one(args: Any, alone: int) -> Any:
    """The same arguments, of which one requires grad."""
    leaves = [a for a in flat(args) if isinstance(a, torch.Tensor) and a.requires_grad]

    def made(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.detach().clone().requires_grad_(value is leaves[alone])
        return tuple(made(v) for v in value) if isinstance(value, tuple) else value

    return made(args)


@pytest.mark.parametrize("first", [torch.bool, torch.int64, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("equation", ["i,j->ij", "ij,k->ijk", "...i,i->...i", "i,ij->ij", "i,j,k->jik"])
def test_einsum_of_dtypes_that_differ_has_its_gradients(equation: str, first: torch.dtype) -> None:
    """torch multiplies where nothing is summed over, and so may the operands' dtypes differ."""
    terms = equation.partition("->")[0].replace("...", "a").split(",")
    operands = [torch.arange(2 ** len(t), dtype=torch.float32).reshape([2] * len(t)) % 3 for t in terms]
    operands[0] = operands[0].to(first)

    def gradients(made: list[Any], call: Any) -> list[Any]:
        leaves = [x.requires_grad_() if x.is_floating_point() else x for x in made]
        y = call(equation, *leaves)
        y.cos().sum().backward()
        return [(str(x.grad.dtype), x.grad.tolist()) for x in (y.detach(), *leaves) if x.grad is not None]

    expected = gradients([x.clone() for x in operands], torch.einsum)
    assert gradients([from_torch(x.clone()) for x in operands], torch.einsum) == expected
    assert gradients([x.clone() for x in operands], tinycompile.compile(lambda *args: torch.einsum(*args))) == expected
