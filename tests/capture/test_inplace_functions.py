"""Functions of torch.nn.functional that are told to write in place, by position or by name."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import tinycompile
from tinycompile import config

pytestmark = pytest.mark.cpu

EARLIER: dict[str, tuple[Any, ...]] = {"threshold": (0.5, 0.0)}
NAMES = sorted(
    name
    for name, fn in vars(F).items()
    if name[0] != "_" and inspect.isfunction(fn) and "inplace" in inspect.signature(fn).parameters
)


@pytest.fixture(autouse=True)
def torchs_numbers() -> Iterator[None]:
    config.fallback_random = True
    yield
    config.fallback_random = False


def arguments(name: str, positional: bool, training: bool) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Those behind the tensor."""
    known = dict(zip(("threshold", "value"), EARLIER.get(name, ()), strict=False))
    given: dict[str, Any] = {}
    for p in list(inspect.signature(getattr(F, name)).parameters.values())[1:]:
        given[p.name] = {"inplace": True, "training": training}.get(p.name, known.get(p.name, p.default))
    if positional and list(given)[-1] == "inplace":
        return tuple(given.values()), {}
    return (), given


def outcome(name: str, fn: Any, leaf: Any, gradient: Any) -> Any:
    torch.manual_seed(3)
    x = leaf * 2
    result, again = fn(x)
    if leaf.requires_grad:
        leaf = gradient((result * again).sum(), leaf)[0]
    return [t.detach().to(torch.float64) for t in (result, again, x, leaf)], x._version > 0


def test_there_are_some() -> None:
    assert {"dropout", "rrelu", "relu", "feature_alpha_dropout"} <= set(NAMES)


@pytest.mark.parametrize("followed", [False, True])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("positional", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_as_eager(name: str, positional: bool, training: bool, followed: bool) -> None:
    args, kwargs = arguments(name, positional, training)

    def program(x: Any) -> Any:
        result = getattr(F, name)(x, *args, **kwargs)
        return result + 1, x * x  # what comes later sees the write

    torch.manual_seed(0)
    values = torch.rand((2, 4, 6), dtype=torch.float64) - 0.3
    given = [values.clone().requires_grad_(followed) for _ in range(2)]
    expected = outcome(name, program, given[0], torch.autograd.grad)
    torch.testing.assert_close(outcome(name, tinycompile.compile(program), given[1], torch.autograd.grad), expected)
    ours = tinycompile.from_torch(values.clone()).requires_grad_(followed)
    found, edited = outcome(name, program, ours, tinycompile.autograd.grad)
    torch.testing.assert_close(([t.torch() for t in found], edited), expected)


def test_a_module() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.SiLU(), torch.nn.Dropout(0.5, inplace=True))

    def step(model: Any, x: Any) -> Any:
        torch.manual_seed(1)
        hidden = model[:2](x)
        return hidden, model[2](hidden) * hidden

    x = torch.rand(3, 4)
    compiled = tinycompile.compile(step, fullgraph=False)
    for ours, theirs in zip(compiled(model, x), step(model, x), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_dropout_in_place_breaks_no_graph() -> None:
    compiled = tinycompile.compile(lambda x: F.dropout(x.sin(), 0.5, True, True) + x, fullgraph=True)
    compiled(torch.rand(8))
    assert len(compiled.graphs) == 1
