"""Gradients by replaying a graph with torch's own ops under torch's own autograd.

For graphs that the joint stage can't treat, and for backends that take the captured graph itself; ``attach.py`` is the
usual way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import torch

from tinycompile.base import torch_private

Fn = Callable[..., tuple[Any, ...]]


def attach_replay(
    call: Fn,
    replay: Fn,
    differentiable: Sequence[bool],
    aliases: Sequence[tuple[int, int]],
    written: Sequence[bool] = (),
    read: Callable[[], AbstractSet[int]] | None = None,
) -> Fn:
    """A function like ``call`` whose outputs carry gradients: one node of torch's autograd, whose backward runs ``replay``.

    ``replay`` computes the same outputs with torch ops. ``differentiable`` says which outputs depend on an input that
    requires grad, as eager would. ``aliases`` lists ``(output, input)`` pairs where the output is a view of the input:
    those are made by torch itself. ``written``: which inputs ``call`` writes to, and ``replay`` must see as they were.
    ``read()``: the inputs on whose values a gradient depends, asked when one was edited; None: all of them.
    """
    views = dict(aliases)
    changed = [i for i, w in enumerate(written) if w]
    computed = [i for i, d in enumerate(differentiable) if d and i not in views]

    class ReplayedFunction(torch.autograd.Function):
        """One node of torch's graph for the whole compiled function."""

        @staticmethod
        def forward(ctx: Any, made: dict[int, Any], *inputs: Any) -> tuple[Any, ...]:
            before = list(inputs)
            for i in changed:
                before[i] = inputs[i].clone()
            outputs = call(*inputs)
            inputs = tuple(before)
            made.update({i: outputs[i] for i in views})
            ctx.numbers = [None if isinstance(x, torch.Tensor) else x for x in inputs]
            ctx.is_tensor = [isinstance(x, torch.Tensor) for x in inputs]
            ctx.save_for_backward(*(x for x in inputs if isinstance(x, torch.Tensor)))
            ctx.versions = [x._version for x in inputs if isinstance(x, torch.Tensor)]
            ctx.set_materialize_grads(False)
            fixed = [o for i, o in enumerate(outputs) if i not in computed and i not in views and isinstance(o, torch.Tensor)]
            ctx.mark_non_differentiable(*fixed)
            return tuple(None if i in views else o for i, o in enumerate(outputs))

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
            saved = iter(_saved(ctx, read))
            again = torch.is_grad_enabled()  # create_graph: the gradient itself must hang on the true inputs
            inputs = [next(saved) if t else n for t, n in zip(ctx.is_tensor, ctx.numbers, strict=True)]
            if not again:
                inputs = [x.detach().requires_grad_(x.requires_grad) if isinstance(x, torch.Tensor) else x for x in inputs]
            return None, *pull_back(replay, inputs, [(i, grads[i]) for i in computed], again)

    def run(*inputs: Any) -> tuple[Any, ...]:
        made: dict[int, Any] = {}
        outputs = list(ReplayedFunction.apply(made, *inputs))
        for out, view in made.items():
            outputs[out] = inputs[views[out]].as_strided(view.size(), view.stride(), view.storage_offset())
        return tuple(outputs)

    return run


def _saved(ctx: Any, read: Callable[[], AbstractSet[int]] | None) -> Sequence[torch.Tensor]:
    """What was saved. Raises torch's error where an edit since then would change a gradient."""
    every = range(len(ctx.versions))
    found = torch_private.some_saved(ctx, every, [None] * len(every))
    if all(t._version == v for t, v in zip(found, ctx.versions, strict=True)):
        return found
    positions = [i for i, is_tensor in enumerate(ctx.is_tensor) if is_tensor]
    asked = frozenset(positions) if read is None else read()
    return torch_private.some_saved(ctx, every, [ctx.versions[at] if positions[at] in asked else None for at in every])


def pull_back(replay: Fn, inputs: Sequence[Any], tangents: Sequence[tuple[int, Any]], again: bool) -> tuple[Any, ...]:
    """One gradient an input (None where there is none), given ``(output, tangent)`` pairs. ``again``: to be differentiated
    again."""
    wanted = [x for x in inputs if isinstance(x, torch.Tensor) and x.requires_grad]
    with torch.enable_grad():
        outputs = replay(*inputs)
    pairs = [(outputs[i], g) for i, g in tangents if g is not None and outputs[i].requires_grad]
    found: list[Any] = [None] * len(wanted)
    if pairs and wanted:
        tensors, given = zip(*pairs, strict=True)
        found = list(torch.autograd.grad(tensors, wanted, given, allow_unused=True, create_graph=again))
    by_id = {id(x): g for x, g in zip(wanted, found, strict=True)}
    return tuple(by_id.get(id(x)) if isinstance(x, torch.Tensor) else None for x in inputs)
