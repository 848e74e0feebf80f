"""Prints a Plan as Python text: kernels, library calls and buffer lifetimes in order, then the reasons, one a line."""

from __future__ import annotations

from tinycompile.base.expr import Dim
from tinycompile.base.meta import TensorMeta
from tinycompile.ir.loops import ExternCall
from tinycompile.ir.loops_text import print_argument, print_buffer, print_extern, print_nest
from tinycompile.ir.plan import Alloc, Choice, Decision, Free, Kernel, Plan, Step


def print_plan(plan: Plan) -> str:
    """The whole plan as one function, with each fusion and refusal listed at the end."""
    moved = sum((k.bytes_moved for k in plan.kernels), start=0)
    lines = [
        f"# {len(plan.kernels)} kernels on {plan.device}; {moved_text(moved, plan.library_bytes, plan.bytes_minimum)}",
        f"def {plan.name}({', '.join(plan.inputs)}):",
    ]
    for b in plan.sizes:
        lines.append(f"    {b.symbol} = {b.input}" + ("" if b.dim is None else f".shape[{b.dim}]"))
    lines += [f"    {print_buffer(b)}" for b in plan.buffers]
    known = {b.name: b.meta for b in plan.buffers}
    where = {name: f"{loc.file.rsplit('/', 1)[-1]}:{loc.line}" for name, loc in plan.lines}
    for step in plan.steps:
        lines += [f"    {line}" for line in _step(step, known, where)]
    lines.append(f"    return {print_argument(plan.outputs, known)}")
    lines += ["", "", "# Decisions", *(f"# {print_decision(d)}" for d in plan.decisions)]
    return "\n".join(lines) + "\n"


def print_decision(d: Decision) -> str:
    """One line: ``a + b: fused [rule] why``."""
    return f"{d.first} + {d.second}: {'fused' if d.fused else 'not fused'} [{d.rule}] {d.why}"


def moved_text(kernels: Dim, libraries: Dim, minimum: Dim) -> str:
    """How many bytes go to and from memory, beside the fewest that this graph's inputs and outputs need."""
    parts = f"moved: {bytes_text(kernels)} by kernels"
    if libraries != 0:
        parts += f", {bytes_text(libraries)} by library calls"
    parts += f"; inputs once and outputs once: {bytes_text(minimum)}"
    total = kernels + libraries
    return f"{parts} ({total / minimum:.2f}x)" if isinstance(total, int) and isinstance(minimum, int) and minimum else parts


def bytes_text(count: Dim) -> str:
    """``12.6 MB``; a symbolic count as its expression."""
    if not isinstance(count, int):
        return f"{count} bytes"
    if count < 1000:
        return f"{count} bytes"
    for unit, size in (("GB", 10**9), ("MB", 10**6)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count / 1000:.3g} kB"


def _step(step: Step, known: dict[str, TensorMeta], where: dict[str, str]) -> list[str]:
    if isinstance(step, Alloc):
        how = f", {'in_place' if step.in_place else 'reuses'}=buf.{step.reuses}" if step.reuses else ""
        return [f"alloc(buf.{step.buffer}{how})"]
    if isinstance(step, Free):
        return [f"free(buf.{step.buffer})"]
    if isinstance(step, ExternCall):
        return ["", print_extern(step, known)]
    if isinstance(step, Choice):
        way = [line for s in step.library for line in _step(s, known, where) if line]
        one = _kernel(step.product, where)
        return ["", f"with fastest({step.name!r}):  # measured at the first call", *_indented([*way, "# or", *one])]
    return ["", *_kernel(step, where)]


def _indented(lines: list[str]) -> list[str]:
    return [f"    {line}" for line in lines]


def _kernel(k: Kernel, where: dict[str, str]) -> list[str]:
    reads, writes = (", ".join(names) or "nothing" for names in (k.reads, k.writes))
    lines = [f"# reads {reads}; writes {writes}; moves {bytes_text(k.bytes_moved)}, {k.flops} operations; {k.why}"]
    return [*lines, *(line for nest in k.nests for line in print_nest(nest, where).splitlines())]
