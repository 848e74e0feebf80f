"""What looks for its caller in a submodule, in its hooks, or in those of an optimizer finds the frames of torch's that are there."""

from __future__ import annotations

import inspect
import logging
import sys
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import tinycompile
from tinycompile.base.internal_frames import is_ours

pytestmark = pytest.mark.pure

X = torch.ones(2)
Found = list[tuple[str, int]]
FOUND: Found = []
LEVELS = range(1, 7)


def warns() -> None:
    for level in LEVELS:
        warnings.warn("up", DeprecationWarning, level)


def logs() -> None:
    for level in LEVELS:
        logging.getLogger("tests.modules").warning("up", stacklevel=level)


def formats() -> None:
    FOUND.extend((f.filename, f.lineno or 0) for f in traceback.extract_stack(limit=2))


def walks() -> None:
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        if not is_ours(frame.f_code):
            FOUND.append((frame.f_code.co_filename, frame.f_lineno))


def inspects() -> None:
    FOUND.extend((f.filename, f.lineno) for f in inspect.stack(0) if not is_ours(f.frame.f_code))


class Asks(nn.Module):
    def __init__(self, ask: Callable[[], None]) -> None:
        super().__init__()
        self.ask = ask

    def forward(self, x: Any) -> Any:
        y = x * 2
        self.ask()
        return y + 1


class AsksItself(nn.Module):
    def __init__(self, ask: Callable[[], None]) -> None:
        super().__init__()

    def forward(self, x: Any) -> Any:
        tinycompile.graph_break()
        frame = sys._getframe(1)
        FOUND.append((frame.f_code.co_filename, frame.f_lineno))
        return x + 1


class Derived(Asks):
    def forward(self, x: Any) -> Any:
        y = super().forward(x)
        tinycompile.graph_break()
        self.ask()
        return y - 1


class Holds(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Any) -> Any:
        return self.inner(x + 1) * 2


def hooked(ask: Callable[[], None]) -> nn.Module:
    made = Asks(ask)
    made.register_forward_pre_hook(lambda module, args: ask())
    made.register_forward_hook(lambda module, args, result: ask())
    return made


MODELS: dict[str, Callable[[Callable[[], None]], nn.Module]] = {
    "nested": lambda ask: Holds(Holds(Asks(ask))),
    "in_a_sequential": lambda ask: nn.Sequential(nn.Linear(2, 2), Asks(ask), nn.Sequential(Asks(ask))),
    "derived": lambda ask: Holds(Derived(ask)),
    "hooked": lambda ask: Holds(hooked(ask)),
    "asks_itself": lambda ask: Holds(AsksItself(ask)),
}


class Kept(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        FOUND.append((record.pathname, record.lineno))


@pytest.fixture(autouse=True)
def _listening() -> Any:
    logger, handler = logging.getLogger("tests.modules"), Kept()
    logger.addHandler(handler)
    yield
    logger.removeHandler(handler)


def found_by(calls: list[Callable[[Any], Any]]) -> list[tuple[Found, Found]]:
    """What each call finds, from one line."""
    found = []
    for call in calls:
        FOUND.clear()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            call(X)
        found.append((list(FOUND), [(w.filename, w.lineno) for w in caught if w.category is DeprecationWarning]))
    return found


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("ask", [warns, logs, formats, walks, inspects], ids=lambda ask: ask.__name__)
def test_what_is_found_in_submodules(ask: Callable[[], None], model: str) -> None:
    made = MODELS[model](ask)
    compiled = tinycompile.compile(made, backend="eager")
    function = tinycompile.compile(lambda x: made(x) + 1, backend="eager")
    plain, *others = found_by([made, compiled, compiled])
    assert any(plain)
    assert others == [plain] * 2
    plain, *others = found_by([function.original, function, function])
    assert others == [plain] * 2


def test_what_is_found_in_hooks_of_optimizers() -> None:
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    optimizer.register_step_pre_hook(lambda *_: warns())

    def steps(x: Any) -> Any:
        weight.grad = torch.ones(2)
        optimizer.step()
        return x * 2

    compiled = tinycompile.compile(steps, backend="eager")
    plain, *others = found_by([steps, compiled, compiled])
    assert any(plain)
    assert others == [plain] * 2
