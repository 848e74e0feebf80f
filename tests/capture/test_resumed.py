"""Functions with graph breaks: compiled piece by piece, they do what eager does, and what follows a break is compiled too."""

from __future__ import annotations

import contextlib
import copy
import io
import time
import traceback
from typing import Any

import pytest
import torch

import tests.capture.breaking as breaking
from tests.capture.breaking import CASES, Box
from tests.capture.test_corpus import same
from tinycompile.api import CompiledFunction
from tinycompile.base.errors import GraphBreakError
from tinycompile.pieces import Options

pytestmark = pytest.mark.pure


def compiled(fn: Any, **options: Any) -> CompiledFunction:
    return CompiledFunction(fn, Options(backend="eager", resume=True, **options))


def plain(value: Any) -> Any:
    """Objects as what they hold, so that they can be compared."""
    if isinstance(value, torch.nn.Module):
        return {k: v.detach() for k, v in value.state_dict().items()}, getattr(value, "calls", None)
    if isinstance(value, Box):
        return plain(vars(value))
    if type(value) in (list, tuple):
        return type(value)(plain(v) for v in value)
    if type(value) is dict:
        return {k: plain(v) for k, v in value.items()}
    return value if not callable(value) or isinstance(value, torch.Tensor) else "callable"


def observed(run: Any, make_args: Any) -> Any:
    """Everything that a call does: result or error, output, arguments and world afterwards."""
    breaking.WORLD.clear()
    breaking.TOTAL = 0
    torch.set_grad_enabled(True)
    args, out = make_args(), io.StringIO()
    with contextlib.redirect_stdout(out):
        try:
            result = run(*args)
        except Exception as error:  # noqa: BLE001
            lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == breaking.__file__]
            result = type(error), error.args, lines, type(error.__cause__), type(error.__context__)
    grad = torch.is_grad_enabled()
    torch.set_grad_enabled(True)
    return plain([result, out.getvalue(), list(args), dict(breaking.WORLD), breaking.TOTAL, grad])


@pytest.mark.parametrize("name", list(CASES))
def test_same_as_eager(name: str) -> None:
    fn, make_args = CASES[name]
    f = compiled(fn)
    for _ in range(3):
        same(observed(f, make_args), observed(fn, make_args), name)
    if any(isinstance(a, torch.nn.Module) for a in make_args()):
        return  # another module each time
    before = [len(p._entries) for p in (f, *f.resumed.values())]
    same(observed(f, make_args), observed(fn, make_args), name)
    assert [len(p._entries) for p in (f, *f.resumed.values())] == before, f.recompiles


_ = copy, time, GraphBreakError
