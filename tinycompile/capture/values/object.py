"""Instances of user classes. Attributes are looked up as Python does, without running user code."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import _lru_cache_wrapper, cached_property, partialmethod, singledispatchmethod
from types import FunctionType, GetSetDescriptorType, MemberDescriptorType
from typing import TYPE_CHECKING, Any

from tinycompile.capture.breaks import GraphBreak
from tinycompile.capture.provenance import is_the_programs, natively
from tinycompile.capture.sources import Attr, Held, HeldItem, Slot, Source
from tinycompile.capture.trust import trusts
from tinycompile.capture.values.base import Kwargs, Value, no_attribute
from tinycompile.capture.values.callable import DispatchedMethod
from tinycompile.capture.values.classes import (
    built_in_base,
    class_lookup,
    defines,
    is_compiled,
    is_of_the_program,
    is_pythons_own,
)
from tinycompile.capture.values.constant import NONE, Const
from tinycompile.capture.values.descriptors import has_dict, is_data_descriptor, is_hidden, is_unset, own_dict
from tinycompile.capture.values.function import BoundFunction
from tinycompile.capture.values.iterator import IteratorValue
from tinycompile.capture.values.length_hints import ask_length
from tinycompile.capture.values.object_key import ObjectKey
from tinycompile.capture.values.own_steps import ByIndex, OwnSteps
from tinycompile.capture.values.partial import PartialValue
from tinycompile.capture.values.special_results import checked

if TYPE_CHECKING:
    from tinycompile.capture.tracer import Tracer

DELETED: Any = object()  # in place of an attribute that was deleted


class ObjectValue(Value):
    """An instance of a user's class, from outside. Its class is guarded, and each attribute that is read."""

    __slots__ = ("obj", "shadow")

    def __init__(self, obj: Any, source: Source | None) -> None:
        super().__init__(source)
        self.obj = obj
        self.shadow: dict[str, Any] = {}  # attributes that were set: a Value, or DELETED

    @property
    def where(self) -> Source:
        """The source; there always is one."""
        assert self.source is not None
        return self.source

    def python_type(self, tr: Tracer) -> type:
        return type(self.obj)

    def describe(self) -> str:
        return f"{type(self.obj).__name__} object {self.where.label}"

    def key(self, tr: Tracer) -> Any:
        if class_lookup(type(self.obj), "__hash__") == (object, object.__hash__):
            return super().key(tr)
        tr.hashed[id(self)] = self
        return ObjectKey(tr, self)

    def identity_key(self, tr: Tracer) -> Any:
        return super().key(tr)

    # --- attributes ---

    def get_attr(self, tr: Tracer, name: str) -> Value:
        if is_pythons_own(type(self.obj), "__getattribute__"):
            tr.inherited(type(self.obj), object, "__getattribute__")
            return self.plain_attr(tr, name)
        owner, hook = class_lookup(type(self.obj), "__getattribute__") or (object, object.__getattribute__)
        if not isinstance(hook, FunctionType):
            raise GraphBreak("unsupported-value", f"{owner.__qualname__} has its own way of reading attributes")
        try:
            return BoundFunction(tr.class_member(owner, "__getattribute__", hook), self).call(tr, [Const(name)], {})
        except AttributeError as error:
            if class_lookup(type(self.obj), "__getattr__") is None or not is_the_programs(error):
                raise
            return self.missing(tr, name)

    def plain_attr(self, tr: Tracer, name: str, hook: bool = True) -> Value:
        """As ``object.__getattribute__`` finds it, and then ``__getattr__`` if ``hook``."""
        cls = type(self.obj)
        found = class_lookup(cls, name)
        if name == "__class__" and (found is None or found[0] is object):
            return tr.from_python(cls)
        assigned = tr.class_attribute(cls, name)
        if assigned is not None and not self._has_own(tr, name):
            self._not_shadowed(tr, name)
            return assigned
        if found is not None and is_data_descriptor(found[1]) and (name not in self.shadow or is_hidden(cls, name)):
            return self._asked(tr, name, hook, self._data_descriptor, *found)
        if name in self.shadow:
            if self.shadow[name] is not DELETED:
                return self.shadow[name]
        elif name in self._attributes(tr):
            self._not_described(tr, name, found)
            return self._own(tr, name)
        if found is not None:
            self._not_shadowed(tr, name)
            return self._asked(tr, name, hook, self._class_member, *found)
        if hook or class_lookup(cls, "__getattr__") is None:
            return self.missing(tr, name)
        self._not_shadowed(tr, name)
        tr.inherited(cls, object, name)
        raise no_attribute(self, cls, name)

    def _has_own(self, tr: Tracer, name: str) -> bool:
        """Whether an attribute is the object's own now."""
        return self.shadow[name] is not DELETED if name in self.shadow else name in self._attributes(tr)

    def _asked(self, tr: Tracer, name: str, hook: bool, ask: Callable[..., Value], owner: type, raw: Any) -> Value:
        """What something in the class gives; where that raises AttributeError, ``__getattr__`` is called."""
        try:
            return ask(tr, name, owner, raw)
        except AttributeError as error:
            method = self.special(tr, "__getattr__") if hook and is_the_programs(error) else None
            if method is None:
                raise
            return method.call(tr, [Const(name)], {})

    def _attributes(self, tr: Tracer) -> dict[str, Any]:
        """Its own, as they came. Writes are followed by object, so none may be reached in another way: by the dict itself, or
        by an object that shares it."""
        if not has_dict(self.obj):
            return {}
        found = own_dict(self.obj)
        if not tr.has_to_itself(self, found):
            raise GraphBreak("unsupported-value", f"the attributes of {self.describe()} are also reached in another way")
        if isinstance(self.where, Held):
            tr.guards.own_dict(self.where)
        return found

    def _not_described(self, tr: Tracer, name: str, found: tuple[type, Any] | None) -> None:
        """Guard that no data descriptor of the class comes to hide an attribute of the object."""
        owner, raw = found or (object, None)
        tr.inherited(type(self.obj), owner, name)
        if found is not None and not trusts(owner):
            tr.guards.item(HeldItem(tr.class_dict(owner), name, f"{owner.__name__}.{name}"), raw, equal=False)

    def _own(self, tr: Tracer, name: str) -> Value:
        return tr.attribute_of(self.where, self.obj, name)

    def _not_shadowed(self, tr: Tracer, name: str) -> None:
        """Guard that no instance attribute hides the class's."""
        if not has_dict(self.obj) or name in self.shadow:
            return
        if isinstance(self.where, Held):
            tr.guards.absent(
                tr.guards.hold(own_dict(self.obj), "attributes"),
                name,
                f"{self.where.label} has no attribute {name!r} of its own",
            )
        else:
            tr.guards.check(f"{name!r} not in {self.where.text}.__dict__", f"{self.where.label} has no own {name!r}")

    def _data_descriptor(self, tr: Tracer, name: str, owner: type, raw: Any) -> Value:
        tr.inherited(type(self.obj), owner, name)
        if isinstance(raw, property):
            tr.class_member(owner, name, raw)
            if raw.fget is None:
                natively(raw.__get__, self.obj)  # Python's own complaint
            return tr.from_callable(raw.fget).call(tr, [self], {})
        if name == "__dict__" and isinstance(raw, (GetSetDescriptorType, MemberDescriptorType)):
            return tr.attributes_of(self)
        if isinstance(raw, MemberDescriptorType):
            return self._slot(tr, name, owner, raw)
        if is_of_the_program(raw):
            return self._described(tr, name, owner, raw, "__get__", tr.from_python(type(self.obj)))
        raise GraphBreak("unsupported-value", f"descriptor {name!r} of {self.describe()}")

    def _slot(self, tr: Tracer, name: str, owner: type, raw: MemberDescriptorType) -> Value:
        slot = Slot(self.where, tr.guards.hold(raw, "slot"))
        self._not_described(tr, name, (owner, raw))
        if is_unset(raw, self.obj):
            ask = tr.guards.hold(is_unset, "is_unset").name
            tr.guards.check(f"{ask}({slot.slot.text}, {self.where.text})", f"{slot.label} is not set")
        calls = class_lookup(type(self.obj), "__getattr__") is not None
        return tr.wrap(natively(raw.__get__, self.obj, type(self.obj)), slot if calls else Attr(self.where, name))

    def _described(self, tr: Tracer, name: str, owner: type, raw: Any, how: str, *more: Value) -> Value:
        """``__get__``, ``__set__`` or ``__delete__`` of a descriptor of the program's."""
        descriptor = tr.class_member(owner, name, raw)
        method = descriptor.special(tr, how) if isinstance(descriptor, ObjectValue) else None
        if method is None:
            raise GraphBreak("unsupported-value", f"descriptor {name!r} of {self.describe()}")
        return method.call(tr, [self, *more], {})

    def _cached_property(self, tr: Tracer, name: str, owner: type, raw: cached_property[Any]) -> Value:
        """Computed once, and then an attribute of the object, under the name that it was given in its class's body."""
        tr.guards.item(HeldItem(tr.class_dict(owner), name, f"{owner.__name__}.{name}"), raw, equal=False)
        held, func = tr.guards.hold(raw, "cached"), tr.guards.hold(raw.func, "func")
        kept = raw.attrname
        tr.guards.check(
            f"{held.text}.func is {func.text} and {held.text}.attrname == {kept!r}", f"what {owner.__name__}.{name} computes"
        )
        if kept is None:
            raise TypeError("Cannot use cached_property instance without calling __set_name__ on it.")
        if not has_dict(self.obj):
            raise GraphBreak("user-exception", f"{name!r} of {self.describe()}, which has no __dict__ to keep it")
        if self._has_own(tr, kept):
            return self.shadow[kept] if kept in self.shadow else self._own(tr, kept)
        self._not_shadowed(tr, kept)
        value = tr.from_callable(raw.func).call(tr, [self], {})
        if id(self) in tr.hashed:
            raise GraphBreak("side-effect", f"attribute {kept!r} of {self.describe()} was set, which is a key")
        self._keep(tr, kept, value)
        return value

    def _keep(self, tr: Tracer, name: str, value: Value) -> None:
        """Put an attribute into the object's ``__dict__``."""
        self._check_overwritten(tr, name)
        tr.effects.touch(self)
        if self.shadow.get(name) is DELETED:
            del self.shadow[name]  # it comes last now
            tr.effects.reborn.add((id(self), name))
        self.shadow[name] = value

    def _check_overwritten(self, tr: Tracer, name: str) -> None:
        if self.source is not None and name not in self.shadow:
            tr.check_overwritten(self.obj, self.source, name)

    def _class_member(self, tr: Tracer, name: str, owner: type, raw: Any) -> Value:
        tr.inherited(type(self.obj), owner, name)
        if isinstance(raw, FunctionType):
            return BoundFunction(tr.class_member(owner, name, raw), self)
        if isinstance(raw, staticmethod):
            return tr.class_member(owner, name, raw.__func__)
        if isinstance(raw, classmethod):
            return BoundFunction(tr.class_member(owner, name, raw.__func__), tr.from_python(type(self.obj)))
        if is_compiled(raw):  # its original
            return BoundFunction(tr.class_member(owner, name, raw), self)
        if isinstance(raw, singledispatchmethod):
            tr.guards.item(HeldItem(tr.class_dict(owner), name, f"{owner.__name__}.{name}"), raw, equal=False)
            return DispatchedMethod(raw, self)
        if isinstance(raw, _lru_cache_wrapper):
            return BoundFunction(tr.class_member(owner, name, raw), self)
        if isinstance(raw, cached_property) and type(raw).__get__ is cached_property.__get__:
            return self._cached_property(tr, name, owner, raw)
        if isinstance(raw, partialmethod) and isinstance(raw.func, FunctionType):
            tr.guards.item(HeldItem(tr.class_dict(owner), name, f"{owner.__name__}.{name}"), raw, equal=False)
            made = tr.from_callable(raw)
            assert isinstance(made, PartialValue)
            return PartialValue.made(tr, made.fn, [self, *made.args(tr)], made.kwargs(tr))
        if defines(type(raw), "__get__") and is_of_the_program(raw):
            return self._described(tr, name, owner, raw, "__get__", tr.from_python(type(self.obj)))
        if defines(type(raw), "__get__"):
            raise GraphBreak("unsupported-value", f"descriptor {name!r} of {self.describe()}")
        return tr.class_member(owner, name, raw)

    def may_have(self, name: str) -> bool:
        """Whether it may have an attribute, as far as can be seen without a look that guards, or asks."""
        own = name in self.shadow or (has_dict(self.obj) and name in own_dict(self.obj))
        return own or any(class_lookup(type(self.obj), n) is not None for n in (name, "__getattr__"))

    def missing(self, tr: Tracer, name: str) -> Value:
        """Neither the instance nor its class has the attribute."""
        hook = class_lookup(type(self.obj), "__getattr__")
        self._not_shadowed(tr, name)
        if class_lookup(type(self.obj), name) is None:  # else what it has raised an AttributeError
            tr.inherited(type(self.obj), object, name)  # nor does any class come to have it
        if hook is None:
            tr.inherited(type(self.obj), object, "__getattr__")
            raise no_attribute(self, type(self.obj), name)
        return tr.class_member(*hook[:1], "__getattr__", hook[1]).call(tr, [self, Const(name)], {})

    def set_attr(self, tr: Tracer, name: str, value: Value) -> None:
        owner, setter = class_lookup(type(self.obj), "__setattr__") or (object, object.__setattr__)
        if is_pythons_own(type(self.obj), "__setattr__"):
            self.store(tr, name, value)
        elif isinstance(setter, FunctionType):
            BoundFunction(tr.class_member(owner, "__setattr__", setter), self).call(tr, [Const(name), value], {})
        else:
            raise GraphBreak("side-effect", f"{self.describe()} has its own way of setting attributes")

    def store(self, tr: Tracer, name: str, value: Value) -> None:
        """``object.__setattr__``."""
        found = class_lookup(type(self.obj), name)
        self._not_described(tr, name, found)
        raw = None if found is None else found[1]
        if found is not None and isinstance(raw, property):
            tr.class_member(found[0], name, raw)
            if raw.fset is None:
                natively(raw.__set__, self.obj, None)  # Python's own complaint
            tr.from_callable(raw.fset).call(tr, [self, value], {})
            return
        if found is not None and defines(type(raw), "__set__") and is_of_the_program(raw):
            self._described(tr, name, found[0], raw, "__set__", value)
            return
        if name == "__dict__" or (raw is not None and is_data_descriptor(raw) and not isinstance(raw, MemberDescriptorType)):
            raise GraphBreak("side-effect", f"descriptor {name!r} of {self.describe()} was set")
        if not isinstance(raw, MemberDescriptorType) and not has_dict(self.obj):
            try:
                natively(object.__setattr__, self.obj, name, None)  # fails: asked for its words, which differ by version
            except AttributeError as error:
                raise AttributeError(str(error), name=name) from None
        self._attributes(tr)
        if id(self) in tr.hashed:
            raise GraphBreak("side-effect", f"attribute {name!r} of {self.describe()} was set, which is a key")
        self._keep(tr, name, value)

    def del_attr(self, tr: Tracer, name: str) -> None:
        owner, deleter = class_lookup(type(self.obj), "__delattr__") or (object, object.__delattr__)
        if is_pythons_own(type(self.obj), "__delattr__"):
            self.erase(tr, name)
        elif isinstance(deleter, FunctionType):
            BoundFunction(tr.class_member(owner, "__delattr__", deleter), self).call(tr, [Const(name)], {})
        else:
            raise GraphBreak("side-effect", f"{self.describe()} has its own way of deleting attributes")

    def erase(self, tr: Tracer, name: str) -> None:
        """``object.__delattr__``."""
        found = class_lookup(type(self.obj), name)
        if found is not None and isinstance(found[1], property):
            self._not_described(tr, name, found)
            tr.class_member(found[0], name, found[1])
            if found[1].fdel is None:
                natively(found[1].__delete__, self.obj)  # Python's own complaint
            tr.from_callable(found[1].fdel).call(tr, [self], {})
            return
        if found is not None and defines(type(found[1]), "__delete__") and is_of_the_program(found[1]):
            self._described(tr, name, *found, "__delete__")
            return
        if found is not None and is_data_descriptor(found[1]) and not isinstance(found[1], MemberDescriptorType):
            raise GraphBreak("side-effect", f"descriptor {name!r} of {self.describe()} was deleted")
        if found is not None and isinstance(found[1], MemberDescriptorType) and not isinstance(self, NewObject):
            raise GraphBreak("side-effect", f"slot {name!r} of {self.describe()} was deleted")
        own = name in self._attributes(tr)
        if own and name not in self.shadow:
            self._own(tr, name)  # guards that it is there
        elif self.shadow.get(name, DELETED) is DELETED:
            if found is not None and isinstance(found[1], MemberDescriptorType):
                natively(found[1].__delete__, self.obj)  # fails in Python's words
            raise no_attribute(self, type(self.obj), name)
        self._check_overwritten(tr, name)
        tr.effects.touch(self)
        if own:
            self.shadow[name] = DELETED
            tr.effects.reborn.discard((id(self), name))
        else:
            del self.shadow[name]

    # --- protocols, looked up on the class ---

    def special(self, tr: Tracer, name: str) -> Value | None:
        """A bound special method, None when the class has none."""
        found = class_lookup(type(self.obj), name)
        if found is None:
            tr.inherited(type(self.obj), object, name)
            return None
        if found[1] is None:
            raise GraphBreak("user-exception", f"{name} of {self.describe()} is None: Python refuses to ask for it")
        if not isinstance(found[1], FunctionType) and not is_compiled(found[1]):
            raise GraphBreak("unsupported-value", f"{name} of {self.describe()}")
        tr.inherited(type(self.obj), found[0], name)
        return BoundFunction(tr.class_member(found[0], name, found[1]), self)

    def call(self, tr: Tracer, args: Sequence[Value], kwargs: Kwargs) -> Value:
        method = self.special(tr, "__call__")
        if method is None:
            raise TypeError(f"'{type(self.obj).__name__}' object is not callable")
        return method.call(tr, args, kwargs)

    def truth(self, tr: Tracer) -> bool:
        for name in ("__bool__", "__len__"):
            method = self.special(tr, name)
            if method is not None:
                return checked(tr, name, method.call(tr, [], {})).truth(tr)
        return True

    def iterate(self, tr: Tracer) -> Iterator[Value]:
        made = self.iterator(tr)
        return self._by_index(tr) if made is None else tr.steps(made)

    def iterator(self, tr: Tracer) -> Value | None:
        """What its ``__iter__`` gives; None where Python has an iterator for it."""
        method = self.special(tr, "__iter__")
        if method is None:
            return None
        made = method.call(tr, [], {})
        if not isinstance(made, IteratorValue) and not hasattr(made.python_type(tr), "__next__"):
            raise GraphBreak("user-exception", f"__iter__ of {self.describe()} gave no iterator")
        return made

    def filling(self, tr: Tracer) -> Iterator[Value]:
        values = self.iterate(tr)
        ask_length(tr, self)
        return values

    def each(self, tr: Tracer) -> Iterator[Value]:
        """What its ``__next__`` gives, which is asked each time, also behind an end."""
        self.required(tr, "__next__")
        return OwnSteps(self, tr)

    def step(self, tr: Tracer, sent: Value = NONE) -> tuple[Value | None, Value]:
        """``next(x)``, or ``x.send(sent)`` where that is not None. At an end no value, and what StopIteration brings."""
        try:
            if sent is NONE or tr.identical(sent, NONE):
                return next(OwnSteps(self, tr)), NONE
            return self.get_attr(tr, "send").call(tr, [sent], {}), NONE
        except StopIteration as error:
            if not is_the_programs(error):
                raise
            return None, tr.exception(error).get_attr(tr, "value")

    def _by_index(self, tr: Tracer) -> Iterator[Value]:
        """Iteration by ``__getitem__`` from 0 on, until that raises IndexError."""
        if self.special(tr, "__getitem__") is None:
            raise TypeError(f"{type(self.obj).__name__!r} object is not iterable")
        return ByIndex(self, tr)

    def length(self, tr: Tracer) -> Value:
        return checked(tr, "__len__", self.required(tr, "__len__").call(tr, [], {}))

    def get_item(self, tr: Tracer, key: Value) -> Value:
        return self.required(tr, "__getitem__").call(tr, [key], {})

    def set_item(self, tr: Tracer, key: Value, value: Value) -> None:
        self.required(tr, "__setitem__").call(tr, [key, value], {})

    def del_item(self, tr: Tracer, key: Value) -> None:
        self.required(tr, "__delitem__").call(tr, [key], {})

    def contains(self, tr: Tracer, item: Value) -> bool:
        method = self.special(tr, "__contains__")
        if method is None and self.special(tr, "__iter__") is None and self.special(tr, "__getitem__") is None:
            raise GraphBreak("user-exception", f"in {self.describe()}, which is not iterable")
        return super().contains(tr, item) if method is None else method.call(tr, [item], {}).truth(tr)

    def required(self, tr: Tracer, name: str) -> Value:
        method = self.special(tr, name)
        if method is None:
            raise TypeError(_WITHOUT[name].format(type(self.obj).__name__))
        return method

    def same_object(self, tr: Tracer, other: Value) -> bool:
        if not isinstance(other, ObjectValue) or other.source is None:
            return False
        same = self.obj is other.obj
        tr.guards.check(f"({self.where.text} is {other.where.text}) is {same}", "which objects are one")
        return same


_WITHOUT = {  # Python's words for an object without a special method
    "__next__": "'{}' object is not an iterator",
    "__len__": "object of type '{}' has no len()",
    "__getitem__": "'{}' object is not subscriptable",
    "__setitem__": "'{}' object does not support item assignment",
    "__delitem__": "'{}' object doesn't support item deletion",
}


class NewObject(ObjectValue):
    """An instance that the program made; all its attributes are in ``shadow``. ``obj`` is a blank one, for its class."""

    __slots__ = ()

    def __init__(self, cls: type) -> None:
        super().__init__(built_in_base(cls).__new__(cls), None)

    def describe(self) -> str:
        return f"a new {type(self.obj).__name__}"

    def _attributes(self, tr: Tracer) -> dict[str, Any]:
        return {}

    def _not_shadowed(self, tr: Tracer, name: str) -> None:
        return

    def _data_descriptor(self, tr: Tracer, name: str, owner: type, raw: Any) -> Value:
        if isinstance(raw, MemberDescriptorType) and name != "__dict__":
            natively(raw.__get__, self.obj)  # fails, for the blank one has none
        if isinstance(raw, GetSetDescriptorType) and name != "__dict__":
            raise GraphBreak("unsupported-value", f"{name} of {self.describe()}")
        return super()._data_descriptor(tr, name, owner, raw)

    def same_object(self, tr: Tracer, other: Value) -> bool:
        return False
