"""Guards: the conditions under which a capture is valid, collected here and compiled by ``guard_code.py``.

Two kinds exist. A *check* is a Python expression over the user's parameters. An *entry* says what a held dict (of a
module, a class, globals) holds under a key, or which code a held function runs.
"""

from __future__ import annotations

import enum
import math
import operator
from dataclasses import dataclass, field
from types import CellType, FunctionType, MappingProxyType, ModuleType
from typing import Any, Protocol

import numpy as np
import torch
from torch.autograd import forward_ad

from tinycompile.base import torch_private
from tinycompile.base.device import default_device
from tinycompile.base.known_tensors import tensors_are_torchs
from tinycompile.capture.guard_entries import READ_ERRORS, Entry
from tinycompile.capture.sources import Held, HeldItem, Source
from tinycompile.capture.told_apart import bits_of, facts_of, parts_of
from tinycompile.capture.trust import BUILTIN_TYPES, is_of, is_trusted, module_of
from tinycompile.ir.builder import UniqueNames, identifier


def is_empty(cell: CellType) -> bool:
    """Whether a closure's variable is unbound."""
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return True
    return False


def _name_of(limits: Any) -> str:
    """What tells numpy's limits of one type of numbers from those of another."""
    return str(limits.dtype)


_TOLD_BY: tuple[tuple[Any, Any], ...] = ((np.generic, bits_of), (complex, parts_of), ((np.iinfo, np.finfo), _name_of))
# Python's own functions under names that no parameter bears.
HELPERS: dict[str, Any] = {
    "_type": type, "_str": str, "_any": any, "_all": all, "_tuple": tuple, "_map": map, "_list": list, "_len": len,
    "_READ_ERRORS": READ_ERRORS, "_int": int, "_float": float, "_is": operator.is_,
    "_grad_enabled": torch.is_grad_enabled, "_default_dtype": torch.get_default_dtype, "_raw_keys": torch_private.raw_keys,
    "_ordinary_mode": torch_private.ordinary_mode, "_function_modes": torch_private.function_modes,
    "_forward_ad": forward_ad,
    "_only_default_device": torch_private.only_default_device, "_default_device": default_device,
    "_tensors_are_torchs": tensors_are_torchs,
    "_no_python_modes": torch_private.no_python_modes, "_any_autocast": torch_private.any_autocast,
    "_inference_mode": torch.is_inference_mode_enabled, "_is_empty": is_empty,
    "_deterministic": torch.are_deterministic_algorithms_enabled,
}  # fmt: skip
OWN_NAMES = (
    *HELPERS, "ALIGNED", "CLASSES", "EMPTY", "ENTRIES", "Exception", "MISS", "OBJECTS", "PARAMS", "PARAM_CHECK", "STILL",
    "WATCHED",
)  # fmt: skip  # what guards and rebuilt code mean by these names is never the program's


@dataclass(frozen=True, slots=True)
class Check:
    """An expression that must be true, and how to say so to a person. ``is_signature``: of the tensor that the label names."""

    text: str
    label: str
    is_signature: bool = False


ORDINARY = Check("_ordinary_mode()", "no autocast, inference mode, torch function or dispatch mode, dual level")
OF_FUNCTIONS = Check("not (_function_modes() or _forward_ad._current_level >= 0)", "no torch function mode, dual level")


class Reason(Protocol):
    """What a break is due to, as long as it lasts."""

    def lasts(self) -> bool:
        """Whether it is still so: else the code that ends at the break is not the best that there is."""


@dataclass
class GuardSet:
    """All guards of one capture."""

    names: UniqueNames
    reads_autocast: bool = False
    """Whether the program itself has looked at the state of autocast."""
    held: dict[str, Any] = field(default_factory=dict)
    identities: dict[str, Held] = field(default_factory=dict)  # by parameter
    state: dict[str, Check] = field(default_factory=dict)
    checks: dict[str, Check] = field(default_factory=dict)
    late_checks: dict[str, Check] = field(default_factory=dict)
    entries: dict[tuple[str, str, str], Entry] = field(default_factory=dict)
    classes: dict[str, Held] = field(default_factory=dict)
    empties: dict[str, str] = field(default_factory=dict)
    alignments: dict[str, tuple[bool, str]] = field(default_factory=dict)
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    held_tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    odd: list[tuple[Any, Source]] = field(default_factory=list)  # what could not be modelled, for its kind
    reasons: list[tuple[str, Reason]] = field(default_factory=list)  # why a capture breaks, where that may pass
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

    def identity(self, parameter: str, held: Held) -> None:
        """The parameter is this very object; checked before all else, for it tells one module's code from another's."""
        self.identities.setdefault(parameter, held)

    def state_check(self, text: str, label: str) -> None:
        """A condition on global state; checked first."""
        self.state.setdefault(text, Check(text, label))

    def ordinary_mode(self) -> None:
        """No mode is active that changes what ops do."""
        self.state.setdefault(ORDINARY.text, ORDINARY)

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
            Entry(how, source.of, source.key, value, f"{source.label} {sign} {shown_shortly(value)}"),
        )

    def absent(self, mapping: Held, key: str, label: str) -> None:
        """A held dict still lacks the key."""
        self.entries.setdefault(("absent", mapping.name, key), Entry("absent", mapping, key, None, label))

    def code(self, fn: Held) -> None:
        """A held function still runs the same code: reloading tools replace it in place."""
        label = f"the code of {fn.value.__qualname__}"
        self.entries.setdefault(("code", fn.name, "__code__"), Entry("code", fn, "__code__", fn.value.__code__, label))

    def own_dict(self, obj: Held) -> None:
        """A held object still has the same ``__dict__``: the entries that count are those of this one."""
        attributes = object.__getattribute__(obj.value, "__dict__")
        self.entries.setdefault(("dict", obj.name, ""), Entry("dict", obj, "", attributes, f"the __dict__ of {obj.label}"))

    def equals(self, text: str, value: Any) -> str:
        """An expression: ``text`` names a constant of the same type and value (NaN equals NaN, -0.0 differs from 0.0, and so
        does one numpy scalar from another of other bits or of another unit, and a dtype from another of another name)."""
        if value is None or value is True or value is False or value is Ellipsis:
            return f"{text} is {value!r}"
        kind = type(value)
        if kind is float and math.isnan(value):
            signed = f"{self.hold(math.copysign, 'copysign').name}(1.0, {text}) == {math.copysign(1.0, value)}"
            return f"_type({text}) is {self.hold(float, 'float_').name} and {text} != {text} and {signed}"
        if issubclass(kind, np.dtype):
            known, facts = self.hold(value, "dtype").name, self.hold(facts_of, "facts_of").name
            alike = f"{facts}({text}) == {self.hold(facts_of(value), 'facts').name}"
            return f"({text} is {known} or (_type({text}) is {self.hold(kind, 'dtype_').name} and {alike}))"
        told_by = next((ask for kinds, ask in _TOLD_BY if issubclass(kind, kinds)), None)
        if told_by is not None:
            same = f"{self.hold(told_by, told_by.__name__).name}({text}) == {self.hold(told_by(value), 'told').name}"
            return f"_type({text}) is {self.hold(kind, identifier(kind.__name__) + '_').name} and {same}"
        literal = kind in (int, str, bytes) or (kind is float and math.isfinite(value))
        shown = repr(value) if literal else self.hold(value, "constant").name
        has_twin = kind is range or (kind is float and value == 0)  # an equal one that is another
        sign = f" and _str({text}) == '{value}'" if has_twin else ""
        return f"_type({text}) is {self.hold(kind, identifier(kind.__name__) + '_').name} and {text} == {shown}{sign}"

    def class_of(self, held: Held) -> None:
        """A held object is still an instance of its class."""
        self.classes.setdefault(held.name, held)

    def looks_into_classes(self) -> bool:
        """Whether something depends on what a class of the program's holds: its objects may come to be asked."""
        classes = (e.container.value for e in self.entries.values() if type(e.container.value) is MappingProxyType)
        return any(not is_trusted(str(c.get("__module__"))) for c in classes)

    def empty(self, container: Held) -> None:
        """A held container is still empty."""
        self.empties[container.name] = f"{container.label} is empty"

    def alignment(self, text: str, label: str, aligned: bool) -> None:
        """The tensor's first element lies at a multiple of 16 bytes, or does not; checked where generated code relies on it."""
        self.alignments.setdefault(text, (aligned, label))

    def keys(self, mapping: Held) -> None:
        """A held dict still has the same keys in the same order."""
        keys = tuple(mapping.value)
        label = f"{mapping.label} has the keys {', '.join(map(str, keys))}"
        self.entries.setdefault(("keys", mapping.name, ""), Entry("keys", mapping, "", keys, label))

    def tensor(self, text: str, tensor: torch.Tensor) -> None:
        """The tensor that ``text`` names keeps its class, dtype, device, keys, sizes, strides and ``requires_grad``. Where an
        object leads to it, what is known of that object is checked before: another might be asked for it."""
        self.tensors.setdefault(text, tensor)
        if not text.isidentifier():
            self.checks.setdefault(text, Check(text, "", is_signature=True))

    def held_tensor(self, held: Held) -> None:
        """The same for a tensor whose identity is guarded."""
        self.held_tensors.setdefault(held.name, held.value)

    # --- for people ---

    def table(self) -> tuple[tuple[str, str], ...]:
        """Each guard as ``(what it is about, in words)``."""
        return (
            *(("tensor", f"{text}: {describe_tensor(t)}") for text, t in self.tensors.items()),
            *(("argument", f"{name} is {held.shown}") for name, held in self.identities.items()),
            *(("mode", c.label) for c in self.state.values()),
            *(("value", c.label) for c in self.checks.values() if not c.is_signature),
            *(("size", c.label) for c in self.late_checks.values()),
            *(("class", f"{h.label} is a {type(h.value).__qualname__}") for h in self.classes.values()),
            *(("object", e.label) for e in self.entries.values()),
            *(("hooks", label) for label in self.empties.values()),
            *(("parameter", f"{label}: {describe_tensor(t)}") for label, t in self.labelled_tensors()),
        )

    def labelled_tensors(self) -> list[tuple[str, torch.Tensor]]:
        """Tensors whose identity is guarded, with the words for each."""
        return [(self._by_id[id(t)].label, t) for t in self.held_tensors.values()]


_SHOWN = (int, float, str, bytes, complex, range, type(None), np.generic, np.dtype, torch.dtype, torch.device)


def shown_shortly(value: Any) -> str:
    """A few characters for a value; no ``repr`` is called but that of small constants, of no class of the program's."""
    kind = type(value)
    if issubclass(kind, enum.Enum):
        return f"{kind.__name__}.{object.__getattribute__(value, '_name_')}"
    if kind is tuple:
        return f"({', '.join(map(shown_shortly, value))})"
    if issubclass(kind, _SHOWN) and (module_of(kind) == "numpy" or is_of(kind, "builtins", "torch")):
        text = repr(value)
        return text if len(text) <= 40 else text[:37] + "..."
    if issubclass(kind, type):
        return str(type.__getattribute__(value, "__qualname__"))
    if issubclass(kind, (FunctionType, *BUILTIN_TYPES)):  # (of others the program might be asked)
        return getattr(value, "__qualname__", None) or getattr(value, "__name__", None) or f"this {kind.__name__}"
    return f"module {value.__dict__.get('__name__')}" if issubclass(kind, ModuleType) else f"this {kind.__name__}"


def describe_tensor(t: torch.Tensor) -> str:
    """dtype, sizes, strides where they are unusual, device and requires_grad."""
    text = f"{str(t.dtype).removeprefix('torch.')}[{', '.join(map(str, t.shape))}]"
    if not t.is_contiguous():
        text += f" strides[{', '.join(map(str, t.stride()))}]"
    return f"{text} {t.device}" + (" requires_grad" if t.requires_grad else "")


def is_aligned(t: torch.Tensor) -> bool:
    """Whether the first element lies at a multiple of 16 bytes."""
    return t.data_ptr() % 16 == 0
