"""Stand-ins for arguments whose values are not known: what LAPACK believes is in range, and wrong calls are torch's to refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tinycompile
from tinycompile.eager.probe import probe, refuses

pytestmark = pytest.mark.pure
X, LAST = torch.zeros(3, 4), RuntimeError("the meta kernel's words")


def test_pivots_count_from_one() -> None:
    seen = probe(lambda p: p.clone(), (torch.zeros(3, dtype=torch.int32),), {})
    assert seen.tolist() == [1, 1, 1]
    assert probe(lambda i: i.clone(), (torch.zeros(2, dtype=torch.int64),), {}).tolist() == [0, 0]


def test_a_wrong_call_is_told_from_a_missing_kernel() -> None:
    assert refuses(torch.mm, (X, X), {}, LAST)
    assert not refuses(torch.mm, (X, X.T), {}, LAST)
    assert not refuses(torch.nonzero, (X,), {}, LAST)
    assert not refuses(torch.mm, (X, X), {}, NotImplementedError())


WRONG: tuple[Callable[[Any], Any], ...] = (
    lambda x: torch.rsub(2, x),
    lambda x: torch.Tensor.__radd__(2, x),
    lambda x: torch.fmin(x, 2),
    lambda x: torch.narrow(x, 0, 5, 1),
)


@pytest.mark.parametrize("fn", WRONG, ids=range(len(WRONG)))
def test_torchs_own_error_under_fullgraph(fn: Callable[[Any], Any]) -> None:
    with pytest.raises(Exception) as want:  # noqa: PT011  # compared below
        fn(X)
    with pytest.raises(type(want.value)) as got:
        tinycompile.compile(fn, fullgraph=True, backend="eager")(X)
    assert str(got.value) == str(want.value)
