"""Warnings that torch gives for a call, told when the call is captured: kernels of ours give none. They come from the program's
line, and filters decide about them as about torch's own."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tinycompile.base import shapes
from tinycompile.capture import op_numbers
from tinycompile.capture.breaks import GraphBreak
from tinycompile.ops.record import BoundCall

if TYPE_CHECKING:
    from tinycompile.capture.tracer import Tracer


def tell(tr: Tracer, text: str) -> None:
    """Warn, once a capture. Where filters make an error of it, torch raises that itself."""
    frame, where = next((f for f in reversed(tr.frames) if f.location == tr.location()), tr.frames[0]), tr.location()
    if (where, text) in tr.told:
        return
    tr.told.add((where, text))
    registry = frame.globals.setdefault("__warningregistry__", {})
    try:
        warnings.warn_explicit(text, UserWarning, where.file, where.line, frame.globals.get("__name__"), registry)
    except UserWarning as error:
        raise GraphBreak("user-exception", f"{type(error).__name__}: {error}") from error


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


_OF_FUNCTIONS: dict[str, _Rule] = {
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
