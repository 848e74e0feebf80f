"""Running sums in blocks: lengths around a block, what goes in and what is made of them, what is not finite; and which scans go one
by one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import tinycompile
from tinycompile.codegen.cpp.scans import BLOCK
from tinycompile.runtime.cpp_build import compiler

pytestmark = [pytest.mark.cpu, pytest.mark.skipif(compiler() is None, reason="no C++ compiler")]


def compiled(fn: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return tinycompile.compile(fn, backend="cpp")


def in_blocks(fn: Callable[..., Tensor], x: Tensor) -> bool:
    done = tinycompile.compile(fn, backend="cpp")
    torch.testing.assert_close(done(x.clone()), fn(x.clone()), equal_nan=True)
    return "tc::running_sums<" in done.kernels[0].source


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("length", [BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK - 1, 1000])
def test_lengths_around_a_block(length: int, dtype: torch.dtype) -> None:
    x = torch.randn(5, length).to(dtype)
    assert in_blocks(lambda x: x.cumsum(-1) * 2, x) == (length >= BLOCK)


@pytest.mark.parametrize("place", [0, 7, BLOCK - 1, BLOCK, 40])
@pytest.mark.parametrize("values", [("inf",), ("nan",), ("inf", "-inf"), ("-inf", "1")])
def test_what_is_not_finite_stays_in_its_place(place: int, values: tuple[str, ...]) -> None:
    x = torch.randn(2, 64)
    for i, value in enumerate(values):
        x[0, place + 2 * i] = float(value)
    assert in_blocks(lambda x: x.cumsum(-1), x)


def test_sums_are_those_of_float64() -> None:
    x = torch.randn(3, 100_000) * 1000
    got = compiled(lambda x: x.cumsum(-1))(x)
    assert torch.equal(got, x.double().cumsum(-1).float()) or (got - x.double().cumsum(-1)).abs().max() <= 0.02


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x.cumprod(-1),
        lambda x: x.long().cumsum(-1),
        lambda x: x.cummax(-1).values,
        lambda x: x.cumsum(0),
        lambda x: x.cumsum(-1).cumsum(-1),
        lambda x: x.cumsum_(-1),
    ],
    ids=["products", "integers", "maxima", "down columns", "of each other", "in place"],
)
def test_other_scans_are_right(fn: Callable[..., Tensor]) -> None:
    x = torch.randn(6, 70)
    in_blocks(fn, x)
