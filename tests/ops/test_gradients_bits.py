"""Derivative formulas take torch's steps in torch's order: op by op, with the same kernels, they give the same bits, signs of
zeros included. (Another order rounds elsewhere, overflows earlier and loses other signs.)"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import tinycompile.eager  # noqa: F401  fills the dispatcher
from tinycompile.eager.tensor import from_torch

pytestmark = pytest.mark.pure

INF, NAN = float("inf"), float("nan")
PLACES = (-INF, -300.0, -3.5, -1.0, -0.3, -0.0, 0.0, 1e-4, 0.3, 1.0, 2.5, 7.0, 300.0, 2e4, INF, NAN)
CALLS: dict[str, Callable[..., Any]] = {
    "div": lambda x, y: x / y,
    "atan2": lambda x, y: x.atan2(y),
    "hypot": lambda x, y: x.hypot(y),
    "pow": lambda x, y: x.pow(y),
    "pow of a number": lambda x, y: 2.5**y,
    "pow of zero": lambda x, y: 0.0**y,
    "pow to a number": lambda x, y: x**-1.5,
    "float_power": lambda x, y: x.float_power(y),
    "addcmul": lambda x, y: x.addcmul(y, y.square(), value=0.3),
    "addcdiv": lambda x, y: x.addcdiv(y.square(), y, value=0.3),
    "xlogy": lambda x, y: x.xlogy(y),
    "copysign": lambda x, y: x.copysign(y),
    "remainder": lambda x, y: x.remainder(y),
    "exp2": lambda x, y: x.exp2(),
    "rsqrt": lambda x, y: x.rsqrt(),
    "reciprocal": lambda x, y: x.reciprocal(),
    "sigmoid": lambda x, y: x.sigmoid(),
    "nan_to_num": lambda x, y: x.nan_to_num(),
    "softsign": lambda x, y: F.softsign(x),
    "mse_loss": lambda x, y: F.mse_loss(x, y, reduction="none"),
    "l1_loss": lambda x, y: F.l1_loss(x, y, reduction="none"),
    "huber_loss": lambda x, y: F.huber_loss(x, y, reduction="none", delta=0.75),
    "smooth_l1_loss": lambda x, y: F.smooth_l1_loss(x, y, reduction="none", beta=0.5),
    "smooth_l1_loss of no width": lambda x, y: F.smooth_l1_loss(x, y, reduction="none", beta=0.0),
}


def gradients(call: Callable[..., Any], dtype: torch.dtype) -> tuple[list[Any], list[Any]]:
    """torch's and ours, of all pairs of places."""
    places = torch.tensor(PLACES, dtype=dtype)
    pairs = places.repeat_interleave(len(places)), places.repeat(len(places))
    seed, found = torch.cos(torch.arange(len(PLACES) ** 2, dtype=torch.float64)), []
    for wrap in (lambda v: v, from_torch):
        leaves = [wrap(v.clone()).requires_grad_() for v in pairs]
        y = call(*leaves)
        y.backward(wrap(seed.to(y.dtype)))
        found.append(
            [None if v.grad is None else torch.as_tensor(v.grad.torch() if wrap is from_torch else v.grad) for v in leaves]
        )
    return found[0], found[1]


def assert_same_bits(mine: torch.Tensor, theirs: torch.Tensor) -> None:
    torch.testing.assert_close(mine, theirs, rtol=0, atol=0, equal_nan=True)
    numbers = ~theirs.isnan()
    assert torch.equal(torch.signbit(mine[numbers]), torch.signbit(theirs[numbers]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", CALLS)
def test_steps_are_torchs(name: str, dtype: torch.dtype) -> None:
    for theirs, mine in zip(*gradients(CALLS[name], dtype), strict=True):
        if theirs is not None:
            assert_same_bits(mine, theirs)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("p", [1, 2])
def test_zeros_of_a_margin_have_the_gradients_sign(p: int, reduction: str) -> None:
    scores = torch.randn(4, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 3
    labels, found = torch.tensor([0, 1, 2, 3]), []
    for wrap in (lambda v: v, from_torch):
        x = wrap(scores.clone()).requires_grad_()
        loss = F.multi_margin_loss(x, wrap(labels), p, reduction=reduction)
        loss.backward(wrap(torch.tensor([1.0, -1.0, 0.5, -0.5] if reduction == "none" else -2.0, dtype=torch.float64)))
        found.append(x.grad.torch() if wrap is from_torch else x.grad)
    torch.testing.assert_close(found[1], found[0], rtol=1e-14, atol=0)
    assert torch.equal(torch.signbit(found[1]), torch.signbit(found[0]))


@pytest.mark.parametrize("weight", [None, (1.0, 0.0, 2.0)], ids=["plain", "weighted"])
@pytest.mark.parametrize("ignored", [-100, 1, 7])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_rows_that_do_not_count_have_torchs_zeros(smoothing: float, ignored: int, weight: tuple[float, ...] | None) -> None:
    """An ignored class may be one that there is; a class's weight may be 0."""
    scores = torch.randn(4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    labels = torch.tensor([1, 0, 2, -100 if ignored == -100 else 1])
    for reduction, sign in itertools.product(("mean", "sum", "none"), (1.0, -1.0)):
        found = []
        for wrap in (lambda v: v, from_torch):
            x = wrap(scores.clone()).requires_grad_()
            w = None if weight is None else wrap(torch.tensor(weight, dtype=torch.float64))
            loss = F.cross_entropy(x, wrap(labels), w, ignore_index=ignored, reduction=reduction, label_smoothing=smoothing)
            loss.backward(wrap(torch.full(tuple(loss.shape), sign, dtype=torch.float64)))
            found.append(x.grad.torch() if wrap is from_torch else x.grad)
        torch.testing.assert_close(found[1], found[0], rtol=1e-12, atol=1e-15)
        zeros = found[0] == 0
        assert torch.equal(torch.signbit(found[1][zeros]), torch.signbit(found[0][zeros]))


@pytest.mark.parametrize("dim", [0, -1])
@pytest.mark.parametrize("call", [torch.softmax, torch.log_softmax])
def test_softmax_keeps_the_signs_of_zeros(call: Callable[..., torch.Tensor], dim: int) -> None:
    """Probabilities that underflow, and gradients that are zeros of one sign or of both: rows that a mask takes out."""
    scores = torch.randn(7, 9, generator=torch.Generator().manual_seed(0)) * 90
    either = torch.where(torch.arange(63).reshape(7, 9) % 2 == 0, -0.0, 0.0)
    seeds = (torch.randn(7, 9), torch.zeros(7, 9), -torch.zeros(7, 9), either, torch.randn(7, 9).clamp(max=-0.0))
    for seed, columns in itertools.product(seeds, (9, 1)):
        found = []
        for wrap in (lambda v: v, from_torch):
            x = wrap(scores[:, :columns].clone()).requires_grad_()
            call(x, dim).backward(wrap(seed[:, :columns].clone()))
            found.append(x.grad.torch() if wrap is from_torch else x.grad)
        torch.testing.assert_close(found[1], found[0])
        assert torch.equal(torch.signbit(found[1]), torch.signbit(found[0]))


FACTORS: dict[str, Callable[..., Any]] = {
    "add": lambda x, y: torch.add(x, y, alpha=0.6),
    "sub": lambda x, y: torch.sub(x, y, alpha=-0.6),
    "addr": lambda x, y: torch.addr(y, x[:, 0], x[0], beta=0.6),
    "addmm": lambda x, y: torch.addmm(y, x, x.T, beta=0.6),
}


@pytest.mark.parametrize("size", [(), (1,), (1, 1)], ids=str)
@pytest.mark.parametrize("name", FACTORS)
def test_a_factor_comes_after_the_sum(name: str, size: tuple[int, ...]) -> None:
    """Rounded before it, 0.6 leaves up to half an ulp of each term. A sum of zeros is +0, whatever the factor's sign is."""
    for scale in (1.0, 0.0):
        seed = (torch.cos(torch.arange(50.0)).bfloat16().float() * scale).reshape(5, 10)
        found = []
        for wrap in (lambda v: v, from_torch):
            y = wrap(torch.zeros(size)).requires_grad_()
            out = FACTORS[name](wrap(torch.ones(5, 10)), y)
            out.backward(wrap(seed[:, : out.shape[1]].contiguous()))
            found.append(y.grad.torch() if wrap is from_torch else y.grad)
        exact = seed[:, : out.shape[1]].double().sum() * 0.6
        assert torch.equal(torch.signbit(found[1]), torch.signbit(found[0]))
        assert abs(found[1].double().item() - exact) <= 2**-23 * abs(exact), (found, exact)


def test_powers_and_products_overflow_in_half_types_where_torchs_do() -> None:
    """The slope is infinite as float16 stores it, also where a small gradient would bring it back."""
    x, y = torch.tensor([8.85, 300.0, 2.0], dtype=torch.float16), torch.tensor([6.0, 3.0, 4.0], dtype=torch.float16)
    for call in (lambda x, y: x**y, lambda x, y: x**4, lambda x, y: (x * y * 30).prod(), lambda x, y: 9.5**y):
        found = []
        for wrap in (lambda v: v, from_torch):
            leaves = [wrap(v.clone()).requires_grad_() for v in (x, y)]
            out = call(*leaves)
            out.backward(wrap(torch.full(tuple(out.shape), 2.0**-8, dtype=torch.float16)))
            found.append([v.grad.torch() if wrap is from_torch else v.grad for v in leaves if v.grad is not None])
        for theirs, mine in zip(*found, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=4e-3, atol=0, equal_nan=True)
