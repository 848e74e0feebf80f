"""Every op record, every sample, in float64: differentiated, split, lowered, run by the reference interpreter, judged by torch."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch

import tinycompile.eager  # noqa: F401  fills the dispatcher
from tests.lower.support import bind_sample, graph_of_call, run_eager, run_lowered, to_double
from tinycompile.aot.joint import differentiate
from tinycompile.aot.partition import Split, partition
from tinycompile.aot.requires_grad import outputs_require_grad
from tinycompile.ir.effects import is_random, written
from tinycompile.ir.graph import Graph
from tinycompile.ir.interpreter import run_graph
from tinycompile.ir.verify_graph import verify_graph
from tinycompile.ops.record import OPS, Op, Sample
from tinycompile.passes.pipeline import optimize

pytestmark = [pytest.mark.pure, pytest.mark.filterwarnings("ignore")]


def _split(graph: Graph, inputs: list[torch.Tensor]) -> Split | None:
    wanted = [t.requires_grad for t in inputs]
    joint = differentiate(graph, wanted, outputs_require_grad(graph, wanted))
    if not joint.gradients:
        return None
    verify_graph(joint.graph)
    split = partition(replace(joint, graph=optimize(joint.graph)))
    verify_graph(split.forward)
    verify_graph(split.backward)
    return split


def _gradients(op: Op, args: tuple[Any, ...], leaves: list[torch.Tensor], seeds: dict[int, torch.Tensor]) -> Any:
    results = run_eager(op.eager, args)
    pairs = [(results[i], s) for i, s in seeds.items() if results[i].requires_grad]
    if not pairs:
        return None
    return torch.autograd.grad([r for r, _ in pairs], leaves, [s for _, s in pairs], allow_unused=True)


def _check(op: Op, sample: Sample) -> None:
    torch.manual_seed(0)
    args = to_double(bind_sample(op, sample))
    args = _requiring(args)
    try:
        results = run_eager(op.eager, args)
    except Exception:  # noqa: BLE001  # what torch refuses, the meta rule refuses: tests/ops
        return
    graph, inputs = graph_of_call(op, args)
    leaves = [t for t in inputs if t.requires_grad]
    if not leaves or not any(r.requires_grad for r in results if isinstance(r, torch.Tensor)):
        return
    if any(is_random(n) or written(n) for n in graph.nodes) or any(r.is_complex() for r in (*results, *inputs)):
        return
    split = _split(graph, inputs)
    seeds = {i: torch.randn_like(results[i], memory_format=torch.contiguous_format) for i in (split.tangents if split else range(len(results))) if results[i].requires_grad}
    try:
        want = _gradients(op, args, leaves, seeds)
    except RuntimeError:
        return  # torch can't differentiate the sample
    if split is None:
        assert want is None or all(w is None or not w.abs().sum() for w in want)
        return
    plain = [t.detach() for t in inputs]
    given = run_graph(split.forward, plain)
    saved = [(plain if kind == "input" else given)[i] for kind, i in split.saved]
    tangents = [_like(seeds[i], m.meta) if i in seeds else torch.zeros(m.meta.shape, dtype=m.meta.dtype) for i, m in zip(split.tangents, split.backward.placeholders[len(saved) :], strict=True)]
    for found in (run_graph(split.backward, [*saved, *tangents]), run_lowered(split.backward, [*saved, *tangents])):
        _compare(found, want, split, inputs)


def _requiring(arg: Any) -> Any:
    if isinstance(arg, torch.Tensor):
        return arg.detach().requires_grad_() if arg.is_floating_point() else arg
    return tuple(_requiring(a) for a in arg) if isinstance(arg, tuple) else arg


def _like(seed: torch.Tensor, meta: Any) -> torch.Tensor:
    return torch.empty_strided(meta.shape, meta.strides, dtype=seed.dtype).copy_(seed)


def _compare(found: Any, want: Any, split: Split, inputs: list[torch.Tensor]) -> None:
    by_input = dict(zip(split.gradients, found, strict=True))
    expected = iter(want or [None] * len(inputs))
    for i, t in enumerate(inputs):
        if not t.requires_grad:
            continue
        got, w = by_input.get(i), next(expected)
        got = torch.zeros_like(t) if got is None else got
        w = torch.zeros_like(t) if w is None else w
        torch.testing.assert_close(got, w, rtol=1e-7, atol=1e-9, equal_nan=True, check_stride=False)


@pytest.mark.parametrize("name", sorted(OPS))
def test_record(name: str) -> None:
    """All samples of one record; the failing sample is in the message."""
    for sample in OPS[name].samples():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                _check(OPS[name], sample)
        except Exception as error:
            raise AssertionError(f"{name}: {sample}: {type(error).__name__}: {error}") from error
