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


def of_torch(op: Op) -> Iterator[tuple[Any, str, tuple[Any, ...]]]:
    """Each of torch's functions and methods that the record has, with its name and a sample's arguments, a tensor first."""
    for _, args in samples(op):
        for dotted in op.functions:
            fn = table.resolve(dotted)
            if fn is not None and dotted.startswith("torch.") and args and isinstance(args[0], torch.Tensor):
                yield fn, dotted, args


@pytest.mark.parametrize("name", sorted(OPS.keys() - UNDEFINED))
def test_by_every_name(name: str) -> None:
    op = OPS[name]
    for _, bound in samples(op):
        args = positional(op, bound)
        for dotted in op.functions:
            fn = table.resolve(dotted)
            if fn is None or dotted.startswith(("operator.i", "torch.Tensor.__i")):
                continue
            if ".Tensor." in dotted and args and not isinstance(args[0], torch.Tensor):
                continue  # a method of no tensor
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


@pytest.mark.parametrize("name", sorted(OPS.keys() - UNDEFINED))
def test_arguments_of_wrong_types(name: str) -> None:
    """Each argument in turn is None, a bool, a text, a fraction: taken, or refused, as torch does."""
    op = OPS[name]
    for fn, dotted, args in of_torch(op):
        for at, other in ((i, v) for i in range(1, len(args)) for v in (None, True, "x", 1.5)):
            if isinstance(args[at], torch.Tensor) and other is not None:
                continue
            wrong = (*args[:at], other)
            want = outcome(lambda: fn(*mapped(wrong, torch.clone)))  # noqa: B023
            got = outcome(lambda: called(dotted, mapped(wrong, lambda t: from_torch(t.clone()))))  # noqa: B023
            if want is not NotImplemented and not dotted.startswith("torch.Tensor.__i"):
                assert_equal(got, want)


@pytest.mark.parametrize("name", sorted(OPS.keys() - UNDEFINED))
def test_all_arguments_by_position(name: str) -> None:
    """As many as the record has, and each count below: what torch refuses has no record call."""
    op = OPS[name]
    for fn, dotted, args in of_torch(op):
        for count in range(1, len(args) + 1):
            bound = outcome(lambda: table.bind(fn, args[:count]))  # noqa: B023
            if bound is not None and not isinstance(bound, Exception):
                want = outcome(lambda: fn(*mapped(args[:count], torch.clone)))  # noqa: B023
                assert not isinstance(want, TypeError), (dotted, count, want)


NAMED = {"dim", "dims", "shifts"}


@pytest.mark.parametrize("name", sorted(n for n, op in OPS.items() if NAMED & {a.name for a in op.schema.args}))
def test_dims_of_every_kind(name: str) -> None:
    """Lists, empty and doubled ones, numbers, what is out of range; on our tensors and captured."""
    op = OPS[name]
    named = [i for i, a in enumerate(op.schema.args) if a.name in NAMED]
    for fn, dotted, args in of_torch(op):
        for at, dims in ((i, d) for i in named for d in ((), (0,), (0, 0), (5,), 0, -1, 5, True)):
            given = (*args[:at], dims, *positional(op, args)[at + 1 :])
            want = outcome(lambda: fn(*mapped(given, torch.clone)))  # noqa: B023
            got = outcome(lambda: called(dotted, mapped(given, lambda t: from_torch(t.clone()))))  # noqa: B023
            assert_equal(got, want)
            if dims == () or isinstance(want, Exception):
                compiled = tc.compile(lambda *xs: fn(*xs), backend="eager")  # noqa: B023
                found = outcome(lambda: compiled(*mapped(given, torch.clone)))  # noqa: B023
                assert_equal(mapped(found, from_torch), want)


X = torch.arange(32.0).reshape(2, 1, 4, 4)
BY_HAND: dict[str, Callable[[Any, Any], Any]] = {  # calls that we bind by hand, with an argument of every type
    "dropout": lambda x, v: F.dropout(x, 0.0, v),
    "dropout, p": lambda x, v: F.dropout(x, v, False),
    "batch_norm": lambda x, v: F.batch_norm(x, x[0, 0, 0, :1].clone(), x[0, 0, 0, 1:2].clone(), training=v),
    "batch_norm, momentum in training": lambda x, v: F.batch_norm(x, x[0, 0, 0, :1].clone(), None, None, None, True, v),
    "batch_norm, momentum of both": lambda x, v: F.batch_norm(
        x, *(x[0, 0, 0, i : i + 1].clone() for i in (0, 1)), None, None, True, v
    ),
    "batch_norm, eps in training": lambda x, v: F.batch_norm(x, None, None, training=True, eps=v),
    "batch_norm, momentum": lambda x, v: F.batch_norm(x, x[0, 0, 0, :1].clone(), x[0, 0, 0, 1:2].clone(), momentum=v),
    "squeeze": lambda x, v: x.squeeze(dim=v),
    "squeeze_": lambda x, v: x.squeeze_(v),
    "prod": lambda x, v: x.prod(dim=v),
    "std": lambda x, v: x.std(dim=2, unbiased=v),
    "var_mean": lambda x, v: torch.var_mean(x, 2, v),
    "norm": lambda x, v: torch.norm(x, 2, 2, v),
    "linalg.norm": lambda x, v: torch.linalg.norm(x, 2, 2, v),
    "repeat_interleave": lambda x, v: x.repeat_interleave(2, dim=1, output_size=v),
    "max_pool2d": lambda x, v: F.max_pool2d(x, 2, return_indices=v),
    "max": lambda x, v: x.max(v),
    "softmax": lambda x, v: F.softmax(x, v),
    "round": lambda x, v: torch.round(x, decimals=v),
    "clamp": lambda x, v: x.clamp(v),
    "where": lambda x, v: torch.where(x > 3, v, x),
    "any": lambda x, v: x.any(v, keepdim=True),
    "flip": lambda x, v: torch.flip(x, v),
    "reshape": lambda x, v: torch.reshape(x, v),
    "reshape, two": lambda x, v: torch.reshape(x, 16, v),
    "keepdim alone: sum": lambda x, v: x.sum(keepdim=v),
    "keepdim alone: mean": lambda x, v: x.mean(keepdim=v),
    "keepdim alone: nansum": lambda x, v: x.nansum(keepdim=v),
    "keepdim alone: any": lambda x, v: x.any(keepdim=v),
    "keepdim alone: var": lambda x, v: x.var(unbiased=True, keepdim=v),
    "unbiased and keepdim": lambda x, v: x.std(True, v),
}


@pytest.mark.parametrize("value", [None, True, 1, 2, "x", 1.5], ids=repr)
@pytest.mark.parametrize("name", list(BY_HAND))
def test_types_of_what_is_bound_by_hand(name: str, value: Any) -> None:
    want, got = (outcome(lambda: BY_HAND[name](x, value)) for x in (X.clone(), from_torch(X.clone())))  # noqa: B023
    assert_equal(got, want)
    found = outcome(lambda: tc.compile(BY_HAND[name], backend="eager")(X.clone(), value))
    assert_equal(mapped(found, from_torch), want)
