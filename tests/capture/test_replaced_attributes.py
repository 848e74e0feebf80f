"""What a global object has, where the program puts another in its place in each call, as ``GradScaler.update()`` does: the
first time it is known by identity, then by its class and contents."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import tinycompile

pytestmark = pytest.mark.cpu


class Box:
    """Holds something."""

    def __init__(self, held: Any = None) -> None:
        self.held = held


BOX = Box()
KINDS: dict[str, Callable[[int], Any]] = {
    "list": lambda n: [n],
    "tuple": lambda n: (n, 1),
    "dict": lambda n: {0: n},
    "ordered": lambda n: OrderedDict([(0, n)]),
    "defaultdict": lambda n: defaultdict(dict, {0: n}),
    "deque": lambda n: deque([n]),
    "object": lambda n: Box(n),
}


def read(held: Any) -> Any:
    return held.held if isinstance(held, Box) else held[0]


def at_once(x, make):
    y = x * read(BOX.held)
    BOX.held = make(2)
    return y


def behind_a_break(x, make):
    y = x + 1
    tinycompile.graph_break()
    y = y * read(BOX.held)
    BOX.held = make(2)
    return y


@pytest.mark.parametrize("fn", [at_once, behind_a_break], ids=lambda f: f.__name__)
@pytest.mark.parametrize("kind", KINDS)
def test_another_in_each_call(kind: str, fn: Callable[..., Any]) -> None:
    make, x = KINDS[kind], torch.ones(2)
    BOX.held = make(2)
    compiled = tinycompile.compile(lambda x: fn(x, make), backend="eager")
    for _ in range(3):
        compiled(x)
    known = len(compiled.graphs)
    for _ in range(9):
        assert torch.equal(compiled(x), fn(x, make))
    assert len(compiled.graphs) == known
    BOX.held = make(3)  # its contents are guarded
    expected = fn(x, make)
    BOX.held = make(3)
    assert torch.equal(compiled(x), expected)


MODEL = torch.nn.Linear(4, 3)
OPTIMIZER = torch.optim.AdamW(MODEL.parameters(), lr=0.01)
SCALER = torch.amp.GradScaler("cpu", init_scale=16.0)


def test_a_scaler_compiles_nothing_after_its_first_steps() -> None:
    """A scaler that is a global, as in most scripts."""

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = F.cross_entropy(MODEL(x), torch.zeros(5, dtype=torch.long))
        SCALER.scale(loss).backward()
        SCALER.step(OPTIMIZER)
        SCALER.update()
        OPTIMIZER.zero_grad()
        return loss

    compiled, x = tinycompile.compile(step, backend="eager"), torch.randn(5, 4)
    losses = [compiled(x).item() for _ in range(3)]
    known = len(compiled.graphs)
    losses += [compiled(x).item() for _ in range(9)]
    assert len(compiled.graphs) == known
    assert losses == sorted(losses, reverse=True)
