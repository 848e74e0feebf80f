"""Compiled functions under ``tinycompile.vmap``: the function over all examples at once is what gets compiled.

Inside ``vmap(f)`` a compiled function is called with tensors of one example each. What is compiled for such a call is
``vmap(original)`` of the tensors that hold all examples, one level below: an ordinary call, with a graph, guards and kernels of
its own. If that level is under a vmap too, it comes here again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tinycompile.dispatch import dispatcher
from tinycompile.dispatch.keys import Key
from tinycompile.eager.batched import BatchedTensor, active, level_of, mapped
from tinycompile.eager.tensor import from_torch
from tinycompile.eager.vmap import batched

Calls = dict[Any, Any]  # callables


def spread(
    fn: Callable[..., Any], compiled: Calls, compile: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
) -> Any:
    """The result of ``fn(*args, **kwargs)`` as one example sees it; NotImplemented: not such a call, or one for eager Python.

    ``compiled``: the functions over all examples so far. ``compile`` makes one."""
    given = (*args, *kwargs.values())
    here, tensors = active.levels[-1], dispatcher.tensors_in(_flat(given))
    if level_of(tensors) != here.number or any(t.keys & Key.AUTOGRAD.bit for t in tensors if _is_of(t, here.number)):
        return NotImplemented  # nothing to spread; or a gradient of each example's own, which our tape follows op by op
    dims = tuple(_dims(v, here.number) for v in given)
    key = len(args), tuple(kwargs), repr(dims), here.randomness
    if key not in compiled:
        compiled[key] = compile(_over_all(fn, len(args), tuple(kwargs), dims, here.randomness))
    below = mapped(given, lambda t: t.value if _is_of(t, here.number) else t)
    before = active.levels
    active.levels = before[:-1]  # the function over all examples enters this level itself
    try:
        result = compiled[key](*below)
    finally:
        active.levels = before
    return mapped(result, lambda t: BatchedTensor(from_torch(t) if isinstance(t, torch.Tensor) else t, here.number))


def _over_all(fn: Callable[..., Any], count: int, names: tuple[str, ...], dims: Any, randomness: str) -> Callable[..., Any]:
    def one(*given: Any) -> Any:
        return fn(*given[:count], **dict(zip(names, given[count:], strict=True)))

    def over_all(*given: Any) -> Any:
        return batched(one, dims, randomness)(*given)

    over_all.__name__ = getattr(fn, "__name__", "over_all")
    return over_all


def _is_of(tensor: Any, level: int) -> bool:
    """Whether it has a value for each example of the level."""
    return isinstance(tensor, BatchedTensor) and tensor.level == level and tensor.batched


def _dims(value: Any, level: int) -> Any:
    """``in_dims`` for a tensor, or for a structure of them."""
    if type(value) in (tuple, list):
        return tuple(_dims(v, level) for v in value)
    if type(value) is dict:
        return {k: _dims(v, level) for k, v in value.items()}
    return 0 if _is_of(value, level) else None


def _flat(values: Sequence[Any]) -> list[Any]:
    """With the values of dicts."""
    return [v for value in values for v in (_flat(tuple(value.values())) if type(value) is dict else (value,))]
