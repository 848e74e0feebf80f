"""The judge of results: torch sets the bar, and float64 decides where torch's own low-precision answer is NaN for a number."""

from __future__ import annotations

import pytest
import torch

from tests.lower.support import assert_contract

pytestmark = pytest.mark.pure

NAN, INF = float("nan"), float("inf")
HALVES_AND_FLOAT = (torch.float32, torch.bfloat16, torch.float16)


def _judge(dtype: torch.dtype, got: list[float], want: list[float], exact: list[float] | None) -> None:
    wide = None if exact is None else torch.tensor(exact, dtype=torch.float64)
    assert_contract(torch.tensor(got, dtype=dtype), torch.tensor(want, dtype=dtype), wide)


@pytest.mark.parametrize("dtype", HALVES_AND_FLOAT, ids=str)
def test_float64_decides_where_torch_lost_a_number(dtype: torch.dtype) -> None:
    """As of gelu of an infinity with AVX-512: NaN in float32, infinity or 0 in float64."""
    want, exact = [1.0, NAN, NAN, NAN], [1.0, INF, 0.0, NAN]
    _judge(dtype, [1.0, INF, 0.0, NAN], want, exact)
    _judge(dtype, [1.0, NAN, NAN, NAN], want, exact)  # as torch is never wrong
    for got in ([1.0, -INF, 0.0, NAN], [1.0, INF, 1e-3, NAN], [1.0, INF, 0.0, INF], [1.0, 3.0, 0.0, NAN]):
        with pytest.raises(AssertionError):
            _judge(dtype, got, want, exact)


@pytest.mark.parametrize("dtype", HALVES_AND_FLOAT, ids=str)
def test_torch_decides_elsewhere(dtype: torch.dtype) -> None:
    """An infinity or a NaN of ours where torch has another special number or a finite one, and any without a judge."""
    _judge(dtype, [INF, 1.0], [INF, 1.0], [1e30, 1.0])  # an overflow on the way is torch's answer
    for got, want, exact in (
        ([NAN, 1.0], [INF, 1.0], [NAN, 1.0]),
        ([1.0, 1.0], [INF, 1.0], [1.0, 1.0]),
        ([NAN, 1.0], [2.0, 1.0], [NAN, 1.0]),
        ([INF, 1.0], [2.0, 1.0], [INF, 1.0]),
        ([INF, 1.0], [NAN, 1.0], None),
    ):
        with pytest.raises(AssertionError):
            _judge(dtype, got, want, exact)


@pytest.mark.parametrize("dtype", HALVES_AND_FLOAT, ids=str)
def test_finite_values_are_judged_as_without_lost_ones(dtype: torch.dtype) -> None:
    """A huge value that torch lost widens the bound of none beside it."""
    off = 1 + 4 * torch.finfo(dtype).eps
    with pytest.raises(AssertionError, match="off by"):
        _judge(dtype, [off, 1.0], [1.0, 1.0], [1.0, 1.0])
    with pytest.raises(AssertionError, match="off by"):
        _judge(dtype, [off, 60000.0], [1.0, NAN], [1.0, float(torch.tensor(60000.0, dtype=dtype))])
