"""``checkpoint`` in compiled code: one graph, eager's values and gradients, and a backward that computes again."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import tinycompile

pytestmark = pytest.mark.cpu

torchs = functools.partial(checkpoint, use_reentrant=False)
KINDS = {"torch's": torchs, "ours": tinycompile.checkpoint}


def block(*more: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.LayerNorm(64), *more, nn.Linear(64, 8), nn.Sigmoid())


def plain(fn: Any, *args: Any, **kwargs: Any) -> Any:
    return fn(*args, **kwargs)


def program(way: Any, first: nn.Module, second: nn.Module) -> Any:
    def f(x: Any) -> Any:
        return way(second, way(first, x.sin())).cos().sum()

    return f


def gradients(fn: Any, *modules: nn.Module) -> Any:
    x = torch.linspace(-1, 1, 32).reshape(4, 8).requires_grad_()
    result = fn(x)
    return [result.detach(), *torch.autograd.grad(result, [x, *(p for m in modules for p in m.parameters())])]


def saved_bytes(fn: Any) -> int:
    """What a forward keeps for its backward, parameters and the input apart."""
    kept: dict[int, int] = {}

    def note(t: torch.Tensor) -> torch.Tensor:
        if not t.requires_grad or not t.is_leaf:
            kept[t.data_ptr()] = t.numel() * t.element_size()
        return t

    x = torch.randn(4, 8, requires_grad=True)
    fn(x)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
        fn(x)
    return sum(kept.values())


@pytest.mark.parametrize("backend", [None, "aot_eager", "eager"])
@pytest.mark.parametrize("kind", KINDS)
def test_values_and_gradients(kind: str, backend: Any) -> None:
    first, second = block(), block()
    compiled = tinycompile.compile(program(KINDS[kind], first, second), backend=backend, fullgraph=True)
    torch.testing.assert_close(gradients(compiled, first, second), gradients(program(plain, first, second), first, second))


@pytest.mark.parametrize("kind", KINDS)
def test_little_is_kept(kind: str) -> None:
    """The input of each block, and nothing within it."""
    first, second = block(), block()
    whole = saved_bytes(tinycompile.compile(program(plain, first, second)))
    again = saved_bytes(tinycompile.compile(program(KINDS[kind], first, second)))
    assert again <= 2 * 4 * 8 * 4 < whole


def test_only_what_is_marked_is_computed_again() -> None:
    first, second = block(), block()

    def f(x: Any) -> Any:
        return second(torchs(first, x.sin())).sum()

    compiled = tinycompile.compile(f, fullgraph=True)
    gradients(compiled, first, second)
    products = [line for line in compiled.source("backward").splitlines() if "ops.linear(" in line]
    assert products and all("first" in line for line in products)


def test_random_numbers_are_the_same_in_the_backward() -> None:
    first, second = block(nn.Dropout(0.5)), block(nn.Dropout(0.5))
    compiled = tinycompile.compile(program(torchs, first, second), fullgraph=True)
    found = []
    for fn in (compiled, tinycompile.compile(program(plain, first, second))):
        torch.manual_seed(1)
        found.append(gradients(fn, first, second))
    torch.testing.assert_close(*found)
    assert saved_bytes(compiled) <= 2 * 4 * 8 * 4 + 2 * 8


def test_eagers_own_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tinycompile.config, "fallback_random", True)
    first, second = block(nn.Dropout(0.5)), block(nn.Dropout(0.5))
    fn = program(torchs, first, second)
    results = []
    for way in (fn, tinycompile.compile(fn, fullgraph=True)):
        torch.manual_seed(1)
        results.append((gradients(way, first, second), torch.rand(2)))
    torch.testing.assert_close(results[1], results[0])


def test_second_derivatives() -> None:
    first, second = block(), block()

    def twice(fn: Any) -> Any:
        x = torch.linspace(-1, 1, 32).reshape(4, 8).requires_grad_()
        (g,) = torch.autograd.grad(fn(x), x, create_graph=True)
        return torch.autograd.grad(g.square().sum(), x)

    fn = program(torchs, first, second)
    torch.testing.assert_close(twice(tinycompile.compile(fn, fullgraph=True)), twice(fn))


@pytest.mark.parametrize("kind", KINDS)
def test_in_a_whole_step(kind: str) -> None:
    first, second = block(), block()

    def step(x: Any) -> Any:
        loss = program(KINDS[kind], first, second)(x)
        loss.backward()
        return loss

    x = torch.linspace(-1, 1, 32).reshape(4, 8).requires_grad_()
    leaves = [x, *first.parameters(), *second.parameters()]
    compiled = tinycompile.compile(step, fullgraph=True)
    compiled(x)
    found = [t.grad for t in leaves]
    for t in leaves:
        t.grad = None
    step(x)
    torch.testing.assert_close(found, [t.grad for t in leaves])
    assert compiled.source("joint").count("ops.gelu(") == 4  # each once more


def test_without_gradients_and_with_keywords() -> None:
    def f(x: Any, y: Any) -> Any:
        return checkpoint(torch.add, x, y, alpha=2, use_reentrant=False, preserve_rng_state=False) * 2

    x, y = torch.randn(4), torch.randn(4)
    compiled = tinycompile.compile(f, fullgraph=True)
    torch.testing.assert_close(compiled(x, y), f(x, y))
    with torch.no_grad():
        torch.testing.assert_close(compiled(x.requires_grad_(), y), f(x, y))


def test_nested() -> None:
    first, second = block(), block()

    def outer(x: Any) -> Any:
        return torchs(second, torchs(first, x).sin()).cos()

    def f(x: Any) -> Any:
        return torchs(outer, x.exp()).sum()

    torch.testing.assert_close(gradients(tinycompile.compile(f, fullgraph=True), first, second), gradients(f, first, second))


def test_several_results_and_structures() -> None:
    def parts(x: Any, scale: float) -> Any:
        y = x.sin() * scale
        return {"a": y.exp(), "b": (y.cos(), x)}

    def f(x: Any) -> Any:
        made = torchs(parts, x, 2.0)
        return (made["a"] * made["b"][0] + made["b"][1]).sum()

    torch.testing.assert_close(gradients(tinycompile.compile(f, fullgraph=True)), gradients(f))


def test_what_runs_twice_in_eager_is_left_to_torch() -> None:
    """The statistics of batch normalisation are updated in the backward once more."""
    results = []
    for wrap in (lambda f: f, tinycompile.compile):
        model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU())
        for p in model.parameters():
            nn.init.constant_(p, 0.5)
        wrapped = wrap(lambda x, model=model: torchs(model, x.sin()).sum())
        x = torch.linspace(-1, 1, 32).reshape(4, 8).requires_grad_()
        wrapped(x).backward()
        results.append([x.grad, *model.state_dict().values()])
    torch.testing.assert_close(results[1], results[0])


def test_reentrant_is_left_to_torch() -> None:
    first = block()

    def f(x: Any) -> Any:
        return checkpoint(first, x.sin(), use_reentrant=True).sum()

    compiled = tinycompile.compile(f)
    x = torch.randn(4, 8, requires_grad=True)
    compiled(x).backward()
    found, x.grad = x.grad, None
    f(x).backward()
    torch.testing.assert_close(found, x.grad)
    assert any("use_reentrant" in b.reason for b in compiled.breaks)
