"""Attach a compiled forward and backward to torch's autograd as one node.

What the backward reads is kept by ``save_for_backward``, so torch notices edits and frees it as the backward goes. Under
``create_graph`` another function takes over: the gradients as a function of the inputs and tangents, which computes the
forward again and is itself differentiable. (Saved activations taken as constants would give wrong second derivatives.)
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tinycompile.aot.partition import Split
from tinycompile.aot.saved import KeptOutput, edited_message
from tinycompile.base import torch_private
from tinycompile.base.errors import InternalError, KernelError
from tinycompile.base.expr import Expr
from tinycompile.ir.graph import Ref

Fn = Callable[..., tuple[Any, ...]]


def attach(
    split: Split,
    forward: Fn,
    backward: Fn,
    second: Callable[[tuple[bool, ...]], Fn],
    differentiable: Sequence[bool],
    aliases: Sequence[tuple[int, int]],
    given_up: bool = False,
    overwritten: Sequence[int] = (),
    watched: Sequence[KeptOutput] = (),
    again: Fn | None = None,
) -> Fn:
    """A function like the forward's first ``outputs`` results, whose outputs carry gradients.

    ``second(flags)`` gives the differentiable backward, a function of (inputs, random results, tangents), where ``flags``
    tells which tangents require grad. ``differentiable``: which outputs depend on an input that requires grad, as eager
    would say. ``aliases``: ``(output, input)`` pairs where the output is a view of the input: those are made by torch
    itself. ``given_up``: the backward takes one list, which it empties, so that saved tensors are freed as it goes;
    ``overwritten``: positions of those in whose memory it writes. ``watched``: outputs that eager would have saved. ``again``
    computes the same gradients op by op, for a kernel that refuses its input; a backward that frees what it has read is not run
    twice (the forward has seen the same indices, and keeping all for a second run would double the peak).
    """
    views = dict(aliases)
    wiring = _Wiring(split, differentiable, views)
    count, positions = split.outputs, wiring.positions
    saved_inputs, saved_results = _places(split.saved)
    kept = {i for kind, i in split.saved if kind == "input"}
    checked = [i for i in sorted(split.reread - kept) if split.forward.placeholders[i].meta is not None]
    rereads_all = len(split.reread) == len(split.forward.placeholders)
    routes = [(1 + i, at, split.reached[at]) for at, i in enumerate(split.gradients)]
    nothing = [None] * (1 + len(split.forward.placeholders))
    where = {i: at for at, i in enumerate(positions)}
    watched = [w for w in watched if w.output in where and w.behind <= where.keys()]

    class CompiledFunction(torch.autograd.Function):
        """One node of torch's graph for the whole compiled function. ``made`` takes the outputs that it does not return."""

        @staticmethod
        def forward(ctx: Any, made: list[Any] | None, *inputs: Any) -> tuple[Any, ...]:
            results = forward(*inputs)
            ctx.set_materialize_grads(False)
            ctx.save_for_backward(*[inputs[i] for i in saved_inputs], *[results[i] for i in saved_results])
            ctx.inputs = inputs if rereads_all else wiring.reread(inputs)
            ctx.versions = [inputs[i]._version for i in checked]  # save_for_backward checks the others
            if wiring.keeps_results:
                ctx.numbers = [(inputs if kind == "input" else results)[i] for kind, i in split.sizes]
                ctx.random = [results[i] for i in split.random]
            if not wiring.layouts:
                ctx.layouts = [wiring.layout(i, results[i]) for i in split.tangents]
            # torch refuses writes to a view that a function of several results returns
            returned = [r.detach() if (r := results[i])._is_view() else r for i in positions]
            if wiring.constants:
                ctx.mark_non_differentiable(*[returned[where[i]] for i in wiring.constants])
            if watched:
                ctx.watched = [(weakref.ref(t := returned[where[w.output]]), t._version) for w in watched]
            if made is not None:
                made.extend(results[:count])
            return tuple(returned)

        @staticmethod
        def backward(ctx: Any, *given: Any) -> tuple[Any, ...]:
            saved = ctx.saved_tensors
            layouts = wiring.layouts or ctx.layouts
            if watched:
                _check_watched([w for w in watched if any(given[where[o]] is not None for o in w.behind)], watched, ctx.watched)
            grads = [None if at is None else given[at] for at in wiring.tangent_positions]
            tangents = [
                g if g is not None and g.stride() == layout[1] and not g.data_ptr() & 15 else _laid_out(g, layout)
                for g, layout in zip(grads, layouts, strict=True)
            ]
            undefined = {i for i, g in enumerate(grads) if g is None} if any(g is None for g in grads) else None
            if torch.is_grad_enabled():
                _check_versions([ctx.inputs[i] for i in checked], ctx.versions)
                random = ctx.random if wiring.keeps_results else ()
                found = second(tuple([t.requires_grad for t in tangents]))(*ctx.inputs, *random, *tangents)
            else:
                taken = [*ctx.numbers, *saved, *tangents] if wiring.keeps_results else [*saved, *tangents]
                del saved, tangents, grads
                spare = tuple(taken) if again is not None and not given_up and not overwritten else None
                try:
                    if given_up:
                        _release(ctx, taken, overwritten)
                        found = backward(taken)
                    else:
                        found = backward(*taken)
                except KernelError:
                    if spare is None or again is None:
                        raise
                    found = again(*spare)
            result: list[Any] = nothing.copy()
            for to, at, reached in routes:
                if undefined is None or not reached <= undefined:
                    result[to] = found[at]
            return tuple(result)

    apply = torch_private.function_apply(CompiledFunction)
    if positions == list(range(count)):
        return functools.partial(apply, None)

    def run(*inputs: Any) -> tuple[Any, ...]:
        made: list[Any] = []
        for at, tensor in zip(positions, apply(made, *inputs), strict=True):
            made[at] = tensor
        for later, first in wiring.repeats:
            made[later] = made[first]
        for out, at in views.items():
            view, base = made[out], inputs[at]
            made[out] = base.as_strided(view.size(), view.stride(), view.storage_offset())
        return tuple(made)

    return run


def _release(ctx: Any, taken: list[Any], overwritten: Sequence[int]) -> None:
    """Let go of the saved tensors, unless another backward is to come (``retain_graph``): then what would be overwritten is
    copied."""
    if torch_private.keeps_graph():
        for i in overwritten:
            taken[i] = taken[i].clone(memory_format=torch.preserve_format)
    else:
        torch_private.clear_saved(ctx)


def _places(saved: Sequence[tuple[str, int]]) -> tuple[list[int], list[int]]:
    """Positions of saved inputs and of saved results; the partitioner lists inputs first."""
    kinds = [kind for kind, _ in saved]
    if kinds != sorted(kinds):
        raise InternalError("saved inputs must come before saved results")
    return [i for kind, i in saved if kind == "input"], [i for kind, i in saved if kind == "result"]


class _Wiring:
    """Which results of the forward are outputs of the node, and where each tangent comes in."""

    def __init__(self, split: Split, differentiable: Sequence[bool], views: dict[int, int]) -> None:
        results = split.forward.output.args[0][: split.outputs]
        nodes = {n.name: n for n in split.forward.nodes}
        first: dict[Any, int] = {}
        self.repeats: list[tuple[int, int]] = []  # one tensor returned twice is one output
        self.positions: list[int] = []
        for i, r in enumerate(results):
            if i in views or not isinstance(r, Ref) or nodes[r.name].meta is None:
                continue
            if r in first:
                self.repeats.append((i, first[r]))
            else:
                first[r] = i
                self.positions.append(i)
        self.constants = [i for i in self.positions if not differentiable[i]]
        where = {i: at for at, i in enumerate(self.positions)}
        self.tangent_positions = [where.get(i) for i in split.tangents]
        self.keeps_results = bool(split.sizes or split.random)
        self._reread = split.reread
        metas = [n.meta for n in split.backward.placeholders[len(split.sizes) + len(split.saved) :]]
        self._metas = dict(zip(split.tangents, metas, strict=True))
        symbolic = any(isinstance(d, Expr) for m in metas for d in (*m.shape, *m.strides))
        self.layouts = [] if symbolic else [(m.shape, m.strides, m.dtype, m.device.torch()) for m in metas]

    def reread(self, inputs: Sequence[Any]) -> list[Any]:
        """The inputs that second derivatives need; the others are not kept alive."""
        return [x if i in self._reread else None for i, x in enumerate(inputs)]

    def layout(self, output: int, tensor: torch.Tensor) -> tuple[Any, ...]:
        """Sizes, strides, dtype and device of the tangent that the backward takes for an output."""
        meta = self._metas[output]
        fixed = not any(isinstance(s, Expr) for s in meta.strides)
        return tensor.shape, meta.strides if fixed else tensor.stride(), tensor.dtype, tensor.device


def _laid_out(grad: torch.Tensor | None, layout: tuple[Any, ...]) -> torch.Tensor:
    """A tangent as the compiled backward reads it: of the planned strides, aligned; zeros where it is undefined."""
    shape, strides, dtype, device = layout
    if grad is None:
        return torch.empty_strided(shape, strides, dtype=dtype, device=device).zero_()
    if not grad.data_ptr() & 15:
        given = grad.stride()
        if given == strides:
            return grad
        if all(a == b or n == 1 for a, b, n in zip(given, strides, shape, strict=True)):
            return grad.as_strided(shape, strides)
    return torch.empty_strided(shape, strides, dtype=dtype, device=device).copy_(grad)


def _check_watched(
    needed: Sequence[KeptOutput], watched: Sequence[KeptOutput], seen: Sequence[tuple[weakref.ref[torch.Tensor], int]]
) -> None:
    """Raise torch's error where an output that eager saved was edited."""
    for output, (ref, version) in zip(watched, seen, strict=True):
        t = ref()
        if t is not None and t._version != version and output in needed:
            raise RuntimeError(edited_message(t.type(), t.shape, t._version, version))


def _check_versions(inputs: Sequence[torch.Tensor], versions: Sequence[int]) -> None:
    """Raise torch's error for an input that was edited since the forward."""
    for x, version in zip(inputs, versions, strict=True):
        if x._version != version:
            raise RuntimeError(edited_message(x.type(), x.shape, x._version, version))
