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


def torchs(f: Callable[..., Any]) -> tuple[Callable[..., Any], Any, Any]:
    return f, torch.ones(5, requires_grad=True), torch.ones(5)


def ours(f: Callable[..., Any]) -> tuple[Callable[..., Any], Any, Any]:
    w, x = (tinycompile.from_torch(torch.ones(5)) for _ in range(2))
    return (f if f is not CASES["wrong shape"][1] else lambda w, x: OurWrongShape.apply(w) * x), w.requires_grad_(), x


def compiled(f: Callable[..., Any], w: Any, x: Any) -> tuple[Callable[..., Any], Any, Any]:
    return tinycompile.compile(f), w, x


WAYS: dict[str, Callable[[Callable[..., Any]], tuple[Callable[..., Any], Any, Any]]] = {
    "our tape": ours,
    "compiled, torch's tensors": lambda f: compiled(*torchs(f)),
    "compiled, our tensors": lambda f: compiled(*ours(f)),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", CASES)
def test_as_eager_torch(case: str, way: str) -> None:
    run, f = CASES[case]
    assert failure(run, *WAYS[way](f)) == failure(run, *torchs(f))


# --- within the function: the backward is a part of its graph, or of what is left to torch --------------------------------


def edited_inside(w: Any, x: Any) -> None:
    y = x.clone()
    loss = (w * y * y).sum()
    y.add_(1)
    loss.backward()


def edited_result_inside(w: Any, x: Any) -> None:
    y = (w * x).exp()
    y.mul_(2)
    y.sum().backward()


def twice_inside(w: Any, x: Any) -> None:
    loss = (w * w * x).sum()
    loss.backward()
    loss.backward()


def twice_by_grad(w: Any, x: Any) -> None:
    loss = (w * w * x).sum()
    torch.autograd.grad(loss, w)
    torch.autograd.grad(loss, w)


def no_scalar_inside(w: Any, x: Any) -> None:
    (w * x).backward()


def no_scalar_by_grad(w: Any, x: Any) -> None:
    torch.autograd.grad(w * x, w)


def wrong_shape_inside(w: Any, x: Any) -> None:
    (WrongShape.apply(w) * x).sum().backward()


def wrong_shape_by_grad(w: Any, x: Any) -> None:
    torch.autograd.grad((WrongShape.apply(w) * x).sum(), w)


INSIDE = [
    edited_inside, edited_result_inside, twice_inside, twice_by_grad, no_scalar_inside, no_scalar_by_grad, wrong_shape_inside,
    wrong_shape_by_grad,
]  # fmt: skip


@pytest.mark.parametrize("program", INSIDE, ids=lambda p: p.__name__)
def test_inside(program: Callable[..., None]) -> None:
    found = []
    for call in (program, tinycompile.compile(program)):
        with pytest.raises(RuntimeError) as caught:
            call(torch.ones(5, requires_grad=True), torch.ones(5))
        found.append((type(caught.value), str(caught.value)))
    assert found[0] == found[1]


def test_a_result_behind_its_backward_leads_to_its_leaves() -> None:
    """What is asked of it outside is refused as a second backward, not as a tensor that has nothing to do with it."""

    def step(w: Any, x: Any) -> Any:
        loss = (w * w * x).sum()
        loss.backward()
        return loss

    for call in (step, tinycompile.compile(step, fullgraph=True)):
        w, other = torch.ones(5, requires_grad=True), torch.ones(5, requires_grad=True)
        loss = call(w, torch.ones(5))
        for again in (loss.backward, lambda: torch.autograd.grad(loss, w), lambda: torch.autograd.grad(loss * 2, w)):  # noqa: B023
            with pytest.raises(RuntimeError, match="Trying to backward through the graph a second time"):
                again()
        with pytest.raises(RuntimeError, match="not have been used"):
            torch.autograd.grad(loss, other)
