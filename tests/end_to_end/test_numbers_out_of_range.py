"""Numbers that a dtype can't hold: what torch refuses is refused in its words, what it takes gives its result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import tinycompile
from benchmarks.opinfo_backends import LoopsBackend

pytestmark = pytest.mark.cpu

NAN, INF = float("nan"), float("inf")
VALUES: dict[torch.dtype, tuple[Any, ...]] = {
    torch.float16: (65504.0, 65505.0, -1e30, 100000, INF, NAN, 2**63),
    torch.bfloat16: (1e39, -1e39, -INF, 3e38),
    torch.float32: (1e39, -1e300, INF),
    torch.float64: (1e308, 2**63),
    torch.int8: (127, 128, -129, 300.5, 1e10, NAN, -INF, 2**31),
    torch.uint8: (-1, 255, 256, -256, -1.0, 1e10),
    torch.int16: (70000, -40000),
    torch.int32: (2**31, 1e20, INF),
    torch.int64: (1e20, NAN, 2**63),
}


def _written(x: torch.Tensor, at: Any, value: Any) -> torch.Tensor:
    y = x.clone()
    y[at] = value
    return y


OPS: dict[str, Callable[[torch.Tensor, Any], Any]] = {
    "masked_fill": lambda x, s: x.masked_fill(x > 0, s),
    "masked_fill_": lambda x, s: x.clone().masked_fill_(x > 0, s),
    "full": lambda x, s: torch.full((2,), s, dtype=x.dtype),
    "full_like": torch.full_like,
    "new_full": lambda x, s: x.new_full((2,), s),
    "scalar_tensor": lambda x, s: torch.scalar_tensor(s, dtype=x.dtype),
    "fill_": lambda x, s: x.clone().fill_(s),
    "clamp": lambda x, s: x.clamp(max=s),
    "clamp_min": torch.clamp_min,
    "pad": lambda x, s: F.pad(x, (1, 1), value=s),
    "add": lambda x, s: x + s,
    "rsub": lambda x, s: s - x,
    "mul": lambda x, s: x * s,
    "div": lambda x, s: x / s,
    "add with alpha": lambda x, s: torch.add(x, x, alpha=s),
    "addcdiv": lambda x, s: torch.addcdiv(x, x, x, value=s),
    "where": lambda x, s: torch.where(x > 1, x, s),
    "compare": lambda x, s: (x == s, x < s),
    "remainder": torch.remainder,
    "floor_divide": lambda x, s: x // s,
    "pow": lambda x, s: x**s,
    "threshold": lambda x, s: F.threshold(x, 1, s),
    "leaky_relu": F.leaky_relu,
    "hardshrink": F.hardshrink,
    "index_fill": lambda x, s: x.index_fill(0, torch.tensor([0]), s),
    "scatter": lambda x, s: x.scatter(0, torch.tensor([0]), s),
    "x[0] = s": lambda x, s: _written(x, 0, s),
    "x[mask] = s": lambda x, s: _written(x, x > 1, s),
}


def _told(fn: Callable[..., Any], *args: Any) -> Any:
    """What a call gives, or the error that it raises."""
    try:
        return fn(*args)
    except Exception as error:  # noqa: BLE001  (the error is the answer)
        return type(error), str(error).partition("\n")[0]


def _assert_same(got: Any, want: Any) -> None:
    if isinstance(want, torch.Tensor):
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
    elif isinstance(want, tuple) and isinstance(want[0], torch.Tensor):
        for g, w in zip(got, want, strict=True):
            _assert_same(g, w)
    else:
        assert got == want


@pytest.mark.parametrize("name", OPS)
def test_as_eager(name: str) -> None:
    fn = OPS[name]
    for dtype, values in VALUES.items():
        x = torch.tensor([1, 2, 3, 7]).to(dtype)
        for value in values:
            compiled = tinycompile.compile(lambda x, s=value: fn(x, s), backend=LoopsBackend())
            try:
                _assert_same(_told(compiled, x), _told(fn, x, value))
            except AssertionError as error:
                raise AssertionError(f"{name} of {dtype} and {value}: {error}") from error


@pytest.mark.parametrize(
    "name", ["masked_fill", "full", "full_like", "fill_", "clamp", "add", "where", "add with alpha", "pow"]
)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.int8], ids=str)
def test_numbers_that_come_to_be_out_of_range(name: str, dtype: torch.dtype) -> None:
    """The number is an input of the compiled code by then."""
    fn, x = OPS[name], torch.tensor([1, 2, 3, 7]).to(dtype)
    compiled = tinycompile.compile(fn, backend=LoopsBackend())
    values = (2, 3, 4, 300, -129, 5) if dtype == torch.int8 else (2.0, 3.0, 4.0, 1e39, INF, 81920.0, -1e300, 5.0)
    for value in values:
        _assert_same(_told(compiled, x, value), _told(fn, x, value))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.float16], ids=str)
def test_sizes_that_come_to_be_out_of_range(dtype: torch.dtype) -> None:
    compiled = tinycompile.compile(fn := lambda x: torch.full_like(x, x.shape[0], dtype=dtype), backend=LoopsBackend())
    for n in (3, 4, 5, 130, 300, 65504, 65505, 6):
        x = torch.zeros(n)
        _assert_same(_told(compiled, x), _told(fn, x))


@pytest.mark.parametrize("name", ["masked_fill", "full_like", "fill_", "clamp", "where", "add"])
@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.int64, torch.bool], ids=str)
def test_floats_that_come_to_be_out_of_range_of_integers(name: str, dtype: torch.dtype) -> None:
    fn, x = OPS[name], torch.tensor([1, 2, 3, 7]).to(dtype)
    compiled = tinycompile.compile(fn, backend=LoopsBackend())
    for value in (2.0, 3.0, 4.0, 1e39, INF, 2.0**63):
        _assert_same(_told(compiled, x, value), _told(fn, x, value))
