"""Chains of ops, symbolic sizes, names, and what ends in library calls."""

from __future__ import annotations

import pytest
import torch

import tinycompile.ops  # noqa: F401
from tests.lower.support import GraphMaker, assert_contract, run_lowered
from tinycompile.base.device import Device
from tinycompile.base.meta import TensorMeta
from tinycompile.ir.graph import Graph, Location, Node, Ref
from tinycompile.ir.loops import ExternCall, Load, Nest, Reduce, Scalar, Store
from tinycompile.ir.loops_reference import run_loops
from tinycompile.ir.loops_text import print_loops
from tinycompile.ir.verify_loops import verify_loops
from tinycompile.lower.lowering import lower
from tinycompile.ops.record import OPS
from tinycompile.ops.table import bind

pytestmark = pytest.mark.pure


def test_reads_like_the_program() -> None:
    g = GraphMaker()
    x, bias = g.input(torch.randn(4, 6), "x"), g.input(torch.randn(6), "bias")
    y = g.call("add", x, bias, name="y")
    z = g.call("sum", y, (1,), name="z")
    text = print_loops(lower(g.graph(z)))
    assert "for i0, i1 in nest('y', i0=4, i1=6):  # y" in text
    assert "y: float32 = x + bias" in text and "buf.y[i0, i1] = y" in text
    assert "for i0, i1 in nest('z', i0=4, i1=reduction(6)):  # z" in text


def test_names_never_clash_with_axes_or_sizes() -> None:
    g = GraphMaker()
    x = g.input(torch.randn(4, 6), "i1")
    y = g.call("exp", x, name="i0")
    z = g.call("mul", y, y, name="x_1")
    got = run_lowered(g.graph(y, z), g.inputs)
    assert_contract(got[1], g.values[z.name], g.exact[z.name])


def test_unit_dims_need_no_axis() -> None:
    g = GraphMaker()
    y = g.call("add", g.input(torch.randn(1, 4, 1, 3)), g.input(torch.randn(1, 1, 3)))
    (nest,) = lower(g.graph(y)).steps
    assert isinstance(nest, Nest) and [(a.name, a.extent) for a in nest.axes] == [("i0", 4), ("i1", 3)]


def test_half_is_rounded_at_the_store_alone() -> None:
    g = GraphMaker()
    x = g.input(torch.randn(64, dtype=torch.bfloat16))
    y = g.call("exp", g.call("mul", x, 0.3))
    loops = lower(g.graph(y))
    scalars = [s for n in loops.steps if isinstance(n, Nest) for s in n.body if isinstance(s, Scalar) and s.op != "cast"]
    assert scalars and all(s.dtype == torch.float32 for s in scalars)
    (got,) = run_lowered(g.graph(y), g.inputs)
    assert_contract(got, g.values[y.name], g.exact[y.name])


def test_casts_of_the_program_stay() -> None:
    g = GraphMaker()
    x = g.input(torch.randn(64))
    y = g.call("to", g.call("to", x, torch.bfloat16), torch.float32)
    (got,) = run_lowered(g.graph(y), g.inputs)
    assert torch.equal(got, g.values[y.name])


def test_unused_results_are_not_computed() -> None:
    meta = OPS["var_mean"].meta(TensorMeta.contiguous((4, 6), torch.float32, Device("cpu")), (1,))
    nodes = (
        Node("x", "placeholder", "", meta=TensorMeta.contiguous((4, 6), torch.float32, Device("cpu"))),
        Node("both", "call", "var_mean", OPS["var_mean"].schema.bind((Ref("x"), (1,)), {}), (), meta),
        Node("mean", "item", "", (Ref("both"), 1), (), meta[1]),
        Node("output", "output", "", ((Ref("mean"),),)),
    )
    loops = lower(Graph("f", nodes))
    verify_loops(loops)
    (nest,) = loops.steps
    assert [s.buffer for s in nest.body if isinstance(s, Store)] == ["mean"]
    x = torch.randn(4, 6)
    assert torch.allclose(run_loops(loops, [x])[0], x.mean(1))


def test_lines_follow_the_nodes() -> None:
    meta = TensorMeta.contiguous((3,), torch.float32, Device("cpu"))
    loc = Location("model.py", 12, "forward")
    nodes = (
        Node("x", "placeholder", "", meta=meta),
        Node("y", "call", "exp", (Ref("x"),), (), meta, loc),
        Node("output", "output", "", ((Ref("y"),),)),
    )
    loops = lower(Graph("f", nodes))
    assert loops.lines == (("y", loc),) and "# y (model.py:12)" in print_loops(loops)
    assert all(s.origin == "y" for s in loops.steps[0].body)


def test_cpu_scalar_among_cuda_tensors_is_moved() -> None:
    cuda, cpu = Device("cuda", 0), Device("cpu")
    a, b = TensorMeta.contiguous((3,), torch.float32, cuda), TensorMeta.contiguous((), torch.float32, cpu)
    nodes = (
        Node("x", "placeholder", "", meta=a),
        Node("s", "placeholder", "", meta=b),
        Node("y", "call", "mul", (Ref("x"), Ref("s")), (), a),
        Node("z", "call", "mul", (Ref("y"), Ref("s")), (), a),
        Node("output", "output", "", ((Ref("z"),),)),
    )
    loops = lower(Graph("f", nodes))
    verify_loops(loops)
    moves = [s for s in loops.steps if isinstance(s, ExternCall)]
    assert len(moves) == 1 and moves[0].target == "torch.Tensor.to"
    devices = {x.name: x.meta.device for x in loops.buffers}
    assert all(
        devices[s.buffer] == cuda for n in loops.steps if isinstance(n, Nest) for s in n.body if isinstance(s, (Load, Store))
    )


def test_dtypes_that_no_kernel_has_go_to_torch() -> None:
    g = GraphMaker()
    x = g.input(torch.randn(4, dtype=torch.complex64))
    y = Node("y", "call", "neg", (x,), (), g.metas[x.name])
    g.nodes.append(y)
    loops = lower(g.graph(Ref("y")))
    assert isinstance(loops.steps[0], ExternCall)
    assert torch.equal(run_loops(loops, g.inputs)[0], -g.inputs[0])


def test_empty_results_are_allocated_without_a_nest() -> None:
    g = GraphMaker()
    y = g.call("exp", g.input(torch.randn(3, 0, 2)))
    loops = lower(g.graph(y))
    assert [type(s) for s in loops.steps] == [ExternCall] and run_loops(loops, g.inputs)[0].shape == (3, 0, 2)


def test_reduction_over_nothing_and_over_one() -> None:
    g = GraphMaker()
    empty, one = g.input(torch.randn(3, 0)), g.input(torch.randn(3, 1))
    results = [g.call("sum", empty, (1,)), g.call("prod", empty, 1), g.call("any", empty, (1,))]
    results += [
        g.call("amax", one, (1,)),
        g.call("argmax", one, 1),
        g.call("cumsum", one, 1),
        g.call("var", one, (1,), correction=0),
    ]
    loops = lower(g.graph(*results))
    assert not any(isinstance(s, Reduce) for n in loops.steps if isinstance(n, Nest) for s in n.body)
    for got, ref in zip(run_lowered(g.graph(*results), g.inputs, passes=False), results, strict=True):
        assert_contract(got, g.values[ref.name], g.exact[ref.name])


# --- symbolic sizes ----------------------------------------------------------------------------------------------------------


def _softmax_by_hand(g: GraphMaker, x: Ref) -> Ref:
    e = g.call("exp", g.call("sub", x, g.call("amax", x, (1,), True)))
    return g.call("div", e, g.call("sum", e, (1,), True))


def _merged_and_split(g: GraphMaker, x: Ref) -> Ref:
    rows, cols = g.metas[x.name].shape
    flat = g.call("reshape", g.call("transpose", x, 0, 1), (rows * cols,))
    return g.call("exp", g.call("reshape", flat, (rows, cols)))


def _means(g: GraphMaker, x: Ref) -> Ref:
    return g.call("sub", x, g.call("mean", x, (0, 1)))


def _sliced(g: GraphMaker, x: Ref) -> Ref:
    return g.call("mul", g.call("slice", x, 1, 1), g.call("slice", x, 1, 0, -1))


@pytest.mark.parametrize("program", [_softmax_by_hand, _merged_and_split, _means, _sliced], ids=lambda f: f.__name__.strip("_"))
def test_one_lowering_runs_at_several_sizes(program) -> None:  # noqa: ANN001
    def made(shape: tuple[int, int], symbolic: bool) -> tuple[GraphMaker, Ref]:
        torch.manual_seed(1)
        g = GraphMaker()
        return g, program(g, g.input(torch.randn(shape), "x", symbolic))

    g, y = made((5, 7), True)
    loops = lower(g.graph(y))
    verify_loops(loops)
    assert {b.symbol for b in loops.sizes} == {"s5", "s7"}
    for shape in ((5, 7), (2, 9), (16, 3)):
        static, out = made(shape, False)
        (got,) = run_loops(loops, static.inputs)
        assert_contract(got, static.values[out.name], static.exact[out.name])


def test_size_input_becomes_a_number() -> None:
    g = GraphMaker()
    x = g.input(torch.randn(5, 7), "x", symbolic=True)
    rows = g.metas["x"].shape[0]
    y = g.call("mul", x, rows)
    (got,) = run_lowered(g.graph(y, rows), g.inputs)[:1]
    assert torch.equal(got, g.inputs[0] * 5)


# --- random programs ---------------------------------------------------------------------------------------------------------

_UNARY = ["neg", "abs", "relu", "sigmoid", "tanh", "square", "clone"]
_BINARY = ["add", "sub", "mul", "maximum", "minimum"]


def test_random_programs() -> None:
    """Chains and joins of pointwise ops, reductions, scans and views in all float dtypes."""
    hypothesis = pytest.importorskip("hypothesis")
    st = hypothesis.strategies

    @hypothesis.settings(max_examples=80, deadline=None, database=None)
    @hypothesis.given(
        st.data(), st.sampled_from([torch.float32, torch.float64, torch.int64]), st.sampled_from([(4, 5), (3,), (2, 3, 4), ()])
    )
    def check(data, dtype, shape) -> None:  # noqa: ANN001
        g = GraphMaker()
        made = torch.randint(-3, 4, shape).to(dtype)
        pool = [g.input(made), g.input(made.flip(0) if shape else made)]
        unary = [u for u in _UNARY if dtype.is_floating_point or u not in ("sigmoid", "tanh")]
        for _ in range(data.draw(st.integers(1, 8))):
            x = data.draw(st.sampled_from(pool))
            rank = len(g.metas[x.name].shape)
            kind = data.draw(st.sampled_from(["unary", "binary", "reduce", "scan", "transpose"]))
            if kind == "unary":
                pool.append(g.call(data.draw(st.sampled_from(unary)), x))
            elif kind == "binary":
                same = [p for p in pool if g.metas[p.name].shape == g.metas[x.name].shape]
                op = data.draw(st.sampled_from(_BINARY))
                pool.append(g.call(op, x, data.draw(st.sampled_from([*same, 2] if op in ("add", "sub", "mul") else same))))
            elif kind == "reduce" and rank:
                pool.append(
                    g.call(data.draw(st.sampled_from(["sum", "amax", "amin"])), x, (data.draw(st.integers(0, rank - 1)),), True)
                )
                pool.append(g.call("add", x, pool[-1]))
            elif kind == "scan" and rank:
                pool.append(g.call("cumsum", x, data.draw(st.integers(0, rank - 1))))
            elif rank >= 2:
                pool.append(g.call("transpose", x, 0, -1))
        results = pool[2:] or pool[:1]
        for got, ref in zip(run_lowered(g.graph(*results), g.inputs), results, strict=True):
            assert_contract(got, g.values[ref.name], g.exact[ref.name], ulp=32.0)

    check()


class TestHalfOperands:
    """Operands are cast to the common dtype before that is widened: integers and numbers may round, or become infinite."""

    SPECIAL = (float("-inf"), 1.0, -2.0, float("inf"), float("nan"), 3.3)
    OTHERS = {
        "int64": torch.tensor([2**63 - 1, 2**40 + 1, 2**31, -(2**63), 70000, 4097]),
        "int32": torch.tensor([2**20 + 3, 4097, 2049, -70001, 257, 129], dtype=torch.int32),
        "0-d": torch.tensor(70001),
        "0-d float64": torch.tensor(1e-9, dtype=torch.float64),
        "large": 2**40,
        "past half": 70001.5,
    }

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
    @pytest.mark.parametrize("other", OTHERS)
    @pytest.mark.parametrize(
        "name", ["add", "sub", "mul", "div", "fmod", "remainder", "atan2", "hypot", "floor_divide", "maximum", "eq", "lt"]
    )
    def test_as_eager(self, name: str, other: str, dtype: torch.dtype) -> None:
        g = GraphMaker()
        given = self.OTHERS[other]
        if isinstance(given, torch.Tensor):
            second = g.input(given)
        elif name in ("atan2", "hypot", "maximum"):
            pytest.skip("takes no numbers")
        else:
            second = given
        y = g.call(name, g.input(torch.tensor(self.SPECIAL, dtype=dtype)), second)
        (got,) = run_lowered(g.graph(y), g.inputs)
        assert torch.equal(got.float().nan_to_num(7.5), g.values[y.name].float().nan_to_num(7.5))

    @pytest.mark.parametrize("exponent", [0.5, -0.5, 1 / 3, 2, 3, -1])
    def test_powers_of_float16(self, exponent: float) -> None:
        g = GraphMaker()
        x = torch.tensor(self.SPECIAL, dtype=torch.float16)
        bound = bind(torch.pow, (x, exponent), {})
        assert bound is not None
        y = g.call(bound.op.name, g.input(x), *bound.args[1:])
        assert torch.equal(run_lowered(g.graph(y), g.inputs)[0].nan_to_num(7.5), g.values[y.name].nan_to_num(7.5))
