"""Classes that gain a special method, or lose theirs for another, between two calls: what was found before is no longer meant."""

from __future__ import annotations

import enum
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

import tinycompile

pytestmark = pytest.mark.cpu


def _make(kind: str) -> dict[str, Any]:
    """Classes of a kind, made anew, and an instance: those of one test must not be changed by another."""
    meta = type("Meta", (type,), {})
    bases: dict[str, tuple[Any, ...]] = {
        "plain": (object,), "list": (list,), "dict": (dict,), "tuple": (tuple,), "sub": (type("Base", (), {}),),
        "modules": (torch.nn.ModuleList,), "error": (Exception,),
    }  # fmt: skip
    if kind == "enum":
        members = enum.Enum("Kind", {"P": 1, "Q": 2})
        return {"A": members, "a": members.P}
    if kind == "meta":
        cls: Any = meta("Kind", (), {"v": 1})
        return {"A": cls, "M": meta, "a": cls()}
    if kind == "indexed":
        cls = type("Kind", (), {"__getitem__": lambda self, i: [0, 1, 2][i]})
        return {"A": cls, "a": cls()}
    if kind == "held":
        held = type("Held", (), {})
        cls = type("Kind", (), {"d": held()})
        return {"A": cls, "D": held, "a": cls()}
    cls = type("Kind", bases[kind], {"v": 1})
    given = {"list": ([1],), "tuple": ([1],), "dict": ({"a": 1},), "modules": ([torch.nn.ReLU()],)}
    made = cls(*given.get(kind, ()))
    return {"A": cls, "a": made, "B": bases[kind][0]}


_STORIES = [
    ("plain", "a == a", "__eq__", lambda s, o: "E"),
    ("plain", "a != a", "__ne__", lambda s, o: "E"),
    ("plain", "a != a", "__eq__", lambda s, o: False),
    ("plain", "a in [3]", "__eq__", lambda s, o: True),
    ("plain", "[3].count(a)", "__eq__", lambda s, o: True),
    ("plain", "x == a", "__eq__", lambda s, o: "E"),
    ("plain", "hash(a) == 5", "__hash__", lambda s: 5),
    ("plain", "A().v", "__init__", lambda s: setattr(s, "v", 7)),
    ("plain", "A().v", "__new__", lambda c: types.SimpleNamespace(v=8)),
    ("plain", "setattr(a, 'v', 3) or a.v", "__setattr__", lambda s, k, v: object.__setattr__(s, k, v * 2)),
    ("plain", "setattr(a, 'v', 3) or a.v", "v", property(lambda s: "p", lambda s, v: None)),
    ("plain", "(setattr(a, 'w', 1), delattr(a, 'w'), hasattr(a, 'w'))[2]", "__delattr__", lambda s, k: None),
    ("plain", "callable(a)", "__call__", lambda s: 1),
    ("plain", "bool(a)", "__len__", lambda s: 0),
    ("plain", "f'{a}'[:1]", "__format__", lambda s, f: "F"),
    ("sub", "B() == a", "__eq__", lambda s, o: "sub"),
    ("indexed", "list(a)", "__iter__", lambda s: iter("z")),
    ("indexed", "1 in a", "__contains__", lambda s, v: False),
    ("list", "a == [1]", "__eq__", lambda s, o: "E"),
    ("list", "[1] == a", "__eq__", lambda s, o: "E"),
    ("list", "a + [2]", "__add__", lambda s, o: "add"),
    ("list", "1 in a", "__contains__", lambda s, o: False),
    ("list", "list(a)", "__iter__", lambda s: iter("z")),
    ("list", "bool(a)", "__bool__", lambda s: False),
    ("dict", "'q' in a", "__contains__", lambda s, k: True),
    ("dict", "len(a)", "__len__", lambda s: 9),
    ("tuple", "[*a]", "__iter__", lambda s: iter("z")),
    ("modules", "len(a)", "__len__", lambda s: 9),
    ("modules", "[type(m).__name__ for m in a]", "__iter__", lambda s: iter("z")),
    ("modules", "type(a[0]).__name__", "__getitem__", lambda s, i: 3),
    ("modules", "bool(a)", "__bool__", lambda s: False),
    ("enum", "a == 1", "__eq__", lambda s, o: True),
    ("enum", "str(a)", "__str__", lambda s: "S"),
    ("enum", "bool(a)", "__bool__", lambda s: False),
    ("error", "str(A('q'))", "__str__", lambda s: "S"),
    ("error", "A('q').args", "__init__", lambda s, *a: setattr(s, "args", ("n",))),
    ("meta", "A().v", "__call__", lambda c: types.SimpleNamespace(v=8)),
    ("meta", "isinstance(3, A)", "__instancecheck__", lambda c, o: True),
    ("meta", "bool(A)", "__bool__", lambda c: False),
    ("meta", "A == int", "__eq__", lambda c, o: True),
    ("meta", "int == A", "__eq__", lambda c, o: True),
    ("meta", "A != int", "__eq__", lambda c, o: True),
    ("meta", "A in [int]", "__eq__", lambda c, o: True),
    ("meta", "A.v", "v", property(lambda c: "meta")),
    ("meta", "A.v", "__getattribute__", lambda c, n: "meta"),
    ("meta", "getattr(A, 'zz', 0)", "__getattr__", lambda c, n: "meta"),
    ("meta", "repr(A)[:1]", "__repr__", lambda c: "R"),
    ("held", "type(a.d).__name__", "__get__", lambda s, o, t: "got"),
]


def _told(kind: str, text: str, name: str, gained: Any, how: Callable[..., Any]) -> list[Any]:
    """What a function gives before its class gains a name, twice, and after, twice."""
    names = _make(kind)
    changed = names.get("M") or names.get("D") or names["A"]
    space = dict(names)
    exec(f"def f(a, x): return ({text}), x + 1", space)
    fn = how(space["f"])
    before = [fn(names["a"], torch.ones(2))[0] for _ in range(2)]
    setattr(changed, name, gained)
    return before + [fn(names["a"], torch.ones(2))[0] for _ in range(2)]


@pytest.mark.parametrize(("kind", "text", "name", "gained"), _STORIES, ids=[f"{k}-{t}-{n}" for k, t, n, _ in _STORIES])
def test_what_a_class_gains_counts(kind: str, text: str, name: str, gained: Any) -> None:
    expected = _told(kind, text, name, gained, lambda f: f)
    found = _told(kind, text, name, gained, lambda f: tinycompile.compile(f, backend="eager"))
    assert [(type(v).__name__, str(v)) for v in found] == [(type(v).__name__, str(v)) for v in expected]
    assert expected[0] != expected[2] or type(expected[0]) is not type(expected[2])  # the story tells of a change


def test_a_replaced_method_of_an_enumeration_counts() -> None:
    """Python itself asks the members: the answer is in the code."""

    class Kind(enum.Enum):
        P = 1

        def __eq__(self, other: object) -> bool:
            return False

        __hash__ = enum.Enum.__hash__

    def f(kind: Kind, x: torch.Tensor) -> tuple[bool, torch.Tensor]:
        return kind == 1, x + 1

    fn = tinycompile.compile(f, backend="eager")
    assert fn(Kind.P, torch.ones(2))[0] is False
    Kind.__eq__ = lambda self, other: True  # type: ignore[method-assign]
    assert fn(Kind.P, torch.ones(2))[0] is True
