"""Gradients of compiled functions and models against eager's, in float64."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn

import tinycompile
from tests.aot.models import FUNCTIONS, Case, ConvBlock, GptBlock, leaf, several_outputs

pytestmark = pytest.mark.cpu

each = pytest.mark.parametrize("case", FUNCTIONS, ids=lambda c: c.name)
backends = pytest.mark.parametrize("backend", [None, "aot_eager"], ids=["cpp", "aot_eager"])


def outputs_of(value: Any) -> list[torch.Tensor]:
    """The outputs that carry gradients."""
    several = value if isinstance(value, (tuple, list)) else (value,)
    return [t for t in several if t.requires_grad]


def gradients(fn: Callable[..., Any], inputs: Sequence[Any], seeds: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
    leaves = [x for x in inputs if isinstance(x, torch.Tensor) and x.requires_grad]
    outs = outputs_of(fn(*inputs))
    return list(torch.autograd.grad(outs, leaves, seeds, allow_unused=True))


def seeds_for(fn: Callable[..., Any], inputs: Sequence[Any]) -> list[torch.Tensor]:
    return [torch.randn_like(o, memory_format=torch.contiguous_format) for o in outputs_of(fn(*inputs))]


def assert_same(got: Sequence[torch.Tensor | None], want: Sequence[torch.Tensor | None]) -> None:
    assert len(got) == len(want)
    for g, w in zip(got, want, strict=True):
        assert (g is None) == (w is None)
        if w is not None:
            torch.testing.assert_close(g, w, rtol=1e-9, atol=1e-10, equal_nan=True)


@backends
@each
def test_first_derivatives(case: Case, backend: str | None) -> None:
    inputs = case.inputs()
    f = tinycompile.compile(case.fn, fullgraph=True, backend=backend)
    for got, want in zip(outputs_of(f(*inputs)), outputs_of(case.fn(*inputs)), strict=True):
        torch.testing.assert_close(got, want, equal_nan=True)
        assert got.stride() == want.stride()
    seeds = seeds_for(case.fn, inputs)
    assert_same(gradients(f, inputs, seeds), gradients(case.fn, inputs, seeds))
    assert f.source("backward"), "the backward was not captured"


@each
def test_second_derivatives(case: Case) -> None:
    inputs = case.inputs()
    f = tinycompile.compile(case.fn, fullgraph=True, backend="aot_eager")
    seeds = [s.requires_grad_() for s in seeds_for(case.fn, inputs)]
    leaves = [x for x in inputs if x.requires_grad]

    def twice(fn: Callable[..., Any]) -> list[torch.Tensor | None]:
        outs = outputs_of(fn(*inputs))
        first = torch.autograd.grad(outs, leaves, seeds, create_graph=True, allow_unused=True)
        some = [g for g in first if g is not None and g.requires_grad]
        return list(torch.autograd.grad([(g * g).sum() for g in some], [*leaves, *seeds], allow_unused=True))

    assert_same(*([z if z is not None else torch.zeros(()) for z in side] for side in _aligned(twice(f), twice(case.fn))))


def _aligned(a: list[Any], b: list[Any]) -> tuple[list[Any], list[Any]]:
    """An undefined second derivative is as good as zeros."""
    pairs = [
        (torch.zeros_like(y) if x is None else x, torch.zeros_like(x) if y is None else y)
        for x, y in zip(a, b, strict=True)
        if x is not None or y is not None
    ]
    return [x for x, _ in pairs], [y for _, y in pairs]


def test_third_derivative() -> None:
    def fn(x):
        return torch.sin(x) * x**3

    f = tinycompile.compile(fn, backend="aot_eager")
    results = []
    for g in (f, fn):
        x = torch.linspace(-1, 2, 5, dtype=torch.float64, requires_grad=True)
        y = g(x).sum()
        for _ in range(3):
            (y,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        results.append(y.detach())
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("module", [GptBlock, ConvBlock], ids=["gpt_block", "conv_block"])
@backends
def test_models(module: type[nn.Module], backend: str | None) -> None:
    model = module().double()
    inputs = (
        (torch.randint(0, 13, (2, 6)), torch.randint(0, 13, (2, 6)))
        if module is GptBlock
        else (torch.randn(2, 3, 8, 8, dtype=torch.float64, requires_grad=True),)
    )
    compiled = tinycompile.compile(model, fullgraph=True, backend=backend)
    seed = torch.randn_like(model(*inputs))
    parameters = list(model.parameters())
    got = torch.autograd.grad(compiled(*inputs), parameters, seed)
    want = torch.autograd.grad(model(*inputs), parameters, seed)
    assert_same(got, want)


def test_training_lowers_the_loss_as_eager_does() -> None:
    losses = []
    for compiled in (False, True):
        torch.manual_seed(3)
        model = GptBlock()
        step = tinycompile.compile(model) if compiled else model
        optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
        tokens, targets = torch.randint(0, 13, (4, 6)), torch.randint(0, 13, (4, 6))
        for _ in range(10):
            optimizer.zero_grad()
            loss = step(tokens, targets)
            loss.backward()
            optimizer.step()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


@pytest.mark.parametrize("pattern", list(itertools.product([True, False], repeat=2)), ids=str)
def test_requires_grad_patterns(pattern: tuple[bool, bool]) -> None:
    f = tinycompile.compile(several_outputs)
    inputs = [torch.randn(3, 4, requires_grad=r) for r in pattern]
    got, want = f(*inputs), several_outputs(*inputs)
    assert [g.requires_grad for g in got] == [w.requires_grad for w in want]
    if any(pattern):
        seeds = seeds_for(several_outputs, inputs)
        for g, w in zip(gradients(f, inputs, seeds), gradients(several_outputs, inputs, seeds), strict=True):
            torch.testing.assert_close(g, w)


def test_symbolic_sizes() -> None:
    def fn(x, w):
        return torch.softmax(x @ w, -1).cumsum(0).mean(0), x.reshape(-1) * 2

    f = tinycompile.compile(fn)
    for n in (3, 5, 6, 9):
        inputs = leaf(n, 4), leaf(4, 7)
        seeds = seeds_for(fn, inputs)
        assert_same(gradients(f, inputs, seeds), gradients(fn, inputs, seeds))
    assert f.cache_info()["entries"] == 2
