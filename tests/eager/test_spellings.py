"""Every record by all its names on our tensors against torch: functions, methods, operators, in place, ``out=``."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import tinycompile as tc
from tests.lower.support import bind_sample, leaves
from tinycompile.base.device import Device
from tinycompile.eager.tensor import Tensor, from_torch
from tinycompile.ops import table
from tinycompile.ops.record import OPS, Op, Sample

pytestmark = [pytest.mark.pure, pytest.mark.filterwarnings("ignore")]

FULL = os.environ.get("TINYCOMPILE_TESTS") == "full"
# No values to compare.
UNDEFINED = {"empty", "empty_like"}


def mapped(value: Any, fn: Callable[[torch.Tensor], Any]) -> Any:
    if isinstance(value, torch.Tensor):
        return fn(value)
    if isinstance(value, Device):
        return value.torch()
    return tuple(mapped(v, fn) for v in value) if isinstance(value, tuple) else value


def outcome(fn: Callable[[], Any]) -> Any:
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return fn()
        except Exception as error:  # noqa: BLE001  # whatever torch raises, we must
            return error


def assert_equal(got: Any, want: Any) -> None:
    if isinstance(want, Exception):
        assert isinstance(got, type(want)), got
        return
    assert not isinstance(got, Exception), got
    for g, w in zip(leaves(got), leaves(want), strict=True):
        if not isinstance(w, torch.Tensor):
            assert g == w
            continue
        assert isinstance(g, Tensor) and (g.dtype, tuple(g.shape), tuple(g.strides)) == (w.dtype, tuple(w.shape), w.stride())
        assert torch.equal(g.torch().nan_to_num(), w.nan_to_num()) or torch.allclose(g.torch(), w, equal_nan=True)


def called(dotted: str, args: tuple[Any, ...]) -> Any:
    """A function of torch's, or a method of the first argument."""
    if ".Tensor." in dotted:
        if not isinstance(args[0], Tensor):
            raise TypeError("a method of no tensor")
        return getattr(args[0], dotted.rpartition(".")[2])(*args[1:])
    return table.resolve(dotted)(*args)


def samples(op: Op) -> Iterator[tuple[Sample, tuple[Any, ...]]]:
    for i, sample in enumerate(op.samples()):
        if i and not FULL:
            return
        torch.manual_seed(0)
        yield sample, bind_sample(op, sample)


def positional(op: Op, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Without trailing defaults, so that every spelling takes them."""
    defaults = op.schema.defaults
    count = len(args)
    while count and args[count - 1] is defaults[count - 1] or (count and args[count - 1] == defaults[count - 1]):
        if isinstance(args[count - 1], torch.Tensor):
            break
        count -= 1
    return args[:count]


@pytest.mark.parametrize("name", sorted(OPS.keys() - UNDEFINED))
def test_by_every_name(name: str) -> None:
    op = OPS[name]
    for _, bound in samples(op):
        args = positional(op, bound)
        for dotted in op.functions:
            fn = table.resolve(dotted)
            if fn is None or dotted.startswith(("operator.i", "torch.Tensor.__i")):
                continue
            want = outcome(lambda: fn(*mapped(args, torch.clone)))  # noqa: B023  # called here and now
            got = outcome(lambda: called(dotted, mapped(args, lambda t: from_torch(t.clone()))))  # noqa: B023
            if isinstance(want, torch.Tensor) and isinstance(got, torch.Tensor):
                continue  # no tensor among the arguments: a factory of torch's
            assert_equal(got, want)


@pytest.mark.parametrize("name", sorted(OPS.keys() - UNDEFINED))
def test_in_place_and_out(name: str) -> None:
    op = OPS[name]
    spelled = [d for d in op.functions if d.startswith("torch.")]
    for _, bound in samples(op):
        args = positional(op, bound)
        if not args or not isinstance(args[0], torch.Tensor):
            return
        for dotted in spelled:
            written = table.resolve(f"{dotted}_")
            if written is not None:
                first, mine = args[0].clone(), from_torch(args[0].clone())
                want = outcome(lambda: written(first, *mapped(args[1:], torch.clone)))  # noqa: B023
                rest = mapped(args[1:], lambda t: from_torch(t.clone()))
                got = outcome(lambda: called(f"{dotted}_", (mine, *rest)))  # noqa: B023
                assert_equal(got, want)
                assert isinstance(want, Exception) or got is mine
            fn = table.resolve(dotted)
            plain = outcome(lambda: fn(*mapped(args, torch.clone)))  # noqa: B023
            if not isinstance(plain, torch.Tensor) or ".Tensor." in dotted:
                continue
            out, mine = torch.empty(0, dtype=plain.dtype), tc.empty(0, dtype=plain.dtype)
            want = outcome(lambda: fn(*mapped(args, torch.clone), out=out))  # noqa: B023
            if not isinstance(want, Exception):
                got = outcome(lambda: fn(*mapped(args, lambda t: from_torch(t.clone())), out=mine))  # noqa: B023
                assert_equal(got, want)
                assert got is mine


def test_functions_of_the_module() -> None:
    x = tc.randn(3, 4)
    assert torch.equal(tc.softmax(x, 1).torch(), torch.softmax(x.torch(), 1)) and isinstance(tc.gelu(x), Tensor)
    named = [n for n in OPS if hasattr(torch, n) or hasattr(F, n)]
    assert [n for n in named if not hasattr(tc, n)] == []
    assert [n for n in OPS if hasattr(torch.Tensor, n) and not hasattr(Tensor, n)] == []
    assert tc.add is torch.add and not hasattr(tc, "no_such_function") and not hasattr(tc, "save")
    with pytest.raises(AttributeError, match="module 'tinycompile' has no attribute"):
        tc.nothing  # noqa: B018
