"""Short lists of numbers on a device are arithmetic; what is no such list stays a call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.codegen.triton.test_shared_rows import captured, on_cuda
from tinycompile.ir.graph import Graph
from tinycompile.passes.literals import spell_literals

pytestmark = pytest.mark.pure


def last(x: Tensor) -> Tensor:
    return x[:, [-1]]


def weighted(x: Tensor) -> Tensor:
    return x * torch.tensor([[1.0, 2.5], [-3.0, float("nan")]])


def equal(x: Tensor) -> Tensor:
    return x + torch.tensor([7, 7])


def flags(x: Tensor) -> Tensor:
    return torch.where(torch.tensor([True, False]), x, 0.0)


def typed(x: Tensor) -> Tensor:
    return x * torch.tensor((0.5, 2), dtype=torch.float16)


def long(x: Tensor) -> Tensor:
    return x.sum() + torch.tensor(list(range(9)))


def empty(x: Tensor) -> tuple[Tensor, Tensor]:
    return x, torch.tensor([])


def calls(graph: Graph) -> list[str]:
    return [n.target for n in graph.nodes if n.kind == "extern"]


def spelled(fn: Callable[..., Any]) -> tuple[Graph, Graph]:
    graph = on_cuda(captured(fn, torch.ones(2, 2)))
    return graph, spell_literals(graph)


@pytest.mark.parametrize("fn", [last, weighted, equal, flags, typed])
def test_lists_are_written_out(fn: Callable[..., Any]) -> None:
    before, after = spelled(fn)
    assert "torch.tensor" in calls(before) and "torch.tensor" not in calls(after)
    assert [n.meta for n in after.nodes if n.name in {b.name for b in before.nodes}] == [n.meta for n in before.nodes]


@pytest.mark.parametrize("fn", [long, empty])
def test_others_stay(fn: Callable[..., Any]) -> None:
    before, after = spelled(fn)
    assert "torch.tensor" in calls(before) and before == after


def test_on_a_cpu_the_call_waits_for_nothing() -> None:
    graph = captured(last, torch.ones(2, 2))
    assert spell_literals(graph) == graph


@pytest.mark.cpu
@pytest.mark.parametrize("fn", [last, weighted, equal, flags, typed])
def test_values(fn: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The arithmetic itself, on a CPU: each value as torch makes it."""
    from tinycompile.ir.interpreter import run_graph
    from tinycompile.passes import literals

    graph = captured(fn, torch.ones(2, 2))
    real = literals._numbers
    monkeypatch.setattr(literals, "_numbers", lambda node: real(_elsewhere(node)))
    x = torch.tensor([[1.5, -2.0], [0.25, 3.0]])
    after = spell_literals(graph)
    assert "torch.tensor" not in calls(after)
    (got,) = run_graph(after, [x])
    torch.testing.assert_close(got, fn(x), equal_nan=True, rtol=0, atol=0)


def _elsewhere(node: Any) -> Any:
    """The node as if it were on a GPU."""
    from dataclasses import replace

    from tinycompile.base.device import Device
    from tinycompile.base.meta import TensorMeta

    return replace(node, meta=replace(node.meta, device=Device("cuda", 0))) if isinstance(node.meta, TensorMeta) else node
