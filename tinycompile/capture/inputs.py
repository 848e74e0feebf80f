"""Inputs of the graph: tensors and numbers, and which of their sizes are symbols."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from tinycompile.base.expr import Dim
from tinycompile.base.meta import TensorMeta
from tinycompile.base.shapes import ShapeEnv
from tinycompile.capture import scalars
from tinycompile.capture.guards import GuardSet
from tinycompile.capture.sources import Held, Source, StrideOf, strides_of
from tinycompile.capture.values.array import Arrays
from tinycompile.capture.values.base import Value
from tinycompile.capture.values.tensor import TensorValue
from tinycompile.eager.fake import FakeTensor
from tinycompile.ir.builder import GraphBuilder

if TYPE_CHECKING:
    from tinycompile.capture.captured import CaptureOptions


_FEW = 8  # tensors that are named one by one


@dataclass(frozen=True)
class Input:
    """One input of the graph: how to get it at run time, what it was in this call. ``names``: symbols in the source's text."""

    source: Source
    value: Any
    aligned: bool = True
    ours: bool = False
    names: frozenset[str] = frozenset()


class Inputs:
    """A part of ``Tracer``."""

    options: CaptureOptions
    builder: GraphBuilder
    guards: GuardSet
    _by_id: dict[int, tuple[Any, Value]]

    def __init__(self) -> None:
        self.env = ShapeEnv()
        self.inputs: list[Input] = []
        self.given: dict[int, tuple[TensorValue, FakeTensor]] = {}  # by id: tensors from outside, each with its first value
        self._by_object: dict[int, TensorValue] = {}
        self.constants_seen: dict[str, Any] = {}  # by source text
        self.shapes_seen: dict[str, tuple[int, ...]] = {}
        self.strides: set[str] = set()  # symbols that are strides
        self._symbols = 0
        self.arrays = Arrays()
        self._keys: list[Value] = []  # objects from outside that are keys, by identity

    def add_tensor(self, source: Source, obj: Any, meta: TensorMeta, aligned: bool) -> TensorValue:
        """A new tensor input of the graph."""
        ours = not isinstance(obj, torch.Tensor)
        fake = self.builder.placeholder(source.label, meta)
        self.inputs.append(Input(source, obj, aligned, ours))
        self.shapes_seen[source.text] = tuple(obj.shape)
        self.shapes_seen[strides_of(source.text)] = tuple(obj.stride())
        made = TensorValue(fake, type(obj), obj.requires_grad, obj=obj, source=source)
        self.given[id(made)] = made, fake
        self._by_object.setdefault(id(obj), made)
        return made

    def keyed(self, value: Value) -> Value:
        """What stands for an object as a key: one Value, also where two ways lead to the object."""
        if value.source is None or any(value is other for other in self._keys):
            return value
        for other in self._keys:
            both_held = isinstance(value.source, Held) and isinstance(other.source, Held)
            if type(value) is type(other) and not both_held and value.same_object(self, other):  # type: ignore[arg-type]
                return other
        self._keys.append(value)
        return value

    def known(self, obj: Any) -> Value | None:
        """The Value of an object from outside that may change; None where it was not looked at."""
        return self._by_id.get(id(obj), (None, None))[1]

    def object_of(self, value: Value) -> Any:
        """The object from outside that a Value stands for, where it was kept; else None."""
        kept = getattr(value, "obj", None)
        return kept if kept is not None else next((obj for obj, v in self._by_id.values() if v is value), None)

    def find(self, obj: torch.Tensor) -> TensorValue | None:
        """The input that is this very tensor."""
        return self._by_object.get(id(obj))

    def add_computed(self, source: Source, obj: torch.Tensor, meta: TensorMeta, names: frozenset[str]) -> TensorValue:
        """A new input that the rebuilt code makes; ``names`` are what its expression is about."""
        fake = self.builder.placeholder("scalar", meta)
        self.inputs.append(Input(source, obj, names=names))
        return TensorValue(fake, torch.Tensor, False)

    def add_number(self, source: Source, symbol: str, value: int) -> None:
        """A new numeric input: an integer that is a size symbol."""
        self.builder.placeholder(symbol, None, "size")
        self.inputs.append(Input(source, value))

    def arguments(self) -> str:
        """The inputs as source, for a call of the graph. A model's many tensors are one tuple: that is quicker to pass."""
        parts: list[str] = []
        for held, run in itertools.groupby(self.inputs, lambda i: isinstance(i.source, Held) and not i.ours):
            row = list(run)
            if held and len(row) > _FEW:
                parts.append("*" + self.guards.hold(tuple(i.value for i in row), "parameters").name)
            else:
                parts += [i.source.text for i in row]
        return ", ".join(parts)

    def new_size(self, hint: int) -> Dim:
        """A fresh size symbol."""
        name = self.guards.names.take(f"s{self._symbols}")
        self._symbols += 1
        return self.env.new_size(name, hint)

    def dynamic_dims(self, text: str, t: torch.Tensor) -> set[int]:
        """Which dims of an input are symbolic: marked, asked for, or seen to change. 0 and 1 never are."""
        chosen = self.options.symbolic_dims(text, t)
        return {d for d in chosen if t.shape[d] >= 2}

    def new_stride(self, source: Source, dim: int, value: int) -> Dim:
        """A fresh symbol for a stride, which is a numeric input."""
        made = self.new_size(value)
        self.add_number(StrideOf(source, dim), str(made), value)
        self.strides.add(str(made))
        return made

    def dynamic_strides(self, text: str, t: torch.Tensor) -> set[int]:
        """Which strides of an input are symbolic, if they are not made of sizes: those seen to change. 0 and 1 never are."""
        return {d for d in self.options.symbolic_strides(text, t) if t.stride(d) in scalars.SIZES}

    def is_dynamic_int(self, text: str, value: int) -> bool:
        """Whether an integer argument is symbolic: it was seen to change."""
        return value in scalars.SIZES and self.options.symbolic_int(text, value)

    def is_dynamic_number(self, text: str, value: float) -> bool:
        """Whether a float, or an int that can be no size, was seen to change."""
        return self.options.symbolic_number(text, value)

    def is_rebound(self, place: str, obj: Any) -> bool:
        """Whether another object was found at a place before: which one it is then counts no more."""
        at = f"id({place})"
        self.constants_seen[at] = id(obj)
        return any(e.constants_seen.get(at, id(obj)) != id(obj) for e in self.options.earlier)
