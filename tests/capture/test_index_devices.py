"""A list as an index becomes a tensor on the indexed tensor's device: a graph stays on one device, and so gets kernels."""

from __future__ import annotations

import pytest
import torch

from tinycompile.backends import graph_device
from tinycompile.capture.frame import capture

pytestmark = pytest.mark.pure


def last(x):
    return x[:, [-1], :] * 2


def rows(x):
    return x[[0, 2]] + 1


def both(x):
    return x[[0, 1], [1, 0]].sum()


@pytest.mark.parametrize("fn", [last, rows, both], ids=lambda f: f.__name__)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_the_graph_stays_on_the_tensors_device(fn, device: str) -> None:
    captured = capture(fn, (torch.zeros(3, 4, 5, device=device),), {})
    assert captured.graph is not None, captured.breaks
    assert str(graph_device(captured.graph)) == device
