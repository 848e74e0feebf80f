"""Changes of objects, classes and containers."""

from __future__ import annotations

import abc
import dataclasses
import enum
import functools
import types
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from tests.capture.changes.stories import ANYHOW, AS_BEFORE, UNRELATED, Story, patched, story
from tests.capture.corpus import r

X = r(2, 3)

# --- objects and classes ---


class Plain:
    def __init__(self) -> None:
        self.scale, self.other = 2.0, 1

    def method(self, x: Any) -> Any:
        return x * self.scale


def of_its_own() -> tuple[Any, Any]:
    """A class, derived from one, that a case may change, and an object of it."""
    base = type("Base", (Plain,), {"method": Plain.method, "__init__": Plain.__init__})
    return base, type("Own", (base,), {})()


@story
def slot_that_is_set_later() -> Story:
    class Slotted:
        __slots__ = ("a", "b")

    obj = Slotted()
    obj.a = 2.0
    yield lambda x: (x * obj.a, hasattr(obj, "b"), getattr(obj, "b", 0)), X
    obj.b = 3.0
    yield
    obj.b = 4.0
    yield
    del obj.b
    yield AS_BEFORE


@story
def slot_of_an_argument_that_is_set_later() -> Story:
    class Slotted:
        __slots__ = ("b",)

    obj = Slotted()
    yield lambda x, o: x * getattr(o, "b", 1.0), X, obj
    obj.b = 3.0
    yield


@story
def function_whose_name_begins_as_a_guard_does() -> Story:
    def is_scaled(x: Any, by: float = 2.0) -> Any:
        return x * by

    yield lambda x: is_scaled(x), X
    is_scaled.__defaults__ = (3.0,)
    yield


@functools.singledispatch
def chosen(by: Any, x: Any) -> Any:
    return x


@story
def registered_with_a_method_that_dispatches() -> Story:
    class Own:
        @functools.singledispatchmethod
        def chosen(self, by: Any, x: Any) -> Any:
            return x

    obj = Own()
    yield lambda x: obj.chosen(2, x), X
    Own.chosen.register(float, lambda self, by, x: x * by)
    yield UNRELATED
    Own.chosen.register(int, lambda self, by, x: x * by)
    yield
    obj.chosen = lambda by, x: x - by
    yield


@story
def attribute_of_a_namespace() -> Story:
    obj = types.SimpleNamespace(scale=2.0, other=1)
    yield lambda x: (x * obj.scale, hasattr(obj, "extra")), X
    obj.other = 2
    yield UNRELATED
    obj.scale = 3.0
    yield
    obj.extra = 1
    yield


@story
def registered_with_single_dispatch() -> Story:
    base, obj = of_its_own()
    chosen.register(int)(lambda by, x: x * by)
    yield lambda x, o: (chosen(3, x), chosen(True, x), chosen(o, x)), X, obj
    chosen.register(bool)(lambda by, x: x - 1)
    yield
    chosen.register(base)(lambda by, x: x - 2)
    yield


@story
def registered_with_an_abstract_class() -> Story:
    kind, other = abc.ABCMeta("Kind", (), {}), abc.ABCMeta("Other", (), {})
    base, obj = of_its_own()
    yield lambda x, o: (x if isinstance(o, kind) else x + 1, issubclass(type(o), (int, kind))), X, obj
    kind.register(int)
    yield UNRELATED
    other.register(base)
    yield UNRELATED
    kind.register(base)
    yield


@story
def registered_with_an_abstract_class_that_another_derives_from() -> Story:
    kind = abc.ABCMeta("Kind", (), {})
    below = abc.ABCMeta("Below", (kind,), {})
    base, obj = of_its_own()
    yield lambda x: x if isinstance(obj, kind) else x + 1, X
    below.register(base)
    yield


@story
def registered_as_a_sequence() -> Story:
    base, obj = of_its_own()
    base.__len__ = lambda self: 2
    base.__iter__ = lambda self: iter((3, 4))

    def fn(x: Any, o: Any) -> Any:
        match o:
            case [a, b]:
                return x * a, b
            case {"a": a}:
                return x + a
        return x

    yield fn, X, obj
    Sequence.register(base)
    yield


@story
def attribute_of_an_object() -> Story:
    _, obj = of_its_own()
    yield lambda x: x * obj.scale, X
    obj.scale = 3.0
    yield
    obj.other = 7
    yield UNRELATED
    obj.new = 7
    yield UNRELATED


@story
def property_over_an_attribute() -> Story:
    base, obj = of_its_own()
    yield lambda x: x * obj.scale, X
    base.scale = property(lambda self: 7.0)
    yield
    base.other = property(lambda self: 7.0)
    yield UNRELATED
    del base.scale
    yield AS_BEFORE


@story
def property_over_an_attribute_of_an_argument() -> Story:
    base, obj = of_its_own()
    yield lambda x, o: x * o.scale, X, obj
    type(obj).scale = property(lambda self: 7.0)
    yield
    base.other = property(lambda self: 7.0)
    yield UNRELATED


@story
def descriptor_gains_a_setter() -> Story:
    class Named:
        def __get__(self, obj: Any, cls: Any = None) -> Any:
            return 9.0

    base, obj = of_its_own()
    base.scale = Named()  # no data descriptor: the object's own wins
    yield lambda x: x * obj.scale, X
    Named.__set__ = lambda self, obj, value: None
    yield


@story
def whole_dict_of_an_object() -> Story:
    _, obj = of_its_own()
    yield lambda x: x * obj.scale, X
    obj.__dict__ = {"scale": 9.0}
    yield


@story
def whole_dict_of_an_object_by_a_global() -> Story:
    with patched(types, "a_global", of_its_own()[1]):
        yield lambda x: x * types.a_global.scale, X  # type: ignore[attr-defined]
        types.a_global.__dict__ = {"scale": 9.0}  # type: ignore[attr-defined]
        yield
        type(types.a_global).scale = property(lambda self: 4.0)  # type: ignore[attr-defined]
        yield


@story
def getattr_added() -> Story:
    base, obj = of_its_own()
    yield lambda x: x * getattr(obj, "absent", 2), X
    base.__getattr__ = lambda self, name: 5
    yield
    del base.__getattr__
    yield AS_BEFORE


@story
def getattribute_added() -> Story:
    base, obj = of_its_own()
    yield lambda x: x * obj.scale, X
    base.__getattribute__ = lambda self, name: 5.0 if name == "scale" else object.__getattribute__(self, name)
    yield
    del base.__getattribute__
    yield AS_BEFORE


@story
def method_of_an_object_of_a_class_of_a_base() -> Story:
    base, obj = of_its_own()
    yield lambda x: obj.method(x), X
    base.method = lambda self, x: x + 10
    yield
    type(obj).method = lambda self, x: x + 20
    yield
    obj.method = lambda x: x + 30
    yield
    obj.scale = 100.0
    yield UNRELATED


@story
def special_method() -> Story:
    base, obj = of_its_own()
    base.__add__ = lambda self, other: other * 2
    base.__len__ = lambda self: 3
    base.__call__ = lambda self, x: x - 1
    yield lambda x: obj(obj + x) * len(obj), X
    base.__add__ = lambda self, other: other * 5
    yield
    base.__len__ = lambda self: 4
    yield
    base.__call__ = lambda self, x: x + 8
    yield
    base.__sub__ = lambda self, other: None
    yield UNRELATED


@story
def truth_of_an_object() -> Story:
    base, obj = of_its_own()
    yield lambda x: x + 1 if obj else x - 1, X
    base.__len__ = lambda self: 0
    yield
    base.__bool__ = lambda self: True
    yield


@story
def base_classes_replaced() -> Story:
    class First:
        def method(self, x: Any) -> Any:
            return x + 1

    class Second:
        def method(self, x: Any) -> Any:
            return x - 1

    made = type("Made", (First,), {})
    obj = made()
    yield lambda x: obj.method(x), X
    made.__bases__ = (Second,)
    yield


@story
def class_of_an_object() -> Story:
    base, obj = of_its_own()
    yield lambda x: obj.method(x) + isinstance(obj, Plain), X
    obj.__class__ = type("Other", (Plain,), {"method": lambda self, x: x - 3})
    yield


@story
def class_of_an_argument() -> Story:
    _, obj = of_its_own()
    yield lambda x, o: o.method(x), X, obj
    obj.__class__ = type("Other", (Plain,), {"method": lambda self, x: x - 3})
    yield


@story
def attribute_of_a_metaclass() -> Story:
    class Meta(type):
        factor = 2

        @property
        def rate(cls) -> float:
            return 0.5

    made = Meta("Made", (), {})
    yield lambda x: x * made.factor * made.rate, X
    Meta.factor = 3
    yield
    Meta.rate = property(lambda cls: 4.0)
    yield
    made.factor = 10
    yield
    Meta.unread = 1
    yield UNRELATED


@story
def slots() -> Story:
    made = type("Made", (), {"__slots__": ("scale", "other")})
    obj = made()
    obj.scale, obj.other = 2.0, 0
    yield lambda x: x * obj.scale, X
    obj.scale = 4.0
    yield
    obj.other = 5
    yield UNRELATED
    made.scale = property(lambda self: 9.0)
    yield


@story
def class_and_static_methods() -> Story:
    made = type("Made", (), {"a": classmethod(lambda cls, x: x + cls.k), "b": staticmethod(lambda x: x * 2), "k": 1})
    yield lambda x: made.a(made().b(x)), X
    made.k = 5
    yield
    made.a = classmethod(lambda cls, x: x - 5)
    yield
    made.b = staticmethod(lambda x: x * 8)
    yield


@story
def getter_of_a_property() -> Story:
    def getter(self: Any) -> float:
        return 2.0

    made = type("Made", (), {"rate": property(getter)})
    obj = made()
    yield lambda x: x * obj.rate, X
    getter.__code__ = (lambda self: 6.0).__code__
    yield


@story
def member_of_an_enumeration() -> Story:
    class Kind(enum.Enum):
        LOW = 2
        HIGH = 3

        @property
        def twice(self) -> int:
            return self.value * 2

    box = types.SimpleNamespace(kind=Kind.LOW, unread=Kind.LOW)
    yield lambda x: x * box.kind.value if box.kind is Kind.LOW else x * box.kind.twice, X
    box.kind = Kind.HIGH
    yield
    Kind.twice = property(lambda self: 100)
    yield
    box.unread = Kind.HIGH
    yield UNRELATED


@story
def value_of_an_enumeration() -> Story:
    class Kind(enum.Enum):
        LOW = 2

    yield lambda x: x * Kind.LOW.value, X
    Kind.LOW._value_ = 7
    yield


@story
def field_of_a_dataclass() -> Story:
    @dataclasses.dataclass
    class Config:
        width: int = 2
        rate: float = 0.5
        unread: int = 0

    config = Config()
    yield lambda x: (x * config.width * config.rate, [f.name for f in dataclasses.fields(config)]), X
    config.width = 3
    yield
    config.rate = 0.25
    yield
    config.unread = 1
    yield UNRELATED


@story
def field_of_a_frozen_dataclass() -> Story:
    @dataclasses.dataclass(frozen=True)
    class Config:
        width: int = 2

    box = types.SimpleNamespace(config=Config())
    yield lambda x: x * box.config.width, X
    box.config = Config(2)
    yield UNRELATED
    box.config = dataclasses.replace(box.config, width=5)
    yield


# --- containers ---


@story
def keys_of_a_dict_and_their_order() -> Story:
    table = {"a": 1, "b": 2}
    yield lambda x: x * sum(v * 10**i for i, v in enumerate(table.values())), X
    table["a"] = table.pop("a")
    yield
    table["c"] = 3
    yield
    del table["b"]
    yield


@story
def one_key_of_a_dict() -> Story:
    table = {"a": 1, "b": 2}
    yield lambda x: x * table["a"] + ("z" in table), X
    table["b"] = 5
    yield UNRELATED
    table["z"] = 0
    yield
    table["a"] = 7
    yield


@story
def order_of_an_ordered_dict() -> Story:
    table = OrderedDict(a=1, b=2)
    yield lambda x: x * next(iter(table.values())), X
    table.move_to_end("a")
    yield


@story
def length_of_a_list() -> Story:
    values = [1, 2]
    yield lambda x: x * len(values) + values[-1], X
    values.append(5)
    yield
    values[0] = 4
    yield UNRELATED
    values.clear()
    values.append(9)
    yield


@story
def list_of_tensors() -> Story:
    values = [r(2, 3), r(3)]
    yield lambda x: sum(values, x), X
    values.reverse()
    values.append(r(1, 3))
    yield
    values[0] = r(1)
    yield


@story
def elements_of_a_set() -> Story:
    values = {1, 2}
    yield lambda x: x * (3 in values) + len(values), X
    values.add(3)
    yield
    values.remove(1)
    values.add(4)
    yield ANYHOW


@story
def key_in_an_argument() -> Story:
    given = {"scale": 2, "more": 1}
    yield lambda x, d: x * d.get("scale", 5), X, given
    given["more"] = 8
    yield UNRELATED
    del given["scale"]
    yield
