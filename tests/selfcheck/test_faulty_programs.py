"""Faults in programs with more than values: random numbers, writes to inputs, backward kernels, later calls, several kernels."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import tinycompile
from tinycompile.base.errors import FallbackWarning
from tinycompile.codegen.cpp import scalars
from tinycompile.ops.table import OPS

pytestmark = pytest.mark.cpu


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tinycompile.config, "disk_cache", False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def compiled(fn: Callable[..., Any], verify: Any = "first") -> Any:
    return tinycompile.compile(fn, fullgraph=True, backend="cpp", options={"verify": verify})


@pytest.fixture
def wrong_exp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(scalars._FLOAT, "exp", "tc::exp({0}) + 0.01f")


def both(fn: Callable[..., Any], f: Callable[..., Any], *args: torch.Tensor) -> tuple[Any, Any, Any, Any]:
    """Results and arguments after the call, ours and eager's, from the same random state; the states must end alike."""
    mine, theirs = [a.clone() for a in args], [a.clone() for a in args]
    torch.manual_seed(5)
    random.seed(5)
    got = f(*mine)
    after = torch.get_rng_state(), random.getstate()
    torch.manual_seed(5)
    random.seed(5)
    want = fn(*theirs)
    assert torch.equal(after[0], torch.get_rng_state()) and after[1] == random.getstate()
    return got, want, mine, theirs


def noisy(x: torch.Tensor) -> torch.Tensor:
    return F.dropout(torch.exp(x), 0.5) + torch.randn_like(x)


def writes(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.mul_(2).exp_()
    y[1:] += x[:-1]
    return y.sum(1) + x.sum(1)


def test_random_numbers_are_drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The refuted function gives what right compiled code gives from the same state, and leaves the same state behind."""
    right = tinycompile.compile(noisy, fullgraph=True, backend="cpp")
    x = torch.randn(6, 7)
    right(x)
    monkeypatch.setitem(scalars._FLOAT, "exp", "tc::exp({0}) + 0.01f")
    f = compiled(noisy)
    with pytest.warns(FallbackWarning, match="at fault: codegen"):
        got, want, *_ = both(right, f, x)
    torch.testing.assert_close(got, want)
    got, want, *_ = both(right, f, x)
    torch.testing.assert_close(got, want)


@pytest.mark.usefixtures("wrong_exp")
def test_writes_to_inputs_happen_once() -> None:
    f = compiled(writes)
    with pytest.warns(FallbackWarning, match="at fault: codegen"):
        got, want, mine, theirs = both(writes, f, torch.randn(6, 7), torch.randn(6, 7))
    assert torch.equal(got, want) and all(map(torch.equal, mine, theirs))
    got, want, mine, theirs = both(writes, f, torch.randn(6, 7), torch.randn(6, 7))
    assert torch.equal(got, want) and all(map(torch.equal, mine, theirs))


def test_python_s_random_numbers_stay_the_program_s() -> None:
    f = compiled(lambda x: x.exp() + 1, 0.5)
    for _ in range(4):
        both(lambda x: x.exp() + 1, f, torch.randn(5))


def test_a_wrong_kernel_of_the_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(scalars._FLOAT, "cos", "tc::cos({0}, fault) + 0.01f")
    f = compiled(lambda x: torch.sin(x) * 2)
    x = torch.randn(50, requires_grad=True)
    with pytest.warns(FallbackWarning, match="at fault: codegen: the kernel"):
        f(x).sum().backward()
    torch.testing.assert_close(x.grad, 2 * torch.cos(x))


def test_a_fault_that_only_later_inputs_show(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(scalars._FLOAT, "exp", "({0} > 50 ? 1.0f : tc::exp({0}))")
    f = compiled(lambda x: torch.exp(x) + 1, "always")
    x = torch.randn(20)
    f(x)
    with pytest.warns(FallbackWarning, match="at fault: codegen"):
        assert torch.equal(f(x + 60), torch.exp(x + 60) + 1)


@pytest.mark.usefixtures("wrong_exp")
def test_of_several_kernels_the_wrong_one_is_named() -> None:
    def two(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(x) * 3
        return torch.exp(h @ w).sum(0)

    f = compiled(two)
    with pytest.warns(FallbackWarning, match=r"at fault: codegen: the kernel \w*(exp|sum)\w*") as caught:
        f(torch.randn(6, 8), torch.randn(8, 5))
    assert "tanh" not in str(caught[0].message).partition("at fault")[2].partition("(")[0]


def test_a_lowering_that_raises_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OPS, "exp", replace(OPS["exp"], lowering=OPS["neg"].lowering))
    f = compiled(lambda x: torch.exp(x).sum(1))
    x = torch.randn(4, 5)
    with pytest.warns(FallbackWarning, match="at fault: lowering"):
        assert torch.equal(f(x), torch.exp(x).sum(1))


@pytest.mark.usefixtures("wrong_exp")
def test_the_script_runs_alone_in_another_folder(tmp_path: Path) -> None:
    f = compiled(noisy)
    with pytest.warns(FallbackWarning):
        f(torch.randn(6, 7))
    (script,) = tmp_path.glob("*/repro.py")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    done = subprocess.run([sys.executable, script], cwd=elsewhere, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr  # a fresh process has the right `exp`: nothing differs there
    assert "agree" in done.stdout
