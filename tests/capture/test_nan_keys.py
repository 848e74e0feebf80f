"""NaN as a key or a member: it equals itself only, so which object it is counts in each call."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tinycompile

pytestmark = pytest.mark.cpu


def looked_up(held: Any, key: float, x: torch.Tensor) -> Any:
    return held.get(key), x + 1


def contained(held: Any, key: float, x: torch.Tensor) -> Any:
    return key in held, x + 1


def made_here(held: Any, key: float, x: torch.Tensor) -> Any:
    return {held: 1}.get(key), x + 1


@pytest.mark.parametrize("known_first", [True, False])
@pytest.mark.parametrize("kind", ["dict", "set", "list", "here"])
def test_another_nan_is_another_key(kind: str, known_first: bool) -> None:
    nan, other = float("nan"), float("nan")
    held: Any = {"dict": {nan: 1}, "set": {nan}, "list": [nan], "here": nan}[kind]
    fn = {"dict": looked_up, "here": made_here}.get(kind, contained)
    compiled, x = tinycompile.compile(fn, backend="eager"), torch.ones(2)
    for key in (nan, other, nan) if known_first else (other, nan, other):
        assert compiled(held, key, x)[0] == fn(held, key, x)[0]
