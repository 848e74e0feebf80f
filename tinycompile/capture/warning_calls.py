"""Which calls torch warns of, where that does not show when they are followed.

A record does not call torch, and what torch's kernels warn of does not come up on tensors without data. So these calls are
known here, as those that may warn: whether one does torch says, on tensors without data or on stand-ins."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from tinycompile.base import shapes
from tinycompile.capture import op_numbers
from tinycompile.capture.breaks import GraphBreak
from tinycompile.capture.torch_warnings import listening, tell, tell_by, words_of
from tinycompile.dispatch import dispatcher
from tinycompile.eager.probe import refuses
from tinycompile.ops.record import BoundCall

if TYPE_CHECKING:
    from tinycompile.capture.tracer import Tracer

Args: TypeAlias = Sequence[Any]
Kwargs: TypeAlias = Mapping[str, Any]


def tell_of_call(tr: Tracer, fn: Any, args: Args, kwargs: Kwargs, bound: BoundCall) -> None:
    """What torch warns of when a function is called with these arguments; ``bound``: the record that they mean."""
    if fn is None:  # a method of ours alone
        return
    name = getattr(fn, "__name__", "")
    of_function = _OF_FUNCTIONS.get(name) if getattr(fn, "__module__", "") == "torch.nn.functional" else None
    if of_function is not None or name == "cross":
        if (of_function or _without_third)(args, kwargs, bound):
            tell(tr, fn, args, kwargs)
    elif bound.op.name in _MOMENTS:
        _tell_of_moments(tr, fn, bound)
    else:
        tell_of_kernels(tr, fn, args, kwargs)


def tell_of_attribute(tr: Tracer, t: Any, name: str) -> None:
    """``x.T``."""
    if name == "T" and len(t.meta.shape) != 2:
        tell(tr, getattr(torch.Tensor, name).__get__, (t,), {})


def tell_of_kernels(tr: Tracer, fn: Any, args: Args, kwargs: Kwargs) -> None:
    """What torch's kernels warn of: a call of few elements warns of the same."""
    rule = _OF_KERNELS.get(getattr(fn, "__name__", ""), _cast)
    call = rule(fn, args, kwargs)
    if call is None:
        return
    with listening() as heard:
        refused = refuses(fn, op_numbers.settled(tuple(args)), op_numbers.settled(dict(kwargs)))
    if refused:
        raise GraphBreak("user-exception", f"torch refuses a call of {getattr(fn, '__name__', fn)}")
    if heard and tell_by(tr, call) != words_of(heard):
        raise GraphBreak("warns", str(heard[0].message))


# --- functions of torch.nn.functional ------------------------------------------------------------------------------------


def _argument(args: Args, kwargs: Kwargs, at: int, name: str) -> Any:
    return args[at] if len(args) > at else kwargs.get(name)


def _of_other_sizes(args: Args, kwargs: Kwargs, bound: BoundCall) -> bool:
    return not shapes.same_shape(*(t.shape for t in bound.args[:2]))


def _without_dim(args: Args, kwargs: Kwargs, bound: BoundCall) -> bool:
    return _argument(args, kwargs, 1, "dim") is None


def _without_third(args: Args, kwargs: Kwargs, bound: BoundCall) -> bool:
    return _argument(args, kwargs, 2, "dim") is None


def _of_mean(args: Args, kwargs: Kwargs, bound: BoundCall) -> bool:
    return len(args) <= 2 and kwargs.get("reduction", "mean") == "mean"


def _always(args: Args, kwargs: Kwargs, bound: BoundCall) -> bool:
    return True


_OF_FUNCTIONS: dict[str, Callable[[Args, Kwargs, BoundCall], bool]] = {
    **dict.fromkeys(("upsample_nearest", "upsample_bilinear", "dropout2d", "dropout3d"), _always),
    **dict.fromkeys(("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"), _of_other_sizes),
    **dict.fromkeys(("softmax", "log_softmax", "softmin"), _without_dim),
    "kl_div": _of_mean,
}


# --- variances -----------------------------------------------------------------------------------------------------------

_MOMENTS = ("var", "std", "var_mean", "std_mean")


def _tell_of_moments(tr: Tracer, fn: Any, bound: BoundCall) -> None:
    """Too few degrees of freedom: of one row as of many."""
    given = dict(zip((a.name for a in bound.op.schema.args), op_numbers.settled(bound.args), strict=True))
    shape, dims = given["self"].shape or (1,), given.get("dim")
    dims = range(len(shape)) if dims is None or dims == () else (dims,) if isinstance(dims, int) else dims
    dims = [shapes.normalize_dim(d, len(shape)) for d in dims]
    correction = 1 if given.get("correction") is None else given["correction"]
    count = shapes.numel([shape[d] for d in dims])
    if math.isfinite(correction) and shapes.at_least(count, math.floor(correction) + 1):
        return
    row = torch.zeros([shapes.pinned(n) if d in dims else min(shapes.pinned(n), 1) for d, n in enumerate(shape)])
    tell_by(tr, functools.partial(getattr(torch, bound.op.name), row, list(dims), correction=correction))


# --- what kernels warn of ------------------------------------------------------------------------------------------------

_Call = Callable[[], Any]
_TO_REAL = {
    *("float", "double", "half", "bfloat16", "int", "long", "short", "char", "byte", "type", "type_as", "to"),
}


def _parts(args: Args, kwargs: Kwargs) -> Iterator[Any]:
    for value in (*args, *kwargs.values()):
        if isinstance(value, (tuple, list)):
            yield from value
        else:
            yield value


def _cast(fn: Any, args: Args, kwargs: Kwargs) -> _Call | None:
    """Complex numbers as real ones, and what is as new as complex half precision."""
    asked = [v for v in _parts(args, kwargs) if isinstance(v, torch.dtype)]
    if torch.complex32 in asked:
        return functools.partial(torch.Tensor.to, torch.zeros(1), torch.complex32)
    kinds = [t.meta.dtype.is_complex for t in dispatcher.tensors_in((tuple(args), tuple(kwargs.values())))]
    if any(kinds) and (any(not d.is_complex for d in asked) or getattr(fn, "__name__", "") in _TO_REAL):
        return functools.partial(torch.Tensor.to, torch.zeros(1, dtype=torch.complex64), torch.float32)
    return None


def _has_bytes(args: Args, kwargs: Kwargs) -> bool:
    return any(t.meta.dtype == torch.uint8 for t in dispatcher.tensors_in((tuple(args), tuple(kwargs.values()))))


def _where(fn: Any, args: Args, kwargs: Kwargs) -> _Call | None:
    zero = torch.zeros(1)
    return functools.partial(torch.where, zero.byte(), zero, zero) if _has_bytes(args, kwargs) else None


def _masked_scatter(fn: Any, args: Args, kwargs: Kwargs) -> _Call | None:
    zero = torch.zeros(1)
    return functools.partial(torch.masked_scatter, zero, zero.byte(), zero) if _has_bytes(args, kwargs) else None


def _scatter(fn: Any, args: Args, kwargs: Kwargs) -> _Call | None:
    zero = torch.zeros(1)
    return functools.partial(torch.scatter, zero, 0, zero.long(), zero, reduce="add") if "reduce" in kwargs else None


def _search(fn: Any, args: Args, kwargs: Kwargs) -> _Call | None:
    """Sequences and values that are not contiguous."""
    swapped = getattr(fn, "__name__", "") == "bucketize"
    values, bounds = (_argument(args, kwargs, *p) for p in (((0, "input"), (1, "boundaries")) if swapped else _SEARCHED))
    few = [torch.zeros(2) if _in_a_row(t) else torch.zeros(4)[::2] for t in (bounds, values)]
    sorter = kwargs.get("sorter")
    more = {} if sorter is None else {"sorter": torch.arange(2) if _in_a_row(sorter) else torch.tensor([0, 0, 1, 1])[::2]}
    uneven = not all(map(_in_a_row, (bounds, values, sorter)))
    return functools.partial(torch.searchsorted, *few, **more) if uneven else None


_SEARCHED = ((1, "input"), (0, "sorted_sequence"))


def _in_a_row(t: Any) -> bool:
    return not hasattr(t, "meta") or shapes.is_contiguous(t.meta.shape, t.meta.strides)


_OF_KERNELS: dict[str, Callable[[Any, Args, Kwargs], _Call | None]] = {
    "where": _where,
    "masked_scatter": _masked_scatter,
    "scatter": _scatter,
    **dict.fromkeys(("searchsorted", "bucketize"), _search),
}
