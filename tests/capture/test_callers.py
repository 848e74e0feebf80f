"""What looks for its caller by frames finds the program's, with a graph break at it or not."""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import sys
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import tinycompile
from tinycompile.base.config import config
from tinycompile.base.errors import RecompileLimitWarning

pytestmark = pytest.mark.pure

X = torch.ones(2)


def caller(levels: int = 1) -> Any:
    frame = sys._getframe(levels)
    return frame.f_code.co_name, frame.f_lineno, frame.f_globals["__name__"], sorted(frame.f_locals)


def caller_by_inspect() -> Any:
    frame = inspect.currentframe()
    assert frame is not None and frame.f_back is not None
    return frame.f_back.f_code.co_name, frame.f_back.f_lineno


def caller_after_a_break() -> Any:
    tinycompile.graph_break()
    frame = sys._getframe(1)
    return frame.f_code.co_name, frame.f_lineno


def warns_there() -> None:
    tinycompile.graph_break()
    warnings.warn("there", stacklevel=2)


def asks(x: Any) -> Any:
    first = caller()
    y = x + 1
    return first, y * 2, caller(), caller_by_inspect(), caller_after_a_break()


def asks_further_in(x: Any) -> Any:
    def inner(y: Any) -> Any:
        z = y + 1
        return caller(), caller_by_inspect(), z * 2

    return inner(x * 2), inner(x)


def names_of_the_stack(x: Any) -> Any:
    y = x + 1
    return [f.function for f in inspect.stack(0)][0], y


def warns(x: Any) -> Any:
    y = x + 1
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warns_there()
        warnings.warn("here", stacklevel=1)
    return y, [(str(w.message), w.filename, w.lineno) for w in caught]


def logs(x: Any) -> Any:
    log = logging.getLogger("tests.callers")
    log.warning("one")
    y = x + 1

    def inner() -> None:
        log.error("two %s", 2)

    inner()
    log.log(logging.WARNING, "three", stacklevel=1)
    return y * 2


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append((record.funcName, record.lineno, record.pathname, record.getMessage()))


def same(got: Any, want: Any) -> bool:
    if isinstance(want, torch.Tensor):
        return torch.equal(got, want)
    if isinstance(want, tuple | list):
        return len(got) == len(want) and all(map(same, got, want))
    return bool(got == want)


@pytest.mark.parametrize("fn", [asks, asks_further_in, names_of_the_stack, warns], ids=lambda fn: fn.__name__)
def test_what_they_find(fn: Callable[[Any], Any]) -> None:
    compiled, want = tinycompile.compile(fn, backend="eager"), fn(X)
    for _ in range(2):
        assert same(compiled(X), want)


def test_where_records_of_logging_are_from() -> None:
    logger, handler = logging.getLogger("tests.callers"), Kept()
    logger.addHandler(handler)
    compiled = tinycompile.compile(logs, backend="eager")
    try:
        want = logs(X)
        expected, handler.seen = handler.seen, []
        for _ in range(2):
            assert same(compiled(X), want)
    finally:
        logger.removeHandler(handler)
    assert handler.seen == expected * 2


def logs_and_computes(x: Any) -> Any:
    y = x * 2
    logging.getLogger("tests.callers").warning("once")
    return y + 1


def test_other_callees_that_break_are_compiled_still() -> None:
    def outer(x: Any) -> Any:
        return logs_and_computes(x + 1) * 2

    compiled = tinycompile.compile(outer, backend="eager")
    for _ in range(2):
        assert same(compiled(X), outer(X))
    assert list(compiled._callees) == [logs_and_computes]


# --- callers of the compiled function itself ---


def helper(levels: int) -> None:
    warnings.warn(f"{levels} up", DeprecationWarning, stacklevel=levels)


def warns_of_its_call(x: Any) -> Any:
    y = x + 1
    warnings.warn("two up", stacklevel=2)
    helper(3)
    helper(4)
    return y * 2


def warns_of_its_call_behind_a_break(x: Any) -> Any:
    y = x + 1
    tinycompile.graph_break()
    for _ in range(2):
        warnings.warn("two up", stacklevel=2)
    return y * 2


def warns_of_its_call_as_it_fails(x: Any) -> Any:
    try:
        return x + torch.ones(7)
    finally:
        warnings.warn("two up", stacklevel=2)


class Warns(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return warns_of_its_call(x) if self.training else x


def places(call: Callable[[Any], Any]) -> Any:
    def between() -> None:
        with contextlib.suppress(RuntimeError):
            call(X)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        between()
    return [(str(w.message), w.category, w.filename, w.lineno) for w in caught]


@pytest.mark.parametrize(
    "fn",
    [
        warns_of_its_call,
        warns_of_its_call_behind_a_break,
        warns_of_its_call_as_it_fails,
        Warns(),
        functools.partial(warns_of_its_call),
        tinycompile.disable(warns_of_its_call),
    ],
    ids=["function", "behind_a_break", "as_it_fails", "module", "partial", "disabled"],
)
def test_warnings_that_are_placed_above_the_compiled_function(fn: Callable[[Any], Any]) -> None:
    compiled, want = tinycompile.compile(fn, backend="eager"), places(getattr(fn, "__wrapped__", fn))
    assert len(want) >= 1
    for _ in range(2):
        assert places(compiled) == want


def test_what_runs_eagerly_past_the_limit_is_called_from_the_programs_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "recompile_limit", 1)
    compiled, want = tinycompile.compile(warns_of_its_call, backend="eager", dynamic=False), places(warns_of_its_call)
    compiled(X[:1])
    with pytest.warns(RecompileLimitWarning) as told:
        compiled(X)
    assert {w.filename for w in told if w.category is RecompileLimitWarning} == {__file__}
    assert places(compiled) == want


def logs_of_its_call(x: Any) -> Any:
    y = x + 1
    logging.getLogger("tests.callers").warning("up", stacklevel=2)
    return y * 2


def test_records_of_logging_that_are_placed_above_the_compiled_function() -> None:
    logger, handler = logging.getLogger("tests.callers"), Kept()
    logger.addHandler(handler)
    compiled = tinycompile.compile(logs_of_its_call, backend="eager")
    try:
        for call in (logs_of_its_call, compiled, compiled):
            call(X)
    finally:
        logger.removeHandler(handler)
    assert handler.seen == handler.seen[:1] * 3
    assert handler.seen[0][2] == __file__


def test_tracebacks_show_the_lines_of_frames_that_are_passed_over() -> None:
    def fails(x: Any) -> Any:
        tinycompile.graph_break()
        raise ValueError(x)

    with pytest.raises(ValueError) as told:
        tinycompile.compile(fails, backend="eager")(X)
    ours = [f for f in traceback.extract_tb(told.value.__traceback__) if "importlib" in f.filename]
    assert ours
    assert all(f.line for f in ours)
