"""Warnings that torch gives for a call: kernels of ours give none, so rebuilt code does, in each call. They come from the
program's line, and filters decide about them as about torch's own."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from tinycompile.base import shapes
from tinycompile.base.errors import KernelError
from tinycompile.base.raised import words
from tinycompile.capture import op_numbers
from tinycompile.ops.record import BoundCall

if TYPE_CHECKING:
    from tinycompile.capture.tracer import Tracer


@dataclass(frozen=True)
class Told:
    """A warning as torch gives it at a line of the program's, whose globals are ``space``. ``once``: torch gives it once in a
    process, unless ``torch.set_warn_always`` says otherwise."""

    text: str
    file: str
    line: int
    space: dict[str, Any]
    once: bool

    def __call__(self) -> None:
        if self.once and not torch.is_warn_always_enabled():
            if self.text in _TOLD_ONCE:
                return
            _TOLD_ONCE.add(self.text)
        registry = self.space.setdefault("__warningregistry__", {})
        warnings.warn_explicit(self.text, UserWarning, self.file, self.line, self.space.get("__name__"), registry)


_TOLD_ONCE: set[str] = set()


class Warned:
    """What torch warns of in a piece of a program, told anew in each call: filters decide each time, as about torch's own.

    It comes before anything else is done. Where a filter makes an error of a warning, the call is redone eagerly: torch raises
    that at its own place."""

    def __init__(self, told: Sequence[Callable[[], None]]) -> None:
        self._told = tuple(told)

    def __call__(self) -> None:
        for one in self._told:
            try:
                one()
            except UserWarning as error:
                raise KernelError(f"a filter of the program's raises {words(error)}") from error


def tell(tr: Tracer, text: str, once: bool = False) -> None:
    """Warn when the code runs that is being captured."""
    frame, where = next((f for f in reversed(tr.frames) if f.location == tr.location()), tr.frames[0]), tr.location()
    tr.effects.told.append(Told(text, where.file, where.line, frame.globals, once))


def tell_of_call(tr: Tracer, fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any], bound: BoundCall) -> None:
    """What torch warns of when a function is called with these arguments; ``bound``: the record that they mean."""
    rule = _OF_FUNCTIONS.get(getattr(fn, "__name__", "")) if getattr(fn, "__module__", "") == "torch.nn.functional" else None
    text = None if rule is None else rule(fn.__name__, args, kwargs, bound)
    if bound.op.name in _MOMENTS:
        text = _degrees_of_freedom(bound)
    if text is not None:
        tell(tr, text)


def tell_of_transposed(tr: Tracer, rank: int) -> None:
    """``x.T``."""
    if rank not in (0, 2):
        tell(
            tr,
            "The use of `x.T` on tensors of dimension other than 2 to reverse their shape is deprecated and it will throw an "
            "error in a future release. Consider `x.mT` to transpose batches of matrices or `x.permute(*torch.arange(x.ndim - "
            "1, -1, -1))` to reverse the dimensions of a tensor.",
            once=True,
        )


# --- what torch warns of -------------------------------------------------------------------------------------------------

_Rule = Callable[[str, Sequence[Any], Mapping[str, Any], BoundCall], "str | None"]


def _other_sizes(name: str, args: Sequence[Any], kwargs: Mapping[str, Any], bound: BoundCall) -> str | None:
    sizes = [tuple(map(shapes.hint, t.shape)) for t in bound.args[:2]]
    if sizes[0] == sizes[1]:
        return None
    shown = [f"torch.Size({list(s)})" for s in sizes]
    return (
        f"Using a target size ({shown[1]}) that is different to the input size ({shown[0]}). This will likely lead to "
        "incorrect results due to broadcasting. Please ensure they have the same size."
    )


def _implicit_dim(name: str, args: Sequence[Any], kwargs: Mapping[str, Any], bound: BoundCall) -> str | None:
    if (args[1] if len(args) > 1 else kwargs.get("dim")) is not None:
        return None
    return f"Implicit dimension choice for {name} has been deprecated. Change the call to include dim=X as an argument."


def _mean_of_divergence(name: str, args: Sequence[Any], kwargs: Mapping[str, Any], bound: BoundCall) -> str | None:
    if len(args) > 2 or kwargs.get("reduction", "mean") != "mean":
        return None
    return (
        "reduction: 'mean' divides the total loss by both the batch size and the support size.'batchmean' divides only by the "
        "batch size, and aligns with the KL div math definition.'mean' will be changed to behave the same as 'batchmean' in "
        "the next major release."
    )


def _upsample(name: str, args: Sequence[Any], kwargs: Mapping[str, Any], bound: BoundCall) -> str:
    return f"`nn.functional.{name}` is deprecated. Use `nn.functional.interpolate` instead."


_OF_FUNCTIONS: dict[str, _Rule] = {
    **dict.fromkeys(("upsample_nearest", "upsample_bilinear"), _upsample),
    **dict.fromkeys(("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"), _other_sizes),
    **dict.fromkeys(("softmax", "log_softmax"), _implicit_dim),
    "kl_div": _mean_of_divergence,
}
_MOMENTS = ("var", "std", "var_mean", "std_mean")


def _degrees_of_freedom(bound: BoundCall) -> str | None:
    args = op_numbers.settled(bound.args)  # (kernels are for these numbers alone)
    given = dict(zip((a.name for a in bound.op.schema.args), args, strict=True))
    shape = [shapes.hint(d) for d in given["self"].shape] or [1]
    dims = given.get("dim")
    dims = range(len(shape)) if dims is None or dims == () else (dims,) if isinstance(dims, int) else dims
    correction = 1 if given.get("correction") is None else given["correction"]
    if math.prod(shape[shapes.normalize_dim(d, len(shape))] for d in dims) > correction:
        return None
    return (
        f"{bound.op.name}(): degrees of freedom is <= 0. Correction should be strictly less than the reduction factor (input "
        "numel divided by output numel)."
    )
