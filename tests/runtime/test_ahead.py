"""Kernels are built while more code is generated, and all of them before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import tinycompile
from tinycompile.base.errors import BackendError, FallbackWarning
from tinycompile.runtime import build as runtime_build
from tinycompile.runtime.ahead import building


@pytest.mark.pure
def test_the_outermost_waits() -> None:
    done: list[str] = []
    with building() as outer:
        with building() as inner:
            job = inner.submit(lambda: 7)
            inner.at_the_end(lambda: done.append(f"inner {job.result()}"))
        assert inner is outer and not done
        outer.at_the_end(lambda: done.append("outer"))
    assert done == ["inner 7", "outer"]
    with building() as later:
        assert later is not outer


@pytest.mark.pure
def test_what_a_job_raises_is_raised_at_the_end() -> None:
    def fail() -> None:
        raise BackendError("no")

    def leave() -> None:
        with building() as ahead:
            job = ahead.submit(fail)
            ahead.at_the_end(job.result)

    with pytest.raises(BackendError, match="no"):
        leave()
    with building() as ahead:  # and nothing of it is left
        assert not ahead.kernels


@pytest.mark.pure
def test_an_error_before_the_end_waits_for_nothing() -> None:
    def leave() -> None:
        with building() as ahead:
            ahead.at_the_end(lambda: pytest.fail("it must not be asked for"))
            raise ValueError("first")

    with pytest.raises(ValueError, match="first"):
        leave()


def program(x: torch.Tensor) -> torch.Tensor:
    return (x.sin() * x).sum()


@pytest.mark.cpu
def test_both_halves_are_generated_before_one_is_waited_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    said: list[str] = []
    emit, begin = tinycompile.compiler.emit, tinycompile.compiler.begin

    def emitted(*args: Any) -> Any:
        said.append("generated")
        return emit(*args)

    def begun(*args: Any) -> Any:
        made = begin(*args)
        return runtime_build.Begun(made.call, lambda: (said.append("waited"), made.finish())[1])

    monkeypatch.setattr("tinycompile.compiler.emit", emitted)
    monkeypatch.setattr("tinycompile.compiler.begin", begun)
    x = torch.randn(5, requires_grad=True)
    with tinycompile.config.patch(cache_dir=str(tmp_path)):
        tinycompile.compile(program)(x).backward()
    assert said == ["generated", "generated", "waited", "waited"]
    torch.testing.assert_close(x.grad, x.detach().cos() * x.detach() + x.detach().sin())
    assert len(list(tmp_path.glob("v*/*/*/meta.json"))) == 2


@pytest.mark.cpu
@pytest.mark.parametrize("training", [False, True])
def test_a_kernel_that_cannot_be_built_at_the_end(training: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(*_: Any) -> Any:
        raise BackendError("the compiler is gone")

    monkeypatch.setattr(runtime_build, "_build_cpp", fail)
    x = torch.randn(5, requires_grad=training)
    with tinycompile.config.patch(cache_dir=str(tmp_path), on_error="eager"), pytest.warns(FallbackWarning, match="is gone"):
        found = tinycompile.compile(program)(x)
    torch.testing.assert_close(found, program(x))
    if training:
        found.backward()
        torch.testing.assert_close(x.grad, x.detach().cos() * x.detach() + x.detach().sin())
    with tinycompile.config.patch(cache_dir=str(tmp_path)), pytest.raises(BackendError, match="is gone"):
        tinycompile.compile(program)(x)


@pytest.mark.cpu
def test_nothing_runs_before_it_is_built() -> None:
    with pytest.raises(tinycompile.errors.InternalError, match="before it was built"):
        runtime_build._unbuilt(0)
