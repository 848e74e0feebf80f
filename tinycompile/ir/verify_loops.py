"""Checks that Loops keep their own rules. Raises VerifyError naming the rule, the nest and the statement."""

from __future__ import annotations

from typing import Any, NoReturn

import torch

from tinycompile.base import expr as ex
from tinycompile.base.atoms import Call, numeric_range
from tinycompile.base.dtypes import NARROW
from tinycompile.base.errors import VerifyError
from tinycompile.base.expr import Dim, Expr
from tinycompile.ir.loops import (
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
    Statement,
    Store,
    TensorView,
    views_in,
)
from tinycompile.ir.loops_text import print_statement
from tinycompile.ops.scalar import REDUCTIONS, SCALAR_OPS, SCANS


def verify_loops(loops: Loops) -> None:
    """Check a whole program: names, symbols, dtypes, axes, known bounds, and that memory is written before it is read."""
    buffers = {b.name: b for b in loops.buffers}
    if len(buffers) != len(loops.buffers):
        raise VerifyError(f"{loops.name}: two buffers have one name")
    sizes = _verify_sizes(loops)
    for b in loops.buffers:
        _known_symbols((*b.meta.shape, *b.meta.strides, b.meta.offset), sizes, f"buffer {b.name}")
        if b.role not in ("input", "temp", "output"):
            raise VerifyError(f"buffer {b.name} has the unknown role {b.role!r}")
        if b.role == "input" and b.name not in loops.inputs:
            raise VerifyError(f"input buffer {b.name} is no input of {loops.name}")
    written = {b.name for b in loops.buffers if b.role == "input"}
    names: set[str] = set()
    overwritten: set[str] = set()  # inputs
    early: set[str] = set()  # what was read before it was overwritten
    for step in loops.steps:
        if step.name in names:
            raise VerifyError(f"two steps are called {step.name}")
        names.add(step.name)
        if isinstance(step, Nest):
            _after_writes(step, overwritten & early)
            early |= {s.buffer for s in step.body if isinstance(s, Load)} - overwritten
            overwritten |= {s.buffer for s in step.body if isinstance(s, Store) and buffers[s.buffer].role == "input"}
        written |= (
            verify_nest(step, buffers, sizes, written)
            if isinstance(step, Nest)
            else _verify_extern(step, buffers, sizes, written)
        )
    for view in views_in(loops.outputs):
        _verify_view(view, buffers, sizes, written, "an output")


def _after_writes(nest: Nest, overwritten: set[str]) -> None:
    for s in nest.body:
        if isinstance(s, (Load, Store)) and s.buffer in overwritten:
            raise VerifyError(f"nest {nest.name}: {s.buffer} was read before an earlier nest overwrote it, and is used again")


def verify_nest(nest: Nest, buffers: dict[str, Buffer], sizes: set[str], written: set[str]) -> set[str]:
    """Check one nest, given the names of size symbols and of buffers written so far; returns the buffers that it writes."""
    check = _NestCheck(nest, buffers, sizes, written)
    for statement in nest.body:
        check.statement(statement)
    marked = {a.name for a in nest.axes if a.kind == "reduction"}
    if marked != check.reduced:
        raise VerifyError(f"nest {nest.name}: axes marked reduction {sorted(marked)}, but reduced are {sorted(check.reduced)}")
    return check.stored


def _verify_sizes(loops: Loops) -> set[str]:
    sizes: set[str] = set()
    for b in loops.sizes:
        if b.symbol in sizes:
            raise VerifyError(f"size {b.symbol} is bound twice")
        if b.input not in loops.inputs:
            raise VerifyError(f"size {b.symbol} is read from {b.input}, which is no input")
        sizes.add(b.symbol)
    return sizes


def _known_symbols(dims: tuple[Any, ...], sizes: set[str], where: str) -> None:
    for d in dims:
        for s in ex.symbols(d) if isinstance(d, Expr) else ():
            if s.name not in sizes:
                raise VerifyError(f"{where}: the size {s.name} is bound nowhere")


def _verify_view(view: TensorView, buffers: dict[str, Buffer], sizes: set[str], written: set[str], what: str) -> None:
    if view.buffer not in buffers:
        raise VerifyError(f"{what} is a view of the unknown buffer {view.buffer}")
    if view.buffer not in written:
        raise VerifyError(f"{what} is read from {view.buffer}, which is not written yet")
    base = buffers[view.buffer].meta
    if (view.meta.dtype, view.meta.device) != (base.dtype, base.device):
        raise VerifyError(f"{what} is {view.meta}, but its buffer {view.buffer} is {base}")
    _known_symbols((*view.meta.shape, *view.meta.strides, view.meta.offset), sizes, what)


def _verify_extern(call: ExternCall, buffers: dict[str, Buffer], sizes: set[str], written: set[str]) -> set[str]:
    if call.kind not in ("call", "extern"):
        raise VerifyError(f"{call.name}: unknown kind of call {call.kind!r}")
    for view in views_in((call.args, tuple(v for _, v in call.kwargs))):
        _verify_view(view, buffers, sizes, written, f"an argument of {call.name}")
    made = {o for o in call.outputs if o is not None}
    for name in made:
        if name not in buffers:
            raise VerifyError(f"{call.name} makes the unknown buffer {name}")
        if name in written:
            raise VerifyError(f"{call.name} makes {name}, which exists already")
    if call.body is not None and verify_nest(call.body, buffers, sizes, written) != made:
        raise VerifyError(f"{call.name}: its loops do not write what it makes")
    given = {v.buffer for v in views_in((call.args, tuple(v for _, v in call.kwargs)))}
    if call.body is not None and (others := {s.buffer for s in call.body.body if isinstance(s, Load)} - given):
        raise VerifyError(f"{call.name}: its loops read {sorted(others)}, which it is not given")
    return made


class _NestCheck:
    """Walks one nest in order; holds what is defined so far."""

    def __init__(self, nest: Nest, buffers: dict[str, Buffer], sizes: set[str], written: set[str]) -> None:
        self.nest, self.buffers, self.sizes, self.written = nest, buffers, sizes, written
        self.axes = {a.name: a for a in nest.axes}
        self.values: dict[str, torch.dtype] = {}
        self.at: dict[str, frozenset[str]] = {}  # the axes at which each value lives
        self.reduced: set[str] = set()
        self.stored: set[str] = set()
        self.now: Statement | None = None
        if len(self.axes) != len(nest.axes):
            raise VerifyError(f"nest {nest.name}: two axes have one name")
        for a in nest.axes:
            if a.kind not in ("parallel", "reduction"):
                raise VerifyError(f"nest {nest.name}: axis {a.name} has the unknown kind {a.kind!r}")
            _known_symbols((a.extent,), sizes, f"nest {nest.name}, axis {a.name}")

    def fail(self, rule: str) -> NoReturn:
        at = f": {print_statement(self.now)}" if self.now is not None else ""
        raise VerifyError(f"nest {self.nest.name}: {rule}{at}")

    def statement(self, s: Statement) -> None:
        self.now = s
        if isinstance(s, Load):
            self.load(s)
        elif isinstance(s, Const):
            self.define((s.name,), (self.no_half(s.dtype),), self.symbols_at(s.value, axes_allowed=False))
        elif isinstance(s, Index):
            self.define((s.name,), (self.no_half(s.dtype),), self.symbols_at(s.expr))
        elif isinstance(s, Scalar):
            self.scalar(s)
        elif isinstance(s, Reduce):
            self.reduce(s)
        elif isinstance(s, Scan):
            self.scan(s)
        elif isinstance(s, Store):
            self.store(s)
        else:
            self.fail(f"unknown statement {s!r}")

    def define(self, names: tuple[str, ...], dtypes: tuple[torch.dtype, ...], at: frozenset[str]) -> None:
        for name, dtype in zip(names, dtypes, strict=True):
            if name in self.values or name in self.axes or name in self.sizes:
                self.fail(f"the name {name} is taken")
            self.values[name], self.at[name] = dtype, at

    def value(self, name: str) -> torch.dtype:
        if name not in self.values:
            self.fail(f"{name} is used before it is defined")
        return self.values[name]

    def no_half(self, dtype: torch.dtype) -> torch.dtype:
        if dtype in NARROW:
            self.fail("half types and float8 only occur in loads, casts and stores")
        return dtype

    def symbols_at(self, d: Any, axes_allowed: bool = True) -> frozenset[str]:
        """The axes that an expression lives at; every symbol must be an axis, a size, or an earlier integer value."""
        at: set[str] = set()
        for s in ex.symbols(d) if isinstance(d, Expr) else ():
            if s.name in self.axes and axes_allowed:
                if s.stop != self.axes[s.name].extent or s.lo != 0:
                    self.fail(f"{s.name} has the range [{s.lo}, {s.stop}), but the axis has {self.axes[s.name].extent}")
                at.add(s.name)
            elif s.name in self.values:
                if self.values[s.name].is_floating_point or self.values[s.name] is torch.bool:
                    self.fail(f"{s.name} is used as an index, but is {self.values[s.name]}")
                at |= self.at[s.name]
            elif s.name not in self.sizes:
                self.fail(f"the symbol {s.name} is no axis, size or earlier value")
        return frozenset(at)

    def place(self, name: str, index: tuple[Dim, ...], masked: bool) -> tuple[Buffer, frozenset[str]]:
        if name not in self.buffers:
            self.fail(f"unknown buffer {name}")
        buffer = self.buffers[name]
        if len(index) != buffer.meta.rank:
            self.fail(f"{len(index)} index expressions for a buffer of rank {buffer.meta.rank}")
        if not masked:
            for d, size in zip(index, buffer.meta.shape, strict=True):
                self.bounds(d, size)
        return buffer, frozenset().union(*(self.symbols_at(d) for d in index))

    def bounds(self, d: Dim, size: Dim) -> None:
        """An affine index of static extents has a tight range: then it must lie inside the dim."""
        affine = isinstance(d, int) or not any(isinstance(a, Call) or len(m) > 1 for m, _ in d.terms for a in m)
        low, high = numeric_range(d)
        if (
            affine
            and isinstance(size, int)
            and low is not None
            and high is not None
            and high >= low
            and not 0 <= low <= high < size
        ):
            self.fail(f"{d} reaches [{low}, {high}], outside a dim of size {size}")

    def load(self, s: Load) -> None:
        buffer, at = self.place(s.buffer, s.index, bool(s.mask))
        if s.buffer not in self.written | self.stored:
            self.fail("read before it is written")
        if s.dtype != buffer.meta.dtype:
            self.fail(f"the buffer holds {buffer.meta.dtype}")
        self.define((s.name,), (s.dtype,), at.union(*(self.symbols_at(m) for m in s.mask)))

    def scalar(self, s: Scalar) -> None:
        if s.op not in SCALAR_OPS:
            self.fail(f"unknown scalar op {s.op}")
        spec = SCALAR_OPS[s.op]
        dtypes = [self.value(a) for a in s.args]
        if len(dtypes) != spec.arity:
            self.fail(f"{s.op} takes {spec.arity} arguments")
        at: frozenset[str] = frozenset().union(*(self.at[a] for a in s.args))
        if s.op != "cast":
            data = dtypes[1:] if s.op == "where" else dtypes
            if s.op == "where" and dtypes[0] is not torch.bool:
                self.fail("the condition is not bool")
            if any(d != data[0] for d in data):
                self.fail(f"arguments of several dtypes: {[str(d) for d in dtypes]}")
            if self.no_half(data[0]) is not None and _domain(data[0]) not in spec.domain:
                self.fail(f"{s.op} does not take {data[0]}")
            if s.dtype != (torch.bool if spec.predicate else data[0]):
                self.fail(f"{s.op} of {data[0]} is not {s.dtype}")
        self.define((s.name,), (s.dtype,), at)

    def reduce(self, s: Reduce) -> None:
        if REDUCTIONS.get(s.kind) != len(s.names):
            self.fail(f"{s.kind} is no reduction to {len(s.names)} values")
        if not s.axes or any(a not in self.axes for a in s.axes) or len(set(s.axes)) != len(s.axes):
            self.fail("the axes to reduce are not distinct axes of the nest")
        dtype = self.no_half(self.value(s.args[0]))
        results = (torch.int64,) if s.kind in ("argmax", "argmin") else (dtype,) * len(s.names)
        if len(s.args) != 1 or s.dtypes != results:
            self.fail(f"{s.kind} of {dtype} gives {[str(d) for d in results]}")
        if s.kind in ("any", "all") and dtype is not torch.bool:
            self.fail(f"{s.kind} takes bool")
        if s.kind in ("welford", "online_softmax") and not dtype.is_floating_point:
            self.fail(f"{s.kind} takes floats")
        self.reduced |= set(s.axes)
        self.define(s.names, s.dtypes, self.at[s.args[0]] - set(s.axes))

    def scan(self, s: Scan) -> None:
        if SCANS.get(s.kind) != len(s.names) or len(s.args) != 1:
            self.fail(f"{s.kind} is no scan to {len(s.names)} values")
        if s.axis not in self.axes:
            self.fail(f"{s.axis} is no axis")
        if s.dtypes != (self.no_half(self.value(s.args[0])),):
            self.fail("a scan keeps the dtype")
        self.reduced.add(s.axis)
        self.define(s.names, s.dtypes, self.at[s.args[0]] | {s.axis})

    def store(self, s: Store) -> None:
        buffer, _ = self.place(s.buffer, s.index, masked=False)
        if buffer.role == "input" and s.mode != "plain":
            self.fail("an input is added to")
        if s.mode not in ("plain", "atomic_add", "replace"):
            self.fail(f"unknown mode {s.mode!r}")
        if s.buffer in self.written and s.mode == "plain" and buffer.role != "input":
            self.fail("written before, in an earlier step")
        want, have = buffer.meta.dtype, self.value(s.value)
        if have != want and not (want in NARROW and have is torch.float32):
            self.fail(f"a {have} value for a buffer of {want}")
        self.stored.add(s.buffer)


def _domain(dtype: torch.dtype) -> str:
    return "b" if dtype is torch.bool else "f" if dtype.is_floating_point else "i"
