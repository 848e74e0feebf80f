"""numpy's scalars compared: they answer with numpy's own bool, whatever the other side is, also of sizes and numbers that vary.

And guarded: one is another where its bits or its unit are others."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import tinycompile

pytestmark = pytest.mark.pure

K = np.int64(1)
CASES: dict[str, Callable[[torch.Tensor, Any], Any]] = {
    "not": lambda x, k: x + 1 if ~(k == 1) else x - 1,
    "sums": lambda x, k: (x, (k != 1) + (k != 2), (k == 1) + (k == 1)),
    "an element": lambda x, k: (x, (np.ones(2)[0] == 1).sum(), (k == 1).dtype, (k == 1).astype(int)),
    "the same": lambda x, k: (x, k == k, k != k, np.float64("nan") == np.float64("nan"), np.bool_(True) == True),  # noqa: E712
    "numbers": lambda x, k: (x, k == 1.0, 1 == k, 2 != k, np.float32(0.1) == 0.1, np.float32(1) == np.int8(1)),
    "others": lambda x, k: (x, k == None, None != k, k == "a", "a" != k, k == {1}, k == {1: 2}),  # noqa: E711
    "a list": lambda x, k: (x, k == [1], (1, 2) == k),
    "containers": lambda x, k: (x, k in [1], k in {1}, [k] == [1], (k,) == (1,), [1].index(k), [1, 1].count(k)),
    "a size": lambda x, k: (x, k == x.shape[0], x.shape[0] != k, k < x.shape[0], x.shape[0] >= k),
}


def told(value: Any) -> Any:
    """With the class of each part."""
    return [told(v) for v in value] if isinstance(value, tuple) else (type(value), repr(value))


@pytest.mark.parametrize("name", CASES)
def test_comparisons(name: str) -> None:
    fn = CASES[name]
    compiled = tinycompile.compile(fn, backend="eager")
    for size in (2, 1, 3, 1, 4):
        x = torch.ones(size)
        assert told(compiled(x, K)) == told(fn(x, K))


def test_a_number_that_varies() -> None:
    def fn(x: torch.Tensor, v: float, k: Any) -> Any:
        return x * v, k == v, v != k, k < v

    compiled = tinycompile.compile(fn, backend="eager")
    for v in (1.5, 2.5, 3.0, 4.25, 3.0):
        assert told(compiled(torch.ones(2), v, np.float32(3))) == told(fn(torch.ones(2), v, np.float32(3)))


# --- which of them is which: numpy says that these are equal ---

TWINS: dict[str, tuple[Any, ...]] = {
    **{k.__name__: (k(0.0), k(-0.0), k("nan"), -k("nan")) for k in (np.float16, np.float32, np.float64, np.longdouble)},
    **{k.__name__: (k(0), k(complex(-0.0, 0)), k(complex(0, -0.0))) for k in (np.complex64, np.complex128, np.clongdouble)},
    "times": (np.timedelta64(60, "s"), np.timedelta64(1, "m"), np.timedelta64(1, "60s"), np.timedelta64("NaT", "s")),
    "ints": (np.int64(1), np.longlong(1), np.uint8(1), np.bool_(True), True, 1),
    "nans of python": (float("nan"), -float("nan")),
}


class Holder:
    def __init__(self, value: Any) -> None:
        self.value = value


def shown(x: torch.Tensor, v: Any) -> Any:
    return x, str(v), math.copysign(1, v) if isinstance(v, (float, np.floating)) else repr(v)


def shown_behind_a_break(x: torch.Tensor, v: Any) -> Any:
    tinycompile.graph_break()
    return shown(x, v)


PLACES: dict[str, tuple[Callable[[torch.Tensor, Any], Any], Callable[[Any], Any]]] = {
    "argument": (shown, lambda v: v),
    "behind a break": (shown_behind_a_break, lambda v: v),
    "attribute": (lambda x, o: shown(x, o.value), Holder),
    "list": (lambda x, o: (shown(x, o[0]), repr(o)), lambda v: [v]),
    "tuple": (lambda x, o: (shown(x, o[0]), repr(o)), lambda v: (v,)),
    "dict": (lambda x, o: (shown(x, o["a"]), repr(o)), lambda v: {"a": v}),
    "key": (lambda x, o: (repr(o), [shown(x, k) for k in o]), lambda v: {v: 1}),
    "inside others": (lambda x, o: (x, repr(o)), lambda v: ({"a": (1, [v])},)),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", TWINS)
def test_twins_are_told_apart(name: str, place: str) -> None:
    fn, put = PLACES[place]
    compiled, x = tinycompile.compile(fn, backend="eager"), torch.ones(2)
    for value in TWINS[name] * 2:
        given = put(value)
        assert told(compiled(x, given)) == told(fn(x, given))
    assert compiled.cache_info()["entries"] <= len(TWINS[name])


@pytest.mark.parametrize("name", TWINS)
def test_twins_in_a_closure(name: str) -> None:
    captured: Any = None

    def fn(x: torch.Tensor) -> Any:
        return shown(x, captured), (captured,)

    compiled, x = tinycompile.compile(fn, backend="eager"), torch.ones(2)
    for captured in TWINS[name] * 2:  # noqa: B007  # the closure's variable
        assert told(compiled(x)) == told(fn(x))
