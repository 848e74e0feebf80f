"""What is measured, as one table: functions, the shapes of their arguments on a GPU and on two CPU cores, and dtypes.

``bytes`` of a workload are counted as its arguments read once plus its results written once, whatever a kernel really does.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Arg:
    """One tensor argument. ``cpu``: its shape there (None: the same). ``below``: integers in [0, dim of the first argument).
    ``layout``: "", "transposed" (of the last two dims), "every second" (of the last dim), "expanded" (along the first) or
    "channels_last"."""

    gpu: Shape
    cpu: Shape | None = None
    dtype: torch.dtype = torch.bfloat16
    cpu_dtype: torch.dtype | None = None
    below: int | None = None
    layout: str = ""

    def shape(self, device: str) -> Shape:
        """The shape on a device."""
        return self.cpu if device == "cpu" and self.cpu is not None else self.gpu

    def make(self, device: str, first: Arg) -> Tensor:
        """A fresh tensor with random content."""
        if self.below is not None:
            return torch.randint(0, first.shape(device)[self.below], self.shape(device), device=device)
        dtype = self.cpu_dtype if device == "cpu" and self.cpu_dtype is not None else self.dtype
        return laid_out(self.layout, self.shape(device), lambda shape: filled(shape, dtype, device))


def filled(shape: Shape, dtype: torch.dtype, device: str) -> Tensor:
    """Random content: normal numbers, small integers, or half of the bits."""
    if dtype is torch.bool:
        return torch.rand(shape, device=device) < 0.5
    if not dtype.is_floating_point:
        return torch.randint(-1000, 1000, shape, device=device, dtype=dtype)
    return torch.randn(shape, device=device).to(dtype)


def laid_out(layout: str, shape: Shape, make: Callable[[Shape], Tensor]) -> Tensor:
    """A tensor of ``shape`` in one of the layouts of :class:`Arg`."""
    if layout == "transposed":
        return make((*shape[:-2], shape[-1], shape[-2])).transpose(-1, -2)
    if layout == "every second":
        return make((*shape[:-1], 2 * shape[-1]))[..., ::2]
    if layout == "expanded":
        return make((1, *shape[1:])).expand(shape)
    made = make(shape)
    return made.contiguous(memory_format=torch.channels_last) if layout == "channels_last" else made


@dataclass(frozen=True)
class Workload:
    """A row. ``reference``: what to run in float64 where ``fn`` names lower dtypes itself. ``suites``: where it takes part.
    ``note``: what bounds it on a GPU, if that isn't the bandwidth of memory. ``library``: one call of torch that does the same,
    which the suite ``kernels`` measures beside."""

    name: str
    fn: Callable[..., Any]
    args: tuple[Arg, ...]
    reference: Callable[..., Any] | None = None
    suites: tuple[str, ...] = ("kernels", "compile")
    quick: bool = False
    note: str = ""
    library: Callable[..., Any] | None = None

    def inputs(self, device: str) -> list[Tensor]:
        """Fresh arguments, the same at every call on the same device."""
        torch.manual_seed(0)
        return [arg.make(device, self.args[0]) for arg in self.args]

    def expected(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The results in float64."""
        wide = [x.double() if x.is_floating_point() else x for x in inputs]
        return tensors((self.reference or self.fn)(*wide))

    def sizes(self, device: str) -> str:
        """The first argument's shape and dtype, as text."""
        first = self.args[0]
        dtype = first.cpu_dtype if device == "cpu" and first.cpu_dtype is not None else first.dtype
        return f"{'x'.join(map(str, first.shape(device)))} {short(dtype)}"


def short(dtype: torch.dtype) -> str:
    """``bf16`` for ``torch.bfloat16``."""
    return str(dtype).removeprefix("torch.").replace("bfloat", "bf").replace("float", "fp").replace("int", "i")


def tensors(result: Any) -> tuple[Tensor, ...]:
    """A function's result as a tuple of tensors."""
    return tuple(result) if isinstance(result, tuple | list) else (result,)


def count_bytes(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> int:
    """Arguments read once plus results written once; an expanded argument counts as what lies in memory."""
    return sum(_elements(t) * t.element_size() for t in (*inputs, *outputs))


def _elements(t: Tensor) -> int:
    return math.prod(n for n, stride in zip(t.shape, t.stride(), strict=True) if stride)


# -- the functions ------------------------------------------------------------------------------------------------------


def gelu_bias_residual(x: Tensor, b: Tensor) -> Tensor:
    return F.gelu(x + b, approximate="tanh") * 0.5 + x


def silu_mul(a: Tensor, b: Tensor) -> Tensor:
    return F.silu(a) * b


def eight_rounds(x: Tensor) -> Tensor:
    for _ in range(8):
        x = torch.tanh(x) * 1.1 + torch.sin(x)
    return x


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    wide = x.float()
    scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
    return (wide * scale).to(x.dtype) * weight


def rms_norm_reference(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight


def layer_norm_residual(x: Tensor, r: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    h = x + r
    return F.layer_norm(h, (h.shape[-1],), weight, bias), h


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, dim=-1)


def softmax_scaled(x: Tensor) -> Tensor:
    return torch.softmax(x / 8, dim=-1)


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(logits.float(), target)


def cross_entropy_reference(logits: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(logits, target)


def sum_of_squares(x: Tensor) -> Tensor:
    return (x * x).sum()


def column_sum(x: Tensor) -> Tensor:
    return (2 * x + 1).sum(0)


def batch_stats_relu(x: Tensor) -> Tensor:
    mean = x.mean((0, 2, 3), keepdim=True)
    variance = x.var((0, 2, 3), unbiased=False, keepdim=True)
    return torch.relu((x - mean) * torch.rsqrt(variance + 1e-5))


def transpose_add(x: Tensor, y: Tensor) -> Tensor:
    return x.t() + 2 * y


def rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-right, left), dim=-1) * sin


def gelu_linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.gelu(F.linear(x, weight, bias), approximate="tanh")


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    n = q.shape[-2]
    mask = torch.tril(torch.ones(n, n, device=q.device)) == 0
    scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(q.shape[-1]))
    return torch.softmax(scores.masked_fill(mask, float("-inf")), dim=-1) @ v


def attention_reference(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.cat([attention(*(x[i : i + 1] for x in (q, k, v))) for i in range(q.shape[0])])


def tiny(x: Tensor) -> Tensor:
    return torch.relu(x + 1) * 2


def tiny_five(a: Tensor, b: Tensor, c: Tensor, d: Tensor, e: Tensor) -> Tensor:
    return (a + b) * c - d * e


def small_mlp(x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
    return F.linear(F.gelu(F.linear(x, w1, b1)), w2, b2)


# -- the table ----------------------------------------------------------------------------------------------------------

F32, BF16 = torch.float32, torch.bfloat16
SMALL = Arg((32, 32), dtype=F32)
QKV = Arg((4, 16, 2048, 64), (1, 8, 512, 64), BF16, F32)

WORKLOADS: tuple[Workload, ...] = (
    Workload(
        "gelu(x+b)*0.5+x",
        gelu_bias_residual,
        (Arg((8192, 4096), (2048, 2048), BF16, F32), Arg((4096,), (2048,), BF16, F32)),
        quick=True,
    ),
    Workload(
        "silu(a)*b",
        silu_mul,
        (Arg((8192, 8192), (2048, 2048), BF16, F32), Arg((8192, 8192), (2048, 2048), BF16, F32)),
    ),
    Workload(
        "8 rounds tanh, sin",
        eight_rounds,
        (Arg((64, 1024, 1024), (1024, 1024), F32),),
        note="arithmetic: 16 special functions an element, some 250 instructions",
    ),
    Workload(
        "rms_norm by hand",
        rms_norm,
        (Arg((16384, 4096), (2048, 2048)), Arg((4096,), (2048,))),
        reference=rms_norm_reference,
    ),
    Workload(
        "layer_norm(x+r), 2 outputs",
        layer_norm_residual,
        (
            Arg((16384, 4096), (2048, 2048), BF16, F32),
            Arg((16384, 4096), (2048, 2048), BF16, F32),
            Arg((4096,), (2048,), BF16, F32),
            Arg((4096,), (2048,), BF16, F32),
        ),
    ),
    Workload("softmax(x/8), short rows", softmax_scaled, (Arg((8192, 8192), (2048, 2048), F32),), quick=True),
    Workload(
        "softmax, long rows",
        softmax,
        (Arg((512, 131072), (32, 131072), F32),),
        note="a row is needed twice and fits no multiprocessor: half of it stays in registers, half is read again from the L2, "
        "and its programs wait for each other once",
    ),
    Workload(
        "cross_entropy",
        cross_entropy,
        (Arg((8192, 50304), (128, 50304)), Arg((8192,), (128,), below=1)),
        reference=cross_entropy_reference,
    ),
    Workload("sum of squares", sum_of_squares, (Arg((1 << 28,), (1 << 22,), F32),), quick=True),
    Workload("column sum of 2x+1", column_sum, (Arg((65536, 4096), (4096, 1024), F32),)),
    Workload(
        "batch statistics, relu",
        batch_stats_relu,
        (Arg((64, 256, 56, 56), (16, 64, 56, 56), F32),),
        note="a channel is needed twice and fits no multiprocessor: half of it stays in registers, which bounds the data on "
        "its way, half is read again from the L2, and its programs wait for each other once",
    ),
    Workload("x.t()+2y", transpose_add, (Arg((8192, 8192), (2048, 2048), F32), Arg((8192, 8192), (2048, 2048), F32))),
    Workload(
        "rotary embedding",
        rotary,
        (
            Arg((8, 32, 2048, 128), (1, 16, 2048, 128), BF16, F32),
            Arg((2048, 128), None, BF16, F32),
            Arg((2048, 128), None, BF16, F32),
        ),
    ),
    Workload(
        "gelu(linear)",
        gelu_linear,
        (
            Arg((8192, 4096), (512, 512), BF16, F32),
            Arg((16384, 4096), (2048, 512), BF16, F32),
            Arg((16384,), (2048,), BF16, F32),
        ),
        note="arithmetic: a matrix product, a library's for all",
    ),
    Workload(
        "attention by hand, causal",
        attention,
        (QKV, QKV, QKV),
        reference=attention_reference,
        note="arithmetic: two matrix products in one library kernel",
        library=functools.partial(F.scaled_dot_product_attention, is_causal=True),
    ),
    Workload("tiny", tiny, (SMALL,), suites=("kernels", "compile", "overhead"), quick=True),
    Workload("tiny, 5 arguments", tiny_five, (SMALL,) * 5, suites=("overhead",)),
    Workload(
        "tiny MLP",
        small_mlp,
        (SMALL, Arg((64, 32), dtype=F32), Arg((64,), dtype=F32), Arg((32, 64), dtype=F32), Arg((32,), dtype=F32)),
        suites=("overhead",),
    ),
)


def select(suite: str, pattern: str, quick: bool, table: Sequence[Workload] = WORKLOADS) -> list[Workload]:
    """The rows of a suite whose name contains ``pattern`` (or one of several, between bars); ``quick`` keeps a few."""
    rows = [w for w in table if suite in w.suites and any(p in w.name for p in pattern.split("|"))]
    return [w for w in rows if w.quick] or rows[:3] if quick else rows


def geometric_mean(values: Sequence[float]) -> float:
    """Of positive numbers; nan of none."""
    return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan
