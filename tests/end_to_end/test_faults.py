"""A fault of ours at any stage: one warning that names a folder, eager's answer, and no effect twice."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import tinycompile
from tinycompile.base.errors import FallbackWarning
from tinycompile.capture.guard_code import MISS

pytestmark = pytest.mark.cpu

# Where a stage begins, as its caller knows it.
CAPTURE = [
    "tinycompile.pieces.capture_from",
    "tinycompile.capture.frame.Tracer",
    "tinycompile.capture.frame._finish",
    "tinycompile.capture.frame.compile_guards",
    "tinycompile.capture.frame.define",
    "tinycompile.capture.guard_code._Compiler.entries",
    "tinycompile.capture.reconstruct.Rebuilder.function",
    "tinycompile.capture.effects.Effects.record_writes",
    "tinycompile.capture.effects.Effects.replay",
    "tinycompile.ir.builder.GraphBuilder.finish",
    "tinycompile.capture.captured.Captured.released",
    "tinycompile.capture.captured.Captured.bind",
    "tinycompile.pieces.Piece._eager_entry",
    "tinycompile.pieces.Piece._log_capture",
]
COMPILE = [
    "tinycompile.pieces.draw_in_kernels",
    "tinycompile.pieces.lookup_backend",
    "tinycompile.compiler.print_graph",
    "tinycompile.compiler.optimize",
    "tinycompile.compiler.lower",
    "tinycompile.compiler.make_plan",
    "tinycompile.compiler.emit",
    "tinycompile.compiler.begin",
    "tinycompile.compiler.DiskCache",
    "tinycompile.runtime.cache.DiskCache.put",
    "tinycompile.runtime.build._build_cpp",
    "tinycompile.runtime.build._linked",
]
TRAINING = [
    "tinycompile.pieces.compile_training",
    "tinycompile.pieces.refusals",
    "tinycompile.training.differentiate",
    "tinycompile.training.gradient_graph",
    "tinycompile.training.optimize",
    "tinycompile.training.partition",
    "tinycompile.training.attach",
]


class Fault(Exception):
    """Ours."""


def broken(*args: Any, **kwargs: Any) -> Any:
    raise Fault("injected")


def program(x: torch.Tensor, seen: list[Any], buffer: torch.Tensor) -> Any:
    seen.append(len(seen))
    buffer[1:] += x.detach()[1:]
    return (x * x).sum() + buffer.sum()


def outcome(fn: Callable[..., Any], with_gradient: bool) -> tuple[Any, ...]:
    x = torch.arange(4.0).requires_grad_(with_gradient)
    buffer, seen, total = torch.ones(4), list[Any](), list[Any]()
    for _ in range(3):
        once: list[Any] = []
        total.append(fn(x, once, buffer))
        seen.append(once)
    if with_gradient:
        total[-1].backward()
    return [t.detach() for t in total], seen, buffer, x.grad


@pytest.mark.parametrize("where", [*CAPTURE, *COMPILE, *TRAINING])
def test_a_fault_is_one_warning(where: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with_gradient = where in TRAINING
    monkeypatch.setattr(where, broken)
    compiled = tinycompile.compile(program)
    with tinycompile.config.patch(on_error="eager", cache_dir=str(tmp_path)), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        got = outcome(compiled, with_gradient)
    assert [w.category for w in caught] == [FallbackWarning], [str(w.message) for w in caught]
    folder = re.search(r"Artifacts: (\S+)", str(caught[0].message))
    assert "injected" in str(caught[0].message) and folder is not None and any(Path(folder[1]).iterdir())
    monkeypatch.undo()
    torch.testing.assert_close(got, outcome(program, with_gradient))


@pytest.mark.parametrize("where", ["tinycompile.pieces.capture_from", "tinycompile.compiler.lower"])
def test_the_setting_raises(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(where, broken)
    with tinycompile.config.patch(on_error="raise", disk_cache=False), pytest.raises(Fault):
        tinycompile.compile(program)(torch.ones(4), [], torch.ones(4))


def test_a_fault_behind_a_break(monkeypatch: pytest.MonkeyPatch) -> None:
    """The code before the break stays compiled, and what it did is not done again."""

    def f(x: torch.Tensor, seen: list[Any]) -> Any:
        seen.append("before")
        x.mul_(2)
        tinycompile.graph_break()
        seen.append("behind")
        return x + 1

    from tinycompile import pieces

    plain = pieces.capture_from

    def second(start: Any, *rest: Any) -> Any:
        return broken() if isinstance(start, pieces.ResumeStart) else plain(start, *rest)

    monkeypatch.setattr(pieces, "capture_from", second)
    compiled, seen, x = tinycompile.compile(f), list[Any](), torch.ones(3)
    with tinycompile.config.patch(on_error="eager"), pytest.warns(FallbackWarning, match="injected"):
        torch.testing.assert_close(compiled(x, seen), torch.full((3,), 3.0))
    assert seen == ["before", "behind"] and torch.equal(x, torch.full((3,), 2.0))


def test_a_guard_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = tinycompile.compile(program)
    with tinycompile.config.patch(on_error="eager"):
        compiled(torch.ones(4), [], torch.ones(4))
        monkeypatch.setattr(compiled._entries[0], "guard", broken)
        monkeypatch.setattr(compiled._entries[0], "guarded", lambda *args: MISS)  # so it says, whatever fails in it
        seen: list[Any] = []
        with pytest.warns(FallbackWarning, match="injected"):
            compiled(torch.ones(4), seen, torch.ones(4))
        compiled(torch.ones(4), seen, torch.ones(4))
        assert seen == [0, 1]


def test_a_wrong_call_is_pythons_error() -> None:
    compiled = tinycompile.compile(program)
    with tinycompile.config.patch(on_error="eager"), warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled(torch.ones(4), [], torch.ones(4))
        for args in ((), (torch.ones(4),), (1, 2, 3, 4)):
            with pytest.raises(TypeError, match=r"program\(\)"):
                compiled(*args)


def test_an_error_of_the_program_behind_a_failed_bind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Code that could not be bound runs eagerly: what the program raises is raised once, with its effects once."""

    def f(x: torch.Tensor, seen: list[Any]) -> Any:
        seen.append(1)
        if len(seen) > 1:
            raise ValueError("the program's")
        return x + 1

    monkeypatch.setattr("tinycompile.capture.captured.Captured.bind", broken)
    compiled, seen = tinycompile.compile(f), list[Any]()
    with tinycompile.config.patch(on_error="eager"), pytest.warns(FallbackWarning):
        compiled(torch.ones(2), seen)
        with pytest.raises(ValueError, match="the program's"):
            compiled(torch.ones(2), seen)
    assert seen == [1, 1]
