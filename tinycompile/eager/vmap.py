"""``vmap``: a function of one example, called on all of them at once.

Inside the function each tensor is a :class:`~tinycompile.eager.batched.BatchedTensor` of one more level; its ops go through
the Batched key.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from tinycompile.eager import batching, batching_library, batching_rules  # noqa: F401  the rules
from tinycompile.eager.batched import BatchedTensor, Level, active
from tinycompile.eager.tensor import Tensor, from_torch
from tinycompile.ops.calls import ops

RANDOMNESS = ("error", "different", "same")


def vmap(fn: Callable[..., Any], in_dims: Any = 0, out_dims: Any = 0, randomness: str = "error") -> Callable[..., Any]:
    """``fn`` over one dim of its arguments. As ``torch.vmap``, for our tensors and torch's.

    ``in_dims``: an int for all arguments, or nested as they are (None: not mapped over). ``out_dims``: where the examples' dim
    goes in each result. ``randomness``: ``"error"``, ``"different"`` numbers for each example, or the ``"same"``. Keyword
    arguments are mapped over dim 0. Raises ValueError for arguments that do not fit."""
    if randomness not in RANDOMNESS:
        raise RuntimeError(f"Only allowed values for randomness are 'error', 'different', or 'same'. Got {randomness}")

    @functools.wraps(fn)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        name = getattr(fn, "__name__", type(fn).__name__)
        dims = _in_dims(in_dims, args, name)
        pairs = [*_leaves(args, dims, name), *_leaves(kwargs, 0, name)]
        size = _size(pairs, name)
        ours = any(isinstance(leaf, Tensor) for leaf, _ in pairs)
        with level(size, randomness) as here:
            given = iter([enter(leaf, dim, here) for leaf, dim in pairs])
            positional, named = _rebuilt(args, given), _rebuilt(kwargs, given)
            results = fn(*positional, **named)
            return _left(results, out_dims, here, ours, name)

    return wrapped


@contextmanager
def level(size: Any, randomness: str) -> Iterator[Level]:
    """One more level while the block runs."""
    before = active.levels
    here = Level(before[-1].number + 1 if before else 1, size, randomness)
    active.levels = (*before, here)
    try:
        yield here
    finally:
        active.levels = before


# --- into the level ----------------------------------------------------------------------------------------------------------


def enter(value: Any, dim: int | None, here: Level) -> Any:
    """An argument as the function sees it; its examples along ``dim``."""
    if not isinstance(value, (Tensor, torch.Tensor)):
        return value
    tensor = from_torch(value) if isinstance(value, torch.Tensor) else value
    if dim is None:
        return tensor
    return BatchedTensor(ops.movedim(tensor, (dim,), (0,)) if dim % len(tensor.shape) else tensor, here.number)


def _in_dims(in_dims: Any, args: tuple[Any, ...], name: str) -> Any:
    if not isinstance(in_dims, (int, tuple, list)) and in_dims is not None:
        raise ValueError(
            f"vmap({name}, in_dims={in_dims}, ...)(<inputs>): expected `in_dims` to be int or a (potentially nested) tuple "
            f"matching the structure of inputs, got: {type(in_dims)}."
        )
    if not args:
        return ()
    if isinstance(in_dims, (tuple, list)) and len(in_dims) != len(args):
        raise ValueError(
            f"vmap({name}, in_dims={in_dims}, ...)(<inputs>): in_dims is not compatible with the structure of inputs. "
            f"in_dims has structure {len(in_dims)} but inputs has structure {len(args)}."
        )
    return tuple(in_dims) if isinstance(in_dims, list) else in_dims


def _leaves(value: Any, dims: Any, name: str) -> list[tuple[Any, int | None]]:
    """Every leaf with its dim, checked."""
    if isinstance(value, (tuple, list)) and not isinstance(value, torch.Size):
        each = dims if isinstance(dims, (tuple, list)) else [dims] * len(value)
        return [pair for v, d in zip(value, each, strict=True) for pair in _leaves(v, d, name)]
    if isinstance(value, dict):
        given = dims if isinstance(dims, dict) else dict.fromkeys(value, dims)
        return [pair for k, v in value.items() for pair in _leaves(v, given[k], name)]
    if not isinstance(value, (Tensor, torch.Tensor)):
        return [(value, None)]
    if dims is None:
        return [(value, None)]
    rank = len(value.shape)
    if not -rank <= dims < rank:
        raise ValueError(
            f"vmap({name}, in_dims=..., ...)(<inputs>): Got in_dim={dims} for some input, but that input is a Tensor of "
            f"dimensionality {rank} so expected in_dim to satisfy -{rank} <= in_dim < {rank}."
        )
    return [(value, dims % rank)]


def _size(pairs: list[tuple[Any, int | None]], name: str) -> Any:
    sizes = [leaf.shape[dim] for leaf, dim in pairs if dim is not None]
    if not pairs:
        raise ValueError(
            f"vmap({name})(<inputs>): got no inputs. Maybe you forgot to add inputs, or you are trying to vmap over a function "
            "with no inputs. The latter is unsupported."
        )
    if not sizes:
        raise ValueError(f"vmap({name}, in_dims=..., ...)(<inputs>): at least one input must be mapped over")
    if any(size != sizes[0] for size in sizes):
        raise ValueError(
            "vmap: Expected all tensors to have the same size in the mapped dimension, "
            f"got sizes {sizes} for the mapped dimension"
        )
    return sizes[0]


def _rebuilt(value: Any, leaves: Iterator[Any]) -> Any:
    """The structure of ``value`` with other leaves."""
    if isinstance(value, (tuple, list)) and not isinstance(value, torch.Size):
        items = [_rebuilt(v, leaves) for v in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return {k: _rebuilt(v, leaves) for k, v in value.items()} if isinstance(value, dict) else next(leaves)


# --- out of the level --------------------------------------------------------------------------------------------------------


def _left(results: Any, out_dims: Any, here: Level, ours: bool, name: str) -> Any:
    """Results with the examples at ``out_dims``; what does not depend on the example is repeated."""
    if isinstance(results, (tuple, list)) and not isinstance(results, torch.Size):
        if isinstance(out_dims, (tuple, list)) and len(out_dims) != len(results):
            raise ValueError(
                f"vmap({name}, ..., out_dims={out_dims})(<inputs>): out_dims is not compatible with the structure of "
                f"`outputs`. out_dims has structure {len(out_dims)} but outputs has structure {len(results)}."
            )
        each = out_dims if isinstance(out_dims, (tuple, list)) else [out_dims] * len(results)
        items = [_left(r, d, here, ours, name) for r, d in zip(results, each, strict=True)]
        return type(results)(*items) if hasattr(results, "_fields") else type(results)(items)
    if isinstance(results, dict):
        return {
            k: _left(v, out_dims[k] if isinstance(out_dims, dict) else out_dims, here, ours, name) for k, v in results.items()
        }
    if not isinstance(results, (Tensor, torch.Tensor)):
        raise ValueError(f"vmap({name}, ...): `{name}` must only return Tensors, got type {type(results)} as a return.")
    dim = out_dims[0] if isinstance(out_dims, (tuple, list)) else out_dims
    made = leave(results, dim, here)
    return made if ours else made.torch()


def leave(result: Any, dim: int | None, here: Level) -> Tensor:
    """One result. ``dim`` None: it must not depend on the example."""
    tensor = from_torch(result) if isinstance(result, torch.Tensor) else result
    value, batched = tensor, False
    if isinstance(tensor, BatchedTensor) and tensor.level == here.number:
        value, batched = tensor.value, tensor.batched
    if dim is None:
        if batched:
            raise ValueError("vmap: a result with out_dims=None depends on the example")
        return value
    if not batched:
        value = ops.expand(value, (here.size, *value.shape))
    rank = len(value.shape)
    if not -rank <= dim < rank:
        raise IndexError(f"Dimension out of range (expected to be in range of [{-rank}, {rank - 1}], but got {dim})")
    return ops.movedim(value, (0,), (dim,)) if dim % rank else value
