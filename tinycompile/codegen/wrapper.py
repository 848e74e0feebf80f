"""The wrapper: readable Python that allocates, launches and returns. One function, ``call(*inputs) -> tuple``.

Names in its namespace (see ``runtime/build.py``): ``empty`` (allocate on the plan's device), ``stream`` (its current raw
stream), ``counters``, ``as_strided``, ``restride``, one launcher per kernel and one function per extern target. A buffer that
the user called like one of these is called otherwise.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from typing import Any

import torch

from tinycompile.base import expr as ex
from tinycompile.base.device import Device
from tinycompile.codegen import choices
from tinycompile.codegen.writer import Writer
from tinycompile.ir.loops import ExternCall, SizeBinding, TensorView
from tinycompile.ir.plan import Alloc, Choice, Kernel, Plan, Step
from tinycompile.ir.source import KernelArg, KernelSource


def extern_name(kind: str, target: str) -> str:
    """The name in the wrapper's namespace of an extern target: ``op_mm`` or ``torch_fft_fft``."""
    return f"op_{target}" if kind == "call" else re.sub(r"\W", "_", target)


def emit_wrapper(
    plan: Plan,
    kernels: Mapping[str, KernelSource],
    products: Mapping[str, Sequence[KernelSource]] | None = None,
    tf32: bool = False,
) -> str:
    """Print the wrapper of ``plan``; ``kernels`` maps each nest's name to its generated source, ``products`` each choice's to
    the kernels that can stand for it. ``tf32``: see :func:`~tinycompile.codegen.triton.products.emit_product`."""
    return Wrapper(plan, kernels, products or {}, tf32).text()


class Wrapper:
    """Writes the text of one plan's wrapper."""

    def __init__(
        self, plan: Plan, kernels: Mapping[str, KernelSource], products: Mapping[str, Sequence[KernelSource]], tf32: bool
    ) -> None:
        self.plan, self.kernels, self.products, self.tf32 = plan, kernels, products, tf32
        self.buffers = plan.named
        self.inputs = set(plan.inputs)
        made = {o for s in plan.steps if isinstance(s, ExternCall) for o in s.outputs if o is not None}
        self.anywhere = self.inputs | made  # may begin anywhere in their storage; what is allocated here is all of it
        self.lines = plan.places
        self.launches = sum(not _idle(kernels[k.nest.name]) for k in plan.kernels) + 2 * len(plan.choices)
        externs = {extern_name(s.kind, s.target) for s in plan.leaves if isinstance(s, ExternCall)}
        own = {k.name for k in kernels.values()} | {k.name for made in self.products.values() for k in made}
        self.locals = _locals(plan, _NAMESPACE | externs | own)
        self.times_returned = Counter(o.buffer for o in plan.outputs if isinstance(o, TensorView))
        self.out = Writer()
        self.ending: list[str] = []  # variables whose memory the next kernel takes over

    def text(self) -> str:
        out = self.out
        inputs = ", ".join(map(self.name, self.plan.inputs))
        for choice in self.plan.choices:
            choices.write_functions(self, choice, self.products[choice.name])
        with out.block("def call(given):" if self.plan.donated else f"def call({inputs}):"):
            if self.plan.donated:
                out.lines(f"{inputs}, = given", "given.clear()  # what is given up is freed as it is used")
            for size in self.plan.sizes:
                out.line(self.size_line(size))
            if self.launches > 1:
                out.line("queue = stream()")
            for step in self.plan.steps:
                self.step(step)
            results = [self.output(o) for o in self.plan.outputs]
            out.line(f"return ({', '.join(results)}{',' if len(results) == 1 else ''})")
        return out.text()

    def step(self, step: Step) -> None:
        """One step of the plan."""
        if isinstance(step, Choice):
            choices.write_call(self, step, self.tf32)
        elif isinstance(step, Alloc):
            self.alloc(step)
        elif isinstance(step, Kernel):
            self.launch(step)
        elif isinstance(step, ExternCall):
            self.extern(step)
        else:
            self.out.line(f"del {self.name(step.buffer)}")

    def name(self, buffer: str) -> str:
        """The variable that holds a buffer."""
        return self.locals.get(buffer, buffer)

    def size_line(self, size: SizeBinding) -> str:
        held = self.name(size.input)
        return f"{size.symbol} = {held}" if size.dim is None else f"{size.symbol} = {held}.size({size.dim})"

    def alloc(self, step: Alloc) -> None:
        meta = self.buffers[step.buffer].meta
        size, stride = _tuple(meta.shape), _tuple(meta.strides)
        if step.reuses is None:
            self.out.line(f"{self.name(step.buffer)} = empty({size}, {stride}, {meta.dtype})")
        else:
            held, old = self.name(step.reuses), self.buffers[step.reuses].meta
            start = f"{held}.storage_offset()" if step.reuses in self.anywhere else "0"
            note = "in place" if step.in_place else "reuse"
            alike = (old.shape, old.strides) == (meta.shape, meta.strides)
            taken = held if alike else f"as_strided({held}, {size}, {stride}, {start})"
            if step.buffer in self.times_returned and (not alike or step.reuses in self.inputs):
                taken += ".detach()"  # a result is no view, and no tensor of another's
            self.out.line(f"{self.name(step.buffer)} = {taken}  # {note}")
            if step.in_place:
                self.ending.append(held)
            elif step.reuses not in self.inputs:
                self.out.line(f"del {held}")

    def launch(self, step: Kernel) -> None:
        source = self.kernels[step.nest.name]
        if _idle(source):
            self.out.line(f"# {source.name}: no work")
            return
        args = [self.kernel_arg(a) for a in source.args]
        self.out.line(f"{source.name}({', '.join(['queue' if self.launches > 1 else 'stream()', *args])})")
        if self.ending:
            self.out.line(f"del {', '.join(self.ending)}")
            self.ending.clear()

    def kernel_arg(self, a: KernelArg) -> str:
        """What a launcher is given."""
        if a.kind == "scratch":
            return f"empty(({a.value},), (1,), torch.{a.dtype})"
        if a.kind in ("counters", "spare"):  # each launch asks for its own
            return "counters"
        return self.name(a.name) if a.kind == "pointer" else str(a.value)

    def extern(self, step: ExternCall) -> None:
        args = [self.arg(a) for a in step.args] + [f"{k}={self.arg(v)}" for k, v in step.kwargs]
        call = f"{extern_name(step.kind, step.target)}({', '.join(args)})"
        names = [self.name(o) if o is not None else "_" for o in step.outputs]
        target = ", ".join(names) + ("," if step.several and len(names) == 1 else "")
        self.out.line((f"{target} = {call}" if names else call) + self.comment(step))
        for output, name in zip(step.outputs, names, strict=True):
            if output is not None:
                meta = self.buffers[output].meta
                shape, strides = _tuple(meta.shape), _tuple(meta.strides)
                known = step.kind == "call" or all(isinstance(d, int) for d in meta.shape)
                test = "" if known else f"{name}.shape != {shape} or "  # see capture/extern_sizes.py
                self.out.line(f"if {test}{name}.stride() != {strides}: {name} = restride({name}, {shape}, {strides})")

    def comment(self, step: ExternCall) -> str:
        """Where the user wrote it."""
        found = [self.lines[o] for o in step.origins if o in self.lines]
        return f"  # {os.path.basename(found[-1].file)}:{found[-1].line}" if found else ""

    def arg(self, value: Any) -> str:
        if isinstance(value, TensorView):
            return self.view(value)
        if isinstance(value, (tuple, list)):
            inner = [self.arg(v) for v in value]
            return f"({', '.join(inner)}{',' if len(inner) == 1 else ''})"
        if isinstance(value, Device):
            return f"torch.device({str(value)!r})"
        if isinstance(value, float):
            return repr(value) if abs(value) < float("inf") else f"float({str(value)!r})"
        if isinstance(value, complex):
            return f"complex({self.arg(value.real)}, {self.arg(value.imag)})"
        if isinstance(value, (ex.Expr, torch.dtype, torch.layout, torch.memory_format)):
            return str(value)
        if value is None or isinstance(value, (bool, int, str)):
            return repr(value)
        raise TypeError(f"an extern call cannot take {value!r}")

    def view(self, view: TensorView) -> str:
        base = self.buffers[view.buffer].meta
        if (base.shape, base.strides, base.offset) == (view.meta.shape, view.meta.strides, view.meta.offset):
            return self.name(view.buffer)
        shift, held = view.meta.offset - base.offset, self.name(view.buffer)
        if view.buffer in self.anywhere:  # as_strided counts from the storage's start
            shift = f"{held}.storage_offset() + {shift}" if shift != 0 else f"{held}.storage_offset()"  # type: ignore[assignment]
        return f"as_strided({held}, {_tuple(view.meta.shape)}, {_tuple(view.meta.strides)}, {shift})"

    def output(self, value: Any) -> str:
        """A returned value. The buffer's own tensor stands for a view of all of it only where nobody else has that tensor."""
        if not isinstance(value, TensorView):
            return self.arg(value)
        shown = self.view(value)
        alone = value.buffer not in self.inputs and self.times_returned[value.buffer] == 1
        if value.alias == "detach" and not (alone and shown == self.name(value.buffer)):
            return f"{shown}.detach()"
        if alone:
            return shown
        # not view_as: it makes up its own strides for sizes of 1
        return f"{shown}.expand_as({shown})" if value.alias and shown == self.name(value.buffer) else shown


_NAMESPACE = frozenset(
    ("given", "torch", "empty", "counters", "stream", "queue", "as_strided", "restride", "call", "float", "min", "max", "_")
)


def _locals(plan: Plan, taken: Set[str]) -> dict[str, str]:
    """Other names for the buffers and inputs whose own are ``taken``."""
    held = {*plan.inputs, *(b.name for b in plan.buffers), *(s.symbol for s in plan.sizes)}
    found: dict[str, str] = {}
    for name in sorted(held & taken):
        other = f"{name}_"
        while other in held or other in taken:
            other += "_"
        held.add(other)
        found[name] = other
    return found


def _idle(source: KernelSource) -> bool:
    """Whether a kernel has no work at all."""
    return any(isinstance(g, int) and g == 0 for g in source.grid)


def _tuple(dims: tuple[Any, ...]) -> str:
    return f"({', '.join(map(str, dims))}{',' if len(dims) == 1 else ''})"
