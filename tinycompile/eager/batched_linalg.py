"""Functions of torch's without a record that take a batch of matrices as they take one: under vmap examples are the batch."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from tinycompile.dispatch import dispatcher
from tinycompile.eager.batched import EXTERN_RULES, BatchedTensor, mapped
from tinycompile.eager.batching import Batch
from tinycompile.eager.tensor import Tensor
from tinycompile.ops.calls import ops

# Of matrices alone: none of them names a dim.
_LINALG = (
    "cholesky", "cholesky_ex", "cond", "det", "eig", "eigh", "eigvals", "eigvalsh", "inv", "inv_ex", "ldl_factor", "lstsq",
    "lu", "lu_factor", "lu_factor_ex", "matrix_exp", "matrix_power", "matrix_rank", "pinv", "qr", "slogdet", "solve",
    "solve_triangular", "svd", "svdvals",
)  # fmt: skip
_TORCH = (
    "cholesky", "cholesky_inverse", "cholesky_solve", "det", "inverse", "logdet", "matrix_exp", "matrix_power", "pinverse",
    "qr", "slogdet", "svd",
)  # fmt: skip


def _of_matrices(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A rule for ``fn``: one call, where all tensors are matrices, or batches of them alike, that no tape follows."""

    def rule(*args: Any, **kwargs: Any) -> Any:
        given = (*args, *kwargs.values())
        ranks = {len(t.shape) for t in dispatcher.tensors_in(given)}
        if len(ranks) != 1 or ranks.pop() < 2 or "out" in kwargs or Tensor.tape.follows(args, kwargs):
            return NotImplemented
        batch = Batch(None, given)
        below = batch.below if batch.size is None else functools.partial(mapped, fn=batch.full)
        found = Tensor._extern(fn, below(args), below(kwargs))
        return _results(found, batch)

    return rule


def _results(value: Any, batch: Batch) -> Any:
    if isinstance(value, (tuple, list)):
        return type(value)([_results(v, batch) for v in value])  # torch.return_types too
    if batch.size is not None and tuple(value.shape) == (0,):  # residuals that there are none of, for each example
        value = ops.expand(value, (batch.size, 0))
    return BatchedTensor(value, batch.level, batch.size is not None)


def _laid_out_anew(fn: Callable[..., Any], rule: Callable[..., Any]) -> Callable[..., Any]:
    """For a function that refuses examples that do not lie one after the other: they are copied first."""

    def on_copies(*args: Any, **kwargs: Any) -> Any:
        if all(map(_in_a_row, dispatcher.tensors_in((*args, *kwargs.values())))):
            return rule(*args, **kwargs)
        given, named = mapped((args, kwargs), _copied)
        return fn(*given, **named)

    return on_copies


def _in_a_row(tensor: Any) -> bool:
    return not isinstance(tensor, BatchedTensor) or bool(tensor.value.is_contiguous())


def _copied(tensor: Any) -> Any:
    return tensor if _in_a_row(tensor) else tensor.clone(memory_format=torch.contiguous_format)


for _where, _names in ((torch.linalg, _LINALG), (torch, _TORCH), (torch.Tensor, _TORCH)):
    for _name in _names:
        if (_fn := getattr(_where, _name, None)) is not None:
            EXTERN_RULES[_fn] = _of_matrices(_fn)
for _fn in (torch.matrix_exp, torch.linalg.matrix_exp, torch.native_group_norm):
    EXTERN_RULES[_fn] = _laid_out_anew(_fn, EXTERN_RULES.get(_fn, lambda *args, **kwargs: NotImplemented))
EXTERN_RULES[torch.Tensor.matrix_exp] = EXTERN_RULES[torch.matrix_exp]
