"""Attach a compiled forward and backward to torch's autograd as one node, or as several where results depend on different
inputs (``reach.py``).

What the backward reads is kept by ``save_for_backward``, so torch notices edits and frees it as the backward goes. Under
``create_graph`` another function takes over: the gradients as a function of the inputs and tangents, which computes the
forward again and is itself differentiable. (Saved activations taken as constants would give wrong second derivatives.) So it
does where the backward of one result has freed what was saved, and that of another comes, which has nothing in common with it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch

from tinycompile.aot.partition import Split
from tinycompile.aot.pullback import Derived, Pullback
from tinycompile.aot.reach import apart, groups_of, inputs_reached
from tinycompile.aot.replay import as_before, view_of
from tinycompile.aot.saved import Kept, check_watched, refuse_edited, require_unspent
from tinycompile.base import expr as ex
from tinycompile.base import torch_private
from tinycompile.base.errors import InternalError, KernelError
from tinycompile.base.expr import Expr
from tinycompile.base.watch import Watch
from tinycompile.ir.builder import size_sources
from tinycompile.ir.graph import Ref

Fn = Callable[..., tuple[Any, ...]]


def attach(
    split: Split,
    forward: Fn,
    backward: Pullback,
    part: Callable[[Sequence[int], frozenset[int], frozenset[int] | None], Pullback],
    second: Callable[[Sequence[int], frozenset[int], tuple[bool, ...], frozenset[int] | None], Derived],
    differentiable: Sequence[bool],
    aliases: Sequence[tuple[int, int]],
    watched: Sequence[Kept] = (),
    kept: Callable[[], Sequence[Kept]] = tuple,
    freed: Callable[[], Sequence[frozenset[str]]] = tuple,
    written: Collection[int] = (),
    wanted: Sequence[bool] = (),
) -> Fn:
    """A function like the forward's first ``outputs`` results, whose outputs carry gradients.

    ``part(sizes, defined, reached)`` gives the backward for some of the tangents, where the others are undefined; ``sizes``:
    the values of the forward's size symbols; ``reached``: the inputs whose gradients are needed, None for all of them.
    ``second(sizes, defined, flags, reached)`` gives the differentiable one, where ``flags`` tells which of these tangents
    require grad. ``differentiable``: which outputs depend on an input that requires grad, as eager would
    say. ``aliases``: ``(output, input)`` pairs where the output is a view
    of the input: those are made by torch itself. ``watched``: inputs and outputs that eager may have saved; ``kept()``: those
    that it would, asked when one was edited. ``freed()``: for each output, what a backward of it frees in eager, asked when a
    second backward comes. ``written``: inputs that the forward, or the caller behind it, writes to and on which results with a
    gradient depend: the differentiable backward, which computes the forward again, is given them as they were. ``wanted``:
    which inputs require grad; nothing leads to those that no gradient reaches.
    """
    views = dict(aliases)
    wiring = _Wiring(split, differentiable, views)
    count, positions = split.outputs, wiring.positions
    saved_inputs, saved_results = _places(split.saved)
    reread = [i for i in sorted(split.reread) if split.forward.placeholders[i].meta is not None]
    rereads_all = len(split.reread) == len(split.forward.placeholders)
    routes = [(2 + i, split.reached[at]) for at, i in enumerate(split.gradients)]
    every, none = frozenset(range(len(split.tangents))), frozenset[int]()
    several = len(every) > 1 or len(routes) > 1
    changed = [i for i in reread if i in written]
    groups = groups_of(wiring.reached(split))
    cut = sorted({i for i, w in enumerate(wanted) if w}.difference(*groups.values()))
    several_nodes = len(groups) > 1
    nothing = [None] * (2 + len(split.forward.placeholders))
    where = {i: at for at, i in enumerate(positions)}
    tensors = [i for i, p in enumerate(split.forward.placeholders) if p.meta is not None]
    torch_checks = {("input", i) for i in saved_inputs if i not in changed}
    watched = [w for w in watched if w.place not in torch_checks and w.behind & where.keys()]
    watched = [w for w in watched if w.place[0] == "input" or w.place[1] in where]
    of_output = {where[i]: at for at, w in enumerate(watched) if (i := w.place[1]) in where and w.place[0] == "output"}

    def check(ctx: Any, given: Sequence[Any], spent: bool) -> None:
        if watched:
            check_watched(ctx, watched, kept, spent, outputs_of(given), lambda: inputs_reached(ctx, tensors))

    def outputs_of(given: Sequence[Any]) -> set[int]:
        return {o for o, at in where.items() if given[at] is not None}

    def reached_beside(ctx: Any, edited: Collection[int], given: Sequence[Any]) -> frozenset[int] | None:
        """The inputs whose gradients are needed, where there are others, and torch comes to none of these ``edited`` inputs."""
        found = inputs_reached(ctx, tensors)
        places, outputs = {("input", i) for i in edited}, outputs_of(given)
        if found.issuperset(split.gradients) or any(k.place in places and k.needed_by(outputs, found) for k in kept()):
            return None
        return found

    def needed_part(ctx: Any, whole: Pullback, defined: frozenset[int], given: Sequence[Any]) -> Pullback:
        """The backward of the needed gradients alone, where what was saved for others was edited."""
        edited = torch_private.edited_saved(ctx, ctx.saved_versions) if several else None
        if not edited:
            return whole
        reached = reached_beside(ctx, [i for at, i in enumerate(saved_inputs) if at in edited], given)
        return whole if reached is None else part(ctx.sizes if wiring.sources else (), defined, reached)

    def unpacked(ctx: Any, pull: Pullback) -> Sequence[torch.Tensor]:
        if len(pull.saved) == len(split.saved):
            saved: Sequence[torch.Tensor] = ctx.saved_tensors
            return saved
        return torch_private.some_saved(ctx, pull.saved, ctx.saved_versions)

    def edits(ctx: Any, derived: Derived) -> dict[int, tuple[torch.Tensor, int]]:
        known = zip(reread, ctx.versions, strict=True)
        return {i: (x, v) for i, v in known if i in derived.reads and (x := ctx.inputs[i])._version != v}

    class CompiledFunction(torch.autograd.Function):
        """One node of torch's graph for the whole compiled function. ``made`` takes the outputs that it does not return;
        ``before``: the inputs as the differentiable backward reads them, where these are others."""

        @staticmethod
        def forward(ctx: Any, made: list[Any] | None, before: list[Any] | None, *inputs: Any) -> tuple[Any, ...]:
            results = forward(*inputs)
            ctx.set_materialize_grads(False)
            ctx.ran = none  # the tangents whose backward has freed what was saved
            saved = [*[inputs[i] for i in saved_inputs], *[results[i] for i in saved_results]]
            ctx.save_for_backward(*saved)
            if several:
                ctx.saved_versions = [t._version for t in saved]
            again = inputs if before is None else before
            ctx.inputs = again if rereads_all else wiring.reread(again)
            ctx.versions = [again[i]._version for i in reread]
            if wiring.sources:
                ctx.sizes = wiring.sizes(inputs)
            if wiring.keeps_results:
                ctx.numbers = [(inputs if kind == "input" else results)[i] for kind, i in split.sizes]
                ctx.random = [results[i] for i in split.random]
            if not wiring.layouts:
                ctx.layouts = wiring.symbolic_layouts(ctx.sizes if wiring.sources else (), results)
            # torch refuses writes to a view that a function of several results returns
            returned = [r.detach() if (r := results[i])._is_view() else r for i in positions]
            if wiring.constants:
                ctx.mark_non_differentiable(*[returned[where[i]] for i in wiring.constants])
            if watched:
                seen = [inputs[i] if kind == "input" else returned[where[i]] for kind, i in (w.place for w in watched)]
                ctx.watch = Watch(seen, of_output)
            if made is not None:
                made.extend(results[:count])
            return (*returned, torch.empty(0)) if several_nodes else tuple(returned)

        @staticmethod
        def backward(ctx: Any, *given: Any) -> tuple[Any, ...]:
            layouts = wiring.layouts or ctx.layouts
            grads = [None if at is None else given[at] for at in wiring.tangent_positions]
            defined = every if not any(g is None for g in grads) else frozenset(i for i, g in enumerate(grads) if g is not None)
            if not defined:
                return tuple(nothing)
            sizes = ctx.sizes if wiring.sources else ()
            numbers, random = (ctx.numbers, ctx.random) if wiring.keeps_results else ((), ())
            again, ran = torch.is_grad_enabled(), ctx.ran
            if ran:
                require_unspent(freed(), *([split.tangents[i] for i in some] for some in (ran, defined)))
            elif again:
                torch_private.some_saved(ctx, (), ())  # freed?
            if not torch_private.keeps_graph():
                ctx.ran = ran | defined
            if again or ran:
                check(ctx, given, bool(ran))
                wrapped = any(map(_no_kernel_reads, grads))
                tangents = [_taken(grads[i], layouts[i], wrapped) for i in sorted(defined)]
                flags = tuple([again and t.requires_grad for t in tangents])
                derived = second(sizes, defined, flags, None)
                edited = edits(ctx, derived)
                if edited and (reached := reached_beside(ctx, edited, given)) is not None:
                    derived = second(sizes, defined, flags, reached)
                    edited = edits(ctx, derived)
                refuse_edited(edited.values())
                call = derived.by_ops if wrapped else derived.call
                found = call(*ctx.inputs, *[random[i] for i in derived.random], *tangents)
                places, with_zeros = derived.places, False
            else:
                pull = backward if defined is every else part(sizes, defined, None)
                check(ctx, given, False)
                try:
                    saved = unpacked(ctx, pull)
                except RuntimeError:
                    narrower = needed_part(ctx, pull, defined, given)
                    if narrower is pull:
                        raise
                    pull, saved = narrower, unpacked(ctx, narrower)
                wrapped = any(map(_no_kernel_reads, grads))
                tangents = [_taken(grads[i], layouts[i], wrapped) for i in pull.tangents]
                taken = [*[numbers[i] for i in pull.numbers], *saved, *tangents]
                del saved, tangents, grads
                with_zeros = pull is backward and defined is not every
                found, places = pull.by_ops(*taken) if wrapped else _run(ctx, pull, taken), pull.places
            result: list[Any] = nothing.copy()
            for (to, reached), at in zip(routes, places, strict=True):
                if at is not None and (not with_zeros or reached & defined):
                    result[to] = found[at]
            return tuple(result)

    torch_private.hooks_of_defined(CompiledFunction)
    apply = torch_private.function_apply(CompiledFunction)
    if several_nodes:
        apply = apart(apply, CompiledFunction.backward, groups)
    if positions == list(range(count)) and not changed and not cut:
        return functools.partial(apply, None, None)

    def run(*inputs: Any) -> tuple[Any, ...]:
        made: list[Any] = []
        before = as_before(inputs, changed) if changed else None
        given = list(inputs)
        for i in cut:
            given[i] = given[i].detach()
        for at, tensor in zip(positions, apply(made, before, *given), strict=True):
            made[at] = tensor
        for later, first in wiring.repeats:
            made[later] = made[first]
        for out, at in views.items():
            made[out] = view_of(inputs[at], made[out])
        return tuple(made)

    return run


def _run(ctx: Any, pull: Pullback, taken: list[Any]) -> tuple[Any, ...]:
    """A backward on what it takes, which may be freed as it goes."""
    spare = tuple(taken) if pull.refusing and not pull.given_up and not pull.overwritten else None
    try:
        if not pull.given_up:
            return pull.call(*taken)
        _release(ctx, taken, pull.overwritten)
        return pull.call(taken)
    except KernelError:
        if spare is None:
            raise
        return pull.by_ops(*spare)


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
        inputs = {p.name: i for i, p in enumerate(split.forward.placeholders)}
        sources = size_sources(split.forward)
        self.symbols = list(sources)
        self.sources = [(inputs[name], dim) for name, dim in sources.values()]
        metas = [n.meta for n in split.backward.placeholders[len(split.sizes) + len(split.saved) :]]
        self._metas = dict(zip(split.tangents, metas, strict=True))
        symbolic = any(isinstance(d, Expr) for m in metas for d in (*m.shape, *m.strides))
        self.layouts = [] if symbolic else [(m.shape, m.strides, m.dtype, m.device.torch()) for m in metas]

    def reached(self, split: Split) -> dict[int, frozenset[int]]:
        """For each input with a gradient, the outputs of the node that lead to it."""
        at = self.tangent_positions
        found = zip(split.gradients, split.reached, strict=True)
        return {i: frozenset(p for t in tangents if (p := at[t]) is not None) for i, tangents in found}

    def sizes(self, inputs: Sequence[Any]) -> list[int]:
        """The values of the forward's size symbols."""
        return [inputs[i] if dim is None else inputs[i].shape[dim] for i, dim in self.sources]

    def reread(self, inputs: Sequence[Any]) -> list[Any]:
        """The inputs that second derivatives need; the others are not kept alive."""
        return [x if i in self._reread else None for i, x in enumerate(inputs)]

    def symbolic_layouts(self, sizes: Sequence[int], results: Sequence[torch.Tensor]) -> list[tuple[Any, ...]]:
        """Sizes, strides, dtype and device of the tangents that the backward takes, where these depend on the forward's
        ``sizes``. A result that is a view with gaps has other strides than its tangent."""
        values = dict(zip(self.symbols, sizes, strict=True))
        found = []
        for output, meta in self._metas.items():
            strides = tuple(ex.evaluate(s, values) for s in meta.strides)
            found.append((results[output].shape, strides, meta.dtype, results[output].device))
        return found


def _no_kernel_reads(grad: torch.Tensor | None) -> bool:
    """Whether it stands for a batch of gradients (``is_grads_batched``), or is sparse."""
    return grad is not None and (grad.layout is not torch.strided or torch_private.is_wrapped(grad))


def _taken(grad: torch.Tensor | None, layout: tuple[Any, ...], wrapped: bool) -> torch.Tensor:
    """A tangent as the backward takes it."""
    if grad is None or not (wrapped or (grad.stride() == layout[1] and not grad.data_ptr() & 15)):
        return _laid_out(grad, layout)
    return grad


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
