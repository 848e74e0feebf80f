"""Parts of torch's error messages that differ by version, asked of the installed torch when an error is raised."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NoReturn

import torch


def function_name(name: str) -> str:
    """How torch's messages call a node of the graph: ``ExpBackward0``, or from torch 2.13 ``Exp``."""
    return name.removesuffix("Backward0") if _names_are_short() else name


def unused(index: int) -> str:
    """What ``torch.autograd.grad`` says of an input on which no output depends."""
    return _unused().replace("index 1", f"index {index}")


def raise_torchs(wrong: Callable[[torch.Tensor], object]) -> NoReturn:
    """Raise what the installed torch raises for a wrong call on a leaf of two elements."""
    with torch.inference_mode(False), torch.enable_grad():
        wrong(torch.ones(2, requires_grad=True))
    raise AssertionError("torch takes the call")


@cache
def _names_are_short() -> bool:
    return "SplitBackward0" not in _message(lambda x: x.split(1)[0].add_(1))


@cache
def _unused() -> str:
    return _message(lambda x: torch.autograd.grad(x.sum(), [x, torch.ones(1, requires_grad=True)]))


def _message(wrong: Callable[[torch.Tensor], object]) -> str:
    """The message of a wrong call on a leaf of two elements."""
    with torch.inference_mode(False), torch.enable_grad():
        try:
            wrong(torch.ones(2, requires_grad=True))
        except RuntimeError as error:
            return str(error)
    return ""
