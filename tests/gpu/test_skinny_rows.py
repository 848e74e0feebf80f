"""Products of few rows that make their left operand, on a real card: right by the contract, in every mode, again and again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import tinycompile
from benchmarks.accuracy import judge
from tests.codegen.triton.test_skinny_rows import KINDS, block

pytestmark = pytest.mark.gpu
SHAPES = [(8, 768, 2304), (1, 2048, 2048), (3, 200, 33), (8, 37, 5), (1, 4096, 1024)]


def on_card(*shape: int) -> Tensor:
    return torch.randn(shape, device="cuda").mul_(0.3).bfloat16()


def right(fn: Callable[..., Any], args: Sequence[Tensor], mode: str = "default") -> Any:
    """Compile, call twice, and judge both by float64. Returns the compiled function."""
    compiled = tinycompile.compile(fn, mode=mode, fullgraph=True)
    with torch.no_grad():
        eager, exact = fn(*args), fn(*(a.double() for a in args))
        for _ in range(2):
            verdict = judge([compiled(*args)], [eager], [exact])
            assert verdict.ok, verdict
    return compiled


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(
    "kind", [k for k in KINDS if "softmax" not in k and k not in ("rms norm by hand", "two reductions", "normalize")]
)
def test_kinds(kind: str, shape: tuple[int, int, int]) -> None:
    rows, inner, columns = shape
    compiled = right(KINDS[kind], (on_card(rows, inner), on_card(inner), on_card(columns, inner)))
    assert len(compiled.kernels) == 1


@pytest.mark.parametrize("kind", ["softmax", "rms norm by hand", "two reductions", "normalize"])
def test_kinds_that_say_float32(kind: str) -> None:
    """Their float64 form would be cut to float32 as well, so eager is the judge."""
    args = on_card(8, 768), on_card(768), on_card(2304, 768)
    compiled = tinycompile.compile(KINDS[kind], fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(compiled(*args), KINDS[kind](*args), rtol=2e-2, atol=2e-2)
    assert len(compiled.kernels) == 1


@pytest.mark.parametrize("mode", ["default", "max-autotune", "reduce-overhead"])
def test_a_residual_stream(mode: str) -> None:
    args = on_card(1, 8, 768), on_card(1, 8, 3072), on_card(768, 3072), on_card(768), on_card(768, 768)
    compiled = right(block, args, mode)
    assert mode != "default" or len(compiled.kernels) == 2


def test_layers_one_after_the_other() -> None:
    """What one kernel stores the next reads at once, from many programs."""

    def layers(x: Tensor, g: Tensor, w: Tensor, v: Tensor) -> Tensor:
        for _ in range(12):
            x = x + F.linear(F.silu(F.linear(F.rms_norm(x, (768,), g), w)), v)
        return x

    args = on_card(8, 768), on_card(768), on_card(1536, 768).mul_(0.1), on_card(768, 1536).mul_(0.1)
    compiled = right(layers, args)
    assert len(compiled.kernels) == 24
    with torch.no_grad():
        first = compiled(*args)
        assert all(torch.equal(compiled(*args), first) for _ in range(200))
