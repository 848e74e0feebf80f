"""Attributes of classes and functions that are assigned, and how objects and classes that derive find them."""

from __future__ import annotations

import abc
import contextlib
import functools
from typing import Any

import torch
from torch import nn

from tests.capture.constructs.registry import breaks, case, log
from tests.capture.corpus import r


class Base:
    count, kept = 0, None

    def bump(self):
        type(self).count += 1
        return self.count

    @classmethod
    def bump_class(cls, by=1):
        cls.count += by
        return cls.count


class Middle(Base):
    pass


class Other:
    label = "other"


class Derived(Middle, Other):
    pass


class Abstract(abc.ABC):
    total = 0

    def add(self, k):
        Abstract.total += k


class Layer(nn.Module):
    calls = 0

    def forward(self, x):
        type(self).calls += 1
        return x * self.calls


class Meta(type):
    def __setattr__(cls, name, value):
        log((name, value))
        super().__setattr__(name, value)


class WithMeta(metaclass=Meta):
    n = 1


class Slots:
    __slots__ = ("a",)


class HasProperty(Base):
    @property
    def label(self):
        return "property"


class Under(Other):
    @property
    def late(self):
        return "property"


def counted(x):
    counted.calls += 1
    return x * counted.calls


_CLASSES = {
    Base: {"count": 0, "kept": None}, Middle: {}, Other: {"label": "other"}, Derived: {}, Abstract: {"total": 0}, Layer: {"calls": 0}
}  # fmt: skip


def _start() -> Any:
    """All classes as they were at first, and a tensor."""
    for cls, first in _CLASSES.items():
        for name in [n for n in vars(cls) if not n.startswith("_") and not callable(vars(cls)[n]) and n not in ("bump_class",)]:
            delattr(cls, name)
        for name, value in first.items():
            setattr(cls, name, value)
    type.__setattr__(WithMeta, "n", 1)
    counted.__dict__.clear()
    counted.calls = 0
    return (r(4),)


def state(fn, whole=True):
    return case(fn, args=_start, whole=whole)


@state
def class_counters(x):
    b = Base()
    return x * b.bump() + b.bump(), Base.count, b.count, Base.bump_class(3), vars(b)


@state
def found_by_those_that_derive(x):
    d = Derived()
    seen = [d.count]
    Base.count = 5
    seen += [d.count, Derived.count, Middle().count]
    Middle.count = 7
    seen += [d.count, Base.count, super(Middle, d).count, super(Derived, d).count]
    d.count = 9
    seen += [d.count, Derived.count]
    del d.count
    seen += [d.count, Other.label, d.label]
    Derived.label = x * 2
    return seen, d.label, Other.label, Derived.label is d.label


@state
def by_class_method_of_one_that_derives(x):
    Derived.bump_class(4)
    d = Derived()
    d.bump()
    return x * Derived.count, Base.count, Middle.count, d.count


@state
def new_names(x):
    missing = hasattr(Base, "fresh"), hasattr(Derived(), "fresh"), getattr(Middle, "fresh", 3)
    setattr(Base, "fresh", [x])
    Base.fresh.append(x + 1)
    there = hasattr(Derived, "fresh"), Derived().fresh is Base.fresh
    del Base.fresh
    return missing, there, hasattr(Base, "fresh"), getattr(Derived(), "fresh", 4)


@state
def kept_tensor(x):
    Base.kept = x * 2
    Base.kept.add_(1)
    return Middle.kept, Middle.kept is Base.kept, [Base.kept]


@state
def flag_as_a_context(x):
    @contextlib.contextmanager
    def flag(value):
        old, Base.kept = Base.kept, value
        try:
            yield
        finally:
            Base.kept = old

    with flag("on"):
        inside = Derived.kept
    try:
        with flag("again"):
            raise ValueError(Base.kept)
    except ValueError as error:
        return x, inside, Base.kept, str(error)


@state
def state_of_an_abstract_class(x):
    class_ = Abstract
    a = Abstract()
    a.add(2)
    a.add(3)
    return x * class_.total, a.total, isinstance(a, Abstract)


LAYERS = Layer(), Layer()


@case(args=lambda: (*_start(), *LAYERS))
def class_state_of_modules(x, a, b):
    return a(x), b(x), a(x), Layer.calls, a.calls


@state
def function_state(x):
    return counted(x), counted(x), counted.calls, hasattr(counted, "tag"), setattr(counted, "tag", x), counted.tag is x


@breaks(args=_start)
def state_over_breaks(x):
    Base.count = 3
    Derived.label = x + 1
    counted.calls = 6
    print(Base.count, Derived().count)
    d = Derived()
    Base.count += 1
    return d.count, d.label, counted(x), Base.count


@breaks(args=_start)
def methods_are_replaced(x):
    before = Base.bump
    Base.bump = lambda self: 42
    try:
        return x * Derived().bump(), Base().bump()
    finally:
        Base.bump = before


@breaks(args=_start)
def properties_come_and_go(x):
    Base.late = property(lambda self: x * 3)
    found = Derived().late
    del Base.late
    Base.label = 1
    Other.late = 2
    found = found, HasProperty().label, Base().label, Under().late, Other().late
    del Base.label, Other.late
    return found


@breaks(args=_start)
def others_have_a_say(x):
    WithMeta.n = 2
    Slots.a_new_one = 3
    found = WithMeta.n, Slots().a_new_one
    del Slots.a_new_one
    with contextlib.suppress(TypeError):
        int.tag = 3
    torch.nn.Linear.tag = 5
    found = found, nn.Linear(1, 1).tag
    del torch.nn.Linear.tag
    return found, x


@breaks(args=_start)
def read_as_a_dict(x):
    Middle.count = 4
    return "count" in Middle.__dict__, vars(Middle)["count"], "count" in Derived.__dict__, x, dir(Derived()).count("count")


class Keeps:
    @functools.cached_property
    def kept(self):
        log("computed")
        return 6


Keeps.also = Keeps.__dict__["kept"]
Keeps.nameless = functools.cached_property(lambda self: log("never") or 5)


class Guarded(Keeps):
    def __setattr__(self, name, value):
        log(name)
        object.__setattr__(self, name, value)


class NoRoom:
    __slots__ = ()

    @functools.cached_property
    def kept(self):
        return log("never")


class Logged(functools.cached_property):
    def __get__(self, instance, owner=None):
        log("asked")
        return super().__get__(instance, owner)


class KeepsLogged:
    @Logged
    def kept(self):
        return log("computed") or 7


@case
def cached_property_without_a_name(x):
    k = Keeps()
    try:
        return k.nameless
    except TypeError as error:
        return str(error), hasattr(Keeps, "nameless"), vars(k), x


@case(args=lambda: (Keeps(), r(2)))
def cached_property_without_a_name_of_an_argument(k, x):
    try:
        return k.nameless
    except TypeError as error:
        return str(error), x


@case
def cached_property_under_another_name(x):
    k, given, guarded = Keeps(), Keeps(), Guarded()
    given.kept = 9
    return [(v.also, v.kept, v.also, sorted(vars(v))) for v in (k, given, guarded)], x


@case(args=lambda: (Keeps(), r(2)))
def cached_property_of_an_argument_under_another_name(k, x):
    return k.also, k.kept, k.also, x


@breaks
def cached_property_without_a_dict(x):
    try:
        return NoRoom().kept
    except TypeError as error:
        return str(error), x


@breaks
def cached_property_of_an_own_kind(x):
    k = KeepsLogged()
    return k.kept, k.kept, x
