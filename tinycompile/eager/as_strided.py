"""``as_strided`` as a chain of views, so that the tape knows which elements of its base it has.

A tensor without gaps is flat memory: each dim of the view is windows of that (``unfold``), as far apart as its stride, of which
each holds what the dims behind need.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch

from tinycompile.base.shapes import reach
from tinycompile.dispatch import dispatcher
from tinycompile.eager.tape import note_opaque_view
from tinycompile.eager.tensor import Tensor, run_on_handles


def as_strided(input: Any, size: Any, stride: Any, storage_offset: Any = None) -> Any:
    """As ``torch.as_strided``. NotImplemented for what is not on our tape alone: torch's own function does.

    Of a tensor with gaps, and of elements beyond the tensor's own, the tape does not follow writes: they raise."""
    if type(input) is not Tensor or input.on_torchs_tape or input.lacks_handle:
        return NotImplemented
    raw = run_on_handles(torch.as_strided, (input, size, stride, storage_offset), {})  # raises as torch does
    shape, strides, start = raw.meta.shape, raw.meta.strides, raw.meta.offset - input.meta.offset
    if 0 in shape:
        return NotImplemented
    flat = None if input.dtype.is_complex else _flat(input)
    if flat is None or start < 0 or start + reach(shape, strides) > flat.numel():
        given = input, size, stride, storage_offset
        followed = input.tape.follows(given, {})
        made = input.tape.call(torch.as_strided, given, {}) if followed else raw
        note_opaque_view(made, input)
        return made
    view = _windows(dispatcher.call("slice", flat, 0, start, start + reach(shape, strides)), shape, strides)
    view._meta = raw.meta  # a dim of one has the stride that was asked for
    return view


def _flat(tensor: Tensor) -> Any:
    """All elements in the order in which they lie in memory; None where there is something between them."""
    order = tuple(sorted(range(tensor.ndim), key=lambda dim: -tensor.stride(dim)))
    ordered = dispatcher.call("permute", tensor, order)
    return dispatcher.call("view", ordered, (prod(tensor.shape),)) if ordered.is_contiguous() else None


def _windows(flat: Any, shape: Sequence[int], strides: Sequence[int]) -> Any:
    """The view from its first element to its last, in flat memory, dim by dim. The last dim holds what is yet to be split."""
    view = flat
    for dim, (size, step) in enumerate(zip(shape, strides, strict=True)):
        if not step:
            view = dispatcher.call("unsqueeze", view, dim)
            view = dispatcher.call("expand", view, (*shape[: dim + 1], view.shape[-1]))
            continue
        window = reach(shape[dim + 1 :], strides[dim + 1 :])
        view = dispatcher.call("unfold", view, dim, window, step)
        view = dispatcher.call("slice", view, dim, 0, size)
    return dispatcher.call("select", view, len(shape), 0)
