"""``reversed(x)`` is whatever ``__reversed__`` gives: of a tensor another tensor, which shares no memory with it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tinycompile

pytestmark = pytest.mark.pure


class Pages:
    def __init__(self, x):
        self.x = x

    def __reversed__(self):
        return [self.x, 1]


class Odd:
    def __reversed__(self):
        return 5


class Steps:
    def __init__(self, x):
        self.left = [x, x + 1]

    def __reversed__(self):
        return self

    def __iter__(self):
        return self

    def __next__(self):
        if not self.left:
            raise StopIteration
        return self.left.pop()


def written_rows(x):
    for row in reversed(x):
        row.add_(10)
    return x


def kept_rows(x):
    return [(row, row.storage_offset(), row.is_set_to(x[i])) for i, row in enumerate(reversed(x))]


def unpacked(x):
    a, *b = reversed(x)
    return a, b, type(reversed(x)), reversed(x)[0], reversed(x).shape, len(reversed(x))


def without_dims(x):
    y = x.sum()
    reversed(y).add_(1)
    return y, reversed(y) is y


def rows_without_dims(x):
    return [*reversed(x.sum())]


def own_list(x):
    pages = Pages(x)
    return reversed(pages), type(reversed(pages)), [*reversed(pages)], len(reversed(pages))


def no_iterator(x):
    return reversed(Odd()), x


def own_steps(x):
    steps = Steps(x)
    return reversed(steps) is steps, [*reversed(steps)]


def builtin_kinds(x):
    return [*reversed([x, 1])], [*reversed(range(3))], [*reversed({"a": x})], [*reversed((1, x))], next(reversed("ab")), x + 1


FUNCTIONS = [
    written_rows,
    kept_rows,
    unpacked,
    without_dims,
    rows_without_dims,
    own_list,
    no_iterator,
    own_steps,
    builtin_kinds,
]


def observed(run: Any) -> tuple[str, str]:
    x = torch.arange(6.0).view(3, 2)
    try:
        result = repr(run(x))
    except TypeError as error:
        result = repr(error)
    return result, repr(x)


@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda fn: fn.__name__)
def test_as_in_eager(fn: Any) -> None:
    whole = fn not in (rows_without_dims, kept_rows)  # which raises, or asks where a tensor lies
    compiled = tinycompile.compile(fn, backend="eager", fullgraph=whole)
    for _ in range(2):
        assert observed(compiled) == observed(fn)


def test_the_programs_own_reversed_of_tensors_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def fn(x):
        return [*reversed(x)]

    compiled = tinycompile.compile(fn, backend="eager")
    assert observed(compiled) == observed(fn)
    monkeypatch.setattr(torch.Tensor, "__reversed__", lambda self: (self, 1))
    assert observed(compiled) == observed(fn)
