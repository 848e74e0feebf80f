"""The wrapper: names of the user's that it uses itself, and the stream, looked up once."""

from __future__ import annotations

import pytest
import torch

import tinycompile

pytestmark = pytest.mark.cpu


def shadows(stream: torch.Tensor, queue: torch.Tensor, float: torch.Tensor) -> tuple[torch.Tensor, ...]:
    empty = stream @ queue
    as_strided = empty + 1
    call = as_strided.sum(0)
    op_matmul = call @ as_strided
    restride = op_matmul * 2 + float
    return restride, empty


@pytest.mark.parametrize("dynamic", [None, True], ids=["static", "dynamic"])
def test_user_names_may_be_those_of_the_namespace(dynamic: bool | None) -> None:
    f, inputs = tinycompile.compile(shadows, dynamic=dynamic), [torch.randn(8, 8) for _ in range(3)]
    for got, want in zip(f(*inputs), shadows(*inputs), strict=True):
        torch.testing.assert_close(got, want)
    assert f.breaks == [], "it ran compiled"


def test_the_stream_is_looked_up_once() -> None:
    f = tinycompile.compile(shadows)
    f(*[torch.randn(8, 8) for _ in range(3)])
    assert f.source("wrapper").count("stream()") == 1
    g = tinycompile.compile(lambda x: torch.relu(x) + 1)
    g(torch.randn(8))
    assert "(stream(), x" in g.source("wrapper")
