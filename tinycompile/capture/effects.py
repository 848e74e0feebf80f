"""What a function changes outside itself. Capture works on shadows; the rebuilt code replays the end state after the graph.

Only the end state counts, for no code of the user's runs in between: each changed list, dict, set, object, cell and global
is brought to what it is at the end (or at a break). Tensors are written by the graph itself: its last nodes copy the new data
into them, and the rebuilt code counts their versions up."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from tinycompile.capture.breaks import NotRebuildable
from tinycompile.capture.sources import Held
from tinycompile.capture.values.base import Lazy, Value
from tinycompile.capture.values.classes import is_pythons_own
from tinycompile.capture.values.function import Cell
from tinycompile.capture.values.mapping import DictValue
from tinycompile.capture.values.module import ModuleValue
from tinycompile.capture.values.object import DELETED, ObjectValue
from tinycompile.capture.values.queue import DequeValue
from tinycompile.capture.values.sequence import ListValue
from tinycompile.capture.values.sets import SetValue
from tinycompile.capture.values.tensor import TensorValue
from tinycompile.dispatch import dispatcher
from tinycompile.eager.fake import FakeTensor
from tinycompile.ir.effects import COPY
from tinycompile.ir.graph import Location, Ref
from tinycompile.ops.record import OPS, View

if TYPE_CHECKING:
    from tinycompile.capture.inputs import Input
    from tinycompile.capture.reconstruct import Rebuilder
    from tinycompile.capture.tracer import Tracer

Entry = Value | Lazy


@dataclass(frozen=True)
class Write:
    """A tensor from outside that is written: ``before`` is its value at the beginning; its ``fake`` is that at the end."""

    target: TensorValue
    before: FakeTensor
    location: Location


class Effects:
    """Changes of one capture, in the order in which each thing was changed first."""

    def __init__(self) -> None:
        self._changed: dict[int, tuple[Value, Any]] = {}  # by id: a Value from outside, and what it held before
        self._globals: dict[tuple[int, str], tuple[Held, str, Value]] = {}

        self._written: dict[int, Write] = {}  # by id: tensors from outside that were written in place
        self.reborn: set[tuple[int, str]] = set()  # attributes, by id of their object, that were deleted and set again

    def __bool__(self) -> bool:
        return bool(self._changed or self._globals or self._written)

    @property
    def count(self) -> int:
        """How many things were changed so far."""
        return len(self._changed) + len(self._globals) + len(self._written)

    # --- collecting ---

    def touch(self, value: Value) -> None:
        """Called before a Value is changed."""
        if value.source is not None and id(value) not in self._changed:
            before = value.items.copy() if isinstance(value, (ListValue, DictValue, SetValue)) else None
            self._changed[id(value)] = value, before

    def write(self, tr: Tracer, target: TensorValue) -> None:
        """Called before a tensor from outside takes over new data; what can't be done in the end is done by leaving here."""
        if id(target) not in self._written:
            self._written[id(target)] = Write(target, target.fake, tr.location())
            tr.births.setdefault(id(target), (target, tr.frames[0].count))

    def set_global(self, of: Held, name: str, value: Value) -> None:
        """Assignment to a global variable."""
        self._globals[id(of.value), name] = of, name, value

    def global_value(self, globals_: dict[str, Any], name: str) -> Value | None:
        """A global that was assigned."""
        found = self._globals.get((id(globals_), name))
        return None if found is None else found[2]

    # --- replaying ---

    def parts(self) -> Iterator[Entry]:
        """Every Value that the replay mentions."""
        for value, _ in self._changed.values():
            if isinstance(value, ListValue):
                yield from value.items
            elif isinstance(value, DictValue):
                yield from (v for _, v in value.items.values())
            elif isinstance(value, SetValue):
                yield from value.items.values()
            elif isinstance(value, Cell) and value.content is not None:
                yield value.content
            elif isinstance(value, ObjectValue):
                yield from (v for v in value.shadow.values() if v is not DELETED)
        yield from (value for _, _, value in self._globals.values())

    def replay(self, rebuilder: Rebuilder) -> list[str]:
        """Statements that bring everything to its end state."""
        lines: list[str] = []
        for value, before in self._changed.values():
            name = rebuilder.expr(value)
            if isinstance(value, ListValue):
                lines += _replay_list(rebuilder, name, value, before)
            elif isinstance(value, DictValue):
                lines += _replay_dict(rebuilder, name, value, before)
            elif isinstance(value, SetValue):
                call = _caller(rebuilder, name, value)
                lines += [call("discard", rebuilder.expr(v)) for at, v in before.items() if at not in value.items]
                lines += [call("add", rebuilder.expr(v)) for at, v in value.items.items() if at not in before]
            elif isinstance(value, Cell):
                content = value.content
                lines.append(
                    f"del {name}.cell_contents" if content is None else f"{name}.cell_contents = {rebuilder.expr(content)}"
                )
            elif isinstance(value, ObjectValue):
                lines += self._replay_object(rebuilder, name, value)
        versioned = [w.target for w in self._written.values() if not w.target.obj.is_inference()]
        if versioned:
            count_up = rebuilder.held(torch.autograd.graph.increment_version, "increment_version")
            lines.append(f"{count_up}([{', '.join(map(rebuilder.expr, versioned))}])")
        lines += [f"{of.name}[{name!r}] = {rebuilder.expr(value)}" for of, name, value in self._globals.values()]
        return lines

    def _replay_object(self, rebuilder: Rebuilder, name: str, value: ObjectValue) -> list[str]:
        """Attributes as they are at the end. What the program's own ``__setattr__`` did has been followed: it is not called."""
        own = is_pythons_own(type(value.obj), "__setattr__") and is_pythons_own(type(value.obj), "__delattr__")
        if own or isinstance(value, ModuleValue):
            assign, delete = "{name}.{at} = {to}", "del {name}.{at}"
        else:
            base = rebuilder.held(object, "object")
            assign, delete = base + ".__setattr__({name}, {at!r}, {to})", base + ".__delattr__({name}, {at!r})"
        lines = [delete.format(name=name, at=at) for at in value.shadow if (id(value), at) in self.reborn]
        for at, v in value.shadow.items():
            lines.append(
                delete.format(name=name, at=at) if v is DELETED else assign.format(name=name, at=at, to=rebuilder.expr(v))
            )
        return lines

    @property
    def writes(self) -> bool:
        """Whether the graph writes to tensors from outside."""
        return bool(self._written)

    def record_writes(self, tr: Tracer) -> None:
        """The graph's last nodes: each written tensor takes over its data. What another write could change is copied before."""
        data = []
        for write in self._written.values():
            tr.builder.location = write.location
            fake = write.target.fake
            data.append(dispatcher.call("clone", fake) if _is_input(tr, fake.ref) else fake)
        for write, fake in zip(self._written.values(), data, strict=True):
            tr.builder.location = write.location
            tr.builder.extern(COPY, (write.before, fake), {}, write.before.meta)

    def check_views(self, outputs: Sequence[TensorValue]) -> None:
        """No view of a written tensor may leave the graph: it would be one of the graph's data."""
        for target in (w.target for w in self._written.values()):
            if any(t.memory is target.memory for t in outputs):
                raise NotRebuildable(
                    target, f"a view of {target.describe()}, which is written, is used outside", "input-mutation"
                )

    @staticmethod
    def _guard_separate(tr: Tracer, target: TensorValue, other: Input) -> None:
        if not separate(target.obj, other.value):
            what = f"{target.describe()} is written, and shares memory with {other.source.label}"
            raise NotRebuildable(target, what, "input-mutation")
        assert target.source is not None
        if not (isinstance(target.source, Held) and isinstance(other.source, Held)):
            helper = tr.guards.hold(separate, "separate")
            label = f"{target.source.label} and {other.source.label} share no memory"
            tr.guards.check(f"{helper.name}({target.source.text}, {other.source.text})", label)

    def guard_distinct(self, tr: Tracer) -> None:
        """What was changed is no other object that was read, and what was written shares no memory with another input."""
        for target in (w.target for w in self._written.values()):
            for given in tr.inputs:
                if isinstance(given.value, torch.Tensor) and given.source != target.source:
                    self._guard_separate(tr, target, given)
        for value, _ in self._changed.values():
            for other in tr.objects_seen():
                known = isinstance(value.source, Held) and isinstance(other.source, Held)
                if other is not value and type(other) is type(value) and not known and other.source is not None:
                    assert value.source is not None
                    tr.guards.check(f"{value.source.text} is not {other.source.text}", "which objects are one")


def _is_input(tr: Tracer, ref: Ref) -> bool:
    """Whether a value can be the memory of an input: the input itself, or a view of it."""
    node = tr.builder.nodes[ref.name]
    while node.kind == "call" and isinstance(OPS[node.target].lowering, View):
        node = tr.builder.nodes[node.args[0].name]
    return node.kind == "placeholder"


def separate(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors share no memory, to be on the safe side: whether their storages differ."""
    return a.untyped_storage().data_ptr() != b.untyped_storage().data_ptr()


def _caller(rebuilder: Rebuilder, name: str, value: ListValue | DictValue | SetValue) -> Callable[..., str]:
    """How to call a method that changes a container: in a class of the program's, past what that defines itself."""
    if value.holder is None:
        return lambda method, *args: f"{name}.{method}({', '.join(args)})"
    kind = rebuilder.held(value.cls, value.cls.__name__)
    return lambda method, *args: f"{kind}.{method}({', '.join((name, *args))})"


def _replay_list(rebuilder: Rebuilder, name: str, value: ListValue, before: list[Entry]) -> list[str]:
    call = _caller(rebuilder, name, value)
    grown = len(value.items) >= len(before) and all(map(_unchanged, value.items, before))
    if isinstance(value, DequeValue):
        grown = grown and (value.maxlen is None or len(value.items) < value.maxlen)
    if grown:
        items = ", ".join(rebuilder.expr(v) for v in value.items[len(before) :])
        return [call("extend", f"[{items}]")] if items else []
    items = f"[{', '.join(rebuilder.expr(v) for v in value.items)}]"
    if isinstance(value, DequeValue):
        new = rebuilder.tr.guards.names.take("items")
        return [f"{new} = {items}", call("clear"), call("extend", new)]
    if value.holder is not None:
        return [call("__setitem__", f"{rebuilder.held(slice, 'slice')}(None)", items)]
    return [f"{name}[:] = {items}"]


def _replay_dict(rebuilder: Rebuilder, name: str, value: DictValue, before: dict[Any, tuple[Value, Entry]]) -> list[str]:
    call = _caller(rebuilder, name, value)
    kept = [at for at in before if at in value.items]
    if list(value.items)[: len(kept)] != kept:  # a key was deleted and came back
        kept = []
        lines = [call("clear")]
    else:
        lines = [call("__delitem__", rebuilder.expr(key)) for at, (key, _) in before.items() if at not in value.items]
    for at, (key, item) in value.items.items():
        if at not in kept or not _unchanged(item, before[at][1]):
            lines.append(call("__setitem__", rebuilder.expr(key), rebuilder.expr(item)))
    return lines


def _unchanged(now: Entry, before: Entry) -> bool:
    return now is before or (isinstance(before, Lazy) and now.source == before.source)
