"""Decompose, fold, merge equal, drop dead: what each does, and what each must not do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

import tinycompile.ops  # noqa: F401
from tests.lower.support import GraphMaker, assert_contract, run_lowered
from tinycompile.base.device import Device
from tinycompile.base.errors import VerifyError
from tinycompile.base.meta import TensorMeta
from tinycompile.dispatch import dispatcher, schema
from tinycompile.ir.graph import Graph, Location, Node, Ref
from tinycompile.ir.interpreter import run_graph
from tinycompile.ir.verify_graph import verify_graph
from tinycompile.ops.calls import ops
from tinycompile.ops.record import OPS, Decompose, Op, View, register
from tinycompile.passes import pipeline
from tinycompile.passes.constants import fold_constants
from tinycompile.passes.cse import merge_equal
from tinycompile.passes.dce import drop_dead
from tinycompile.passes.decompose import decompose
from tinycompile.passes.fold import fold
from tinycompile.passes.pipeline import PASSES, optimize

pytestmark = pytest.mark.pure


def targets(graph: Graph) -> list[str]:
    return [n.target for n in graph.nodes if n.kind in ("call", "extern")]


# --- the pipeline ------------------------------------------------------------------------------------------------------------


def test_passes_in_order_and_observed() -> None:
    g = GraphMaker()
    seen: list[tuple[int, str]] = []
    optimize(g.graph(g.call("exp", g.input(torch.randn(3)))), observe=lambda i, name, graph: seen.append((i, name)))
    order = [
        "literals",
        "in_place",
        "attention",
        "masks",
        "losses",
        "epilogues",
        "chunks",
        "decompose",
        "fold",
        "constants",
        "cse",
        "dce",
    ]
    assert seen == list(enumerate(name for name, _ in PASSES)) == list(enumerate(order))


def test_a_pass_that_breaks_the_graph_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(graph: Graph) -> Graph:
        return replace(graph, nodes=(*graph.nodes[1:], graph.nodes[0]))

    monkeypatch.setattr(pipeline, "PASSES", (("shuffle", breaks),))
    g = GraphMaker()
    with pytest.raises(VerifyError, match="after the pass 'shuffle'"):
        optimize(g.graph(g.call("exp", g.input(torch.randn(3)))))


# --- decompose ---------------------------------------------------------------------------------------------------------------


def test_composites_come_apart_and_results_keep_their_names_and_lines() -> None:
    g = GraphMaker()
    y = g.call("softmax", g.input(torch.randn(4, 6)), 1, name="probs")
    loc = Location("model.py", 7, "forward")
    g.nodes[-1] = replace(g.nodes[-1], loc=loc)
    graph = decompose(g.graph(y))
    verify_graph(graph)
    assert not any(isinstance(OPS[t].lowering, Decompose) for t in targets(graph))
    assert graph.nodes[-2].name == "probs" and all(n.loc == loc for n in graph.nodes[1:-1])
    assert all(n.name.startswith("probs_") for n in graph.nodes[1:-2])
    assert torch.allclose(run_graph(graph, g.inputs)[0], g.values[y.name])


def test_items_of_a_composite_become_its_parts() -> None:
    meta = TensorMeta.contiguous((4, 6), torch.float32, Device("cpu"))
    metas = OPS["max_dim"].meta(meta, 1)
    nodes = (
        Node("x", "placeholder", "", meta=meta),
        Node("both", "call", "max_dim", (Ref("x"), 1, False), (), metas),
        Node("top", "item", "", (Ref("both"), 0), (), metas[0]),
        Node("where", "item", "", (Ref("both"), 1), (), metas[1]),
        Node("output", "output", "", ((Ref("where"), Ref("top")),)),
    )
    graph = optimize(Graph("f", nodes))
    assert {"top", "where"} <= {n.name for n in graph.nodes} and not any(n.kind == "item" for n in graph.nodes)
    x = torch.randn(4, 6)
    for got, want in zip(run_lowered(Graph("f", nodes), [x]), (x.max(1)[1], x.max(1)[0]), strict=True):
        assert torch.equal(got, want)


@pytest.fixture
def composite() -> Iterator[Any]:
    """Makes op records for one test."""
    made: list[str] = []

    def make(text: str, fn: Any, meta: Any = lambda x: x, eager: Any = torch.clone) -> str:
        op = register(Op(schema.parse(text), meta, eager, Decompose(fn)))
        dispatcher.define(op.schema)
        made.append(op.name)
        return op.name

    yield make
    for name in made:
        dispatcher.undefine(name)
        del OPS[name]


def test_a_composite_that_declines_stays_a_call(composite: Any) -> None:
    def decline(x: Any) -> Any:
        ops.exp(x)  # what it recorded before goes too
        return NotImplemented

    g = GraphMaker()
    y = g.call(composite("declines(Tensor self) -> Tensor", decline), g.input(torch.randn(3)))
    assert targets(decompose(g.graph(y))) == ["declines"]
    (got,) = run_lowered(g.graph(y), g.inputs)
    assert torch.equal(got, g.inputs[0])


def test_a_composite_with_other_strides_than_its_rule_stays_a_call(composite: Any) -> None:
    g = GraphMaker()
    x = g.input(torch.randn(4, 4))
    y = g.call(composite("turned(Tensor self) -> Tensor", lambda x: ops.transpose(x, 0, 1)), x)
    assert targets(decompose(g.graph(y))) == ["turned"]


def test_composites_of_composites(composite: Any) -> None:
    inner = composite("wrapped(Tensor self) -> Tensor", lambda x: ops.exp(ops.neg(x)), eager=lambda x: torch.exp(-x))
    outer = composite(
        "wrapping(Tensor self) -> Tensor", lambda x: getattr(ops, inner)(ops.abs(x)), eager=lambda x: torch.exp(-x.abs())
    )
    g = GraphMaker()
    y = g.call(outer, g.input(torch.randn(3)), name="y")
    graph = decompose(g.graph(y))
    assert targets(graph) == ["abs", "neg", "exp"] and graph.nodes[-2].name == "y"
    (got,) = run_lowered(graph, g.inputs)
    assert_contract(got, g.values["y"], g.exact["y"])


def test_a_composite_that_hands_its_argument_on(composite: Any) -> None:
    name = composite("handed(Tensor self) -> Tensor", lambda x: x)
    g = GraphMaker()
    x = g.input(torch.randn(3), "x")
    y = g.call("exp", g.call(name, x))
    graph = optimize(g.graph(y))
    assert targets(graph) == ["exp"] and graph.nodes[1].args[0] == Ref("x")


# --- fold --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "args", "folded"),
    [
        ("mul", (1,), True), ("mul", (1.0,), True), ("div", (1,), True), ("sub", (0,), True), ("pow_scalar", (1,), True),
        ("clone", (), True), ("view", ((3, 4),), True), ("permute", ((0, 1),), True), ("to", (torch.float32,), True),
        ("contiguous", (), True), ("identity", (), True),
        ("add", (0,), False), ("sub", (-0.0,), False), ("mul", (2,), False), ("to", (torch.float32, True), False),
        ("to", (torch.float64,), False), ("pow_scalar", (2,), False),
    ],
)  # fmt: skip
def test_fold_only_what_is_exact(op: str, args: tuple[Any, ...], folded: bool) -> None:
    g = GraphMaker()
    x = torch.tensor([[0.0, -0.0, float("nan"), float("inf")], [1.0, -2.0, 3e38, 1e-45], [1.0, 2.0, 3.0, 4.0]])
    y = g.call("signbit", g.call(op, g.input(x), *args)) if "signbit" in OPS else g.call("exp", g.call(op, g.input(x), *args))
    graph = fold(g.graph(y))
    assert (len(targets(graph)) == 1) == folded
    assert torch.equal(run_graph(graph, g.inputs)[0], g.values[y.name])


def test_a_flip_is_no_identity() -> None:
    flips = [name for name, op in OPS.items() if name == "flip" and isinstance(op.lowering, View)]
    for name in flips:
        g = GraphMaker()
        y = g.call("exp", g.call(name, g.input(torch.randn(4)), (0,)))
        assert targets(fold(g.graph(y))) == [name, "exp"]


def test_integers_keep_their_dtype() -> None:
    g = GraphMaker()
    y = g.call("neg", g.call("div", g.input(torch.tensor([1, 2])), 1))
    assert targets(fold(g.graph(y))) == ["div", "neg"]


def test_what_an_output_shows_is_not_folded() -> None:
    g = GraphMaker()
    y = g.call("mul", g.input(torch.randn(4)), 1)
    assert targets(fold(g.graph(g.call("view", y, (2, 2))))) == ["mul", "view"]


def test_a_clone_from_before_a_write_stays() -> None:
    g, x = GraphMaker(), torch.randn(3)
    a = g.input(x.clone())
    kept = g.call("clone", a)
    g.nodes.append(Node("w", "extern", "torch.Tensor.zero_", (a,), (), g.metas[a.name]))
    y = g.call("mul", kept, 2)
    (got,) = run_lowered(g.graph(y), g.inputs)
    assert torch.equal(got, x * 2)


# --- constants ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32])
def test_arithmetic_on_constants_is_done_once(dtype: torch.dtype) -> None:
    g = GraphMaker()
    a = g.call("mul", g.call("full", (3, 4), 3, dtype=dtype), g.call("scalar_tensor", 0.7))
    y = g.call("add", g.call("neg", a), g.call("full", (4,), -1.25))
    graph = optimize(g.graph(y))
    assert targets(graph) == ["full"] and graph.nodes[0].meta == g.metas[y.name]
    assert torch.equal(run_graph(graph, [])[0], g.values[y.name]) and torch.equal(run_lowered(graph, [])[0], g.values[y.name])


def test_what_is_not_constant_throughout_stays() -> None:
    g = GraphMaker()
    x, ones = g.input(torch.randn(3)), g.call("full", (3,), 1.0)
    y = g.call("add", x, ones)
    assert targets(fold_constants(g.graph(y, g.call("cumsum", ones, 0)))) == ["full", "add", "cumsum"]


def test_a_constant_call_that_torch_refuses_stays() -> None:
    meta = TensorMeta.contiguous((2,), torch.int64, Device("cpu"))
    fill = OPS["full"].schema.bind(((2,), 0), {"dtype": torch.int64})
    nodes = (
        Node("a", "call", "full", fill, (), meta),
        Node("y", "call", "remainder", (Ref("a"), Ref("a")), (), meta),
        Node("output", "output", "", ((Ref("y"),),)),
    )
    assert targets(fold_constants(Graph("f", nodes))) == ["full", "remainder"]


# --- merge equal, drop dead --------------------------------------------------------------------------------------------------


def test_equal_calls_are_made_once() -> None:
    g = GraphMaker()
    x = g.input(torch.randn(3))
    y = g.call("add", g.call("exp", g.call("neg", x)), g.call("exp", g.call("neg", x)))
    assert targets(merge_equal(g.graph(y))) == ["neg", "exp", "add"]


@pytest.mark.parametrize(("one", "two"), [(1, 1.0), (1, True), (0.0, -0.0)])
def test_numbers_that_compare_equal_are_not_the_same(one: Any, two: Any) -> None:
    g = GraphMaker()
    x = g.input(torch.tensor([1, 2]))
    y = [g.call("mul", x, one), g.call("mul", x, two)]
    assert len(targets(merge_equal(g.graph(*[g.call("neg", v) for v in y])))) == 4


def test_equal_calls_around_a_write_are_two() -> None:
    g = GraphMaker()
    x = g.input(torch.randn(3))
    first = g.call("exp", x)
    g.nodes.append(Node("w", "extern", "torch.Tensor.zero_", (x,), (), g.metas[x.name]))
    y = g.call("sub", first, g.call("exp", x))
    assert targets(merge_equal(g.graph(y))) == ["exp", "torch.Tensor.zero_", "exp", "sub"]


def test_random_calls_are_neither_merged_nor_dropped() -> None:
    if "rand_like" not in OPS:
        pytest.skip("no random record")
    g = GraphMaker()
    x = g.input(torch.randn(3))
    y = g.call("sub", g.call("rand_like", x), g.call("rand_like", x))
    g.call("rand_like", x)
    assert targets(drop_dead(merge_equal(g.graph(y)))).count("rand_like") == 3


def test_dead_calls_go_and_unknown_functions_stay() -> None:
    g = GraphMaker()
    x = g.input(torch.randn(3))
    y = g.call("exp", x)
    g.call("neg", g.call("abs", x))
    g.extern("torch.fft.fftshift", g.metas[x.name], x)
    graph = drop_dead(g.graph(y))
    assert targets(graph) == ["exp", "torch.fft.fftshift"] and len(graph.placeholders) == 1


def test_optimize_keeps_the_answer_on_a_program() -> None:
    g = GraphMaker()
    x, w = g.input(torch.randn(8, 16), "x"), g.input(torch.randn(16), "w")
    h = g.call("layer_norm", g.call("mul", x, 1), (16,), w) if "layer_norm" in OPS else g.call("mul", x, w)
    y = g.call("softmax", g.call("add", h, g.call("add", h, 0)), -1)
    graph = optimize(g.graph(y, h))
    verify_graph(graph)
    for got, ref in zip(run_lowered(graph, g.inputs), (y, h), strict=True):
        assert_contract(got, g.values[ref.name], g.exact[ref.name], ulp=4.0)
