"""From collected guards to one Python function with early exit, cheapest and most selective first.

The order is: which objects the arguments are, global state, arguments that are tensors, checks in the order in which capture
met them, entries of dicts, then parameters in bulk. Where classes of the program's matter, entries come before checks, which
would else ask a class that has gained a special method since.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch

from tinycompile.base import dict_versions, torch_private
from tinycompile.base.address_words import WatchedAlignment
from tinycompile.base.mode_signatures import tells_modes
from tinycompile.base.raised import words
from tinycompile.base.tensor_words import WatchedTensors
from tinycompile.capture.guard_entries import READ_ERRORS, Entry, Watched, every, to_watch
from tinycompile.capture.guards import HELPERS, OF_FUNCTIONS, ORDINARY, Check, GuardSet, describe_tensor, shown_shortly
from tinycompile.ir.builder import identifier

_FEW = 12  # so many entries are cheaper as single expressions: a pass in C costs more to begin than eight of them
_MANY = 32  # so many tensors cost less in their words than one by one
_SEVERAL = ("WATCHED(", "ENTRIES(", "not _any(")

MISS: Any = object()
"""What a guarded function returns where it is not for a call."""


def compile_guards(
    guards: GuardSet,
    signature: str,
    like: FunctionType | None,
    skip: int = 0,
    aligned: Collection[str] | None = None,
    devices: Collection[str] | None = None,
) -> CompiledGuards:
    """The guard function. ``signature``: its parameters as text; ``like`` has these after the first ``skip``. ``aligned``: the
    sources of tensors on whose alignment generated code relies; None: all. ``devices``: the types of devices on which the graph
    computes; None: it may be any."""
    return _Compiler(guards, aligned, devices).compiled(signature, like, skip)


class _Compiler:
    def __init__(self, guards: GuardSet, aligned: Collection[str] | None, devices: Collection[str] | None) -> None:
        self.guards, self.wanted, self.devices = guards, aligned, devices
        self.space: dict[str, Any] = {**HELPERS, **guards.held}

    def compiled(self, signature: str, like: FunctionType | None, skip: int) -> CompiledGuards:
        guards, space = self.guards, self.space
        held = tuple(self.entries())  # making these may hold more objects
        classes_first = guards.looks_into_classes()
        checks = (
            *(Check(f"{name} is {h.name}", f"{name} is {h.shown}") for name, h in guards.identities.items()),
            *self.state(),
            *(self._signature(text) for text in guards.tensors if text.isidentifier()),
            *(held if classes_first else ()),
            *(self._signature(c.text) if c.is_signature else c for c in guards.checks.values()),
            *guards.late_checks.values(),
            *self.alignment_of_arguments(),
            *(held if not classes_first else ()),
            *self.parameters(),
        )
        condition = "\n            and ".join(f"({c.text})  # {' '.join(c.label.split())}" for c in checks) or "True"
        source = (
            f"def guard({signature}):\n    try:\n        return (\n            {condition}\n        )\n"
            "    except _READ_ERRORS:\n        return False\n"
        )
        space.update(guards.held)
        fn = define(source, "guard", space, like, skip)
        read = define(f"def read({signature}):\n    return locals()\n", "read", {}, like, skip)
        entries = tuple(guards.entries.values())
        facts = tuple((label, describe_tensor(t)) for label, t in guards.labelled_tensors())
        return CompiledGuards(fn, source, condition, guards.table(), checks, entries, facts, space, read)

    def state(self) -> Iterator[Check]:
        """Modes: by the tensors' signatures, as far as these tell."""
        for check in self.guards.state.values():
            yield OF_FUNCTIONS if check == ORDINARY and self._signatures_tell() else check

    def _signatures_tell(self) -> bool:
        """Whether no region of autocast concerns the graph but those for devices of tensors that are checked one by one."""
        if self.devices is None or self.guards.reads_autocast:
            return False
        telling = {t.device.type for t in self.guards.tensors.values() if tells_modes(t)}
        return bool(telling) and telling.issuperset(self.devices)

    def _signature(self, text: str) -> Check:
        """The signature of a tensor by path: one C call each, for one check of several wants them to be different objects."""
        name, tensor = self.guards.names.take(f"is_{identifier(text)}"), self.guards.tensors[text]
        self.space[name] = torch_private.BulkCheck((tensor,)).check
        return Check(f"{name}({text})", f"{text}: {describe_tensor(tensor)}", is_signature=True)

    # --- alignment ---

    def _relied_on(self, text: str) -> bool:
        return self.wanted is None or text in self.wanted

    def alignment_of_arguments(self) -> Iterator[Check]:
        """After the checks that show the arguments to be tensors."""
        relied = {t: a for t, a in self.guards.alignments.items() if self._relied_on(t)}
        aligned = [text for text, (is_aligned, _) in relied.items() if is_aligned]
        if aligned:
            pointers = " | ".join(f"{text}.data_ptr()" for text in aligned)
            yield Check(f"not ({pointers}) & 15", "16-byte alignment of " + ", ".join(aligned))
        for text, (is_aligned, label) in relied.items():
            if not is_aligned:
                yield Check(f"{text}.data_ptr() & 15", f"{label} is not aligned to 16 bytes")

    # --- in bulk ---

    def entries(self) -> Iterator[Check]:
        """What held dicts hold, the classes of held objects, and which held containers are empty."""
        entries = list(self.guards.entries.values())
        dicts = to_watch(entries)
        watched = [e for e, d in zip(entries, dicts, strict=True) if d is not None]
        others = [e for e, d in zip(entries, dicts, strict=True) if d is None]
        if len(watched) <= _FEW:
            watched, others = [], entries
        if len(others) <= _FEW:
            yield from map(self._single, others)
        else:
            self.space["ENTRIES"] = every(others)
            yield Check("ENTRIES()", _summary(others))
        if watched:
            self.space["WATCHED"] = Watched(watched)
            yield Check("WATCHED()", _summary(watched))
        yield from self.still()

    def still(self) -> Iterator[Check]:
        """The classes of held objects, and which held containers are empty."""
        held = tuple(h.value for h in self.guards.classes.values())
        empty = tuple(self.guards.held[name] for name in self.guards.empties)
        classes, hooks = f"the classes of {len(held)} objects", "modules have no hooks"
        still = dict_versions.still(held, empty) if len(held) + len(empty) > _FEW else None
        if still is not None:
            self.space["STILL"] = still
            yield Check("STILL()", " and ".join([classes] * bool(held) + [hooks] * bool(empty)))
            return
        if held:
            self.space.update(OBJECTS=held, CLASSES=tuple(map(type, held)))
            yield Check("_tuple(_map(_type, OBJECTS)) == CLASSES", classes)
        if empty:
            self.space["EMPTY"] = empty
            yield Check("not _any(EMPTY)", hooks)

    def _single(self, e: Entry) -> Check:
        if e.how == "absent":
            return Check(f"{e.key!r} not in {e.container.name}", e.label)
        if e.how == "keys":
            return Check(f"_tuple({e.container.name}) == {self._held(e.value, 'KEYS')}", e.label)
        read = f"{e.container.name}[{e.key!r}]" if e.how in ("is", "equal") else f"{e.container.name}.__{e.how}__"
        if e.how == "equal":
            return Check(self.guards.equals(read, e.value), e.label)
        return Check(f"{read} is {self._held(e.value, 'OBJECT')}", e.label)

    def _held(self, value: Any, hint: str) -> str:
        name = self.guards.hold(value, hint).name
        self.space[name] = value
        return name

    def parameters(self) -> Iterator[Check]:
        """Tensors whose identity is guarded: one C call for the signatures of all, and one for their addresses."""
        held = self.guards.held_tensors
        if not held:
            return
        params = tuple(held.values())
        label = f"signatures of {len(params)} parameters and buffers"
        self.space["PARAMS"] = params
        if len(params) >= _MANY:
            self.space["PARAM_CHECK"] = WatchedTensors(params).check
            yield Check("PARAM_CHECK()", label)
        else:
            self.space["PARAM_CHECK"] = torch_private.BulkCheck(params).check
            yield Check("PARAM_CHECK(*PARAMS)", label)
        aligned = tuple(t for name, t in held.items() if self._relied_on(name) and t.data_ptr() % 16 == 0)
        if aligned:
            watch = WatchedAlignment if len(aligned) >= _MANY else torch_private.BulkAlignment
            self.space["ALIGNED"] = watch(aligned).check
            yield Check("ALIGNED()", f"16-byte alignment of {len(aligned)} of them")


def _summary(entries: Sequence[Entry]) -> str:
    dicts = len({id(e.container.value) for e in entries})
    return f"{len(entries)} entries of {dicts} objects: {', '.join(e.label for e in entries[:2])}, ..."


def define(source: str, name: str, space: dict[str, Any], like: FunctionType | None, skip: int = 0) -> FunctionType:
    """Run ``source`` in ``space`` and return the function ``name``, with the defaults of ``like`` if there is one."""
    exec(compile(source, f"<tinycompile {name}>", "exec"), space)
    fn: FunctionType = space[name]
    if like is None:
        return fn
    fn.__defaults__ = like.__defaults__ if fn.__code__.co_argcount + skip == like.__code__.co_argcount else None
    fn.__kwdefaults__ = None if like.__kwdefaults__ is None else dict(like.__kwdefaults__)
    return fn


@dataclass(frozen=True)
class CompiledGuards:
    """The guard function, its source, its ``condition`` alone, its guards in words (see :meth:`GuardSet.table`), and what
    explains a failure. ``facts``: each held tensor as it was."""

    guard: Callable[..., bool]
    source: str
    condition: str
    table: tuple[tuple[str, str], ...]
    checks: tuple[Check, ...]
    entries: tuple[Entry, ...]
    facts: tuple[tuple[str, str], ...]
    space: Mapping[str, Any]
    read: Callable[..., dict[str, Any]]

    def explain_failure(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """The first guard that these arguments fail, in words; empty when none does."""
        try:
            names = self.read(*args, **kwargs)
        except TypeError as error:
            return str(error)
        space = {**self.space, **names}
        for check in self.checks:
            try:
                ok = eval(check.text, space)  # in one dict, so that names bound by := reach later checks
            except READ_ERRORS as error:
                if check.text.startswith(_SEVERAL):
                    return self._particular(check, space)
                return f"{check.label} ({words(error)})"
            if not ok:
                return self._particular(check, space)
        return ""

    def _particular(self, check: Check, space: Mapping[str, Any]) -> str:
        if check.is_signature:
            text, _, fact = check.label.partition(": ")
            now = eval(text, dict(space))
            shown = describe_tensor(now) if isinstance(now, torch.Tensor) else shown_shortly(now)
            if shown == fact and not torch_private.ordinary_mode():
                return ORDINARY.label
            return f"{text} was {fact}; now it is {shown if shown != fact else 'of another class or key set'}"
        if check.text.startswith("PARAM_CHECK("):
            for (label, fact), t in zip(self.facts, space["PARAMS"], strict=True):
                if describe_tensor(t) != fact:
                    return f"{label} was {fact}; now it is {describe_tensor(t)}"
        failed = [e.label for e in self.entries if not e.holds()]
        return failed[0] if failed and check.text.startswith(_SEVERAL) else check.label


def guarded(guards: CompiledGuards, python: str, run: FunctionType) -> FunctionType | None:
    """A rebuilt function, ``run`` with the source ``python``, and its guards as one function: a call costs one frame less. It
    returns :data:`MISS` where the guards fail, in whichever way. None where one of the two has a variable of a name that the
    other looks up outside."""
    head, body = python.split("\n", 1)
    test = f"        if not (\n            {guards.condition}\n        ):\n            return MISS\n"
    source = f"{head}\n    try:\n{test}    except Exception:\n        return MISS\n{body}"
    space = {**guards.space, **run.__globals__, "MISS": MISS}
    made = define(source, run.__code__.co_name, space, run)
    variables = {*made.__code__.co_varnames, *made.__code__.co_cellvars}
    return None if variables & (guards.space.keys() | run.__globals__.keys()) else made


def no_guards() -> CompiledGuards:
    """Guards that hold for any arguments."""
    return CompiledGuards(_holds, "", "True", (), (), (), (), {}, _nothing)


def _holds(*_: Any, **__: Any) -> bool:
    return True


def _nothing(*_: Any, **__: Any) -> dict[str, Any]:
    return {}


def signature_text(fn: FunctionType, skip: int = 0) -> str:
    """A function's parameters as source; defaults read ``=None`` (they are set on the function object)."""
    parts: list[str] = []
    star = False
    parameters = list(inspect.signature(fn, follow_wrapped=False).parameters.values())[skip:]
    for i, p in enumerate(parameters):
        default = "=None" if p.default is not p.empty else ""
        if p.kind is p.VAR_POSITIONAL:
            star = True
            parts.append(f"*{p.name}")
        elif p.kind is p.VAR_KEYWORD:
            parts.append(f"**{p.name}")
        elif p.kind is p.KEYWORD_ONLY:
            if not star:
                parts.append("*")
                star = True
            parts.append(p.name + default)
        else:
            parts.append(p.name + default)
            last_positional_only = i + 1 == len(parameters) or parameters[i + 1].kind is not p.POSITIONAL_ONLY
            if p.kind is p.POSITIONAL_ONLY and last_positional_only:
                parts.append("/")
    return ", ".join(parts)
