"""Parts of an index that are rarely met: numpy arrays of no dims, more than one ``...``, sequences of nothing, odd bounds of
slices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from tinycompile.api import CompiledFunction
from tinycompile.options import Options

pytestmark = pytest.mark.pure
I = torch.arange(2)  # noqa: E741
ONE_ELLIPSIS: dict[str, Any] = {
    "array": np.array(1),
    "array from the end": np.array(-1, dtype=np.int8),
    "array out of bounds": np.array(9),
    "in a tuple": (np.array(0),),
    "before a number": (np.array(0), 1),
    "behind one": (1, np.array(0)),
    "behind a slice": (slice(None), np.array(1)),
    "behind an ellipsis": (..., np.array(1)),
    "behind None": (None, np.array(1)),
    "with an array": (np.array(1), np.array([0, 1])),
    "behind an array": (np.array([0, 1]), np.array(1)),
    "with a tensor": (I, np.array(1)),
}
OTHERS: dict[str, Any] = {
    "bytes": np.array(1, dtype=np.uint8),
    "boolean": np.array(True),
    "float": np.array(1.0),
    "slice": slice(np.array(0), np.array(1)),
    "two": (..., ...),
    "three": (..., ..., ...),
    "around a number": (..., 0, ...),
    "before a number too many": (..., ..., 0),
    "behind a number": (0, ..., ...),
    "around None": (..., None, ...),
    "around a tensor": (..., I, ...),
    "behind a tensor": (I, ..., ...),
    "around a slice": (..., slice(None), ...),
    "nothing left": (0, 0, 0, ..., ...),
}
EMPTY: dict[str, Any] = {  # sequences of no numbers, which are integers to torch
    "list": [],
    "tuple in a tuple": ((),),
    "in a tuple": ([],),
    "behind a full slice": (slice(None), []),
    "behind a slice": (slice(1, None), []),
    "two lists": ([], []),
    "before a number ": ([], 0),
    "behind ...": (..., []),
    "behind a None": (None, []),
    "range": range(0),
    "tensor of floats": torch.tensor([]),
    "tensor of ints": torch.tensor([], dtype=torch.long),
    "array of floats": np.array([]),
    "array of ints": np.array([], dtype=np.int64),
    "list in a list": [[]],
}
BOUNDS: dict[str, Any] = {  # of slices: booleans, and ints that are no C integers
    "False": slice(False, None),
    "True": slice(None, True),
    "both": (slice(False, True), slice(None, None, True)),
    "too big": slice(None, 2**63),
    "far too big": slice(-(2**65), 2**64),
    "a big step": slice(None, None, 2**70),
    "the biggest": slice(-(2**63), 2**63 - 1),
    "behind a number": (0, slice(None, 2**63)),
}
KEYS = ONE_ELLIPSIS | OTHERS | EMPTY | BOUNDS


def read(x: Any, key: Any) -> Any:
    return x[key]


def read_and_written(x: Any, key: Any) -> Any:
    y = x[key]
    y.add_(1)
    return x * 1, y


def assigned(x: Any, key: Any) -> Any:
    x[key] = 5
    return x * 1


def assigned_a_tensor(x: Any, key: Any) -> Any:
    x[key] = x[0, 0, 0]
    return x * 1


def added(x: Any, key: Any) -> Any:
    x[key] += 1
    return x * 1


def answer(fn: Callable[..., Any], key: Any) -> Any:
    x = torch.arange(24.0).reshape(2, 3, 4)
    try:
        result = fn(x, key)
    except (IndexError, TypeError, RuntimeError) as error:
        return type(error), str(error), x.tolist()
    results = result if isinstance(result, tuple) else (result,)
    return [(r.shape, r.stride(), r.tolist()) for r in results], x.tolist()


def test_a_slice_up_to_what_is_written() -> None:
    def written(x: Any, n: Any) -> Any:
        x[:n].add_(1)
        x[n:] = 7
        return x

    compiled = CompiledFunction(written, Options(backend="eager"))
    for n in (2**63, True, 2**63 - 1, False, 1, -(2**64)):
        assert answer(compiled, n) == answer(written, n)


@pytest.mark.filterwarnings("ignore:indexing with dtype torch.uint8", "ignore:Truncating the start", "ignore:Using a non-tuple")
@pytest.mark.parametrize("fn", (read, read_and_written, assigned, assigned_a_tensor, added))
@pytest.mark.parametrize("name", KEYS)
def test_as_eager(name: str, fn: Callable[..., Any]) -> None:
    compiled, key = CompiledFunction(fn, Options(backend="eager")), KEYS[name]
    for _ in range(2):
        assert answer(compiled, key) == answer(fn, key)
    if fn is read and name in ONE_ELLIPSIS and name != "array out of bounds":
        assert not compiled.breaks


def test_an_array_that_holds_another_number() -> None:
    compiled, at = CompiledFunction(read, Options(backend="eager")), np.array(0)
    for number in (0, 1, -1, 1, 0):
        at[()] = number
        assert answer(compiled, at) == answer(read, at)


PUT: dict[str, Callable[..., Any]] = {
    "function": lambda x, at, v: torch.index_put(x, at, v),
    "method": lambda x, at, v: x.index_put(at, v),
    "by name": lambda x, at, v: x.index_put(indices=at, values=v),
    "in place": lambda x, at, v: x.clone().index_put_(at, v),
    "function in place": lambda x, at, v: torch.index_put_(x.clone(), at, v),
    "aten": lambda x, at, v: torch.ops.aten.index_put(x, at, v),
    "aten in place": lambda x, at, v: torch.ops.aten.index_put_(x.clone(), at, v),
}


@pytest.mark.parametrize("name", PUT)
def test_whole_dims_are_left_out_in_calls_of_aten_alone(name: str) -> None:
    def told(fn: Callable[..., Any], at: Any, v: Any) -> Any:
        try:
            return fn(torch.zeros(4, 5), at, v).tolist()
        except (TypeError, RuntimeError) as error:
            return type(error), str(error)

    i = torch.tensor([0, 1])
    for at, v in (
        ((None, i), torch.ones(4, 2)),
        ([i, None], torch.ones(2, 5)),
        ((i,), torch.ones(2, 5)),
        ((), torch.ones(4, 5)),
    ):
        assert told(CompiledFunction(PUT[name], Options(backend="eager")), at, v) == told(PUT[name], at, v)
