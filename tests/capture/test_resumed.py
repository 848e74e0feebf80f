"""Functions with graph breaks: compiled piece by piece, they do what eager does, and what follows a break is compiled too."""

from __future__ import annotations

import contextlib
import gc
import inspect
import io
import threading
import traceback
import weakref
from typing import Any

import pytest
import torch

import tests.capture.breaking as breaking
from tests.capture.breaking import CASES, Box
from tests.capture.test_corpus import same
from tinycompile.api import CompiledFunction
from tinycompile.base.errors import GraphBreakError
from tinycompile.options import Options

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


def test_a_loop_of_10000_breaks_runs_in_constant_stack() -> None:
    depths = set()

    def f(x, n):
        total = 0
        for _ in range(n):
            x = x + 1
            total += int(x[0])
            depths.add(_depth())
        return x, total

    g = compiled(f)
    got = g(torch.zeros(2), 10_000)
    same(got, (torch.full((2,), 10_000.0), sum(range(1, 10_001))))
    assert len(depths) <= 2 and len(g.graphs) < 12


def _depth() -> int:
    frame, depth = inspect.currentframe(), 0
    while frame is not None:
        frame, depth = frame.f_back, depth + 1
    return depth


def test_what_follows_a_break_is_compiled() -> None:
    def f(x):
        a = x.sin() + 1
        print("one")
        b = a * 2
        if b.sum() > 4:
            c = b.exp()
        else:
            c = b - 1
        return c.tanh() + a

    g = compiled(f)
    for _ in range(2):
        same(g(torch.ones(3)), f(torch.ones(3)))
    assert [[n.target for n in graph.nodes if n.kind == "call"] for graph in g.graphs] == [
        ["sin", "add"], ["mul", "sum", "gt"], ["exp", "tanh", "add"],
    ]  # fmt: skip
    assert [b.id for b in g.breaks] == ["print", "data-dependent"]
    g(-1.5 * torch.ones(3))
    assert len(g.graphs) == 4


def test_a_callee_that_breaks_is_compiled_on_its_own() -> None:
    def inner(x):
        y = x * 2
        print("inner")
        return y + 1

    breaking.__dict__["_inner"] = inner  # a global, as functions mostly are
    space = {"inner": inner}
    exec("def outer(x):\n    a = x + 1\n    b = inner(a)\n    return b * a", space)
    f = compiled(space["outer"])
    same(f(torch.ones(2)), space["outer"](torch.ones(2)))
    assert len(f.graphs) == 2
    (callee,) = f._callees.values()
    assert len(callee.graphs) == 2 and callee.original is inner


def test_fullgraph_tells_the_whole_story() -> None:
    def f(x):
        return x * x.sum().item()

    with pytest.raises(GraphBreakError, match=r"(?s)item.*test_resumed.py:\d+ in f.*why:.*hint:"):
        compiled(f, fullgraph=True)(torch.ones(2))


def test_explain_shows_every_graph_and_break() -> None:
    def f(x):
        y = x.sin()
        print("one")
        y = y.cos()
        print("two")
        return y.exp()

    text = str(compiled(f).explain(torch.ones(2)))
    assert text.count("graph break") == 2
    for op in ("sin", "cos", "exp"):
        assert f"ops.{op}(" in text


def test_a_changing_number_does_not_recompile_for_ever() -> None:
    def f(x):
        y = x.sum().item()
        return x + 1, y * 2 + 1

    g = compiled(f)
    for k in range(20):
        x = torch.full((2,), k + 0.5)
        same(g(x), f(x))
    assert max(len(p._entries) for p in (g, *g.resumed.values())) <= 3


def test_threads_share_pieces() -> None:
    def f(x):
        for i in range(3):
            x = x * 2 if x.sum().item() > 0 else x - i
        return x

    g, results = compiled(f), {}

    def work(k: int) -> None:
        results[k] = [g(torch.full((2,), float(k))) for _ in range(20)]

    threads = [threading.Thread(target=work, args=(k,)) for k in (-2, -1, 1, 2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for k, got in results.items():
        same(got, [f(torch.full((2,), float(k)))] * 20)


def test_gradients_flow_over_breaks() -> None:
    def f(x, w):
        y = (x * w).tanh()
        print("break")
        if y.sum() > 0:
            y = y * w
        return (y @ w).sum()

    grads = []
    for run in (compiled(f), f):
        x, w = torch.linspace(0, 1, 3, requires_grad=True), torch.ones(3, requires_grad=True)
        run(x, w).backward()
        grads.append([x.grad, w.grad])
    same(*grads)


def test_nothing_is_kept_alive() -> None:
    def f(x):
        y = x + 1
        box = Box(y)
        print("break")
        return box.bump(y).sum()

    g = compiled(f)
    alive = []
    for _ in range(3):
        x = torch.ones(3)
        alive.append(weakref.ref(x))
        g(x)
        del x
    gc.collect()
    assert [r() is None for r in alive] == [True, True, True]


def test_a_first_call_under_autocast_does_not_spoil_later_ones() -> None:
    f = compiled(lambda x: x[None] @ x[:, None])
    x = torch.ones(3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert f(x).dtype is torch.bfloat16 and len(f.graphs) == 1
    assert f(x).dtype is torch.float32 and len(f.graphs) == 2


def test_a_loop_over_many_layers_with_a_break_in_each() -> None:
    layers = torch.nn.ModuleList(torch.nn.Linear(2, 2) for _ in range(12))

    def f(x):
        for layer in layers:
            x = layer(x).tanh()
            print(end="")
        return x

    g = compiled(f)
    for _ in range(2):
        same(g(torch.ones(2)), f(torch.ones(2)))
    before = len(g.graphs)
    g(torch.ones(2))
    assert before == len(g.graphs) <= 26


def test_a_number_that_is_not_looked_into_any_more_equals_what_it_equals() -> None:
    def f(x, n):
        print(end="")
        return x + 1, [k for k in range(4) if k != n], 3 == n, n in (0, 3), n is None

    g = compiled(f)
    for n in (1, 0, 3, True, 0, 2, -1, 1):
        same(g(torch.ones(2), n), f(torch.ones(2), n))


def test_methods_are_equal_where_their_objects_are_one() -> None:
    def f(x):
        a, b = breaking.Box(x), breaking.Box(x)
        return a.bump == a.bump, a.bump == b.bump, a.bump != a.bump, [].append == [].append, x * 2

    same(compiled(f)(torch.ones(2)), f(torch.ones(2)))


@pytest.mark.parametrize("every", range(2, 9))
def test_a_function_that_refers_to_itself_is_made_again(every: int) -> None:
    def counting(k):
        def inner(x):
            inner.calls = getattr(inner, "calls", 0) + k
            return x * inner.calls

        return inner

    def f(x):
        g = counting(3)
        return g(x), g(x), counting(2)(g(x))

    code = f.__code__
    g = compiled(f, force=lambda c, at: c is code and at % every == 0)
    for _ in range(2):
        same(g(torch.ones(2)), f(torch.ones(2)))


class _Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x * 10  # not the true gradient: whose is used shows


def test_an_autograd_function_whose_gradient_is_asked_for() -> None:
    def f(x):
        return (_Square.apply(x * 2) + 1).sum()

    g = compiled(f)
    for _ in range(2):
        x, y = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
        g(x).backward()
        f(y).backward()
        same(x.grad, y.grad)
    with torch.no_grad():
        same(g(torch.ones(3)), f(torch.ones(3)))
    assert not g._entries[0].captured.breaks
