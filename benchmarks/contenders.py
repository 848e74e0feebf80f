"""Who competes: each turns a function into a callable that does the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from tinycompile.api import compile
from tinycompile.base.config import config

Function = Callable[..., Any]
EAGER, OURS, INDUCTOR = "eager", "tinycompile", "torch.compile"


def _eager(fn: Function) -> Function:
    return fn


def _ours(fn: Function) -> Any:
    config.on_error = "raise"  # a quiet fallback to eager must not be timed as ours
    return compile(fn)


def _inductor(fn: Function) -> Function:
    return torch.compile(fn)


CONTENDERS: dict[str, Callable[[Function], Any]] = {EAGER: _eager, OURS: _ours, INDUCTOR: _inductor}


@dataclass(frozen=True)
class Settings:
    """What the command line says. ``quick``: fewer rounds."""

    device: str
    quick: bool = False
    contenders: tuple[str, ...] = tuple(CONTENDERS)
