"""``trace``, graph editing, ``Interpreter``, ``Transformer``, and ``compile`` of a graph module."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tinycompile
from tests.capture import corpus
from tinycompile.base.errors import GraphBreakError
from tinycompile.ir.graph import Graph
from tinycompile.ops.calls import ops

pytestmark = pytest.mark.cpu

GENERATOR = torch.Generator().manual_seed(0)
X, W = torch.randn(4, 6, generator=GENERATOR), torch.randn(6, 5, generator=GENERATOR)


def block(x, w, scale=2.0):
    h = torch.relu(x @ w)
    top, at = torch.max(h, 1)
    return {"h": h * scale, "top": [top, at], "rows": h.shape[0]}


def same(a, b):
    assert type(a) is type(b)
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        return all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


def test_a_traced_function_is_called_like_the_function():
    module = tinycompile.trace(block, X, w=W)
    assert same(module(X, w=W), block(X, W)) and same(module(X, W), block(X, W))
    with pytest.raises(TypeError, match="block"):
        module(X)


def test_copies_and_pickles():
    module = tinycompile.trace(block, X, W)
    assert same(copy.deepcopy(module)(X, W), block(X, W))
    with pytest.raises(TypeError, match="its graph can: pickle .graph"):
        pickle.dumps(module)
    again = pickle.loads(pickle.dumps(tinycompile.GraphModule(pickle.loads(pickle.dumps(module.graph)))))
    assert again.graph == module.graph and torch.equal(again(X, W)[0], block(X, W)["h"])


def test_nothing_is_run_by_trace():
    counter = torch.zeros(())
    tinycompile.trace(lambda x: counter.add_(1) + x, X)
    assert counter.item() == 0


def test_a_break_tells_the_whole_story():
    with pytest.raises(GraphBreakError, match=r"data-dependent[\s\S]*test_graphs\.py"):
        tinycompile.trace(lambda x: x.sum().item() + 1, X)
    with pytest.raises(TypeError, match="only Python functions"):
        tinycompile.trace(3)


def test_the_printed_graph_runs():
    module = tinycompile.trace(block, X, W)
    space: dict[str, object] = {}
    exec(module.code, space)
    for got, want in zip(space["block"](X, W), module.graph.output.args[0], strict=True):
        assert isinstance(got, torch.Tensor) and want
    assert repr(module) == module.code


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Linear(6, 6), nn.LayerNorm(6)
        self.register_buffer("shift", torch.ones(6))

    def forward(self, x):
        return self.norm(F.gelu(self.first(x))) + self.shift


def test_a_module_is_traced_with_its_parameters_and_hooks():
    net = Net()
    module = tinycompile.trace(net, X)
    assert torch.equal(module(X), net(X))
    with torch.no_grad():
        net.first.weight.zero_()
        net.shift.add_(1)
    assert torch.equal(module(X), net(X))
    net.register_forward_hook(lambda m, args, out: out * 3)
    assert torch.equal(tinycompile.trace(net, X)(X), net(X))


def test_dynamic_dims_stay_symbols():
    x = torch.randn(4, 6)
    tinycompile.mark_dynamic(x, 0)
    module = tinycompile.trace(lambda x: x.reshape(x.shape[0] * 2, 3) + x.shape[0], x)
    y = torch.randn(9, 6)
    assert torch.equal(module(y), y.reshape(18, 3) + 9)
    editor = module.edit()
    for node in editor.find("add"):
        editor.replace(node, editor.call("mul", node, 2, after=node))
    assert torch.equal(module.with_graph(editor.finish())(y), (y.reshape(18, 3) + 9) * 2)
    compiled = tinycompile.compile(module)
    for rows in (4, 5, 7, 9):
        y = torch.randn(rows, 6)
        assert torch.equal(compiled(y), module(y))
    assert len(compiled.graphs) == 2


# --- editing ------------------------------------------------------------------------------------------------


def test_insert_replace_erase():
    module = tinycompile.trace(block, X, W)
    editor = module.edit()
    (relu,) = editor.find("relu")
    with pytest.raises(ValueError, match="read by"):
        editor.erase(relu)
    editor.replace(relu, editor.call("sigmoid", relu, after=relu))
    graph = editor.finish()
    h = torch.sigmoid(torch.relu(X @ W))
    assert torch.equal(module.with_graph(graph)(X, W)["h"], h * 2)
    assert module.graph.nodes != graph.nodes and same(module(X, W), block(X, W))  # the old one is as it was
    assert next(n for n in graph.nodes if n.target == "sigmoid").loc == relu.loc


def test_results_of_a_call_of_several():
    module = tinycompile.trace(block, X, W)
    editor = module.edit()
    (found,) = editor.find("max_dim")
    values, at = editor.call("min_dim", *found.args, after=found)
    old_values, old_at = editor.users(found)
    editor.replace(old_values, values)
    editor.replace(old_at, at)
    editor.erase(found)
    low = torch.min(torch.relu(X @ W), 1)
    assert same(module.with_graph(editor.finish())(X, W)["top"], [low.values, low.indices])


def test_shapes_and_dtypes_downstream_follow():
    module = tinycompile.trace(lambda x: torch.relu(x + 1).sum(0), X)
    editor = module.edit()
    (add,) = editor.find("add")
    editor.replace(add, editor.call("to", add, torch.float64, after=add))
    graph = editor.finish()
    assert graph.nodes[-2].meta.dtype == torch.float64
    assert module.with_graph(graph)(X).dtype == torch.float64


def test_set_args_set_output_and_dead_nodes():
    module = tinycompile.trace(lambda x: (x + 1) * 2, X)
    editor = module.edit()
    (add,), (mul,) = editor.find("add"), editor.find("mul")
    editor.set_args(add, add.args[0], 10)
    editor.set_output(add)
    assert editor.erase_dead() == 1 and not editor.find("mul") and mul.name not in [n.name for n in editor.nodes]
    assert torch.equal(module.with_graph(editor.finish())(X), X + 10)


def test_extern_nodes_are_inserted_and_worked_out_again():
    module = tinycompile.trace(lambda x: torch.fft.fft(x).abs(), X)
    assert any(n.kind == "extern" for n in module.graph.nodes)
    editor = module.edit()
    placeholder = editor.nodes[0]
    doubled = editor.call("cat", [placeholder, placeholder], 1, after=placeholder)
    editor.replace(placeholder, doubled)
    assert torch.equal(module.with_graph(editor.finish())(X), torch.fft.fft(torch.cat([X, X], 1)).abs())
    editor = module.edit()
    (fft,) = editor.find("torch.fft.fft")
    editor.replace(fft, editor.extern("torch.fft.ifft", fft, after=fft))
    torch.testing.assert_close(module.with_graph(editor.finish())(X), X.abs())


@pytest.mark.parametrize(
    ("edit", "error", "match"),
    [
        (lambda e: e.call("no_such_op", e.nodes[0]), KeyError, "no_such_op"),
        (lambda e: e.call("add", e.nodes[0]), TypeError, "missing"),
        (lambda e: e.call("matmul", e.nodes[0], e.nodes[0]), RuntimeError, "cannot be multiplied"),
        (lambda e: e.node("nobody"), KeyError, "nobody"),
        (lambda e: e.erase(e.output), ValueError, "output"),
        (lambda e: e.erase(e.nodes[0]), ValueError, "read by"),
        (lambda e: e.call("relu", e.nodes[0], before=e.nodes[1], after=e.nodes[1]), ValueError, "not both"),
        (lambda e: (e.call("relu", e.find("mul")[0], before=e.find("add")[0], name="early"), e.set_output("early"), e.finish()),
         Exception, "mul|early"),
    ],
    ids=["no op", "few arguments", "shapes", "no node", "the output", "in use", "two places", "too early"],
)  # fmt: skip
def test_a_wrong_edit_is_refused(edit, error, match):
    with pytest.raises(error, match=match):
        edit(tinycompile.trace(lambda x: (x + 1) * 2, X).edit())


def test_a_traced_module_keeps_its_inputs_and_outputs():
    module = tinycompile.trace(lambda x: x + 1, X)
    editor = module.edit()
    editor.placeholder("y", X)
    with pytest.raises(ValueError, match="1 inputs"):
        module.with_graph(editor.finish())
    plain = tinycompile.GraphModule(editor.finish())
    assert torch.equal(plain(X, X)[0], X + 1)
    assert torch.equal(plain(y=X, x=X)[0], X + 1)


# --- Interpreter and Transformer ------------------------------------------------------------------------------


class Kinds(tinycompile.Interpreter):
    """Notes which method is called for which node."""

    def __init__(self, graph):
        super().__init__(graph)
        self.seen: list[tuple[str, str]] = []

    def placeholder(self, node, value):
        self.seen.append(("placeholder", node.kind))
        return super().placeholder(node, value)

    def call(self, node, args):
        self.seen.append(("call", node.kind))
        return super().call(node, args)

    def extern(self, node, args, kwargs):
        self.seen.append(("extern", node.kind))
        return super().extern(node, args, kwargs)

    def item(self, node, results, index):
        self.seen.append(("item", node.kind))
        return super().item(node, results, index)

    def output(self, node, values):
        self.seen.append(("output", node.kind))
        return super().output(node, values)


def test_an_interpreter_has_a_method_for_each_kind():
    module = tinycompile.trace(lambda x: torch.fft.fft(torch.max(x, 1)[0]), X)
    run = Kinds(module)
    (result,) = run.run(X)
    assert torch.equal(result, module(X))
    assert all(method == kind for method, kind in run.seen) and len({m for m, _ in run.seen}) == 5


@pytest.mark.parametrize("name", sorted(corpus.CASES)[::4])
def test_a_transformer_copies_a_graph(name):
    fn, make = corpus.CASES[name]
    graph = tinycompile.trace(fn, *make()).graph
    assert tinycompile.Transformer(graph).transform() == graph


def test_a_transformer_puts_ops_in_the_place_of_others():
    class Wide(tinycompile.Transformer):
        def call(self, node, args):
            if node.target == "matmul":
                return ops.to(ops.matmul(*(ops.to(a, torch.float64) for a in args)), torch.float32)
            if node.target == "relu":
                return torch.where(args[0] > 0, args[0], args[0] * 0)
            return super().call(node, args)

    module = tinycompile.trace(block, X, W)
    wide = module.with_graph(Wide(module).transform())
    want = torch.relu((X.double() @ W.double()).float()) * 2
    assert torch.equal(wide(X, W)["h"], want)


# --- compiling ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "cpp"])
def test_a_graph_module_is_compiled(backend):
    module = tinycompile.trace(block, X, W)
    compiled = tinycompile.compile(module, backend=backend, fullgraph=True)
    for _ in range(2):
        assert same({k: v for k, v in compiled(X, W).items() if k != "h"}, {k: v for k, v in block(X, W).items() if k != "h"})
    assert compiled.cache_info()["entries"] == 1
    assert compiled.explain(X, W).graph is not None and "test_graphs.py" in compiled.source("graph")
    assert [n.name for n in compiled.graphs[0].nodes if n.kind == "call"] == [
        n.name for n in module.graph.nodes if n.kind == "call"
    ]


def test_gradients_flow_through_a_compiled_graph_module():
    net, twin = Net(), Net()
    twin.load_state_dict(net.state_dict())
    compiled = tinycompile.compile(tinycompile.trace(net, X))
    compiled(X).square().sum().backward()
    twin(X).square().sum().backward()
    for p, q in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad)


def test_a_graph_module_inside_a_compiled_function():
    module = tinycompile.trace(lambda x: torch.relu(x) + 1, X)

    @tinycompile.compile(fullgraph=True, backend="eager")
    def outer(x):
        return module(x * 2) / 2

    assert torch.equal(outer(X), (torch.relu(X * 2) + 1) / 2)
    assert [n.target for n in outer.graphs[0].nodes if n.kind == "call"] == ["mul", "relu", "add", "div"]


def test_a_hand_made_graph_is_compiled():
    x = tinycompile.trace(lambda x, y: x + y, X, X).graph
    graph = Graph("sum", x.nodes, x.hints)
    compiled = tinycompile.compile(tinycompile.GraphModule(graph), fullgraph=True)
    assert torch.equal(compiled(X, X)[0], X + X)
    assert torch.equal(compiled(W, W)[0], W + W)  # the graph says nothing of sizes; its rules run again


def test_writes_to_inputs_stay():
    def count(x, total):
        total.add_(x.sum())
        return x * total

    module = tinycompile.trace(count, X, torch.zeros(()))
    for run in (module, tinycompile.compile(module)):
        total, want = torch.ones(()), torch.ones(())
        torch.testing.assert_close(run(X, total), count(X, want))
        torch.testing.assert_close(total, want)


def test_a_backend_gets_a_graph_module():
    seen = []

    def backend(module, inputs):
        seen.append(module)
        editor = module.edit()
        for node in editor.find("relu"):
            editor.replace(node, editor.call("neg", node, after=node))
        return module.with_graph(editor.finish())

    compiled = tinycompile.compile(lambda x: torch.relu(x), backend=backend)
    assert torch.equal(compiled(X), -torch.relu(X))
    assert isinstance(seen[0], tinycompile.GraphModule)
