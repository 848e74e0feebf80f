"""Guards and capture ask nothing of the program: its special methods, properties and hooks run as often, and as late, as in eager.

Each case is called with several sets of arguments in several orders, so that guards of one set meet the objects of another."""

from __future__ import annotations

import abc
import collections
import functools
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

import tinycompile

pytestmark = pytest.mark.pure

ASKED: list[Any] = []
T = torch.ones(2)


def asked(*what: Any) -> None:
    ASKED.append(what)


class Hook:
    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)

    def __getattr__(self, name: str) -> Any:
        asked("getattr", name)
        if name == "none":
            raise AttributeError(name)
        return 7


class Equal:
    def __init__(self, v: Any) -> None:
        self.v = v

    def __eq__(self, other: object) -> bool:
        asked("eq", self.v)
        return isinstance(other, Equal) and self.v == other.v

    def __hash__(self) -> int:
        asked("hash", self.v)
        return hash(self.v)


class Computes:
    def __init__(self, v: int, warm: bool = False) -> None:
        self.v = v
        if warm:
            self.kept  # noqa: B018

    @functools.cached_property
    def kept(self) -> int:
        asked("kept", self.v)
        return self.v * 2

    @property
    def anew(self) -> int:
        asked("anew")
        return self.v


class List(list):  # type: ignore[type-arg]
    def __len__(self) -> int:
        asked("len")
        return list.__len__(self)

    def __iter__(self) -> Any:
        asked("iter")
        return list.__iter__(self)

    def __getitem__(self, i: Any) -> Any:
        asked("getitem", i)
        return list.__getitem__(self, i)


class Dict(dict):  # type: ignore[type-arg]
    def __len__(self) -> int:
        asked("len")
        return dict.__len__(self)

    def __iter__(self) -> Any:
        asked("iter")
        return dict.__iter__(self)

    def __getitem__(self, i: Any) -> Any:
        asked("getitem", i)
        return dict.__getitem__(self, i)

    def __eq__(self, other: object) -> bool:
        asked("eq")
        return dict.__eq__(self, other)

    def __contains__(self, k: Any) -> bool:
        asked("contains", k)
        return dict.__contains__(self, k)


class Claims:
    def __init__(self, v: int) -> None:
        self.v = v

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        asked("class")
        return int


class Hides:
    def __init__(self, v: int) -> None:
        self.v = v

    @property
    def __dict__(self) -> Any:  # type: ignore[override]
        asked("dict")
        return {}


class Meta(type):
    def __instancecheck__(cls, obj: object) -> bool:
        asked("instancecheck")
        return True

    def __eq__(cls, other: object) -> bool:
        asked("eq of classes")
        return cls is other

    def __hash__(cls) -> int:
        asked("hash of a class")
        return 5

    def __getattr__(cls, name: str) -> int:
        asked("getattr of a class", name)
        return 3


class Made(metaclass=Meta):
    x = 1


class Slots:
    __slots__ = ("a", "b")

    def __init__(self, **attributes: Any) -> None:
        for name, value in attributes.items():
            setattr(self, name, value)

    def __getattr__(self, name: str) -> int:
        asked("getattr of slots", name)
        return 9


class Called:
    def __init__(self, k: int) -> None:
        self.k = k

    def __call__(self, x: Any) -> Any:
        asked("call")
        return x + self.k

    def __getattr__(self, name: str) -> Any:
        asked("getattr", name)
        raise AttributeError(name)


class Str(str):
    def __eq__(self, other: object) -> bool:
        asked("eq of text")
        return str.__eq__(self, other)

    __hash__ = str.__hash__


class Module(types.ModuleType):
    @property
    def value(self) -> int:
        asked("value of a module")
        return 4


plain, with_property = types.ModuleType("asked_plain"), Module("asked_with_property")


def names(name: str) -> int:
    asked("getattr of a module", name)
    return 5


plain.__getattr__ = names  # type: ignore[method-assign]

Make = Callable[[], tuple[Any, ...]]
CASES: dict[str, tuple[Callable[..., Any], tuple[Make, ...]]] = {}


def case(*makers: Make) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(fn: Callable[..., Any]) -> Callable[..., Any]:
        CASES[fn.__name__] = fn, makers
        return fn

    return register


# --- attributes ---


@case(lambda: (Hook(a=1), T), lambda: (Hook(), T), lambda: (Hook(a=2), T))
def attribute_or_hook(g, x):
    asked("start")
    y = x + g.a
    asked("end")
    return y


@case(lambda: (Hook(a=1), T), lambda: (Hook(), T), lambda: (Hook(none=2), T))
def has_an_attribute(g, x):
    asked("start")
    return x + hasattr(g, "none") + hasattr(g, "b") + getattr(g, "none", 3)


@case(lambda: (Slots(a=1), T), lambda: (Slots(), T), lambda: (Slots(a=1, b=2), T), lambda: (Slots(b=1), T))
def slot_or_hook(s, x):
    asked("start")
    return x + s.a


@case(lambda: (Computes(1), T), lambda: (Computes(2, warm=True), T), lambda: (Computes(2), T))
def properties(c, x):
    asked("start")
    y = x + c.kept + c.anew
    asked("mid")
    return y + c.kept + c.anew


@case(lambda: (Claims(1), T), lambda: (Claims(2), T))
def class_of_its_own(c, x):
    asked("start")
    return x + c.v, isinstance(c, int)


@case(lambda: (Hides(1), T), lambda: (Hides(2), T))
def dict_of_its_own(c, x):
    asked("start")
    return x + c.v, hasattr(c, "other")


@case(lambda: (Called(1), T), lambda: (Called(1), T), lambda: (Called(2), T))
def what_is_called(f, x):
    asked("start")
    return f(x) + callable(f)


@case(lambda: (T, types.SimpleNamespace(e=Equal(1))), lambda: (T, types.SimpleNamespace(e=1)))
def attribute_of_a_namespace(x, n):
    asked("start")
    return x + (n.e == 1)


class Holds:
    def __init__(self) -> None:
        self.w, self.n = torch.ones(2), types.SimpleNamespace(k=1)


class Makes:
    @property
    def w(self) -> Any:
        asked("w")
        return torch.ones(2)

    @property
    def n(self) -> Any:
        asked("n")
        return types.SimpleNamespace(k=1)


@case(lambda: (Holds(), T), lambda: (Makes(), T))
def tensor_of_an_object(o, x):
    asked("start")
    return x + o.w


@case(lambda: (Holds(), T), lambda: (Makes(), T))
def tensor_and_more_of_an_object(o, x):
    asked("start")
    return x * o.n.k + o.w.sum()


# --- modules ---


@case(lambda: (T,))
def hook_of_a_module(x):
    asked("start")
    y = x + plain.thing
    asked("mid")
    return y + plain.thing


@case(lambda: (T,))
def property_of_a_module(x):
    asked("start")
    y = x + with_property.value
    asked("mid")
    return y + with_property.value


@case(lambda: (T,))
def import_from_a_hook(x):
    asked("start")
    from asked_plain import other

    return x + other


# --- keys and members ---


@case(
    lambda: ({Equal(1): 2}, T), lambda: ({"a": 2}, T), lambda: ({Equal("a"): 3}, T), lambda: ({"a": 3, Equal("b"): 1}, T),
    lambda: ({(1, "a"): 3}, T), lambda: ({(1, Equal("a")): 3}, T),
)  # fmt: skip
def keys_of_a_dict(d, x):
    asked("start")
    for v in d.values():
        x = x + v
    return x


@case(lambda: ({Equal(1): 2}, Equal(1), T), lambda: ({Equal(2): 2}, Equal(2), T))
def lookups(d, k, x):
    asked("start")
    y = x + d[k]
    asked("mid")
    return y + d.get(k)


@case(lambda: ({"a": 2}, T), lambda: ({Equal("a"): 3}, T), lambda: ({"a": 3}, T))
def an_item(d, x):
    asked("start")
    return x + d["a"]


KEY = Equal(5)
TABLE = {KEY: 3}


@case(lambda: (T,))
def an_item_of_a_global(x):
    asked("start")
    return x + TABLE[KEY]


@case(
    lambda: ({1, 2}, T), lambda: ({Equal(1), 2}, T), lambda: (frozenset({1, 2}), T), lambda: (frozenset({Equal(1), 2}), T),
    lambda: ({(1, 2), 2}, T), lambda: ({(Equal(1), 2), 2}, T),
)  # fmt: skip
def members_of_sets(s, x):
    asked("start")
    return x + len(s) + (2 in s)


@case(lambda: ([1, 2], T), lambda: ((1, 2), T), lambda: ([Equal(1), Equal(2)], T), lambda: ((1, Equal(2)), T))
def members_of_lists(s, x):
    asked("start")
    return x + (1 in s) + len(s) + (s == (1, 2))


@case(lambda: ([Equal(1)], Equal(1), T), lambda: ([Equal(2)], Equal(1), T), lambda: ([], Equal(1), T))
def counted(found, e, x):
    asked("start")
    return x + (e in found) + found.count(e)


@case(lambda: (collections.OrderedDict(a=Equal(1)), T), lambda: (collections.OrderedDict(a=3), T))
def values_of_a_dict(d, x):
    asked("start")
    return x + (d["a"] == 3)


# --- containers of the program's ---


@case(lambda: (List([1, 2]), T), lambda: (List([1, 2, 3]), T), lambda: ([1, 2], T))
def a_list(s, x):
    asked("start")
    for v in s:
        x = x + v
    return x + len(s) + s[0] + list.__len__(s)


@case(lambda: (Dict(a=1), T), lambda: (Dict(a=1, b=2), T), lambda: (Dict(a=3), T))
def a_dict(s, x):
    asked("start")
    for k in s:
        x = x + s[k]
    return x + len(s) + ("a" in s)


def asking(base: type, *names: str) -> type:
    """A class that derives from a container, and notes who asks for what it has from that."""

    def method(name: str) -> Any:
        def asks(self, *args):
            asked(name)
            return getattr(base, name)(self, *args)

        return asks

    return type("Asking", (base,), {name: method(name) for name in names} | {"__bool__": lambda self: asked("bool") is None})


Emptied, Looked, Listed = asking(dict), asking(set, "__contains__", "__eq__"), asking(dict, "items", "keys", "values")
Looked.__hash__ = object.__hash__  # type: ignore[assignment]


@case(lambda: (Emptied(), T), lambda: (Emptied(a=1), T))
def a_dict_with_a_truth_of_its_own(s, x):
    asked("start")
    return x + len(s) + s.get("a", 5)


@case(lambda: (Looked([1, 2]), T), lambda: (Looked([1]), T), lambda: (Looked(), T))
def a_set_with_membership_of_its_own(s, x):
    asked("start")
    return x + len(s) + sum(s) + (1 in s)


@case(lambda: (Listed(a=1), T), lambda: (Listed(a=2, b=3), T))
def a_dict_with_items_of_its_own(s, x):
    asked("start")
    y = x + s["a"] + len(s)
    return y + sum(v for _, v in s.items())


# --- classes ---


@case(lambda: (Made(), Made, T), lambda: (3, Made, T))
def a_class_with_a_metaclass(o, m, x):
    asked("start")
    return x + isinstance(o, m) + m.x, isinstance(3, m), m.other


@case(lambda: ({Made: 1}, T), lambda: ({int: 1}, T))
def such_a_class_as_a_key(d, x):
    asked("start")
    return x + sum(d.values())


# --- arguments, defaults, closures ---


@case(lambda: (1, T), lambda: (Equal(1), T), lambda: (None, T), lambda: (Str("a"), T), lambda: ("a", T))
def an_argument(a, x):
    asked("start")
    return x + (a is None) + (a == 1) + (a == "a")


def with_default(d):
    def fn(x, k=d):
        return x + (k == 1)

    return fn


def with_cell(d):
    def fn(x):
        return x + (d == 1)

    return fn


@case(
    lambda: (with_default(Equal(1)), T), lambda: (with_default(1), T), lambda: (with_cell(Equal(1)), T),
    lambda: (with_cell(1), T), lambda: (functools.partial(with_cell(1)), T), lambda: (functools.partial(with_cell(Equal(1))), T),
)  # fmt: skip
def a_function(f, x):
    asked("start")
    return f(x)


@case(lambda: (slice(Equal(1), 2), T), lambda: (slice(1, 2), T))
def a_slice(s, x):
    asked("start")
    return x + (s.start == 1)


@case(lambda: (Equal(1), Equal(1), T), lambda: (Equal(1), Equal(2), T))
def two_objects(a, b, x):
    asked("start")
    return x + (a == b) + (a != b)


def observed(fn: Callable[..., Any], makers: tuple[Make, ...]) -> list[Any]:
    seen = []
    for make in makers:
        args = make()
        ASKED.clear()
        try:
            result = fn(*args)
        except KeyError as error:
            result = repr(error)
        seen.append((str(result), list(ASKED)))
    return seen


@pytest.mark.parametrize("name", list(CASES))
def test_who_is_asked(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fn, makers = CASES[name]
    monkeypatch.setitem(sys.modules, "asked_plain", plain)
    for order in (makers, makers[::-1], makers + makers):
        assert observed(tinycompile.compile(fn, backend="eager"), order) == observed(fn, order)


# --- classes that say what counts as theirs ---


def _asking(kind: str) -> dict[str, Any]:
    """Classes of a kind, made anew: what abstract ones answered once they know."""
    text = """
class Plain: pass
class Sub(Plain): pass
class Meta(META):
    def __HOW__(cls, other): asked(HOW, cls.__name__, getattr(other, "__name__", "")); return other is Sub or type(other) is Sub
class Kind(metaclass=META if HOW == "__subclasshook__" else Meta):
    if HOW == "__subclasshook__":
        @classmethod
        def __subclasshook__(cls, other): asked(HOW, cls.__name__, other.__name__); return other is Sub or NotImplemented
class Below(Kind): pass
PLAIN, SUB = Plain(), Sub()
@functools.singledispatch
def chosen(value): asked("another"); return 1
chosen.register(Kind)(lambda value: (asked("kind"), 2)[1])
"""
    how = "__subclasshook__" if kind == "hook" else f"__{kind.removeprefix('abstract ')}__"
    names = {"META": abc.ABCMeta if kind.startswith(("abstract", "hook")) else type, "HOW": how, "asked": asked}
    names["functools"] = functools
    exec(text.replace("__HOW__", "unasked" if kind == "hook" else how), names)
    return names


QUESTIONS = (
    "isinstance(SUB, Kind), isinstance(PLAIN, Kind), isinstance(SUB, Below)",
    "issubclass(Sub, Kind), issubclass(Plain, (int, Kind)), issubclass(Kind, Kind)",
    "isinstance(SUB, (int, Kind, Below)), isinstance(SUB, Kind | int), isinstance(x, Kind)",
    "[isinstance(v, Kind) for v in (SUB, PLAIN, 3, x) if asked('next') is None]",
    "chosen(SUB), chosen(PLAIN), chosen(3)",
)


@pytest.mark.parametrize("kind", ["hook", "instancecheck", "subclasscheck", "abstract instancecheck", "abstract subclasscheck"])
@pytest.mark.parametrize("question", QUESTIONS)
def test_who_is_asked_what_counts_as_an_instance(kind: str, question: str) -> None:
    def answers(names: dict[str, Any], compiled: bool) -> list[Any]:
        exec(f"def fn(x):\n    asked('start')\n    found = {question}\n    asked('end')\n    return x + 1, found", names)
        fn = tinycompile.compile(names["fn"], backend="eager") if compiled else names["fn"]
        return observed(fn, (lambda: (T,),) * 3)

    assert answers(_asking(kind), True) == answers(_asking(kind), False)


# --- classes that come to answer ---

GAINED: dict[str, tuple[type, Callable[..., Any], str, Callable[..., Any]]] = {
    "an attribute": (object, lambda o, x: x + o.q, "__getattribute__", lambda self, name: 5),
    "an attribute that is a tensor": (object, lambda o, x: x + o.t, "__getattribute__", lambda self, name: torch.ones(2)),
    "an attribute or a default": (object, lambda o, x: x + getattr(o, "z", 2), "__getattribute__", lambda self, name: 5),
    "the length of a list": (list, lambda o, x: x + len(o), "__len__", lambda self: 3),
    "an item of a list": (list, lambda o, x: x + o[0], "__getitem__", lambda self, at: 3),
    "an attribute of a list": (list, lambda o, x: x + o.q, "__getattribute__", lambda self, name: 3),
    "the items of a dict": (dict, lambda o, x: x + sum(o), "__iter__", lambda self: iter([3])),
    "an item of a dict": (dict, lambda o, x: x + o[1], "__getitem__", lambda self, key: 3),
    "an attribute that there may be": (object, lambda o, x: x + getattr(o, "q", 2), "__getattr__", lambda self, name: 5),
    "what a slot holds": (object, lambda o, x: x + o.s, "s", property(lambda self: 3)),
}


@pytest.mark.parametrize("name", list(GAINED))
@pytest.mark.parametrize("given", [True, False], ids=["argument", "global"])
def test_guards_do_not_ask_a_class_that_has_come_to_answer(name: str, given: bool) -> None:
    base, look, special, answer = GAINED[name]
    cls = type("Cls", (type("Near", (type("Far", (base,), {"__slots__": ()}),), {"__slots__": ("s",)}),), {})
    made: Any = cls()
    made.q, made.s, made.t = 1, 1, torch.zeros(2)
    if base is list:
        made.append(1)
    elif base is dict:
        made[1] = 1

    def fn(x: Any, *args: Any) -> Any:
        return look(*(args or (made,)), x)

    def answers(*args: Any) -> Any:
        asked(special)
        return getattr(answer, "fget", answer)(*args)

    args = (T, made) if given else (T,)
    compiled = tinycompile.compile(fn, backend="eager")
    assert str(compiled(*args)) == str(fn(*args))
    setattr(cls.__mro__[1], special, property(answers) if isinstance(answer, property) else answers)
    for _ in range(2):
        want = observed(fn, (lambda: args,))
        assert observed(compiled, (lambda: args,)) == want


def test_guards_do_not_ask_an_object_that_lacks_what_others_had() -> None:
    class Some:
        def __init__(self, **attributes: Any) -> None:
            self.__dict__.update(attributes)

    def fn(o: Any, x: Any) -> Any:
        return x + o.k

    compiled = tinycompile.compile(fn, backend="eager")
    assert torch.equal(compiled(Some(k=1), T), fn(Some(k=1), T))
    Some.__getattr__ = lambda self, name: asked(name) or 7  # type: ignore[attr-defined]
    for _ in range(2):
        assert observed(compiled, (lambda: (Some(), T),)) == observed(fn, (lambda: (Some(), T),))


class Special:
    """Special methods in the class are meant, whatever an object has under their names."""

    def __enter__(self) -> int:
        asked("enter")
        return 2

    def __exit__(self, *error: Any) -> None:
        asked("exit")

    def __next__(self) -> int:
        asked("next")
        return 3

    def __getattribute__(self, name: str) -> Any:
        asked("getattribute", name)
        return object.__getattribute__(self, name)


class Shadowed(Special):
    __getattribute__ = object.__getattribute__

    def __init__(self) -> None:
        self.__enter__ = self.__exit__ = self.__next__ = lambda *args: asked("own") or 9  # type: ignore[assignment]


@pytest.mark.parametrize("kind", [Special, Shadowed])
@pytest.mark.parametrize("inside", [True, False])
def test_special_methods_are_those_of_the_class(kind: type, inside: bool) -> None:
    def fn(x: Any, *given: Any) -> Any:
        obj = given[0] if given else kind()
        with obj as by:
            x = x * by
        return x * next(obj)

    given = (T,) if inside else (T, kind())
    assert observed(tinycompile.compile(fn, backend="eager"), (lambda: given,) * 2) == observed(fn, (lambda: given,) * 2)


class Hashed(torch.nn.Module):
    def __hash__(self) -> int:
        asked("hash")
        return 5

    def __eq__(self, other: object) -> bool:
        asked("eq")
        return self is other


def test_modules_with_a_hash_of_their_own_are_asked_as_objects_are() -> None:
    module = Hashed()

    def fn(x: Any) -> Any:
        return x * {module: 2}[module] + len({module, 3})

    assert observed(tinycompile.compile(fn, backend="eager"), (lambda: (T,),) * 2) == observed(fn, (lambda: (T,),) * 2)


SPECIAL = Special()


def test_an_object_that_a_name_leads_to_is_not_asked_for_its_class() -> None:
    def fn(x: Any) -> Any:
        asked("start")
        return x + SPECIAL.__next__()

    assert observed(tinycompile.compile(fn, backend="eager"), (lambda: (T,),) * 2) == observed(fn, (lambda: (T,),) * 2)
