"""A launch of alike nests in C++: one function for any of them, and one that calls it for each."""

from __future__ import annotations

from dataclasses import replace

from tinycompile.base.target import Target
from tinycompile.codegen.alike import alike
from tinycompile.codegen.cpp.emit import emit_kernel
from tinycompile.codegen.writer import Writer
from tinycompile.ir.plan import Kernel, Plan
from tinycompile.ir.source import KernelArg, KernelSource


def emit_horizontal(kernel: Kernel, plan: Plan, target: Target, name: str) -> KernelSource:
    """Generate ``kernel`` as the function ``kernel_<name>``, whose pointers are those of each member in turn."""
    common = alike(kernel, plan, f"{name}_one")
    one = emit_kernel(common.kernel, common.plan, target, common.kernel.nest.name)
    width = len(common.members[0].buffers)
    places = {b: i for i, b in enumerate(common.members[0].buffers)}
    order = [places[a.name] for a in one.args if a.kind == "pointer"]  # as the common function takes them
    dtypes = {b: str(plan.metas[b].dtype).removeprefix("torch.") for b in (*kernel.reads, *kernel.writes)}
    args = tuple(KernelArg(m.buffers[i], "pointer", dtypes[m.buffers[i]]) for m in common.members for i in order)
    out = Writer("//")
    with out.block(f'extern "C" int kernel_{name}(void** pointers, const int64_t* sizes, int threads) {{', "}"):
        out.line(f"static const int64_t numel[] = {{{', '.join(str(m.numel) for m in common.members)}}};")
        out.line("int fault = 0;")
        with out.block(f"for (int k = 0; k < {len(common.members)}; k++)", ""):
            out.line(f"fault |= kernel_{common.kernel.nest.name}(pointers + k * {width}, numel + k, threads);")
        out.line("return fault;")
    return replace(
        one, name=name, text=f"{one.text}\n\n{out.text()}", args=args, bytes_moved=kernel.bytes_moved, why=kernel.why
    )
