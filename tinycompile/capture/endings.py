"""Where the program lets go of an object whose end does something: a generator asleep in a ``try`` or ``with``, an object with
``__del__``, one that a weak reference watches. Compiled code keeps what it was called with until it returns, so the frame is
left before such an instruction, and the object dies between two pieces."""

from __future__ import annotations

import bisect
import builtins
import functools
import gc
import types
import weakref
from collections import ChainMap
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tinycompile.capture.breaks import GraphBreak
from tinycompile.capture.bytecode import decode, passes_handlers
from tinycompile.capture.sources import Local
from tinycompile.capture.values.base import Lazy, Value
from tinycompile.capture.values.classes import defines
from tinycompile.capture.values.constant import Const
from tinycompile.capture.values.descriptors import has_dict, kept_under, own_dict
from tinycompile.capture.values.function import Cell
from tinycompile.capture.values.scalar import ScalarValue
from tinycompile.capture.values.symbolic import SymInt
from tinycompile.capture.values.tensor import TensorValue

if TYPE_CHECKING:
    from types import CodeType

    from tinycompile.capture.execute import Frame
    from tinycompile.capture.guards import GuardSet
    from tinycompile.capture.sources import Source
    from tinycompile.capture.tracer import Tracer

# What ends without a trace, and what is never the last to hold an object of the program's.
_QUIET = frozenset(
    {
        int, float, complex, bool, str, bytes, bytearray, type(None), type(Ellipsis), type(NotImplemented), range, slice,
        type, types.ModuleType, types.BuiltinFunctionType, types.CodeType, types.TracebackType, types.FrameType, np.ndarray,
        torch.Size, torch.dtype, torch.device,
    }
)  # fmt: skip
_WHOLE = (torch.Tensor, torch.nn.Module)  # what these hold is not looked at
_SLEEPERS = {types.CoroutineType: "cr_frame", types.AsyncGeneratorType: "ag_frame"}
_MANY = 1000  # objects; in more nobody looks for one
_KEEPS_ALL = frozenset(
    {"LOAD_CONST", "LOAD_FAST", "LOAD_GLOBAL", "LOAD_DEREF", "PUSH_NULL", "COPY", "SWAP", "JUMP", "MAKE_CELL"}
)
_NUMBERS = (Const, SymInt, ScalarValue)
_KNOWN = (*_NUMBERS, TensorValue)


def ends_quietly(obj: Any) -> bool:
    """Whether nobody notices when an object goes, with all that it may be the last to hold."""
    if type(obj) in _QUIET:
        return True
    if type(obj) is torch.Tensor:
        return not is_waited_for(obj)
    todo, seen = [obj], {id(obj)}
    while todo:
        found = todo.pop()
        kind = type(found)
        if kind in _QUIET or issubclass(kind, type):
            continue
        if _is_noticed(found):
            return False
        if issubclass(kind, _WHOLE):
            continue
        if len(seen) > _MANY:
            return False
        for part in _held_by(found):
            if type(part) not in _QUIET and id(part) not in seen:
                seen.add(id(part))
                todo.append(part)
    return True


def _is_noticed(obj: Any) -> bool:
    """Nothing of the object is asked: the program would notice that."""
    kind = type(obj)
    if kind is torch.Tensor:
        return is_waited_for(obj)
    if kind is types.GeneratorType:
        return _runs_when_dropped(obj)
    if kind in _SLEEPERS:
        frame = getattr(obj, _SLEEPERS[kind])
        return frame is not None and _has_handlers(frame.f_code)
    if defines(kind, "__del__"):
        return True
    if kind is types.FunctionType or issubclass(kind, torch.Tensor):
        return is_waited_for(obj)
    return not issubclass(kind, torch.nn.Module) and weakref.getweakrefcount(obj) > 0  # (we have some to those ourselves)


def drops_quietly(holder: Any, name: Any) -> bool:
    """Whether nobody notices when what an object's attribute, or a dict, holds is overwritten."""
    return ends_quietly(kept_under(holder, name))


def is_waited_for(obj: Any) -> bool:
    """Whether a weak reference calls something when an object goes."""
    return weakref.getweakrefcount(obj) > 0 and any(ref.__callback__ is not None for ref in weakref.getweakrefs(obj))


def _held_by(obj: Any) -> Iterable[Any]:
    return (obj.__closure__ or ()) if type(obj) is types.FunctionType else gc.get_referents(obj)


def _runs_when_dropped(generator: types.GeneratorType[Any, Any, Any]) -> bool:
    """Whether it sleeps where code of its own takes GeneratorExit: in a ``with``, in a ``try`` that does, or in an iterator
    that is closed with it."""
    frame = generator.gi_frame
    if frame is None or not generator.gi_suspended:
        return False
    if _may_be_closed(generator.gi_yieldfrom):
        return True
    instructions = decode(frame.f_code)
    at = bisect.bisect_right(instructions, frame.f_lasti, key=lambda ins: ins.offset) - 1
    return not passes_handlers(instructions, at, GeneratorExit, ChainMap(frame.f_globals, vars(builtins)))


def _may_be_closed(iterator: Any) -> bool:
    """Whether ``yield from`` may find a ``close``; a generator is looked at itself."""
    kind = type(iterator)
    if iterator is None or kind is types.GeneratorType:
        return False
    own = has_dict(iterator) and "close" in own_dict(iterator)
    return own or defines(kind, "close") or defines(kind, "__getattr__")


@functools.cache
def _has_handlers(code: CodeType) -> bool:
    """Whether a coroutine's code has a ``try`` or a ``with``, beside the guard around all of it."""
    instructions = decode(code)
    handlers = {i.handler for i in instructions if i.handler is not None}
    return any(instructions[at].op == "PUSH_EXC_INFO" for at in handlers)


class Carried:
    """The objects of a frame that goes on behind a break, as long as the frame has them."""

    def __init__(self, frame: Frame) -> None:
        self.entries = [v for v in _contents(frame) if isinstance(v, Lazy)]

    def after(self, tr: Tracer, frame: Frame, at: int) -> None:
        """Called after the instruction ``at``: leave the frame there, if it let go of an object whose end is noticed."""
        if not self.entries or frame.result is not None or frame.instructions[at].op in _KEEPS_ALL:
            return
        held = {id(v.obj) if isinstance(v, Lazy) else id(v) for v in _contents(frame)}
        kept, gone = list[Lazy](), list[Lazy]()
        for entry in self.entries:
            value = tr.value_of(entry)
            is_there = id(entry.obj) in held or (value is not None and id(value) in held)
            (kept if is_there else gone).append(entry)
        self.entries = kept
        if frame.instructions[at].op == "SET_FUNCTION_ATTRIBUTE":  # the function holds its cells from here on
            return
        for entry in gone:
            value = tr.value_of(entry)
            if isinstance(value, TensorValue):
                quiet = not is_waited_for(entry.obj)
            else:
                quiet = isinstance(value, _KNOWN) or _is_quiet(tr.guards, entry.obj, entry.source)
            if not quiet:
                frame.at = at + 1
                raise GraphBreak("finalizer", f"of {entry.source.label}, a {type(entry.obj).__name__}")


def check_contents(tr: Tracer) -> None:
    """Called at the end of a capture. Containers from outside are changed behind the graph: where one lets go of an object
    whose end is noticed, plain Python runs all of it."""
    for entry in tr.effects.let_go():
        check_content(tr.guards, entry, entry.obj if isinstance(entry, Lazy) else tr.object_of(entry))


def check_overwritten(guards: GuardSet, holder: Any, source: Source, name: Any) -> None:
    """Called before an attribute of an object from outside, or a dict's entry, is overwritten first: where somebody notices the
    end of what it holds, plain Python does it in its place."""
    quiet, ask = drops_quietly(holder, name), guards.hold(drops_quietly, "drops_quietly").name
    what = f"{source.label}, {name!r}"
    text = f"{ask}({source.text}, {name!r})"
    guards.check(text if quiet else f"not {text}", f"nobody notices the end of what was in {what}: {quiet}")
    if not quiet:
        raise GraphBreak("finalizer", f"of what was in {what}, a {type(kept_under(holder, name)).__name__}")


def check_content(guards: GuardSet, content: Value | Lazy, obj: Any) -> None:
    """The same for what a closure's variable, or a container, held. ``obj``: the object; None where it is not known."""
    source = content.source
    if source is None or isinstance(content, _NUMBERS) or (obj is None and not isinstance(content, Lazy)):
        return
    if not _is_quiet(guards, obj, source):
        raise GraphBreak("finalizer", f"of {source.label}, a {type(obj).__name__}")


def _is_quiet(guards: GuardSet, obj: Any, source: Source) -> bool:
    """``ends_quietly``, guarded."""
    quiet, text = ends_quietly(obj), f"{guards.hold(ends_quietly, 'ends_quietly').name}({source.text})"
    guards.check(text if quiet else f"not {text}", f"nobody notices the end of {source.label}: {quiet}")
    return quiet


def held_at_end(frame: Frame, entries: Sequence[str]) -> tuple[int, ...]:
    """The entries of the state with which a frame went on, as it lets go of them at its end: what it does not hold any more,
    its variables in their order, its stack. Python clears a frame so."""
    order = (*frame.code.co_varnames, *frame.code.co_cellvars)
    held = [*(frame.slots[name] for name in dict.fromkeys(order) if name in frame.slots), *list.copy(frame.stack)]
    sources = [v.source for v in held if isinstance(v, (Lazy, Value))]
    found = dict.fromkeys(s.name for s in sources if isinstance(s, Local))
    last = [entries.index(name) for name in found if name in entries]
    return (*(at for at in range(len(entries)) if at not in last), *last)


def _contents(frame: Frame) -> Iterator[Any]:
    """What the frame holds itself: in variables, cells and on its stack."""
    for value in frame.slots.values():
        yield value.content if isinstance(value, Cell) else value
    yield from list.copy(frame.stack)
