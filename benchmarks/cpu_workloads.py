"""The suite ``cpu``: 43 functions for two cores. Pointwise chains, norms, softmaxes, reductions along each axis, transposes,
look-ups, optimiser steps, small MLPs, attention; float32 and bfloat16. What bounds a row is measured; ``note`` says what its
arithmetic is where that is much, in AVX-512's instructions for 16 elements, as counted in our loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks import shapes
from benchmarks import workloads as w
from benchmarks.workloads import BF16, F32, Arg, Workload

I64 = torch.int64

# -- the functions ------------------------------------------------------------------------------------------------------


def chain(x: Tensor, y: Tensor) -> Tensor:
    return torch.relu(x * 2 + y).clamp(max=3) - 0.5 * y


def gelu_erf(x: Tensor) -> Tensor:
    return F.gelu(x)


def masked_where(x: Tensor, y: Tensor) -> Tensor:
    return torch.where(x > y, x - y, 0.0)


def group_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.group_norm(x, 8, weight, bias)


def row_sum(x: Tensor) -> Tensor:
    return (x * 2 + 1).sum(-1)


def largest_of_columns(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.amax(0), x.argmax(0)


def heads_to_front(x: Tensor) -> Tensor:
    return (x.permute(0, 2, 1, 3) * 0.125).contiguous()


def embedding(table: Tensor, index: Tensor, position: Tensor) -> Tensor:
    return F.embedding(index, table) * 8 + position


def gather_columns(x: Tensor, index: Tensor) -> Tensor:
    return x.gather(1, index) * 2


def adam(p: Tensor, g: Tensor, m: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    m = m * 0.9 + g * 0.1
    v = v * 0.999 + g * g * 0.001
    return p - 1e-3 * (m / 0.5) / ((v.abs() / 0.3).sqrt() + 1e-8), m, v


def momentum(p: Tensor, g: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
    m = 0.9 * m + g + 1e-4 * p
    return p - 0.1 * m, m


def adam_half(p: Tensor, g: Tensor, m: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    m = m * 0.9 + g.float() * 0.1
    v = v * 0.999 + g.float().square() * 0.001
    return (p.float() - 1e-3 * m / (v.abs().sqrt() + 1e-8)).to(p.dtype), m, v


def adam_half_reference(p: Tensor, g: Tensor, m: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    m, v = m * 0.9 + g * 0.1, v * 0.999 + g.square() * 0.001
    return p - 1e-3 * m / (v.abs().sqrt() + 1e-8), m, v


# -- the table ----------------------------------------------------------------------------------------------------------

FUNCTIONS = "special functions: an exponential is 22 instructions, 11 of them multiplications"
HALVES = "bfloat16: 2 instructions widen, 8 round"
MOMENTS = "moments in float64: 12 instructions"
PLACES = "the maximum and its first place, NaN in mind: 10 instructions"
PREFIXES = "running sums in float64: 32 instructions, half of them shuffles"
TRANSPOSED = "shuffles: 8 for 4 by 4 elements, each line far from the last"
MATMUL = "matrix products, a library's for all"
LATENCY = "the call: too little data for bandwidth to count"


def _row(name: str, fn: Callable[..., Any], *args: Arg, reference: Any = None, note: str = "", quick: bool = False) -> Workload:
    return Workload(name, fn, args, reference, ("cpu",), quick, note)


def _square(dtype: torch.dtype, count: int = 1) -> tuple[Arg, ...]:
    return (Arg((2048, 2048), dtype=dtype),) * count


def _norm(dtype: torch.dtype, sides: int) -> tuple[Arg, ...]:
    return (*_square(dtype), *(Arg((2048,), dtype=dtype),) * sides)


_BIG = (1 << 22,)
_QKV = (1, 8, 512, 64)

CPU: tuple[Workload, ...] = (
    # pointwise
    _row("relu chain", chain, *_square(F32, 2), quick=True),
    _row("relu chain bf16", chain, *_square(BF16, 2), note=HALVES),
    _row("gelu(x+b)*0.5+x", w.gelu_bias_residual, *_norm(F32, 1), note=FUNCTIONS),
    _row("gelu(x+b)*0.5+x bf16", w.gelu_bias_residual, *_norm(BF16, 1), note=FUNCTIONS),
    _row("gelu, erf", gelu_erf, *_square(F32), note=FUNCTIONS),
    _row("silu(a)*b", w.silu_mul, *_square(F32, 2), note=FUNCTIONS),
    _row("silu(a)*b bf16", w.silu_mul, *_square(BF16, 2), note=FUNCTIONS),
    _row("8 rounds tanh, sin", w.eight_rounds, Arg((1024, 1024), dtype=F32), note=FUNCTIONS),
    _row("where", masked_where, *_square(F32, 2)),
    # norms
    _row("layer_norm", shapes.layer_norm, *_norm(F32, 2), quick=True, note=MOMENTS),
    _row("layer_norm bf16", shapes.layer_norm, *_norm(BF16, 2), note=f"{MOMENTS}; {HALVES}"),
    _row("layer_norm(x+r), 2 outputs", w.layer_norm_residual, *_square(F32, 2), *(Arg((2048,), dtype=F32),) * 2, note=MOMENTS),
    _row("rms_norm", shapes.rms, *_square(F32)),
    _row("rms_norm bf16", w.rms_norm, *_norm(BF16, 1), reference=w.rms_norm_reference, note=HALVES),
    _row("batch statistics, relu", w.batch_stats_relu, Arg((16, 64, 56, 56), dtype=F32), note=MOMENTS),
    _row("group_norm", group_norm, Arg((16, 64, 56, 56), dtype=F32), *(Arg((64,), dtype=F32),) * 2, note=MOMENTS),
    # softmaxes
    _row("softmax, rows of 2048", w.softmax_scaled, *_square(F32), note=FUNCTIONS, quick=True),
    _row("softmax, rows of 2048 bf16", w.softmax_scaled, *_square(BF16), note=FUNCTIONS),
    _row("softmax, rows of 131072", w.softmax, Arg((32, 131072), dtype=F32), note=FUNCTIONS),
    _row("softmax down columns", shapes.column_softmax, *_square(F32), note=FUNCTIONS),
    _row("log_softmax bf16", shapes.log_softmax, *_square(BF16), note=FUNCTIONS),
    _row(
        "cross_entropy bf16", w.cross_entropy, Arg((128, 50304)), Arg((128,), below=1),
        reference=w.cross_entropy_reference, note=FUNCTIONS,
    ),
    # reductions along each axis
    _row("sum of squares", w.sum_of_squares, Arg(_BIG, dtype=F32)),
    _row("sum along axis 0", w.column_sum, *_square(F32)),
    _row("sum along axis 1", row_sum, *_square(F32)),
    _row("sum along axis 1 bf16", row_sum, *_square(BF16), note=HALVES),
    _row("sum of a middle axis", shapes.middle_sum, Arg((16, 256, 1024), dtype=F32)),
    _row("mean and deviation", shapes.mean_and_deviation, *_square(F32), note=MOMENTS),
    _row("maximum and its place, axis 1", shapes.largest, *_square(F32), note=PLACES),
    _row("maximum and its place, axis 0", largest_of_columns, *_square(F32), note=PLACES),
    _row("cumsum", shapes.running_total, *_square(F32), note=PREFIXES),
    # transposes
    _row("x.t()+2y", w.transpose_add, *_square(F32, 2), note=TRANSPOSED),
    _row("x.t()+2y bf16", w.transpose_add, *_square(BF16, 2), note=TRANSPOSED),
    _row("heads to the front", heads_to_front, Arg((4, 512, 16, 64), dtype=F32)),
    # look-ups
    _row("embedding", embedding, Arg((8192, 512), dtype=F32), Arg((8192,), below=0), Arg((8192, 512), dtype=F32)),
    _row("gather of columns", gather_columns, *_square(F32), Arg((2048, 512), below=1)),
    # optimisers
    _row("adam", adam, *(Arg(_BIG, dtype=F32),) * 4),
    _row("adam, bf16 parameters", adam_half, *(Arg(_BIG),) * 2, *(Arg(_BIG, dtype=F32),) * 2, reference=adam_half_reference),
    _row("momentum", momentum, *(Arg(_BIG, dtype=F32),) * 3),
    # small models
    _row(
        "MLP 64x256x64", w.small_mlp, Arg((128, 64), dtype=F32), Arg((256, 64), dtype=F32), Arg((256,), dtype=F32),
        Arg((64, 256), dtype=F32), Arg((64,), dtype=F32), note=LATENCY,
    ),
    _row("gelu(linear)", w.gelu_linear, *(Arg(s, dtype=F32) for s in ((512, 512), (2048, 512), (2048,))), note=MATMUL),
    _row("rotary embedding", w.rotary, Arg((1, 16, 2048, 128), dtype=F32), *(Arg((2048, 128), dtype=F32),) * 2),
    _row("attention by hand, causal", w.attention, *(Arg(_QKV, dtype=F32),) * 3, reference=w.attention_reference, note=MATMUL),
)  # fmt: skip
