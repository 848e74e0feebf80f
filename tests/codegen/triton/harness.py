"""Runs a Case both ways: generated Triton in the interpreter, and the reference interpreter of Loops."""

from __future__ import annotations

import functools
from collections.abc import Iterable

import torch

from tests.codegen.triton.nests import Case
from tinycompile.base import expr as ex
from tinycompile.base.target import H100, Target
from tinycompile.codegen.triton.emit import emit_kernel
from tinycompile.ir.loops_reference import run_loops
from tinycompile.ir.source import Config, KernelArg, KernelSource
from tinycompile.runtime.interpreter_worker import worker

RTOL = {torch.float16: 1e-3, torch.bfloat16: 8e-3, torch.float32: 2e-6, torch.float64: 1e-14}


@functools.lru_cache(maxsize=None)
def _emit(key: int, target: Target) -> KernelSource:
    case = _CASES[key]
    return emit_kernel(case.plan.kernels[0], case.plan, target, case.name)


_CASES: dict[int, Case] = {}


def emitted(case: Case, target: Target = H100) -> KernelSource:
    """The generated kernel."""
    _CASES[id(case)] = case
    return _emit(id(case), target)


def interpret(case: Case, source: KernelSource) -> list[torch.Tensor]:
    """Run a generated kernel; fresh outputs hold NaN or a pattern first, so that a missing store shows."""
    loops = case.loops
    memory = dict(
        zip(
            loops.inputs,
            (x.clone() if isinstance(x, torch.Tensor) and x._is_view() is False else x for x in case.inputs),
            strict=True,
        )
    )
    sizes = {b.symbol: memory[b.input] if b.dim is None else memory[b.input].shape[b.dim] for b in loops.sizes}
    stores = {s.buffer: s.mode for s in loops.steps[0].body if hasattr(s, "mode")}
    for b in loops.buffers:
        if b.role != "input":
            shape, strides = ([ex.evaluate(d, sizes) for d in dims] for dims in (b.meta.shape, b.meta.strides))
            memory[b.name] = torch.empty_strided(shape, strides, dtype=b.meta.dtype).fill_(
                0 if stores[b.name] != "plain" else 77 if b.meta.dtype != torch.bool else 1
            )
    worker().run(source, [memory[a.name] if a.kind == "pointer" else ex.evaluate(a.value, sizes) for a in source.args])
    return [memory[o.buffer] for o in loops.outputs]


def check(case: Case, rtol: float | None = None, atol: float = 0.0, target: Target = H100) -> KernelSource:
    """The generated kernel agrees with the reference; returns it."""
    source = emitted(case, target)
    got = interpret(case, source)
    want = run_loops(case.loops, [x.clone() if isinstance(x, torch.Tensor) else x for x in case.inputs])
    for view, g, w in zip(case.loops.outputs, got, want, strict=True):
        compare(f"{case.name}.{view.buffer}", g, w, rtol, atol, source.text)
    return source


def compare(name: str, got: torch.Tensor, want: torch.Tensor, rtol: float | None, atol: float, text: str = "") -> None:
    """Exact for discrete dtypes, else within rtol plus atol; the message shows the kernel."""
    if not got.dtype.is_floating_point:
        rtol, atol = 0.0, 0.0
    elif rtol is None:
        rtol = RTOL[got.dtype]
    try:
        torch.testing.assert_close(got, want, rtol=rtol, atol=atol, equal_nan=True)
    except AssertionError as error:
        raise AssertionError(f"{name}: {error}\n{text}") from None


_CALLS_LIBDEVICE = """
import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def bare(x_ptr, out_ptr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out_ptr + i, libdevice.FUNCTION(tl.load(x_ptr + i)))
"""


@functools.cache
def library_frame(function: str, dtype: torch.dtype, arch: int) -> int:
    """The bytes that libdevice's function keeps on the stack (a table, no spill), by the installed Triton: those of a kernel
    that does nothing but call it."""
    from tinycompile.runtime.triton_build import compile_offline

    args = tuple(KernelArg(name, "pointer", str(dtype)[6:]) for name in ("x", "out"))
    text = _CALLS_LIBDEVICE.replace("FUNCTION", function)
    return compile_offline(KernelSource("bare", "triton", text, args, (1,), (Config((("BLOCK", 128),)),)), arch).spills


def offline_ok(source: KernelSource, arch: int, vectors: bool = False) -> None:
    """Compiles without spills, with 16-byte loads where the case is aligned and contiguous."""
    from tinycompile.runtime.triton_build import compile_offline

    built = compile_offline(source, arch)
    frame = library_frame("tan", torch.float32, arch) if "libdevice.tan(" in source.text else 0
    assert built.spills == frame, f"{source.name} spills {built.spills} bytes on sm_{arch}\n{source.text}"
    if vectors:
        assert "ld.global" in built.ptx
        wide = [
            w
            for w in ("v4.b32", "v4.u32", "v2.b64", "v2.u64")
            if any("ld.global" in line and w in line for line in built.ptx.splitlines())
        ]
        assert wide, f"{source.name} has no 16-byte loads on sm_{arch}\n{source.text}"


def all_ids(cases: Iterable[Case]) -> list[str]:
    """Test ids."""
    return [c.name for c in cases]
