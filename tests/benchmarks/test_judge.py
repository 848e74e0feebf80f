"""The judge of the op database: where torch's doubles are not what is right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from benchmarks.opinfo_judge import Call, DifferenceError, Judge, compare, run

pytestmark = pytest.mark.pure


def _judged(op: Callable[..., Any], got: torch.Tensor, *args: torch.Tensor, want: torch.Tensor | None = None) -> None:
    call = Call(args, {})
    want = run(op, theirs := call.copy(), 0) if want is None else want
    compare(got, want, call.copy(), theirs if want is None else call.copy(), Judge(op, call, 0))


def _single(x: torch.Tensor) -> torch.Tensor:
    """A mean that is made of float32 whatever the default is, as torch.masked's are."""
    return x.to(torch.float32 if not x.is_floating_point() else x.dtype).sum() / 7


def test_integers_are_judged_as_doubles() -> None:
    x = torch.arange(20, dtype=torch.int64)
    exact = (x.double().sum() / 7).float()
    worse = torch.nextafter(torch.nextafter(exact, exact + 1), exact + 1)
    _judged(_single, exact, x, want=worse)  # eager may be off by ulps; better is not worse
    with pytest.raises(DifferenceError):
        _judged(_single, worse + worse * 4e-7, x, want=exact)


@pytest.mark.parametrize("op", [torch.fmod, torch.remainder])
def test_a_quotient_beyond_the_range_has_a_remainder(op: Callable[..., Any]) -> None:
    x, y = torch.tensor([-3.0], dtype=torch.bfloat16), torch.tensor([torch.finfo(torch.bfloat16).tiny], dtype=torch.bfloat16)
    zero = torch.tensor([-0.0 if op is torch.fmod else 0.0], dtype=torch.bfloat16)
    _judged(op, zero, x, y, want=torch.full((1,), torch.nan, dtype=torch.bfloat16))
    with pytest.raises(DifferenceError):
        _judged(op, zero, x, y * 0, want=torch.full((1,), torch.nan, dtype=torch.bfloat16))


def test_an_infinity_that_eager_lost() -> None:
    """As torch's gelu with AVX-512 loses it."""
    x = torch.tensor([torch.inf, 1.0])
    lost = torch.tensor([torch.nan, 2.0])
    _judged(lambda x: x * 2, torch.tensor([torch.inf, 2.0]), x, want=lost)
    halves = torch.tensor([4e4, 1.0], dtype=torch.float16)  # 8e4 is beyond them, and eager lost that
    _judged(lambda x: x * 2, torch.tensor([torch.inf, 2.0]).half(), halves, want=lost.half())
    with pytest.raises(DifferenceError):
        _judged(lambda x: x * 2, torch.tensor([-torch.inf, 2.0]).half(), halves, want=lost.half())
    for wrong in (-torch.inf, 2.0):
        with pytest.raises(DifferenceError):
            _judged(lambda x: x * 2, torch.tensor([wrong, 2.0]), x, want=lost)


def test_eager_is_not_lucky_twice() -> None:
    """The exact sum of the terms as they are stored is no worse than a sum in an order that makes up for their rounding."""
    x = torch.linspace(-1, 1, 26) + 1e-4

    def op(x: torch.Tensor) -> torch.Tensor:
        return (x * 700.3).sum()

    usual = Judge(op, Call((x,), {}), 0).usual_error(0, lambda e: e.abs().max().item())
    best = op(x.double()).float()
    assert usual > 5 * best * 2**-23
    _judged(op, best + 1.5 * usual, x, want=best)
    with pytest.raises(DifferenceError):
        _judged(op, best + 5 * usual, x, want=best)


def test_nothing_is_usual_about_what_is_decided() -> None:
    x = torch.linspace(-3, 3, 50)
    with pytest.raises(DifferenceError):
        _judged(lambda x: (x * 0.7).floor(), (x * 0.7).floor() + 1, x)
    with pytest.raises(DifferenceError):
        _judged(lambda x: x * 0.5, x * 0.5 * (1 + 4e-7), x)


def test_a_zeros_sign_counts_unless_it_is_what_rounding_left() -> None:
    x = torch.tensor([1.1, 2.3, -0.7, 5.9, 1.3, 0.3, -2.9, 8.1])
    left = lambda x: ((x - x.mean()).sum() * 1e-3).half()  # noqa: E731  # of numbers that cancel
    _judged(left, -torch.zeros(()).half(), x, want=torch.zeros(()).half())
    for op in (lambda x: x * 0.0, lambda x: (x * 1e-30) * 1e-30):  # a zero, and an underflow: eager's sign is the numbers'
        _judged(op, op(x), x)
        with pytest.raises(DifferenceError):
            _judged(op, -op(x), x)
