"""The functions of the issue's list at sizes that a test can afford, with inputs and the kernels they may cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F


def bias_gelu(x, b):
    return F.gelu(x + b, approximate="tanh") * 0.5 + x


def swiglu(a, b):
    return F.silu(a) * b


def tanh_sin(x):
    for _ in range(8):
        x = torch.tanh(x) * 1.1 + torch.sin(x)
    return x


def rms_norm(x, w):
    h = x.float()
    h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)
    return (h * w.float()).to(x.dtype)


def layer_norm_residual(x, r, w, b):
    h = x + r
    return F.layer_norm(h, (h.shape[-1],), w, b), h


def softmax(x):
    return torch.softmax(x / 8, dim=-1)


def cross_entropy(x, t):
    return F.cross_entropy(x.float(), t)


def sum_of_squares(x):
    return (x * x).sum()


def column_sum(x):
    return (2 * x + 1).sum(0)


def batch_statistics(x):
    var, mean = torch.var_mean(x, dim=(0, 2, 3), keepdim=True, correction=0)
    return torch.relu((x - mean) * torch.rsqrt(var + 1e-5))


def transposed_add(x, y):
    return x.t() + 2 * y


def rotary(x, cos, sin):
    a, b = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-b, a), dim=-1) * sin


def tiny(x, y):
    return torch.relu(x + y) * 2


def mlp(x, w1, b1, w2, b2):
    h = F.gelu(F.linear(x, w1, b1))
    return F.linear(h, w2, b2)


def attention_by_hand(q, k, v):
    scores = (q @ k.transpose(-1, -2)) * 0.125
    mask = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool).to(q.device).tril()
    scores = scores.masked_fill(~mask, float("-inf"))
    return torch.softmax(scores, -1) @ v


def _normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape).to(dtype)


@dataclass(frozen=True)
class Workload:
    """``kernels``: the most that may be generated; ``externs``: library calls."""

    fn: Callable[..., Any]
    inputs: Callable[[], tuple[torch.Tensor, ...]]
    kernels: int
    externs: int = 0

    @property
    def name(self) -> str:
        return self.fn.__name__


BF16 = torch.bfloat16
WORKLOADS = (
    Workload(bias_gelu, lambda: (_normal(64, 256, dtype=BF16), _normal(256, dtype=BF16)), 1),
    Workload(swiglu, lambda: (_normal(64, 256, dtype=BF16), _normal(64, 256, dtype=BF16)), 1),
    Workload(tanh_sin, lambda: (_normal(8, 32, 32),), 1),
    Workload(rms_norm, lambda: (_normal(64, 512, dtype=BF16), _normal(512, dtype=BF16)), 1),
    Workload(
        layer_norm_residual,
        lambda: (
            _normal(64, 512, dtype=BF16),
            _normal(64, 512, dtype=BF16),
            _normal(512, dtype=BF16),
            _normal(512, dtype=BF16),
        ),
        1,
    ),
    Workload(softmax, lambda: (_normal(64, 300),), 1),
    Workload(cross_entropy, lambda: (_normal(64, 1000, dtype=BF16), torch.randint(0, 1000, (64,))), 2),
    Workload(sum_of_squares, lambda: (_normal(1 << 20),), 2),
    Workload(column_sum, lambda: (_normal(4096, 96),), 2),
    Workload(batch_statistics, lambda: (_normal(8, 16, 14, 14),), 3),
    Workload(transposed_add, lambda: (_normal(96, 96), _normal(96, 96)), 1),
    Workload(rotary, lambda: (_normal(2, 4, 64, 32, dtype=BF16), _normal(64, 32, dtype=BF16), _normal(64, 32, dtype=BF16)), 1),
    Workload(tiny, lambda: (_normal(32, 32), _normal(32, 32)), 1),
    Workload(mlp, lambda: (_normal(32, 64), _normal(256, 64), _normal(256), _normal(64, 256), _normal(64)), 2, 2),
    Workload(attention_by_hand, lambda: (_normal(2, 4, 64, 32), _normal(2, 4, 64, 32), _normal(2, 4, 64, 32)), 3, 2),
)
