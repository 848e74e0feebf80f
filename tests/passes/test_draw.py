"""Random calls as functions of seeds: the bits, what is made of them, and where the seeds come from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.lower.support import GraphMaker, meta_of
from tinycompile.eager.fake import tracing
from tinycompile.ir.builder import GraphBuilder
from tinycompile.ir.graph import Graph
from tinycompile.ir.interpreter import run_graph
from tinycompile.ir.verify_graph import verify_graph
from tinycompile.ops.calls import ops
from tinycompile.ops.random import FORMS
from tinycompile.ops.record import OPS
from tinycompile.ops.scalar import SCALAR_OPS
from tinycompile.ops.table import bind
from tinycompile.passes.draw import draw_in_kernels

pytestmark = pytest.mark.pure

PHILOX = SCALAR_OPS["philox"].numpy
N = 200_000


def drawn(build: Callable[[GraphMaker], Any], *inputs: torch.Tensor) -> Graph:
    g = GraphMaker()
    graph = draw_in_kernels(g.graph(build(g)))
    verify_graph(graph)
    return graph


def targets(graph: Graph) -> list[str]:
    return [n.target for n in graph.nodes if n.kind == "call"]


def test_the_published_vector() -> None:
    """Random123's known answer for counter 0 under key 0."""
    assert int(PHILOX(np.zeros(1, np.int64), np.zeros(1, np.int64))[0]) == 0x6627E8D5


def test_bits_are_even_and_streams_differ() -> None:
    """Every bit is set half of the time; other seeds and counters give other words."""
    words = PHILOX(np.full(N, -5, np.int64), np.arange(N))
    assert words.min() >= 0 and words.max() < 2**32
    share = np.array([((words >> b) & 1).mean() for b in range(32)])
    assert np.abs(share - 0.5).max() < 5 * 0.5 / N**0.5
    assert (words != PHILOX(np.full(N, -4, np.int64), np.arange(N))).mean() > 0.999
    assert len(np.unique(words)) > 0.999 * N


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", ["rand", "randn"])
def test_distributions(name: str, dtype: torch.dtype) -> None:
    """Mean and deviation within five standard errors; uniforms never reach 1."""
    graph = drawn(lambda g: g.call(name, (N,), dtype=dtype))
    torch.manual_seed(0)
    (x,) = run_graph(graph, ())
    assert x.dtype == dtype and x.shape == (N,)
    wide = x.double()
    mean, deviation = (0.5, 12**-0.5) if name == "rand" else (0.0, 1.0)
    coarse = {torch.bfloat16: 2.0**-9, torch.float16: 2.0**-12}.get(dtype, 0.0)  # half a step of the grid
    assert abs(wide.mean() - mean) < 5 * deviation / N**0.5 + coarse
    assert abs(wide.std() - deviation) < 0.01
    if name == "rand":
        assert x.min() >= 0 and x.max() < 1


@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_dropout(p: float, dtype: torch.dtype) -> None:
    """It keeps a share of 1 - p, scaled; NaN and the sign of zero are as eager's product leaves them."""
    x = torch.randn(N).to(dtype)
    x[0] = float("nan")
    graph = drawn(lambda g: g.call("dropout", g.input(x), p, True))
    (y,) = run_graph(graph, (x,))
    zero = (y == 0)[1:]
    assert abs(zero.double().mean() - p) < 5 * (p * (1 - p) / N) ** 0.5 + 1e-5
    assert y[0].isnan()
    if p < 1:
        expected = (x.double() / (1 - p)).to(dtype)[1:]
        assert torch.allclose(y[1:][~zero], expected[~zero], rtol=torch.finfo(dtype).eps, atol=0)
    assert torch.equal(torch.signbit(y[1:]), torch.signbit(x[1:]))


def test_native_dropout_tells_what_it_kept() -> None:
    x = torch.randn(1000)
    builder = GraphBuilder()
    given = builder.placeholder("x", meta_of(x))
    with tracing(builder):
        graph = draw_in_kernels(builder.finish("f", ops.native_dropout(given, 0.4, True)))
    verify_graph(graph)
    y, kept = run_graph(graph, (x,))
    assert torch.equal(y != 0, kept) and kept.dtype == torch.bool


def test_one_call_draws_all_seeds_and_each_call_has_its_own() -> None:
    x = torch.randn(1000)

    def build(g: GraphMaker) -> Any:
        given = g.input(x)
        return g.call("sub", g.call("rand_like", given), g.call("rand_like", given))

    graph = drawn(build)
    seeds = [n for n in graph.nodes if n.target == "random_seeds"]
    assert [n.args[0] for n in seeds] == [2] and not set(targets(graph)) & set(FORMS)
    (difference,) = run_graph(graph, (x,))
    assert difference.abs().max() > 0.5
    torch.manual_seed(3)
    first = run_graph(graph, (x,))[0]
    second = run_graph(graph, (x,))[0]
    torch.manual_seed(3)
    assert torch.equal(first, run_graph(graph, (x,))[0]) and not torch.equal(first, second)


def test_strides_are_torch_s() -> None:
    x = torch.randn(6, 4).t()
    graph = drawn(lambda g: g.call("rand_like", g.input(x)))
    (y,) = run_graph(graph, (x,))
    assert y.stride() == torch.rand_like(x).stride()


def test_what_has_no_form_stays() -> None:
    x = torch.randn(5)
    graph = drawn(lambda g: g.call("exp", g.input(x)))
    assert targets(graph) == ["exp"]


def test_every_form_is_of_a_record() -> None:
    assert set(FORMS) <= set(OPS)


def test_functional_spellings_bind() -> None:
    for fn, args in ((torch.rand, (2, 3)), (torch.rand, ((2, 3),)), (torch.randn, (4,)), (F.dropout, (torch.ones(3), 0.5))):
        bound = bind(fn, args, {})
        assert bound is not None and bound.op.name in FORMS
    assert bind(torch.rand, (2,), {"generator": torch.Generator()}) is None
