"""Views under vmap: ``as_strided``, and what functions without a rule give, as one view of all examples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tinycompile.base.meta import TensorMeta
from tinycompile.dispatch import dispatcher
from tinycompile.eager import batched
from tinycompile.eager.as_strided import note_place, steps_to
from tinycompile.eager.batched import EXTERN_RULES, BatchedTensor
from tinycompile.eager.recording import edge_of
from tinycompile.eager.tape import set_history
from tinycompile.eager.tensor import Tensor, from_torch
from tinycompile.eager.torch_words import said_of_examples
from tinycompile.eager.vmap_words import refuse_as_strided
from tinycompile.ops.calls import ops


def as_strided(input: Any, size: Any, stride: Any, storage_offset: Any = None) -> Any:
    """As torch's vmap: the offset is the first example's; every other view lies as much further as its example does."""
    if not isinstance(input, BatchedTensor):
        return NotImplemented
    refuse_as_strided(input, size, stride, storage_offset)
    return placed(input, size, stride, storage_offset)


def placed(tensor: Any, size: Sequence[Any], stride: Sequence[Any], offset: Any = None) -> Any:
    """The same of elements that are known to be the tensor's own, though examples may lie among each other."""
    if not isinstance(tensor, BatchedTensor):
        return tensor.as_strided(size, stride, offset)
    at = tensor.meta.offset if offset is None else offset
    meta = TensorMeta(tuple(size), tuple(stride), tensor.dtype, tensor.device, at)
    steps = None if tensor.dtype.is_complex or 0 in size else steps_to(tensor.meta, meta)
    if steps is None:
        made = _of_all(tensor, meta)
        if tensor.requires_grad and torch.is_grad_enabled() and not tensor.dtype.is_complex:
            edge = edge_of(_picked(tensor, meta))
            if edge is not None:
                set_history(made, *edge)
        note_place(made, tensor, as_it_is=not tensor.dtype.is_complex)
        return made
    view = tensor
    for name, rest in steps:
        view = dispatcher.call_bound(name, (view, *rest))
    if view.meta.strides != meta.strides:  # a dim of one has the stride that was asked for
        view.value = _of_all(tensor, meta).value
        view._meta = meta
    return view


def _picked(x: BatchedTensor, view: TensorMeta) -> Any:
    """The elements of an example that are in a view of its memory, and numbers that depend on nothing for those beyond: what
    the view is to a gradient."""
    at = {place: i for i, place in enumerate(_places(x.meta))}
    found = [at.get(place) for place in _places(view)]
    index = torch.tensor([i or 0 for i in found], dtype=torch.int64)
    own = torch.tensor([i is not None for i in found], dtype=torch.bool)
    picked = ops.index_select(ops.reshape(x, (-1,)), 0, _like(index, x))
    return ops.where(_like(own, x), picked, 0.0).view(view.shape)


def _places(meta: TensorMeta) -> list[int]:
    """Where in memory its elements are, in their order."""
    places: Any = [meta.offset]
    for size, stride in zip(meta.shape, meta.strides, strict=True):
        places = [p + i * stride for p in places for i in range(size)]  # type: ignore[arg-type]
    return places


def _like(tensor: torch.Tensor, x: BatchedTensor) -> Any:
    return from_torch(tensor.to(x.device.torch()))


def _of_all(x: BatchedTensor, meta: TensorMeta) -> BatchedTensor:
    """The view of every example, on no tape of their level."""
    value, size, stride = x.value, meta.shape, meta.strides
    if x.batched:
        size, stride = (value.shape[0], *size), (value.stride(0), *stride)
    return BatchedTensor(placed(value, size, stride, meta.offset), x.level, x.batched)


def as_strided_copy(input: Any, size: Any, stride: Any, storage_offset: Any = None) -> Any:
    """:func:`as_strided`, on memory of its own."""
    made = as_strided(input, size, stride, storage_offset)
    return made if made is NotImplemented else made.clone(memory_format=torch.contiguous_format)


def placed_as(tensor: Any, first: Tensor) -> Any:
    """The view of every example that ``first`` is of the first one."""
    made = placed(tensor, first.meta.shape, first.meta.strides, first.meta.offset)
    conj, neg = (a != b for a, b in zip(_bits(first), _bits(made), strict=True))
    made = torch.conj(made) if conj else made
    return torch._neg_view(made) if neg else made


def _bits(tensor: Any) -> tuple[bool, bool]:
    """Whether it stands for the conjugates, and for the negatives, of what is in its memory."""
    while isinstance(tensor, BatchedTensor):
        tensor = tensor.value
    if tensor.lacks_handle:
        return False, False
    raw = tensor.raw()
    return raw.is_conj(), raw.is_neg()


# --- the same memory under another dtype -------------------------------------------------------------------------------------


def _as_it_is(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A rule for a function that looks at no dim but the last. torch's tape follows no view by dtype, but the others."""

    def rule(input: Any, *rest: Any, **named: Any) -> Any:
        if not isinstance(input, BatchedTensor) or any(type(a) is not torch.dtype for a in (*rest, *named.values())):
            return NotImplemented
        if fn is not torch.Tensor.view and input.tape.follows((input,), {}):
            return NotImplemented
        value = input.value
        if not input.shape:  # raises where one number can't be the last dim
            fn(torch.empty((), dtype=value.dtype, device="meta"), *rest, **named)
        return BatchedTensor(type(value)._extern(fn, (value, *rest), named), input.level, input.batched)

    return rule


for _fn in (
    torch.Tensor.view, torch.view_as_complex, torch.view_as_real, torch.conj, torch.Tensor.conj, torch.real, torch.imag,
    torch.Tensor.real.__get__, torch.Tensor.imag.__get__,  # type: ignore[attr-defined]
):  # fmt: skip
    EXTERN_RULES[_fn] = _as_it_is(_fn)


def as_strided_scatter(input: Any, *rest: Any, **named: Any) -> Any:
    """Refused, as by torch: places are counted in a copy, whose examples lie elsewhere."""
    raise RuntimeError(said_of_examples(_scatter_nothing))


def _scatter_nothing(x: torch.Tensor) -> torch.Tensor:
    return torch.as_strided_scatter(x, x, (), ())


for _name, _rule in (
    ("as_strided", as_strided),
    ("as_strided_copy", as_strided_copy),
    ("as_strided_scatter", as_strided_scatter),
):
    _packet = getattr(torch.ops.aten, _name)
    for _fn in (getattr(torch, _name), getattr(torch.Tensor, _name, None), _packet, _packet.default):
        EXTERN_RULES[_fn] = _rule
batched.placed.append(placed_as)
