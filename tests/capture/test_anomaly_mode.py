"""Anomaly mode looks at the gradients of each op: backwards in compiled functions are torch's own then."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import tinycompile

pytestmark = pytest.mark.cpu


def _backward(x: torch.Tensor) -> torch.Tensor:
    x.sqrt().sum().backward()
    assert x.grad is not None
    return x.grad


def _grad(x: torch.Tensor) -> torch.Tensor:
    return torch.autograd.grad(x.sqrt().sum(), x)[0]


def _inside(x: torch.Tensor) -> torch.Tensor:
    with torch.autograd.detect_anomaly():
        return _backward(x)


def _leaf(*values: float) -> torch.Tensor:
    return torch.tensor(values, requires_grad=True)


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
@pytest.mark.parametrize("fn", [_backward, _grad, _inside])
def test_nan_is_found(fn: Callable[[torch.Tensor], torch.Tensor]) -> None:
    f = tinycompile.compile(fn, backend="aot_eager")
    if fn is not _inside:
        assert torch.equal(f(_leaf(1.0, 4.0)), torch.tensor([0.5, 0.25])) and not f.breaks
        assert f(_leaf(-1.0)).isnan().all()  # nobody looks
    with torch.autograd.detect_anomaly():
        assert torch.equal(f(_leaf(1.0, 4.0)), torch.tensor([0.5, 0.25]))
        with pytest.raises(RuntimeError, match="returned nan values in its 0th output"):
            f(_leaf(-1.0, 4.0))
    with torch.autograd.set_detect_anomaly(True, check_nan=False):
        assert fn is _inside or f(_leaf(-1.0)).isnan().all()
