"""Classes that come to have a member, or lose it, in front of the one where it was found; and what descriptors' classes have."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from tests.capture.changes.stories import ANYHOW, STORIES, Story, story
from tests.capture.corpus import r

X = r(2, 3)
Make = Callable[[int], Any]


def method(i: int) -> Any:
    return lambda self, *args: i


def iterator(i: int) -> Any:
    return lambda self: iter([i, i])


class Gives:
    """A descriptor that does not come before an object's own attribute."""

    def __init__(self, i: int) -> None:
        self.i = i

    def __get__(self, obj: Any, cls: Any = None) -> Any:
        return self.i


# By name: what classes come to have, how it is made, and how it is looked for in a class between these and the object's.
LOOKS: dict[str, tuple[str, Make, str]] = {
    "method": ("m", method, "def f(self, x): return x * super().m()"),
    "method, kept": ("m", method, "def f(self, x):\n        found = super().m\n        return x * found()"),
    "method, of a super that is passed on": ("m", method, "def f(self, x): return x * (lambda found: found.m())(super())"),
    "method, of two arguments": ("m", method, "def f(self, x): return x * super(Middle, self).m()"),
    "method, of the class": ("m", method, "def f(self, x): return x * super(Middle, Middle).m(self)"),
    "method, behind another class": ("m", method, "def f(self, x): return x * super(type(self), self).m()"),
    "class method": ("m", lambda i: classmethod(lambda cls: i), "def f(self, x): return x * super().m()"),
    "class method, in one": (
        "m", lambda i: classmethod(lambda cls: i),
        "@classmethod\n    def made(cls): return super().m()\n    def f(self, x): return x * self.made()",
    ),
    "static method": ("m", lambda i: staticmethod(lambda: i), "def f(self, x): return x * super().m()"),
    "data": ("d", float, "def f(self, x): return x * super().d"),
    "data, or a default": ("d", float, "def f(self, x): return x * getattr(super(), 'd', 9)"),
    "data, or not": ("d", float, "def f(self, x): return x + hasattr(super(), 'd')"),
    "property": ("d", lambda i: property(lambda self: i), "def f(self, x): return x * super().d"),
    "descriptor": ("d", Gives, "def f(self, x): return x * super().d"),
    "operator": ("__add__", method, "def f(self, x): return x * (self + 1)\n    def __add__(self, o): return super().__add__(o)"),
    "length": ("__len__", method, "def f(self, x): return x * len(self)\n    def __len__(self): return super().__len__()"),
    "item": ("__getitem__", method, "def f(self, x): return x * super().__getitem__(0)"),
    "iterator": ("__iter__", iterator, "def f(self, x): return x * sum(super().__iter__())"),
    "membership": ("__contains__", method, "def f(self, x): return x * super().__contains__(0)"),
    "truth": ("__bool__", method, "def f(self, x): return x * super().__bool__()"),
    "equality": ("__eq__", method, "def f(self, x): return x, super().__eq__(1) is NotImplemented or super().__eq__(1)"),
    "call": ("__call__", method, "def f(self, x): return x * self(1)\n    def __call__(self, x): return super().__call__(x)"),
    "text": ("__repr__", lambda i: lambda self: str(i), "def f(self, x): return x, super().__repr__()[:1]"),
    "enter": ("__enter__", method, "def f(self, x): return x * super().__enter__()"),
    "exit": ("__exit__", method, "def f(self, x): return x * super().__exit__(None, None, None)"),
    "getattr": ("__getattr__", method, "def f(self, x): return x * super().__getattr__('k')"),
    "setattr": (
        "__setattr__", lambda i: lambda self, name, value: object.__setattr__(self, name, value * i),
        "def f(self, x):\n        self.k = 3\n        return x * self.k\n    def __setattr__(self, n, v): super().__setattr__(n, v)",
    ),
    "init": (
        "__init__", lambda i: lambda self: setattr(self, "k", i),
        "k = 0\n    def __init__(self): super().__init__()\n    def f(self, x): return x * type(self)().k",
    ),
    "new": (
        "__new__", lambda i: lambda cls: [object.__new__(cls), setattr(cls, "made", None)][0],
        "made = 0\n    def __new__(cls): return super().__new__(cls)\n    def f(self, x): return x, type(self)().made",
    ),
    "init_subclass": (
        "__init_subclass__", lambda i: classmethod(lambda cls: i), "def f(self, x): return x, super().__init_subclass__()",
    ),
}  # fmt: skip


def _diamond(body: str) -> tuple[type, type, type, Any]:
    """Far, Near and Nearer, in this order of distance from an object of a class that derives from Middle, whose ``body`` looks."""
    names: dict[str, Any] = {}
    text = f"class Far: pass\nclass Near(Far): pass\nclass Nearer(Far): pass\nclass Middle(Nearer, Near):\n    {body}\n"
    exec(text + "class Own(Middle): pass\n", names)
    return names["Far"], names["Near"], names["Nearer"], names["Own"]()


def _told(fn: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Its answer, or its error."""

    def run(x: Any) -> Any:
        try:
            return fn(x)
        except (AttributeError, TypeError) as error:
            return type(error).__name__

    return run


def _behind(name: str, make: Make, body: str, first: bool) -> Story:
    far, near, nearer, obj = _diamond(body)
    if first:
        setattr(far, name, make(2))
    yield _told(obj.f), X
    for cls, i in ((near, 3), (nearer, 4), (nearer, 0), (near, 0), (far, 5), (near, 6)):
        if i:
            setattr(cls, name, make(i))
        else:
            delattr(cls, name)
        yield ANYHOW


for _name, (_attribute, _make, _body) in LOOKS.items():
    for _first in (True, False):
        told = f"super() finds a {_name}" if _first else f"super() does not find a {_name}"
        STORIES[told] = functools.partial(_behind, _attribute, _make, _body, _first)


@story
def forward_of_a_class_between() -> Story:
    class Far(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x + 1

    class Near(Far):
        pass

    class Own(Near):
        def forward(self, x: Any) -> Any:
            return super().forward(x) * 2

    own = Own()
    yield lambda x: own(x), X
    Near.forward = lambda self, x: x + 5
    yield
    del Near.forward
    Own.__bases__ = (type("Other", (Far,), {"forward": lambda self, x: x + 9}),)
    yield


@story
def metaclass_between() -> Story:
    class Far(type):
        def made(cls) -> float:
            return 2.0

    class Near(Far):
        pass

    class Meta(Near):
        def made(cls) -> float:
            return super().made()

    cls = Meta("Made", (), {})
    yield lambda x: x * cls.made(), X
    Near.made = lambda cls: 3.0
    yield
    del Near.made
    yield


# What the descriptor's class has at first, and what it is given or loses (-) in turn.
DESCRIPTORS = (
    ("", "__get__ __set__ -__set__ -__get__"), ("", "__set__ __get__ -__set__ -__get__"), ("__get__", "__set__ -__set__ -__get__"),
    ("__get__ __set__", "-__set__ -__get__"), ("__get__ __delete__", "-__delete__"), ("__get__", "__delete__ __set__ -__delete__"),
    ("__set__", "-__set__ __get__"),
)  # fmt: skip
SPECIALS: dict[str, Any] = {
    "__get__": lambda self, obj, cls=None: 7.0,
    "__set__": lambda self, obj, value: obj.__dict__.update(seen=value),
    "__delete__": lambda self, obj: obj.__dict__.update(seen=-1),
}


def _reads(obj: Any) -> Any:
    return getattr(obj, "d", None)


def _writes(obj: Any) -> Any:
    obj.d = 5.0
    return obj.__dict__.get("d"), obj.__dict__.get("seen")


def _deletes(obj: Any) -> Any:
    obj.__dict__["d"] = 4.0
    del obj.d
    return obj.__dict__.get("seen")


def _described(look: Callable[[Any], Any], start: str, changes: str, own: bool) -> Story:
    kind = type("Kind", (), {name: SPECIALS[name] for name in start.split()})
    cls = type("Cls", (), {"d": kind()})

    def fn(x: Any) -> Any:
        made = cls()
        if own:
            made.__dict__["d"] = 2.0
        given = look(made), look(obj)
        return x, [value if isinstance(value, (float, tuple, type(None))) else type(value).__name__ for value in given]

    obj = cls()
    obj.__dict__.update({"d": 2.0} if own else {})
    yield _told(fn), X
    for change in changes.split():
        if change.startswith("-"):
            delattr(kind, change[1:])
        else:
            setattr(kind, change, SPECIALS[change])
        yield ANYHOW


for _look in (_reads, _writes, _deletes):
    for _start, _changes in DESCRIPTORS:
        for _own in (False, True):
            told = f"{_look.__name__[1:]} a descriptor with {_start or 'nothing'}, then {_changes}{', beside an own' * _own}"
            STORIES[told] = functools.partial(_described, _look, _start, _changes, _own)
