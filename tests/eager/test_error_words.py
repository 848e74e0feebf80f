"""What torch refuses is refused in torch's words: every record's samples with other dtypes, sizes and numbers, by every name."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.eager.test_spellings import outcome
from tests.lower.support import leaves
from tests.ops.materialize import arguments, specs_in
from tests.ops.test_wrong_calls import _edited
from tinycompile.eager.tensor import Tensor, from_torch
from tinycompile.ops import table
from tinycompile.ops.record import OPS, Op, TensorSpec

pytestmark = [pytest.mark.pure, pytest.mark.filterwarnings("ignore")]

Call = tuple[tuple[Any, ...], dict[str, Any]]
NUMBERS = (-9, -1, 0, 7, 1.5, None)
# Torch reads past what it was given there, or computes with it.
LEFT_OUT = {"scaled_dot_product_attention", "empty_like"}


def ours(value: Any) -> Any:
    """Our tensors for torch's, also in lists."""
    if isinstance(value, torch.Tensor):
        return from_torch(value)
    return type(value)(map(ours, value)) if isinstance(value, (tuple, list)) else value


def said(call: Callable[[], Any]) -> Any:
    """The error's type and words; of a result its dtypes and sizes."""
    result = outcome(call)
    if isinstance(result, Exception):
        return type(result).__name__, str(result).partition("\nException raised from")[0]
    return [(t.dtype, tuple(t.shape)) if isinstance(t, (torch.Tensor, Tensor)) else t for t in leaves(result)]


def same_words(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    theirs, named = table.resolve(name), {k: ours(v) for k, v in kwargs.items()}
    first, *rest = ours(args) or (None,)
    mine = getattr(first, name.rpartition(".")[2]) if ".Tensor." in name else functools.partial(theirs, *ours(args[:1]))
    assert said(lambda: mine(*rest, **named)) == said(lambda: theirs(*args, **kwargs)), (name, args, kwargs)


def wrong_calls(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Call]:
    """A sample with all tensors of another dtype, with one tensor of another size, and with one argument changed."""
    count = len(list(specs_in((args, tuple(kwargs.values())))))
    for dtype in ("float16", "int64", "bool", "complex64"):
        yield _edited((args, kwargs), iter([lambda spec, dtype=dtype: replace(spec, dtype=dtype)] * count))
    for i in range(count):
        larger: Any = lambda spec: TensorSpec((*spec.shape, 3), spec.dtype, fill=spec.fill)  # noqa: E731
        yield _edited((args, kwargs), iter([larger if j == i else None for j in range(count)]))
    for i, arg in enumerate(args):
        numbers = type(arg) is tuple and all(type(n) is int for n in arg)
        if type(arg) is int or numbers:
            for n in NUMBERS:
                yield (*args[:i], (n, *arg[1:]) if numbers else n, *args[i + 1 :]), kwargs
    yield args[:-1], kwargs
    yield (*args, 1), kwargs
    yield args, {**kwargs, "nonsense": 1}


def names(op: Op) -> list[str]:
    """Functions and methods; of operators ``~`` alone, which no other object is asked about."""
    return [
        n for n in op.functions if n.startswith("torch") and ("__" not in n or n.endswith("__invert__")) and table.resolve(n)
    ]


@pytest.mark.parametrize("op", [op for op in OPS.values() if names(op) and op.name not in LEFT_OUT], ids=lambda op: op.name)
def test_every_record(op: Op) -> None:
    for sample in list(op.samples())[:1]:
        for args, kwargs in wrong_calls(tuple(sample.args), dict(sample.kwargs)):
            for name in names(op):
                plain = "__" not in name or not kwargs
                if plain and (any(isinstance(a, TensorSpec) for a in args[:1]) or ".Tensor." not in name):
                    same_words(name, arguments(args), arguments(kwargs))
