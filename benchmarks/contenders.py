"""Who competes: each turns a function into a callable that does the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tinycompile.api import compile
from tinycompile.base.config import config

Function = Callable[..., Any]
EAGER, OURS, INDUCTOR = "eager", "tinycompile", "torch.compile"
OURS_MAX, INDUCTOR_MAX = "tinycompile max-autotune", "torch.compile max-autotune"
LIBRARY = "torch's library call"
OURS_GRAPHS, INDUCTOR_GRAPHS = "tinycompile reduce-overhead", "torch.compile reduce-overhead"


def _eager(fn: Function) -> Function:
    return fn


def _ours(mode: str) -> Callable[[Function], Any]:
    def make(fn: Function) -> Any:
        config.on_error = "raise"  # a quiet fallback to eager must not be timed as ours
        return compile(fn, mode=mode)

    return make


def _inductor(mode: str) -> Callable[[Function], Any]:
    def make(fn: Function) -> Any:
        return torch.compile(fn, mode=mode)

    return make


# Max-autotune without CUDA graphs on both sides, so that kernels are compared; CUDA graphs are the third pair.
CONTENDERS: dict[str, Callable[[Function], Any]] = {
    EAGER: _eager,
    OURS: _ours("default"),
    INDUCTOR: _inductor("default"),
    OURS_MAX: _ours("max-autotune"),
    INDUCTOR_MAX: _inductor("max-autotune-no-cudagraphs"),
    OURS_GRAPHS: _ours("reduce-overhead"),
    INDUCTOR_GRAPHS: _inductor("reduce-overhead"),
}
PAIRS = ((OURS, INDUCTOR), (OURS_MAX, INDUCTOR_MAX), (OURS_GRAPHS, INDUCTOR_GRAPHS))  # who is measured against whom
DEFAULT = (EAGER, OURS, INDUCTOR)


@dataclass(frozen=True)
class Settings:
    """What the command line says. ``quick``: fewer rounds. ``seconds``: of measuring a row (None: the suite's own). ``out``:
    where finished rows are kept while others are still running."""

    device: str
    quick: bool = False
    contenders: tuple[str, ...] = DEFAULT
    seconds: float | None = None
    out: Path | None = None
