"""``disable``, ``graph_break``, ``allow_in_graph``, ``assume_constant_result``."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import tinycompile

pytestmark = pytest.mark.pure
X = torch.arange(4.0)


def test_graph_break_splits_the_graph() -> None:
    @tinycompile(backend="eager")
    def f(x):
        y = x + 1
        tinycompile.graph_break()
        return y * 2

    torch.testing.assert_close(f(X), (X + 1) * 2)
    assert len(f.graphs) == 2 and [b.id for b in f.breaks] == ["user-break"]
    assert tinycompile.graph_break() is None


def test_a_disabled_function_runs_in_plain_python() -> None:
    compiling = []

    def inner(x, *, k=2):
        compiling.append(tinycompile.is_compiling())
        return x * k

    disabled = tinycompile.disable(inner)
    assert not hasattr(inner, "_tinycompile_mark") and disabled.__name__ == "inner"

    @tinycompile(backend="eager")
    def f(x):
        return disabled(x + 1, k=3) - 1

    for _ in range(2):
        torch.testing.assert_close(f(X), (X + 1) * 3 - 1)
    assert compiling == [False, False] and len(f.graphs) == 2 and f.breaks[0].id == "disabled"
    assert tinycompile.compile(disabled) is disabled
    with pytest.raises(tinycompile.GraphBreakError, match="inner"):
        tinycompile.compile(f.original, backend="eager", fullgraph=True)(X)


def test_disable_as_a_decorator_on_methods_and_modules() -> None:
    class Model(nn.Module):
        def forward(self, x):
            return self.part(x) * 2

        @tinycompile.disable
        def part(self, x):
            assert not tinycompile.is_compiling()
            return x + 1

    m = Model()
    f = tinycompile.compile(m, backend="eager")
    torch.testing.assert_close(f(X), (X + 1) * 2)
    inner = nn.Sequential(nn.ReLU(), tinycompile.disable(Model()), nn.ReLU())
    g = tinycompile.compile(lambda x: inner(x) + 1, backend="eager")
    torch.testing.assert_close(g(X), (X + 1) * 2 + 1)
    with pytest.raises(TypeError, match="Python function"):
        tinycompile.disable(3)


def test_allow_in_graph_is_one_opaque_call() -> None:
    @tinycompile.allow_in_graph
    def odd(x, k):
        y = x * k
        if y.numel() > 100:
            print("never followed")
        return y + 1

    f = tinycompile.compile(lambda x: odd(x * 2, 3) * 2, backend="eager", fullgraph=True)
    torch.testing.assert_close(f(X), (X * 6 + 1) * 2)
    (extern,) = [n for n in f.graphs[0].nodes if n.kind == "extern"]
    assert "odd" in extern.target


def test_allow_in_graph_takes_gradients() -> None:
    @tinycompile.allow_in_graph
    def cube(x):
        return x**3

    x = X.clone().requires_grad_()
    tinycompile.compile(lambda x: cube(x).sum(), backend="eager")(x).backward()
    torch.testing.assert_close(x.grad, 3 * X**2)


def test_assume_constant_result_calls_once() -> None:
    calls = []

    class Config:
        pass

    config = Config()

    @tinycompile.assume_constant_result
    def scale(c, k):
        calls.append(k)
        return [2.0, torch.ones(4)]

    @tinycompile(backend="eager", fullgraph=True)
    def f(x):
        factor, offset = scale(config, 7)
        return x * factor + offset

    for _ in range(3):
        torch.testing.assert_close(f(X), X * 2 + 1)
    assert calls == [7]
