"""Activations of linear layers in the library's epilogue: on a GPU, decided without one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.passes.test_attention import captured, on_cuda
from tinycompile.ir.interpreter import run_graph
from tinycompile.ir.verify_graph import verify_graph
from tinycompile.passes.patterns_matmul import activate_products

pytestmark = pytest.mark.cpu
BF16 = torch.bfloat16


def relu_layer(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return torch.relu(F.linear(x, w, b))


def gelu_layer(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.gelu(F.linear(x, w, b), approximate="tanh") * 2


def exact_gelu(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.gelu(F.linear(x, w, b))


def used_twice(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    h = F.linear(x, w, b)
    return torch.relu(h) + h


def no_bias(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return torch.relu(F.linear(x, w)) + b


def arguments(dtype: torch.dtype = BF16) -> list[Tensor]:
    return [torch.randn(2, 8, 16, dtype=dtype), torch.randn(24, 16, dtype=dtype), torch.randn(24, dtype=dtype)]


@pytest.mark.parametrize("fn", [relu_layer, gelu_layer])
def test_one_call(fn: Callable[..., Any]) -> None:
    args = arguments()
    changed = activate_products(on_cuda(captured(fn, *args)))
    verify_graph(changed)
    targets = [n.target for n in changed.nodes if n.kind == "call"]
    assert "linear_activation" in targets and not {"linear", "relu", "gelu"} & {*targets}
    torch.testing.assert_close(run_graph(changed, args)[0], fn(*args), atol=0.06, rtol=0.02)


@pytest.mark.parametrize("fn", [exact_gelu, used_twice, no_bias])
def test_what_stays(fn: Callable[..., Any]) -> None:
    graph = on_cuda(captured(fn, *arguments()))
    assert activate_products(graph) is graph


def test_only_halves_on_a_gpu() -> None:
    for graph in (captured(relu_layer, *arguments()), on_cuda(captured(relu_layer, *arguments(torch.float32)))):
        assert activate_products(graph) is graph
