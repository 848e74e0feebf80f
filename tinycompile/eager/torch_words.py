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


_MODES = {"no_grad": ("no_grad mode", "with grad mode enabled"), "inference": ("inference mode", "in normal mode")}
_AMBIGUOUS = (
    "Given that this use case is ambiguous and error-prone, it is forbidden. You can clarify your code by moving both the view "
    "and the inplace either both inside the {0} block (if you don't want the inplace to be tracked) or both outside (if you "
    "want the inplace to be tracked)."
)
REFUSED_VIEWS = {
    "no_grad": _AMBIGUOUS.format("no_grad"),
    "inference": _AMBIGUOUS.format("inference_mode"),
    "several": "This view is the output of a function that returns multiple views. Such functions do not allow the output "
    "views to be modified inplace. You should replace the inplace operation by an out-of-place one.",
    "function": "This view was created inside a custom Function (or because an input was returned as-is) and the autograd "
    "logic to handle view+inplace would override the custom backward associated with the custom Function, leading to incorrect "
    "gradients. This behavior is forbidden. You can fix this by cloning the output of the custom Function.",
}
"""Where the views were made that torch lets nobody write to, nor use after a write to what they view: why."""


def refused_view(origin: str, made_by: tuple[str, int] | None, now: bool) -> str:
    """What torch says of a write to such a view ``now``, or of one before to what it views. ``made_by``: the name of the node
    that made the view, and which of its results it is; None for a view without a history."""
    what = "is being" if now else "its base or another view of its base has been"
    output = "" if made_by is None else f"Output {made_by[1]} of {function_name(made_by[0])} is a view "
    if output and origin not in _MODES:
        return f"{output}and {what} modified inplace. {REFUSED_VIEWS[origin]}"
    mode, outside = _MODES.get(origin, _MODES["no_grad"])
    subject = f"{output}of a view which was" if output else "A view was"
    return f"{subject} created in {mode} and {what} modified inplace {outside}. {REFUSED_VIEWS[origin]}"


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
        saved = torch.ones(1, device=device).to(dtype)
        made = x.to(device).masked_fill(saved, 0) if dtype == torch.bool else x.to(device) * saved
        saved.fill_(0)
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
