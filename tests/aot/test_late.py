"""What is compiled at the first backward that needs it: made anew where sizes decide otherwise, and not else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import tinycompile
from tinycompile.aot.late import Late
from tinycompile.base import shapes
from tinycompile.base.expr import sym

pytestmark = pytest.mark.cpu


def test_made_once_for_each_key_and_answer() -> None:
    made: list[tuple[int, str]] = []

    def make(sizes: Mapping[str, int], key: str) -> str:
        made.append((sizes["n"], key))
        even = shapes.same(sym("n", 2) % 2, 0) if key != "any" else "always"
        return f"{key} {even}"

    late = Late(("n",), make)
    assert [late([n], "a") for n in (4, 6, 7, 9, 4)] == ["a True", "a True", "a False", "a False", "a True"]
    assert [late([n], "any") for n in (4, 7)] == ["any always"] * 2
    assert late([8], "b") == "b True"
    assert made == [(4, "a"), (7, "a"), (4, "any"), (8, "b")]


def test_nothing_made_is_kept_of_a_failure() -> None:
    made: list[int] = []

    def make(sizes: Mapping[str, int]) -> int:
        made.append(sizes["n"])
        if len(made) == 1:
            raise RuntimeError("not yet")
        return 1

    late = Late(("n",), make)
    with pytest.raises(RuntimeError, match="not yet"):
        late([4])
    assert (late([4]), late([5]), len(made)) == (1, 1, 2)
    assert shapes.current_env() is None


def halves(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x.log(), F.pad(x[: x.shape[0] // 2].exp(), (1, x.shape[0] % 2))


def test_one_result_and_second_derivatives_at_other_sizes() -> None:
    def gradients(f: Callable[..., Any], size: int) -> list[torch.Tensor]:
        x = torch.linspace(0.5, 1.5, size).requires_grad_()
        result = f(x)[1].square().sum()
        (grad,) = torch.autograd.grad(result, x, create_graph=True)
        return [*torch.autograd.grad(result, x, retain_graph=True), *torch.autograd.grad(grad.square().sum(), x)]

    c = tinycompile.compile(halves, dynamic=True)
    for size in (8, 7, 3):
        torch.testing.assert_close(gradients(c, size), gradients(halves, size))
