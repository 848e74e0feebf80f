"""Scalar ops on constants alone become constants, as the vocabulary's numpy functions say."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from tests.fuse.support import check
from tests.lower.support import GraphMaker, run_lowered
from tinycompile.base.expr import sym
from tinycompile.ir.constants import fold_constants
from tinycompile.ir.loops import Const, Nest, Scalar, Statement
from tinycompile.lower.lowering import lower

pytestmark = pytest.mark.pure


def folded(op: str, dtype: torch.dtype, *values: Any, result: torch.dtype | None = None) -> Statement:
    """What becomes of ``op`` on constants of ``dtype``."""
    body: list[Statement] = [Const(f"c{i}", dtype, v) for i, v in enumerate(values)]
    body.append(Scalar("r", result or dtype, op, tuple(f"c{i}" for i in range(len(values)))))
    return fold_constants(body)[-1]


@pytest.mark.parametrize(
    ("op", "dtype", "values", "result", "expected"),
    [
        ("lt", torch.float32, (1.5, 0.0), torch.bool, False),
        ("xor", torch.bool, (True, False), None, True),
        ("add", torch.int8, (100, 100), None, -56),
        ("add", torch.float32, (1.0, 2**-30), None, 1.0),
        ("add", torch.float64, (1.0, 2**-30), None, 1.0 + 2**-30),
        ("div", torch.float32, (1.0, 0.0), None, math.inf),
        ("cast", torch.float32, (-1.5,), torch.int32, -1),
        ("cast", torch.int64, (3,), torch.float32, 3.0),
        ("where", torch.bool, (True, False, True), None, False),
        ("mod", torch.int32, (-7, 3), None, 2),
    ],
    ids=lambda v: str(v).removeprefix("torch."),
)
def test_folds(op: str, dtype: torch.dtype, values: tuple[Any, ...], result: torch.dtype | None, expected: Any) -> None:
    found = folded(op, dtype, *values, result=result)
    assert isinstance(found, Const)
    assert found.dtype == (result or dtype)
    assert found.value == expected and type(found.value) is type(expected)


@pytest.mark.parametrize("divisor", [0, -1])
def test_integer_divisions_that_can_fail_stay(divisor: int) -> None:
    assert isinstance(folded("floordiv", torch.int32, -(2**31), divisor), Scalar)


def test_symbolic_sizes_stay() -> None:
    assert isinstance(folded("add", torch.int64, sym("n", 2), 1), Scalar)


def test_rounding_to_half_is_seen_through() -> None:
    body: list[Statement] = [Const("c", torch.float32, 1.001)]
    body.append(Scalar("h", torch.bfloat16, "cast", ("c",)))
    body.append(Scalar("w", torch.float32, "cast", ("h",)))
    made = fold_constants(body)
    assert isinstance(made[1], Scalar)  # no Const is of a half type
    assert made[2] == Const("w", torch.float32, 1.0)


def _ops_on_constants(body: tuple[Statement, ...]) -> list[Scalar]:
    constants = {s.name for s in body if isinstance(s, Const)}
    return [s for s in body if isinstance(s, Scalar) and constants.issuperset(s.args)]


@pytest.mark.parametrize("divisor", [1.5, -2.5, 3])
def test_formulas_leave_none(divisor: float) -> None:
    g = GraphMaker()
    y = g.call("remainder", g.input(torch.randn(5)), divisor)
    loops = lower(g.graph(y))
    assert all(not _ops_on_constants(s.body) for s in loops.steps if isinstance(s, Nest))
    torch.testing.assert_close(run_lowered(g.graph(y), g.inputs)[0], g.values[y.name])


def test_fusion_leaves_none() -> None:
    g = GraphMaker()
    x = g.input(torch.randn(5))
    y = g.call("remainder", x, g.call("full_like", x, -1.5))
    p = check(lower(g.graph(y)))
    (kernel,) = p.kernels
    assert not _ops_on_constants(kernel.nest.body)
