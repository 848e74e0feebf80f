"""Every record on tensors laid out in other ways, and on a device of one's own: values, dtypes, strides and device as torch's."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import tinycompile
from tests.eager import numpy_device
from tests.eager.test_vmap import LEFT_OUT, close, has_tensors, mapped, outcome
from tests.lower.support import bind_sample, leaves
from tinycompile.base.device import Device
from tinycompile.base.errors import FallbackWarning
from tinycompile.base.meta import TensorMeta
from tinycompile.dispatch import dispatcher
from tinycompile.eager.backends import meta_of
from tinycompile.eager.custom_device import forget_device
from tinycompile.eager.tensor import Tensor, from_torch
from tinycompile.ops.record import OPS, Op

pytestmark = [pytest.mark.cpu, pytest.mark.filterwarnings("ignore")]


def with_gaps(t: torch.Tensor) -> torch.Tensor:
    """Every second element of its memory."""
    return t if not t.ndim else torch.stack([t, t], -1)[..., 0]


def reversed_dims(t: torch.Tensor) -> torch.Tensor:
    """Column-major."""
    turned = tuple(reversed(range(t.ndim)))
    return t.permute(turned).clone(memory_format=torch.contiguous_format).permute(turned)


def expanded(t: torch.Tensor) -> torch.Tensor:
    """One row (of the last dim but one, where there is one) for all."""
    return t[..., :1, :].expand(t.shape) if t.ndim > 1 and t.shape[-2] else t


def channels_last(t: torch.Tensor) -> torch.Tensor:
    return t.contiguous(memory_format=torch.channels_last) if t.ndim == 4 else t


LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "with gaps": with_gaps, "dims reversed": reversed_dims, "expanded": expanded, "channels_last": channels_last,
}  # fmt: skip
# Called by formulas alone, which give it rows without gaps: torch's kernels read wrong elements of others.
DENSE_ROWS = {"attention_forward", "attention_backward"}
NAMES = sorted(
    n for n in OPS.keys() - LEFT_OUT - DENSE_ROWS if any(map(has_tensors, bind_sample(OPS[n], next(iter(OPS[n].samples())))))
)


def samples(op: Op, ranks: set[int]) -> Iterator[tuple[Any, ...]]:
    """The first sample's arguments, and the first with a tensor of each of these ranks."""
    for i, sample in enumerate(op.samples()):
        torch.manual_seed(0)
        args = bind_sample(op, sample)
        found = {t.ndim for t in leaves(args) if isinstance(t, torch.Tensor)} & ranks
        if not i or found:
            ranks -= found
            yield args


def call(op: Op, args: tuple[Any, ...], place: Callable[[torch.Tensor], Any]) -> Any:
    return outcome(lambda: dispatcher.call_bound(op.name, tuple(mapped(a, place) for a in args)))


def check(op: Op, args: tuple[Any, ...], got: Any, values: Callable[[Any], torch.Tensor | None]) -> None:
    theirs = [a.torch() if isinstance(a, Device) else a for a in args]
    torch.manual_seed(0)
    want = outcome(lambda: op.eager(*theirs))
    if isinstance(want, Exception):
        assert isinstance(got, type(want)), got
        return
    assert not isinstance(got, Exception), got
    for mine, t in zip(got, want, strict=True):
        assert (mine.dtype, tuple(mine.shape), mine.stride()) == (t.dtype, tuple(t.shape), t.stride()), mine.meta
        there = values(mine)
        assert there is None or close(there, t), f"{there}\n{t}"


@pytest.mark.parametrize("name", NAMES)
def test_laid_out_in_other_ways(name: str) -> None:
    """On the CPU, and what the record says of the result."""
    op = OPS[name]
    for layout in LAYOUTS.values():
        for args in samples(op, {2, 4}):
            args = tuple(mapped(a, layout) for a in args)
            torch.manual_seed(0)
            got = call(op, args, from_torch)
            check(op, args, got, lambda mine: mine.torch())
            if not isinstance(got, Exception):
                assert all(isinstance(r, Tensor) and r.is_cpu for r in got)
                _check_rule(op, args, got)


def _check_rule(op: Op, args: tuple[Any, ...], got: list[Tensor]) -> None:
    """What the record says of the results. Where a decomposition doesn't cover the arguments the call is torch's own."""
    try:
        said = op.meta(*(meta_of(a) for a in args))
    except NotImplementedError:
        return
    for meta, mine in zip([said] if isinstance(said, TensorMeta) else said, got, strict=True):
        assert (meta.dtype, meta.shape, meta.strides) == (mine.dtype, tuple(mine.shape), mine.stride()), meta


def as_it_lies(t: torch.Tensor) -> Any:
    """On a device of one's own, gaps and all: a copy alone would be without them."""
    memory = t.as_strided((t.untyped_storage().nbytes() // t.itemsize,), (1,), 0)
    return from_torch(memory).to(numpy_device.NAME).as_strided(t.shape, t.stride(), t.storage_offset())


@pytest.mark.parametrize("name", NAMES)
def test_on_a_device_of_ones_own(name: str) -> None:
    """Where there is no kernel, by the decomposition or on the CPU; the results are on the device."""
    op = OPS[name]
    numpy_device.register(None)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FallbackWarning)
            for layout in (lambda t: t, with_gaps, channels_last):
                for args in samples(op, {4}):
                    args = tuple(mapped(a, layout) for a in args)
                    torch.manual_seed(0)
                    got = call(op, args, as_it_lies)
                    check(op, args, got, lambda mine: mine.cpu().torch())
                    if not isinstance(got, Exception) and name != "to_device":
                        assert all(r.device.type == numpy_device.NAME for r in got)
    finally:
        forget_device()


@pytest.mark.parametrize("name", [n for n in NAMES if OPS[n].functions])
def test_compiled_on_a_device_of_ones_own(name: str) -> None:
    """By its generated code where that knows the ops, else op by op."""
    op = OPS[name]
    numpy_device.register()
    compiled = tinycompile.compile(lambda *args: op.eager(*args))
    try:
        for args in samples(op, {2}):
            torch.manual_seed(0)
            got = outcome(lambda: compiled(*(mapped(a, lambda t: from_torch(t).to(numpy_device.NAME)) for a in args)))  # noqa: B023
            check(op, args, got, lambda mine: mine.cpu().torch())
            if not isinstance(got, Exception) and name != "to_device":
                assert all(r.device.type == numpy_device.NAME for r in got)
    finally:
        forget_device()
