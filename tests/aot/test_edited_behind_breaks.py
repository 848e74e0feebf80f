"""What a function writes to behind a break, after a piece of it has saved for its backward: gradients and errors are eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import tinycompile

pytestmark = pytest.mark.cpu
BACKENDS = ("eager", "aot_eager", None)


@torch.no_grad()
def add_to(t: Tensor) -> None:
    t.add_(1)


# Torch saves what is computed of an input, the input itself, or the result.
COMPUTED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "scaled": lambda x, w: (x * 2) * w,
    "exponent": lambda x, w: x.exp() * w,
    "sine": lambda x, w: x.sin() * w,
    "softmax": lambda x, w: (x * 3).softmax(-1) * w,
    "chain": lambda x, w: ((x + 1).tanh() * (w * 2)).sin(),
    "of_the_weight": lambda x, w: w.exp() * x,
    "gelu": lambda x, w: F.gelu(x * w + 1),
    "product": lambda x, w: (x + 1) @ w.t() + (x @ w.t()).sin(),
    "views": lambda x, w: x.t()[1:].cos() @ w * 2,
    "itself": lambda x, w: x * w,
}
EDITS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "none": lambda x, w: None,
    "data": lambda x, w: x.data.zero_(),
    "uncounted_part": lambda x, w: x.detach().data[0].fill_(2),
    "no_grad": lambda x, w: add_to(x),
    "followed": lambda x, w: x.mul_(2),
    "weights_data": lambda x, w: w.data.mul_(3),
    "weight": lambda x, w: add_to(w),
}


def told(fn: Callable[[Tensor, Tensor], Tensor], leaf: bool) -> Any:
    """The gradients and the result; or torch's error, in the forward or in the backward."""
    x = (torch.arange(6.0).view(2, 3) / 7).requires_grad_(leaf)
    w = torch.full((2, 3), 0.5, requires_grad=True)
    try:
        result = fn(x, w)
    except RuntimeError as error:
        return "forward", str(error)
    try:
        result.sum().backward()
    except RuntimeError as error:
        return "backward", str(error)[:90]
    return w.grad, x.grad, result.detach(), x.detach()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("name", COMPUTED)
def test_gradients_are_of_what_was_there(name: str, edit: str, backend: str | None) -> None:
    def fn(x: Tensor, w: Tensor) -> Tensor:
        result = COMPUTED[name](x, w)
        tinycompile.graph_break()
        EDITS[edit](x, w)
        return result

    def in_a_loop(x: Tensor, w: Tensor) -> Tensor:
        result = w
        for _ in range(2):
            result = result + COMPUTED[name](x, w).sum()
            tinycompile.graph_break()
            EDITS[edit](x, w)
        return result

    for program in (fn, in_a_loop):
        compiled = tinycompile.compile(program, backend=backend)
        for leaf in (False, True):
            found, expected = told(compiled, leaf), told(program, leaf)
            assert isinstance(found[0], str) == isinstance(expected[0], str), (found, expected)
            if isinstance(expected[0], str):
                assert found == expected
            else:
                torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_input_expanded_to_nothing(backend: Any) -> None:
    def fn(x: Tensor, w: Tensor) -> Tensor:
        y = x.exp() * w
        tinycompile.graph_break()
        return y + 1

    w = torch.randn(4, requires_grad=True)
    got = tinycompile.compile(fn, backend=backend)(torch.randn(4).expand(0, -1), w)
    got.sum().backward()
    assert got.shape == (0, 4) and torch.equal(w.grad, torch.zeros(4))
