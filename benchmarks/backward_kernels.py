"""How many kernels the backward of common layers launches, beside eager's and ``torch.compile``'s, on a GPU.

``python -m benchmarks.backward_kernels`` prints a Markdown table: kernels and memsets that torch's profiler saw during one
backward, after a warm-up.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd import DeviceType
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile

import tinycompile
from benchmarks.contenders import CONTENDERS, DEFAULT
from benchmarks.workloads import cross_entropy

N, C = 4096, 1024


@dataclass(frozen=True)
class Layer:
    """``shapes`` of the leaves; integers in [0, C) of shape (N,) come last where ``indexed``."""

    name: str
    fn: Callable[..., Tensor]
    shapes: tuple[tuple[int, ...], ...]
    indexed: bool = False

    def inputs(self, device: str) -> list[Tensor]:
        """Leaves that require grad, and the indices."""
        made = [torch.randn(s, device=device, requires_grad=True) for s in self.shapes]
        return [*made, torch.randint(0, C, (N,), device=device)] if self.indexed else made


ROWS = (N, C)
LAYERS = (
    Layer("softmax", lambda x: torch.softmax(x, -1), (ROWS,)),
    Layer("softmax of columns", lambda x: torch.softmax(x, 0), (ROWS,)),
    Layer("log_softmax", lambda x: torch.log_softmax(x, -1), (ROWS,)),
    Layer("layer_norm", lambda x, w, b: F.layer_norm(x, (C,), w, b), (ROWS, (C,), (C,))),
    Layer("layer_norm, no weights", lambda x: F.layer_norm(x, (C,)), (ROWS,)),
    Layer("rms_norm", lambda x, w: F.rms_norm(x, (C,), w), (ROWS, (C,))),
    Layer("group_norm", lambda x, w, b: F.group_norm(x, 8, w, b), ((16, 64, 32, 32), (64,), (64,))),
    Layer("batch_norm", lambda x, w, b: F.batch_norm(x, None, None, w, b, True), ((16, 64, 32, 32), (64,), (64,))),
    Layer("cross_entropy", cross_entropy, (ROWS,), indexed=True),
    Layer("nll_loss(log_softmax)", lambda x, t: F.nll_loss(F.log_softmax(x, -1), t), (ROWS,), indexed=True),
    Layer("gelu", F.gelu, (ROWS,)),
    Layer("silu(a)*b", lambda a, b: F.silu(a) * b, (ROWS, ROWS)),
    Layer("dropout(gelu)", lambda x: F.dropout(F.gelu(x), 0.1), (ROWS,)),
    Layer("gelu(x+bias)", lambda x, b: F.gelu(x + b), (ROWS, (C,))),
    Layer("x*weight+bias", lambda x, w, b: x * w + b, (ROWS, (C,), (C,))),
    Layer("embedding", lambda w, i: F.embedding(i, w), ((C, 256),), indexed=True),
    Layer("w[index]", lambda w, i: w[i], ((C, 256),), indexed=True),
)


def launches(layer: Layer, who: str) -> int:
    """Kernels and memsets of one backward."""
    inputs = layer.inputs("cuda")
    fn = CONTENDERS[who](layer.fn)
    leaves = [x for x in inputs if x.requires_grad]
    seed = torch.randn_like(fn(*inputs))
    torch.autograd.grad(fn(*inputs), leaves, seed)
    out = fn(*inputs)
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        torch.autograd.grad(out, leaves, seed)
        torch.cuda.synchronize()
    return sum(e.device_type == DeviceType.CUDA for e in seen.events())


def table() -> str:
    """One line a layer."""
    lines = ["| backward of | " + " | ".join(w for w in DEFAULT) + " |", "|---|" + "--:|" * len(DEFAULT)]
    for layer in LAYERS:
        cells = []
        for who in DEFAULT:
            torch._dynamo.reset()
            tinycompile.reset()
            cells.append(_counted(layer, who))
        lines.append(f"| {layer.name} | " + " | ".join(cells) + " |")
        print(lines[-1], file=sys.stderr, flush=True)
    return "\n".join(lines)


def _counted(layer: Layer, who: str) -> str:
    try:
        return str(launches(layer, who))
    except Exception as error:  # noqa: BLE001  # a contender that fails is a result, and the others go on
        return type(error).__name__


if __name__ == "__main__":
    print(table())
