"""Gradients by replaying a graph with torch's own ops under torch's own autograd.

For graphs that the joint stage can't treat, and for backends that take the captured graph itself; ``attach.py`` is the
usual way.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import torch

from tinycompile.aot.followed import carry_gradients, reach
from tinycompile.aot.reach import inputs_reached
from tinycompile.aot.saved import Kept, check_watched, refuse_edited, require_unspent
from tinycompile.base import shapes, torch_private
from tinycompile.base.watch import Watch
from tinycompile.eager.rng import drawn_again, rng_state

Outputs = tuple[Any, ...]
Fn = Callable[..., Outputs]
Read = Callable[[frozenset[int]], AbstractSet[int]]


def attach_replay(
    call: Fn,
    replay: Fn,
    differentiable: Sequence[bool],
    aliases: Sequence[tuple[int, int]],
    written: Sequence[bool] = (),
    read: Read | None = None,
    freed: Callable[[], Sequence[frozenset[str]]] = tuple,
    drawing: Sequence[torch.device] | None = None,
    led: Sequence[int] | None = None,
    watched: Sequence[Kept] = (),
    kept: Callable[[], Sequence[Kept]] = tuple,
    exposed: Collection[int] = (),
) -> Fn:
    """A function like ``call`` whose outputs carry gradients: one node of torch's autograd, whose backward runs ``replay``.

    ``replay`` computes the same outputs with torch ops. ``differentiable`` says which outputs depend on an input that
    requires grad, as eager would. ``aliases`` lists ``(output, input)`` pairs where the output is a view of the input:
    those are made by torch itself. ``written``: which inputs ``call`` writes to, and ``replay`` must see as they were.
    ``read(outputs)``: the inputs on whose values their gradients depend, asked when one was edited; None: all of them.
    ``freed()``: for each output, what a backward of it frees in eager. ``drawing``: the devices of a graph that draws random
    numbers (``call`` draws as ``replay`` does): the backward draws them again from where torch's generators stood. ``led``: the
    inputs to which gradients lead. Where torch's own tape comes to all of them from what ``call`` returns, there is no node;
    None: there always is. ``watched`` and ``kept``: as in ``attach.py``. ``exposed``: inputs whose memory may be
    written to before the backward. What torch keeps of them for the gradients asked for is read as it is then.
    """
    views = dict(aliases)
    changed = [i for i, w in enumerate(written) if w]
    copied = sorted({*changed, *exposed})
    computed = [i for i, d in enumerate(differentiable) if d and i not in views]
    held = {k.place[1]: k.behind for k in (kept() if exposed else ()) if k.place[0] == "input" and k.place[1] in exposed}
    watched = [w for w in watched if w.place[1] in (computed if w.place[0] == "output" else held)]
    of_output = {w.place[1]: at for at, w in enumerate(watched) if w.place[0] == "output"}
    cards = [d for d in drawing or () if d.type == "cuda"]
    followed: bool | None = False if led is None or changed or drawing is not None else None  # None: the first call shows it

    class ReplayedFunction(torch.autograd.Function):
        """One node of torch's graph for the whole compiled function."""

        @staticmethod
        def forward(ctx: Any, made: dict[int, Any], before: list[Any], ready: Outputs | None, *inputs: Any) -> Outputs:
            ctx.generators = None if drawing is None else rng_state(cards)
            outputs = call(*inputs) if ready is None else ready
            ctx.held = {i: inputs[i] for i in held}
            seen = [(outputs if of == "output" else inputs)[i] for of, i in (w.place for w in watched)]
            inputs = tuple(before)
            made.update({i: outputs[i] for i in views})
            outputs = without_bases(outputs)
            ctx.numbers = [None if isinstance(x, torch.Tensor) else x for x in inputs]
            ctx.is_tensor = [isinstance(x, torch.Tensor) for x in inputs]
            ctx.save_for_backward(*(x for x in inputs if isinstance(x, torch.Tensor)))
            ctx.versions = [x._version for x in inputs if isinstance(x, torch.Tensor)]
            ctx.ran = ()  # outputs whose backward has freed what was saved
            ctx.left = None  # what was saved, where others may still need it
            ctx.set_materialize_grads(False)
            fixed = [o for i, o in enumerate(outputs) if i not in computed and i not in views and isinstance(o, torch.Tensor)]
            ctx.mark_non_differentiable(*fixed)
            ctx.watch = Watch(seen, of_output)
            return tuple(None if i in views else o for i, o in enumerate(outputs))

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
            asked = [i for i in computed if grads[i] is not None]
            if ctx.ran:
                require_unspent(freed(), ctx.ran, asked)
            reached = functools.partial(_reached, ctx)
            check_watched(ctx, watched, kept, bool(ctx.ran), frozenset(asked), reached)
            found = _saved(ctx, read, frozenset(asked))
            if not torch_private.keeps_graph():
                ctx.ran = (*ctx.ran, *asked)
                spent = frozenset[str]().union(*(freed()[i] for i in ctx.ran))
                ctx.left = found if any(spent.isdisjoint(freed()[i]) for i in computed) else None
            saved = iter(found)
            again = torch.is_grad_enabled()  # create_graph: the gradient itself must hang on the true inputs
            inputs = [next(saved) if t else n for t, n in zip(ctx.is_tensor, ctx.numbers, strict=True)]
            for i, behind in held.items():
                inputs[i] = inputs[i] if behind.isdisjoint(asked) else ctx.held[i]
            if not again:
                inputs = [x.detach().requires_grad_(x.requires_grad) if isinstance(x, torch.Tensor) else x for x in inputs]
            with drawn_again(ctx.generators, cards):
                return None, None, None, *pull_back(replay, inputs, [(i, grads[i]) for i in asked], again)

    torch_private.hooks_of_defined(ReplayedFunction)
    apply = torch_private.function_apply(ReplayedFunction)

    def run(*inputs: Any) -> tuple[Any, ...]:
        nonlocal followed
        ready = None
        if followed is not False:
            ready = call(*inputs)
            if carry_gradients(ready, differentiable) and (followed or reach(ready, [inputs[i] for i in led or ()])):
                followed = True
                return ready
            followed = False
            ready = tuple(o.detach() if isinstance(o, torch.Tensor) else o for o in ready)
        made: dict[int, Any] = {}
        outputs = list(apply(made, as_before(inputs, copied), ready, *inputs))
        for out, view in made.items():
            outputs[out] = view_of(inputs[views[out]], view)
        return tuple(outputs)

    return run


def outside_of_gradients(call: Fn, aliases: Sequence[tuple[int, int]], views: Collection[int]) -> Fn:
    """``call`` under ``no_grad``, whose results may be written to where gradients are followed. ``aliases``: as above;
    ``views``: outputs that may be views of anything."""
    untracked = torch.no_grad()(call)
    if not views:
        return untracked

    def run(*inputs: Any) -> Outputs:
        made = list(without_bases(found := untracked(*inputs)))
        for out, at in aliases:
            made[out] = found[out] if found[out] is inputs[at] else view_of(inputs[at], found[out])
        return tuple(made)

    return run


def without_bases(outputs: Outputs) -> Outputs:
    """The same memory, in tensors that are no views: torch refuses writes, where gradients are followed, to views made under
    ``no_grad`` or by a function with a node of its own."""
    if not any(isinstance(o, torch.Tensor) and o._is_view() for o in outputs):
        return outputs
    own = {id(o): o.detach() if isinstance(o, torch.Tensor) and o._is_view() else o for o in outputs}
    return tuple(own[id(o)] for o in outputs)


def as_before(inputs: Sequence[Any], written: Sequence[int]) -> list[Any]:
    """The inputs, with copies of those at these positions, which are about to be written to: of the same layout and history."""
    kept = list(inputs)
    with torch.enable_grad():
        for i in written:
            x = inputs[i]
            if any(s == 0 and n > 1 for n, s in zip(x.size(), x.stride(), strict=True)):  # which torch does not copy into
                kept[i] = _With.apply(_span_again(x), x)
            else:
                kept[i] = torch.empty_strided(x.size(), x.stride(), dtype=x.dtype, device=x.device).copy_(x)
    return kept


def _span_again(x: torch.Tensor) -> torch.Tensor:
    """The same elements in a copy of the memory from the first to the last."""
    found = x.detach()
    return found.as_strided((shapes.reach(x.shape, x.stride()),), (1,)).clone().as_strided(x.size(), x.stride(), 0)


class _With(torch.autograd.Function):
    """A tensor's data with another's history."""

    @staticmethod
    def forward(ctx: Any, data: torch.Tensor, history: torch.Tensor) -> torch.Tensor:
        return data.detach()

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return None, grad


def view_of(base: torch.Tensor, view: torch.Tensor) -> torch.Tensor:
    """``view`` as a view of ``base`` to torch's autograd. One of all of it is an expansion: its gradient is summed in eager's
    order, and may be sparse where eager's may."""
    found = view.size(), view.stride(), view.storage_offset()
    if found[2] == base.storage_offset() and shapes.broadcasts_to(base.size(), found[0]):
        expanded = base.expand(found[0])
        if expanded.stride() == found[1]:
            return expanded
    return base.as_strided(*found)


def _reached(ctx: Any) -> frozenset[int]:
    """The inputs whose gradients are needed."""
    return inputs_reached(ctx, [i for i, is_tensor in enumerate(ctx.is_tensor) if is_tensor])


def _saved(ctx: Any, read: Read | None, outputs: frozenset[int]) -> Sequence[torch.Tensor]:
    """What was saved. Raises torch's error where an edit since then would change a gradient."""
    every = range(len(ctx.versions))
    found = ctx.left or torch_private.some_saved(ctx, every, [None] * len(every))
    if all(t._version == v for t, v in zip(found, ctx.versions, strict=True)):
        return found
    positions = [i for i, is_tensor in enumerate(ctx.is_tensor) if is_tensor]
    asked = frozenset(positions) if read is None else read(outputs)
    if ctx.left is not None:
        seen = zip(positions, found, ctx.versions, strict=True)
        refuse_edited((t, v) for at, t, v in seen if at in asked and t._version != v)
        return found
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
