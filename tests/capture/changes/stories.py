"""A story is a generator. Its first ``yield`` gives a function and its arguments; each further one follows a change.

``yield`` alone: the change must show in the answer. ``yield UNRELATED``: it must not, and nothing may be compiled again.
``yield AS_BEFORE``: what the function gives is as at the first call. ``yield ANYHOW``: whatever eager does."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

Story = Iterator[Any]
STORIES: dict[str, Callable[[], Story]] = {}
UNRELATED, AS_BEFORE, ANYHOW = "unrelated", "as before", "anyhow"


def story(make: Callable[[], Story]) -> Callable[[], Story]:
    """Register a story under its function's name."""
    assert make.__name__ not in STORIES
    STORIES[make.__name__] = make
    return make


@contextlib.contextmanager
def patched(owner: Any, name: str, value: Any) -> Iterator[None]:
    """An attribute of an object, class or module, set for a while; it may be new."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, value, raising=False)
        yield
