"""Functions under ``checkpoint`` in compiled code that write to what they saved: eager runs them again as far as the last tensor
that they save, and sees no write behind it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import tinycompile
from tests.eager.test_checkpoint_again import AFTER, DATA

pytestmark = pytest.mark.cpu

torchs = functools.partial(checkpoint, use_reentrant=False)
KINDS = {"torch's": torchs, "ours": tinycompile.checkpoint}


def leaf() -> torch.Tensor:
    return DATA.clone().requires_grad_()


def gradient(fn: Callable[[Any], Any], whole: bool = False) -> torch.Tensor:
    x = leaf()
    if whole:
        tinycompile.compile(lambda x: fn(x).backward())(x)
        assert x.grad is not None
        return x.grad
    return torch.autograd.grad(fn(x), x)[0]


@pytest.mark.parametrize("whole", [False, True], ids=["attached", "whole"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", AFTER)
def test_writes_after_all_was_saved(name: str, kind: str, whole: bool) -> None:
    body = AFTER[name]

    def fn(way: Any, x: Any) -> Any:
        return way(body, x * 2).sin()

    def nested(way: Any, x: Any) -> Any:
        return way(lambda t: way(body, t.sin()).cos(), x).exp()

    for program in (fn, nested):
        wanted = gradient(functools.partial(program, torchs))
        ours = functools.partial(program, KINDS[kind])
        found = gradient(ours, whole) if whole else gradient(tinycompile.compile(ours, fullgraph=True))
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("kind", KINDS)
def test_writes_to_what_it_returned(kind: str) -> None:
    def fn(way: Any, x: Any) -> Any:
        y = way(torch.exp, x)
        y.mul_(2)
        return y.sum()

    found = gradient(tinycompile.compile(functools.partial(fn, KINDS[kind]), fullgraph=True))
    torch.testing.assert_close(found, gradient(functools.partial(fn, torchs)))


def and_saved_again(t: Any) -> Any:
    y = t.exp()
    y.add_(1)
    return (y * y).sum()


def by_what_saves_its_result(t: Any) -> Any:
    y = t.exp()
    return y.sigmoid_().sum()


@pytest.mark.parametrize("body", [and_saved_again, by_what_saves_its_result], ids=lambda f: f.__name__)
@pytest.mark.parametrize("kind, whole", [("torch's", False), ("ours", False), ("ours", True)])
def test_writes_before_the_last_was_saved_are_refused(kind: str, whole: bool, body: Any) -> None:
    """torch takes what is in memory then, for a gradient of nothing: in a whole step, which is left to it, too."""

    def fn(x: Any) -> Any:
        return KINDS[kind](body, x * 2)

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        gradient(fn, whole=True) if whole else gradient(tinycompile.compile(fn))


def test_writes_outside_a_checkpoint_are_refused_as_ever() -> None:
    def fn(x: Any) -> Any:
        y = x.exp()
        z = torchs(lambda t: t.sin().sum(), x)
        y.add_(1)
        return y.sum() + z

    with pytest.raises(RuntimeError, match="output 0 of Exp"):
        gradient(tinycompile.compile(fn))
