"""A result in memory that a dead value had is a tensor of its own, as eager's is: no view, with a storage of its size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tinycompile


def _seen(t: torch.Tensor) -> tuple[Any, ...]:
    """What a program can see of how a tensor lies in memory; it is detached in place, which torch refuses of views."""
    found = t._is_view(), t.storage_offset(), t.stride(), t.untyped_storage().nbytes(), t._base is None
    return *found, t.detach_().is_leaf


PROGRAMS: dict[str, Callable[[Any], tuple[torch.Tensor, ...]]] = {
    "a chain of softmaxes": lambda x: (((x.softmax(0).softmax(1) * 2).cumsum(0).cumsum(1) + 1).softmax(0),),
    "one of two": lambda x: ((s := x.cumsum(0).cumsum(1).cumsum(0)).sum(0), s.cumsum(1).softmax(0)),
    "between library calls": lambda x: ((x.cumsum(0).cumsum(1).softmax(0) @ x).relu(),),
    "a turned one": lambda x: (x.t().cumsum(0).cumsum(1).cumsum(0).cumsum(1).t().contiguous(),),
    "a part that is copied": lambda x: (x.cumsum(0).cumsum(1).cumsum(0).cumsum(1)[1:].clone(),),
    "of another type": lambda x: (x.cumsum(0).softmax(0).cumsum(1).softmax(1).double(),),
}


@pytest.mark.parametrize("backend", [None, "triton"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_as_eager(name: str, backend: str | None) -> None:
    x = torch.randn(16, 16)
    found = tinycompile.tinycompile(PROGRAMS[name], backend=backend)(x)
    assert [_seen(t) for t in found] == [_seen(t) for t in PROGRAMS[name](x)]


def test_memory_is_used_again() -> None:
    compiled = tinycompile.tinycompile(PROGRAMS["a chain of softmaxes"])
    compiled(torch.randn(16, 16))
    assert "# reuse" in compiled.source("wrapper")
