"""Names that guards and rebuilt code have of their own never stand for, or hide, what the program calls so."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import tinycompile
from tinycompile.capture.guards import HELPERS, OWN_NAMES

pytestmark = pytest.mark.pure


def counting(x: torch.Tensor) -> torch.Tensor:
    counting.calls = getattr(counting, "calls", 0) + 1  # type: ignore[attr-defined]
    return x + counting.calls  # type: ignore[attr-defined]


def returning_itself(x: torch.Tensor, into: list[Any]) -> Any:
    into.append(returning_itself)
    return x + 1, returning_itself


def passing_itself(x: torch.Tensor, n: int = 2) -> Any:
    kept = passing_itself
    tinycompile.graph_break()
    return (x, kept) if n == 0 else kept(x + 1, n - 1)


def test_a_function_that_sets_attributes_on_itself() -> None:
    compiled = tinycompile.compile(counting, backend="eager")
    try:
        assert [compiled(torch.zeros(())).item() for _ in range(3)] == [1, 2, 3]
        assert counting.calls == 3  # type: ignore[attr-defined]
    finally:
        del counting.calls  # type: ignore[attr-defined]


def test_a_function_that_gives_itself_away() -> None:
    into: list[Any] = []
    result = tinycompile.compile(returning_itself, backend="eager")(torch.zeros(()), into)
    assert result[1] is returning_itself and into[0] is returning_itself


def test_a_function_that_keeps_itself_over_a_break() -> None:
    compiled = tinycompile.compile(passing_itself, backend="eager")
    for _ in range(2):
        x, kept = compiled(torch.zeros(()))
        assert x.item() == 2 and kept is passing_itself


def test_globals_of_such_names() -> None:
    names = [*OWN_NAMES, "guard"]
    space: dict[str, Any] = {name: [0] for name in names}
    lines = "".join(f"    {name}.append(len({name}))\n" for name in names)
    exec(f"def f(x, m):\n{lines}    return m(x) + len({names[0]}), [{', '.join(names)}]", space)
    compiled = tinycompile.compile(space["f"], backend="eager")
    m = nn.Sequential(*[nn.Linear(2, 2) for _ in range(5)])
    x = torch.ones(2)
    for n in (2, 3):
        result, given = compiled(x, m)
        assert all(g is space[name] and len(g) == n for g, name in zip(given, names, strict=True))
        torch.testing.assert_close(result, m(x) + n)
    m[0].weight.data = torch.zeros(2, 3)  # is still guarded
    with pytest.raises(RuntimeError, match="shapes"):
        compiled(x, m)


@pytest.mark.parametrize("name", [n for n in OWN_NAMES if n not in HELPERS])
def test_a_parameter_of_such_a_name(name: str) -> None:
    space: dict[str, Any] = {}
    exec(f"def f({name}, m):\n    return m({name}) + 1", space)
    compiled = tinycompile.compile(space["f"], backend="eager")
    m = nn.Linear(2, 2)
    torch.testing.assert_close(compiled(torch.ones(2), m), m(torch.ones(2)) + 1)
    assert compiled.breaks[0].id == "unsupported-value"
