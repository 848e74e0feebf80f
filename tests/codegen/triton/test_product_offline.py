"""Every configuration of generated products compiles for sm_80 and sm_90 without spills, and uses tensor cores."""

from __future__ import annotations

import functools

import pytest
import torch
from torch.nn import functional as F

from tests.codegen.triton.products import Made, product_of
from tinycompile.base.target import A100, H100
from tinycompile.ir.source import Config, KernelSource
from tinycompile.runtime.triton_build import compile_offline

pytestmark = pytest.mark.cpu

TARGETS = {80: A100, 90: H100}
MATRIX = {(90, torch.bfloat16): "wgmma.mma_async", (80, torch.bfloat16): "mma.sync"}
COPY_ENGINE = "cp.async.bulk.tensor"
ONLY = {"decode": "_streamed", "batch": "_boxed", "int8": "_boxed", "float8": "_boxed"}  # what is new in these cases


def scaled(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    one = torch.ones((), device=x.device)
    return torch._scaled_mm(x, w, one, one, out_dtype=torch.bfloat16)


@functools.cache
def built(arch: int, dtype: torch.dtype, name: str) -> Made:
    """bias and gelu (of a size that a tile a program suits, of long sums, or of few rows), SwiGLU, or a batch turned round."""
    x, w = torch.empty(8192, 4096, dtype=dtype, device="meta"), torch.empty(4096, 4096, dtype=dtype, device="meta")
    if name == "long":
        x, w = (torch.empty(64, 1 << 15, dtype=dtype, device="meta") for _ in range(2))
    if name == "decode":
        x, w = torch.empty(16, 8192, dtype=dtype, device="meta"), torch.empty(11008, 8192, dtype=dtype, device="meta")
    if name == "batch":
        x, w = torch.empty(64, 512, 256, dtype=dtype, device="meta"), torch.empty(64, 512, 1024, dtype=dtype, device="meta")
        return product_of(lambda x, w: F.silu(x.transpose(1, 2) @ w), x, w, target=TARGETS[arch])
    if dtype.itemsize == 1:
        x, w = torch.empty(4100, 4112, dtype=dtype, device="meta"), torch.empty(4112, 4112, dtype=dtype, device="meta")
        scale = torch.empty((), device="meta")
        multiply = torch._int_mm if dtype is torch.int8 else scaled
        return product_of(lambda x, w, s: F.silu(multiply(x, w.t()).float() * s), x, w, scale, target=TARGETS[arch])
    if name == "swiglu":
        return product_of(lambda x, w, v: F.silu(F.linear(x, w)) * F.linear(x, v), x, w, w.clone(), target=TARGETS[arch])
    return product_of(
        lambda x, w, b: F.gelu(F.linear(x, w, b)),
        x,
        w,
        torch.empty(w.shape[0], dtype=dtype, device="meta"),
        target=TARGETS[arch],
    )


def cases() -> list[tuple[int, torch.dtype, str, KernelSource, Config]]:
    return [
        (arch, dtype, name, kernel, config)
        for arch in TARGETS
        for dtype, name in (
            (torch.bfloat16, "gelu"),
            (torch.bfloat16, "long"),
            (torch.bfloat16, "swiglu"),
            (torch.bfloat16, "decode"),
            (torch.bfloat16, "batch"),
            (torch.float32, "gelu"),
            (torch.int8, "int8"),
            (torch.float8_e4m3fn, "float8"),
        )
        for kernel in built(arch, dtype, name).source.kernels
        if kernel.name in built(arch, dtype, name).source.offered and kernel.name.endswith(ONLY.get(name, ""))
        for config in kernel.configs
    ]


def case_id(case: tuple[int, torch.dtype, str, KernelSource, Config]) -> str:
    arch, dtype, name, kernel, config = case
    return f"sm_{arch}-{str(dtype)[6:]}-{name}-{kernel.name}-{'-'.join(str(v) for _, v in config.constants)}"


@pytest.mark.parametrize("case", cases(), ids=case_id)
def test_no_spills(case: tuple[int, torch.dtype, str, KernelSource, Config]) -> None:
    arch, dtype, _, kernel, config = case
    found = compile_offline(kernel, arch, config)
    assert found.spills == 0, kernel.text
    assert found.shared <= TARGETS[arch].shared
    wanted = MATRIX.get((arch, dtype))
    if wanted is not None and dict(config.constants)["ROWS"] >= 64:
        assert wanted in found.ptx
    assert (COPY_ENGINE in found.ptx) is kernel.name.endswith("_boxed")
