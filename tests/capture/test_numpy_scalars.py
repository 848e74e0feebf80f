"""numpy's scalars compared: they answer with numpy's own bool, whatever the other side is, also of sizes and numbers that vary."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import tinycompile

pytestmark = pytest.mark.pure

K = np.int64(1)
CASES: dict[str, Callable[[torch.Tensor, Any], Any]] = {
    "not": lambda x, k: x + 1 if ~(k == 1) else x - 1,
    "sums": lambda x, k: (x, (k != 1) + (k != 2), (k == 1) + (k == 1)),
    "an element": lambda x, k: (x, (np.ones(2)[0] == 1).sum(), (k == 1).dtype, (k == 1).astype(int)),
    "the same": lambda x, k: (x, k == k, k != k, np.float64("nan") == np.float64("nan"), np.bool_(True) == True),  # noqa: E712
    "numbers": lambda x, k: (x, k == 1.0, 1 == k, 2 != k, np.float32(0.1) == 0.1, np.float32(1) == np.int8(1)),
    "others": lambda x, k: (x, k == None, None != k, k == "a", "a" != k, k == {1}, k == {1: 2}),  # noqa: E711
    "a list": lambda x, k: (x, k == [1], (1, 2) == k),
    "containers": lambda x, k: (x, k in [1], k in {1}, [k] == [1], (k,) == (1,), [1].index(k), [1, 1].count(k)),
    "a size": lambda x, k: (x, k == x.shape[0], x.shape[0] != k, k < x.shape[0], x.shape[0] >= k),
}


def told(value: Any) -> Any:
    """With the class of each part."""
    return [told(v) for v in value] if isinstance(value, tuple) else (type(value), repr(value))


@pytest.mark.parametrize("name", CASES)
def test_comparisons(name: str) -> None:
    fn = CASES[name]
    compiled = tinycompile.compile(fn, backend="eager")
    for size in (2, 1, 3, 1, 4):
        x = torch.ones(size)
        assert told(compiled(x, K)) == told(fn(x, K))


def test_a_number_that_varies() -> None:
    def fn(x: torch.Tensor, v: float, k: Any) -> Any:
        return x * v, k == v, v != k, k < v

    compiled = tinycompile.compile(fn, backend="eager")
    for v in (1.5, 2.5, 3.0, 4.25, 3.0):
        assert told(compiled(torch.ones(2), v, np.float32(3))) == told(fn(torch.ones(2), v, np.float32(3)))
