"""Dims that a tensor doesn't have, 0-d tensors' too: torch's error from the compiled function, and no fault of ours on the way."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import tinycompile

pytestmark = pytest.mark.pure

CALLS: dict[str, Callable[[Tensor, int], Any]] = {
    **{n: lambda x, d, n=n: getattr(x, n)(d) for n in ("cummax", "cummin", "argmax", "amax", "logcumsumexp", "squeeze", "unsqueeze")},
    **{n: lambda x, d, n=n: getattr(x, n)(dim=d) for n in ("cumsum", "cumprod", "sum", "mean", "softmax", "max", "any", "sort")},
    "roll": lambda x, d: x.roll(1, d),
    "flip": lambda x, d: x.flip(d),
    "flatten": lambda x, d: x.flatten(d),
    "flatten, end": lambda x, d: x.flatten(0, d),
    "movedim": lambda x, d: x.movedim(0, d),
    "transpose": lambda x, d: x.transpose(0, d),
    "repeat_interleave": lambda x, d: x.repeat_interleave(2, d),
    "select": lambda x, d: x.select(d, 0),
    "narrow": lambda x, d: x.narrow(d, 0, 1),
    "cat": lambda x, d: torch.cat([x, x], d),
    "stack": lambda x, d: torch.stack([x, x], d),
    "gather": lambda x, d: x.gather(d, torch.zeros_like(x, dtype=torch.int64)),
    "scatter": lambda x, d: x.scatter(d, torch.zeros_like(x, dtype=torch.int64), x),
    "norm": lambda x, d: torch.linalg.vector_norm(x, dim=d),
    "softmax, functional": lambda x, d: torch.nn.functional.log_softmax(x, d),
}  # fmt: skip


def outcome(fn: Callable[[Tensor, int], Any], x: Tensor, dim: int) -> Any:
    try:
        return fn(x.clone(), dim)
    except (IndexError, RuntimeError) as error:
        return type(error)


@pytest.mark.parametrize("shape", [(), (3,), (2, 3)], ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_as_eager(name: str, shape: tuple[int, ...]) -> None:
    x = torch.rand(shape)
    for dim in (0, -1, 1, -2, 2, -4):
        want = outcome(CALLS[name], x, dim)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            got = outcome(tinycompile.compile(CALLS[name], backend="eager"), x, dim)
        torch.testing.assert_close(got, want) if not isinstance(want, type) else None
        assert isinstance(want, type) == isinstance(got, type) and (not isinstance(want, type) or got is want), (dim, got, want)
