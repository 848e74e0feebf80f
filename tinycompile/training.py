"""The pipeline for graphs whose inputs require grad: the joint graph, split in two, and each half compiled like any other
graph.

Graph -> differentiate -> joint Graph -> optimize -> partition -> forward Graph, backward Graph -> compile each -> attach

A graph that asks for gradients within it, as a whole training step does, stays one graph: its backward is written out in it.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any

import torch

from tinycompile.aot.attach import attach
from tinycompile.aot.joint import Joint, UntreatableError, differentiate
from tinycompile.aot.partition import Split, partition
from tinycompile.aot.recompute import recompute
from tinycompile.aot.replay import attach_replay, pull_back
from tinycompile.aot.saved import kept_outputs
from tinycompile.aot.second import draws_differentiably, gradient_graph
from tinycompile.aot.whole import written_out
from tinycompile.base.artifacts import Artifacts
from tinycompile.base.config import config
from tinycompile.base.logs import log
from tinycompile.compiler import CompiledGraph
from tinycompile.ir.effects import is_random, without_writes, written
from tinycompile.ir.graph import Graph, Ref
from tinycompile.ir.graph_text import print_graph
from tinycompile.ir.interpreter import run_graph
from tinycompile.ir.requires_grad import outputs_require_grad, views_of_inputs
from tinycompile.ir.verify_graph import verify_graph
from tinycompile.passes.patterns_attention import recognise_attention
from tinycompile.passes.patterns_losses import fuse_losses
from tinycompile.passes.pipeline import optimize

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
) -> CompiledGraph:
    """Compile a graph and its backward, and attach both to torch's autograd as one node.

    ``wanted``: which placeholders require grad. ``budget``: see :func:`~tinycompile.aot.partition.partition`. ``joint``
    False: for backends that take the captured graph itself; the backward then replays it, as it does for a graph that the
    joint stage can't treat. ``overwritten``: inputs that the caller writes to when the graph has run.
    """
    flags = outputs_require_grad(graph, wanted)
    if not any(flags):
        compiled = compile_one(graph, inputs, artifacts)
        if compiled.source is None and not any(written(n) for n in graph.nodes):  # a leaf can be written without gradients only
            return compiled
        # Library calls and views must not hang on the inputs: the graph cuts the tape later.
        return replace(compiled, call=torch.no_grad()(compiled.call))
    if joint:
        try:
            return _compile_halves(graph, inputs, wanted, flags, compile_one, artifacts, budget, overwritten)
        except UntreatableError as reason:
            log("graph", f"{graph.name}: the backward replays the graph, for {reason}")
    compiled = compile_one(graph, inputs, artifacts)
    aliases = compiled.source.aliases if compiled.source is not None else views_of_inputs(graph, flags)
    changed = {r.name for n in graph.nodes for r in written(n)}
    kept = [p.name in changed or i in overwritten for i, p in enumerate(graph.placeholders)]
    replay = functools.partial(_replay, without_writes(graph))
    return replace(compiled, call=attach_replay(compiled.call, replay, flags, aliases, kept))


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
    if budget < 1:
        known = frozenset(n.name for n in joint.nodes)
        joint = recompute(optimize(joint, joint=True), known, whole.backwards, budget)
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
) -> CompiledGraph:
    start = time.perf_counter()
    known = _recognise(graph, budget)
    joint = differentiate(known, wanted, flags)
    if not joint.gradients:
        raise UntreatableError("no gradient reaches an input")
    if config.verify_ir:
        verify_graph(joint.graph)
    derived, drawn, reread = gradient_graph(joint)  # before the passes, which drop detach
    joint = replace(joint, graph=optimize(joint.graph, joint=True))
    plain = known is graph
    every = frozenset(range(joint.primals))
    split = partition(joint, budget, drawn, every if joint.opaque or not plain else reread, overwritten)
    spent = time.perf_counter() - start
    artifacts["1_graph.py"] = print_graph(graph)
    artifacts.lazy("2_joint.py", lambda: print_graph(joint.graph))
    artifacts.lazy("2_forward.py", lambda: print_graph(split.forward))
    artifacts.lazy("2_backward.py", lambda: print_graph(split.backward))
    early, late = Artifacts(), Artifacts()
    forward, backward = compile_one(split.forward, inputs, early), compile_one(split.backward, (), late)
    _keep(artifacts, early, "")
    _keep(artifacts, late, "_backward")
    aliases = forward.source.aliases if forward.source is not None else views_of_inputs(split.forward, flags)
    by_hand = functools.partial(_by_hand, graph, wanted, flags, drawn)
    second = _second(graph, wanted, joint, (lambda: derived) if plain else by_hand, split, len(drawn), compile_one)
    seen = [a for a in aliases if a[0] < split.outputs]
    code = backward.source
    given_up, taken_over = (bool(code.donated), code.overwritten) if code is not None else (False, ())
    watched = kept_outputs(graph, wanted)
    again = functools.partial(_replay, split.backward) if forward.target is not None and _may_refuse(forward) else None
    call = attach(split, forward.call, backward.call, second, flags, seen, given_up, taken_over, watched, again)
    times = {"aot": spent}
    for half in (forward, backward):
        for stage, seconds in half.times.items():
            times[stage] = times.get(stage, 0.0) + seconds
    from_disk = forward.from_disk and backward.from_disk
    return replace(forward, call=call, artifacts=artifacts, backward=backward, times=times, from_disk=from_disk)


def _may_refuse(half: CompiledGraph) -> bool:
    """Whether kernels check their input: those on a CPU, where a bad index would end the process."""
    return half.device is not None and half.device.type == "cpu"


def _keep(artifacts: Artifacts, half: Artifacts, suffix: str) -> None:
    """Add the artifacts of one half, from the passes on."""
    for name in half:
        if name[0] in "3456":
            path = PurePath(name)
            artifacts.lazy(f"{path.stem}{suffix}{path.suffix}", functools.partial(half.__getitem__, name))


def _by_hand(graph: Graph, wanted: Sequence[bool], flags: Sequence[bool], drawn: Sequence[Ref]) -> Graph:
    """The gradients of a graph in which attention was recognised, with it by hand: torch differentiates its kernels once."""
    derived, random, _ = gradient_graph(differentiate(graph, wanted, flags))
    if tuple(random) != tuple(drawn):
        _refuse(graph.name, ())
    return derived


def _second(
    graph: Graph,
    wanted: Sequence[bool],
    joint: Joint,
    derived: Callable[[], Graph],
    split: Split,
    drawn: int,
    compile_one: CompileFn,
) -> Callable[[tuple[bool, ...]], Fn]:
    """The differentiable backward by which tangents require grad, compiled when it is first asked for."""
    if draws_differentiably(joint) or (joint.opaque and any(is_random(n) for n in graph.nodes)):
        return functools.partial(_refuse, graph.name)
    if joint.opaque:
        return lambda flags: functools.partial(_replayed_gradients, graph, split)

    @functools.cache
    def second(flags: tuple[bool, ...]) -> Fn:
        needs = [w and i in split.reread for i, w in enumerate(wanted)]
        again = (*needs, *(False for _ in range(drawn)), *flags)
        return compile_training(derived(), (), again, compile_one, Artifacts()).call

    return second


def _replayed_gradients(graph: Graph, split: Split, *given: Any) -> tuple[Any, ...]:
    count = len(given) - len(split.tangents)
    tangents = list(zip(split.tangents, given[count:], strict=True))
    found = pull_back(functools.partial(_replay, without_writes(graph)), given[:count], tangents, again=True)
    return tuple(found[i] for i in split.gradients)


def _refuse(name: str, flags: tuple[bool, ...]) -> Fn:
    raise NotImplementedError(
        f"second derivatives of {name}: it draws random numbers in a call whose gradient is torch's own, and they can't be "
        "drawn again"
    )


def _replay(graph: Graph, *inputs: Any) -> tuple[Any, ...]:
    return run_graph(graph, inputs)
