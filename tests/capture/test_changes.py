"""Whatever changes after the first call takes effect at the next, and what is not looked at may change freely."""

from __future__ import annotations

from typing import Any

import pytest

import tinycompile
from tests.capture.changes import classes, mappings, modules, names, objects, torch_state
from tests.capture.changes.stories import AS_BEFORE, STORIES, UNRELATED, Story
from tests.capture.test_corpus import same

pytestmark = pytest.mark.pure
__all__ = ["classes", "mappings", "modules", "names", "objects", "torch_state"]  # importing them registers their stories


def _differ(a: Any, b: Any) -> bool:
    try:
        same(a, b)
    except AssertionError:
        return True
    return False


def _compiled_so_far(compiled: Any) -> int:
    return len(compiled.all_entries)


@pytest.mark.parametrize("name", list(STORIES))
def test_a_change_takes_effect(name: str) -> None:
    follow(STORIES[name]())


def follow(told: Story) -> None:
    """Through all of a story's changes."""
    fn, *args = next(told)
    compiled = tinycompile.compile(fn, backend="eager")
    try:
        first = before = fn(*args)
        same(compiled(*args), first)
        same(compiled(*args), fn(*args))
        for step, said in enumerate(told):
            made = _compiled_so_far(compiled)
            now = fn(*args)
            same(compiled(*args), now, f"step {step}")
            after = _compiled_so_far(compiled)
            same(compiled(*args), fn(*args), f"step {step}, again")
            assert _compiled_so_far(compiled) == after, compiled.recompiles
            if said == UNRELATED:
                assert after == made, compiled.recompiles
            elif said == AS_BEFORE:
                same(now, first)
            elif said is None:
                assert _differ(now, before), f"step {step} changes nothing"
            before = now
    finally:
        told.close()
