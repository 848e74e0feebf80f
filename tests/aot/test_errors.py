"""Errors of a backward have torch's type and words: in compiled functions, and on our own tape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tinycompile

pytestmark = pytest.mark.cpu


class WrongShape(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return g.sum().expand(3)


class OurWrongShape(tinycompile.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return tinycompile.ones(3)


OurWrongShape.__name__ = "WrongShape"


def edited(f: Callable[..., Any], w: Any, x: Any) -> None:
    loss = f(w, x)
    x.add_(1)
    loss.backward()


def twice(f: Callable[..., Any], w: Any, x: Any) -> None:
    loss = f(w, x)
    loss.backward()
    loss.backward()


def no_scalar(f: Callable[..., Any], w: Any, x: Any) -> None:
    f(w, x).backward()


def wrong_shape(f: Callable[..., Any], w: Any, x: Any) -> None:
    f(w, x).sum().backward()


CASES = {
    "edited": (edited, lambda w, x: (w * x * x).sum()),
    "twice": (twice, lambda w, x: (w * x * x).sum()),
    "no scalar": (no_scalar, lambda w, x: w * x),
    "wrong shape": (wrong_shape, lambda w, x: WrongShape.apply(w) * x),
}


def failure(run: Callable[..., None], f: Callable[..., Any], w: Any, x: Any) -> tuple[type, str]:
    with pytest.raises(RuntimeError) as caught:
        run(f, w, x)
    return type(caught.value), str(caught.value)


@pytest.mark.parametrize("case", CASES)
def test_compiled(case: str) -> None:
    run, f = CASES[case]
    given = [(torch.ones(5, requires_grad=True), torch.ones(5)) for _ in range(2)]
    assert failure(run, tinycompile.compile(f), *given[0]) == failure(run, f, *given[1])


@pytest.mark.parametrize("case", CASES)
def test_our_tape(case: str) -> None:
    run, f = CASES[case]
    expected = failure(run, f, torch.ones(5, requires_grad=True), torch.ones(5))
    ours = f if case != "wrong shape" else lambda w, x: OurWrongShape.apply(w) * x
    w, x = (tinycompile.from_torch(torch.ones(5)) for _ in range(2))
    w.requires_grad_()
    assert failure(run, ours, w, x) == expected
