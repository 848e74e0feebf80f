"""``as_strided`` as a chain of views, so that the tape knows which elements of its base it has.

A tensor without gaps is flat memory: each dim of the view is windows of that (``unfold``), as far apart as its stride, of which
each holds what the dims behind need. What any other function of torch's gives as a view of its argument is known by its strides
in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Any

import torch

from tinycompile.base.meta import TensorMeta
from tinycompile.base.shapes import reach
from tinycompile.dispatch import dispatcher
from tinycompile.eager.backends import SEVERAL_VIEWS
from tinycompile.eager.tape import base_of, note_opaque_view, note_views
from tinycompile.eager.tensor import Tensor, run_on_handles
from tinycompile.ops.in_place import name_of
from tinycompile.ops.record import OPS

Steps = tuple[tuple[str, tuple[Any, ...]], ...]


def as_strided(input: Any, size: Any, stride: Any, storage_offset: Any = None) -> Any:
    """As ``torch.as_strided``. NotImplemented for what is not on our tape alone: torch's own function does.

    Where the elements are neither the tensor's own nor its base's, or these have gaps, the tape does not follow writes: they
    raise."""
    if type(input) is not Tensor or input.on_torchs_tape or input.lacks_handle:
        return NotImplemented
    raw = run_on_handles(torch.as_strided, (input, size, stride, storage_offset), {})  # raises as torch does
    if 0 in raw.meta.shape:
        return NotImplemented
    steps = None if input.dtype.is_complex else steps_to(input.meta, raw.meta)
    if steps is None:
        given = input, size, stride, storage_offset
        followed = input.tape.follows(given, {})
        made = input.tape.call(torch.as_strided, given, {}) if followed else raw
        note_place(made, input, as_it_is=not input.dtype.is_complex)
        return made
    view = input
    for name, rest in steps:
        view = dispatcher.call_bound(name, (view, *rest))
    view._meta = raw.meta  # a dim of one has the stride that was asked for
    return view


def steps_to(of: TensorMeta, view: TensorMeta) -> Steps | None:
    """The views that lead from a tensor to elements of its own, by where these lie; None where no chain leads there."""
    shape: Any = view.shape  # no symbols: those are FakeTensor's
    strides: Any = view.strides
    steps: Any = of.strides
    order = tuple(sorted(range(of.rank), key=lambda dim: -steps[dim]))
    ordered = OPS["permute"].meta(of, order)
    assert isinstance(ordered, TensorMeta)
    start: Any = view.offset - of.offset
    end = start + reach(shape, strides)
    if not ordered.is_contiguous() or start < 0 or end > of.numel:
        return None
    flat = (("permute", (order,)), ("view", ((prod(of.shape),),)), ("slice", (0, start, end, 1)))
    return (*flat, *_windows(shape, strides))


def _windows(shape: Sequence[int], strides: Sequence[int]) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """From the view's first element to its last, in flat memory, dim by dim. The last dim holds what is yet to be split."""
    for dim, (size, step) in enumerate(zip(shape, strides, strict=True)):
        window = reach(shape[dim + 1 :], strides[dim + 1 :])
        if not step:
            yield "unsqueeze", (dim,)
            yield "expand", ((*shape[: dim + 1], window), False)
            continue
        yield "unfold", (dim, window, step)
        yield "slice", (dim, 0, size, 1)
    yield "select", (len(shape), 0)


# --- views that functions without a record give ------------------------------------------------------------------------------


def note_views_among(fn: Callable[..., Any], made: Any, given: Sequence[Any]) -> None:
    """Of the results of a torch function: those that are views of its arguments."""
    pairs = [(t.raw(), t) for t in given if type(t) is Tensor and not t.lacks_handle]
    for result in dispatcher.tensors_in((made,)):
        if type(result) is Tensor and result._handle is not None and not any(result is t for t in given):
            note_view_among(fn, result, result._handle, pairs)


def note_view_among(fn: Callable[..., Any], made: Tensor, handle: torch.Tensor, given: Sequence[tuple[Any, Any]]) -> None:
    """The same for one result. ``handle``: as torch gave it; ``given``: the arguments, each with the handle it had.
    What torch's autograd takes for no view (``detach``, ``unsafe_split``, another dtype) is none here."""
    if handle.layout is not torch.strided or not handle._is_view() or made.on_torchs_tape:
        return
    of = next((t for raw, t in given if handle._base is (raw._base if raw._is_view() else raw)), None)
    if type(of) is Tensor:
        raw = of.raw()
        as_it_is = handle.is_conj() == raw.is_conj() and handle.is_neg() == raw.is_neg()
        note_place(made, of, as_it_is, several=name_of(fn) in SEVERAL_VIEWS)


def note_place(made: Tensor, of: Tensor, as_it_is: bool = True, several: bool = False) -> None:
    """``made`` is a view of ``of``, by where it lies. ``as_it_is``: of its elements, not of what is computed of them."""
    if 0 in made.meta.shape:
        return
    base = base_of(of)
    for start in (of, base) if as_it_is and made.dtype == of.dtype == base.dtype else ():
        steps = steps_to(start.meta, made.meta)
        if steps is not None:
            note_views(made, of, steps, several, from_base=start is base)
            return
    note_opaque_view(made, of)
