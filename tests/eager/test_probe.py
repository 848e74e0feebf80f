"""Stand-ins for arguments whose values are not known: what LAPACK believes is in range, and wrong calls are torch's to refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tinycompile
from tinycompile.eager.probe import probe, refuses

pytestmark = pytest.mark.pure
X = torch.zeros(3, 4)


def test_pivots_count_from_one() -> None:
    seen = probe(lambda p: p.clone(), (torch.zeros(3, dtype=torch.int32),), {})
    assert seen.tolist() == [1, 1, 1]
    assert probe(lambda i: i.clone(), (torch.zeros(2, dtype=torch.int64),), {}).tolist() == [0, 0]


def test_a_wrong_call_is_told_from_a_missing_kernel() -> None:
    assert refuses(torch.mm, (X, X), {})
    assert not refuses(torch.mm, (X, X.T), {})
    assert not refuses(torch.nonzero, (X,), {})
    assert refuses(torch.softmax, (torch.zeros(3, dtype=torch.int64), 0), {})  # torch has no kernel for it
    assert not refuses(torch.softmax, (torch.zeros(0, dtype=torch.int64), 0), {})


WRONG: tuple[Callable[[Any], Any], ...] = (
    lambda x: torch.rsub(2, x),
    lambda x: torch.Tensor.__radd__(2, x),
    lambda x: torch.fmin(x, 2),
    lambda x: torch.narrow(x, 0, 5, 1),
    lambda x: torch.softmax((x > 0).long(), 0),
    lambda x: torch.nn.functional.pad(x[None, None], (1, 1), mode="reflect"),
)


@pytest.mark.parametrize("fn", WRONG, ids=range(len(WRONG)))
def test_torchs_own_error_under_fullgraph(fn: Callable[[Any], Any]) -> None:
    with pytest.raises(Exception) as want:  # noqa: PT011  # compared below
        fn(X)
    with pytest.raises(type(want.value)) as got:
        tinycompile.compile(fn, fullgraph=True, backend="eager")(X)
    assert str(got.value) == str(want.value)
