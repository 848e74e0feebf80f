"""What guards and messages say of values never asks the program's ``__repr__``."""

from __future__ import annotations

import enum
from typing import Any

import numpy as np
import pytest
import torch

from tinycompile.api import CompiledFunction
from tinycompile.options import Options

pytestmark = pytest.mark.pure


def refuse(self: Any) -> str:
    raise AssertionError("asked for a text")


TEXTS = {"__repr__": refuse, "__str__": refuse}


class Refusing(type):
    __repr__ = __str__ = refuse


def of(base: type, *args: Any) -> Any:
    return type(f"Own{base.__name__}", (base,), TEXTS)(*args)


class Word(enum.Enum):
    A = of(object)
    __repr__ = __str__ = refuse  # type: ignore[assignment]


class Plain(enum.Enum):
    A = of(object)


VALUES = [
    of(int, 3), of(float, 3), of(str, "v"), of(bytes, b"v"), of(complex, 1), of(list, [1]), of(dict, {1: 2}), of(tuple, (1,)),
    of(set, [1]), of(object), of(np.float64, 2), Word.A, Plain.A, Refusing("Cls", (), {}), Refusing("Cls", (), {})(),
]  # fmt: skip


def same(a: Any, b: Any) -> bool:
    """One object; a number or a tuple may be an equal one, as the rebuilt code makes it."""
    return a is b or (type(a) is type(b) and type(a) in (float, tuple) and a == b)


class Holder:
    v: Any = None


@pytest.mark.parametrize("value", VALUES, ids=lambda v: type(v).__name__)
@pytest.mark.parametrize("first", [1, 1.5, "s", None, (1,), [1]], ids=repr)
def test_no_text_is_asked(value: Any, first: Any) -> None:
    holder = Holder()
    runs = {
        "an attribute": (lambda x, v: (x + 1, holder.v), lambda v: v),
        "an argument": (lambda x, v: (x + 1, v), lambda v: v),
        "in a dict": (lambda x, v: (x + 1, v["k"]), lambda v: {"k": v}),
        "in a list": (lambda x, v: (x + 1, v[0]), lambda v: [v]),
        "a default": (lambda x, v, d=value: (x + 1, d), lambda v: v),
    }
    x = torch.ones(2)
    for name, (run, made) in runs.items():
        compiled = CompiledFunction(run, Options(backend="eager"))
        for v in (first, value, first):
            holder.v = v
            assert same(compiled(x, made(v))[1], run(x, made(v))[1]), name
        assert all(str(recompile) for recompile in compiled.recompiles)


@pytest.mark.parametrize("value", [v for v in VALUES if not isinstance(v, (list, dict, set))], ids=lambda v: type(v).__name__)
def test_no_text_of_a_key_is_asked(value: Any) -> None:
    compiled = CompiledFunction(lambda x, d: (x + 1, [*d]), Options(backend="eager"))
    members = CompiledFunction(lambda x, d: (x + 1, 1 in d), Options(backend="eager"))
    for key in (1, value, ("a", value), 2.5):
        assert same(compiled(torch.ones(2), {key: 1})[1][0], key)
        assert members(torch.ones(2), {key})[1] is bool(key == 1)
