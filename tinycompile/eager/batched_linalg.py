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
        return _results(found, batch.level, batch.size is not None)

    return rule


def _results(value: Any, level: int, batched: bool) -> Any:
    if isinstance(value, (tuple, list)):
        return type(value)([_results(v, level, batched) for v in value])  # torch.return_types too
    return BatchedTensor(value, level, batched)


for _where, _names in ((torch.linalg, _LINALG), (torch, _TORCH), (torch.Tensor, _TORCH)):
    for _name in _names:
        if (_fn := getattr(_where, _name, None)) is not None:
            EXTERN_RULES[_fn] = _of_matrices(_fn)
