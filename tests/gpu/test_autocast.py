"""Autocast on a GPU, whose policies are others than a CPU's: every record's samples, on our tensors and captured."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tinycompile as tc
from tests.eager.test_autocast import UNDEFINED, lowered, outcome
from tests.lower.support import bind_sample, leaves
from tinycompile.base.device import Device
from tinycompile.dispatch import dispatcher
from tinycompile.ops.record import OPS, Op

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]

RANDOM = {"dropout", "native_dropout", "rand_like", "randn_like", "bernoulli", "multinomial"}


def there(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.cuda()
    if isinstance(value, Device):
        return torch.device("cuda")
    return tuple(map(there, value)) if isinstance(value, tuple) else value


def ours(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return tc.from_torch(value)
    if isinstance(value, torch.device):
        return Device("cuda", 0)
    return tuple(map(ours, value)) if isinstance(value, tuple) else value


CALLED = {name for name, op in OPS.items() if op.functions}  # those of passes' own come into graphs behind the casts


@pytest.mark.parametrize("name", sorted(CALLED - UNDEFINED - RANDOM))
def test_dtypes_of_every_record(name: str) -> None:
    op = OPS[name]
    samples = list(op.samples())
    torch.manual_seed(0)
    for args in [there(bind_sample(op, sample)) for sample in samples[:: max(1, len(samples) // 3)]]:
        check_dtypes(op, args)


def check_dtypes(op: Op, args: tuple[Any, ...]) -> None:
    for given in (args, lowered(args), (*lowered(args[:1]), *args[1:])):
        compiled = tc.compile(lambda *args: op.eager(*args), backend="eager")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            want = outcome(lambda: op.eager(*given))  # noqa: B023  # called here and now
            found = outcome(lambda: compiled(*given)), outcome(lambda: dispatcher.call_bound(op.name, ours(given)))  # noqa: B023
        for got in found:
            if isinstance(want, Exception):
                assert isinstance(got, Exception), got
                continue
            assert not isinstance(got, Exception), got
            assert [(t.dtype, tuple(t.shape)) for t in leaves(got)] == [(t.dtype, tuple(t.shape)) for t in want]
