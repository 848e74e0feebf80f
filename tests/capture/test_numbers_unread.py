"""A number that a dtype can't hold is refused, also where nobody reads what is made of it, be it the same in each call or not."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import tinycompile

pytestmark = pytest.mark.pure


def put(x, k):
    y = x.long()
    y[0] = k


def put_all(x, k):
    y = x.int()
    y[:] = k
    y.add_(0)


def put_where(x, k):
    y = x.long()
    y[x > 0] = k


PROGRAMS: dict[str, Callable[[Any, Any], Any]] = {
    "put": put,
    "put all": put_all,
    "put where": put_where,
    "fill": lambda x, k: x.long().fill_(k),
    "fill of a half": lambda x, k: x.half().fill_(k),
    "masked_fill": lambda x, k: x.long().masked_fill(x > 0, k),
    "masked_fill_": lambda x, k: x.int().masked_fill_(x > 0, k),
    "full": lambda x, k: torch.full((2,), k, dtype=torch.int64),
    "full_like": lambda x, k: torch.full_like(x, k, dtype=torch.uint8),
    "new_full": lambda x, k: x.new_full((2,), k, dtype=torch.int32),
    "scalar_tensor": lambda x, k: torch.scalar_tensor(k, dtype=torch.int64),
    "tensor": lambda x, k: torch.tensor(k, dtype=torch.int64),
    "clamp": lambda x, k: x.clamp(k, 3),
    "clamp of ints": lambda x, k: x.int().clamp(max=k),
    "addcmul": lambda x, k: x.int().addcmul(x.int(), x.int(), value=k),
    "pow": lambda x, k: x.int() ** k,
    "arithmetic": lambda x, k: (x.half() + k, x.half() * k, x.int() - k, x.int() == k),
    "index_fill": lambda x, k: x.long().index_fill(0, torch.tensor([0]), k),
    "scatter": lambda x, k: x.int().scatter(0, torch.tensor([0]), k),
}
FLOATS, INTS = (0.5, 1.5, math.nan, math.inf, 1e300, 2.0), (7, 8, 2**40, 300, -1)


@pytest.mark.parametrize("numbers", [FLOATS, INTS], ids=["floats", "ints"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_refused_as_in_eager(name: str, numbers: tuple[Any, ...]) -> None:
    make = PROGRAMS[name]

    def program(x: Any, k: Any) -> Any:
        make(x, k)
        return x

    def told(run: Any, k: Any) -> Any:
        try:
            return run(torch.ones(3), k).tolist()
        except RuntimeError as error:
            return str(error)

    compiled = tinycompile.compile(program, backend="eager")
    for k in numbers:
        assert told(compiled, k) == told(program, k), k
        alone = tinycompile.compile(program, backend="eager")  # for which it is a constant
        assert told(alone, k) == told(program, k), k


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32])
def test_sizes_are_refused_as_in_eager(dtype: torch.dtype) -> None:
    def program(x: Any) -> Any:
        x.new_full((2,), x.shape[0], dtype=dtype)
        return x

    def told(run: Any, n: int) -> Any:
        try:
            return tuple(run(torch.ones(1).expand(n)).shape)
        except RuntimeError as error:
            return str(error)

    compiled = tinycompile.compile(program, backend="eager")
    for n in (100, 101, 102, 200, 300, 40000, 103):
        assert told(compiled, n) == told(program, n)
