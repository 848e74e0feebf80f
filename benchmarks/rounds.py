"""``python -m benchmarks.rounds``: what bounds eight rounds of ``tanh(x) * 1.1 + sin(x)`` in float32 on a CUDA device.

Our generated kernel beside kernels by hand that give up exactness for speed, and a copy of as many bytes:

* ``hardware``: both functions are one instruction of the special function unit each, with no care for range or error;
* ``tanh by hardware``, ``sin by hardware``: so that the special function unit and the multipliers share the work;
* ``short polynomials``: multiplications and additions alone, as few as leave two digits.

Without a GPU nothing is measured.
"""

from __future__ import annotations

import functools
import statistics
import sys
from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch import Tensor

import tinycompile
from benchmarks.timing import copy_call, samples
from benchmarks.workloads import eight_rounds
from tinycompile.base.config import config
from tinycompile.codegen.triton.library import sin_near, tanh

ROUNDS: tl.constexpr = tl.constexpr(8)
DESIGNS = ("hardware", "tanh by hardware", "sin by hardware", "short polynomials")
BLOCKS = ((1024, 4), (2048, 8), (2048, 4))  # elements and warps of a program


@triton.jit
def _tanh_approx(x: tl.tensor) -> tl.tensor:
    return tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
def _sin_approx(x: tl.tensor) -> tl.tensor:
    return tl.inline_asm_elementwise("sin.approx.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
def _tanh_short(x: tl.tensor) -> tl.tensor:
    """An odd polynomial of degree 9 on [-2.2, 2.2]: least squares, error 3e-3."""
    x = tl.minimum(tl.maximum(x, -2.2), 2.2)
    s = x * x
    return x * ((((0.00089998 * s - 0.01334393) * s + 0.08242791) * s - 0.3019052) * s + 0.99405663)


@triton.jit
def _sin_short(x: tl.tensor) -> tl.tensor:
    """An odd polynomial of degree 7 on [-2.2, 2.2]: least squares, error 3e-5."""
    s = x * x
    return x * (((-0.0001718992 * s + 0.008245423) * s - 0.16655874) * s + 0.99996462)


@triton.jit
def rounds(x_ptr: tl.tensor, y_ptr: tl.tensor, BLOCK: tl.constexpr, DESIGN: tl.constexpr) -> None:
    """One block of elements; ``DESIGN``: a position in DESIGNS."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at)
    for _ in tl.static_range(ROUNDS):
        if DESIGN == 0:
            x = _tanh_approx(x) * 1.1 + _sin_approx(x)
        if DESIGN == 1:
            x = _tanh_approx(x) * 1.1 + sin_near(x)
        if DESIGN == 2:
            x = tanh(x) * 1.1 + _sin_approx(x)
        if DESIGN == 3:
            x = _tanh_short(x) * 1.1 + _sin_short(x)
    tl.store(y_ptr + at, x)


def launch(x: Tensor, y: Tensor, block: int, warps: int, design: int) -> Tensor:
    """All blocks."""
    rounds[(x.numel() // block,)](x, y, block, design, num_warps=warps)
    return y


def main() -> int:
    """Print the table."""
    if not torch.cuda.is_available():
        print("torch sees no CUDA device here", file=sys.stderr)
        return 2
    config.on_error = "raise"
    torch.manual_seed(0)
    x = torch.randn(64, 1024, 1024, device="cuda")
    y, ours = torch.empty_like(x), tinycompile.compile(eight_rounds)
    calls: dict[str, Callable[[], object]] = {"copy": copy_call(2 * x.nbytes, "cuda"), "ours": functools.partial(ours, x)}
    some = x[:1].clamp(-2.1, 2.1)
    exact = eight_rounds(some.double())
    errors = {"ours": (ours(x)[:1] - eight_rounds(x[:1].double())).abs().max().item()}
    for number, name in enumerate(DESIGNS):
        errors[name] = (launch(some, torch.empty_like(some), 1024, 4, number) - exact).abs().max().item()
        for block, warps in BLOCKS:
            calls[f"{name}, {block} elements, {warps} warps"] = functools.partial(launch, x, y, block, warps, number)
    times = {name: statistics.median(t) for name, t in samples(calls, "cuda", 2.0).items()}
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {triton.__version__}; {x.numel()} elements")
    print(f"{'':44}{'ms':>8}{'% copy':>8}{'largest error':>15}")
    for name, t in times.items():
        error = errors.get(name.partition(",")[0])
        print(f"{name:44}{t * 1e3:8.3f}{times['copy'] / t:8.0%}{'' if error is None else f'{error:15.1e}'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
