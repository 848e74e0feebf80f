"""What torch says of a wrong ``vmap``. Its words differ by version: the installed torch is asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from tinycompile.base import shapes
from tinycompile.dispatch import dispatcher
from tinycompile.dispatch.keys import Key
from tinycompile.eager import tensor as eager_tensor
from tinycompile.eager.batched import BatchedTensor, active, mapped
from tinycompile.eager.batched_random import below
from tinycompile.eager.no_trace import leaving_no_trace
from tinycompile.eager.tensor import Tensor


@contextmanager
def said_by_torch(name: str, in_dims: Any, args: tuple[Any, ...], out_dims: Any = 0, results: Any = None) -> Iterator[None]:
    """What the block finds wrong with ``vmap(fn, in_dims, out_dims)(*args)``, where ``fn`` is called ``name`` and has returned
    ``results``, is raised as torch raises it."""
    try:
        yield
    except (ValueError, IndexError) as error:

        def fn(*given: Any) -> Any:
            return mapped(results, lambda t: _stand_in(t) + 0 * _first(given) if _has_examples(t) else _stand_in(t))

        fn.__name__ = name
        try:
            with leaving_no_trace():
                torch.vmap(fn, in_dims, out_dims)(*mapped(args, _stand_in))
        except Exception as torchs:  # noqa: BLE001  # whatever it is, the caller gets it
            raise torchs.with_traceback(None) from None
        raise error


def reword(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise what torch raises for a call under its vmap that failed under ours; return where it takes the call, or can't be
    asked."""
    given = args, dict(kwargs)
    tensors = dispatcher.tensors_in((*args, *kwargs.values()))
    copies: dict[int, Any] = {}
    physical, levels = zip(*(_physical(t, copies) for t in tensors), strict=True)
    if any(type(t) is not torch.Tensor for t in physical):
        return

    def one(*leaves: Any) -> torch.Tensor:
        each = iter(leaves)
        call_args, call_kwargs = mapped(given, lambda _: next(each))
        fn(*call_args, **call_kwargs)
        return leaves[0] * 0

    whole: Any = one
    for level in reversed(active.levels):
        dims = tuple(0 if level.number in own else None for own in levels)
        if any(d == 0 for d in dims):
            whole = torch.vmap(whole, dims, randomness=level.randomness)
    try:
        with leaving_no_trace(), below(0):  # torch decides what is drawn
            whole(*physical)
    except Exception as torchs:  # noqa: BLE001  # whatever it is, the caller gets it
        if "Batching rule not implemented" in str(torchs):  # it has no word on this call
            return
        raise torchs.with_traceback(None) from None


def _physical(tensor: Any, copies: dict[int, Any]) -> tuple[Any, set[int]]:
    """All examples, in the same place of a copy of their memory, and the levels that they are of, the outermost along the first
    dim. ``copies``: of each memory so far."""
    levels = set()
    while isinstance(tensor, BatchedTensor):
        if tensor.batched:
            levels.add(tensor.level)
        tensor = tensor.value
    if isinstance(tensor, Tensor):
        if tensor.lacks_handle or tensor.keys & Key.TRACING.bit:
            return None, levels
        tensor = tensor.raw()
    tensor = tensor.detach()
    if tensor.layout is not torch.strided or tensor.is_conj() or tensor.is_neg() or tensor.is_meta:
        return tensor.clone(), levels
    storage = tensor.untyped_storage()
    at = storage.data_ptr()
    if at not in copies:
        copies[at] = storage.clone()
    return tensor.new_empty(0).set_(copies[at], tensor.storage_offset(), tensor.shape, tensor.stride()), levels


def refuse_as_strided(x: BatchedTensor, size: Any, stride: Any, offset: Any) -> None:
    """Raise what torch raises for ``as_strided`` of each example: where one would reach beyond its own elements."""
    value = x.value
    sizes, strides, start = ([shapes.hint(n) for n in of] for of in (value.shape, value.stride(), (value.meta.offset,)))
    end = max(start[0] + shapes.reach(tuple(sizes), tuple(strides)), value.storage.nbytes // value.dtype.itemsize)
    like = torch.empty(end, dtype=value.dtype).as_strided(sizes, strides, start[0])
    torch.vmap(lambda t: t.as_strided(size, stride, offset))(like if x.batched else like[None])


def _stand_in(tensor: Any) -> torch.Tensor:
    return torch.zeros([shapes.hint(size) for size in tensor.shape])


def _has_examples(tensor: Any) -> bool:
    return isinstance(tensor, BatchedTensor) and tensor.batched


def _first(given: Any) -> Any:
    """A number of each example."""
    found: list[torch.Tensor] = []
    mapped(given, lambda t: found.append(t.sum()))
    return sum(found)


eager_tensor.reword_batched.append(reword)
