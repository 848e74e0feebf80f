"""Strides of empty results: dims of 0 make ties, which torch's iterator breaks in ways of its own."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F

from tinycompile.eager.backends import meta_of
from tinycompile.ops.table import bind

pytestmark = pytest.mark.pure

SHAPES = [s for rank in (1, 2, 3) for s in itertools.product((0, 1, 2), repeat=rank) if 0 in s]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_strides_are_torchs(shape: tuple[int, ...]) -> None:
    x, last, first, zero = torch.ones(shape), torch.ones(shape[-1:]), torch.ones(shape)[:1], torch.tensor(1.0)
    calls = [
        *((fn, (x, other)) for fn in (torch.mul, torch.add) for other in (x, last, first, zero, 2)),
        (torch.where, (x > 0, x, last)),
        (torch.exp, (x,)),
        (F.rms_norm, (x, shape[-1:], last)),
        (F.rms_norm, (x, shape[-1:])),
        (F.rms_norm, (x, shape)),
    ]
    for fn, args in calls:
        try:
            want = fn(*args)
        except RuntimeError:  # shapes that do not broadcast
            continue
        bound = bind(fn, args)
        assert bound is not None
        assert bound.op.meta(*map(meta_of, bound.args)).strides == want.stride(), (fn, args)
