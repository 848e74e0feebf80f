"""Backends that run torch's own ops: torch's tape follows them, and no node of ours stands in between; others get one."""

from __future__ import annotations

import pytest
import torch

import tinycompile
from tinycompile.aot.followed import reach

pytestmark = pytest.mark.cpu


def by_ops(graph_module, inputs):
    return graph_module


def untracked(graph_module, inputs):
    """As generated code is."""
    return torch.no_grad()(lambda *xs: graph_module(*xs))


def numbers_only(graph_module, inputs):
    """Torch's tape comes to the first input alone."""
    return lambda x, *rest: graph_module(x, *(r.detach() for r in rest))


PROGRAMS = {
    "two inputs": lambda x, w: (x * w).sin(),
    "input returned": lambda x, w: (x, x + w),
    "view": lambda x, w: (x.view(-1), (x * w).exp()),
    "cut": lambda x, w: (x.detach() * w, w.detach() + 1),
    "constant": lambda x, w: (x * w, torch.ones(2)),
    "integers": lambda x, w: (x * w, (x > w).long()),
    "one input unused": lambda x, w: x * 2,
    "inner no_grad": lambda x, w: _under_no_grad(x, w),
    "written": lambda x, w: _written(x, w),
    "random": lambda x, w: torch.nn.functional.dropout(x * w, 0.5),
}


def _under_no_grad(x, w):
    with torch.no_grad():
        y = x * w
    return y * w


def _written(x, w):
    y = x * 1
    y.mul_(w)
    return y.sin_()


def _gradients(fn, leaf: bool):
    torch.manual_seed(0)
    x, w = (torch.randn(3, 2, generator=torch.Generator().manual_seed(i)).requires_grad_() for i in range(2))
    given = (x, w) if leaf else (x * 1.5, w.exp())
    found = fn(*given)
    outs = found if isinstance(found, tuple) else (found,)
    loss = sum((o.reshape(-1).cos().sum() for o in outs if o.requires_grad), torch.zeros(()))
    return [o.requires_grad for o in outs], torch.autograd.grad(loss, (x, w), allow_unused=True)


@pytest.mark.parametrize("leaf", [True, False], ids=["leaves", "results"])
@pytest.mark.parametrize("backend", ["eager", by_ops, untracked, numbers_only])
@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_are_eagers(name: str, backend, leaf: bool) -> None:
    fn = tinycompile.compile(PROGRAMS[name], backend=backend, fullgraph=True)
    flags, expected = _gradients(PROGRAMS[name], leaf)
    for _ in range(3):
        found_flags, found = _gradients(fn, leaf)
        assert found_flags == flags
        for a, b in zip(found, expected, strict=True):
            assert (a is None and b is None) or torch.equal(a, b)


@pytest.mark.parametrize(("backend", "nodes"), [("eager", 0), (by_ops, 0), (untracked, 1), (numbers_only, 1)])
def test_who_needs_a_node(backend, nodes: int) -> None:
    fn = tinycompile.compile(PROGRAMS["two inputs"], backend=backend)
    x, w = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    for _ in range(2):
        assert ("Replayed" in type(fn(x, w).grad_fn).__name__) == nodes


@pytest.mark.parametrize("backend", [by_ops, untracked])
def test_the_code_runs_once_a_call(backend) -> None:
    calls = []

    def counting(graph_module, inputs):
        run = backend(graph_module, inputs)
        return lambda *xs: calls.append(1) or run(*xs)

    fn = tinycompile.compile(PROGRAMS["two inputs"], backend=counting)
    for n in range(1, 4):
        fn(torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True))
        assert len(calls) == n


def test_what_a_backward_reaches() -> None:
    a, b, c = (torch.ones(2, requires_grad=True) for _ in range(3))
    d = b * 2
    assert reach([a * d], [a, d]) and reach([a * d], [a]) and reach([a], [a]) and reach([d], [d])
    assert not reach([a * d], [a, d, b]), "what lies behind an input is not the call's"
    assert not reach([a * d], [a, c]) and not reach([a * d.detach()], [a, d]) and not reach([], [a])
