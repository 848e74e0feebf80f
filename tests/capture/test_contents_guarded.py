"""What is read of functions, classes, partials and members is guarded, also where it lies inside of an object that is known by
identity; and so is which dict belongs to which object."""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import torch

import tinycompile

pytestmark = pytest.mark.cpu


def target(a: int, *, k: float = 2.0) -> int:
    """Words."""
    return a


class Base:
    size: int = 1

    def factor(self) -> int:
        return 1


class Other(Base):
    def factor(self) -> int:
        return 2


class Derived(Base):
    pass


class Colour(enum.Enum):
    RED = [1.0]


SHARED = [1.0]


class Pair(NamedTuple):
    first: int
    second: list[float] = SHARED


class Settings:
    scale = 1.0


derived, settings = Derived(), Settings()
of_list = functools.partial(lambda scale, x: x * scale[0], [1.0])
of_keyword = functools.partial(lambda x, k: x * k, k=1.0)


class Scaled:
    by = functools.partialmethod(lambda self, x, k: x * k, k=1.0)


scaled = Scaled()


def wrapping(x):
    @functools.wraps(target)
    def inner() -> None:
        return None

    return x * (1 + sum(hasattr(inner, name) for name in ("m1", "m2", "m3")))


CASES: dict[str, tuple[Callable[..., Any], Callable[[int], Any]]] = {
    "annotations": (lambda x: x * len(target.__annotations__), lambda i: target.__annotations__.update({f"n{i}": i})),
    "new annotations": (
        lambda x: x * (9 if target.__annotations__["a"] is int else 1),
        lambda i: setattr(target, "__annotations__", {"a": float}),
    ),
    "doc": (lambda x: x * len(target.__doc__), lambda i: setattr(target, "__doc__", "d" * i)),
    "keyword defaults": (lambda x: x * target.__kwdefaults__["k"], lambda i: target.__kwdefaults__.update(k=i)),
    "dict": (lambda x: x * len(vars(target)), lambda i: setattr(target, f"n{i}", i)),
    "wraps": (wrapping, lambda i: setattr(target, f"m{i}", i)),
    "class annotations": (lambda x: x * len(Base.__annotations__), lambda i: Base.__annotations__.update({f"n{i}": i})),
    "method of a base": (lambda x: x * derived.factor(), lambda i: setattr(Derived, "__bases__", ((Base, Other)[i % 2],))),
    "isinstance": (
        lambda x: x * (2 if isinstance(derived, Other) else 1),
        lambda i: setattr(Derived, "__bases__", ((Base, Other)[i % 2],)),
    ),
    "bases": (lambda x: x * len(Derived.__mro__), lambda i: setattr(Derived, "__bases__", ((Base, Other)[i % 2],))),
    "list of a partial": (lambda x: of_list(x), lambda i: of_list.args[0].__setitem__(0, 1.0 + i)),
    "keyword of a partial": (lambda x: of_keyword(x), lambda i: of_keyword.keywords.update(k=2.0 + i)),
    "keyword of a partialmethod": (lambda x: scaled.by(x), lambda i: vars(Scaled)["by"].keywords.update(k=3.0 + i)),
    "list of a member": (lambda x: x * Colour.RED.value[0], lambda i: Colour.RED.value.__setitem__(0, 4.0 + i)),
    "default of a named tuple": (lambda x: x * Pair(1).second[0], lambda i: SHARED.__setitem__(0, 5.0 + i)),
    "another dict": (lambda x: x * settings.scale, lambda i: setattr(settings, "__dict__", {"scale": 6.0 + i})),
}


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """The functions and classes as they are above."""
    kept = dict(target.__annotations__), dict(target.__kwdefaults__), target.__doc__, dict(Base.__annotations__)
    yield
    target.__annotations__, target.__kwdefaults__, target.__doc__ = kept[:3]
    target.__dict__.clear()
    settings.__dict__.clear()
    Base.__annotations__.clear()
    Base.__annotations__.update(kept[3])
    Derived.__bases__ = (Base,)


@pytest.mark.parametrize("name", CASES)
def test_a_change_is_noticed(name: str) -> None:
    fn, change = CASES[name]
    compiled, x = tinycompile.compile(fn), torch.ones(2)
    for i in (1, 2, 3):
        torch.testing.assert_close(compiled(x), fn(x))
        change(i)
    torch.testing.assert_close(compiled(x), fn(x))


@pytest.mark.parametrize("name", [n for n in CASES if n not in ("keyword defaults", "dict")])
def test_without_a_change_there_is_one_entry(name: str) -> None:
    compiled, x = tinycompile.compile(CASES[name][0], fullgraph=True), torch.ones(2)
    for _ in range(3):
        compiled(x)
    assert compiled.cache_info()["entries"] == 1


# --- an object and its dict ----------------------------------------------------------------------------------------------


class Thing:
    def __init__(self) -> None:
        self.a = 1


def write_object(thing, attributes):
    thing.a = 5
    return attributes["a"]


def write_dict(thing, attributes):
    attributes["a"] = 5
    return thing.a


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("fn", [write_object, write_dict], ids=lambda f: f.__name__)
def test_a_dict_that_may_be_the_objects_own(fn: Callable[..., Any], first: int) -> None:
    compiled = tinycompile.compile(fn)
    for i in range(first, 4):
        found = []
        for run in (compiled, fn):
            thing, attributes = Thing(), {"a": 1}
            found.append((run(thing, vars(thing) if i % 2 else attributes), thing.a, attributes))
        assert found[0] == found[1]


def test_objects_that_may_share_their_attributes() -> None:
    def fn(a, b):
        a.a = 7
        return b.a

    compiled = tinycompile.compile(fn)
    for i in range(4):
        found = []
        for run in (compiled, fn):
            a, b = Thing(), Thing()
            if i % 2:
                b.__dict__ = a.__dict__
            found.append((run(a, b), a.a, b.a))
        assert found[0] == found[1]


def test_a_dict_that_may_be_a_modules_own() -> None:
    def fn(module, attributes):
        attributes["training"] = False
        return module.training

    compiled = tinycompile.compile(fn)
    for i in range(4):
        found = []
        for run in (compiled, fn):
            module = torch.nn.Identity()
            found.append((run(module, vars(module) if i % 2 else {"training": True}), module.training))
        assert found[0] == found[1]


# --- names of a callee that breaks -----------------------------------------------------------------------------------------


class Printing(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.calls = torch.nn.Parameter(torch.ones(2)), 0

    def forward(self, x):
        print(end="")
        return x * self.weight


def test_a_module_whose_forward_breaks_keeps_its_name() -> None:
    def fn(module, x):
        module.calls = 3
        y = module(x)
        module.calls += 1
        return y, module.calls, module.weight

    mine, theirs = Printing(), Printing()
    compiled, x = tinycompile.compile(fn), torch.ones(2)
    for _ in range(2):
        torch.testing.assert_close(compiled(mine, x)[:2], fn(theirs, x)[:2])
        assert compiled(mine, x)[2] is mine.weight
        assert mine.calls == theirs.calls


# --- locals() ------------------------------------------------------------------------------------------------------------


def shown_twice(x):
    first = locals()
    more = 1
    second = locals()
    del more
    return first is second, sorted(first), first is vars(), sorted(first), x


def with_a_key_of_its_own(x):
    shown = locals()
    shown["own"] = 4
    y = x + 1
    return sorted(locals()), y


def shown_over_a_break(x):
    first = locals()
    print(end="")
    second = locals()
    return first is second, sorted(first), x


def shown_in_a_loop(x):
    shown = []
    for _ in range(3):
        shown.append(locals())
        print(end="")
    return [s is shown[0] for s in shown], x


@pytest.mark.parametrize(
    "fn", [shown_twice, with_a_key_of_its_own, shown_over_a_break, shown_in_a_loop], ids=lambda f: f.__name__
)
def test_locals_are_as_in_this_version_of_python(fn: Callable[..., Any]) -> None:
    x = torch.ones(2)
    assert str(tinycompile.compile(fn)(x)) == str(fn(x))
