"""Looking names up: attributes, what classes hold, globals and builtins; each look guards what it found, or did not."""

from __future__ import annotations

import builtins as python_builtins
import enum
from collections.abc import Iterator
from contextlib import contextmanager
from types import FunctionType, ModuleType
from typing import Any

import torch

from tinycompile.capture.breaks import GraphBreak
from tinycompile.capture.effects import Effects
from tinycompile.capture.endings import check_content, check_overwritten
from tinycompile.capture.guards import GuardSet, shown_shortly
from tinycompile.capture.provenance import natively
from tinycompile.capture.sources import Attr, Held, HeldItem, Own, Source
from tinycompile.capture.trust import trusts, trusts_variables_of
from tinycompile.capture.values.base import Lazy, Value
from tinycompile.capture.values.classes import class_lookup, is_heap_type, is_pythons_own, looks, takes_data
from tinycompile.capture.values.constant import Const, is_written_in_python
from tinycompile.capture.values.descriptors import asks_the_program, is_data_descriptor
from tinycompile.capture.values.function import BoundFunction
from tinycompile.capture.values.special_results import RESULTS, checked
from tinycompile.ir.builder import identifier

# What torch's classes of tensors had when this was imported: what they have else is the program's.
_TENSORS = {cls: dict(cls.__dict__) for cls in (torch.nn.Parameter, torch.Tensor)}


def hook_of(module: ModuleType) -> Any:
    """The function that a plain module of the program's has for names that it lacks; None if there is none."""
    plain = type(module) is ModuleType and not trusts_variables_of(module.__dict__)
    return module.__dict__.get("__getattr__") if plain else None


class Lookups:
    """A part of ``Tracer``."""

    guards: GuardSet
    effects: Effects

    def __init__(self) -> None:
        self._globals: dict[tuple[int, str], Value] = {}
        self._class_dicts: dict[type, Held] = {}
        self._of_tensors: dict[tuple[type, str], tuple[Any] | None] = {}
        self._inherited: set[tuple[type, type, str, type | None]] = set()

    def wrap(self, obj: Any, source: Source) -> Value:
        """The Value of an object from outside; one source has one Value."""
        raise NotImplementedError

    def from_python(self, obj: Any) -> Value:
        """The Value of an object that needs no guard."""
        raise NotImplementedError

    def attribute_of(self, source: Source, obj: Any, name: str) -> Value:
        """An entry of an object's ``__dict__``."""
        if isinstance(source, Held):
            return self.dict_entry(object.__getattribute__(obj, "__dict__"), name, f"{source.label}.{name}")
        return self.wrap(obj.__dict__[name], Own(source, name) if asks_the_program(type(obj), name) else Attr(source, name))

    def dict_entry(self, mapping: dict[str, Any], name: str, label: str) -> Value:
        """An entry of a dict whose identity is known."""
        held = self.guards.hold(mapping, identifier(label.rpartition(".")[0] or "names") + "_dict")
        return self.wrap(mapping[name], HeldItem(held, name, label))

    def class_member(self, owner: type, name: str, obj: Any) -> Value:
        """What a class holds under a name: ``obj`` is that, or the function inside of a static or class method."""
        source = HeldItem(self.class_dict(owner), name, f"{owner.__name__}.{name}")
        raw = owner.__dict__[name]
        if trusts(owner):  # people do replace methods of torch's classes, and give them attributes
            if is_heap_type(owner) and not hasattr(type(raw), "__get__"):
                return self.wrap(obj, source)
            if is_heap_type(owner):
                self.guards.item(source, raw, equal=False)
            return self.from_python(obj)
        if obj is raw and not isinstance(raw, property):
            return self.wrap(obj, source)
        self.guards.item(source, raw, equal=False)
        return self.from_python(obj)

    def class_attribute(self, cls: type, name: str) -> Value | None:
        """What the program assigned to an attribute, where a class finds that: in itself, or in one that it derives from."""
        if not self.effects.assigns():
            return None
        for owner in cls.__mro__:
            found = self.effects.assigned(owner, name)
            if found is not None:
                self.inherited(cls, owner, name)
                return found
            if name in owner.__dict__:
                break
        return None

    def assign_to_class(self, cls: type, name: str, value: Value) -> None:
        """``cls.name = value``, of plain data."""
        held = self.guards.hold(cls, identifier(cls.__name__))
        if self.effects.assigned(cls, name) is None:
            ask = self.guards.hold(takes_data, "takes_data").name
            self.guards.check(f"{ask}({held.text}, {name!r})", f"{cls.__name__}.{name} is plain data")
        self.assign(held, name, value)

    def assign(self, of: Held, name: str, value: Value) -> None:
        """Assign to a module's variable (``of`` is its dict), or to an attribute of a class or a function."""
        if self.effects.assigned(of.value, name) is None:
            self.check_overwritten(of.value, of, name)
        self.effects.assign(of, name, value)

    def check_overwritten(self, holder: Any, source: Source, name: Any) -> None:
        """Called before what something from outside holds is overwritten first."""
        check_overwritten(self.guards, holder, source, name)

    def check_content(self, content: Value | Lazy, obj: Any) -> None:
        """The same for a closure's variable."""
        check_content(self.guards, content, obj)

    @contextmanager
    def looking_up(self) -> Iterator[None]:
        """Guard in the end that special names that were looked for in classes are found where they were, or still nowhere."""
        before = looks.set({})
        try:
            yield
        finally:
            seen = looks.get() or {}
            looks.reset(before)
            for (cls, name), (owner, raw) in seen.items():
                self.inherited(cls, owner, name)
                if is_heap_type(owner):
                    source = HeldItem(self.class_dict(owner), name, f"{owner.__name__}.{name}")
                    self.guards.item(source, raw, equal=False)

    def inherited(self, cls: type, owner: type, name: str, after: type | None = None) -> None:
        """Guard that no class between ``cls``, or ``after``, and ``owner``, where ``name`` was found, comes to define it."""
        if (cls, owner, name, after) in self._inherited:
            return
        self._inherited.add((cls, owner, name, after))
        if owner is not cls:
            self.guard_bases(cls)
        first = 0 if after is None else cls.__mro__.index(after) + 1
        for between in cls.__mro__[first : cls.__mro__.index(owner)]:
            if is_heap_type(between):
                self.guards.absent(self.class_dict(between), name, f"{between.__name__} inherits {name!r}")

    def enum_attribute(self, member: Const, name: str) -> Value | None:
        """A method or property that an enumeration defines; None for what Python's own Enum has."""
        owner, raw = class_lookup(type(member.value), name) or (object, None)
        if trusts(owner):
            return None
        if isinstance(raw, FunctionType):
            return BoundFunction(self.class_member(owner, name, raw), member)
        if isinstance(raw, property):
            self.class_member(owner, name, raw)
            return self.from_python(raw.fget).call(self, [member], {})  # type: ignore[arg-type]
        if isinstance(raw, staticmethod):
            return self.class_member(owner, name, raw.__func__)
        if isinstance(raw, classmethod):
            return BoundFunction(self.class_member(owner, name, raw.__func__), self.from_python(type(member.value)))
        return None

    def own_special(self, value: Value, name: str) -> Value | None:
        """A special method that the program gave an enumeration, bound to a member; None, guarded, where Python answers."""
        if not isinstance(value, Const) or not isinstance(value.value, enum.Enum):
            return None
        owner, raw = class_lookup(type(value.value), name) or (object, None)
        self.inherited(type(value.value), owner, name)
        if trusts(owner):
            return None
        method = self.class_member(owner, name, raw)
        if not is_written_in_python(raw):
            return None
        if not isinstance(raw, FunctionType):
            raise GraphBreak("unsupported-value", f"{name} of {value.describe()}")
        return BoundFunction(method, value)

    def own_answer(self, value: Value, name: str, *args: Value) -> Value | None:
        """What such a method gives; None where Python's own answers."""
        method = self.own_special(value, name)
        if method is None:
            return None
        made = method.call(self, args, {})  # type: ignore[arg-type]
        return checked(self, name, made) if name in RESULTS else made  # type: ignore[arg-type]

    def lacks(self, obj: Any, name: str, source: Source | None = None) -> None:
        """Guard that neither an object nor its class comes to have an attribute. ``source``: where it is found, for an object
        that is not guarded by identity."""
        cls = type(obj)
        if cls.__dictoffset__ and source is not None and not isinstance(source, Held):
            self.guards.check(f"{name!r} not in {source.text}.__dict__", f"{source.label} has no own {name!r}")
        elif cls.__dictoffset__:
            attributes = self.guards.hold(object.__getattribute__(obj, "__dict__"), "attributes")
            self.guards.absent(attributes, name, f"this {cls.__name__} has no attribute {name!r} of its own")
        self.inherited(cls, object, name)

    def text_of(self, obj: Any, name: str) -> Value:
        """``__name__`` and such of a function or class that is known."""
        found = natively(getattr, obj, name)
        if not trusts(obj):
            held = self.guards.hold(obj, identifier(obj.__name__))
            text = self.guards.equals(f"{held.text}.{name}", found) if isinstance(found, (str, type(None))) else None
            text = text or f"{held.text}.{name} is {self.guards.hold(found, 'text').name}"
            self.guards.check(text, f"{obj.__name__}.{name}")
        return Const(found)

    def guard_bases(self, cls: type) -> None:
        """Guard that a class of the program's still derives from what it does: ``__bases__`` may be set."""
        if not trusts(cls) and cls.__bases__ != (object,):  # (the layout of those can't be another's)
            held, order = self.guards.hold(cls, identifier(cls.__name__)), self.guards.hold(cls.__mro__, "bases")
            self.guards.check(f"{held.text}.__mro__ is {order.name}", f"the bases of {cls.__name__}")

    def class_dict(self, cls: type) -> Held:
        """What a class holds, to be guarded."""
        held = self._class_dicts.get(cls)
        if held is None:
            held = self._class_dicts[cls] = self.guards.hold(cls.__dict__, f"{cls.__name__}_class")
        return held

    def replaced_on_tensors(self, cls: type, name: str) -> tuple[Any] | None:
        """What the program put in a class of tensors under a name, in a tuple; None where that is torch's own. Guarded."""
        if (cls, name) not in self._of_tensors:
            self._of_tensors[cls, name] = self._find_on_tensors(cls, name)
        return self._of_tensors[cls, name]

    def _find_on_tensors(self, cls: type, name: str) -> tuple[Any] | None:
        for owner in cls.__mro__:
            if owner not in _TENSORS:
                return None  # written in C: it can't be changed
            if name in owner.__dict__:
                raw = owner.__dict__[name]
                self.guards.item(HeldItem(self.class_dict(owner), name, f"{owner.__name__}.{name}"), raw, equal=False)
                return None if raw is _TENSORS[owner].get(name) else (raw,)
            self.guards.absent(self.class_dict(owner), name, f"{owner.__name__} inherits {name!r}")
        return None

    def module_attribute(self, module: ModuleType, name: str) -> Value:
        """``module.name``."""
        assigned = self.effects.assigned(module.__dict__, name)
        if assigned is not None:
            return assigned
        trusted = trusts_variables_of(module.__dict__)
        if not trusted:
            self._rules_of(module, name, "__getattribute__")
        if not trusted and name not in module.__dict__ and (hook := self._hook_for(module, name)) is not None:
            return hook.call(self, [Const(name)], {})  # type: ignore[arg-type]
        try:
            obj = natively(getattr, module, name)
        finally:
            if not trusted and name not in module.__dict__:  # (asked late: a ``__getattr__`` may put it there)
                self.guards.absent(self.globals_of(module.__dict__), name, f"module {module.__name__} has no {name!r}")
        if name not in module.__dict__:
            return self._computed_attribute(module, name, obj)
        return self._global(module.__dict__, name, f"{module.__name__}.{name}")

    def set_module_attribute(self, module: ModuleType, name: str, value: Value) -> None:
        """``module.name = value``."""
        if not trusts_variables_of(module.__dict__):
            self._rules_of(module, name, "__setattr__")
        self.set_global(module.__dict__, name, value)

    def class_of_module(self, module: ModuleType) -> type:
        """A module's class, which a program may change: guarded, but for torch's and the standard library's."""
        if not trusts_variables_of(module.__dict__):
            self.guards.class_of(self.guards.hold(module, identifier(str(module.__dict__.get("__name__")))))
        return type(module)

    def _rules_of(self, module: ModuleType, name: str, how: str) -> None:
        """Guard that the class of a module of the program's leaves an attribute to the module; breaks where it does not."""
        cls, found = self.class_of_module(module), class_lookup(type(module), name)
        owner, raw = found or (object, None)
        self.inherited(cls, owner, name)
        own = owner not in (ModuleType, object) and not trusts(owner)
        if not is_pythons_own(cls, how) or (own and (is_data_descriptor(raw) or name not in module.__dict__)):
            raise GraphBreak("unsupported-value", f"{name!r} of module {module.__name__}, for which its class speaks")

    def _hook_for(self, module: ModuleType, name: str) -> Value | None:
        """The ``__getattr__`` of a module of the program's, where it is asked for a name; None where Python finds it else."""
        if class_lookup(type(module), name) is not None:
            return None
        variables = self.globals_of(module.__dict__)
        if hook_of(module) is not None:
            self.guards.absent(variables, name, f"module {module.__name__} has no {name!r}")
            return self.global_value(module.__dict__, "__getattr__")
        if "__getattr__" in module.__dict__ or class_lookup(type(module), "__getattr__") is not None:
            raise GraphBreak("unsupported-value", f"{name!r} of module {module.__name__}, which its class computes")
        self.guards.absent(variables, "__getattr__", f"module {module.__name__} has no '__getattr__'")
        return None

    def _computed_attribute(self, module: ModuleType, name: str, obj: Any) -> Value:
        """One that a module's class or its ``__getattr__`` gives: a setting, like those of ``torch.backends``, may change."""
        if type(module) is not ModuleType and isinstance(obj, (bool, int, float, str, type(None))):
            held = self.guards.hold(module, identifier(module.__name__))
            self.guards.check(
                self.guards.equals(f"{held.text}.{name}", obj), f"{module.__name__}.{name} == {shown_shortly(obj)}"
            )
        return self.from_python(obj)

    def global_value(self, globals_: dict[str, Any], name: str) -> Value:
        """A global variable or a builtin."""
        found = self.effects.assigned(globals_, name) or self._assigned_builtin(globals_, name)
        found = found or self._globals.get((id(globals_), name))
        if found is None:
            found = self._globals[id(globals_), name] = self._find_global(globals_, name)
        return found

    def _assigned_builtin(self, globals_: dict[str, Any], name: str) -> Value | None:
        """What the program assigned to a builtin, where no global variable hides that."""
        found = self.effects.assigned(python_builtins.__dict__, name)
        if found is not None and name in globals_:
            return None
        if found is not None and not trusts_variables_of(globals_):
            self.guards.absent(self.globals_of(globals_), name, f"no global is named {name}")
        return found

    def variable(self, globals_: dict[str, Any], name: str) -> Value | None:
        """A global variable, if there is one of that name."""
        if self.effects.assigned(globals_, name) is None and name not in globals_:
            self.guards.absent(self.globals_of(globals_), name, f"no global is named {name}")
            return None
        return self.global_value(globals_, name)

    def set_global(self, globals_: dict[str, Any], name: str, value: Value) -> None:
        """Assign a global variable."""
        self.assign(self.globals_of(globals_), name, value)

    def _find_global(self, globals_: dict[str, Any], name: str) -> Value:
        if name in globals_:
            return self._global(globals_, name, name)
        trusted, builtins = trusts_variables_of(globals_), python_builtins.__dict__
        own = globals_.get("__builtins__", builtins)
        if own is not builtins and own is not python_builtins:
            raise GraphBreak("unsupported-value", f"{name} of code that has builtins of its own")
        if not trusted:
            self.guards.absent(self.globals_of(globals_), name, f"no global is named {name}")
        if name not in builtins:
            self.guards.absent(self.globals_of(builtins), name, f"no builtin is named {name}")
            raise NameError(f"name '{name}' is not defined", name=name)
        return self._global(builtins, name, name)

    def _global(self, globals_: dict[str, Any], name: str, label: str) -> Value:
        """A module's variable; one of the standard library's or torch's is looked at no further, but which it is counts."""
        source = HeldItem(self.globals_of(globals_), name, label)
        if trusts_variables_of(globals_):
            self.guards.item(source, globals_[name], equal=False)
            return self.from_python(globals_[name])
        return self.wrap(globals_[name], source)

    def globals_of(self, globals_: dict[str, Any]) -> Held:
        """A module's variables, to be guarded."""
        return self.guards.hold(globals_, f"{identifier(str(globals_.get('__name__', '')))}_globals")
