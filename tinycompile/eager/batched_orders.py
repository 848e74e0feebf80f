"""Functions of torch's without a record that run along one dim, under vmap: what sorts and picks, Fourier's transforms.

One call on all examples, along a dim that is moved by one. Where a tape follows, what is picked is gathered: the order itself
has no gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tinycompile.dispatch import dispatcher
from tinycompile.eager.batched import EXTERN_RULES, BatchedTensor
from tinycompile.eager.batching import Batch
from tinycompile.eager.tensor import Tensor

# Name -> where ``dim`` stands behind the tensor.
_PICKS = {"sort": 0, "topk": 1, "kthvalue": 1, "mode": 0, "median": 0, "nanmedian": 0}
_TRANSFORMS = {"fft": 1, "ifft": 1, "rfft": 1, "irfft": 1, "hfft": 1, "ihfft": 1}
_NEEDS_DIM = frozenset(("median", "nanmedian"))  # without one they are of all elements
_REDUCES = frozenset(("kthvalue", "mode", "median", "nanmedian"))


def _along(fn: Callable[..., Any], at: int, picks: bool, order: bool = False) -> Callable[..., Any]:
    """A rule for ``fn``. ``picks``: it returns values and their places; ``order``: places alone."""
    name = fn.__name__

    def rule(x: Any, *rest: Any, **kwargs: Any) -> Any:
        dim = rest[at] if len(rest) > at else kwargs.get("dim", None if name in _NEEDS_DIM else -1)
        rank = len(getattr(x, "shape", ()))
        if (
            type(dim) is not int
            or not -rank <= dim < rank
            or "out" in kwargs
            or dispatcher.tensors_in((*rest, *kwargs.values()))
        ):
            return NotImplemented
        if not Tensor.tape.follows((x, *rest), kwargs):
            return on_all(x, rest, kwargs, dim % rank)
        if order:
            return rule(x.detach(), *rest, **kwargs)
        return gathered(x, rest, kwargs, dim) if picks else NotImplemented

    def gathered(x: Any, rest: tuple[Any, ...], kwargs: dict[str, Any], dim: int) -> Any:
        kept, named = _keeping(name, rest, kwargs, at)
        found = rule(x.detach(), *rest[: at + 1], **named)
        values = x.gather(dim, found[1])
        pair = (values, found[1]) if kept else (values.squeeze(dim), found[1].squeeze(dim))
        return type(found)(pair)

    def on_all(x: Any, rest: tuple[Any, ...], kwargs: dict[str, Any], dim: int) -> Any:
        batch = Batch(None, (x,))
        own = batch.size is not None
        if len(rest) > at:
            rest = (*rest[:at], dim + own, *rest[at + 1 :])
        else:
            kwargs = {**kwargs, "dim": dim + own}
        found = Tensor._extern(fn, (batch.below(x), *rest), kwargs)
        if isinstance(found, (tuple, list)):
            return type(found)([BatchedTensor(v, batch.level, own) for v in found])  # torch.return_types too
        return BatchedTensor(found, batch.level, own)

    return rule


def _keeping(name: str, rest: tuple[Any, ...], kwargs: dict[str, Any], at: int) -> tuple[bool, dict[str, Any]]:
    """Whether the dim is kept, and keywords by which it is."""
    if name not in _REDUCES:
        behind = ("descending",) if name == "sort" else ("largest", "sorted")
        return True, {**dict(zip(behind, rest[at + 1 :], strict=False)), **kwargs}
    kept = bool(rest[at + 1] if len(rest) > at + 1 else kwargs.get("keepdim", False))
    return kept, {**kwargs, "keepdim": True}


for _where in (torch, torch.Tensor):
    for _name, _at in _PICKS.items():
        _fn = getattr(_where, _name)
        EXTERN_RULES[_fn] = _along(_fn, _at, picks=True)
    EXTERN_RULES[_where.argsort] = _along(_where.argsort, 0, picks=False, order=True)
for _name, _at in _TRANSFORMS.items():
    _fn = getattr(torch.fft, _name)
    EXTERN_RULES[_fn] = _along(_fn, _at, picks=False)
