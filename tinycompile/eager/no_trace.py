"""Running torch's functions on the side: to learn what they say of a call, not to make it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

import torch

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
def leaving_no_trace() -> Iterator[None]:
    """Torch's generator stays as it is. Nothing is warned of, and what torch warns of once it still will."""
    with aside():
        state, always = torch.get_rng_state(), torch.is_warn_always_enabled()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                torch.set_warn_always(True)
                yield
        finally:
            torch.set_warn_always(always)
            torch.set_rng_state(state)
