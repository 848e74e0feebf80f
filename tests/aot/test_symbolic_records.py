"""Every record's gradient under symbolic sizes: it pins no size that the call alone does not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import tinycompile.eager  # noqa: F401  fills the dispatcher
from tests.aot.test_every_record import _mapped, _split
from tests.lower.support import bind_sample, run_eager
from tests.lower.test_symbolic_records import REFUSALS, _symbolic_graph, _usable
from tinycompile.base.shapes import ShapeEnv
from tinycompile.ir.effects import is_random, written
from tinycompile.lower.lowering import lower
from tinycompile.ops.record import OPS, Op, Sample
from tinycompile.passes.pipeline import optimize

pytestmark = [pytest.mark.pure, pytest.mark.filterwarnings("ignore")]
SHARED_HEADS = "attention_backward"  # its own gradient asks how many heads share one of keys


def _other_sizes(env: ShapeEnv) -> Iterator[dict[str, int]]:
    """Each alone is another, or all are."""
    for step in (1, 3, 6):
        for chosen in (*([name] for name in env.hints), list(env.hints)):
            yield {name: size + step * (name in chosen) for name, size in env.hints.items()}


def _check(op: Op, sample: Sample) -> None:
    args = _mapped(bind_sample(op, sample), lambda t: t.detach().requires_grad_() if t.is_floating_point() else t)
    try:
        results = run_eager(op.eager, args)
    except REFUSALS:
        return
    if not any(r.requires_grad for r in results if isinstance(r, torch.Tensor)) or any(r.is_complex() for r in results):
        return
    alone, both = ShapeEnv(), ShapeEnv()
    with alone.active():
        graph, _ = _symbolic_graph(op, args, alone)
        lower(optimize(graph))
    with both.active():
        graph, inputs = _symbolic_graph(op, args, both)
        if any(is_random(n) or written(n) for n in graph.nodes):
            return
        split = _split(graph, inputs)
        for half in () if split is None else (split.forward, split.backward):
            lower(half)
    more = [r for r in both.relations if r not in alone.relations]
    for sizes in _other_sizes(alone):
        if all(r.fits(sizes) for r in alone.relations):
            pins = [str(r) for r in more if not r.fits(sizes)]
            assert not pins, (sizes, pins)


@pytest.mark.parametrize("name", sorted(set(OPS) - {SHARED_HEADS}))
def test_gradient_pins_no_more_than_the_call(name: str) -> None:
    for sample in filter(_usable, OPS[name].samples()):
        try:
            _check(OPS[name], sample)
        except Exception as error:
            raise AssertionError(f"{name}: {sample}: {type(error).__name__}: {error}") from error
