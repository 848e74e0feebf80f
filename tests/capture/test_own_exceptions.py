"""Exceptions of the program's classes: capture and rebuilt code ask them nothing, for no text, attribute or field of theirs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch

import tinycompile
from tinycompile.api import CompiledFunction
from tinycompile.base import raised
from tinycompile.base.config import config
from tinycompile.options import Options

pytestmark = pytest.mark.pure

ASKED: list[Any] = []
FIELDS = ("args", "__cause__", "__context__", "__suppress_context__", "__traceback__")


def tells(what: str, answer: Any) -> Any:
    def method(self: Any, *args: Any) -> Any:
        ASKED.append((what, args[:1] if what != "__init__" else ()))
        return answer(self, *args)

    return method


def field(name: str) -> Any:
    plain = vars(BaseException)[name]
    return property(tells(f"get {name}", plain.__get__), tells(f"set {name}", plain.__set__))


def keep(self: Any, value: Any) -> None:
    self.kept = value


# What a class says of its own.
KINDS: dict[str, dict[str, Any]] = {
    "texts": {name: tells(name, lambda self: "text") for name in ("__str__", "__repr__")},
    "a text of an attribute": {"__init__": tells("__init__", keep), "__str__": tells("__str__", lambda self: str(self.kept))},
    "setattr": {"__setattr__": tells("__setattr__", BaseException.__setattr__)},
    "setattr and init": {"__setattr__": tells("__setattr__", BaseException.__setattr__), "__init__": tells("__init__", keep)},
    "getattribute": {"__getattribute__": tells("__getattribute__", BaseException.__getattribute__)},
    "getattr": {"__getattr__": tells("__getattr__", lambda self, name: 1)},
    "class": {"__class__": property(tells("__class__", lambda self: int))},
    "equality": {
        "__eq__": tells("__eq__", lambda a, b: True), "__hash__": tells("__hash__", lambda self: 5),
        "__bool__": tells("__bool__", lambda self: False),
    },
    "fields": {name: field(name) for name in FIELDS},
    "notes": {
        "add_note": tells("add_note", lambda self, note: None), "__notes__": property(tells("__notes__", lambda self: [])),
        "with_traceback": tells("with_traceback", lambda self, trace: self),
    },
}  # fmt: skip
BASES = (Exception, RuntimeError, KeyError, AttributeError, StopIteration, MemoryError, AssertionError, NotImplementedError)


class Holder:
    pass


def programs(kind: Any) -> dict[str, Callable[[torch.Tensor], Any]]:
    def raises(x: Any) -> Any:
        raise kind(3)

    def raises_from(x: Any) -> Any:
        try:
            raise KeyError(1)
        except KeyError as error:
            raise kind(3) from error

    def raises_behind(x: Any) -> Any:
        try:
            raise kind(1)
        except kind:
            raise ValueError(2)  # noqa: B904

    def catches(x: Any) -> Any:
        try:
            raise kind(1)
        except kind as error:
            kept = error
        return x + 1, kept is None

    def leaves_through_finally(x: Any) -> Any:
        try:
            raise kind(1)
        finally:
            x = x + 1

    def makes(x: Any) -> Any:
        made, y = kind(3), x + 1
        tinycompile.graph_break()
        return y, made

    def asserts(x: Any) -> Any:
        assert x.shape[0] == 3, kind(3)

    def callee(x: Any) -> Any:
        tinycompile.graph_break()
        raise kind(2)

    def catches_behind_a_break(x: Any) -> Any:
        try:
            return callee(x)
        except kind:
            return x + 1

    def iterates(x: Any) -> Any:
        return [*Raising()], x + 1

    class Raising:
        def __iter__(self) -> Any:
            return self

        def __next__(self) -> Any:
            raise kind(1)

        @property
        def attribute(self) -> Any:
            raise kind(1)

        def __setattr__(self, name: str, value: Any) -> None:
            raise kind(1)

    def asks(x: Any) -> Any:
        return getattr(Raising(), "attribute", 3), x + 1

    def sets(x: Any) -> Any:
        Raising().attribute = x + 1  # type: ignore[misc]

    def in_a_manager(x: Any) -> Any:
        with contextlib.suppress(kind):
            raise kind(1)
        return x + 1

    def generator() -> Any:
        try:
            yield 1
        except kind:
            yield 2

    def throws(x: Any) -> Any:
        asleep = generator()
        next(asleep)
        return asleep.throw(kind(1)), x + 1

    def changes_first(x: Any) -> Any:
        changed.append(1)
        raise kind(1)

    def disabled(x: Any) -> Any:
        return refusing(x + 1)

    @tinycompile.disable
    def refusing(x: Any) -> Any:
        raise kind(1)

    changed: list[int] = []
    found = locals().items()
    return {name: fn for name, fn in found if callable(fn) and fn not in (kind, callee, Raising, generator, refusing)}


NAMES = list(programs(ValueError))


def observed(run: Any) -> Any:
    ASKED.clear()
    try:
        told: Any = type(run(torch.ones(2)))
    except Exception as error:  # noqa: BLE001
        asked, told = [*ASKED], []
        while error is not None and len(told) < 5:  # type: ignore[redundant-expr]
            told.append((type(error).__name__, raised.is_chained(error)))
            error = raised.read(error, "__context__")
        return told, asked
    return told, [*ASKED]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_asked(kind: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for base in BASES:
        cls = type("Own", (base,), dict(KINDS[kind]))
        for on_error in ("raise", "eager"):
            monkeypatch.setattr(config, "on_error", on_error)
            run = programs(cls)[name]
            want = [observed(run) for _ in range(3)]
            compiled = CompiledFunction(run, Options(backend="eager"))
            assert [observed(compiled) for _ in range(3)] == want, base


class Shown(Exception):
    def __repr__(self) -> str:
        return f"Shown:{super().__repr__()}"

    def __str__(self) -> str:
        return f"<{super().__str__()}>"


class Text:
    def __str__(self) -> str:
        return "text"


class Given(Exception):
    args = property(lambda self: (7,), lambda self, value: ASKED.append(value))  # type: ignore[assignment]


def test_what_the_program_asks_itself() -> None:
    def shown(x: torch.Tensor) -> Any:
        return x + 1, repr(Shown(1)), str(Shown(2)), f"{Shown(3)!r}"

    def sets(x: torch.Tensor) -> Any:
        error = Given(1)
        error.args = (5,)
        return x + 1, error.args

    for run in (shown, sets):
        ASKED.clear()
        want = run(torch.ones(2))[1:], [*ASKED]
        compiled = CompiledFunction(run, Options(backend="eager"))
        for _ in range(2):
            ASKED.clear()
            assert (compiled(torch.ones(2))[1:], [*ASKED]) == want


def test_the_words_of_an_error() -> None:
    assert raised.words(KeyError("a")) == "KeyError: 'a'"
    assert raised.words(ValueError(Text())) == "ValueError: "
    assert raised.words(Shown(1)) == "Shown: "
    first = ValueError(1)
    first.__context__ = Shown(2)
    assert "ValueError: 1" in raised.formatted(first) and "Shown: " in raised.formatted(first)
