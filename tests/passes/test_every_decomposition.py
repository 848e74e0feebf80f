"""Every Decompose record, every sample: its parts give exactly the metadata that its own rule promises."""

from __future__ import annotations

import pytest

import tinycompile.ops  # noqa: F401
from tests.lower.support import bind_sample, graph_of_call, run_eager
from tinycompile.base.meta import TensorMeta
from tinycompile.eager.fake import FakeTensor, tracing
from tinycompile.ir.builder import GraphBuilder, map_refs
from tinycompile.ops.record import OPS, Decompose

pytestmark = [pytest.mark.pure, pytest.mark.filterwarnings("ignore:.*degrees of freedom")]


@pytest.mark.parametrize("name", sorted(n for n, op in OPS.items() if isinstance(op.lowering, Decompose)))
def test_parts_match_the_rule(name: str) -> None:
    op = OPS[name]
    assert isinstance(op.lowering, Decompose)
    for sample in op.samples():
        args = bind_sample(op, sample)
        try:
            run_eager(op.eager, args)
        except (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError):
            continue
        graph, _ = graph_of_call(op, args)
        builder = GraphBuilder()
        fakes = {n.name: builder.placeholder(n.name, n.meta) for n in graph.placeholders}
        call = next(n for n in graph.nodes if n.kind == "call")
        with tracing(builder):
            result = op.lowering.fn(*map_refs(call.args, lambda r: fakes[r.name]))
        if result is NotImplemented:
            continue
        several = isinstance(call.meta, tuple)
        metas = tuple(r.meta for r in result) if several else (result.meta,)
        assert all(isinstance(r, FakeTensor) for r in (result if several else (result,))), sample
        wanted: tuple[TensorMeta, ...] = call.meta if several else (call.meta,)
        assert metas == wanted, sample
