"""Real functions through tracing, passes and lowering: how many kernels, on both targets; and how long planning takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import tinycompile.ops  # noqa: F401  (fills OPS)
from tests.fuse.support import BF16, CPU_TARGET, Program, check, traced
from tinycompile.base.target import H100
from tinycompile.fuse.planner import plan
from tinycompile.ir.loops import ExternCall

pytestmark = pytest.mark.pure


def rms_norm(x: Any, w: Any) -> Any:
    h = x.float()
    return (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * w


def rotary(q: Any, cos: Any, sin: Any) -> Any:
    first, second = q.chunk(2, dim=-1)
    return q * cos + torch.cat((-second, first), dim=-1) * sin


def add_layer_norm(x: Any, r: Any, w: Any, b: Any) -> Any:
    s = x + r
    return s, F.layer_norm(s, (s.shape[-1],), w, b)


def batch_statistics(x: Any, w: Any, b: Any) -> Any:
    var, mean = torch.var_mean(x, dim=(0, 2, 3), keepdim=True, correction=0)
    return F.relu((x - mean) * torch.rsqrt(var + 1e-5) * w[:, None, None] + b[:, None, None])


def attention(q: Any, k: Any, v: Any) -> Any:
    return torch.softmax(q @ k.transpose(-1, -2) / 8.0, -1) @ v


def tanh_rounds(x: Any) -> Any:
    for _ in range(8):
        x = torch.tanh(x) * 1.1 + torch.sin(x)
    return x


def half(*shape: int) -> torch.Tensor:
    return torch.randn(shape).to(BF16)


def full(*shape: int) -> torch.Tensor:
    return torch.randn(shape)


Case = tuple[Callable[..., Any], Callable[[], tuple[torch.Tensor, ...]], int, int]
CASES: dict[str, Case] = {  # function, inputs, most kernels, library calls
    "bias gelu scale residual": (lambda x, b: F.gelu(x + b) * 0.5 + x, lambda: (half(8, 64), half(64)), 1, 0),
    "silu times": (lambda a, b: F.silu(a) * b, lambda: (half(8, 64), half(8, 64)), 1, 0),
    "tanh rounds": (tanh_rounds, lambda: (full(4, 8, 16),), 1, 0),
    "rms_norm by hand": (rms_norm, lambda: (half(8, 64), half(64)), 1, 0),
    "layer_norm of a sum": (add_layer_norm, lambda: (half(8, 64), half(8, 64), half(64), half(64)), 1, 0),
    "softmax": (lambda x: torch.softmax(x, -1), lambda: (full(8, 64),), 1, 0),
    "log_softmax": (lambda x: torch.log_softmax(x, -1), lambda: (full(8, 64),), 1, 0),
    "logsumexp": (lambda x: torch.logsumexp(x, -1), lambda: (full(8, 64),), 1, 0),
    "cross_entropy": (F.cross_entropy, lambda: (half(64, 100), torch.randint(0, 100, (64,))), 2, 0),
    "sum of squares": (lambda x: (x * x).sum(), lambda: (full(1 << 18),), 2, 0),
    "column sum": (lambda x: (2 * x + 1).sum(0), lambda: (full(4096, 64),), 2, 0),
    "batch statistics": (batch_statistics, lambda: (full(16, 8, 28, 28), full(8), full(8)), 3, 0),
    "group_norm": (lambda x, w, b: F.group_norm(x, 4, w, b), lambda: (full(4, 16, 8, 8), full(16), full(16)), 1, 0),
    "transposed sum": (lambda x, y: x.t() + 2 * y, lambda: (full(16, 64), full(64, 16)), 1, 0),
    "rotary": (rotary, lambda: (half(2, 4, 16, 32), half(16, 32), half(16, 32)), 1, 0),
    "embedding then norm": (
        lambda i, w: F.layer_norm(F.embedding(i, w), (32,)), lambda: (torch.randint(0, 50, (4, 8)), full(50, 32)), 1, 0
    ),
    "statistics of rows": (lambda x: (x.var(-1), x.std(-1), x.mean(-1), x.amax(-1)), lambda: (full(8, 64),), 1, 0),
    "cumsum": (lambda x: torch.cumsum(x * 2, -1) + 1, lambda: (full(8, 64),), 1, 0),
    "perceptron": (
        lambda x, w1, b1, w2, b2: F.linear(F.gelu(F.linear(x, w1, b1)), w2, b2),
        lambda: (full(8, 32), full(64, 32), full(64), full(32, 64), full(32)), 2, 2,
    ),
    "attention": (attention, lambda: (full(2, 8, 16), full(2, 8, 16), full(2, 8, 16)), 0, 1),
}  # fmt: skip


@pytest.mark.parametrize("target", [H100, CPU_TARGET], ids=["triton", "cpp"])
@pytest.mark.parametrize("name", CASES)
def test_kernels(name: str, target: Any) -> None:
    fn, make, most, calls = CASES[name]
    inputs = make()
    found = check(traced(fn, *inputs), inputs, target=target, rounding=1e-3)
    assert len(found.kernels) <= most, [k.nest.name for k in found.kernels]
    assert sum(isinstance(s, ExternCall) for s in found.steps) == calls


ONE_KERNEL_MOVES_THE_MINIMUM = [n for n, (_, _, most, calls) in CASES.items() if most == 1 and calls == 0]


@pytest.mark.parametrize("name", ONE_KERNEL_MOVES_THE_MINIMUM)
def test_bytes(name: str) -> None:
    fn, make, _, _ = CASES[name]
    found = plan(traced(fn, *make()), H100)
    assert found.kernels[0].bytes_moved == found.bytes_minimum


LARGE: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...], torch.dtype, int]] = {
    "softmax 8192x8192": (lambda x: torch.softmax(x, -1), ((8192, 8192),), torch.float32, 1),
    "softmax 512x131072": (lambda x: torch.softmax(x, -1), ((512, 131072),), torch.float32, 1),
    "rms_norm 16384x4096": (rms_norm, ((16384, 4096), (4096,)), BF16, 1),
    "sum of squares 2^28": (lambda x: (x * x).sum(), ((1 << 28,),), torch.float32, 2),
    "column sum 65536x4096": (lambda x: x.sum(0), ((65536, 4096),), torch.float32, 2),
    "batch statistics 64x256x56x56": (batch_statistics, ((64, 256, 56, 56), (256,), (256,)), torch.float32, 3),
    "rotary 8x32x2048x128": (rotary, ((8, 32, 2048, 128), (2048, 128), (2048, 128)), BF16, 1),
}


@pytest.mark.parametrize("name", LARGE)
def test_large(name: str) -> None:
    """The benchmark sizes: planned, not run (memory that is never touched costs nothing)."""
    fn, shapes, dtype, kernels = LARGE[name]
    found = plan(traced(fn, *(torch.empty(s, dtype=dtype) for s in shapes)), H100)
    assert len(found.kernels) == kernels


def _tower(layers: int) -> Program:
    p = Program()
    p.input("x", 64, 64)
    p.input("w", 64, 64)
    last = "x"
    for k in range(layers):
        h = p.extern(f"mm{k}", "torch.matmul", last, "w", shape=(64, 64))
        a = p.map(f"b{k}", "mul", p.map(f"a{k}", "tanh", h), 2.0)
        last = p.over_rows(f"c{k}", "sub", last, p.row_reduce(f"r{k}", "sum", a))
    return p


def test_five_hundred_nests_are_planned_in_under_a_second() -> None:
    p = _tower(100)
    loops, taken = p.loops("c99"), list[float]()
    for _ in range(3):  # a pause of the machine or of the collector is none of the planner's
        start = time.perf_counter()
        found = plan(loops, H100)
        taken.append(time.perf_counter() - start)
    assert min(taken) < 1.0
    assert len(found.kernels) == 100
