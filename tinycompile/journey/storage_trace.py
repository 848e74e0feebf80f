"""``trace_storages()``: notes where storages are made, by eager ops and by compiled code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tinycompile.dispatch import dispatcher
from tinycompile.eager import torch_calls
from tinycompile.eager.memory import STORAGES
from tinycompile.ir.source import Source
from tinycompile.runtime import linked


@contextmanager
def trace_storages() -> Iterator[None]:
    """Note, inside a ``with`` block, by which op (or compiled graph) and at which line of the user's each new storage is made,
    and the peak of a CPU. What was noted stays known for as long as the storage lives: ``tinycompile.storages()`` tells it."""
    dispatcher.watch(STORAGES.watcher)
    torch_calls.watch(STORAGES.torchs_call)
    linked.watch(_compiled)
    try:
        yield
    finally:
        linked.unwatch(_compiled)
        torch_calls.unwatch(STORAGES.torchs_call)
        dispatcher.unwatch(STORAGES.watcher)


def _compiled(source: Source, kind: str, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Buffers and library calls of compiled code."""
    if kind == "kernel":
        return function
    by = f"compiled {source.name}" if kind == "memory" else f"{name} in compiled {source.name}"

    def noted(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        for tensor in dispatcher.results_in(result):
            STORAGES.note(tensor, by)
        return result

    return noted
