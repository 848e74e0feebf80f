"""What we hold in memory, told when an allocation fails.

Whoever keeps memory alive (recorded CUDA graphs, storages) registers a function that says how much. An allocation that fails
keeps torch's exception and message; what we hold is added as a note (PEP 678).
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from tinycompile.base.raised import text_of

Teller = Callable[[], str]
_TELLERS: dict[str, Teller] = {}
_CPU = "DefaultCPUAllocator"  # torch raises a plain RuntimeError for a CPU
_NOTE = "tinycompile holds: "


def register_holder(name: str, tell: Teller) -> None:
    """``tell()`` says in a few words what is held under this name; empty for nothing. The last one wins."""
    _TELLERS[name] = tell


def told() -> str:
    """All that is held, in one line."""
    found = {name: tell() for name, tell in _TELLERS.items()}
    return "; ".join(f"{name}: {text}" for name, text in found.items() if text) or "nothing"


def is_allocation_failure(error: BaseException) -> bool:
    """Whether memory ran out, as Python and torch say it: exceptions of the program's own classes get no notes of ours."""
    return type(error) in (torch.OutOfMemoryError, MemoryError) or (type(error) is RuntimeError and _CPU in text_of(error))


def tell_holdings(error: BaseException) -> None:
    """Add a note with what we hold, if memory ran out and there is none yet."""
    if is_allocation_failure(error) and not any(note.startswith(_NOTE) for note in getattr(error, "__notes__", ())):
        error.add_note(_NOTE + told())
