"""The joint graph and its partition: what is saved, what is computed again, what a smaller budget does."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tinycompile.aot.cut import INFINITE, FlowNetwork
from tinycompile.aot.joint import Joint, UntreatableError, differentiate
from tinycompile.aot.partition import Split, partition, verify_split
from tinycompile.base.device import Device
from tinycompile.base.errors import VerifyError
from tinycompile.base.meta import TensorMeta
from tinycompile.capture.frame import capture
from tinycompile.ir.graph import Graph, Node, Ref
from tinycompile.ir.interpreter import run_graph
from tinycompile.ir.requires_grad import outputs_require_grad
from tinycompile.ir.verify_graph import verify_graph
from tinycompile.passes.pipeline import optimize

pytestmark = pytest.mark.pure


def joint_of(fn: Callable[..., Any], *inputs: torch.Tensor) -> Joint:
    return joint_and_inputs(fn, *inputs)[0]


def joint_and_inputs(fn: Callable[..., Any], *inputs: torch.Tensor) -> tuple[Joint, tuple[Any, ...]]:
    """The optimized joint graph, and the inputs in the order of its primals."""
    captured = capture(fn, inputs, {})
    assert captured.graph is not None, captured.breaks
    wanted = captured.inputs_require_grad
    joint = differentiate(captured.graph, wanted, outputs_require_grad(captured.graph, wanted))
    verify_graph(joint.graph)
    return replace(joint, graph=optimize(joint.graph)), captured.example_inputs


def targets(graph: Graph) -> list[str]:
    return [n.target for n in graph.nodes if n.kind in ("call", "extern")]


def saved_names(split: Split) -> set[str]:
    results = split.forward.output.args[0]
    return {split.forward.placeholders[i].name if kind == "input" else results[i].name for kind, i in split.saved}


def saved_bytes(split: Split) -> int:
    """Bytes of results that are kept for the backward alone."""
    nodes = {n.name: n for n in split.forward.nodes}
    kept = [nodes[split.forward.output.args[0][i].name] for kind, i in split.saved if kind == "result" and i >= split.outputs]
    return sum(n.meta.numel * n.meta.dtype.itemsize for n in kept)


def leaf(*shape: int) -> torch.Tensor:
    return torch.randn(shape).requires_grad_()


def test_softmax_keeps_its_result() -> None:
    split = partition(joint_of(lambda x: torch.softmax(x, -1), leaf(8, 64)))
    assert [n.meta.shape for n in split.backward.placeholders] == [(8, 64), (8, 64)]
    assert saved_bytes(split) == 0


def test_a_pointwise_chain_is_computed_again_from_its_input() -> None:
    def fn(x):
        for _ in range(6):
            x = torch.tanh(torch.sin(x) * 1.5)
        return x

    split = partition(joint_of(fn, leaf(64, 64)))
    assert saved_names(split) == {"x"}
    assert saved_bytes(split) == 0


def test_matmuls_and_reductions_are_not_computed_again() -> None:
    def fn(x, w):
        h = torch.softmax(x @ w, -1)
        return (h * h).sum(0)

    split = partition(joint_of(fn, leaf(32, 16), leaf(16, 48)))
    assert targets(split.backward).count("matmul") + targets(split.backward).count("mm") == 2
    assert "softmax_stats" not in targets(split.backward)


def test_what_a_library_call_reads_late_is_not_written_twice() -> None:
    def fn(x, w, v):
        return F.gelu(x @ w) @ v

    split = partition(joint_of(fn, leaf(32, 16), leaf(16, 48), leaf(48, 8)))
    assert "gelu" not in targets(split.backward)
    assert len([1 for kind, _ in split.saved if kind == "result"]) == 2


def test_dropout_saves_a_mask_of_bytes() -> None:
    joint = joint_of(lambda x: F.dropout(torch.sin(x), 0.5), leaf(64, 64))
    split = partition(joint)
    assert "native_dropout" in targets(split.forward)
    assert "native_dropout" not in targets(split.backward)
    assert saved_bytes(split) == 64 * 64


def mlp(x, *weights):
    for w in weights:
        x = torch.relu(x @ w)
    return x


def test_a_smaller_budget_saves_less_and_computes_more() -> None:
    joint = joint_of(mlp, leaf(64, 32), *(leaf(32, 32) for _ in range(6)))
    splits = [partition(joint, budget) for budget in (1.0, 0.5, 0.0)]
    sizes = [saved_bytes(s) for s in splits]
    assert sizes[0] > sizes[1] > sizes[2] == 0
    assert sizes[1] <= sizes[0] / 2
    counts = [targets(s.backward).count("matmul") + targets(s.backward).count("mm") for s in splits]
    assert counts[0] < counts[1] < counts[2]


@pytest.mark.parametrize("budget", [1.0, 0.6, 0.3, 0.0])
def test_every_budget_gives_the_same_gradients(budget: float) -> None:
    inputs = [leaf(5, 4), *(leaf(4, 4) for _ in range(4))]
    joint, primals = joint_and_inputs(mlp, *inputs)
    split = partition(joint, budget)
    for half in (split.forward, split.backward):
        verify_graph(half)
    plain = [x.detach() for x in primals]
    results = run_graph(split.forward, plain)
    saved = [(plain if kind == "input" else results)[i] for kind, i in split.saved]
    seed = torch.randn(5, 4)
    got = run_graph(split.backward, [*saved, seed])
    want = torch.autograd.grad(mlp(*inputs), [primals[i] for i in split.gradients], seed)
    for g, w in zip(got, want, strict=True):
        torch.testing.assert_close(g, w)


def test_gradients_know_the_tangents_that_they_depend_on() -> None:
    split = partition(joint_of(lambda x, y: (x * 2, x * y), leaf(3), leaf(3)))
    assert split.reached == (frozenset({0, 1}), frozenset({1}))


def test_what_no_gradient_reaches_has_none() -> None:
    joint = joint_of(lambda x, y: (x * 2, (y > 0)), leaf(3), leaf(3))
    assert joint.gradients == (0,)


def test_detach_cuts() -> None:
    joint = joint_of(lambda x: x * torch.exp(x).detach(), leaf(3))
    assert targets(joint.graph).count("mul") == 2


def test_complex_values_and_writes_are_untreatable() -> None:
    meta = TensorMeta.contiguous((4,), torch.float32, Device("cpu"))
    x = Node("x", "placeholder", "", meta=meta)
    spectrum = Node("y", "extern", "torch.fft.fft", (Ref("x"),), meta=replace(meta, dtype=torch.complex64))
    write = Node("y", "extern", "torch.Tensor.exp_", (Ref("x"),), meta=meta)
    output = Node("output", "output", "", ((Ref("y"),),))
    for node, why in ((spectrum, "complex"), (write, "writes")):
        with pytest.raises(UntreatableError, match=why):
            differentiate(Graph("f", (x, node, output)), (True,), (True,))


def test_verify_split_notices_a_missing_input() -> None:
    split = partition(joint_of(lambda x: torch.exp(x), leaf(3)))
    with pytest.raises(VerifyError):
        verify_split(replace(split, saved=()))
    with pytest.raises(VerifyError):
        verify_split(replace(split, gradients=()))


def test_minimum_cut_against_all_cuts() -> None:
    rng = random.Random(0)
    for _ in range(60):
        count = 6
        edges = [(a, b, rng.randint(1, 9)) for a in range(count) for b in range(count) if a != b and rng.random() < 0.4]
        net = FlowNetwork()
        for _ in range(count):
            net.node()
        for a, b, c in edges:
            net.edge(a, b, c)
        beyond = net.sink_side(0, count - 1)
        assert beyond[count - 1] and not beyond[0]

        def cost(side: tuple[bool, ...]) -> int:
            return sum(c for a, b, c in edges if not side[a] and side[b])  # noqa: B023

        assert cost(tuple(beyond)) == min(cost((False, *s, True)) for s in product((False, True), repeat=count - 2))


def test_infinite_edges_are_never_cut() -> None:
    net = FlowNetwork()
    source, sink, middle = net.node(), net.node(), net.node()
    net.edge(source, middle, INFINITE)
    net.edge(middle, sink, 5)
    assert net.sink_side(source, sink) == [False, True, False]
