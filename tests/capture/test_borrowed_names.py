"""Classes and functions that only say that they are the standard library's, as code says that ``exec`` runs in a namespace
without a name, or of another's: what is captured of the constructs, and what follows their changes, is as of any others."""

from __future__ import annotations

import builtins
import enum
import functools
import importlib.util
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import tinycompile
from tests.capture.changes import stories
from tests.capture.constructs import registry
from tests.capture.test_changes import follow
from tests.capture.test_constructs import check

pytestmark = pytest.mark.pure

CONSTRUCTS = (
    "caching", "class_state", "classes", "comparing", "containers", "contexts", "exceptions", "generators", "introspection", "keys",
    "matching", "odd_classes", "odd_exceptions", "odd_library", "odd_namespaces", "odd_objects", "overriding", "stdlib",
)  # fmt: skip


def run(name: str, borrowed: dict[str, str]) -> None:
    """A module's source, in a namespace with this name."""
    spec = importlib.util.find_spec(name)
    assert spec is not None and spec.origin is not None
    with open(spec.origin) as file:
        exec(compile(file.read(), spec.origin, "exec"), {"__builtins__": builtins, "__file__": spec.origin, **borrowed})


@pytest.mark.parametrize("borrowed", [{}, {"__name__": "enum"}], ids=["none", "enum"])
@pytest.mark.parametrize("name", CONSTRUCTS)
def test_constructs(name: str, borrowed: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "CASES", {})
    run(f"tests.capture.constructs.{name}", borrowed)
    assert registry.CASES
    for case in registry.CASES.values():
        check(case)


@pytest.mark.parametrize("borrowed", [{}, {"__name__": "enum"}], ids=["none", "enum"])
@pytest.mark.parametrize("name", ["mappings", "names", "objects"])
def test_changes(name: str, borrowed: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stories, "STORIES", {})
    run(f"tests.capture.changes.{name}", borrowed)
    assert stories.STORIES
    for told in stories.STORIES.values():
        follow(told())


SCALE = {"by": 2}


class Shown(enum.Enum):
    ONE = 1

    @functools.wraps(enum.Enum.__str__)
    def __str__(self) -> str:
        return "x" * SCALE["by"]

    @functools.wraps(enum.Enum.__hash__)
    def __hash__(self) -> int:
        return SCALE["by"]


class Loud:
    @functools.wraps(object.__repr__)
    def __repr__(self) -> str:
        return "y" * SCALE["by"]


@functools.wraps(torch.relu)
def relu(x: torch.Tensor, by: float = 1.0) -> torch.Tensor:
    return torch.relu(x) * by * SCALE["by"]


class Wrapper:
    """An object that goes by the name of a function of torch's."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        functools.update_wrapper(self, fn)
        self.fn, self.by = fn, 3.0

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.fn(x) * self.by


WRAPPED, LOUD = Wrapper(torch.nn.functional.relu), Loud()
USES: dict[str, Callable[[torch.Tensor], Any]] = {
    "str": lambda x: x + len(str(Shown.ONE)),
    "format": lambda x: x + len(f"{Shown.ONE!s}"),
    "hash": lambda x: x + hash(Shown.ONE),
    "repr": lambda x: x + len(repr(LOUD)),
    "a function": lambda x: relu(x),
    "an object": lambda x: WRAPPED(x),
}


def changes() -> Iterator[None]:
    SCALE["by"] = 5
    yield
    relu.__defaults__ = (4.0,)
    yield
    relu.__code__ = (lambda x, by: torch.relu(x) - by).__code__
    yield
    WRAPPED.by = 7.0
    yield


@pytest.mark.parametrize("name", USES)
def test_what_is_wrapped_in_anothers_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCALE, "by", 2)
    monkeypatch.setattr(relu, "__defaults__", (1.0,))
    monkeypatch.setattr(relu, "__code__", relu.__code__)
    monkeypatch.setattr(WRAPPED, "by", 3.0)
    compiled, x = tinycompile.compile(USES[name], backend="eager"), torch.ones(2)
    assert torch.equal(compiled(x), USES[name](x))
    for _ in changes():
        assert torch.equal(compiled(x), USES[name](x))
