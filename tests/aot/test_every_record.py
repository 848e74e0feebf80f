"""Every op record, every sample, in float64: differentiated, split, lowered, run by the reference interpreter, judged by
torch."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

import tinycompile.eager  # noqa: F401  fills the dispatcher
from tests.lower.support import bind_sample, graph_of_call, run_eager, run_lowered, to_double
from tinycompile.aot.joint import differentiate
from tinycompile.aot.partition import Split, partition
from tinycompile.ir.effects import is_random, written
from tinycompile.ir.graph import Graph
from tinycompile.ir.interpreter import run_graph
from tinycompile.ir.requires_grad import outputs_require_grad
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
    split = partition(replace(joint, graph=optimize(joint.graph, joint=True)))
    verify_graph(split.forward)
    verify_graph(split.backward)
    return split


def _gradients(op: Op, args: tuple[Any, ...], leaves: list[torch.Tensor], seeds: list[torch.Tensor | None]) -> Any:
    """Torch's gradients; zeros where it has none."""
    results = run_eager(op.eager, args)
    pairs = [(r, s) for r, s in zip(results, seeds, strict=True) if s is not None]
    found = torch.autograd.grad([r for r, _ in pairs], leaves, [s for _, s in pairs], allow_unused=True)
    return [torch.zeros_like(t) if g is None else g for t, g in zip(leaves, found, strict=True)]


def _scalar_gradients(op: Op, args: tuple[Any, ...], seeds: list[torch.Tensor | None]) -> Any:
    """As :func:`_gradients`, on strided inputs: torch's scalar kernels, which treat NaN in other ways than its vector
    kernels do."""
    apart = _mapped(args, lambda t: torch.stack((t, t), -1).detach()[..., 0].requires_grad_() if t.is_floating_point() else t)
    leaves = [t for t in _tensors(apart) if t.requires_grad]
    return _gradients(op, apart, leaves, seeds)


def _check(op: Op, sample: Sample) -> None:
    torch.manual_seed(0)
    args = _mapped(to_double(bind_sample(op, sample)), lambda t: t.detach().requires_grad_() if t.is_floating_point() else t)
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
    seeds = [torch.randn_like(r, memory_format=torch.contiguous_format) if r.requires_grad else None for r in results]
    try:
        want = _gradients(op, args, leaves, seeds)
    except RuntimeError:
        return  # torch can't differentiate the sample
    split = _split(graph, inputs)
    if split is None:
        assert not any(w.abs().sum() for w in want)
        return
    for found in _run(split, [t.detach() for t in inputs], seeds):
        _compare(found, want, split, inputs, lambda: _scalar_gradients(op, args, seeds))


def _run(split: Split, inputs: list[torch.Tensor], seeds: list[torch.Tensor | None]) -> Iterator[Any]:
    """The gradients by the graph's interpreter and by that of Loops."""
    given = run_graph(split.forward, inputs)
    saved = [(inputs if kind == "input" else given)[i] for kind, i in split.saved]
    tangents = []
    for i, node in zip(split.tangents, split.backward.placeholders[len(saved) :], strict=True):
        tangents.append(torch.empty_strided(node.meta.shape, node.meta.strides, dtype=node.meta.dtype).zero_())
        if (seed := seeds[i]) is not None:
            tangents[-1].copy_(seed)
    yield run_graph(split.backward, [*saved, *tangents])
    yield run_lowered(split.backward, [*saved, *tangents])


def _mapped(arg: Any, fn: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(arg, torch.Tensor):
        return fn(arg)
    return tuple(_mapped(a, fn) for a in arg) if isinstance(arg, tuple) else arg


def _tensors(arg: Any) -> Iterator[torch.Tensor]:
    if isinstance(arg, torch.Tensor):
        yield arg
    elif isinstance(arg, tuple):
        for a in arg:
            yield from _tensors(a)


def _compare(found: Any, want: Any, split: Split, inputs: list[torch.Tensor], scalar: Callable[[], Any]) -> None:
    by_input = dict(zip(split.gradients, found, strict=True))
    leaves = [(i, t) for i, t in enumerate(inputs) if t.requires_grad]
    for at, (i, t) in enumerate(leaves):
        got = by_input.get(i)
        got = torch.zeros_like(t) if got is None else got
        odd = t.isnan() & ~torch.isclose(got, want[at], equal_nan=True) if got.shape == t.shape else None
        expected = torch.where(odd, scalar()[at], want[at]) if odd is not None and odd.any() else want[at]
        torch.testing.assert_close(got, expected, rtol=1e-7, atol=1e-9, equal_nan=True, check_stride=False)


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
