"""What torch refuses is refused in torch's words: every record's samples with other dtypes, sizes and numbers, by every name."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

import tinycompile as tc
from tests.eager.test_spellings import outcome
from tests.lower.support import leaves
from tests.ops.materialize import arguments, specs_in
from tests.ops.test_wrong_calls import _edited
from tinycompile.dispatch import dispatcher
from tinycompile.eager.tensor import Tensor, from_torch
from tinycompile.ops import table
from tinycompile.ops.gradients import differentiable_form
from tinycompile.ops.record import OPS, Op, TensorSpec

pytestmark = [pytest.mark.pure, pytest.mark.filterwarnings("ignore")]

Call = tuple[tuple[Any, ...], dict[str, Any]]
NUMBERS = (-9, -1, 0, 7, 1.5, None)
# Torch reads past what it was given there, or computes with it.
LEFT_OUT = {"scaled_dot_product_attention", "empty_like"}


def made(value: Any, fn: Callable[[torch.Tensor], Any]) -> Any:
    """Other tensors in place of torch's, also in lists."""
    if isinstance(value, torch.Tensor):
        return fn(value)
    return type(value)(made(v, fn) for v in value) if isinstance(value, (tuple, list)) else value


def followed(t: Any) -> Any:
    """On the tape, if it may be."""
    return t.requires_grad_() if t.dtype.is_floating_point else t


def said(call: Callable[[], Any]) -> Any:
    """The error's type and words; of a result its dtypes and sizes."""
    result = outcome(call)
    if isinstance(result, Exception):
        return type(result).__name__, str(result).partition("\nException raised from")[0]
    return [(t.dtype, tuple(t.shape)) if isinstance(t, (torch.Tensor, Tensor)) else t for t in leaves(result)]


def same_words(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], on_tape: bool = False) -> None:
    def bound(make: Callable[[torch.Tensor], Any]) -> Callable[[], Any]:
        given, named = made(args, make), {k: made(v, make) for k, v in kwargs.items()}
        if ".Tensor." in name and isinstance(given[0], Tensor):
            return functools.partial(getattr(given[0], name.rpartition(".")[2]), *given[1:], **named)
        return functools.partial(table.resolve(name), *given, **named)

    ours: Any = (lambda t: followed(from_torch(t))) if on_tape else from_torch
    theirs: Any = (lambda t: followed(t.detach())) if on_tape else lambda t: t
    assert said(bound(ours)) == said(bound(theirs)), (name, args, kwargs)


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


IN_PARTS = [op for op in OPS.values() if names(op) and op.name not in LEFT_OUT and differentiable_form(op) is not None]


@pytest.mark.parametrize("op", IN_PARTS, ids=lambda op: op.name)
def test_on_the_tape(op: Op) -> None:
    """Records that are run in parts there: the parts may take more than torch's function does."""
    sample = next(iter(op.samples()))
    for args, kwargs in wrong_calls(tuple(sample.args), dict(sample.kwargs)):
        given = arguments(args), arguments(kwargs)
        if any(t.dtype.is_complex for t in dispatcher.tensors_in((*given[0], *given[1].values()))):
            continue  # our tape does not follow them
        name = names(op)[0]
        if isinstance(args[:1] and args[0], TensorSpec) or ".Tensor." not in name:
            same_words(name, *given, on_tape=True)


REFUSED_WITH_GRADIENTS = {
    "integers of floats": lambda x: x.sum(dtype=torch.int32),
    "integers of some": lambda x: x.sum(1, dtype=torch.int64),
    "a gradient into integers": lambda x: torch.masked_fill(torch.ones(3, 4).long(), torch.ones(4).bool(), x.sum()),
    "a product": lambda x: x[None] @ torch.ones(3, 3),
    "a layer": lambda x: torch.nn.functional.linear(x[None], torch.ones(5, 1)),
    "a layer of doubles": lambda x: torch.nn.functional.linear(x[None], torch.ones(5, 4).double()),
}


@pytest.mark.parametrize("name", REFUSED_WITH_GRADIENTS)
def test_refused_where_gradients_are_followed(name: str) -> None:
    """Torch takes other ways where they are, and says other things."""
    x = torch.ones(3, 4)
    theirs = said(lambda: REFUSED_WITH_GRADIENTS[name](followed(x.clone())))
    assert said(lambda: REFUSED_WITH_GRADIENTS[name](followed(from_torch(x)))) == theirs
    assert isinstance(theirs[0], str)


OUT_OF_BOUNDS: dict[str, Callable[[Any, Any], Any]] = {
    "index_fill": lambda x, i: x.index_fill(0, i, 1.0),
    "index_add": lambda x, i: x.index_add(0, i, x[:1]),
    "index_copy": lambda x, i: x.index_copy(0, i, x[:1]),
    "index_select": lambda x, i: x.index_select(0, i),
    "gather": lambda x, i: x.gather(0, i[None]),
    "scatter": lambda x, i: x.scatter(0, i[None], 1.0),
    "take": lambda x, i: x.take(i),
    "embedding": lambda x, i: torch.nn.functional.embedding(i, x),
    "nll_loss": lambda x, i: torch.nn.functional.nll_loss(x[:1], i),
    "an index": lambda x, i: x[i],
}


@pytest.mark.parametrize("name", OUT_OF_BOUNDS)
def test_indices_out_of_bounds(name: str) -> None:
    """Also where the op is run in parts."""
    fn, x, i = OUT_OF_BOUNDS[name], torch.ones(4, 6), torch.tensor([99])
    theirs = said(lambda: fn(x, i))
    assert isinstance(theirs[0], str)
    assert said(lambda: fn(from_torch(x), from_torch(i))) == theirs
    assert said(lambda: fn(followed(from_torch(x.clone())), from_torch(i))) == theirs
    with pytest.raises((IndexError, RuntimeError)):
        tc.vmap(lambda x: fn(x, from_torch(i)))(from_torch(x[None].clone()))


@pytest.mark.parametrize("shape", [(3, 4, 5), (3, 2, 7)])
def test_under_vmap(shape: tuple[int, ...]) -> None:
    for fn in (torch.nn.functional.glu, lambda x: torch.pixel_shuffle(x, 2), lambda x: torch.channel_shuffle(x, 3)):
        with pytest.raises((RuntimeError, IndexError)):
            fn(torch.ones(shape[1:]))
        with pytest.raises((RuntimeError, IndexError)):
            tc.vmap(fn)(tc.ones(shape))
