"""Views that torch makes by a call (of another dtype, by strides) begin where torch began them; views of these count from there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import tinycompile

pytestmark = pytest.mark.cpu

VIEWS: dict[str, Callable[[Tensor], Any]] = {
    "dtype": lambda x: x[1:].view(torch.int32)[1:],
    "dtype, whole": lambda x: x.view(torch.int32)[1:],
    "of a result": lambda x: (x * 1)[1:].view(torch.int32)[1:],
    "by strides": lambda x: x[1:].as_strided((2,), (1,))[1:],
    "complex": lambda x: torch.view_as_complex(x.view(-1, 2)[1:])[1:],
    "and real": lambda x: torch.view_as_real(torch.view_as_complex(x.view(-1, 2)[1:])[1:])[0],
    "written": lambda x: (x[2:].view(torch.int32)[1:].zero_(), x),
    "written by strides": lambda x: x.as_strided((2, 2), (2, 1))[0].add_(100),
    "read by a kernel": lambda x: x[1:].view(torch.int32)[1:] + 0,
}


@pytest.mark.parametrize("backend", ["eager", "cpp"])
@pytest.mark.parametrize("start", [0, 4])
@pytest.mark.parametrize("name", VIEWS)
def test_as_eager(name: str, start: int, backend: str) -> None:
    theirs, ours = torch.arange(24.0), torch.arange(24.0)
    want = VIEWS[name](theirs[start : start + 16])
    got = tinycompile.compile(VIEWS[name], backend=backend)(ours[start : start + 16])
    torch.testing.assert_close(got, want)
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("backend", ["eager", "cpp"])
@pytest.mark.parametrize("source", [(3, 2), (1, 2), (2,), (1,), ()], ids=str)
@pytest.mark.parametrize("target", [(2,), (), (3, 2)], ids=str)
def test_copy_into_fewer_dims_is_refused(target: tuple[int, ...], source: tuple[int, ...], backend: str) -> None:
    def outcome(fn: Callable[[Tensor, Tensor], Tensor]) -> Any:
        try:
            return fn(torch.zeros(target), torch.ones(source)).tolist()
        except RuntimeError as error:
            return str(error)

    def copied(x: Tensor, y: Tensor) -> Tensor:
        return x.copy_(y)

    assert outcome(tinycompile.compile(copied, backend=backend)) == outcome(copied)
