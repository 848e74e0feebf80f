"""Rows that several programs share: in the interpreter, where programs run one by one, a kernel is run until all have met."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import tinycompile
from tests.codegen.triton.harness import offline_ok
from tests.passes.test_attention import captured, on_cuda
from tinycompile.base import expr as ex
from tinycompile.base.target import A100, H100, Target
from tinycompile.codegen.emit import emit
from tinycompile.fuse.planner import plan
from tinycompile.ir.plan import Plan
from tinycompile.ir.source import KernelSource, Source
from tinycompile.lower.lowering import lower
from tinycompile.passes.pipeline import optimize
from tinycompile.runtime.interpreter_worker import worker

pytestmark = pytest.mark.cpu


def planned(fn: Callable[..., Any], *args: Tensor, target: Target = H100) -> tuple[Plan, Source]:
    """Plan and source for a GPU."""
    made = plan(lower(optimize(on_cuda(captured(fn, *args)))), target)
    return made, emit(made, target)


def run(fn: Callable[..., Any], *args: Tensor, columns: int | None = None) -> list[Tensor]:
    """The only kernel's results. Each run of all programs completes one more meeting."""
    made, source = planned(fn, *args)
    (kernel,) = source.kernels
    config = kernel.configs[0] if columns is None else next(c for c in kernel.configs if c.constants[0][1] == columns)
    memory: dict[str, Any] = dict(zip(made.inputs, args, strict=True))
    for b in made.buffers:
        if b.role != "input":
            shape, strides = ([ex.evaluate(d, {}) for d in dims] for dims in (b.meta.shape, b.meta.strides))
            memory[b.name] = torch.empty_strided(shape, strides, dtype=b.meta.dtype).fill_(torch.nan)
    given = []
    for a in kernel.args:
        size = ex.evaluate(a.value, {}) if a.value is not None else 0
        own = a.kind in ("counters", "spare", "scratch")
        given.append(torch.zeros(size, dtype=getattr(torch, a.dtype)) if own else memory[a.name])
    for _ in range(1 + kernel.text.count(" meet(")):
        worker().run(kernel, given, config)
    return [memory[o.buffer].view([ex.evaluate(d, {}) for d in o.meta.shape]) for o in made.outputs]


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x * 3, -1)


def normalised(x: Tensor) -> Tensor:
    mean = x.mean((0, 2), keepdim=True)
    variance = x.var((0, 2), unbiased=False, keepdim=True)
    return torch.relu((x - mean) * torch.rsqrt(variance + 1e-5))


def two_meetings(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    largest = x.amax(-1, keepdim=True)
    total = (x - largest).exp().sum(-1, keepdim=True)
    return x - largest - total.log(), largest, total


def rms(x: Tensor, weight: Tensor) -> Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * weight


CASES: tuple[tuple[Callable[..., Any], tuple[tuple[int, ...], ...], torch.dtype], ...] = (
    (softmax, ((3, 20000),), torch.float32),
    (softmax, ((2, 32768),), torch.float32),
    (softmax, ((2, 17001),), torch.float64),
    (softmax, ((40000,),), torch.float32),
    (normalised, ((9, 5, 2111),), torch.float32),
    (normalised, ((10, 3, 4096),), torch.float32),  # parts kept in registers
    (two_meetings, ((3, 19997),), torch.float32),
    (rms, ((4, 24576), (24576,)), torch.bfloat16),
)


@pytest.mark.parametrize(("fn", "shapes", "dtype"), CASES, ids=lambda v: getattr(v, "__name__", str(v)))
def test_programs_agree_with_torch(fn: Callable[..., Any], shapes: tuple[tuple[int, ...], ...], dtype: torch.dtype) -> None:
    args = [torch.randn(s, dtype=dtype) for s in shapes]
    expected = fn(*(a.double() if dtype != torch.bfloat16 else a for a in args))
    got = run(fn, *args)
    tolerance = {torch.float32: 2e-6, torch.float64: 1e-13, torch.bfloat16: 1e-2}[dtype]
    for mine, true in zip(got, expected if isinstance(expected, tuple) else (expected,), strict=True):
        torch.testing.assert_close(mine.double(), true.double(), atol=tolerance, rtol=tolerance * 4)


def test_special_values() -> None:
    x = torch.randn(4, 20000)
    x[0, 15000:] = -torch.inf
    x[1] = -torch.inf
    x[2, 19999] = torch.nan
    x[3, 7] = torch.inf
    torch.testing.assert_close(run(softmax, x)[0], softmax(x), equal_nan=True)


def kernel_of(fn: Callable[..., Any], *shapes: tuple[int, ...], target: Target = H100) -> KernelSource:
    return planned(fn, *(torch.empty(s) for s in shapes), target=target)[1].kernels[0]


def total(x: Tensor) -> Tensor:
    return x.sum(-1)


def down(x: Tensor) -> Tensor:
    return torch.softmax(x, 0)


def shares(kernel: KernelSource) -> bool:
    return any(a.kind == "counters" for a in kernel.args)


def test_who_shares() -> None:
    assert shares(kernel_of(softmax, (512, 131072)))
    assert not shares(kernel_of(softmax, (512, 8192)))  # a row fits one program
    assert not shares(kernel_of(total, (512, 131072)))  # nothing needs the row again
    assert not shares(kernel_of(softmax, (2, 1 << 22)))  # too many parts to be on the card at once
    assert not shares(kernel_of(softmax, (512, 131072), target=replace(H100, units=14)))
    assert not shares(kernel_of(down, (131072, 512)))  # rows don't lie along memory
    on_cpu = plan(lower(optimize(captured(softmax, torch.empty(8, 131072)))), H100)
    assert not shares(emit(on_cpu, H100).kernels[0])  # the interpreter runs no two programs at once


def test_few_rows_are_one_kernel() -> None:
    made, source = planned(normalised, torch.empty(64, 256, 3136))
    assert len(source.kernels) == 1 and made.kernels[0].bytes_moved == made.bytes_minimum
    assert source.kernels[0].text.count(" meet(") == 1  # both statistics at once


@pytest.mark.parametrize("arch", [80, 90])
@pytest.mark.parametrize(("fn", "shape"), [(softmax, (512, 131072)), (normalised, (64, 256, 3136))])
def test_compiles_offline(fn: Callable[..., Any], shape: tuple[int, ...], arch: int) -> None:
    kernel = kernel_of(fn, shape, target=A100 if arch == 80 else H100)
    for config in kernel.configs[:2]:
        offline_ok(replace(kernel, configs=(config,)), arch, vectors=True)


def test_the_last_block_is_loaded_once() -> None:
    for kernel in (kernel_of(softmax, (512, 131072)), kernel_of(softmax, (2000, 20011))):
        loads = [line.split("=")[0].strip() for line in kernel.text.splitlines() if "tl.load(x_ptr" in line]
        assert loads == ["x_kept", "x", "x"], kernel.text  # before the first walk, and in each walk over the others


def test_only_the_last_block_is_masked() -> None:
    lines = kernel_of(softmax, (2000, 20011)).text.splitlines()
    assert [line.split("=")[0].strip() for line in lines if "tl.load(" in line and "mask=col_mask" in line] == ["x_kept"]
    assert sum("tl.store(" in line and "mask=col_mask" in line for line in lines) == 1


@pytest.mark.parametrize("length", [20011, 16384 * 3, 16385])
def test_long_rows_of_one_program(length: int) -> None:
    x = torch.randn(3, length)
    got = tinycompile.compile(normalised_rows, backend="triton")(x)
    wide = x.double()
    true = (wide - wide.mean(-1, keepdim=True)) * torch.rsqrt(wide.var(-1, unbiased=False, keepdim=True) + 1e-5)
    torch.testing.assert_close(got.double(), true, rtol=1e-5, atol=2e-6)


def normalised_rows(x: Tensor) -> Tensor:
    return (x - x.mean(-1, keepdim=True)) * torch.rsqrt(x.var(-1, unbiased=False, keepdim=True) + 1e-5)
