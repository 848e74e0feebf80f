"""Calls that mix devices where one is registered: torch's words, or torch's results. The target may be elsewhere than operands."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import tinycompile as tc
from tests.eager.device_support import registered
from tests.eager.numpy_device import NAME
from tinycompile.base.device import Device

pytestmark = pytest.mark.pure

PLACES: dict[str, Callable[[tuple[int, ...]], Any]] = {
    "torch's": torch.ones,
    "cpu": tc.ones,
    "there": lambda size: tc.ones(size, device=NAME),
    "at index 1": lambda size: tc.ones(size, device=f"{NAME}:1"),
}
BINARY: dict[str, Callable[..., Any]] = {
    "a kernel": torch.add,
    "no kernel": torch.atan2,
    "no record": torch.nextafter,
    "parts": torch.ldexp,
}
UNARY: dict[str, Callable[..., Any]] = {
    "a kernel": torch.neg,
    "no kernel": torch.sinh,
    "a sum": lambda x, out: torch.sum(x, -1, out=out),
    "no record": lambda x, out: torch.logcumsumexp(x, 0, out=out),
    "a list": lambda x, out: torch.stack([x, x], out=out),
    "several": lambda x, out: torch.max(x, -1, out=(out, torch.empty_like(out, dtype=torch.int64)))[0],
}
WRITES: dict[str, Callable[..., Any]] = {
    "a kernel": lambda x, y: x.add_(y),
    "no kernel": lambda x, y: x.atan2_(y),
    "no record": lambda x, y: x.nextafter_(y),
    "parts": lambda x, y: x.addcmul_(y, y),
}
ANYWHERE: dict[str, Callable[..., Any]] = {"copy_": lambda x, y: x.copy_(y), "fill_": lambda x, y: x.fill_(y)}


@pytest.fixture(autouse=True)
def device() -> Iterator[None]:
    with registered():
        yield


def words(targets: list[Any], read: list[Any]) -> str | None:
    """What is said as torch says it of CUDA: the first place that is no CPU is expected. CPU scalars that are read may be
    anywhere, unless everything that is read is one."""
    wide = [t for t in read if t.shape or t.device.type != "cpu"] or read
    devices = [Device.of(t.device) for t in (*targets, *wide)]
    common = next((d for d in devices if d.type != "cpu"), devices[0])
    other = next((d for d in devices if d != common), None)
    return None if other is None else f"same device, but found at least two devices, {common} and {other}!"


def check(call: Callable[[], Any], targets: list[Any], read: list[Any], as_a_pair: bool = False) -> None:
    expected = words(targets, read)
    if expected is None:
        assert call() is targets[0]
        return
    before = [(t.tolist(), t._version) for t in targets]
    pair = words([], read) if as_a_pair else None  # operands that differ are told of first, in their order
    with pytest.raises(RuntimeError) as caught:
        call()
    said = str(caught.value)
    assert expected in said or "same device, but found at least two devices" in said and pair is not None
    assert [(t.tolist(), t._version) for t in targets] == before


SIZES = [((2, 2), (2, 2)), ((2, 2), ()), ((), (2, 2)), ((), ())]


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("out", PLACES)
def test_out_of_two(name: str, out: str) -> None:
    for (a, b), (one, other) in itertools.product(itertools.product(PLACES, PLACES), SIZES):
        read = [PLACES[a](one), PLACES[b](other)]
        target = PLACES[out](torch.broadcast_shapes(one, other))
        if not all(isinstance(t, torch.Tensor) for t in (*read, target)):
            check(lambda read=read, target=target: BINARY[name](*read, out=target), [target], read, True)


@pytest.mark.parametrize("name", UNARY)
@pytest.mark.parametrize("out", PLACES)
def test_out_of_one(name: str, out: str) -> None:
    for a, size in itertools.product(PLACES, [(2, 2), ()]):
        x = PLACES[a](size)
        made = UNARY[name](torch.ones(size), out=torch.empty(0)).shape
        target = PLACES[out](tuple(made))
        if not (isinstance(x, torch.Tensor) and isinstance(target, torch.Tensor)):
            call = UNARY[name]
            if words([target], [x]) is None:
                assert call(x, out=target) is target
                assert target.tolist() == call(torch.ones(size), out=torch.empty(0)).tolist()
            else:
                check(lambda call=call, x=x, target=target: call(x, out=target), [target], [x])


@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize("into", PLACES)
def test_in_place(name: str, into: str) -> None:
    for a, (one, other) in itertools.product(PLACES, SIZES):
        target, read = PLACES[into](one), PLACES[a](other)
        if torch.broadcast_shapes(one, other) == one and not (into == a == "torch's"):
            check(lambda x=target, y=read: WRITES[name](x, y), [target], [target, read], True)


@pytest.mark.parametrize("name", ANYWHERE)
def test_what_copies_takes_tensors_from_anywhere(name: str) -> None:
    for a, b in itertools.product(PLACES, PLACES):
        x, y = PLACES[a]((2,)), PLACES[b](()) + 4
        assert ANYWHERE[name](x, y) is x and x.tolist() == [5.0, 5.0]
