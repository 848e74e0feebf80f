"""The pipeline for graphs whose inputs require grad: the joint graph, split in two, and each half compiled like any other
graph.

Graph -> differentiate -> joint Graph -> optimize -> partition -> forward Graph, backward Graph -> compile each -> attach

A graph that asks for gradients within it, as a whole training step does, stays one graph: its backward is written out in it.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any

import torch

from tinycompile.aot.anomaly import by_lines, named_by_line
from tinycompile.aot.attach import attach
from tinycompile.aot.copies import with_copies
from tinycompile.aot.exposed import copied_for_gradients, with_exposed
from tinycompile.aot.joint import Joint, UntreatableError, differentiate
from tinycompile.aot.late import Late
from tinycompile.aot.partition import Split, partition
from tinycompile.aot.pullback import Derived, Pullback, part_of, places_of, whole_of, zeros_will_do
from tinycompile.aot.recompute import recompute
from tinycompile.aot.replay import attach_replay, outside_of_gradients, pull_back
from tinycompile.aot.saved import freed_behind, inputs_behind, inputs_behind_saved, kept_by_torch
from tinycompile.aot.saving import to_compute_again
from tinycompile.aot.second import draws_differentiably, gradient_graph
from tinycompile.aot.whole import written_out
from tinycompile.backends import graph_devices
from tinycompile.base.artifacts import Artifacts
from tinycompile.base.config import config
from tinycompile.base.errors import BackendError
from tinycompile.base.logs import log
from tinycompile.compiler import CompiledGraph, stage_times
from tinycompile.ir.builder import size_sources
from tinycompile.ir.effects import is_random, may_alias, without_writes, written
from tinycompile.ir.graph import Graph, Ref
from tinycompile.ir.graph_text import print_graph
from tinycompile.ir.interpreter import run_graph
from tinycompile.ir.requires_grad import inputs_with_gradients, outputs_require_grad, views_of_inputs
from tinycompile.ir.verify_graph import verify_graph
from tinycompile.passes.fold import fold
from tinycompile.passes.patterns_attention import recognise_attention
from tinycompile.passes.patterns_losses import fuse_losses
from tinycompile.passes.pipeline import optimize
from tinycompile.runtime.ahead import building

Fn = Callable[..., tuple[Any, ...]]
CompileFn = Callable[[Graph, Sequence[Any], Artifacts], CompiledGraph]


def compile_training(
    graph: Graph,
    inputs: Sequence[Any],
    wanted: Sequence[bool],
    compile_one: CompileFn,
    artifacts: Artifacts,
    *,
    budget: float = 1.0,
    joint: bool = True,
    overwritten: frozenset[int] = frozenset(),
    taken_over: Sequence[frozenset[str]] = (),
    exposed: frozenset[int] = frozenset(),
) -> CompiledGraph:
    """Compile a graph and its backward, and attach both to torch's autograd as one node.

    ``wanted``: which placeholders require grad. ``budget``: see :func:`~tinycompile.aot.partition.partition`. ``joint``
    False: for backends that take the captured graph itself; the backward then replays it, as it does for a graph that the
    joint stage can't treat. ``overwritten``: inputs that the caller writes to when the graph has run, and ``taken_over``: the
    graph's values that lie in one's memory at the end. ``exposed``: inputs whose memory may be written to through other
    tensors, by the graph or behind it.
    """
    flags = outputs_require_grad(graph, wanted)
    if not any(flags):
        compiled = compile_one(graph, inputs, artifacts)
        as_captured = compiled.source is None and compiled.graph is graph  # the passes drop what cuts the tape
        if as_captured and not any(written(n) for n in graph.nodes):  # a leaf can be written without gradients only
            return compiled
        # Library calls and views must not hang on the inputs: the graph cuts the tape later.
        return replace(
            compiled, call=outside_of_gradients(compiled.call, _aliases(compiled, graph, flags), _may_be_views(graph))
        )
    if joint:
        try:
            later = overwritten, taken_over, exposed
            return _compile_halves(graph, inputs, wanted, flags, compile_one, artifacts, budget, *later)
        except UntreatableError as reason:
            log("graph", f"{graph.name}: the backward replays the graph, for {reason}")
    draws = any(map(is_random, graph.nodes))
    compiled = _op_by_op(graph, artifacts) if draws and joint else compile_one(graph, inputs, artifacts)
    aliases = _aliases(compiled, graph, flags)
    rewritten = overwritten | _written_by(graph)
    kept = [i in rewritten for i in range(len(graph.placeholders))]
    replay = functools.partial(_replay, without_writes(graph))
    freed = functools.cache(functools.partial(freed_behind, graph, tuple(wanted)))
    read = functools.cache(functools.partial(inputs_behind_saved, without_writes(graph), tuple(wanted)))
    drawing = [d.torch() for d in graph_devices(graph)] if draws else None
    led = inputs_with_gradients(graph, wanted) if compiled.source is None else None  # library calls may hang on inputs
    saving = functools.partial(kept_by_torch, graph, tuple(wanted), taken_over)
    watched = saving(ask=False)
    call = attach_replay(
        compiled.call, replay, flags, aliases, kept, read, freed, drawing, led, watched, saving, exposed - rewritten
    )
    return replace(compiled, call=named_by_line(graph, call))


def _op_by_op(graph: Graph, artifacts: Artifacts) -> CompiledGraph:
    """Its random numbers are those that torch's own ops draw."""
    artifacts["1_graph.py"] = print_graph(graph)
    return CompiledGraph(graph, None, None, functools.partial(_replay, graph), None, artifacts)


def on_torchs_tape(graph: Graph, artifacts: Artifacts) -> CompiledGraph:
    """Torch's own ops, one by one, for what torch's engine is to go through behind the graph."""
    log("graph", f"{graph.name}: runs op by op, for gradients of its values are asked of torch's engine")
    artifacts["1_graph.py"] = print_graph(graph)
    return CompiledGraph(graph, None, None, by_lines(graph), None, artifacts)


def _recognise(graph: Graph, budget: float) -> Graph:
    """What is one call for its gradient's sake, too. A loss in chunks costs its backward one more product, so it is for those
    who want memory for time."""
    known = recognise_attention(graph, training=True)
    return fuse_losses(known) if budget < 1 else known


def compile_whole(
    graph: Graph, inputs: Sequence[Any], compile_one: CompileFn, artifacts: Artifacts, *, budget: float = 1.0
) -> CompiledGraph:
    """Compile a graph in which gradients are asked for: a training step. Nothing of it is left to torch's autograd. ``budget``:
    see :func:`~tinycompile.aot.recompute.recompute`."""
    start = time.perf_counter()
    whole = written_out(_recognise(graph, budget))
    joint = whole.graph
    if budget < 1 or graph.recomputed:
        known = frozenset(n.name for n in joint.nodes)
        joint = optimize(joint, joint=True)
        again = to_compute_again({n.name: n for n in joint.nodes[:-1]}, {n.name for n in graph.nodes}, graph.recomputed)
        joint = recompute(joint, known, whole.backwards, budget, again)
    if config.verify_ir:
        verify_graph(joint)
    spent = time.perf_counter() - start
    compiled = compile_one(joint, inputs, artifacts)
    artifacts["1_graph.py"] = print_graph(graph)
    artifacts.lazy("2_joint.py", lambda: print_graph(joint))
    return replace(compiled, call=torch.no_grad()(compiled.call), times={"aot": spent, **compiled.times})


def _compile_halves(
    graph: Graph,
    inputs: Sequence[Any],
    wanted: Sequence[bool],
    flags: Sequence[bool],
    compile_one: CompileFn,
    artifacts: Artifacts,
    budget: float,
    overwritten: frozenset[int],
    taken_over: Sequence[frozenset[str]],
    exposed: frozenset[int],
) -> CompiledGraph:
    start = time.perf_counter()
    known = _recognise(graph, budget)
    rewritten = overwritten | _written_by(graph)
    spared = exposed - rewritten
    recorded = differentiate(known, wanted, flags, bool(spared))
    if not recorded.gradients:
        raise UntreatableError("no gradient reaches an input")
    if config.verify_ir:
        verify_graph(recorded.graph)
    _, drawn, reread = gradient_graph(recorded)  # before the passes, which drop detach
    ask_torch = functools.partial(kept_by_torch, graph, tuple(wanted), taken_over)
    watched = [k for k in ask_torch(ask=False) if k.place[0] == "output" or k.place[1] not in rewritten]
    kept = frozenset(k.place[1] for k in (ask_torch() if spared else ()) if k.place[0] == "input")
    optimized = functools.partial(_optimized, exposed=spared, kept=kept)
    joint = with_copies(optimized(recorded), overwritten)
    every = frozenset(range(joint.primals))
    reading = every if joint.opaque or known is not graph else reread
    split = partition(joint, budget, drawn, reading, {n.name for n in known.nodes}, graph.recomputed)
    spent = time.perf_counter() - start
    artifacts["1_graph.py"] = print_graph(graph)
    artifacts.lazy("2_joint.py", lambda: print_graph(joint.graph))
    artifacts.lazy("2_forward.py", lambda: print_graph(split.forward))
    artifacts.lazy("2_backward.py", lambda: print_graph(split.backward))
    early, late = Artifacts(), Artifacts()
    halves = ((split.forward, inputs, early), (split.backward, (), late))
    try:
        with building():  # the forward's kernels while the backward is generated
            forward, backward = (compile_one(*half) for half in halves)
    except BackendError:  # of a kernel, at the end: in turn, so that each half does without what can't be built
        forward, backward = (compile_one(*half) for half in halves)
    _keep(artifacts, early, "")
    _keep(artifacts, late, "_backward")
    aliases = _aliases(forward, split.forward, flags)
    seen = [a for a in aliases if a[0] < split.outputs]
    refusing = forward.target is not None and _may_refuse(forward)
    pull = Pullback(backward.call, *whole_of(split), _by_ops(split.backward), refusing, *_given_up(backward))
    program = _Program(known, graph, tuple(wanted), tuple(flags), tuple(drawn), bool(spared), compile_one)
    part = _parts(program, split, joint, pull, refusing, optimized)
    freed = functools.cache(functools.partial(freed_behind, graph, program.wanted))
    second = _second(program, split, joint)
    changed = rewritten | (spared & copied_for_gradients(joint))
    changed &= inputs_behind(graph, split.tangents) if changed else changed
    call = attach(split, forward.call, pull, part, second, flags, seen, watched, ask_torch, freed, changed, wanted)
    times = {"aot": spent, **stage_times((forward, backward))}
    from_disk = forward.from_disk and backward.from_disk
    call = named_by_line(graph, call)
    return replace(forward, call=call, artifacts=artifacts, backward=backward, times=times, from_disk=from_disk)


def _optimized(recorded: Joint, exposed: AbstractSet[int], kept: AbstractSet[int]) -> Joint:
    """The joint graph behind the passes. ``exposed``, ``kept``: as in ``exposed.py``."""
    if exposed:  # first without what is in the memory of another already
        recorded = with_exposed(replace(recorded, graph=fold(recorded.graph, recorded.past)), exposed, kept)
    return replace(recorded, graph=optimize(recorded.graph, joint=True, apart=recorded.copies.keys()))


def _may_refuse(half: CompiledGraph) -> bool:
    """Whether kernels check their input: those on a CPU, where a bad index would end the process."""
    return half.device is not None and half.device.type == "cpu"


def _keep(artifacts: Artifacts, half: Artifacts, suffix: str) -> None:
    """Add the artifacts of one half, from the passes on."""
    for name in half:
        if name[0] in "3456":
            path = PurePath(name)
            artifacts.lazy(f"{path.stem}{suffix}{path.suffix}", functools.partial(half.__getitem__, name))


def _aliases(compiled: CompiledGraph, graph: Graph, flags: Sequence[bool]) -> tuple[tuple[int, int], ...]:
    """``(output, input)`` pairs where an output is a view of an input."""
    return compiled.source.aliases if compiled.source is not None else views_of_inputs(graph, flags)


def _may_be_views(graph: Graph) -> frozenset[int]:
    """Positions of the outputs that may share memory with something else."""
    sharing = {n.name for n in graph.nodes[:-1] if n.kind != "placeholder" and may_alias(n)}
    return frozenset(i for i, r in enumerate(graph.output.args[0]) if isinstance(r, Ref) and r.name in sharing)


def _written_by(graph: Graph) -> frozenset[int]:
    """The inputs that a graph writes to."""
    names = {r.name for n in graph.nodes for r in written(n)}
    return frozenset(i for i, p in enumerate(graph.placeholders) if p.name in names)


def _given_up(half: CompiledGraph) -> tuple[bool, Sequence[int]]:
    return (bool(half.source.donated), half.source.overwritten) if half.source is not None else (False, ())


def _by_ops(graph: Graph) -> Fn:
    return functools.partial(_replay, graph)


@dataclass(frozen=True)
class _Program:
    """A graph that is differentiated (``known``, with attention recognised in ``graph``), for backwards that are compiled when
    they are first needed. ``flags``: which outputs depend on an input that requires grad; ``drawn``: its random numbers;
    ``exposed``: whether inputs are."""

    known: Graph
    graph: Graph
    wanted: tuple[bool, ...]
    flags: tuple[bool, ...]
    drawn: tuple[Ref, ...]
    exposed: bool
    compile_one: CompileFn

    def of_some(
        self,
        split: Split,
        sizes: Mapping[str, int],
        defined: frozenset[int],
        reached: frozenset[int] | None = None,
        by_hand: bool = False,
    ) -> Joint:
        """The joint graph of the outputs whose tangents are ``defined``, for these sizes. ``reached``: the inputs whose
        gradients are needed, None for all of them. ``by_hand``: torch differentiates its kernels once."""
        outputs = {split.tangents[i] for i in defined}
        wanted = [w and (reached is None or i in reached) for i, w in enumerate(self.wanted)]
        depend = self.flags if reached is None else outputs_require_grad(self.graph, wanted)
        flags = [f and i in outputs for i, f in enumerate(depend)]
        graph = self.graph if by_hand else self.known
        exposed = self.exposed and not by_hand
        here = replace(graph, hints=tuple({**dict(graph.hints), **sizes}.items()))
        return differentiate(here, wanted, flags, exposed, again=by_hand)


def _parts(
    program: _Program, split: Split, joint: Joint, pull: Pullback, refusing: bool, optimized: Callable[[Joint], Joint]
) -> Callable[[Sequence[int], frozenset[int], frozenset[int] | None], Pullback]:
    """The backward for some of the tangents, or of some of the gradients, compiled when it is first needed."""

    def part(sizes: Mapping[str, int], defined: frozenset[int], reached: frozenset[int] | None) -> Pullback:
        if reached is None and zeros_will_do(split, frozenset(range(len(split.tangents))) - defined):
            return pull
        recorded = program.of_some(split, sizes, defined, reached)
        found = part_of(split, joint, optimized(recorded))
        if found is None:
            log("graph", f"{split.backward.name}: undefined gradients are taken for zeros")
            return pull
        made = program.compile_one(found.graph, (), Artifacts())
        more = (_by_ops(found.graph), refusing, *_given_up(made))
        return Pullback(made.call, found.numbers, found.saved, found.tangents, found.places, *more)

    return Late(tuple(size_sources(split.forward)), part)


def _second(
    program: _Program, split: Split, joint: Joint
) -> Callable[[Sequence[int], frozenset[int], tuple[bool, ...], frozenset[int] | None], Derived]:
    """The differentiable backward by which tangents are defined and require grad, compiled when it is first needed."""
    if draws_differentiably(joint) or (joint.opaque and any(is_random(n) for n in program.graph.nodes)):
        return functools.partial(_refuse, program.graph.name)
    if joint.opaque:
        places = tuple(range(len(split.gradients)))
        return functools.partial(_replayed, program.graph, split, places)

    def second(
        sizes: Mapping[str, int], defined: frozenset[int], flags: tuple[bool, ...], reached: frozenset[int] | None
    ) -> Derived:
        recorded = program.of_some(split, sizes, defined, reached, by_hand=True)
        derived, drawn, reread = gradient_graph(recorded)
        if not set(drawn) <= set(program.drawn):
            _refuse(program.graph.name)
        needs = [w and i in split.reread for i, w in enumerate(program.wanted)]
        again = (*needs, *(False for _ in drawn), *flags)
        call = compile_training(derived, (), again, program.compile_one, Artifacts()).call
        random = tuple(program.drawn.index(r) for r in drawn)
        return Derived(call, _by_ops(derived), random, reread, places_of(split, recorded))

    return Late(tuple(size_sources(split.forward)), second)


def _replayed(
    graph: Graph,
    split: Split,
    places: tuple[int | None, ...],
    sizes: Sequence[int],
    defined: frozenset[int],
    flags: tuple[bool, ...],
    reached: frozenset[int] | None,
) -> Derived:
    """The same, by torch's own tape of the graph."""
    reads = inputs_behind(graph, [split.tangents[i] for i in defined])
    call = functools.partial(_replayed_gradients, graph, split, sorted(defined))
    return Derived(call, call, (), reads, places)


def _replayed_gradients(graph: Graph, split: Split, defined: Sequence[int], *given: Any) -> tuple[Any, ...]:
    count = len(given) - len(defined)
    tangents = list(zip([split.tangents[i] for i in defined], given[count:], strict=True))
    found = pull_back(functools.partial(_replay, without_writes(graph)), given[:count], tangents, again=True)
    return tuple(found[i] for i in split.gradients)


def _refuse(name: str, *_: Any) -> Derived:
    raise NotImplementedError(
        f"second derivatives of {name}, and backwards one after the other without retain_graph: it draws random numbers in a "
        "call whose gradient is torch's own, and they can't be drawn again"
    )


def _replay(graph: Graph, *inputs: Any) -> tuple[Any, ...]:
    return run_graph(graph, inputs)
