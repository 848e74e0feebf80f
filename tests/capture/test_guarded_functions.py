"""The only code of a function, behind its guards: one function, whose calls are those of guard and code apart."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tinycompile
from tinycompile.capture.guard_code import MISS, CompiledGuards, define, guarded

pytestmark = pytest.mark.cpu

X = torch.arange(6.0).reshape(2, 3)


def scaled(x: Any, /, k: float = 2.0, *more: Any, flag: bool = True) -> Any:
    return (x * k + sum(more)) if flag else (x - k, k)


CALLS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "as captured": ((X,), {}),
    "another size": ((torch.ones(5),), {}),
    "another number": ((X, 3.0), {}),
    "more": ((X, 2.0, 1, 2), {}),
    "by keyword": ((X,), {"flag": False}),
    "nothing": ((), {}),
    "an unknown keyword": ((X,), {"dim": 0}),
    "a positional one by keyword": ((), {"x": X}),
    "no tensor": ((None,), {}),
}


def outcome(fn: Any, name: str) -> Any:
    args, kwargs = CALLS[name]
    try:
        return fn(*args, **kwargs)
    except TypeError as error:
        return str(error)


@pytest.mark.parametrize("name", CALLS)
def test_a_call_where_one_code_is_known(name: str) -> None:
    compiled = tinycompile.compile(scaled)
    compiled(X)
    assert compiled._only is not None
    for _ in range(2):
        got, want = outcome(compiled, name), outcome(scaled, name)
        torch.testing.assert_close(got, want) if not isinstance(want, str) else None
        assert isinstance(want, str) == isinstance(got, str) and (not isinstance(want, str) or got == want)


def test_it_misses_what_the_guard_refuses() -> None:
    compiled = tinycompile.compile(lambda x: x + 1)
    compiled(X)
    entry = compiled._only
    assert entry is not None and entry.guarded is not None
    assert torch.equal(entry.guarded(X), X + 1)
    for other in (torch.ones(3), X.double(), X.clone().requires_grad_(), None):
        assert not entry.guard(other) and entry.guarded(other) is MISS


def test_a_guard_that_raises_is_asked_again_where_it_may() -> None:
    class Key:
        equal = True

        def __eq__(self, other: object) -> bool:
            if not self.equal:
                raise ValueError("no comparison")
            return True

        __hash__ = object.__hash__

    def fn(x: Any, key: Any) -> Any:
        return x + 1 if key == 1 else x

    compiled, key = tinycompile.compile(fn), Key()
    assert torch.equal(compiled(X, key), X + 1)
    Key.equal = False
    with pytest.raises(ValueError, match="no comparison"):
        compiled(X, key)


def test_no_such_function_where_a_variable_of_one_is_looked_up_by_the_other() -> None:
    python = "def f(x):\n    y = graph(x)\n    return y\n"
    run = define(python, "f", {"graph": torch.neg}, None)
    apart = CompiledGuards(lambda x: True, "", "x is not None", (), (), (), (), {}, lambda x: {})
    shared = CompiledGuards(lambda x: True, "", "y(x)", (), (), (), (), {"y": torch.is_tensor}, lambda x: {})
    made = guarded(apart, python, run)
    assert made is not None and torch.equal(made(X), -X) and made(None) is MISS
    assert guarded(shared, python, run) is None


@pytest.mark.parametrize("broken", [False, True])
def test_only_what_runs_to_the_end_has_one(broken: bool) -> None:
    def fn(x: Any) -> Any:
        y = x + 1
        if broken:
            print("", end="")
        return y * 2

    compiled = tinycompile.compile(fn)
    compiled(X)
    assert (compiled._only is None) == broken
