"""Compiled functions under ``tinycompile.vmap``: the function over all examples at once is what gets compiled.

Inside ``vmap(f)`` a compiled function is called with tensors of one example each. What is compiled for such a call is
``vmap(original)`` of the tensors that hold all examples, one level below: an ordinary call, with a graph, guards and kernels of
its own. If that level is under a vmap too, it comes here again.

Where gradients of each example's own are wanted, the call leaves a node on the tape, whose backward is compiled in the same
way: ``batched_gradients.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from tinycompile.dispatch import dispatcher
from tinycompile.eager.batched import BatchedTensor, active, level_of, mapped
from tinycompile.eager.batched_random import below, unwatched
from tinycompile.eager.tensor import Tensor, from_torch
from tinycompile.eager.vmap import batched

Calls = dict[Any, Any]  # callables


class Spread(NamedTuple):
    """A call of one example as one of all: the compiled ``function`` over them, its arguments one level below ``level``."""

    function: Any
    args: Sequence[Any]
    level: int

    @contextmanager
    def below(self) -> Iterator[None]:
        """One level less while the block runs: the function over all examples enters its level itself."""
        with below(self.level), unwatched():
            yield

    def run(self) -> Any:
        """The result as one example sees it."""
        with self.below():
            result = self.function(*self.args)
        return _of_one(result, self.level)

    def only_computes(self) -> bool:
        """Whether all that the call does is to compute its result: see ``batched_gradients.py``."""
        with self.below():
            found: bool = self.function.only_computes(self.args)
            return found


def spread(
    fn: Callable[..., Any], compiled: Calls, compile: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
) -> Spread | None:
    """``fn(*args, **kwargs)`` over all examples of the innermost level; None: no tensor is of that level.

    ``compiled``: the functions over all examples so far. ``compile`` makes one."""
    given = (*args, *kwargs.values())
    here = active.levels[-1]
    if level_of(tensors_of(given)) != here.number:
        return None
    dims = tuple(_dims(v, here.number) for v in given)
    key = len(args), tuple(kwargs), repr(dims), here.randomness
    if key not in compiled:
        compiled[key] = compile(_over_all(fn, len(args), tuple(kwargs), dims, here.randomness))
    below = mapped(given, lambda t: t.value if isinstance(t, BatchedTensor) and t.level == here.number else t)
    return Spread(compiled[key], below, here.number)


def tensors_of(values: Sequence[Any]) -> list[Any]:
    """The tensors in nested arguments, those in dicts too."""
    return dispatcher.tensors_in(_flat(values))


def _over_all(fn: Callable[..., Any], count: int, names: tuple[str, ...], dims: Any, randomness: str) -> Callable[..., Any]:
    def one(*given: Any) -> Any:
        return fn(*given[:count], **dict(zip(names, given[count:], strict=True)))

    def over_all(*given: Any) -> Any:
        return batched(one, dims, randomness)(*given)

    over_all.__name__ = getattr(fn, "__name__", "over_all")
    return over_all


def _dims(value: Any, level: int) -> Any:
    """``in_dims`` for a tensor, or for a structure of them."""
    if type(value) in (tuple, list):
        return type(value)(_dims(v, level) for v in value)
    if type(value) is dict:
        return {k: _dims(v, level) for k, v in value.items()}
    return 0 if isinstance(value, BatchedTensor) and value.level == level and value.batched else None


def _of_one(result: Any, level: int) -> Any:
    """A result of all examples as one sees it."""
    if isinstance(result, torch.Tensor):
        return BatchedTensor(from_torch(result), level)
    if isinstance(result, Tensor):
        return BatchedTensor(result, level)
    if isinstance(result, (tuple, list)) and not isinstance(result, torch.Size):
        items = [_of_one(r, level) for r in result]
        return type(result)(*items) if hasattr(result, "_fields") else type(result)(items)
    return {k: _of_one(v, level) for k, v in result.items()} if type(result) is dict else result


def _flat(values: Sequence[Any]) -> list[Any]:
    """With the values of dicts."""
    return [v for value in values for v in (_flat(tuple(value.values())) if type(value) is dict else (value,))]
