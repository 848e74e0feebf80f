"""Indices out of range, whatever is indexed: memory, or what is computed where it is read and loads nothing along that dim."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import tinycompile

pytestmark = pytest.mark.cpu

Indexed = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # of a matrix with 5 rows, and an index
ROWS: dict[str, Indexed] = {
    "memory": lambda x, i: x[i],
    "a count": lambda x, i: torch.arange(5)[i] * 2,
    "a gathered count": lambda x, i: torch.arange(5).gather(0, i),
    "a constant": lambda x, i: torch.full((5,), 3.0)[i] + 1,
    "a constant's rows": lambda x, i: torch.ones(5, 3)[i] + x[:3],
    "zeros like it": lambda x, i: torch.zeros_like(x)[i] + x[:3],
    "an identity": lambda x, i: torch.eye(5)[i] * 2,
    "a mask": lambda x, i: (torch.arange(5)[:, None] >= torch.arange(5))[i],
    "a table": lambda x, i: torch.outer(torch.arange(5.0), torch.arange(3.0))[i] * 2,
    "an embedding in a table": lambda x, i: F.embedding(i, torch.outer(torch.arange(5.0), x[0])),
    "an embedding in ones": lambda x, i: F.embedding(i, torch.ones(5, 3)),
    "an expanded row": lambda x, i: x[0].expand(5, 3)[i] + 1,
    "an expanded row of halves": lambda x, i: x.half()[0].expand(5, 3)[i] + 1,
    "an expanded column": lambda x, i: x[0, :1].expand(5).take(i),
    "a broadcast row": lambda x, i: (x[:1] * torch.ones(5, 1))[i],
    "a repeated row": lambda x, i: (x[:1].repeat(5, 1) * 2)[i],
    "a row of one": lambda x, i: (x[:1] * 2)[i * 0 + (i > 4)],
    "padding": lambda x, i: F.pad(x[:3], (0, 0, 1, 1))[i] * 2,
    "joined rows": lambda x, i: torch.cat([x[:2], x[2:]])[i] * 2,
    "rolled rows": lambda x, i: x.roll(2, 0)[i] * 2,
    "turned rows": lambda x, i: x.flip(0)[i] * 2,
    "a triangle": lambda x, i: x.tril()[i] * 2,
    "a triangle of ones": lambda x, i: torch.ones(5, 3).tril()[i] * 2,
    "no columns": lambda x, i: x[:, :0][i],
    "a count at a count": lambda x, i: torch.arange(6)[torch.arange(5)[i]],
    "a sum": lambda x, i: torch.arange(5)[i].sum(),
    "a reduced row": lambda x, i: torch.full((5, 3), 1.0)[i].logsumexp(1),
    "a part of a row": lambda x, i: torch.cat([torch.arange(5)[i].float(), x[0]]),
    "a part that a mask leaves out": lambda x, i: torch.where(i > 100, torch.arange(5)[i], 0),
    "a row far away": lambda x, i: torch.arange(5)[i + 2**32 * (i > 4)],
    "a fill": lambda x, i: x.index_fill(0, i, 2.0),
    "a fill of what is computed": lambda x, i: (x * 2).index_fill(0, i, 2.0) + 1,
    "a put": lambda x, i: torch.zeros(5, 3).index_put((i,), x[:3]),
    "a sum at places": lambda x, i: torch.zeros(5, 3).index_add(0, i, x[:3]),
    "a number at places": lambda x, i: torch.zeros(5).scatter(0, i, 1.0),
}
INDICES = [torch.tensor([0, 3, 1]), torch.tensor([0, 7, 1]), torch.tensor([0, -9, 1])]


def outcome(fn: Indexed, *args: torch.Tensor) -> Any:
    try:
        return fn(*args)
    except (IndexError, RuntimeError) as error:
        return type(error), str(error)


@pytest.mark.parametrize("backend", ["cpp", "triton"])
@pytest.mark.parametrize("name", ROWS)
def test_torch_says_what_is_wrong(name: str, backend: str) -> None:
    fn = ROWS[name]
    f, x = tinycompile.compile(fn, backend=backend, fullgraph=True, dynamic=False), torch.randn(5, 3)
    for index in INDICES:
        want, got = outcome(fn, x, index), outcome(f, x, index)
        assert torch.equal(got, want) if isinstance(want, torch.Tensor) else got == want


@pytest.mark.parametrize("rows", [0, 3])
def test_padding_that_is_left_out_is_not_checked(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a mask excludes the points, the index that is read there is none."""
    monkeypatch.setattr("tinycompile.pieces.Piece.can_be_redone", lambda *args: False)

    def fn(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return F.pad(torch.arange(5)[i - 1], (2, 4)) + F.pad(x[0].expand(5, 3)[i - 1, 0], (4, 2))

    i = torch.randint(1, 6, (rows,))
    for backend in ("cpp", "triton"):
        f, x = tinycompile.compile(fn, backend=backend, fullgraph=True), torch.randn(5, 3)
        assert torch.equal(f(x, i), fn(x, i))
