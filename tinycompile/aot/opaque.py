"""Run-time halves of ops whose gradient is torch's own: ``forward`` runs the function under torch's autograd, ``backward``
pulls back.

What the backward needs is a Python object, torch's tape of the one call. It travels as an empty *token* tensor that carries
it, so it can go wherever tensors go: through buffers, graph outputs and ``save_for_backward``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from tinycompile.ir.interpreter import torch_function
from tinycompile.ops.record import OPS

FORWARD, BACKWARD = "tinycompile.aot.opaque.forward", "tinycompile.aot.opaque.backward"


@dataclass(frozen=True, slots=True)
class Context:
    """The results with torch's tape behind them, and the inputs at its other end."""

    results: tuple[torch.Tensor, ...]
    inputs: tuple[torch.Tensor, ...]


def target_function(kind: str, target: str) -> Callable[..., Any]:
    """What a node of this kind and target runs."""
    return OPS[target].eager if kind == "call" else torch_function(target)


def forward(kind: str, target: str, wanted: tuple[bool, ...], args: Any, kwargs: Any) -> tuple[torch.Tensor, ...]:
    """The function's results, then the token. ``wanted``: one flag a tensor among the arguments, in order."""
    flags = iter(wanted)
    inputs: list[torch.Tensor] = []

    def leaf(t: torch.Tensor) -> torch.Tensor:
        if not next(flags):
            return t
        inputs.append(t.detach().requires_grad_())  # detach shares the version counter: edits are noticed
        return inputs[-1]

    with torch.enable_grad():
        given, named = map_tensors(args, leaf), {k: map_tensors(v, leaf) for k, v in kwargs}
        made = target_function(kind, target)(*given, **named)
    results = (made,) if isinstance(made, torch.Tensor) else tuple(made)
    token = torch.empty(0, dtype=torch.uint8, device=results[0].device)
    token.tinycompile_context = Context(results, tuple(inputs))  # type: ignore[attr-defined]
    return *(r.detach() for r in results), token


def backward(token: torch.Tensor, *grads: torch.Tensor | None) -> Any:
    """The gradients of the wanted inputs; a plain tensor when there is one."""
    context: Context = token.tinycompile_context  # type: ignore[attr-defined]
    pairs = [(r, g) for r, g in zip(context.results, grads, strict=True) if g is not None and r.requires_grad]
    found: Any = [None] * len(context.inputs)
    if pairs:
        results, given = zip(*pairs, strict=True)
        found = torch.autograd.grad(results, context.inputs, given, retain_graph=True, allow_unused=True)
    filled = tuple(torch.zeros_like(x) if g is None else g for x, g in zip(context.inputs, found, strict=True))
    return filled[0] if len(filled) == 1 else filled


def map_tensors(value: Any, fn: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """``value`` with ``fn`` applied to every tensor in it, also inside tuples."""
    if isinstance(value, torch.Tensor):
        return fn(value)
    return tuple(map_tensors(v, fn) for v in value) if isinstance(value, tuple) else value


@functools.lru_cache(maxsize=1024)
def _probe(kind: str, target: str, key: Any) -> tuple[bool, ...] | None:
    args, kwargs = key
    try:
        with torch.enable_grad():
            made = target_function(kind, target)(*instances(args), **{k: instances(v) for k, v in kwargs})
    except (NotImplementedError, RuntimeError, TypeError):
        return None  # no meta kernel: nobody knows
    return tuple(r.requires_grad for r in ((made,) if isinstance(made, torch.Tensor) else made))


@dataclass(frozen=True, slots=True)
class Spec:
    """A tensor argument for :func:`differentiable_results`."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool


def instances(value: Any) -> Any:
    """Meta tensors for the Specs among arguments."""
    if isinstance(value, Spec):
        made = torch.empty_strided(value.shape, value.strides, dtype=value.dtype, device="meta")
        return made.requires_grad_() if value.requires_grad else made
    return tuple(instances(v) for v in value) if isinstance(value, tuple) else value


def differentiable_results(kind: str, target: str, args: Any, kwargs: Any) -> tuple[bool, ...] | None:
    """Which results torch would give a ``grad_fn``, by a run on meta tensors; None where that can't be told."""
    try:
        return _probe(kind, target, (args, kwargs))
    except TypeError:  # an argument that can't be hashed
        return None
