"""Guards: the conditions under which a capture is valid, compiled into one expression with early exit.

Two kinds exist. A *check* is a Python expression over the user's parameters. An *entry* says what a held dict (of a
module, a class, globals) holds under a key, or which code a held function runs; a model has hundreds of these, so they are
checked in bulk by C functions (``all(map(is_, map(getitem, ...)))``).
The order is: global state, tensors, checks in the order in which capture met them, bulk entries.
"""

from __future__ import annotations

import inspect
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from types import CellType, FunctionType
from typing import Any

import torch

from tinycompile.base import torch_private
from tinycompile.capture.sources import Held, HeldItem
from tinycompile.ir.builder import UniqueNames, identifier

# What reading a changed object can raise; such a guard fails, it doesn't crash.
READ_ERRORS = (AttributeError, KeyError, IndexError, TypeError, NameError, ValueError)


def is_empty(cell: CellType) -> bool:
    """Whether a closure's variable is unbound."""
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return True
    return False


# Python's own functions under names that no parameter bears.
HELPERS: dict[str, Any] = {
    "_type": type, "_str": str, "_map": map, "_all": all, "_any": any, "_tuple": tuple, "_list": list, "_len": len,
    "_is": operator.is_, "_getitem": operator.getitem, "_contains": operator.contains,
    "_reduce": reduce, "_or": operator.or_, "_data_ptr": torch.Tensor.data_ptr, "_READ_ERRORS": READ_ERRORS,
    "_code": operator.attrgetter("__code__"),
    "_grad_enabled": torch.is_grad_enabled, "_default_dtype": torch.get_default_dtype, "_raw_keys": torch_private.raw_keys,
    "_ordinary_mode": torch_private.ordinary_mode, "_is_empty": is_empty,
}  # fmt: skip
_FEW = 3  # so many entries are cheaper as single expressions


@dataclass(frozen=True, slots=True)
class Check:
    """An expression that must be true, and how to say so to a person."""

    text: str
    label: str


@dataclass(frozen=True, slots=True)
class Entry:
    """``container`` holds ``value`` under ``key``. ``how``: ``is``, ``equal``, ``absent``, or ``code`` for a function's."""

    how: str
    container: Held
    key: str
    value: Any
    label: str

    def holds(self) -> bool:
        """Whether it is still so."""
        try:
            if self.how == "absent":
                return self.key not in self.container.value
            if self.how == "code":
                return self.container.value.__code__ is self.value
            found = self.container.value[self.key]
        except READ_ERRORS:
            return False
        return found is self.value if self.how != "equal" else type(found) is type(self.value) and found == self.value


@dataclass
class GuardSet:
    """All guards of one capture."""

    names: UniqueNames
    held: dict[str, Any] = field(default_factory=dict)
    state: dict[str, Check] = field(default_factory=dict)
    checks: dict[str, Check] = field(default_factory=dict)
    late_checks: dict[str, Check] = field(default_factory=dict)
    entries: dict[tuple[str, str, str], Entry] = field(default_factory=dict)
    empties: dict[str, str] = field(default_factory=dict)
    aligned_texts: dict[str, None] = field(default_factory=dict)
    key_lists: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    held_tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    _by_id: dict[int, Held] = field(default_factory=dict)

    # --- collecting ---

    def hold(self, value: Any, hint: str, shown: str | None = None) -> Held:
        """Keep an object under a name that guards and rebuilt code can use. One object has one name."""
        found = self._by_id.get(id(value))
        if found is None:
            name = self.names.take(hint)
            found = self._by_id[id(value)] = Held(name, shown or hint, value)
            self.held[name] = value
        return found

    def state_check(self, text: str, label: str) -> None:
        """A condition on global state; checked first."""
        self.state.setdefault(text, Check(text, label))

    def check(self, text: str, label: str) -> None:
        """A condition over the parameters."""
        self.checks.setdefault(text, Check(text, label))

    def late_check(self, text: str, label: str) -> None:
        """A condition that uses what earlier checks have bound (size symbols)."""
        self.late_checks.setdefault(text, Check(text, label))

    def item(self, source: HeldItem, value: Any, *, equal: bool) -> None:
        """A held dict still holds this object, or for ``equal`` a constant equal to it."""
        how = "equal" if equal else "is"
        sign = "==" if equal else "is"
        self.entries.setdefault(
            (how, source.of.name, source.key),
            Entry(how, source.of, source.key, value, f"{source.label} {sign} {_short(value)}"),
        )

    def absent(self, mapping: Held, key: str, label: str) -> None:
        """A held dict still lacks the key."""
        self.entries.setdefault(("absent", mapping.name, key), Entry("absent", mapping, key, None, label))

    def code(self, fn: Held) -> None:
        """A held function still runs the same code: reloading tools replace it in place."""
        label = f"the code of {fn.value.__qualname__}"
        self.entries.setdefault(("code", fn.name, "__code__"), Entry("code", fn, "__code__", fn.value.__code__, label))

    def equals(self, text: str, value: Any) -> str:
        """An expression: ``text`` names a constant of the same type and value (NaN equals NaN, -0.0 differs from 0.0)."""
        if value is None or value is True or value is False or value is Ellipsis:
            return f"{text} is {value!r}"
        kind = type(value)
        if kind is float and math.isnan(value):
            return f"_type({text}) is {self.hold(float, 'float_').name} and {text} != {text}"
        literal = kind in (int, str, bytes) or (kind is float and math.isfinite(value))
        shown = repr(value) if literal else self.hold(value, "constant").name
        sign = f" and _str({text}) == '{value}'" if kind is float and value == 0 else ""
        return f"_type({text}) is {self.hold(kind, identifier(kind.__name__) + '_').name} and {text} == {shown}{sign}"

    def empty(self, container: Held) -> None:
        """A held container is still empty."""
        self.empties[container.name] = f"{container.label} is empty"

    def aligned(self, text: str) -> None:
        """The tensor's first element lies at a multiple of 16 bytes."""
        self.aligned_texts.setdefault(text)

    def keys(self, mapping: Held) -> None:
        """A held dict still has the same keys in the same order."""
        self.key_lists.setdefault(mapping.name, tuple(mapping.value))

    def tensor(self, text: str, tensor: torch.Tensor) -> None:
        """The tensor that ``text`` names keeps its class, dtype, device, keys, sizes, strides and ``requires_grad``."""
        self.tensors.setdefault(text, tensor)

    def held_tensor(self, held: Held) -> None:
        """The same for a tensor whose identity is guarded."""
        self.held_tensors.setdefault(held.name, held.value)

    # --- for people ---

    def labels(self) -> tuple[str, ...]:
        """Each guard in words."""
        plain = [c.label for c in (*self.state.values(), *self.checks.values(), *self.late_checks.values())]
        tensors = [f"{text}: {describe_tensor(t)}" for text, t in self.tensors.items()]
        held = [f"{self._by_id[id(t)].label}: {describe_tensor(t)}" for t in self.held_tensors.values()]
        return (*tensors, *plain, *(e.label for e in self.entries.values()), *self.empties.values(), *held)

    # --- compiling ---

    def compile(self, signature: str, like: FunctionType | None, skip: int = 0) -> CompiledGuards:
        """The guard function. ``signature``: its parameters as text; ``like`` has these after the first ``skip``."""
        space = {**HELPERS, **self.held}
        checks = [  # making these may hold more objects
            *self.state.values(),
            *self._tensor_checks(space),
            *self.checks.values(),
            *self.late_checks.values(),
            *self._alignment_checks(),
            *self._bulk_checks(space),
        ]
        body = "\n            and ".join(f"({c.text})  # {' '.join(c.label.split())}" for c in checks) or "True"
        source = (
            f"def guard({signature}):\n    try:\n        return (\n            {body}\n        )\n"
            "    except _READ_ERRORS:\n        return False\n"
        )
        space.update(self.held)
        fn = define(source, "guard", space, like, skip)
        read = define(f"def read({signature}):\n    return locals()\n", "read", {}, like, skip)
        return CompiledGuards(fn, source, self.labels(), tuple(checks), tuple(self.entries.values()), space, read)

    def _tensor_checks(self, space: dict[str, Any]) -> Iterable[Check]:
        """Signatures of tensors by path: one C call each."""
        for text, tensor in self.tensors.items():  # one by one: a bulk check of several wants them to be different objects
            name = self.names.take(f"is_{identifier(text)}")
            space[name] = torch_private.BulkCheck((tensor,)).check
            yield Check(f"{name}({text})", f"{text}: {describe_tensor(tensor)}")

    def _alignment_checks(self) -> Iterable[Check]:
        """After the checks that show the arguments to be tensors."""
        if self.aligned_texts:
            pointers = " | ".join(f"{text}.data_ptr()" for text in self.aligned_texts)
            yield Check(f"not ({pointers}) & 15", "16-byte alignment of " + ", ".join(self.aligned_texts))

    def _bulk_checks(self, space: dict[str, Any]) -> Iterable[Check]:
        for how in ("is", "equal", "absent", "code"):
            entries = [e for e in self.entries.values() if e.how == how]
            if len(entries) <= _FEW:
                yield from (self._single(e, space) for e in entries)
            else:
                yield self._bulk(how, entries, space)
        if self.empties:
            space["EMPTY"] = tuple(self.held[name] for name in self.empties)
            yield Check("not _any(EMPTY)", "modules have no hooks")
        if self.key_lists:
            space.update(KEYED=tuple(self.held[n] for n in self.key_lists), KEY_LISTS=tuple(self.key_lists.values()))
            yield Check(
                "_tuple(_map(_tuple, KEYED)) == KEY_LISTS", "containers have the same keys: " + ", ".join(self.key_lists)
            )
        if self.held_tensors:
            params = tuple(self.held_tensors.values())
            space.update(PARAMS=params, PARAM_CHECK=torch_private.BulkCheck(params).check)
            yield Check("PARAM_CHECK(*PARAMS)", f"signatures of {len(params)} parameters and buffers")
            aligned = tuple(t for t in params if is_aligned(t))
            if aligned:
                space["ALIGNED"] = aligned
                yield Check("not _reduce(_or, _map(_data_ptr, ALIGNED)) & 15", "their 16-byte alignment")

    def _single(self, e: Entry, space: dict[str, Any]) -> Check:
        if e.how == "absent":
            return Check(f"{e.key!r} not in {e.container.name}", e.label)
        read = f"{e.container.name}.__code__" if e.how == "code" else f"{e.container.name}[{e.key!r}]"
        if e.how == "equal":
            return Check(self.equals(read, e.value), e.label)
        name = self.hold(e.value, "OBJECT").name
        space[name] = e.value
        return Check(f"{read} is {name}", e.label)

    def _bulk(self, how: str, entries: Sequence[Entry], space: dict[str, Any]) -> Check:
        tag = how.upper()
        space[f"{tag}_IN"] = tuple(e.container.value for e in entries)
        space[f"{tag}_KEYS"] = tuple(e.key for e in entries)
        space[f"{tag}_VALUES"] = values = tuple(e.value for e in entries)
        read = f"_map(_code, {tag}_IN)" if how == "code" else f"_map(_getitem, {tag}_IN, {tag}_KEYS)"
        label = f"{len(entries)} entries: {', '.join(e.label for e in entries[:2])}, ..."
        if how == "absent":
            return Check(f"not _any(_map(_contains, {tag}_IN, {tag}_KEYS))", label)
        if how == "equal":
            space["EQUAL_TYPES"] = tuple(map(type, values))
            text = f"(found := _tuple({read})) == {tag}_VALUES and _tuple(_map(_type, found)) == EQUAL_TYPES"
            return Check(text, label)
        return Check(f"_all(_map(_is, {read}, {tag}_VALUES))", label)


_BULK = ("_all(", "not _any(", "(found := ")


def _short(value: Any) -> str:
    """A few characters for a value; no object's own ``repr`` is called but those of small constants."""
    if isinstance(value, (int, float, str, bytes, complex, torch.dtype, torch.device, type(None))):
        text = repr(value)
        return text if len(text) <= 40 else text[:37] + "..."
    return getattr(value, "__qualname__", None) or getattr(value, "__name__", None) or f"this {type(value).__name__}"


def describe_tensor(t: torch.Tensor) -> str:
    """dtype, sizes, strides where they are unusual, device and requires_grad."""
    text = f"{str(t.dtype).removeprefix('torch.')}[{', '.join(map(str, t.shape))}]"
    if not t.is_contiguous():
        text += f" strides[{', '.join(map(str, t.stride()))}]"
    return f"{text} {t.device}" + (" requires_grad" if t.requires_grad else "")


def is_aligned(t: torch.Tensor) -> bool:
    """Whether the first element lies at a multiple of 16 bytes."""
    return t.data_ptr() % 16 == 0


def define(source: str, name: str, space: dict[str, Any], like: FunctionType | None, skip: int = 0) -> Callable[..., Any]:
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
    """The guard function, its source, and what is needed to explain a failure."""

    guard: Callable[..., bool]
    source: str
    labels: tuple[str, ...]
    checks: tuple[Check, ...]
    entries: tuple[Entry, ...]
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
                return f"{check.label} ({type(error).__name__}: {error})"
            if not ok:
                return self._particular(check, space)
        return ""

    def _particular(self, check: Check, space: Mapping[str, Any]) -> str:
        if check.text.startswith("is_"):
            text, _, fact = check.label.partition(": ")
            now = eval(text, dict(space))
            shown = describe_tensor(now) if isinstance(now, torch.Tensor) else _short(now)
            return f"{text} was {fact}; now it is {shown if shown != fact else 'of another class or key set'}"
        failed = [e.label for e in self.entries if not e.holds()]
        return failed[0] if failed and check.text.startswith(_BULK) else check.label


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
