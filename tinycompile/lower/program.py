"""``Program``: Loops in the making. Holds graph values, buffers, names and steps while nodes are lowered one by one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from tinycompile.base.device import Device
from tinycompile.base.errors import InternalError
from tinycompile.base.meta import TensorMeta
from tinycompile.ir import loops as ir
from tinycompile.ir.builder import refs_in, size_sources
from tinycompile.ir.graph import Graph, Node, Ref
from tinycompile.lower.nest import NestBuilder
from tinycompile.lower.values import TensorValue, ViewStep, is_alias

# What generated code can compute with; tensors of other dtypes only meet torch's own kernels.
COMPUTABLE = frozenset((
    torch.float16, torch.bfloat16, torch.float32, torch.float64,
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
))  # fmt: skip
_AXIS_NAMES = frozenset(f"i{k}" for k in range(64))


@dataclass
class Program:
    """``values`` maps a node to its TensorValue, to a tuple of them (None where unused), or to a dim for numeric inputs.
    ``products``: library calls that multiply matrices say what they compute, see ``lower/products.py``."""

    graph: Graph
    products: bool = False
    values: dict[str, Any] = field(default_factory=dict)
    metas: dict[str, TensorMeta] = field(default_factory=dict)
    roles: dict[str, str] = field(default_factory=dict)
    steps: list[ir.Nest | ir.ExternCall] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.hints = dict(self.graph.hints)
        self.items: dict[tuple[str, int], str] = {}
        self.whole: set[str] = set()  # nodes with several results that are used as a whole
        for node in self.graph.nodes:
            if node.kind == "item":
                self.items[node.args[0].name, node.args[1]] = node.name
            else:
                self.whole.update(r.name for r in refs_in((node.args, node.kwargs)))
        self._pending: dict[str, list[TensorValue]] = {}  # by buffer: views of it that are to be copies
        self._sizes = size_sources(self.graph)
        self._taken = {n.name for n in self.graph.nodes if n.kind != "placeholder"} | _AXIS_NAMES | set(self._sizes)
        self._serial: dict[str, int] = {}
        self._moved: dict[tuple[str, Device], str] = {}
        self._copied: set[str] = set()

    # --- names ---

    def name_of(self, hint: str) -> str:
        """A value name that is free in the whole program."""
        name = hint
        while name in self._taken:
            self._serial[hint] = self._serial.get(hint, 0) + 1
            name = f"{hint}_{self._serial[hint]}"
        self._taken.add(name)
        return name

    def result_name(self, node: str) -> str:
        """The value name of a node's result: the node's own, unless axes or sizes have it."""
        return self.name_of(node) if node in _AXIS_NAMES or node in self._sizes else node

    # --- memory ---

    def new_buffer(self, name: str, meta: TensorMeta) -> TensorValue:
        """Fresh memory of exactly these strides."""
        self.metas[name] = fresh = TensorMeta(meta.shape, meta.strides, meta.dtype, meta.device)
        self.roles[name] = "temp"
        return TensorValue(fresh, name)

    def nest(self, origin: str, shape: Sequence[Any], device: Device) -> NestBuilder:
        """A nest over ``shape`` that runs on ``device``."""
        return NestBuilder(origin, tuple(shape), self.name_of, lambda t: self.on_device(t.buffer, device))

    def on_device(self, buffer: str, device: Device) -> str:
        """The buffer as a kernel on ``device`` can read it: a CPU scalar among CUDA tensors is moved first."""
        meta = self.metas[buffer]
        if meta.device == device:
            return buffer
        moved = self._moved.get((buffer, device))
        if moved is None:
            moved = self._moved[buffer, device] = self.name_of(f"{buffer}_on_{device.type}")
            self.new_buffer(moved, TensorMeta(meta.shape, meta.strides, meta.dtype, device))
            view = ir.TensorView(buffer, meta)
            self.steps.append(ir.ExternCall(moved, "extern", "torch.Tensor.to", (view, device), (), (moved,)))
        return moved

    def tensor(self, value: TensorValue) -> ir.TensorView:
        """The value as a real tensor; made by a copying nest where no strided view of the buffer is it."""
        if value.copy_of is None:
            return ir.TensorView(value.buffer, value.meta)
        if value.copy_of not in self._copied:
            self._copied.add(value.copy_of)
            self._copy(value.copy_of)
        return ir.TensorView(value.copy_of, value.meta)

    def _copy(self, name: str) -> None:
        source: TensorValue = self.values[name]
        target = self.new_buffer(name, source.meta)
        if self.empty(target):
            return
        b = self.nest(name, source.meta.shape, source.meta.device)
        b.store(name, source.meta.dtype, b.coords, b.read(source, b.coords), name)
        self.steps.append(b.finish(name))

    def empty(self, value: TensorValue) -> bool:
        """Whether there is nothing to compute; then the memory is made by an allocation alone."""
        meta = value.meta
        if not any(isinstance(n, int) and n == 0 for n in meta.shape):
            return False
        kwargs = (("dtype", meta.dtype), ("device", meta.device))
        call = ir.ExternCall(value.buffer, "extern", "torch.empty_strided", (meta.shape, meta.strides), kwargs, (value.buffer,))
        self.steps.append(call)
        return True

    # --- values ---

    def value(self, ref: Ref) -> TensorValue:
        """The tensor that a ref names."""
        found = self.values[ref.name]
        if not isinstance(found, TensorValue):
            raise InternalError(f"{ref} is no tensor")
        return found

    def number(self, arg: Any) -> Any:
        """An argument that is no tensor: refs to numeric inputs become their symbols, also inside tuples."""
        if isinstance(arg, Ref):
            return self.values[arg.name]
        return tuple(self.number(a) for a in arg) if isinstance(arg, tuple) else arg

    def view(self, node: Node, source: TensorValue, step: ViewStep) -> TensorValue:
        """The result of the view op ``node`` on ``source``."""
        copy_of = source.copy_of if is_alias(step, self.hints) else node.name
        detached = source.detached or node.target == "detach"
        made = TensorValue(step.result, source.buffer, (step, *source.steps), copy_of, detached)
        if copy_of is not None:
            self._pending.setdefault(source.buffer, []).append(made)
        return made

    def before_write(self, buffers: Iterable[str]) -> None:
        """Make copies that are still pending of memory that is about to be overwritten."""
        for buffer in list(buffers):
            for value in self._pending.pop(buffer, ()):
                self.tensor(value)

    # --- the end ---

    def finish(self, outputs: tuple[Any, ...]) -> ir.Loops:
        """The program; buffers that outputs view become outputs."""
        for view in outputs:
            if isinstance(view, ir.TensorView) and self.roles[view.buffer] == "temp":
                self.roles[view.buffer] = "output"
        return ir.Loops(
            self.graph.name,
            tuple(n.name for n in self.graph.placeholders),
            tuple(ir.SizeBinding(s, *at) for s, at in self._sizes.items()),
            tuple(ir.Buffer(name, meta, self.roles[name]) for name, meta in self.metas.items()),
            tuple(self.steps),
            outputs,
            self.graph.hints,
            tuple((n.name, n.loc) for n in self.graph.nodes if n.loc is not None),
            self.graph.donated,
        )


def results_of(node: Node) -> tuple[Any, ...]:
    """The metas of a node's results, flat."""
    return tuple(_flat(node.meta))


def _flat(meta: Any) -> Iterable[Any]:
    if isinstance(meta, tuple):
        for m in meta:
            yield from _flat(m)
    else:
        yield meta
