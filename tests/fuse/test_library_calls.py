"""Joins of many pieces: torch copies them in one call, and the plan says so; of few, the readers choose among them."""

from __future__ import annotations

import pytest
import torch

from tests.fuse.support import check, traced
from tinycompile.base.target import H100
from tinycompile.fuse.planner import plan
from tinycompile.ir.loops import ExternCall
from tinycompile.ops.joining import MOST_PIECES

pytestmark = pytest.mark.pure


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("count", [1, 2, MOST_PIECES, MOST_PIECES + 1, 120])
def test_joins_of_many_pieces_are_copied(count: int, dim: int) -> None:
    pieces = [torch.randn(3, 3) for _ in range(count)]
    loops = traced(lambda *xs: (torch.cat(xs, dim) * 2).sum(1), *pieces)
    called = [s.target for s in loops.steps if isinstance(s, ExternCall)]
    made = plan(loops, H100)
    said = [d for d in made.decisions if d.rule == "library-call"]
    if count > MOST_PIECES:
        assert called == ["cat"] and len(said) == 1
        assert not said[0].fused and said[0].why == f"a kernel would choose among {count} pieces at each point"
    else:
        assert not called and not said
    check(loops, [p.clone() for p in pieces])


def test_stacks_are_joins() -> None:
    """Steps of a recurrence, stacked at its end."""
    pieces = [torch.randn(4) for _ in range(MOST_PIECES + 1)]
    loops = traced(lambda *xs: torch.stack([x + 1 for x in xs]).relu(), *pieces)
    assert [s.target for s in loops.steps if isinstance(s, ExternCall)] == ["cat"]
    check(loops, [p.clone() for p in pieces])
