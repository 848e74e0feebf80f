"""What torch warns of in eager mode is told in each call of compiled code, from the program's line, as filters say."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

import tinycompile
from tinycompile.capture import torch_warnings

pytestmark = pytest.mark.cpu
COLUMN, ROW = torch.ones(3, 1), torch.arange(3.0)
CASES: dict[str, Callable[[Any], Any]] = {
    "mse_loss": lambda x: F.mse_loss(x * COLUMN, ROW),
    "l1_loss": lambda x: F.l1_loss(x * COLUMN, ROW),
    "smooth_l1_loss": lambda x: F.smooth_l1_loss(x * COLUMN, ROW),
    "huber_loss": lambda x: F.huber_loss(x * COLUMN, ROW, reduction="sum"),
    "softmax": lambda x: F.softmax(x * COLUMN),
    "log_softmax": lambda x: F.log_softmax(x),
    "std": lambda x: x[:1].std(),
    "var": lambda x: torch.var(x[None], dim=0),
    "std_mean": lambda x: torch.std_mean(x, correction=3),
    "kl_div": lambda x: F.kl_div(x, ROW),
    "T": lambda x: x.T,
    "upsample_nearest": lambda x: F.upsample_nearest(x.view(1, 1, 3), scale_factor=2),
    "upsample_bilinear": lambda x: F.upsample_bilinear(x.view(1, 1, 1, 3), scale_factor=2),
}
QUIET: dict[str, Callable[[Any], Any]] = {
    "mse_loss": lambda x: F.mse_loss(x, ROW),
    "softmax": lambda x: F.softmax(x, 0) + F.softmax(x, dim=-1),
    "std": lambda x: x.std() + x[:1].std(correction=0),
    "kl_div": lambda x: F.kl_div(x, ROW, reduction="batchmean"),
    "T": lambda x: (x * COLUMN).T,
}


def warned(fn: Callable[..., Any], calls: int = 1, action: Any = "always") -> list[tuple[Any, ...]]:
    """Class, the words before torch's own place, file and line."""
    torch.set_warn_always(True)
    globals().pop("__warningregistry__", None)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter(action)
            for _ in range(calls):
                fn(torch.arange(3.0))
    finally:
        torch.set_warn_always(False)
    return [(w.category, str(w.message).partition(" (Triggered")[0], w.filename, w.lineno) for w in caught]


@pytest.mark.parametrize("name", CASES)
def test_compiled_code_warns_in_each_call(name: str) -> None:
    compiled = tinycompile.compile(CASES[name])
    for calls, action in ((2, "always"), (3, "default"), (2, "ignore"), (1, "always")):
        want = warned(CASES[name], calls, action)
        assert len(want) == {"always": calls, "default": 1, "ignore": 0}[action]
        assert warned(compiled, calls, action) == want
    assert compiled.cache_info()["entries"] == 1


def several(x):
    for i in range(2):
        x = x + x[: i + 1].std()
    tinycompile.graph_break()
    y = F.softmax(x[None] * COLUMN)
    return x.T + y.sum()


def test_as_often_as_torch_on_both_sides_of_a_break() -> None:
    assert len(warned(several)) == 3
    compiled = tinycompile.compile(several)
    for _ in range(3):
        assert warned(compiled) == warned(several)


def test_what_torch_tells_once_in_a_process_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_warnings, "_TOLD_ONCE", set())
    compiled = [tinycompile.compile(lambda x: x.T + 1), tinycompile.compile(lambda x: x.T + 2)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            for fn in compiled:
                fn(torch.ones(3))
    assert [str(w.message).startswith("The use of `x.T`") for w in caught] == [True]


def test_filters_that_change_between_calls() -> None:
    def f(x, out):
        out.append("before")
        try:
            y = F.softmax(x)
        except UserWarning:
            y = x - 1
            out.append("caught")
        return y

    compiled, results = tinycompile.compile(f), []
    for fn in (f, compiled):
        said: list[Any] = []
        for action in ("ignore", "error", "always", "error", "ignore"):
            out: list[str] = []
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter(action)
                y = fn(torch.arange(3.0), out)
            said.append((out, len(caught), y.tolist()))
        results.append(said)
    torch.testing.assert_close([y for _, _, y in results[0]], [y for _, _, y in results[1]])
    assert [(o, n) for o, n, _ in results[0]] == [(o, n) for o, n, _ in results[1]]


@pytest.mark.parametrize("name", QUIET)
def test_nothing_is_told_where_torch_is_quiet(name: str) -> None:
    assert warned(tinycompile.compile(QUIET[name])) == warned(QUIET[name]) == []


def test_once_for_all_captures_of_a_call() -> None:
    def f(x):
        y = x[:1].std()
        tinycompile.graph_break()
        return x + y

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tinycompile.compile(f)(torch.ones(3))
    assert len(caught) == 1


def test_a_filter_that_raises_raises_torchs_own() -> None:
    def f(x, out):
        out.append("before")
        y = F.softmax(x)
        out.append("behind")
        return y

    for fn in (f, tinycompile.compile(f)):
        out: list[str] = []
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(UserWarning, match="Implicit dimension choice"):
                fn(torch.ones(3), out)
        assert out == ["before"]
