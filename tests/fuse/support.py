"""Nests written by hand, plans run step by step on numpy, and real functions traced to Loops."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from tests.lower.support import meta_of
from tinycompile.base import expr as ex
from tinycompile.base.device import Device
from tinycompile.base.expr import Dim
from tinycompile.base.meta import TensorMeta
from tinycompile.base.target import H100, Target
from tinycompile.eager.fake import tracing
from tinycompile.fuse.planner import plan as make_plan
from tinycompile.ir.builder import GraphBuilder
from tinycompile.ir.loops import (
    Axis,
    Buffer,
    Const,
    ExternCall,
    Index,
    Load,
    Loops,
    Nest,
    Reduce,
    Scalar,
    Scan,
    SizeBinding,
    Statement,
    Store,
    TensorView,
)
from tinycompile.ir.loops_reference import _resolve, run_loops, run_nest
from tinycompile.ir.plan import Alloc, Free, Kernel, Plan
from tinycompile.ir.plan_text import print_plan
from tinycompile.ir.verify_loops import verify_loops
from tinycompile.ir.verify_plan import verify_plan
from tinycompile.lower.lowering import lower
from tinycompile.passes.pipeline import optimize

CPU = Device("cpu")
F32, BF16 = torch.float32, torch.bfloat16
HALF = (torch.float16, torch.bfloat16)
CPU_TARGET = Target("cpp", "avx2", 8, 1 << 20, vector=32)


class NestMaker:
    """Writes one nest. ``i`` are its axes as index expressions; methods append a statement and return the value's name."""

    def __init__(self, program: Program, name: str, extents: Sequence[Dim]) -> None:
        self.program, self.name, self.extents = program, name, tuple(extents)
        self.i = [ex.sym(f"i{d}", 0, n) for d, n in enumerate(extents)]
        self.body: list[Statement] = []
        self.dtypes: dict[str, torch.dtype] = {}
        self.reduced: set[str] = set()

    def _name(self) -> str:
        return f"v{len(self.body)}"

    def load(self, buffer: str, *index: Dim, mask: Sequence[Dim] = (), other: Any = 0) -> str:
        """A load; a half value comes widened to float32."""
        dtype = self.program.buffers[buffer].meta.dtype
        name = self.put(Load(self._name(), dtype, buffer, index, tuple(mask), other), dtype)
        return self.cast(name, F32) if dtype in HALF else name

    def put(self, s: Any, dtype: torch.dtype) -> str:
        self.body.append(s)
        self.dtypes[s.name] = dtype
        return str(s.name)

    def cast(self, value: str, dtype: torch.dtype) -> str:
        return self.put(Scalar(self._name(), dtype, "cast", (value,)), dtype)

    def op(self, word: str, *args: Any) -> str:
        """A scalar op on values; Python numbers become constants."""
        given = [a for a in args if isinstance(a, str)]
        dtype = self.dtypes[given[-1]]
        names = tuple(a if isinstance(a, str) else self.const(a, dtype) for a in args)
        result = torch.bool if word in ("eq", "ne", "lt", "le", "gt", "ge") else dtype
        return self.put(Scalar(self._name(), result, word, names), result)

    def const(self, value: Any, dtype: torch.dtype = F32) -> str:
        return self.put(Const(self._name(), dtype, value), dtype)

    def index(self, d: Dim) -> str:
        return self.put(Index(self._name(), torch.int64, d), torch.int64)

    def reduce(self, kind: str, value: str, *axes: int) -> Any:
        """One name, or two for welford and online_softmax."""
        count = 2 if kind in ("welford", "online_softmax") else 1
        dtype = torch.int64 if kind.startswith("arg") else self.dtypes[value]
        names = tuple(f"v{len(self.body)}{'ab'[k]}" for k in range(count))
        over = tuple(f"i{a}" for a in axes)
        self.reduced.update(over)
        self.body.append(Reduce(names, (dtype,) * count, kind, (value,), over))
        self.dtypes.update(dict.fromkeys(names, dtype))
        return names if count > 1 else names[0]

    def scan(self, kind: str, value: str, axis: int) -> str:
        self.reduced.add(f"i{axis}")
        name, dtype = self._name(), self.dtypes[value]
        self.body.append(Scan((name,), (dtype,), kind, (value,), f"i{axis}"))
        self.dtypes[name] = dtype
        return name

    def store(self, buffer: str, value: str, *index: Dim, mode: str = "plain") -> None:
        self.body.append(Store(buffer, index, value, mode))

    def done(self) -> None:
        """Append the nest to its program."""
        kinds = ["reduction" if f"i{d}" in self.reduced else "parallel" for d in range(len(self.extents))]
        axes = tuple(Axis(f"i{d}", n, k) for d, (n, k) in enumerate(zip(self.extents, kinds, strict=True)))
        self.program.steps.append(Nest(self.name, axes, tuple(self.body), (self.name,)))


class Program:
    """Writes Loops by hand."""

    def __init__(self) -> None:
        self.buffers: dict[str, Buffer] = {}
        self.steps: list[Nest | ExternCall] = []
        self.inputs: list[str] = []
        self.hints: dict[str, int] = {}

    def buffer(
        self, name: str, shape: Sequence[Dim], dtype: torch.dtype = F32, role: str = "temp", device: Device = CPU
    ) -> str:
        self.buffers[name] = Buffer(name, TensorMeta.contiguous(tuple(shape), dtype, device), role)
        if role == "input":
            self.inputs.append(name)
        return name

    def input(self, name: str, *shape: Dim, dtype: torch.dtype = F32) -> str:
        return self.buffer(name, shape, dtype, "input")

    def nest(self, name: str, *extents: Dim) -> NestMaker:
        return NestMaker(self, name, extents)

    def map(self, name: str, word: str, *sources: Any, dtype: torch.dtype | None = None, device: Device = CPU) -> str:
        """A pointwise nest ``name = word(*sources)`` over the shape of the first buffer; the rest broadcast or are numbers."""
        first = self.buffers[sources[0]].meta
        m = self.nest(name, *first.shape)
        self.buffer(name, first.shape, dtype or first.dtype, device=device)
        values: list[Any] = []
        for s in sources:
            if not isinstance(s, str):
                values.append(s)
                continue
            shape = self.buffers[s].meta.shape
            at = m.i[len(m.i) - len(shape) :]
            values.append(m.load(s, *(0 if n == 1 else i for n, i in zip(shape, at, strict=True))))
        m.store(name, m.op(word, *values), *m.i)
        m.done()
        return name

    def row_reduce(self, name: str, kind: str, source: str) -> Any:
        """A reduction over the last dim; welford and online_softmax make two buffers."""
        shape = self.buffers[source].meta.shape
        m = self.nest(name, *shape)
        result = m.reduce(kind, m.load(source, *m.i), len(shape) - 1)
        names = (name,) if isinstance(result, str) else (f"{name}_0", f"{name}_1")
        for b, v in zip(names, (result,) if isinstance(result, str) else result, strict=True):
            self.buffer(b, shape[:-1], m.dtypes[v])
            m.store(b, v, *m.i[:-1])
        m.done()
        return names if len(names) > 1 else name

    def over_rows(self, name: str, word: str, full: str, rows: str) -> str:
        """``name[i, j] = word(full[i, j], rows[i])``."""
        shape = self.buffers[full].meta.shape
        m = self.nest(name, *shape)
        self.buffer(name, shape, self.buffers[full].meta.dtype)
        m.store(name, m.op(word, m.load(full, *m.i), m.load(rows, *m.i[:-1])), *m.i)
        m.done()
        return name

    def extern(self, name: str, target: str, *sources: str, shape: Sequence[Dim]) -> str:
        self.buffer(name, shape)
        views = tuple(TensorView(s, self.buffers[s].meta) for s in sources)
        self.steps.append(ExternCall(name, "extern", target, views, (), (name,), (name,)))
        return name

    def loops(self, *outputs: str) -> Loops:
        """The program, with these outputs."""
        for o in outputs:
            b = self.buffers[o]
            if b.role == "temp":
                self.buffers[o] = Buffer(o, b.meta, "output")
        views = tuple(TensorView(o, self.buffers[o].meta) for o in outputs)
        found = Loops(
            "f", tuple(self.inputs), (), tuple(self.buffers.values()), tuple(self.steps), views, tuple(self.hints.items())
        )
        verify_loops(found)
        return found


def make_inputs(loops: Loops) -> list[torch.Tensor]:
    """Random inputs of the loops' own (static) shapes; integers are small indices."""
    found = []
    by_name = {b.name: b for b in loops.buffers}
    for name in loops.inputs:
        meta = by_name[name].meta
        shape = [int(n) for n in meta.shape]  # type: ignore[arg-type]
        floats = meta.dtype.is_floating_point
        found.append(torch.randn(shape).to(meta.dtype) if floats else torch.randint(0, 4, shape).to(meta.dtype))
    return found


def run_plan(plan: Plan, inputs: Sequence[Any]) -> list[Any]:
    """Run a plan with its memory as planned: fresh memory holds NaN, a reused buffer is its predecessor's memory, a freed one is
    gone. Kernels run on the reference interpreter."""
    given = dict(zip(plan.inputs, inputs, strict=True))
    sizes = {b.symbol: given[b.input] if b.dim is None else given[b.input].shape[b.dim] for b in plan.sizes}
    buffers = {b.name: b for b in plan.buffers}
    memory: dict[str, torch.Tensor] = {b.name: given[b.name] for b in plan.buffers if b.role == "input"}
    ending: list[str] = []
    for step in plan.steps:
        if isinstance(step, Alloc):
            memory[step.buffer] = _memory_of(step, memory, buffers, sizes)
            ending += [step.reuses] if step.in_place else []
        elif isinstance(step, Free):
            del memory[step.buffer]
        elif isinstance(step, Kernel):
            for nest in step.nests:
                run_nest(nest, buffers, memory, sizes)
            for old in ending:
                del memory[old]
            ending.clear()
        else:
            held = {b.name: b for b in plan.buffers if b.name in memory or b.name in step.outputs}
            made = tuple(n for n in step.outputs if n is not None)
            part = Loops("call", tuple(memory), (), tuple(_as_input(b, memory) for b in held.values()), (step,),
                         tuple(TensorView(n, buffers[n].meta) for n in made))  # fmt: skip
            memory.update(zip(made, run_loops(_with_sizes(part, plan), [*memory.values(), *sizes.values()]), strict=True))
    return [_resolve(o, buffers, memory, sizes) for o in plan.outputs]


def _memory_of(step: Alloc, memory: dict[str, torch.Tensor], buffers: Any, sizes: Any) -> torch.Tensor:
    meta = buffers[step.buffer].meta
    if step.reuses is None:
        return _garbage(meta, sizes)
    old = memory[step.reuses] if step.in_place else memory.pop(step.reuses)
    return old.view([ex.evaluate(n, sizes) for n in meta.shape]) if step.in_place else old


def _with_sizes(part: Loops, plan: Plan) -> Loops:
    names = tuple(f"{s.symbol}_value" for s in plan.sizes)
    bound = tuple(SizeBinding(s.symbol, n, None) for s, n in zip(plan.sizes, names, strict=True))
    return replace(part, inputs=(*part.inputs, *names), sizes=bound)


def _as_input(b: Buffer, memory: dict[str, torch.Tensor]) -> Buffer:
    return Buffer(b.name, b.meta, "input" if b.name in memory else "temp")


def _garbage(meta: TensorMeta, sizes: dict[str, int]) -> torch.Tensor:
    shape, strides = ([ex.evaluate(d, sizes) for d in dims] for dims in (meta.shape, meta.strides))
    fresh = torch.empty_strided(shape, strides, dtype=meta.dtype)
    return fresh.fill_(float("nan") if meta.dtype.is_floating_point else 77 if meta.dtype is not torch.bool else True)


def clone(inputs: Sequence[Any]) -> list[Any]:
    """Copies with their whole storage, for programs that write to their inputs or view more of them."""
    return [_copy(t) if isinstance(t, torch.Tensor) else t for t in inputs]


def _copy(t: torch.Tensor) -> torch.Tensor:
    return torch.empty(0, dtype=t.dtype).set_(t.untyped_storage().clone(), t.storage_offset(), t.shape, t.stride())


def check(loops: Loops, inputs: Sequence[Any] | None = None, target: Target = H100, rounding: float = 1e-5) -> Plan:
    """Plan, verify, print, and compare the plan's answer with the unfused program's."""
    inputs = make_inputs(loops) if inputs is None else inputs
    verify_loops(loops)
    found = make_plan(loops, target)
    verify_plan(found)
    ast.parse(print_plan(found))
    one, other = clone(inputs), clone(inputs)
    want, got = run_loops(without_rounding(loops, found), one), run_plan(found, other)
    for w, g in zip((*want, *one), (*got, *other), strict=True):
        if isinstance(w, torch.Tensor):
            slack = {torch.bfloat16: 2e-2, torch.float16: 4e-3}.get(w.dtype, rounding)
            torch.testing.assert_close(g, w, rtol=slack, atol=slack, equal_nan=True)
        else:
            assert w == g
    return found


def without_rounding(loops: Loops, p: Plan) -> Loops:
    """The unfused program, with float32 in place of each half buffer that the plan does not store: a value in registers is not
    rounded, one that is stored and used again is used as rounded."""
    left = {b.name for b in p.buffers}
    gone = {b.name for b in loops.buffers if b.name not in left and b.meta.dtype in HALF}

    def widened(s: Statement) -> Statement:
        return replace(s, dtype=F32) if isinstance(s, Load) and s.buffer in gone else s

    buffers = tuple(replace(b, meta=replace(b.meta, dtype=F32)) if b.name in gone else b for b in loops.buffers)
    steps = tuple(replace(s, body=tuple(map(widened, s.body))) if isinstance(s, Nest) else s for s in loops.steps)
    return replace(loops, buffers=buffers, steps=steps)


def kernel_names(p: Plan) -> list[str]:
    return [k.nest.name for k in p.kernels]


def rules(p: Plan, fused: bool) -> set[str]:
    """The rules of all fusions, or of all refusals."""
    return {d.rule for d in p.decisions if d.fused is fused}


def traced(fn: Callable[..., Any], *inputs: torch.Tensor, products: bool = False) -> Loops:
    """A real function through tracing, the passes and lowering. ``products``: library calls say what they compute."""
    builder = GraphBuilder()
    with tracing(builder):
        fakes = [builder.placeholder(f"x{k}", meta_of(t)) for k, t in enumerate(inputs)]
        result = fn(*fakes)
    outputs = result if isinstance(result, (tuple, list)) else (result,)
    return lower(optimize(builder.finish("f", outputs)), products)
