"""Changes of names: globals, builtins, closures, functions; of what is imported; of the process around."""

from __future__ import annotations

import builtins
import contextvars
import functools
import math
import os
import sys
import types
from typing import Any

import pytest

from tests.capture.changes.stories import ANYHOW, AS_BEFORE, UNRELATED, Story, patched, story
from tests.capture.corpus import r

X = r(2, 3)

# --- names ---

FACTOR, DISTANT = 2.0, types.ModuleType("distant")
DISTANT.factor, DISTANT.unread = 2.0, 0  # type: ignore[attr-defined]


@story
def global_of_this_and_of_another_module() -> Story:
    with pytest.MonkeyPatch.context() as patch:
        yield lambda x: x * FACTOR + DISTANT.factor, X
        patch.setitem(globals(), "FACTOR", 3.0)
        yield
        patch.setattr(DISTANT, "factor", 5.0)
        yield
        patch.setattr(DISTANT, "unread", 5.0)
        yield UNRELATED
        patch.setitem(globals(), "UNREAD", 5.0)
        yield UNRELATED


@story
def global_deleted() -> Story:
    def f(x: Any) -> Any:
        try:
            return x * SOMETIMES
        except NameError:
            return x

    globals()["SOMETIMES"] = 2
    yield f, X
    del globals()["SOMETIMES"]
    yield
    globals()["SOMETIMES"] = 3
    yield
    del globals()["SOMETIMES"]


@story
def builtin_hidden() -> Story:
    with pytest.MonkeyPatch.context() as patch:
        yield lambda x: x * len([1, 2]), X
        patch.setitem(globals(), "len", lambda values: 7)
        yield
    yield AS_BEFORE


@story
def builtin_replaced() -> Story:
    yield lambda x: x * pow(2, 3), X
    with patched(builtins, "pow", lambda a, b: 5):
        yield
    yield AS_BEFORE


@story
def builtin_added() -> Story:
    def f(x: Any) -> Any:
        try:
            return x * made_for_all  # noqa: F821
        except NameError:
            return x

    yield f, X
    with patched(builtins, "made_for_all", 4):
        yield
    yield AS_BEFORE


@story
def cells() -> Story:
    scale, unread, inner = 2.0, 1, lambda x: x + 1

    def f(x: Any) -> Any:
        return inner(x) * scale

    def g() -> Any:
        return unread

    yield f, X
    scale = 3.0
    yield
    inner = lambda x: x - 1  # noqa: E731
    yield
    unread = g() + 1
    yield UNRELATED
    f.__closure__[1].cell_contents = 8.0  # type: ignore[index]
    yield


@story
def cell_emptied() -> Story:
    scale = 2.0

    def f(x: Any) -> Any:
        try:
            return x * scale
        except NameError:
            return x

    yield f, X
    del scale
    yield
    scale = 5.0
    yield


@story
def one_code_for_two_functions() -> Story:
    def make(k: float) -> Any:
        def inner(x: Any, more: float = k) -> Any:
            return x * k + more

        return inner

    first, second = make(2.0), make(3.0)
    box = types.SimpleNamespace(fn=first)
    yield lambda x: box.fn(x), X
    box.fn = second
    yield
    first.__defaults__ = (9.0,)
    yield UNRELATED
    box.fn = first
    yield


@story
def parts_of_a_function() -> Story:
    def inner(x: Any, a: int = 1, *, b: int = 2) -> Any:
        return x * a + b

    yield lambda x: inner(x), X
    inner.__defaults__ = (4,)
    yield
    inner.__kwdefaults__ = {"b": 5}
    yield
    inner.__kwdefaults__["b"] = 6
    yield
    inner.__code__ = (lambda x, a=1, *, b=2: x - a - b).__code__
    yield
    inner.unread = 3  # type: ignore[attr-defined]
    yield ANYHOW


@story
def arguments_of_a_partial() -> Story:
    def inner(x: Any, a: int, b: int) -> Any:
        return x * a + b

    box = types.SimpleNamespace(fn=functools.partial(inner, a=2, b=3))
    yield lambda x: box.fn(x), X
    box.fn.keywords["a"] = 5
    yield
    box.fn = functools.partial(inner, a=1, b=1)
    yield


@story
def function_behind_a_wrapper() -> Story:
    def inner(x: Any) -> Any:
        return x + 1

    @functools.wraps(inner)
    def outer(*args: Any) -> Any:
        return outer.__wrapped__(*args) * 2

    yield lambda x: outer(x), X
    outer.__wrapped__ = lambda x: x - 1  # type: ignore[attr-defined]
    yield


@story
def receiver_of_a_bound_method() -> Story:
    class Scaler:
        def __init__(self, k: float) -> None:
            self.k = k

        def scale(self, x: Any) -> Any:
            return x * self.k

    box = types.SimpleNamespace(fn=Scaler(2.0).scale)
    yield lambda x: box.fn(x), X
    box.fn.__self__.k = 5.0
    yield
    box.fn = Scaler(7.0).scale
    yield


# --- what is imported ---


@story
def module_replaced() -> Story:
    made = types.ModuleType("made_for_a_story")
    made.scale = lambda x: x * 2  # type: ignore[attr-defined]
    other = types.ModuleType("made_for_a_story")
    other.scale = lambda x: x * 3  # type: ignore[attr-defined]

    def f(x: Any) -> Any:
        import made_for_a_story  # type: ignore[import-not-found]

        return made_for_a_story.scale(x)

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "made_for_a_story", made)
        yield f, X
        patch.setattr(made, "scale", lambda x: x * 5)
        yield
        patch.setitem(sys.modules, "made_for_a_story", other)
        yield


@story
def function_of_the_standard_library() -> Story:
    yield lambda x: x * math.floor(2.5), X
    with patched(math, "floor", lambda v: 9):
        yield
    yield AS_BEFORE


@story
def constant_of_the_standard_library() -> Story:
    yield lambda x: x * math.pi, X
    with patched(math, "pi", 3.0):
        yield
    with patched(math, "tau", 3.0):
        yield UNRELATED
    yield AS_BEFORE


# --- the process around ---


@story
def environment() -> Story:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STORY_SCALE", "2")
        yield lambda x: x * float(os.environ["STORY_SCALE"]) + float(os.environ.get("STORY_SHIFT", "0")), X
        patch.setenv("STORY_SCALE", "3")
        yield
        patch.setenv("STORY_SHIFT", "4")
        yield
        assert os.getenv("STORY_SHIFT") == "4"


@story
def environment_by_getenv() -> Story:
    with pytest.MonkeyPatch.context() as patch:
        yield lambda x: x * int(os.getenv("STORY_SCALE", "2")), X
        patch.setenv("STORY_SCALE", "5")
        yield


VARIABLE: contextvars.ContextVar[float] = contextvars.ContextVar("VARIABLE", default=2.0)


@story
def context_variable() -> Story:
    yield lambda x: x * VARIABLE.get(), X
    token = VARIABLE.set(5.0)
    yield
    VARIABLE.reset(token)
    yield AS_BEFORE


@story
def recursion_limit() -> Story:
    before = sys.getrecursionlimit()
    yield lambda x: x * sys.getrecursionlimit(), X
    sys.setrecursionlimit(before + 10)
    yield
    sys.setrecursionlimit(before)
    yield AS_BEFORE


@story
def import_path() -> Story:
    yield lambda x: x * len(sys.path), X
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [*sys.path, "somewhere"])
        yield


@story
def working_directory() -> Story:
    with pytest.MonkeyPatch.context() as patch:
        yield lambda x: x * len(os.getcwd()), X
        patch.chdir("/")
        yield


# --- classes of modules ---


def _own_module() -> Any:
    made = types.ModuleType("own_module")
    made.a = 2
    return made


def _looks_at(module: Any) -> Any:
    return lambda x: (x * module.a, getattr(module, "absent", 5), hasattr(module, "other"), type(module).__name__, bool(module))


@story
def getattr_of_a_module_added() -> Story:
    module = _own_module()
    yield _looks_at(module), X
    module.__getattr__ = lambda name: 7
    yield
    module.__getattr__ = lambda name: 8
    yield
    del module.__getattr__
    yield AS_BEFORE


@story
def class_of_a_module() -> Story:
    class Kind(types.ModuleType):
        pass

    module = _own_module()
    yield _looks_at(module), X
    module.__class__ = Kind
    yield
    Kind.absent = 3
    yield
    Kind.unread = 3
    yield UNRELATED
    Kind.a = property(lambda self: 9)
    yield
    Kind.__getattr__ = lambda self, name: 7
    yield
    Kind.__getattribute__ = lambda self, name: 1 if name == "a" else types.ModuleType.__getattribute__(self, name)
    yield
    Kind.__bool__ = lambda self: False
    yield
    del Kind.__getattribute__, Kind.__getattr__, Kind.a, Kind.absent
    yield
    module.__class__ = types.ModuleType
    yield AS_BEFORE


@story
def class_of_a_module_that_is_written() -> Story:
    class Kind(types.ModuleType):
        pass

    module = _own_module()

    def fn(x: Any) -> Any:
        module.a = 3
        return x * module.a

    yield fn, X
    module.__class__ = Kind
    yield ANYHOW
    Kind.__setattr__ = lambda self, name, value: types.ModuleType.__setattr__(self, name, value * 2)
    yield
    del Kind.__setattr__
    Kind.a = property(lambda self: 7, lambda self, value: None)
    yield
