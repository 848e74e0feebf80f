"""Hand-written nests for tests: a small builder, and ``Case`` = plan of one kernel + inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from tinycompile.base.device import Device
from tinycompile.base.expr import Dim, sym
from tinycompile.base.meta import TensorMeta
from tinycompile.ir.graph import Location
from tinycompile.ir.loops import (
    Axis,
    Buffer,
    Const,
    Index,
    Load,
    Loops,
    Nest,
    Reduce,
    Scalar,
    Scan,
    SizeBinding,
    Store,
    TensorView,
)
from tinycompile.ir.plan import Kernel, Plan
from tinycompile.ops.scalar import SCALAR_OPS

CPU = Device("cpu")
F32 = torch.float32


@dataclass
class Case:
    """One kernel, and the inputs to run it on."""

    name: str
    loops: Loops
    inputs: list[Any] = field(default_factory=list)

    @property
    def plan(self) -> Plan:
        nest = self.loops.steps[0]
        assert isinstance(nest, Nest)
        reads = tuple(dict.fromkeys(s.buffer for s in nest.body if isinstance(s, Load)))
        writes = tuple(dict.fromkeys(s.buffer for s in nest.body if isinstance(s, Store)))
        kernel = Kernel(nest, reads, writes)
        loops = self.loops
        return Plan(
            loops.name,
            CPU,
            loops.inputs,
            loops.sizes,
            loops.buffers,
            (kernel,),
            loops.outputs,
            hints=loops.hints,
            lines=loops.lines,
        )


class Build:
    """Builds a nest statement by statement. Values are names; ``axes`` maps a name to (extent, kind)."""

    def __init__(self, name: str, sizes: dict[str, int] | None = None, **axes: Any) -> None:
        self.name = name
        self.hints = dict(sizes or {})
        self.axes = [Axis(n, *(e if isinstance(e, tuple) else (e,))) for n, e in axes.items()]
        self.body: list[Any] = []
        self.buffers: list[Buffer] = []
        self.inputs: list[Any] = []
        self.bindings: list[SizeBinding] = []
        self.dtypes: dict[str, torch.dtype] = {}
        self.origin = ""

    def axis(self, name: str) -> Any:
        extent = next(a.extent for a in self.axes if a.name == name)
        return sym(name, 0, extent)

    def fresh(self, dtype: torch.dtype, wanted: str = "") -> str:
        name = wanted or f"t{len(self.dtypes)}"
        self.dtypes[name] = dtype
        return name

    def input(
        self, name: str, data: torch.Tensor, shape: tuple[Dim, ...] | None = None, strides: tuple[Dim, ...] | None = None
    ) -> str:
        meta = TensorMeta(shape or tuple(data.shape), strides or tuple(data.stride()), data.dtype, CPU)
        for i, d in enumerate(meta.shape):
            s = None if isinstance(d, int) else d.terms[0][0][0].name
            if s is not None and s not in {b.symbol for b in self.bindings}:
                self.bindings.append(SizeBinding(s, name, i))
        self.buffers.append(Buffer(name, meta, "input"))
        self.inputs.append(data)
        return name

    def output(self, name: str, shape: Sequence[Dim], dtype: torch.dtype, strides: tuple[Dim, ...] | None = None) -> str:
        meta = TensorMeta.contiguous(tuple(shape), dtype, CPU)
        if strides:
            meta = TensorMeta(tuple(shape), strides, dtype, CPU)
        self.buffers.append(Buffer(name, meta, "output"))
        return name

    def load(self, buffer: str, *index: Dim, mask: tuple[Dim, ...] = (), other: Any = 0, up: bool = True) -> str:
        dtype = next(b.meta.dtype for b in self.buffers if b.name == buffer)
        name = self.fresh(dtype)
        self.body.append(Load(name, dtype, buffer, tuple(index), mask, other, self.origin))
        return self.op("cast", name, dtype=F32) if up and dtype in (torch.float16, torch.bfloat16) else name

    def const(self, value: Any, dtype: torch.dtype = F32) -> str:
        name = self.fresh(dtype)
        self.body.append(Const(name, dtype, value, self.origin))
        return name

    def index(self, d: Dim, dtype: torch.dtype = torch.int64) -> str:
        name = self.fresh(dtype)
        self.body.append(Index(name, dtype, d, self.origin))
        return name

    def op(self, op: str, *args: str, dtype: torch.dtype | None = None) -> str:
        result = dtype or (torch.bool if SCALAR_OPS[op].predicate else self.dtypes[args[-1]])
        name = self.fresh(result)
        self.body.append(Scalar(name, result, op, args, self.origin))
        return name

    def reduce(self, kind: str, value: str, *axes: str, dtypes: tuple[torch.dtype, ...] = ()) -> Any:
        pair = kind in ("welford", "online_softmax")
        dtype = torch.int64 if kind.startswith("arg") else self.dtypes[value]
        types = dtypes or ((dtype, dtype) if pair else (dtype,))
        names = tuple(self.fresh(d) for d in types)
        self.body.append(Reduce(names, types, kind, (value,), axes, self.origin))
        return names if pair else names[0]

    def scan(self, kind: str, value: str, axis: str) -> str:
        name = self.fresh(self.dtypes[value])
        self.body.append(Scan((name,), (self.dtypes[value],), kind, (value,), axis, self.origin))
        return name

    def store(self, buffer: str, value: str, *index: Dim, mode: str = "plain") -> None:
        self.body.append(Store(buffer, tuple(index), value, mode, self.origin))

    def case(self, lines: dict[str, Location] | None = None) -> Case:
        outputs = tuple(TensorView(b.name, b.meta) for b in self.buffers if b.role == "output")
        inputs = tuple(b.name for b in self.buffers if b.role == "input")
        origins = tuple(dict.fromkeys(s.origin for s in self.body if s.origin))
        nest = Nest(self.name, tuple(self.axes), tuple(self.body), origins)
        loops = Loops(
            self.name,
            inputs,
            tuple(self.bindings),
            tuple(self.buffers),
            (nest,),
            outputs,
            tuple(self.hints.items()),
            tuple((lines or {}).items()),
        )
        return Case(self.name, loops, self.inputs)
