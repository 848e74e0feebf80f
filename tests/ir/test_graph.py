"""Graph IR: building, printing, verifying and running."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tinycompile.base.device import Device
from tinycompile.base.errors import VerifyError
from tinycompile.base.meta import TensorMeta
from tinycompile.base.shapes import ShapeEnv
from tinycompile.dispatch import dispatcher
from tinycompile.eager.fake import tracing
from tinycompile.ir.builder import GraphBuilder, UniqueNames, identifier, inputs_of, size_sources
from tinycompile.ir.graph import Graph, Location, Node, Ref
from tinycompile.ir.graph_text import literal, print_graph
from tinycompile.ir.interpreter import run_graph
from tinycompile.ir.verify_graph import verify_graph

pytestmark = pytest.mark.pure
CPU = Device("cpu")


def meta(*shape, dtype=torch.float32):
    return TensorMeta.contiguous(shape, dtype, CPU)


def small_graph() -> Graph:
    b = GraphBuilder()
    x, y = b.placeholder("x", meta(4, 8)), b.placeholder("self.weight", meta(8))
    b.location = Location("model.py", 7, "forward")
    h = dispatcher.call("add", x, y)
    b.rename(h.ref, "h")
    b.location = Location("model.py", 8, "forward")
    values, indices = dispatcher.call("max_dim", h, 1) if dispatcher.is_defined("max_dim") else (dispatcher.call("sum", h), h)
    out = dispatcher.call("mul", h, 2.5)
    return b.finish("forward", [out, values, indices, x])


def test_names_come_from_hints():
    g = small_graph()
    names = [n.name for n in g.nodes]
    assert names[:3] == ["x", "self_weight", "h"] and names[-1] == "output" and "mul" in names
    assert [n.name for n in g.placeholders] == ["x", "self_weight"]
    assert g.nodes[2].loc == Location("model.py", 7, "forward")


def test_a_good_graph_verifies_and_runs():
    g = small_graph()
    verify_graph(g)
    x, w = torch.randn(4, 8), torch.randn(8)
    out = run_graph(g, (x, w))
    torch.testing.assert_close(out[0], (x + w) * 2.5)
    assert out[3] is x
    seen = []
    run_graph(g, (x, w), lambda node, value: seen.append(node.name))
    assert seen[0] == "h"
    with pytest.raises(TypeError, match="takes 2 inputs, got 1"):
        run_graph(g, (x,))


def test_printing_gives_the_graph_back():
    """The printed function, run under tracing, records the same graph."""
    g = small_graph()
    text = print_graph(g)
    assert "# model.py:7 in forward" in text and "# float32[4, 8] cpu" in text
    space: dict = {}
    exec(compile(text, "graph", "exec"), space)
    b = GraphBuilder()
    with tracing(b):
        outputs = space["forward"](*(b.placeholder(n.name, n.meta) for n in g.placeholders))
    again = b.finish("forward", outputs)
    assert [(n.kind, n.target, n.meta) for n in again.nodes] == [(n.kind, n.target, n.meta) for n in g.nodes]


def test_printing_runs_on_torch_tensors_too():
    g = small_graph()
    space: dict = {}
    exec(compile(print_graph(g), "graph", "exec"), space)
    x, w = torch.randn(4, 8), torch.randn(8)
    for got, want in zip(space["forward"](x, w), run_graph(g, (x, w))):
        torch.testing.assert_close(got, want)


def test_extern_nodes():
    b = GraphBuilder()
    x = b.placeholder("x", meta(4, 8))
    out = b.extern("torch.fft.rfft", [x], {"dim": -1}, meta(4, 5, dtype=torch.complex64))
    parts = b.extern("torch.Tensor.sort", [x], {}, (meta(4, 8), meta(4, 8, dtype=torch.int64)))
    g = b.finish("f", [out, *parts])
    verify_graph(g)
    t = torch.randn(4, 8)
    assert torch.equal(run_graph(g, (t,))[0], torch.fft.rfft(t, dim=-1))
    assert torch.equal(run_graph(g, (t,))[2], t.sort()[1])
    assert "torch.fft.rfft(x, dim=-1)" in print_graph(g)


def test_symbolic_sizes():
    env = ShapeEnv()
    with env.active():
        s = env.new_size("s0", 6)
        b = GraphBuilder()
        x = b.placeholder("x", meta(s, 8))
        n = b.placeholder("n", None, "size")
        assert n == Ref(n.name)
        out = dispatcher.call("view", x, (s * 8,))
        g = b.finish("f", [out], env.hints)
    verify_graph(g)
    assert size_sources(g) == {"s0": ("x", 0), "n": ("n", None)} and g.hints == (("s0", 6),)
    assert run_graph(g, (torch.randn(3, 8), 5))[0].shape == (24,)
    assert "s0 = x.shape[0]  # 6 at capture" in print_graph(g)


def broken(g: Graph, at: int, **changes) -> Graph:
    nodes = list(g.nodes)
    nodes[at] = replace(nodes[at], **changes)
    return replace(g, nodes=tuple(nodes))


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (lambda g: broken(g, 2, name="x"), "the name is taken"),
        (lambda g: broken(g, 2, name="1h"), "no identifier"),
        (lambda g: broken(g, 2, name="class"), "no identifier"),
        (lambda g: broken(g, 2, kind="thing"), "unknown kind"),
        (lambda g: broken(g, 2, target="no_such_op"), "no op"),
        (lambda g: broken(g, 2, args=(Ref("later"), *g.nodes[2].args[1:])), "before it is defined"),
        (lambda g: broken(g, 2, args=g.nodes[2].args[:1]), "arguments, defaults filled in"),
        (lambda g: broken(g, 2, args=(*g.nodes[2].args[:-1], [1])), "no place in a graph"),
        (lambda g: broken(g, 2, kwargs=(("alpha", 2),)), "no keyword arguments"),
        (lambda g: broken(g, 2, meta=meta(4, 9)), "the shape rule gives"),
        (lambda g: broken(g, 0, meta=meta(8, 8)), "'h': the shape rule gives"),
        (lambda g: broken(g, 1, name="weight"), "'h': uses 'self_weight' before it is defined"),
        (lambda g: replace(g, nodes=g.nodes[:-1]), "one output node"),
        (lambda g: replace(g, nodes=(g.nodes[2], *g.nodes)), "placeholders come first"),
        (
            lambda g: replace(g, nodes=(*g.nodes[:-1], Node("i", "item", "", (Ref("h"), 0), meta=meta(4)), g.nodes[-1])),
            "no result 0",
        ),
    ],
)
def test_the_verifier_names_the_rule(change, rule):
    """Also where it need not ask again of what stood in the graph before."""
    good = small_graph()
    verify_graph(good)
    for verified in (None, good):
        with pytest.raises(VerifyError, match=rule):
            verify_graph(change(good), verified)


def test_identifiers():
    assert identifier('self.layers["0"].weight') == "self_layers_0_weight"
    assert identifier("<lambda>") == "lambda_" and identifier("0") == "v_0" and identifier("") == "v"
    names = UniqueNames({"x"})
    assert [names.take("x"), names.take("x"), names.take("y")] == ["x_1", "x_2", "y"]


def test_literals_are_python():
    for value in (1, 2.5, float("inf"), True, None, "s", (1, (2,)), Device("cuda", 1), torch.float16, torch.channels_last):
        space = {"torch": torch, "Device": Device, "inf": float("inf")}
        assert eval(literal(value), space) == value


def test_inputs_of_looks_inside_tuples_and_kwargs():
    node = Node("n", "extern", "torch.cat", ((Ref("a"), Ref("b")), 1), (("k", Ref("c")),))
    assert [r.name for r in inputs_of(node)] == ["a", "b", "c"]


def test_a_slice_is_refused():
    b = GraphBuilder()
    x = b.placeholder("x", meta(4))
    with pytest.raises(TypeError, match="slice"):
        b.extern("torch.Tensor.__getitem__", [x, slice(1)], {}, meta(1))
