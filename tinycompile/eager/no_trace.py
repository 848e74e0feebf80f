"""Running torch's functions on the side: to learn what they say of a call, not to make it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

import torch

from tinycompile.base.overheard import muted

around: list[Callable[[], AbstractContextManager[None]]] = []
"""What such a run is done within: a profile leaves it out."""


@contextmanager
def aside() -> Iterator[None]:
    """What runs in the block is no work of the program's."""
    with ExitStack() as stack:
        for enter in tuple(around):
            stack.enter_context(enter())
        yield


@contextmanager
def same_random_numbers() -> Iterator[None]:
    """Torch's generator goes on behind the block as if that had drawn nothing."""
    state = torch.get_rng_state()
    try:
        yield
    finally:
        torch.set_rng_state(state)


@contextmanager
def leaving_no_trace() -> Iterator[None]:
    """Torch's generator stays as it is. No warning is shown, and what torch warns of once it still will."""
    with aside(), same_random_numbers(), muted():
        always = torch.is_warn_always_enabled()
        try:
            torch.set_warn_always(True)
            yield
        finally:
            torch.set_warn_always(always)
