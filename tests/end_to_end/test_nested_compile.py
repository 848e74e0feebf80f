"""``compile`` of what is compiled already, in every order: functions, methods, modules, partials, callable objects."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import tinycompile

pytestmark = pytest.mark.pure

compiled = functools.partial(tinycompile.compile, backend="eager")
X = torch.arange(4.0)


def scale(x: Any, k: float = 2.0) -> Any:
    return x * k


class Plain:
    """What a class may have compiled, in both orders of the decorators."""

    k = 3.0

    @compiled
    def method(self, x):
        return x * self.k

    @classmethod
    @compiled
    def of_class(cls, x):
        return x + cls.k

    @compiled
    @classmethod
    def of_class_too(cls, x):
        return x - cls.k

    @staticmethod
    @compiled
    def static(x):
        return x * 5

    @property
    @compiled
    def double(self):
        return self.k * 2

    def left_alone(self, x):
        return x / self.k

    @compiled
    def __call__(self, x):
        return x**2 + self.k


class Decorated(nn.Module):
    @compiled
    def forward(self, x):
        return x * 7


class Linear(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x):
        return self.inner(x).relu()


OBJ, DECORATED, LINEAR, SCALE = Plain(), Decorated(), Linear(), compiled(scale)
# What is compiled, with what is left of its arguments; once more; inside a function; all without compiling for comparison.
CALLABLES: dict[str, Callable[[Any], Any]] = {
    "function": lambda c: c(scale),
    "compiled function": lambda c: c(SCALE),
    "method": lambda c: c(OBJ.left_alone),
    "compiled method": lambda c: c(OBJ.method),
    "class method": lambda c: c(Plain.of_class),
    "class method, the other order": lambda c: c(OBJ.of_class_too),
    "static method": lambda c: c(OBJ.static),
    "object": lambda c: c(OBJ),
    "its __call__": lambda c: c(OBJ.__call__),
    "module": lambda c: c(LINEAR),
    "its forward": lambda c: c(LINEAR.forward),
    "module with a compiled forward": lambda c: c(DECORATED),
    "that forward": lambda c: c(DECORATED.forward),
    "forward of a compiled module": lambda c: c(c(LINEAR).forward),
    "partial": lambda c: c(functools.partial(scale, k=4.0)),
    "partial of a compiled one": lambda c: c(functools.partial(c(scale), k=4.0)),
    "partial of a partial": lambda c: c(functools.partial(c(functools.partial(scale)), k=4.0)),
    "partial of a method": lambda c: c(functools.partial(OBJ.method)),
    "partial of a module": lambda c: c(functools.partial(c(LINEAR))),
    "sequence of compiled modules": lambda c: c(nn.Sequential(c(LINEAR), c(DECORATED))),
    "callers of methods": lambda c: c(lambda x: OBJ.method(x) + OBJ.of_class(x) + OBJ.of_class_too(x) + OBJ.static(x) + OBJ(x)),
    "caller of a property": lambda c: c(lambda x: x * OBJ.double),
    "compiles inside": lambda c: c(lambda x: c(scale)(x) + c(OBJ.method)(x)),
    "under torch's modes": lambda c: c(torch.no_grad()(c(scale))),
    "of torch.compile": lambda c: c(torch.compile(scale, backend="eager")),
    "calls one of torch.compile": lambda c: c(lambda x, f=torch.compile(scale, backend="eager"): f(x)),
}


@pytest.mark.parametrize("name", CALLABLES)
def test_compile_can_be_nested(name: str) -> None:
    make = CALLABLES[name]
    want = make(lambda fn: fn)(X)
    once = make(compiled)
    for fn in (once, compiled(once), copy.deepcopy(once), compiled(functools.partial(compiled(once)))):
        assert torch.equal(fn(X), want)


def test_what_is_compiled_already_stays_itself() -> None:
    assert compiled(SCALE) is SCALE
    assert compiled(OBJ.method).__func__ is Plain.method
    again = compiled(compiled(OBJ.left_alone))
    assert isinstance(again.__func__, tinycompile.CompiledFunction) and again.__self__ is OBJ
    assert compiled(DECORATED).compiled is Decorated.forward


@pytest.mark.parametrize("name", ["compiled method", "object", "partial", "partial of a partial", "module", "function"])
def test_explain_and_trace_take_the_same(name: str) -> None:
    fn = CALLABLES[name](lambda fn: fn)
    want = fn(X)
    assert "1 graph" in str(tinycompile.explain(fn, backend="eager")(X))
    assert "1 graph" in str(tinycompile.explain(compiled(fn), backend="eager")(X))
    assert torch.equal(tinycompile.trace(fn, X)(X), want)


def test_a_compiled_function_has_its_own_attributes() -> None:
    @compiled
    def counted(x: Any) -> Any:
        counted.calls += 1
        return x * counted.calls, hasattr(counted, "calls"), hasattr(counted, "tag"), counted.__name__

    counted.calls = 1
    for calls in (2, 3, 4):
        got = counted(X)
        assert torch.equal(got[0], X * calls) and got[1:] == (True, calls == 4, "counted")
        assert counted.calls == calls
        if calls == 3:
            counted.tag = 1
    assert not hasattr(counted.original, "calls")


@pytest.mark.parametrize("stop", [False, True])
def test_a_compiled_function_is_itself_inside_another(stop: bool) -> None:
    @compiled
    def names(x: Any) -> Any:
        kept = [SCALE, OBJ.method]
        if stop:
            tinycompile.graph_break()
        return kept, SCALE is kept[0], {SCALE: 1}[SCALE], kept[0](x), kept[1](x), OBJ.method.__func__

    kept, *facts, a, b, method = names(X)
    assert kept[0] is SCALE and kept[1].__func__ is Plain.method and method is Plain.method and facts == [True, 1]
    assert torch.equal(a, X * 2) and torch.equal(b, X * 3)
