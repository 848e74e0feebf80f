"""What the suite ``memory`` differentiates: functions whose backward could keep more than it needs."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.workloads import BF16, F32, Arg, Workload, attention, cross_entropy, gelu_bias_residual, silu_mul, softmax

SUITES = ("memory",)


def layer_norm(x: Tensor, r: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(x + r, (x.shape[-1],), weight, bias)


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), weight)


def gelu_dropout(x: Tensor) -> Tensor:
    return F.dropout(F.gelu(x), 0.1)


def head_loss(x: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    """The end of a language model."""
    return F.cross_entropy((x @ weight.t()).float(), target)


def head_loss_reference(x: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(x @ weight.t(), target)


def swiglu_block(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    return x + (F.silu(x @ gate) * (x @ up)) @ down


def attention_fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def embedded(table: Tensor, index: Tensor) -> Tensor:
    return F.embedding(index, table) * 0.5


def chain(x: Tensor) -> Tensor:
    """Sixteen ops, each of which eager saves something for."""
    for _ in range(8):
        x = torch.sin(x) * torch.sigmoid(x)
    return x


_ROWS = Arg((8192, 4096), (1024, 1024), BF16, F32)
_VECTOR = Arg((4096,), (1024,), BF16, F32)
_QKV = Arg((4, 16, 2048, 64), (1, 4, 256, 64), BF16, F32)
_WIDE = Arg((2048, 5632), (256, 704), BF16, F32)

MEMORY = (
    Workload("gelu(x+b)*0.5+x", gelu_bias_residual, (_ROWS, _VECTOR), suites=SUITES, quick=True),
    Workload("silu(a)*b", silu_mul, (_ROWS, _ROWS), suites=SUITES),
    Workload("16 ops in a chain", chain, (_ROWS,), suites=SUITES, quick=True),
    Workload("dropout(gelu)", gelu_dropout, (_ROWS,), suites=SUITES),
    Workload("softmax", softmax, (_ROWS,), suites=SUITES),
    Workload("layer_norm(x+r)", layer_norm, (_ROWS, _ROWS, _VECTOR, _VECTOR), suites=SUITES),
    Workload("rms_norm", rms_norm, (_ROWS, _VECTOR), suites=SUITES),
    Workload(
        "cross_entropy",
        cross_entropy,
        (Arg((8192, 50304), (128, 8192)), Arg((8192,), (128,), below=1)),
        reference=F.cross_entropy,
        suites=SUITES,
    ),
    Workload(
        "head and loss",
        head_loss,
        (Arg((8192, 768), (256, 64)), Arg((50304, 768), (8192, 64)), Arg((8192,), (256,), below=0)),
        reference=head_loss_reference,
        suites=SUITES,
    ),
    Workload(
        "SwiGLU block",
        swiglu_block,
        (Arg((8192, 2048), (512, 256), BF16, F32), _WIDE, _WIDE, Arg((5632, 2048), (704, 256), BF16, F32)),
        suites=SUITES,
    ),
    Workload("attention, causal", attention_fused, (_QKV, _QKV, _QKV), suites=SUITES),
    Workload("attention by hand, causal", attention, (_QKV, _QKV, _QKV), suites=SUITES),
    Workload("embedding", embedded, (Arg((50304, 768), (4096, 256), BF16, F32), Arg((8192,), (2048,), below=0)), suites=SUITES),
)
