"""Symbolic sizes: one capture serves many sizes, and what was assumed about them is guarded."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tinycompile
from tinycompile.capture.captured import CaptureOptions
from tinycompile.capture.frame import capture
from tinycompile.capture.marks import mark_dynamic, mark_static
from tinycompile.ir.interpreter import run_graph
from tinycompile.ir.verify_graph import verify_graph

pytestmark = pytest.mark.pure


def serve(fn, first, others, refused=(), options=None):
    """Capture with ``first``; the one graph must serve ``others``, and the guard refuse ``refused``."""
    captured = capture(fn, first, {}, options or CaptureOptions(dynamic=True))
    assert captured.graph is not None, str(captured.breaks[0])
    verify_graph(captured.graph)
    run = captured.bind(lambda *a: run_graph(captured.graph, a))
    for args in (first, *others):
        assert captured.guard(*args), captured.explain_failure(args, {})
        torch.testing.assert_close(run(*args), fn(*args))
    for args in refused:
        assert not captured.guard(*args)
        assert captured.explain_failure(args, {})
    return captured


def r(*shape):
    return torch.randn(*shape)


def test_pointwise():
    captured = serve(
        lambda x: torch.relu(x) * 2 + 1,
        (r(4, 8),),
        [(r(5, 9),), (r(64, 2),)],
        [(r(1, 8),), (r(4, 0),), (r(4),), (r(8, 4).t(),)],
    )
    assert len(captured.size_hints) == 2


def test_equal_sizes_are_guarded():
    serve(lambda x, y: x + y, (r(4, 8), r(4, 8)), [(r(3, 5), r(3, 5))], [(r(3, 5), r(3, 6)), (r(3, 5), r(4, 5))])


def test_shape_arithmetic():
    def f(x):
        b, t = x.shape
        half = t // 2
        return x[:, :half].reshape(b * half), x.view(-1).sum() / (b + 2 * t - 1), x * (t % 3), half, t - 1

    serve(f, (r(4, 8),), [(r(5, 11),), (r(2, 30),)])


def test_branches_on_sizes_become_guards():
    serve(lambda x: x * 2 if x.shape[0] > 10 else x + 1, (r(4, 8),), [(r(9, 3),), (r(10, 3),)], [(r(11, 8),)])
    serve(lambda x: x * 2 if x.shape[0] == x.shape[1] else x + 1, (r(4, 8),), [(r(9, 3),)], [(r(8, 8),)])
    serve(lambda x: x * 2 if x.shape[0] % 2 == 0 else x + 1, (r(4, 8),), [(r(6, 3),)], [(r(5, 8),)])


def test_sizes_that_python_needs_are_specialised():
    serve(lambda x: x * sum(range(x.shape[0])), (r(4, 8),), [(r(4, 9),)], [(r(5, 8),)])


def test_numbers_made_of_sizes_are_computed_in_each_call():
    serve(lambda x: x * x.shape[1] ** -0.5 + math.log(x.shape[0]), (r(4, 8),), [(r(5, 8),), (r(4, 9),)])
    serve(lambda x: x * 2 if x.shape[1] / 2 > 3.5 else x, (r(4, 8),), [(r(5, 9),)], [(r(4, 7),)])


def test_creation_and_reductions():
    def f(x):
        t = x.size(1)
        mask = torch.tril(torch.ones(t, t, dtype=torch.bool))
        return x.sum(1), x.mean(), torch.arange(t) + x[0], mask, torch.zeros(x.shape[0], t), x.softmax(-1)

    serve(f, (r(4, 8),), [(r(5, 11),)])


def test_attention_block():
    lin = nn.Linear(16, 48)

    def f(x):
        b, t, c = x.shape
        q, k, v = F.linear(x, lin.weight, lin.bias).split(c, dim=2)
        q, k, v = (y.view(b, t, 2, c // 2).transpose(1, 2) for y in (q, k, v))
        att = (q @ k.transpose(-2, -1)).masked_fill(torch.tril(torch.ones(t, t)) == 0, float("-inf")).softmax(-1)
        return (att @ v).transpose(1, 2).reshape(b, t, c)

    serve(f, (r(2, 6, 16),), [(r(3, 9, 16),), (r(7, 30, 16),)])


def test_a_size_seen_to_change_becomes_symbolic():
    f = lambda x: x * 2
    first = capture(f, (r(4, 8),), {})
    assert not first.size_hints
    second = serve(f, (r(5, 8),), [(r(6, 8),), (r(100, 8),)], [(r(6, 9),), (r(1, 8),)], CaptureOptions(earlier=(first,)))
    assert list(second.size_hints.values()) == [5]
    assert not capture(f, (r(5, 8),), {}, CaptureOptions(dynamic=False, earlier=(first,))).size_hints
    assert not capture(f, (r(1, 8),), {}, CaptureOptions(earlier=(first,))).size_hints  # 1 stays static


def test_marks():
    x = r(4, 8)
    mark_dynamic(x, 0)
    captured = serve(lambda x: x + 1, (x,), [(r(7, 8),)], [(r(7, 9),)], CaptureOptions())
    assert len(captured.size_hints) == 1
    y = r(4, 8)
    mark_static(y, 1)
    serve(lambda x: x + 1, (y,), [(r(7, 8),)], [(r(7, 9),)])


def test_requested_dims_and_integers():
    f = lambda x, n: x[:n] * n
    options = CaptureOptions(dynamic_dims={("x", 0): True, ("n", None): True})
    serve(f, (r(6, 3), 4), [(r(9, 3), 5)], [(r(9, 4), 5), (r(9, 3), 1)], options)
    first = capture(f, (r(6, 3), 4), {})
    second = capture(f, (r(6, 3), 5), {}, CaptureOptions(earlier=(first,)))
    assert second.graph is not None and second.guard(r(6, 3), 3) and not second.guard(r(6, 3), 1)


def test_strides_are_symbolic_too():
    serve(lambda x: x + 1, (r(4, 6, 8),), [(r(3, 5, 9),)], [(r(3, 9, 5).transpose(1, 2),)])
    serve(lambda x: x + 1, (r(8, 4).t(),), [(r(9, 5).t(),)], [(r(9, 5),)])


def test_extern_calls_specialise():
    captured = capture(lambda x: torch.fft.rfft(x).real, (r(4, 8),), {}, CaptureOptions(dynamic=True))
    assert captured.graph is None or not captured.guard(r(5, 8))


def test_returned_sizes():
    serve(lambda x: (x.shape, x.shape[0] * 2 + 1, x.numel()), (r(4, 8),), [(r(5, 9),)])


RANGES = {
    "step": lambda x, n: torch.arange(0, n, 0.5),
    "start": lambda x, n: torch.arange(0.5, n),
    "down": lambda x, n: torch.arange(n, 0.5, -1.0),
    "zero": lambda x, n: torch.arange(0.0, n),
    "end": lambda x, n: torch.arange(0, 9.5, n),
    "named": lambda x, n: torch.arange(start=0, end=2 * n + 1, step=0.25, dtype=torch.float64),
    "whole": lambda x, n: torch.arange(0, n, 2.0, dtype=torch.int32),
    "divided": lambda x, n: torch.arange(0, n, n / 4),
    "wrong way": lambda x, n: torch.arange(n, 0, 0.5),
    "no step": lambda x, n: torch.arange(0, n, 0.0),
    "bool": lambda x, n: torch.arange(0, n, True),
}


@pytest.mark.parametrize("given", ["size", "number"])
@pytest.mark.parametrize("fn", RANGES.values(), ids=list(RANGES))
def test_ranges_of_floats_and_sizes(fn, given):
    def told(run, n):
        try:
            return repr(run(torch.ones(n), n))
        except RuntimeError as error:
            return str(error)

    asked = (lambda x, n: fn(x, x.shape[0])) if given == "size" else fn
    compiled = tinycompile.compile(asked, backend="eager")
    for n in (4, 5, 6):
        assert told(compiled, n) == told(asked, n)


PARTS_OF_ONE = {  # of a vector of two elements or more, and of a matrix
    "picked": lambda x, o: x[o[1:]],
    "picked before": lambda x, o: x[o[:-1]],
    "columns": lambda x, o: x[:, o[1:]],
    "picked, new axis": lambda x, o: x[o[1:], None],
    "picked by two": lambda x, o: x[o[1:], o[1:]],
    "viewed": lambda x, o: (o[1:].view(-1, 1), o[1:].view(1, -1), o[:-1].unsqueeze(0).view(-1)),
    "strided": lambda x, o: (x[: o.shape[0] - 1].view(1, -1, 7), x.t()[:, : o.shape[0] - 1].reshape(7, -1)),
    "flattened": lambda x, o: (x[1 : o.shape[0]].flatten(), x[1 : o.shape[0], : o.shape[0] - 1].reshape(-1)),
}


@pytest.mark.parametrize("fn", PARTS_OF_ONE.values(), ids=list(PARTS_OF_ONE))
def test_a_symbolic_size_that_is_one(fn):
    """A size like ``s - 1`` is no symbol that is known not to be one."""
    compiled, x = tinycompile.compile(fn, backend="eager"), r(7, 7)
    for n in (3, 2, 4, 1, 5, 2):
        o = torch.arange(n)
        got, want = compiled(x, o), fn(x, o)
        for a, b in zip(*((r,) if isinstance(r, torch.Tensor) else r for r in (got, want)), strict=True):
            assert torch.equal(a, b) and a.stride() == b.stride()
