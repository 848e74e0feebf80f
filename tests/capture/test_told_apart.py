"""Constants that ``==`` does not tell apart, or not even from themselves: guards do, and equal ones need no new code."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import tinycompile
from tinycompile.capture.told_apart import facts_of, has_metadata, is_itself_alone

pytestmark = pytest.mark.pure
Pair = namedtuple("Pair", "value other")
HELD: dict[str, Any] = {}
VALUE: Any = None


def nan() -> float:
    return float("nan")


# Makes one anew, where Python or numpy do, then another that means something else.
CONSTANTS: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "iinfo": (lambda: np.iinfo(np.int32), lambda: np.iinfo(np.int16)),
    "finfo": (lambda: np.finfo(np.float32), lambda: np.finfo(np.float64)),
    "torch's iinfo": (lambda: torch.iinfo(torch.int32), lambda: torch.iinfo(torch.int16)),
    "float": (nan, lambda: 1.5),
    "signed": (nan, lambda: -nan()),
    "zero": (lambda: float("0"), lambda: float("-0")),
    "complex": (lambda: complex(nan(), 1), lambda: complex(nan(), 2)),
    "imaginary": (lambda: complex(1, nan()), lambda: complex(1, -nan())),
    "complex zero": (lambda: complex(0.0, -0.0), lambda: complex(0.0, 0.0)),
    "numpy's float": (lambda: np.float32("nan"), lambda: np.float64("nan")),
    "numpy's complex": (lambda: np.complex64(complex(nan(), 1)), lambda: np.complex64(complex(nan(), 2))),
    "time": (lambda: np.datetime64("NaT", "s"), lambda: np.datetime64("NaT", "m")),
    "dtype": (lambda: np.dtype("int32"), lambda: np.dtype("float32")),
    "name": (lambda: np.dtype("l"), lambda: np.dtype("q")),
    "order": (lambda: np.dtype("<i4"), lambda: np.dtype(">i4")),
    "record": (lambda: np.dtype([("a", "i4"), ("b", "i4")]), lambda: np.dtype([("a", "i4"), ("b", "i4")], align=True)),
    "record of names": (lambda: np.dtype([("a", "l")]), lambda: np.dtype([("a", "q")])),
    "subarray": (lambda: np.dtype(("l", (2,))), lambda: np.dtype(("q", (2,)))),
    "metadata": (lambda: np.dtype("int32"), lambda: np.dtype("int32", metadata={"a": 1})),
    "metadata inside": (lambda: np.dtype([("a", "i4")]), lambda: np.dtype([("a", np.dtype("i4", metadata={"a": 1}))])),
}
WAYS: dict[str, Callable[[Any], Any]] = {
    "argument": lambda v: v,
    "list": lambda v: [v],
    "tuple": lambda v: (v, 1),
    "nested": lambda v: ((v,),),
    "dict": lambda v: {"value": v},
    "attribute": lambda v: SimpleNamespace(value=v),
    "named tuple": lambda v: Pair(v, 1),
    "global dict": lambda v: HELD.update(value=v),
    "global": lambda v: globals().update(VALUE=v),
}


def found(way: str, given: Any) -> Any:
    if way == "argument":
        return given
    if way in ("list", "tuple"):
        return given[0]
    if way == "nested":
        return given[0][0]
    if way == "dict":
        return given["value"]
    if way == "global dict":
        return HELD["value"]
    return VALUE if way == "global" else given.value


def shown(value: Any) -> Any:
    """What a program may see of it."""
    if isinstance(value, np.dtype):
        return value.char, value.str, value.isalignedstruct, str(value.metadata), str(value.fields), str(value.subdtype)
    if isinstance(value, np.generic):
        return str(value.dtype), value.tobytes()
    return repr(value), np.complex128(value).tobytes() if isinstance(value, (float, complex)) else value.bits


def differs(value: Any) -> Any:
    """What compiled code computes of it."""
    if isinstance(value, np.dtype):
        return value.char, value.str, value.isalignedstruct, value.metadata is None, value.fields is None
    if isinstance(value, (float, complex)):
        return value != value, repr(value)
    return repr(value)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", CONSTANTS)
def test_each_is_told_from_what_it_is_not_and_known_again(name: str, way: str) -> None:
    def fn(x, given):
        value = found(way, given)
        return x + 1, value, differs(value)

    compiled, x = tinycompile.compile(fn, backend="eager"), torch.ones(2)
    for make in (*CONSTANTS[name], *CONSTANTS[name]):
        for _ in range(4):
            value = make()
            given = WAYS[way](value)
            expected = fn(x, given)
            result = compiled(x, given)
            assert torch.equal(result[0], expected[0]) and result[2] == expected[2]
            assert shown(result[1]) == shown(value)
    pieces = (compiled, *compiled.resumed.values())
    assert max(len(piece._entries) for piece in pieces) <= 4


def looks_up(x, held, key):
    return x + 1, key in held, list(held.values()), len(held)


@pytest.mark.parametrize(
    "make",
    (nan, lambda: complex(nan(), 0), lambda: np.float32("nan"), lambda: (nan(), 1), lambda: np.iinfo(np.int32)),
    ids=("float", "complex", "numpy's", "tuple", "iinfo"),
)
def test_keys_that_are_themselves_alone_need_no_new_code_in_each_call(make: Callable[[], Any]) -> None:
    compiled, x = tinycompile.compile(looks_up, backend="eager"), torch.ones(2)
    for i in range(12):
        key, other = make(), make()
        for held in ({key: 1}, {other: 2, key: 3}):
            for asked in (key, other):
                expected, result = looks_up(x, held, asked), compiled(x, held, asked)
                assert torch.equal(result[0], expected[0]) and result[1:] == expected[1:], i
    assert len(compiled._entries) <= 6


def layout(x, a):
    return x + 1, a.dtype.char, a.dtype.metadata is None, a.dtype.isalignedstruct


@pytest.mark.parametrize("name", ("dtype", "name", "order", "record", "record of names", "metadata", "metadata inside"))
def test_arrays_of_dtypes_that_equal_each_other(name: str) -> None:
    compiled, x = tinycompile.compile(layout, backend="eager"), torch.ones(2)
    for make in (*CONSTANTS[name], *CONSTANTS[name]):
        for _ in range(3):
            a = np.zeros(3, make())
            expected, result = layout(x, a), compiled(x, a)
            assert torch.equal(result[0], expected[0]) and result[1:] == expected[1:]
    assert len(compiled._entries) <= 4


def test_what_dtypes_say() -> None:
    plain, told = np.dtype("i4"), np.dtype("i4", metadata={"a": 1})
    assert plain == told and facts_of(plain) != facts_of(told)
    assert has_metadata(np.dtype((told, (2,)))) and has_metadata(np.dtype([("a", told)])) and not has_metadata(plain)
    assert facts_of(np.dtype([("a", plain)])) == facts_of(np.dtype([("a", "i4")]))


def test_what_is_itself_alone() -> None:
    for key in (nan(), complex(0, nan()), np.float64("nan"), np.datetime64("NaT"), np.iinfo(np.int8), (1, (nan(),))):
        assert is_itself_alone(key)
    for key in (1.0, 2j, "a", None, np.float64(1), (1, 2), int, np.dtype("i4")):
        assert not is_itself_alone(key)
