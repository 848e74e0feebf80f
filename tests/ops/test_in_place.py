"""Which of torch's functions write to their first argument."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tinycompile.ops.in_place import asks_in_place, names_a_write, writes_first

pytestmark = pytest.mark.pure


@pytest.mark.parametrize(
    ("name", "writes"), [("add_", True), ("torch.relu_", True), ("__iadd__", False), ("__add__", False), ("add", False)]
)
def test_names(name: str, writes: bool) -> None:
    assert names_a_write(name) is writes


@pytest.mark.parametrize(
    ("fn", "args", "kwargs", "writes"),
    [
        (torch.Tensor.add_, (), {}, True),
        (torch.Tensor.__setitem__, (), {}, True),
        (torch.Tensor.__iadd__, (), {}, True),
        (torch.Tensor.__add__, (), {}, False),
        (F.dropout, (0, 0.5, True, True), {}, True),
        (F.dropout, (0, 0.5, True), {}, False),
        (F.dropout, (0,), {"inplace": True}, True),
        (F.dropout, (0, 0.5, True), {"inplace": False}, False),
        (F.relu, (0, True), {}, True),
        (torch.dropout, (0, 0.5, True), {}, False),
    ],
)
def test_calls(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any], writes: bool) -> None:
    assert writes_first(fn, args, kwargs) is writes
    if getattr(fn, "__module__", None) == "torch.nn.functional":
        assert asks_in_place(fn, args, kwargs) is writes
