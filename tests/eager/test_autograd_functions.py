"""``autograd.Function`` and complex numbers on our tape beside torch's; graphs that nest, that threads share, that are deep."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from tests.eager.test_autograd import Side, outcome, same
from tinycompile.eager import autograd
from tinycompile.eager.checkpoint import checkpoint
from tinycompile.eager.factories import ones
from tinycompile.eager.tensor import from_torch

pytestmark = pytest.mark.pure
PROGRAMS: list[Callable[[Side], Any]] = []


def program(fn: Callable[[Side], Any]) -> Callable[[Side], Any]:
    PROGRAMS.append(fn)
    return fn


# --- Function ----------------------------------------------------------------------------------------------------------------


def several(s: Side, materialize: bool) -> Any:
    class Several(s.Function):  # type: ignore[misc, name-defined]
        @staticmethod
        def forward(ctx: Any, x: Any, y: Any, name: str) -> Any:
            ctx.set_materialize_grads(materialize)
            ctx.seen = ctx.needs_input_grad
            return x * 2, y * 3, name, (x > 0)

        @staticmethod
        def backward(ctx: Any, a: Any, b: Any, name: Any, positive: Any) -> Any:
            ctx.given.append((a is None, b is None))
            return None if a is None else a * 2, None if b is None else b * 3, None

    return Several


@program
def undefined_gradients_are_zeros_or_none(s: Side) -> Any:
    found = []
    for materialize in (True, False):
        x, y = s.leaf(3), s.leaf(3, seed=1)
        a, b, name, positive = several(s, materialize).apply(x, y, "n")
        a.grad_fn.given = []
        (a * a).sum().backward()
        found += [x.grad, y.grad, name, positive.requires_grad, tuple(a.grad_fn.given), a.grad_fn.seen]
    return tuple(found)


@program
def a_function_saves_what_is_neither_input_nor_result(s: Side) -> Any:
    class Sin(s.Function):  # type: ignore[misc, name-defined]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x.cos(), None)
            return x.sin()

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            slope, nothing = ctx.saved_tensors
            assert nothing is None
            return g * slope

    x = s.leaf(3)
    Sin.apply(x).sum().backward()
    return x.grad


@program
def a_functions_saved_input_is_changed(s: Side) -> Any:
    class Square(s.Function):  # type: ignore[misc, name-defined]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return 2 * g * ctx.saved_tensors[0]

    x = s.leaf(3) * 1
    y = Square.apply(x)
    x.add_(1)
    y.sum().backward()


@program
def a_function_that_returns_its_input(s: Side) -> Any:
    class Same(s.Function):  # type: ignore[misc, name-defined]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * 4

    x = s.leaf(3)
    y = Same.apply(x)
    y.sum().backward()
    return x.grad, y is x


@program
def a_function_that_writes_to_a_leaf(s: Side) -> Any:
    class Write(s.Function):  # type: ignore[misc, name-defined]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.mark_dirty(x)
            return x.mul_(2)

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g

    Write.apply(s.leaf(3))


@program
def a_function_that_does_not_return_what_it_wrote(s: Side) -> Any:
    class Write(s.Function):  # type: ignore[misc, name-defined]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.mark_dirty(x)
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g

    Write.apply(s.leaf(3) * 1)


@program
def a_function_without_a_backward(s: Side) -> Any:
    class Half(s.Function):  # type: ignore[misc, name-defined]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

    Half.apply(s.leaf(3)).sum().backward()


@program
def a_backward_within_a_backward(s: Side) -> Any:
    class Inner(s.Function):  # type: ignore[misc, name-defined]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x.sin()

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            with torch.enable_grad():
                x = ctx.saved_tensors[0].detach().requires_grad_()
                y = x.sin().sum()
            y.backward()
            return g * x.grad

    x = s.leaf(3)
    (Inner.apply(x) * 2).sum().backward()
    return x.grad


# --- complex numbers ---------------------------------------------------------------------------------------------------------


@program
def through_complex_numbers_and_back(s: Side) -> Any:
    x = s.leaf(4)
    spectrum = torch.fft.rfft(x) * 2
    (spectrum.abs().sum() + torch.fft.irfft(spectrum).sin().sum()).backward()
    return x.grad


@program
def a_cast_to_complex(s: Side) -> Any:
    x = s.leaf(4)
    z = x.to(torch.complex128)
    (z * (1 + 2j)).abs().sum().backward()
    return z.requires_grad, x.grad


@program
def complex_numbers_written_in_place(s: Side) -> Any:
    x = s.leaf(4)
    z = torch.fft.fft(x)
    z.mul_(1 + 2j)
    (z * z.conj()).real.sum().backward()
    return x.grad


@program
def a_complex_loss(s: Side) -> Any:
    torch.complex(s.leaf(1), s.leaf(1)).sum().backward()


@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda f: f.__name__)
def test_as_torch(fn: Callable[[Side], Any]) -> None:
    mine, theirs = outcome(fn, Side(True)), outcome(fn, Side(False))
    assert mine[1] == theirs[1]
    same(mine[0], theirs[0])
    assert mine[2] == theirs[2]


# --- what has no twin in torch's tests ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [lambda z: from_torch(z).requires_grad_(), lambda z: from_torch(z).requires_grad_(True) * 2])
def test_complex_leaves_are_refused_clearly(make: Callable[[torch.Tensor], Any]) -> None:
    with pytest.raises(NotImplementedError, match=r"does not differentiate complex tensors; torch's does: use torch tensors"):
        make(torch.zeros(2, dtype=torch.complex64))


def test_checkpoints_nest_and_save_inputs_alone() -> None:
    side, calls = Side(True), []

    def inner(x: Any) -> Any:
        calls.append("inner")
        return torch.tanh(x.exp() * 0.1)

    def outer(x: Any, w: Any) -> Any:
        calls.append("outer")
        return checkpoint(inner, x @ w) * 2

    found = []
    for run in (checkpoint, lambda f, *a: f(*a)):
        x, w = side.leaf(4, 3), side.leaf(3, 3, seed=1)
        made = run(outer, x, w)
        held = weakref.ref(made)
        found.append(side.plain(autograd.grad(made.sum(), (x, w))))
        del made
        assert held() is None
    same(*found)
    assert calls[:2] == ["outer", "inner"] and calls.count("outer") == 3 and calls.count("inner") >= 3


def test_anomaly_mode_names_the_line_in_a_deep_call_and_checks_no_numbers_when_told() -> None:
    def deep(x: Any) -> Any:
        return x.log()  # the culprit

    with autograd.detect_anomaly(check_nan=False):
        x = from_torch(torch.zeros(2)).requires_grad_()
        (deep(x) * 0).sum().backward()
        assert x.grad.raw().isnan().all()
        y = from_torch(torch.zeros(2)).requires_grad_()
        out = deep(y * 1)
    with autograd.detect_anomaly(), pytest.warns(UserWarning, match=r"x\.log\(\)  # the culprit"), pytest.raises(RuntimeError):
        (out * 0).sum().backward()


def test_two_threads_share_one_graph() -> None:
    """Each runs the same graph again and again; what is added to the leaf is all of it."""
    x = ones(50, requires_grad=True)
    y = (x.exp() * x).sum()
    errors: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(25):
                y.backward(retain_graph=True)
        except BaseException as error:  # noqa: BLE001  # a thread's errors are told by the test
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors
    torch.testing.assert_close(x.grad.raw(), torch.full((50,), 50 * 2 * torch.e))


def test_a_deep_graph_of_views_and_writes() -> None:
    """20,000 writes through a view: each is a CopySlices; the engine and the destructors are iterative."""
    x = ones(2, requires_grad=True)
    y = x * 1
    row = y[0:1]
    for _ in range(20_000):
        row.add_(0.0)
    (y * 2).sum().backward()
    assert x.grad.tolist() == [2.0, 2.0]
    del y, row


def test_dropped_gradients_free_their_part_of_the_graph() -> None:
    """A branch that is not part of the loss goes with its tensor, before any backward."""
    x = ones(1000, requires_grad=True)
    kept, dropped = x.exp(), x.sin().exp()
    node = weakref.ref(dropped.grad_fn)
    del dropped
    assert node() is None
    F.relu(kept).sum().backward()
    assert x.grad is not None
