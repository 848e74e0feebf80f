"""A program's warnings under capture are those of eager Python: category, text, file and line, in each call, as filters say."""

from __future__ import annotations

import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

import tinycompile
from tests.capture import warning_stories
from tests.capture.warning_stories import COLUMN, LEFT, ROW, TOLD

pytestmark = pytest.mark.cpu
STORIES = {**TOLD, **LEFT}
QUIET: dict[str, Callable[[Any], Any]] = {
    "mse_loss": lambda x: F.mse_loss(x, ROW),
    "softmax": lambda x: F.softmax(x, 0) + F.softmax(x, dim=-1),
    "std": lambda x: x.std() + x[:1].std(correction=0),
    "kl_div": lambda x: F.kl_div(x, ROW, reduction="batchmean"),
    "T": lambda x: (x * COLUMN).T,
    "complex as a bool": lambda x: torch.complex(x, x).bool(),
    "where": lambda x: torch.where(x > 1, x, 0.0),
    "searchsorted": lambda x: torch.searchsorted(ROW, x),
    "cross": lambda x: torch.cross(x, x, dim=0),
}


def site(error: BaseException) -> list[tuple[str, int | None]]:
    """Lines of the stories that an exception went through."""
    frames = traceback.extract_tb(error.__traceback__)
    return [(f.name, f.lineno) for f in frames if f.filename == warning_stories.__file__]


def observed(fn: Callable[..., Any], action: Any, calls: int = 3) -> list[Any]:
    """What each of some calls returns or raises, and what it warns of."""
    torch.set_warn_always(True)
    for module in list(sys.modules.values()):
        variables = getattr(module, "__dict__", None)
        if type(variables) is dict:
            variables.pop("__warningregistry__", None)
    seen: list[Any] = []
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter(action)
            for _ in range(calls):
                caught.clear()
                try:
                    result: Any = torch.as_tensor(fn(torch.arange(3.0)))
                except Exception as error:  # noqa: BLE001
                    result = (type(error), str(error), site(error))
                seen.append((result, [(w.category, str(w.message), w.filename, w.lineno) for w in caught]))
    finally:
        torch.set_warn_always(False)
    return seen


def assert_as_eager(fn: Callable[..., Any], compiled: Callable[..., Any], action: Any, calls: int = 3) -> None:
    want, got = observed(fn, action, calls), observed(compiled, action, calls)
    assert [told for _, told in got] == [told for _, told in want]
    for (a, _), (b, _) in zip(got, want, strict=True):
        if isinstance(b, tuple):
            assert a == b
        else:
            torch.testing.assert_close(a, b, equal_nan=True)


@pytest.mark.parametrize("action", ["always", "default", "error", "ignore"])
@pytest.mark.parametrize("name", STORIES)
def test_as_eager_by_each_filter(name: str, action: str) -> None:
    assert_as_eager(STORIES[name], tinycompile.compile(STORIES[name], backend="eager"), action)


@pytest.mark.parametrize("name", STORIES)
def test_as_eager_when_filters_change_between_calls(name: str) -> None:
    compiled = tinycompile.compile(STORIES[name])
    for action in ("ignore", "error", "always", "default", "error"):
        assert_as_eager(STORIES[name], compiled, action, calls=2)


@pytest.mark.parametrize("name", TOLD)
def test_a_graph_that_warns_is_whole(name: str) -> None:
    assert_as_eager(TOLD[name], tinycompile.compile(TOLD[name], fullgraph=True), "always")


@pytest.mark.parametrize("name", QUIET)
def test_nothing_is_told_where_torch_is_quiet(name: str) -> None:
    compiled = tinycompile.compile(QUIET[name], fullgraph=True)
    assert all(not told for _, told in observed(compiled, "always"))
    assert_as_eager(QUIET[name], compiled, "always")


@pytest.mark.parametrize("name", ["not NotImplemented", "a division by zero", "an overflow", "a module with hooks"])
def test_what_python_warns_of_is_a_break_of_its_own_kind(name: str) -> None:
    compiled = tinycompile.compile(LEFT[name])
    observed(compiled, "ignore", 1)
    assert "warns" in [b.id for b in compiled.breaks]


def test_texts_tell_the_sizes_of_the_call() -> None:
    def f(x: Any) -> Any:
        return F.mse_loss(x[:, None], x)

    compiled = tinycompile.compile(f, dynamic=True)
    for n in (4, 5, 6):
        fns = [lambda _, fn=fn, n=n: fn(torch.ones(n)) for fn in (f, compiled)]
        assert_as_eager(*fns, "always", calls=2)


def test_a_size_that_changes_to_too_few() -> None:
    def f(x: Any) -> Any:
        return x.std(correction=3).nan_to_num()

    compiled = tinycompile.compile(f, dynamic=True)
    for n in (6, 5, 4, 3, 2):
        fns = [lambda _, fn=fn, n=n: fn(torch.ones(n)) for fn in (f, compiled)]
        assert_as_eager(*fns, "always", calls=2)


def test_capture_makes_python_forget_nothing() -> None:
    """With the filter that shows a warning once a line, one of a loop is shown once, though each round is captured anew."""

    def f(x: Any) -> Any:
        for i in range(3):
            warnings.warn("in each round")  # noqa: B028
            x = x + torch.zeros(i + 2).sort()[0].sum()
        return x

    assert_as_eager(f, tinycompile.compile(f), "default")


def test_filters_are_as_they_were() -> None:
    before, shown = list(warnings.filters), warnings.showwarning
    tinycompile.compile(TOLD["softmax"])(torch.ones(3))
    assert (list(warnings.filters), warnings.showwarning) == (before, shown)


ONCE = """
import warnings, torch, tinycompile
fns = [lambda x: x.T + 1, lambda x: x.T + 2]
compiled = [tinycompile.compile(fn) for fn in fns]
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for fn in (*compiled, *fns, *compiled):
        fn(torch.ones(3))
print([w.lineno for w in caught])
"""


def test_what_torch_tells_once_in_a_process_is_told_once() -> None:
    run = subprocess.run([sys.executable, "-c", ONCE], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[3]"
