"""The graph of a call, before any pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tinycompile
from tinycompile.ir.graph import Graph


def captured(fn: Callable[..., Any], *args: Any) -> Graph:
    """The graph of a call."""
    found: list[Graph] = []

    def backend(module: Any, example_inputs: Any) -> Any:
        found.append(module.graph)
        return module

    tinycompile.compile(fn, backend=backend, fullgraph=True)(*args)
    return found[0]
