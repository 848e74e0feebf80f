"""``vmap``: a function of one example, called on all of them at once.

Inside the function each tensor is a :class:`~tinycompile.eager.batched.BatchedTensor` of one more level; its ops go through
the Batched key.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeGuard

import torch

from tinycompile.eager import (  # noqa: F401  the rules
    batched_autocast,
    batched_indexing,
    batched_linalg,
    batched_orders,
    batched_pools,
    batched_updates,
    batched_views,
    batched_writes,
    batching,
    batching_library,
    batching_rules,
)
from tinycompile.eager.batched import BatchedTensor, Level, active
from tinycompile.eager.batched_random import watched
from tinycompile.eager.rng import cuda_devices, rng_state, set_rng_state
from tinycompile.eager.tensor import Tensor, from_torch
from tinycompile.eager.transforms import made_by
from tinycompile.eager.vmap_words import said_by_torch
from tinycompile.ops.calls import ops

RANDOMNESS = ("error", "different", "same")


def vmap(
    fn: Callable[..., Any],
    in_dims: Any = 0,
    out_dims: Any = 0,
    randomness: str = "error",
    *,
    chunk_size: int | None = None,
) -> Callable[..., Any]:
    """``fn`` over one dim of its arguments. As ``torch.vmap``, for our tensors and torch's.

    ``in_dims``: an int for all arguments, or nested as they are (None: not mapped over). ``out_dims``: where the examples' dim
    goes in each result. ``randomness``: ``"error"``, ``"different"`` numbers for each example, or the ``"same"``.
    ``chunk_size``: so many examples at a time, to take less memory; None: all of them. Keyword arguments are not mapped over:
    each example gets them whole. Raises ValueError for arguments that do not fit."""
    _check_options(randomness, chunk_size)

    @functools.wraps(fn)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return _call(fn, in_dims, out_dims, randomness, chunk_size, args, kwargs)

    options = {"in_dims": in_dims, "out_dims": out_dims, "randomness": randomness, "chunk_size": chunk_size}
    return made_by(vmap, fn, wrapped, **options)


def batched(fn: Callable[..., Any], in_dims: Any, randomness: str) -> Callable[..., Any]:
    """``vmap`` for a part of a function that is under vmap: what the part returns besides tensors stays as it is."""

    def wrapped(*args: Any) -> Any:
        return _call(fn, in_dims, 0, randomness, None, args, {}, strict=False)

    return made_by(batched, fn, wrapped, in_dims=in_dims, randomness=randomness)


def _check_options(randomness: str, chunk_size: int | None) -> None:
    if randomness not in RANDOMNESS:
        raise RuntimeError(f"Only allowed values for randomness are 'error', 'different', or 'same'. Got {randomness}")
    if chunk_size is not None and not chunk_size > 0:
        raise ValueError(f"vmap: chunk_size should be None or greater than 0. (got {chunk_size})")


def _call(
    fn: Callable[..., Any],
    in_dims: Any,
    out_dims: Any,
    randomness: str,
    chunk_size: int | None,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    strict: bool = True,
) -> Any:
    name = getattr(fn, "__name__", type(fn).__name__)
    with said_by_torch(name, in_dims, args):
        _check_in_dims(in_dims, args)
        pairs = _leaves(args, in_dims)
        if strict:
            _check_leaves(pairs)
        size = _size(pairs)
    ours = any(isinstance(leaf, Tensor) for leaf, _ in (*pairs, *_leaves(kwargs, None)))

    def some(pairs: Sequence[tuple[Any, int | None]], size: Any) -> Any:
        with level(size, randomness) as here, watched():
            given = iter([enter(leaf, dim, here) for leaf, dim in pairs])
            results = fn(*_rebuilt(args, given), **kwargs)
            with said_by_torch(name, in_dims, args, out_dims, results):
                _check_out_dims(out_dims, results)
                return _left(results, out_dims, here, ours, strict)

    if chunk_size is None or chunk_size >= size:
        return some(pairs, size)
    return _in_chunks(some, pairs, size, chunk_size, out_dims, randomness == "same")


def _in_chunks(
    some: Callable[..., Any], pairs: list[tuple[Any, int | None]], size: int, chunk: int, out_dims: Any, same: bool
) -> Any:
    """``chunk`` examples at a time, and the results joined. ``same``: every chunk draws the same random numbers."""
    found = []
    devices = cuda_devices([leaf for leaf, _ in pairs])
    state = rng_state(devices)
    for start in range(0, size, chunk):
        count = min(chunk, size - start)
        if same:
            set_rng_state(state, devices)
        found.append(some([(p if d is None else ops.narrow(p, d, start, count), d) for p, d in pairs], count))
    return _joined(found, out_dims)


def _joined(found: Sequence[Any], dims: Any) -> Any:
    """The results of several chunks, each along its ``out_dims``."""
    first = found[0]
    if isinstance(first, (Tensor, torch.Tensor)):
        dim = dims[0] if isinstance(dims, (tuple, list)) else dims
        return first if dim is None else torch.cat(list(found), dim)
    if not isinstance(first, (dict, tuple, list)):
        return torch.cat(list(found), 0)  # raises
    if isinstance(first, dict):
        given = dims.values() if isinstance(dims, dict) else [dims] * len(first)
        return {k: _joined([f[k] for f in found], d) for k, d in zip(first, given, strict=True)}
    each = dims if isinstance(dims, (tuple, list)) else [dims] * len(first)
    items = [_joined(column, d) for column, d in zip(zip(*found, strict=True), each, strict=True)]
    return type(first)(*items) if hasattr(first, "_fields") else type(first)(items)


@contextmanager
def level(size: Any, randomness: str) -> Iterator[Level]:
    """One more level while the block runs."""
    before = active.levels
    here = Level(before[-1].number + 1 if before else 1, size, randomness, Tensor.tape.nested())
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


def _check_in_dims(in_dims: Any, args: tuple[Any, ...]) -> None:
    """Raise ValueError unless ``in_dims`` is nested as the arguments are, down to some depth."""
    if not isinstance(in_dims, (int, tuple)) or not args or not _begins(in_dims, args):
        raise ValueError("vmap: in_dims is not nested as the arguments are")


def _leaves(value: Any, dims: Any) -> list[tuple[Any, Any]]:
    """Every leaf with its dim."""
    if isinstance(value, (tuple, list)) and not isinstance(value, torch.Size):
        each = dims if isinstance(dims, (tuple, list)) else [dims] * len(value)
        return [pair for v, d in zip(value, each, strict=True) for pair in _leaves(v, d)]
    if isinstance(value, dict):
        given = dims.values() if isinstance(dims, dict) else [dims] * len(value)
        return [pair for v, d in zip(value.values(), given, strict=True) for pair in _leaves(v, d)]  # in order, as torch does
    return [(value, dims)]


def _check_leaves(pairs: Sequence[tuple[Any, Any]]) -> None:
    """Raise ValueError for a dim that its leaf lacks."""
    for leaf, dim in pairs:
        if dim is not None and not (is_dim(dim) and isinstance(leaf, (Tensor, torch.Tensor))):
            raise ValueError("vmap: what is mapped over is a tensor, along one of its dims")
        if dim is not None and not -len(leaf.shape) <= dim < len(leaf.shape):
            raise ValueError(f"vmap: a tensor of {len(leaf.shape)} dims has none numbered {dim}")


def is_dim(dim: Any) -> TypeGuard[int]:
    """Whether it can number a dim of an argument; a truth can't."""
    return isinstance(dim, int) and not isinstance(dim, bool)


def _size(pairs: Sequence[tuple[Any, Any]]) -> Any:
    sizes = [leaf.shape[dim] for leaf, dim in pairs if dim is not None]
    if not sizes or any(size != sizes[0] for size in sizes):
        raise ValueError("vmap: the arguments have no number of examples in common")
    return sizes[0]


def _rebuilt(value: Any, leaves: Iterator[Any]) -> Any:
    """The structure of ``value`` with other leaves."""
    if isinstance(value, (tuple, list)) and not isinstance(value, torch.Size):
        items = [_rebuilt(v, leaves) for v in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return {k: _rebuilt(v, leaves) for k, v in value.items()} if isinstance(value, dict) else next(leaves)


# --- out of the level --------------------------------------------------------------------------------------------------------


def _check_out_dims(out_dims: Any, results: Any) -> None:
    """Raise ValueError unless ``out_dims`` is nested as the results are, down to some depth. One result alone may be given its
    dim in a tuple of one."""
    alone = isinstance(results, (Tensor, torch.Tensor)) and isinstance(out_dims, tuple) and len(out_dims) == 1
    if not alone and not _begins(out_dims, results):
        raise ValueError("vmap: out_dims is not nested as the results are")


def _begins(dims: Any, results: Any) -> bool:
    if isinstance(dims, dict):
        return isinstance(results, dict) and dims.keys() == results.keys() and all(_begins(dims[k], results[k]) for k in dims)
    if isinstance(dims, (tuple, list)):
        return type(dims) is type(results) and len(dims) == len(results) and all(map(_begins, dims, results))
    return True


def _left(results: Any, out_dims: Any, here: Level, ours: bool, strict: bool) -> Any:
    """Results with the examples at ``out_dims``; what does not depend on the example is repeated. Without a dim they may be
    anything."""
    if isinstance(results, torch.Size):
        results = tuple(results)
    if isinstance(results, (tuple, list)):
        each = out_dims if isinstance(out_dims, (tuple, list)) else [out_dims] * len(results)
        items = [_left(r, d, here, ours, strict) for r, d in zip(results, each, strict=True)]
        return type(results)(*items) if hasattr(results, "_fields") else type(results)(items)
    if isinstance(results, dict):
        given = out_dims.values() if isinstance(out_dims, dict) else [out_dims] * len(results)
        return {k: _left(v, d, here, ours, strict) for (k, v), d in zip(results.items(), given, strict=True)}
    if not isinstance(results, (Tensor, torch.Tensor)):
        if not strict or out_dims is None:
            return results
        raise ValueError(f"vmap: a function of examples returns tensors, not {type(results).__name__}")
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
    if not isinstance(dim, int):
        raise ValueError(f"vmap: out_dims are numbers, or None, not {dim!r}")
    if not batched:
        value = ops.expand(value, (here.size, *value.shape))
    rank = len(value.shape)
    if not -rank <= dim < rank:
        raise IndexError(f"Dimension out of range (expected to be in range of [{-rank}, {rank - 1}], but got {dim})")
    return ops.movedim(value, (0,), (dim,)) if dim % rank else value
