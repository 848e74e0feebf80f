"""Every Decompose record, every sample: its parts give exactly the metadata that its own rule promises."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import tinycompile.ops  # noqa: F401
from tests.lower.support import bind_sample, graph_of_call, run_eager
from tinycompile.base.meta import TensorMeta
from tinycompile.eager.fake import FakeTensor, tracing
from tinycompile.ir.builder import GraphBuilder, map_refs, refs_in
from tinycompile.ops.record import OPS, Decompose, View
from tinycompile.passes.decompose import decompose

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


def tensors(args: Any) -> Iterator[torch.Tensor]:
    if isinstance(args, torch.Tensor):
        yield args
    elif isinstance(args, (list, tuple)):
        for a in args:
            yield from tensors(a)


def cut(args: Any, to: Callable[[torch.Tensor, int], bool]) -> Any:
    """The arguments with each tensor's dims for which ``to`` holds cut to one element."""
    if isinstance(args, torch.Tensor):
        return args[tuple(slice(1) if to(args, d) else slice(None) for d in range(args.dim()))].clone()
    return type(args)(cut(a, to) for a in args) if isinstance(args, (list, tuple)) else args


def sizes_of_one(args: Any) -> Iterator[Any]:
    """The arguments, and with all dims, one of them, and all but one cut to one element: turned round, and yet laid out alike."""
    yield from (args, cut(args, lambda t, d: True))
    for at in range(max((t.dim() for t in tensors(args)), default=0)):
        yield from (cut(args, lambda t, d, at=at: d == at), cut(args, lambda t, d, at=at: d != at))  # type: ignore[misc]


@pytest.mark.parametrize("name", sorted(n for n, op in OPS.items() if isinstance(op.lowering, Decompose)))
def test_parts_share_no_memory_that_torchs_result_has_to_itself(name: str) -> None:
    op = OPS[name]
    for args in (a for sample in op.samples() for a in sizes_of_one(bind_sample(op, sample))):
        try:
            want = run_eager(op.eager, args)
            graph = decompose(graph_of_call(op, args)[0])
        except (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError):
            continue
        memory = {t.untyped_storage().data_ptr() for t in tensors(args)}
        made = {n.name: n for n in graph.nodes}
        for ref, result in zip(refs_in(graph.output.args), want, strict=True):
            node = made[ref.name]
            while node.kind == "call" and isinstance(OPS[node.target].lowering, View):
                node = made[node.args[0].name]
            if node.kind == "placeholder" and result.numel():
                assert result.untyped_storage().data_ptr() in memory, [t.shape for t in tensors(args)]
