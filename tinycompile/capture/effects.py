"""What a function changes outside itself. Capture works on shadows; the rebuilt code replays the end state after the graph.

Only the end state counts, for no code of the user's runs in between: each changed list, dict, set, object, cell and global
is brought to what it is at the end (or at a break). Tensors are written by the graph itself: its last nodes copy the new data
into them, and the rebuilt code counts their versions up."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeGuard

import torch

from tinycompile.base.watch import look_up_history, take_over
from tinycompile.capture.apart import Apart, apart_from_arrays, clash, one_storage, place
from tinycompile.capture.breaks import NotRebuildable
from tinycompile.capture.gradients import Gradients
from tinycompile.capture.rebuilt_dicts import dict_changes, unchanged
from tinycompile.capture.rebuilt_sets import parts_of_changes, set_changes
from tinycompile.capture.sources import Attr, Computed, Held, Item, Source, is_name
from tinycompile.capture.trust import is_of
from tinycompile.capture.values.base import Lazy, Value
from tinycompile.capture.values.classes import class_lookup
from tinycompile.capture.values.descriptors import has_dict
from tinycompile.capture.values.function import Cell
from tinycompile.capture.values.mapping import DictValue
from tinycompile.capture.values.module import ModuleValue
from tinycompile.capture.values.object import DELETED, ObjectValue
from tinycompile.capture.values.queue import DequeValue
from tinycompile.capture.values.sequence import ListValue
from tinycompile.capture.values.sets import SetValue
from tinycompile.capture.values.tensor import Memory, TensorValue
from tinycompile.capture.values.unread import Unread
from tinycompile.capture.views import is_data, is_refused_by_now, requires_grad_alone
from tinycompile.dispatch import dispatcher
from tinycompile.eager.fake import FakeTensor
from tinycompile.eager.optimizer_inputs import StepInputs
from tinycompile.ir.effects import COPY, EditedValue
from tinycompile.ir.graph import Location, Ref
from tinycompile.ops.record import OPS, View

if TYPE_CHECKING:
    from tinycompile.capture.inputs import Input
    from tinycompile.capture.reconstruct import Rebuilder
    from tinycompile.capture.torch_warnings import Warned
    from tinycompile.capture.tracer import Tracer

Entry = Value | Lazy


@dataclass
class Write:
    """A tensor from outside that is written: ``before`` is its value at the beginning; its ``fake`` is that at the end.

    ``tracked``: its history changes too, so torch writes it, behind the graph."""

    target: TensorValue
    before: FakeTensor
    location: Location
    tracked: bool = False


class Effects:
    """Changes of one capture, in the order in which each thing was changed first."""

    def __init__(self) -> None:
        self._count = 0
        self._changed: dict[int, tuple[Value, Any]] = {}  # by id: a Value from outside, and what it held before
        self._assigned: dict[tuple[int, str], tuple[Held, str, Value]] = {}  # by id of what holds it, and name

        self._written: dict[int, Write] = {}  # by id: tensors from outside that were written in place
        self.shares_storage = False  # whether what is written is in one storage with other inputs of a differentiated graph
        self.gradients = Gradients()
        self.told: list[Warned] = []  # calls of which torch warns
        self.calls: dict[str, str] = {}  # statements of the rebuilt code's own, by what they are about
        self._edits: dict[str, tuple[Memory, EditedValue, int]] = {}  # by node; with how many nodes there were
        self.checkpoints: list[
            tuple[int, list[str]]
        ] = []  # of each call: where its nodes begin, and their names; inner ones first
        self.recomputed: set[str] = set()  # nodes whose values a backward is to compute again
        self.reborn: set[tuple[int, str]] = set()  # attributes, by id of their object, that were deleted and set again

    def __bool__(self) -> bool:
        return bool(self._changed or self._assigned or self._written or self.gradients.slots)

    @property
    def count(self) -> int:
        """How often something outside was changed so far."""
        return self._count + len(self.gradients.slots)

    # --- collecting ---

    def touch(self, value: Value) -> None:
        """Called before a Value is changed."""
        self._count += value.source is not None
        if value.source is not None and id(value) not in self._changed:
            known = isinstance(value, (ListValue, DictValue, SetValue)) and not _is_unread(value)
            self._changed[id(value)] = value, value.items.copy() if known else None  # type: ignore[attr-defined]

    def write(self, tr: Tracer, target: TensorValue, tracked: bool) -> None:
        """Called before a tensor from outside takes over new data; what can't be done in the end is done by leaving here."""
        self._count += 1
        found = self._written.get(id(target))
        if found is None:
            found = self._written[id(target)] = Write(target, target.fake, tr.location())
            tr.births.setdefault(id(target), (target, tr.frames[0].count))
        found.tracked |= tracked

    def changes(self, value: Value) -> bool:
        """Whether a Value from outside is changed, or a tensor is written."""
        return id(value) in self._changed or id(value) in self._written

    def items_set(self, value: Value) -> dict[Any, Entry] | None:
        """What a dict from outside was given under keys that it had. None where its keys are others now, or it is no dict."""
        found = self._changed.get(id(value))
        if found is None or not isinstance(value, DictValue):
            return None
        now = {at: item for at, (_, item) in value.items.items()}  # before ``before``: looking at an unread one sets that
        before = value.before if found[1] is None and isinstance(value, Unread) else found[1]
        if before is None or now.keys() != before.keys():
            return None
        return {at: item for at, item in now.items() if not unchanged(item, before[at][1])}

    def let_go(self) -> Iterator[Entry]:
        """What lists and dicts from outside held at the beginning, and hold no more."""
        for value, known in self._changed.values():
            if _is_unread(value) or not isinstance(value, (ListValue, DictValue)):
                continue
            before = value.before if known is None and isinstance(value, Unread) else known
            old, new = (_held_in(contents) for contents in (before, value.items))
            ids, sources = {id(v) for v in new}, {v.source for v in new if v.source is not None}
            yield from (v for v in old if id(v) not in ids and v.source not in sources)

    def note_edit(self, line: Sequence[TensorValue], by: frozenset[str], version: int, with_history: bool, count: int) -> None:
        """Called before the memory of a tensor takes over new data. ``line``: from the tensor to the owner of the memory;
        ``by``: the nodes that computed the data; ``version``: how often torch had counted writes; ``count``: of
        nodes so far."""
        root, memory = line[-1], line[-1].memory
        for fake in memory.contents or [root.fake]:
            if type(fake) is FakeTensor:
                name, of_view = fake.ref.name, fake is not root.fake
                owner = self._written[id(root)].before.ref.name if id(root) in self._written else ""
                edit = EditedValue(name, by, version, self.gradients.asked_for, of_view, owner)
                self._edits.setdefault(name, (memory, edit, count))
        if with_history:
            memory.last = by, len(line) > 1

    def edits(self, names: Mapping[str, str]) -> tuple[EditedValue, ...]:
        """Values that were in memory which was written to later; ``names``: the graph's own."""
        return tuple(
            _in_the_end(memory, self._checkpointed(edit, count), names)
            for memory, edit, count in self._edits.values()
            if edit.content in names  # a program's own gradient takes nodes out again
        )

    def _checkpointed(self, edit: EditedValue, count: int) -> EditedValue:
        """With the call in which the value was made. ``count``: of nodes before the write."""
        inner = set[str]()
        for start, nodes in self.checkpoints:
            if edit.content in nodes:
                rest = nodes[max(count - start, 0) :]
                return edit._replace(checkpoint=frozenset(nodes) - inner, rest=frozenset(rest))
            inner.update(nodes)
        return edit

    def rewrites(self, view: TensorValue) -> bool:
        """Whether a tensor views one from outside that is written: the rebuilt code makes such views of the written tensor."""
        owner = view
        while owner.view is not None:
            owner = owner.view.base
        return owner is not view and id(owner) in self._written

    def check_kind(self, view: TensorValue) -> None:
        """A view that torch lets nobody write to can't be made before its owner is written by torch, nor after what it views
        was written to, from when on torch refuses its gradient: it is left to Python."""
        if (view.requires_grad or requires_grad_alone(view)) and is_refused_by_now(view):
            what = f"{view.describe()}, one of several views or made under no_grad, leaves after what it views was written to"
            raise NotRebuildable(view, what, "input-mutation")
        owner, kinds = view, set[str]()
        while owner.view is not None:
            kinds.add(owner.view.origin)
            owner = owner.view.base
        found = self._written.get(id(owner))
        if found is not None and found.tracked and kinds & {"several", "no_grad"}:
            raise NotRebuildable(owner, f"{view.describe()} views {owner.describe()}, which is written", "input-mutation")

    def assign(self, of: Held, name: str, value: Value) -> None:
        """Assignment to a module's variable (``of`` is its dict), or to an attribute of a class or a function."""
        self._count += 1
        self._assigned[id(of.value), name] = of, name, value

    def assigned(self, owner: Any, name: str) -> Value | None:
        """What was assigned; None where nothing was."""
        found = self._assigned.get((id(owner), name)) if self._assigned else None
        return None if found is None else found[2]

    def unassign(self, owner: Any, name: str) -> None:
        """It is deleted again, and was not there before."""
        del self._assigned[id(owner), name]

    def assigns(self, owner: Any = None) -> bool:
        """Whether anything was assigned: to what ``owner`` holds, or to any."""
        return bool(self._assigned) and (owner is None or any(at == id(owner) for at, _ in self._assigned))

    # --- replaying ---

    def parts(self, tr: Tracer) -> Iterator[Entry]:
        """Every Value that the replay mentions."""
        for value, _ in self._changed.values():
            if _is_unread(value):
                yield from (v for _, args in value.pending for v in args)
            elif isinstance(value, ListValue):
                yield from value.items
            elif isinstance(value, DictValue):
                yield from (v for _, v in value.items.values())
            elif isinstance(value, SetValue):
                yield from parts_of_changes(tr, value)
            elif isinstance(value, Cell) and value.content is not None:
                yield value.content
            elif isinstance(value, ObjectValue):
                yield from (v for v in value.shadow.values() if v is not DELETED)
        yield from (value for _, _, value in self._assigned.values())
        yield from self.gradients.parts()

    def replay(self, rebuilder: Rebuilder) -> list[str]:
        """Statements that bring everything to its end state."""
        lines: list[str] = []
        for value, before in self._changed.values():
            name = rebuilder.expr(value)
            if isinstance(value, Unread):
                if value.is_unread:
                    lines += _replay_additions(rebuilder, name, value)
                    continue
                before = value.before if before is None else before
            if isinstance(value, ListValue):
                lines += _replay_list(rebuilder, name, value, before)
            elif isinstance(value, DictValue):
                lines += dict_changes(rebuilder, _caller(rebuilder, name, value), value, before)
            elif isinstance(value, SetValue):
                lines += set_changes(rebuilder, _caller(rebuilder, name, value), value)
            elif isinstance(value, Cell):
                content = value.content
                lines.append(
                    f"del {name}.cell_contents" if content is None else f"{name}.cell_contents = {rebuilder.expr(content)}"
                )
            elif isinstance(value, ObjectValue):
                lines += self._replay_object(rebuilder, name, value)
        written = self._written.values()
        uncounted = [(w.target, w.target.memory.version - w.tracked) for w in written if not w.target.obj.is_inference()]
        lines += count_up(rebuilder, uncounted)  # (torch's own copies count)
        lines += [self._copy(rebuilder, w) for w in written if w.tracked]
        if rebuilder.following and any(w.tracked for w in written):
            lines.append(f"{rebuilder.held(look_up_history, 'look_up_history')}({', '.join(rebuilder.following)})")
        lines += [f"{_place(of, name)} = {rebuilder.expr(value)}" for of, name, value in self._assigned.values()]
        return [*lines, *self.gradients.replay(rebuilder), *self.calls.values()]

    def _replay_object(self, rebuilder: Rebuilder, name: str, value: ObjectValue) -> list[str]:
        """Attributes as they are at the end. What the program's own ``__setattr__`` did has been followed: it is not called."""
        kind: type = torch.nn.Module if isinstance(value, ModuleValue) else object
        found = [class_lookup(type(value.obj), at) or (kind, None) for at in ("__setattr__", "__delattr__")]
        own = all(owner is kind or is_of(owner, "builtins", "collections") for owner, _ in found)
        if own and all(map(is_name, value.shadow)):
            assign, delete = "{name}.{at} = {to}", "del {name}.{at}"
        elif own:
            assign = rebuilder.held(setattr, "setattr") + "({name}, {at!r}, {to})"
            delete = rebuilder.held(delattr, "delattr") + "({name}, {at!r})"
        else:
            base = rebuilder.held(kind, kind.__name__)
            assign, delete = base + ".__setattr__({name}, {at!r}, {to})", base + ".__delattr__({name}, {at!r})"
        lines = [delete.format(name=name, at=at) for at in value.shadow if (id(value), at) in self.reborn]
        for at, v in value.shadow.items():
            lines.append(
                delete.format(name=name, at=at) if v is DELETED else assign.format(name=name, at=at, to=rebuilder.expr(v))
            )
        return lines

    @staticmethod
    def _copy(rebuilder: Rebuilder, write: Write) -> str:
        """torch copies the data that the graph computed, for that gives the tensor the data's history."""
        tr, target = rebuilder.tr, write.target
        tr.builder.location = write.location
        fake = dispatcher.call("clone", target.fake) if _is_input(tr, target.fake.ref) else target.fake
        data = TensorValue(fake, target.cls, target.requires_grad)
        rebuilder.remakes = True
        return f"{rebuilder.held(take_over, 'take_over')}({rebuilder.expr(target)}, {rebuilder.expr(data)})"

    @staticmethod
    def count_results(rebuilder: Rebuilder) -> list[str]:
        """A statement that tells torch how often results were written to. Not where a backward has saved them: it would take
        that for an edit."""
        if torch.is_inference_mode_enabled() or any(t.obj.requires_grad for t, _ in rebuilder.tr.given.values()):
            return []
        written = [t for t in rebuilder.outputs if t.cls is torch.Tensor and t.memory.version and not t.memory.outside]
        made = [t for t in written if not is_data(t)]
        each = {id(t.memory): (t, t.memory.version) for t in made}  # views share their counter
        return count_up(rebuilder, list(each.values()))

    def again(self, names: Mapping[str, str]) -> frozenset[str]:
        """What a backward is to compute again; ``names`` as above."""
        return frozenset(names[n] for n in self.recomputed if n in names)

    def taken_over(self, names: Mapping[str, str]) -> tuple[frozenset[str], ...]:
        """What lies at the end in the memory of each tensor that torch copies into; ``names`` as above."""
        lists = [w.target.memory.contents for w in self._written.values() if w.tracked]
        return tuple(frozenset(names.get(f.ref.name, "") for f in fakes if type(f) is FakeTensor) for fakes in lists)

    def has_new_history(self, tensor: Value) -> bool:
        """Whether a write has become a part of a tensor's history: it is no longer the tensor that was given."""
        found = self._written.get(id(tensor))
        return found is not None and found.tracked

    @property
    def writes(self) -> bool:
        """Whether the graph writes to tensors from outside."""
        return any(not w.tracked for w in self._written.values())

    def copied_into(self, inputs: Sequence[Input]) -> frozenset[int]:
        """Positions of the inputs that torch writes to behind the graph."""
        tracked = {id(w.target.obj) for w in self._written.values() if w.tracked}
        return frozenset(i for i, given in enumerate(inputs) if id(given.value) in tracked)

    def record_writes(self, tr: Tracer) -> None:
        """The graph's last nodes: each written tensor takes over its data. What another write could change is copied before."""
        data, untracked = [], [w for w in self._written.values() if not w.tracked]
        for write in untracked:
            tr.builder.location = write.location
            fake = write.target.fake
            data.append(dispatcher.call("clone", fake) if _is_input(tr, fake.ref) else fake)
        for write, fake in zip(untracked, data, strict=True):
            tr.builder.location = write.location
            tr.builder.extern(COPY, (write.before, fake), {}, write.before.meta)

    def check_views(self, outputs: Sequence[TensorValue]) -> None:
        """No view of a written tensor may leave the graph: it would be one of the graph's data. What capture knows as a view
        is made by the rebuilt code; others are left here."""
        for target in (w.target for w in self._written.values()):
            if any(t.memory is target.memory for t in outputs):
                raise NotRebuildable(
                    target, f"a view of {target.describe()}, which is written, is used outside", "input-mutation"
                )

    def guard_distinct(self, tr: Tracer) -> None:
        """What was changed is no other object that was read, and what was written shares no memory with another input."""
        if self._written:
            self._guard_separate(tr)
            self._guard_arrays(tr)
        for value, _ in self._changed.values():
            for other in tr.objects_seen():
                known = isinstance(value.source, Held) and isinstance(other.source, Held)
                if other is not value and not known and other.source is not None:
                    _guard_two(tr, value, other)

    def _guard_arrays(self, tr: Tracer) -> None:
        """Of numpy arrays that were read none shares memory with what is written."""
        arrays, written = list(tr.arrays.outside.values()), [w.target for w in self._written.values()]
        if not arrays:
            return
        if not apart_from_arrays([t.obj for t in written], [a.layout for a in arrays]):
            what = f"{written[0].describe()} is written, and shares memory with {arrays[0].describe()}"
            raise NotRebuildable(written[0], what, "input-mutation")
        guard = tr.guards.hold(apart_from_arrays, "apart_from_arrays").name
        texts = [", ".join(v.source.text for v in values if v.source is not None) for values in (written, arrays)]
        tr.guards.check(f"{guard}(({texts[0]},), ({texts[1]},))", "what is written is in no array that was read")

    def _guard_separate(self, tr: Tracer) -> None:
        written = {w.target.source: w.target for w in self._written.values()}
        given = [i for i in tr.inputs if isinstance(i.value, torch.Tensor) and not isinstance(i.source, Computed)]
        found = clash([place(at, i.value, i.source in written) for at, i in enumerate(given)])
        if found is not None:
            target, other = (given[at].source for at in found)
            what = f"{written[target].describe()} is written, and shares memory with {other.label}"
            raise NotRebuildable(written[target], what, "input-mutation")
        differentiated = tr.root_grad_enabled and any(i.value.requires_grad for i in given)
        self.shares_storage = differentiated and one_storage([(i.value, i.source in written) for i in given])
        alone = differentiated and not self.shares_storage
        held = [(i.value, i.source in written) for i in given if isinstance(i.source, Held)]
        states = [(*state, i.source in written) for i in given if (state := _state_of(i.source)) is not None]
        loose = [i.source for i in given if not isinstance(i.source, Held) and _state_of(i.source) is None]
        flags = [source in written for source in loose]
        if any(flags) or (loose and any(w for *_, w in (*held, *states))):
            guard, texts = tr.guards.hold(Apart(held, states, flags, alone), "apart"), ", ".join(s.text for s in loose)
            labels = ", ".join(s.label for s in written if s is not None)
            tr.guards.check(f"{guard.name}.holds(({texts},))", f"{labels} share no memory with other inputs")


def _place(of: Held, name: str) -> str:
    """Where a variable or an attribute is assigned."""
    return f"{of.name}[{name!r}]" if isinstance(of.value, dict) else Attr(of, name).text


def _guard_two(tr: Tracer, a: Value, b: Value) -> None:
    """Guard that two things from outside are not one, nor one the other's ``__dict__``, nor share theirs."""
    assert a.source is not None and b.source is not None
    if type(a) is type(b):
        tr.guards.check(f"{a.source.text} is not {b.source.text}", "which objects are one")
    attributes = [f"{v.source.text}.__dict__" for v in (a, b) if isinstance(v, ObjectValue) and has_dict(v.obj)]  # type: ignore[union-attr]
    dicts = [v.source.text for v in (a, b) if isinstance(v, DictValue)]  # type: ignore[union-attr]
    found = {*attributes, *dicts}  # (one, for an object and its own)
    if attributes and len(found) == 2:
        tr.guards.check(" is not ".join(sorted(found)), "which objects share their attributes")


def count_up(rebuilder: Rebuilder, writes: Sequence[tuple[TensorValue, int]]) -> list[str]:
    """A statement that tells torch how often each of these tensors was written to."""
    names = [rebuilder.expr(t) for t, times in writes for _ in range(times)]
    increment = rebuilder.held(torch.autograd.graph.increment_version, "increment_version") if names else ""
    return [f"{increment}([{', '.join(names)}])"] if names else []


def _state_of(source: Source) -> tuple[StepInputs, int] | None:
    """The optimizer's step, and which of its states, if a source names one."""
    where = source.of.of if isinstance(source, Item) and isinstance(source.of, Attr) else None
    return (where.value, source.key) if isinstance(where, Held) and isinstance(where.value, StepInputs) else None  # type: ignore[attr-defined]


def _is_input(tr: Tracer, ref: Ref) -> bool:
    """Whether a value can be the memory of an input: the input itself, or a view of it."""
    node = tr.builder.nodes[ref.name]
    while node.kind == "call" and isinstance(OPS[node.target].lowering, View):
        node = tr.builder.nodes[node.args[0].name]
    return node.kind == "placeholder"


def _caller(rebuilder: Rebuilder, name: str, value: ListValue | DictValue | SetValue) -> Callable[..., str]:
    """How to call a method that changes a container: in a class of the program's, past what that defines itself."""
    if value.holder is None:
        return lambda method, *args: f"{name}.{method}({', '.join(args)})"
    kind = rebuilder.held(value.cls, value.cls.__name__)
    return lambda method, *args: f"{kind}.{method}({', '.join((name, *args))})"


def _held_in(contents: Any) -> list[Entry]:
    """The entries of a list, or the values of a dict."""
    return [v for _, v in contents.values()] if isinstance(contents, dict) else list(contents or ())


def _in_the_end(memory: Memory, edit: EditedValue, names: Mapping[str, str]) -> EditedValue:
    writers, through_view = memory.last or (None, False)
    return edit._replace(
        content=names[edit.content],
        by=_known(edit.by, names),
        owner=names.get(edit.owner, ""),
        now=memory.version,
        writers=None if writers is None else _known(writers, names),
        through_view=through_view,
        checkpoint=_known(edit.checkpoint, names),
        rest=_known(edit.rest, names),
    )


def _known(nodes: frozenset[str], names: Mapping[str, str]) -> frozenset[str]:
    return frozenset(names[n] for n in nodes if n in names)


def _is_unread(value: Value) -> TypeGuard[Unread]:
    return isinstance(value, Unread) and value.is_unread


def _replay_additions(rebuilder: Rebuilder, name: str, value: Any) -> list[str]:
    """The calls that added something, in their order; appends in a row are one ``extend``."""
    call, lines = _caller(rebuilder, name, value), list[str]()
    for method, calls in itertools.groupby(value.pending, key=lambda p: p[0]):
        texts = [[rebuilder.expr(v) for v in args] for _, args in calls]
        if method == "append":
            lines.append(call("extend", f"[{', '.join(item for (item,) in texts)}]"))
        else:
            lines += [call(method, *args) for args in texts]
    return lines


def _replay_list(rebuilder: Rebuilder, name: str, value: ListValue, before: list[Entry]) -> list[str]:
    call = _caller(rebuilder, name, value)
    grown = len(value.items) >= len(before) and all(map(unchanged, value.items, before))
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
