"""Hooks on results of a compiled function, of which a backward needs some: called as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd.graph import register_multi_grad_hook

import tinycompile

pytestmark = pytest.mark.cpu

FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "apart": lambda x: (x * 2, x.sin(), x.exp()),
    "one_of_the_other": lambda x: (x.sin(), x.sin().cos()),
    "an_extreme": lambda x: (x.max(0)[0], x * 3),
    "a_view": lambda x: (x[1:], x.sin(), x.cos()),
    "written": lambda x: (x.sin().mul_(2), x.cos()),
}


def plain(i: int, y: Any, seen: list[Any]) -> None:
    y.register_hook(lambda g: seen.append((i, g.shape)))


def replacing(i: int, y: Any, seen: list[Any]) -> None:
    y.register_hook(lambda g: g * (i + 2))


def removed(i: int, y: Any, seen: list[Any]) -> None:
    y.register_hook(lambda g: seen.append(i)).remove()
    y.register_hook(lambda g: seen.append(("after", i)))


def retaining(i: int, y: Any, seen: list[Any]) -> None:
    y.register_hook(lambda g: g * 3)
    y.retain_grad()


@pytest.mark.parametrize("backend", [None, "aot_eager", "eager"])
@pytest.mark.parametrize("used", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("hook", [plain, replacing, removed, retaining])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_on_tensors(name: str, hook: Callable[..., None], used: tuple[int, ...], backend: Any) -> None:
    def told(fn: Callable[[Any], Any]) -> Any:
        x, seen = torch.tensor([0.1, 0.5, 0.3]).requires_grad_(), list[Any]()
        results = fn(x * 1)
        for i, y in enumerate(results):
            hook(i, y, seen)
        sum(results[i].sum() for i in used).backward()
        kept = [y.grad for y in results] if hook is retaining else []
        return sorted(map(repr, seen)), x.grad, kept

    expected, found = told(FUNCTIONS[name]), told(tinycompile.compile(FUNCTIONS[name], backend=backend))
    assert found[0] == expected[0]
    torch.testing.assert_close(found[1], expected[1])
    assert [g is None for g in found[2]] == [g is None for g in expected[2]]
    for a, b in zip(found[2], expected[2], strict=True):
        if a is not None:
            torch.testing.assert_close(a, b)


@pytest.mark.parametrize("backend", [None, "eager"])
@pytest.mark.parametrize("mode", ["all", "any"])
@pytest.mark.parametrize("used", [(0,), (1,), (0, 1)])
def test_on_several_tensors_at_once(used: tuple[int, ...], mode: Any, backend: Any) -> None:
    def told(fn: Callable[[Any], Any]) -> list[Any]:
        x, seen = torch.ones(3, requires_grad=True), list[Any]()
        results = fn(x)
        take = (lambda gs: seen.append([g is None for g in gs])) if mode == "all" else (lambda g: seen.append(g is None))
        register_multi_grad_hook(results, take, mode=mode)
        sum(results[i].sum() for i in used).backward()
        return seen

    fn = FUNCTIONS["apart"]
    found, expected = told(tinycompile.compile(fn, backend=backend)), told(fn)
    assert len(found) == len(expected)
    assert mode == "any" or found == expected
