"""A record states what torch keeps for the gradient: each function of torch's that means the record keeps just that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tinycompile
from tests.lower.support import graph_of_call
from tests.ops.materialize import arguments
from tinycompile.aot.saved import items_of, saved_in_order
from tinycompile.ir.requires_grad import live_nodes
from tinycompile.ops.record import OPS, Op, Sample
from tinycompile.ops.table import resolve

pytestmark = [pytest.mark.cpu, pytest.mark.filterwarnings("ignore")]

SPELLED = [op for op in OPS.values() if sum(f.startswith("torch.") for f in op.functions) > 1]


def tensors_in(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for v in value for t in tensors_in(v)] if isinstance(value, (tuple, list)) else []


def kept(fn: Callable[..., Any], sample: Sample) -> frozenset[int] | None:
    """Positions of the tensors, arguments first, whose memory torch keeps; None where the function takes other arguments."""
    args, kwargs = arguments(sample.args), arguments(sample.kwargs)
    given = tensors_in([args, list(kwargs.values())])
    for t in given:
        t.requires_grad_(t.is_floating_point())
    places: list[int] = []

    def note(t: torch.Tensor) -> torch.Tensor:
        places.append(t.untyped_storage()._cdata)
        return t

    try:
        with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
            made = fn(*args, **kwargs)
    except (AttributeError, IndexError, RuntimeError, TypeError):
        return None
    return frozenset(i for i, t in enumerate([*given, *tensors_in(made)]) if t.untyped_storage()._cdata in places)


@pytest.mark.parametrize("op", SPELLED, ids=lambda op: op.name)
def test_as_the_others(op: Op) -> None:
    functions = [f for f in (resolve(name) for name in op.functions if name.startswith("torch.")) if f is not None]
    for sample in list(op.samples())[:3]:
        assert len({kept(fn, sample) for fn in functions} - {None}) <= 1


@pytest.mark.parametrize("op", [op for op in OPS.values() if op.functions], ids=lambda op: op.name)
def test_as_stated(op: Op) -> None:
    """What the records tell of torch without asking it, and what it is asked for."""
    for sample in op.samples():
        real = kept(op.eager, sample)
        args = op.schema.bind(arguments(sample.args), arguments(sample.kwargs))
        tensors = tensors_in(list(args))
        if real is None or not any(t.is_floating_point() for t in tensors) or any(t.is_complex() for t in tensors):
            continue
        graph, inputs = graph_of_call(op, tuple(tuple(a) if isinstance(a, list) else a for a in args))
        metas = {n.name: n.meta for n in graph.nodes}
        live = live_nodes(graph, [t.is_floating_point() for t in inputs])
        node = graph.nodes[len(inputs)]
        if live[node.name]:
            told = saved_in_order(node, metas, items_of(graph), live)
            assert {i for i, name in enumerate(told) if name is not None} == set(real), sample


def its_argument(x: Any, fn: Callable[..., Any]) -> Any:
    a = x * 1
    made = fn(a)
    a.mul_(2)
    return made


def its_result(x: Any, fn: Callable[..., Any]) -> Any:
    return fn(x).mul_(2)


def its_result_in_place(x: Any, fn: Callable[..., Any]) -> Any:
    a = x * 1
    getattr(a, f"{fn.__name__}_")()
    return a.mul_(2)


@pytest.mark.parametrize("edit", [its_argument, its_result, its_result_in_place], ids=lambda f: f.__name__)
@pytest.mark.parametrize("fn", [torch.sgn, torch.sign])
def test_edited_signs(fn: Callable[..., Any], edit: Callable[..., Any]) -> None:
    def outcome(call: Callable[..., Any], ours: bool) -> str:
        x = torch.tensor([0.5, -1.0, 0.0])
        leaf: Any = (tinycompile.from_torch(x) if ours else x).requires_grad_()
        try:
            call(leaf, fn).sum().backward()
        except RuntimeError as error:
            return str(error)
        return str(leaf.grad.tolist())

    expected = outcome(edit, False)
    assert outcome(edit, True) == expected
    assert outcome(tinycompile.compile(edit), False) == expected
    assert ("version" in expected) == (fn is torch.sgn)
