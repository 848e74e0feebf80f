"""Builtins that a program replaced are noticed, and out of the way while something of ours is made."""

from __future__ import annotations

import builtins
from typing import Any
from unittest import mock

import pytest
import torch

import tinycompile
from tinycompile.base.errors import GraphBreakError
from tinycompile.base.known_builtins import builtins_are_replaced, under_known_builtins

pytestmark = pytest.mark.pure
LENGTH = len


def test_replaced_ones_are_noticed() -> None:
    assert not builtins_are_replaced()
    with mock.patch("builtins.len", lambda v: 3):
        replaced = builtins_are_replaced()
    kept = builtins.divmod
    del builtins.divmod
    gone = builtins_are_replaced()
    builtins.divmod = kept
    assert replaced and gone and not builtins_are_replaced()


@pytest.mark.parametrize("name", ["print", "open", "__import__"])
def test_what_programs_replace_for_good_is_no_hindrance(name: str) -> None:
    kept = getattr(builtins, name)
    with mock.patch(f"builtins.{name}", lambda *args, **named: kept(*args, **named)):
        assert not builtins_are_replaced()


def test_they_are_put_back() -> None:
    def other(v: Any) -> int:
        return 3

    with mock.patch("builtins.len", other):
        known, after = under_known_builtins(lambda: len), len
    assert known is LENGTH
    assert after is other


def measured(x: torch.Tensor, values: list[int]) -> torch.Tensor:
    return x + len(values)


def test_what_is_called_meanwhile_runs_eagerly() -> None:
    compiled, x = tinycompile.compile(measured, backend="eager"), torch.ones(2)
    with mock.patch("builtins.len", lambda v: 40):
        found = compiled(x, [1])
    assert found.tolist() == [41, 41]
    assert not compiled.all_entries
    assert compiled(x, [1]).tolist() == [2, 2]
    assert not compiled.breaks


def test_the_whole_graph_can_not_be_had_meanwhile() -> None:
    compiled = tinycompile.compile(measured, backend="eager", fullgraph=True)
    with pytest.raises(GraphBreakError, match="builtins"), mock.patch("builtins.len", lambda v: 40):
        compiled(torch.ones(2), [1])
