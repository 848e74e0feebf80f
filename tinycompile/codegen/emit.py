"""``emit(plan, target) -> Source``: one emitter per language, one wrapper for both."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import tinycompile.codegen.cpp.emit as cpp
import tinycompile.codegen.cpp.horizontal as cpp_horizontal
import tinycompile.codegen.triton.emit as triton
import tinycompile.codegen.triton.horizontal as triton_horizontal
from tinycompile.base import expr as ex
from tinycompile.base.target import Target
from tinycompile.codegen import choices
from tinycompile.codegen.triton.products import emit_product, emit_skinny
from tinycompile.codegen.wrapper import emit_wrapper, extern_name
from tinycompile.ir.loops import ExternCall, TensorView, views_in
from tinycompile.ir.plan import Alloc, Kernel, Plan
from tinycompile.ir.source import KernelArg, KernelSource, Source

_EMITTERS = {
    "triton": (triton.emit_kernel, triton_horizontal.emit_horizontal),
    "cpp": (cpp.emit_kernel, cpp_horizontal.emit_horizontal),
}


def emit(plan: Plan, target: Target, tf32: bool = False, ready: Callable[[KernelSource], None] | None = None) -> Source:
    """Generate every kernel of ``plan`` and the wrapper that launches them. ``tf32``: products of float32 may round to it.
    ``ready``: called with each kernel that is sure to run, as soon as it is there."""
    emit_kernel, emit_horizontal = _EMITTERS[target.language]
    kernels: dict[str, KernelSource] = {}
    for kernel in plan.kernels:
        make = emit_skinny if kernel.product else emit_horizontal if kernel.more else emit_kernel
        made = kernels[kernel.nest.name] = replace(make(kernel, plan, target, kernel.nest.name), flops=kernel.flops)
        if ready is not None:
            ready(made)
    products = {c.name: emit_product(c.product, plan, target, c.name, tf32) for c in plan.choices}
    return assemble(plan, kernels, target, products, tf32)


def described(kernel: Kernel, plan: Plan, language: str, text: str) -> KernelSource:
    """A kernel that a registered device made: its parameters are the buffers that it reads, those that it writes, and every
    size of the plan."""
    dtypes = {b.name: str(b.meta.dtype).removeprefix("torch.") for b in plan.buffers}
    args = [KernelArg(name, "pointer", dtypes[name]) for name in dict.fromkeys((*kernel.reads, *kernel.writes))]
    args += [KernelArg(s.symbol, "size", "int64", ex.sym(s.symbol, 2)) for s in plan.sizes]
    return KernelSource(
        kernel.nest.name, language, text, tuple(args), bytes_moved=kernel.bytes_moved, flops=kernel.flops, why=kernel.why
    )


def assemble(
    plan: Plan,
    kernels: Mapping[str, KernelSource],
    target: Target,
    products: Mapping[str, Sequence[KernelSource]] | None = None,
    tf32: bool = False,
) -> Source:
    """The kernels, and the wrapper that launches them. ``products``: by choice, the kernels that can stand for it."""
    prelude = cpp.prelude(target) if target.language == "cpp" and kernels else ""
    externs = dict.fromkeys((extern_name(s.kind, s.target), s.kind, s.target) for s in plan.leaves if isinstance(s, ExternCall))
    aliases = tuple(
        (i, plan.inputs.index(o.buffer))
        for i, o in enumerate(plan.outputs)
        if isinstance(o, TensorView) and o.buffer in plan.inputs and o.alias != "detach"
    )
    offered = products or {}
    made = (*kernels.values(), *(k for found in offered.values() for k in found))
    wrapper = emit_wrapper(plan, kernels, offered, tf32)
    aligned = _aligned(plan, made) if target.language == "triton" else ()  # C++ takes any address
    taken = {s.reuses for s in plan.steps if isinstance(s, Alloc) and s.in_place}
    donated, overwritten = (tuple(i for i, n in enumerate(plan.inputs) if n in given) for given in (set(plan.donated), taken))
    contested = tuple(choices.described(c, offered[c.name]) for c in plan.choices)
    return Source(
        plan.name, plan.device, made, wrapper, prelude, tuple(externs), aliases, aligned, donated, overwritten, contested
    )


def _aligned(plan: Plan, kernels: Iterable[KernelSource]) -> tuple[int, ...]:
    """Inputs whose addresses kernels take, and those given to a torch function without a record: it may return a view."""
    read = {a.name for k in kernels for a in k.args if a.kind == "pointer"}
    for step in plan.leaves:
        if isinstance(step, ExternCall) and step.kind == "extern":
            read |= {v.buffer for v in views_in((step.args, tuple(v for _, v in step.kwargs)))}
    return tuple(i for i, name in enumerate(plan.inputs) if name in read)
