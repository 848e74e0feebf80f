"""The benchmark kernels at their real sizes compile for sm_80 and sm_90 without spills, with 16-byte loads."""

from __future__ import annotations

import math

import pytest
import torch

from tests.codegen.triton.harness import emitted, offline_ok
from tests.codegen.triton.nests import F32, Build, Case
from tinycompile.base.expr import Dim, sym

pytestmark = pytest.mark.cpu

BF16 = torch.bfloat16


def tensor(*shape: int, dtype: torch.dtype = F32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def gelu_bias() -> Case:
    b = Build("bias_gelu", i0=8192, i1=4096)
    b.input("x", tensor(8192, 4096, dtype=BF16))
    b.input("bias", tensor(4096, dtype=BF16))
    b.output("out", (8192, 4096), BF16)
    i, j = b.axis("i0"), b.axis("i1")
    x = b.load("x", i, j)
    h = b.op("add", x, b.load("bias", j))
    inner = b.op(
        "mul",
        b.op("add", h, b.op("mul", b.op("mul", b.op("mul", h, h), h), b.const(0.044715))),
        b.const(math.sqrt(2 / math.pi)),
    )
    g = b.op("mul", b.op("mul", h, b.const(0.5)), b.op("add", b.op("tanh", inner), b.const(1.0)))
    b.store("out", b.op("add", b.op("mul", g, b.const(0.5)), x), i, j)
    return b.case()


def swiglu() -> Case:
    b = Build("swiglu", i0=8192 * 8192)
    for name in "ab":
        b.input(name, tensor(8192 * 8192, dtype=BF16))
    b.output("out", (8192 * 8192,), BF16)
    i = b.axis("i0")
    a = b.load("a", i)
    b.store("out", b.op("mul", b.op("mul", a, b.op("sigmoid", a)), b.load("b", i)), i)
    return b.case()


def tanh_sin() -> Case:
    b = Build("tanh_sin", i0=1 << 26)
    b.input("x", tensor(1 << 26))
    b.output("out", (1 << 26,), F32)
    v = b.load("x", b.axis("i0"))
    for _ in range(8):
        v = b.op("add", b.op("mul", b.op("tanh", v), b.const(1.1)), b.op("sin", v))
    b.store("out", v, b.axis("i0"))
    return b.case()


def rms_norm() -> Case:
    b = Build("rms_norm", i0=16384, i1=(4096, "reduction"))
    b.input("x", tensor(16384, 4096, dtype=BF16))
    b.input("w", tensor(4096, dtype=BF16))
    b.output("out", (16384, 4096), BF16)
    i, j = b.axis("i0"), b.axis("i1")
    x = b.load("x", i, j)
    scale = b.op("rsqrt", b.op("add", b.op("div", b.reduce("sum", b.op("mul", x, x), "i1"), b.const(4096.0)), b.const(1e-6)))
    b.store("out", b.op("mul", b.op("mul", x, scale), b.load("w", j)), i, j)
    return b.case()


def layer_norm() -> Case:
    b = Build("layer_norm", i0=16384, i1=(4096, "reduction"))
    for name in "xr":
        b.input(name, tensor(16384, 4096, dtype=BF16))
    for name in ("h", "out"):
        b.output(name, (16384, 4096), BF16)
    i, j = b.axis("i0"), b.axis("i1")
    h = b.op("add", b.load("x", i, j), b.load("r", i, j))
    b.store("h", h, i, j)
    mean, m2 = b.reduce("welford", h, "i1")
    b.store("out", b.op("mul", b.op("sub", h, mean), b.op("rsqrt", b.op("add", m2, b.const(1e-5)))), i, j)
    return b.case()


def softmax(rows: int, columns: int) -> Case:
    b = Build(f"softmax_{columns}", i0=rows, i1=(columns, "reduction"))
    b.input("x", tensor(rows, columns))
    b.output("out", (rows, columns), F32)
    i, j = b.axis("i0"), b.axis("i1")
    x = b.load("x", i, j)
    top, total = b.reduce("online_softmax", x, "i1")
    b.store("out", b.op("div", b.op("exp", b.op("sub", x, top)), total), i, j)
    return b.case()


def cross_entropy() -> Case:
    b = Build("cross_entropy", i0=8192, i1=(50304, "reduction"))
    b.input("logits", tensor(8192, 50304, dtype=BF16))
    b.input("target", tensor(8192, dtype=torch.int64))
    b.output("loss", (8192,), F32)
    i, j = b.axis("i0"), b.axis("i1")
    top, total = b.reduce("online_softmax", b.load("logits", i, j), "i1")
    picked = b.load("logits", i, sym(b.load("target", i), 0, 50304))
    b.store("loss", b.op("sub", b.op("add", b.op("log", total), top), picked), i)
    return b.case()


def sum_of_squares() -> Case:
    b = Build("sum_of_squares", i0=2048, i1=(1 << 17, "reduction"))
    b.input("x", tensor(1 << 28))
    b.output("out", (2048,), F32)
    x = b.load("x", b.axis("i0") * (1 << 17) + b.axis("i1"))
    b.store("out", b.reduce("sum", b.op("mul", x, x), "i1"), b.axis("i0"))
    return b.case()


def column_sum() -> Case:
    b = Build("column_sum", i0=16, i1=(4096, "reduction"), i2=4096)
    b.input("x", tensor(65536, 4096))
    b.output("out", (16, 4096), F32)
    c, r, j = b.axis("i0"), b.axis("i1"), b.axis("i2")
    b.store("out", b.reduce("sum", b.load("x", c * 4096 + r, j), "i1"), c, j)
    return b.case()


def batch_norm() -> Case:
    b = Build("batch_norm", n=(64, "reduction"), c=256, hw=(3136, "reduction"))
    b.input("x", tensor(64, 256, 3136))
    b.output("out", (64, 256, 3136), F32)
    index = [b.axis(a) for a in ("n", "c", "hw")]
    x = b.load("x", *index)
    mean, m2 = b.reduce("welford", x, "n", "hw")
    y = b.op("mul", b.op("sub", x, mean), b.op("rsqrt", b.op("add", m2, b.const(1e-5))))
    b.store("out", b.op("maximum", y, b.const(0.0)), *index)
    return b.case()


def transpose_add() -> Case:
    b = Build("transpose_add", i0=8192, i1=8192)
    b.input("x", tensor(8192, 8192), strides=(1, 8192))
    b.input("y", tensor(8192, 8192))
    b.output("out", (8192, 8192), F32)
    i, j = b.axis("i0"), b.axis("i1")
    b.store("out", b.op("add", b.load("x", i, j), b.op("mul", b.load("y", i, j), b.const(2.0))), i, j)
    return b.case()


def rotary() -> Case:
    b = Build("rotary", i0=256, i1=2048, i2=128)
    b.input("q", tensor(256, 2048, 128, dtype=BF16))
    for name in ("cos", "sin"):
        b.input(name, tensor(2048, 128, dtype=BF16))
    b.output("out", (256, 2048, 128), BF16)
    h, s, d = (b.axis(a) for a in ("i0", "i1", "i2"))
    low = b.op("neg", b.load("q", h, s, d + 64, mask=(63 - d,)))
    high = b.load("q", h, s, d - 64, mask=(d - 64,))
    first = b.op("lt", b.index(d), b.const(64, torch.int64))
    turned = b.op("mul", b.op("where", first, low, high), b.load("sin", s, d))
    b.store("out", b.op("add", b.op("mul", b.load("q", h, s, d), b.load("cos", s, d)), turned), h, s, d)
    return b.case()


def dynamic_flat() -> Case:
    n: Dim = sym("s0", 2)
    b = Build("dynamic_flat", {"s0": 1000003}, i0=n)
    b.input("x", tensor(1000003), (n,), (1,))
    b.output("out", (n,), F32)
    b.store("out", b.op("mul", b.load("x", b.axis("i0")), b.const(3.0)), b.axis("i0"))
    return b.case()


def unaligned_flat() -> Case:
    b = Build("unaligned_flat", i0=1000003)
    b.input("x", tensor(1000003, dtype=BF16))
    b.output("out", (1000003,), BF16)
    b.store("out", b.op("mul", b.load("x", b.axis("i0")), b.const(3.0)), b.axis("i0"))
    return b.case()


def looped_scan() -> Case:
    b = Build("cumsum", i0=64, i1=(1 << 18, "reduction"))
    b.input("x", tensor(64, 1 << 18))
    b.output("out", (64, 1 << 18), F32)
    b.store("out", b.scan("sum", b.load("x", b.axis("i0"), b.axis("i1")), "i1"), b.axis("i0"), b.axis("i1"))
    return b.case()


CASES = [
    gelu_bias(),
    swiglu(),
    tanh_sin(),
    rms_norm(),
    layer_norm(),
    softmax(8192, 8192),
    softmax(512, 131072),
    cross_entropy(),
    sum_of_squares(),
    column_sum(),
    batch_norm(),
    transpose_add(),
    rotary(),
    dynamic_flat(),
    unaligned_flat(),
    looped_scan(),
]


@pytest.mark.parametrize("arch", [80, 90])
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_benchmark_kernels(case: Case, arch: int) -> None:
    offline_ok(emitted(case), arch, vectors=True)
