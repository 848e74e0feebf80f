"""What torch warns of in eager mode is told when a call is captured, from the program's line."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

import tinycompile

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
}
QUIET: dict[str, Callable[[Any], Any]] = {
    "mse_loss": lambda x: F.mse_loss(x, ROW),
    "softmax": lambda x: F.softmax(x, 0) + F.softmax(x, dim=-1),
    "std": lambda x: x.std() + x[:1].std(correction=0),
    "kl_div": lambda x: F.kl_div(x, ROW, reduction="batchmean"),
    "T": lambda x: (x * COLUMN).T,
}


def warned(fn: Callable[..., Any]) -> set[tuple[Any, ...]]:
    """Class, the words before torch's own place, file and line."""
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            fn(torch.arange(3.0))
    finally:
        torch.set_warn_always(False)
    return {(w.category, str(w.message).partition(" (Triggered")[0], w.filename, w.lineno) for w in caught}


@pytest.mark.parametrize("name", CASES)
def test_compiled_code_warns_when_it_is_made(name: str) -> None:
    want = warned(CASES[name])
    assert len(want) == 1
    assert warned(tinycompile.compile(CASES[name])) == want


@pytest.mark.parametrize("name", QUIET)
def test_nothing_is_told_where_torch_is_quiet(name: str) -> None:
    assert warned(tinycompile.compile(QUIET[name])) == warned(QUIET[name]) == set()


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
