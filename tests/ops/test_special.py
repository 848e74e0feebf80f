"""Special functions in float64 against mpmath: the relative error, or where a value is small the error relative to 0.1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tinycompile.ops.evaluate import evaluate
from tinycompile.ops.record import OPS

mp = pytest.importorskip("mpmath")
pytestmark = pytest.mark.pure
mp.mp.dps = 30

# record, the function, the range, its bound in units of float64's epsilon
CASES: tuple[tuple[str, Callable[[Any], Any], tuple[float, float], float], ...] = (
    ("i0", lambda x: mp.besseli(0, x), (-30, 30), 8),
    ("special_i0e", lambda x: mp.exp(-abs(x)) * mp.besseli(0, x), (-60, 60), 8),
    ("special_i1", lambda x: mp.besseli(1, x), (-30, 30), 16),
    ("special_i1e", lambda x: mp.exp(-abs(x)) * mp.besseli(1, x), (-60, 60), 16),
    ("special_modified_bessel_k0", lambda x: mp.besselk(0, x), (0.01, 30), 16),
    ("special_modified_bessel_k1", lambda x: mp.besselk(1, x), (0.01, 30), 16),
    ("special_bessel_j0", lambda x: mp.besselj(0, x), (-40, 40), 64),
    ("special_bessel_j1", lambda x: mp.besselj(1, x), (-40, 40), 64),
    ("special_bessel_y0", lambda x: mp.bessely(0, x), (0.01, 40), 64),
    ("special_bessel_y1", lambda x: mp.bessely(1, x), (0.01, 40), 64),
    ("special_airy_ai", mp.airyai, (-30, 8), 256),
    ("special_erfcx", lambda x: mp.exp(x * x) * mp.erfc(x), (-2, 40), 16),
    ("special_log_ndtr", lambda x: mp.log(mp.ncdf(x)), (-30, 4), 8),
    ("special_ndtri", lambda p: mp.sqrt(2) * mp.erfinv(2 * p - 1), (0.001, 0.999), 64),
    ("erfinv", mp.erfinv, (-0.999, 0.999), 8),
    ("digamma", mp.digamma, (-20.3, 40), 256),
)


@pytest.mark.parametrize("name, exact, span, bound", CASES, ids=[c[0] for c in CASES])
def test_close_to_mpmath(name: str, exact: Callable[[Any], Any], span: tuple[float, float], bound: float) -> None:
    x = torch.linspace(*span, 49, dtype=torch.float64)
    found = evaluate(OPS[name], (x,)).tolist()
    for at, value in zip(x.tolist(), found, strict=True):
        want = exact(mp.mpf(at))
        error = abs(mp.mpf(value) - want) / max(abs(want), mp.mpf("0.1"))
        assert error <= bound * torch.finfo(torch.float64).eps, (at, value, want, float(error) / 2.2e-16)


def test_inverses_keep_their_digits_where_the_tails_are_thin() -> None:
    """An error function there is 1 to the last bit, whatever its argument: its complement tells."""
    y = 1 - torch.tensor([2.0**-k for k in range(1, 54)], dtype=torch.float64)
    for at, value in zip(y.tolist(), evaluate(OPS["erfinv"], (y,)).tolist(), strict=True):
        with mp.workprec(200):
            want = mp.erfinv(mp.mpf(at))
            assert abs(mp.mpf(value) - want) <= 8 * torch.finfo(torch.float64).eps * want, at
    torch.testing.assert_close(evaluate(OPS["erfinv"], (-y,)), -evaluate(OPS["erfinv"], (y,)), rtol=0, atol=0)


@pytest.mark.parametrize("name", [c[0] for c in CASES])
def test_poles_and_nan_as_torchs(name: str) -> None:
    special = [float("nan"), 0.0, -0.0, float("inf"), -float("inf"), 1.0, -1.0, -2.0, 2.0]
    x = torch.tensor(special, dtype=torch.float64)
    ours, theirs = evaluate(OPS[name], (x,)), OPS[name].eager(x)
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6, equal_nan=True)
