"""Every op record, every sample: lowered, verified, printed, run by the reference interpreter, and judged against torch."""

from __future__ import annotations

import ast
from typing import Any

import pytest
import torch

import tinycompile.ops  # noqa: F401  (fills OPS)
from tests.lower.support import assert_contract, assert_same_form, bind_sample, graph_of_call, run_eager, to_double
from tinycompile.ir.effects import is_random
from tinycompile.ir.loops_reference import run_loops
from tinycompile.ir.loops_text import print_loops
from tinycompile.ir.verify_loops import verify_loops
from tinycompile.lower.lowering import lower
from tinycompile.ops.record import OPS, Op, Sample
from tinycompile.passes.pipeline import optimize

pytestmark = [pytest.mark.pure, pytest.mark.filterwarnings("ignore:.*degrees of freedom")]

UNDEFINED = frozenset({"empty", "empty_like", "new_empty", "empty_strided"})  # memory as it comes


def judged(op: Op, args: tuple[Any, ...], want: list[Any]) -> list[Any]:
    """The answer in float64, None where torch has none or answers in another shape."""
    try:
        exact = run_eager(op.eager, to_double(args))
    except (RuntimeError, NotImplementedError):
        return [None] * len(want)
    return [e if isinstance(e, torch.Tensor) and e.shape == w.shape else None for e, w in zip(exact, want, strict=True)]


def _check(op: Op, sample: Sample) -> None:
    torch.manual_seed(0)
    args = bind_sample(op, sample)
    try:
        want = run_eager(op.eager, args)
    except (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError):
        return  # what torch refuses, the meta rule refuses: tests/ops
    graph, inputs = graph_of_call(op, args)
    loops = lower(optimize(graph))
    verify_loops(loops)
    ast.parse(print_loops(loops))
    got = run_loops(loops, inputs)
    if any(is_random(n) for n in graph.nodes) or op.name in UNDEFINED:
        for g, w in zip(got, want, strict=True):
            assert_same_form(g, w)
        return
    for g, w, e in zip(got, want, judged(op, args, want), strict=True):
        assert_contract(g, w, e, op.ulp)


@pytest.mark.parametrize("name", sorted(OPS))
def test_record(name: str) -> None:
    """All samples of one record; the failing sample is in the message."""
    for sample in OPS[name].samples():
        try:
            _check(OPS[name], sample)
        except Exception as error:
            raise AssertionError(f"{name}: {sample}: {error}") from error
