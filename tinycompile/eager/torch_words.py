"""Parts of torch's error messages that differ by version, asked of the installed torch when an error is raised."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import NoReturn

import torch

from tinycompile.eager.storage import ALLOCATORS


def function_name(name: str) -> str:
    """How torch's messages call a node of the graph: ``ExpBackward0``, or from torch 2.13 ``Exp`` (and ``Clamp1``)."""
    short, found, number = name.rpartition("Backward")
    numbered = found and (not number or number.isdigit())
    return short + number.removeprefix("0") if numbered and _names_are_short() else name


def one_of_several(name: str, index: int, now: bool) -> str:
    """What torch says of a write to one of several views that a node (of this name) made: a write ``now``, or one before to
    what it views."""
    what = "and is being" if now else "and its base or another view of its base has been"
    return (
        f"Output {index} of {function_name(name)} is a view {what} modified inplace. This view is the output of a function "
        "that returns multiple views. Such functions do not allow the output views to be modified inplace. You should replace "
        "the inplace operation by an out-of-place one."
    )


def unused(index: int) -> str:
    """What ``torch.autograd.grad`` says of an input on which no output depends."""
    return _unused().replace("index 1", f"index {index}")


def edited(
    of: tuple[torch.dtype, str], shape: Sequence[int], now: int, then: int, made_by: tuple[str, int] | None = None
) -> str:
    """What torch says of a saved tensor that was written to. ``of``: its dtype and kind of device; ``now``, ``then``: its
    versions; ``made_by``: the name of the node that made it, and which of its results it is."""
    origin = "" if made_by is None else f", which is output {made_by[1]} of {made_by[0]},"
    hint = (
        "Hint: the backtrace further above shows the operation that failed to compute its gradient. The variable in "
        "question was changed in there or anywhere later. Good luck!"
        if torch.is_anomaly_enabled()
        else "Hint: enable anomaly detection to find the operation that failed to compute its gradient, with "
        "torch.autograd.set_detect_anomaly(True, check_nan=False)."
    )
    return (
        "one of the variables needed for gradient computation has been modified by an inplace operation: "
        f"[{_kind(*of)} {list(shape)}]{origin} is at version {now}; expected version {then} instead. {hint}"
    )


def raise_torchs(wrong: Callable[[torch.Tensor], object]) -> NoReturn:
    """Raise what the installed torch raises for a wrong call on a leaf of two elements."""
    with torch.inference_mode(False), torch.enable_grad():
        wrong(torch.ones(2, requires_grad=True))
    raise AssertionError("torch takes the call")


@cache
def said_of_examples(wrong: Callable[[torch.Tensor], object]) -> str:
    """What ``torch.vmap`` says of a call on each example of a tensor."""
    return _message(lambda x: torch.vmap(wrong)(x.detach()))


@cache
def _names_are_short() -> bool:
    return "SplitBackward0" not in _message(lambda x: x.split(1)[0].add_(1))


@cache
def _kind(dtype: torch.dtype, device: str) -> str:
    """``torch.FloatTensor``, ``CPUBFloat16Type``; on a registered device ``torch.name.FloatTensor``."""
    if device in ALLOCATORS:
        return _kind(dtype, "cpu").replace("torch.", f"torch.{device}.")

    def write_to_a_saved_one(x: torch.Tensor) -> None:
        factor = torch.ones(1, device=device).to(dtype)
        made = x.to(device) * factor
        factor.add_(1)
        made.sum().backward()

    return _message(write_to_a_saved_one).partition("[")[2].partition(" [")[0]


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
