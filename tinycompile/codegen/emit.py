"""``emit(plan, target) -> Source``: one emitter per language, one wrapper for both."""

from __future__ import annotations

from dataclasses import replace

import tinycompile.codegen.cpp.emit as cpp
import tinycompile.codegen.triton.emit as triton
from tinycompile.base.target import Target
from tinycompile.codegen.wrapper import emit_wrapper, extern_name
from tinycompile.ir.loops import ExternCall, TensorView
from tinycompile.ir.plan import Plan
from tinycompile.ir.source import KernelSource, Source

_EMITTERS = {"triton": triton.emit_kernel, "cpp": cpp.emit_kernel}


def emit(plan: Plan, target: Target) -> Source:
    """Generate every kernel of ``plan`` and the wrapper that launches them."""
    emit_kernel = _EMITTERS[target.language]
    kernels: dict[str, KernelSource] = {}
    for kernel in plan.kernels:
        kernels[kernel.nest.name] = replace(emit_kernel(kernel, plan, target, kernel.nest.name), flops=kernel.flops)
    prelude = cpp.prelude(target) if target.language == "cpp" and kernels else ""
    externs = dict.fromkeys((extern_name(s.kind, s.target), s.kind, s.target) for s in plan.steps if isinstance(s, ExternCall))
    aliases = tuple(
        (i, plan.inputs.index(o.buffer))
        for i, o in enumerate(plan.outputs)
        if isinstance(o, TensorView) and o.buffer in plan.inputs and o.alias != "detach"
    )
    wrapper = emit_wrapper(plan, kernels)
    return Source(plan.name, plan.device, tuple(kernels.values()), wrapper, prelude, tuple(externs), aliases)
