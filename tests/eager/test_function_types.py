"""Arguments by name, and values that are no tensors, where ``autograd.Function`` and hooks of saved tensors meet them: as torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.eager.test_autograd import Side, outcome, same
from tinycompile.eager import autograd

pytestmark = pytest.mark.pure


def weighted(s: Side, splits: bool, returned: Callable[[Any], Any] = lambda g: (g * 2, g * 3, None)) -> Any:
    """``2 * x + 3 * y`` by hand, as a gradient says."""

    class Weighted(s.Function):  # type: ignore[misc, name-defined]
        @staticmethod
        def forward(ctx: Any, x: Any, y: Any, k: int = 2) -> Any:
            ctx.seen = ctx.needs_input_grad
            return x * 2 + y * 3 * k

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return returned(grad)

    class Split(s.Function):  # type: ignore[misc, name-defined]
        @staticmethod
        def forward(x: Any, y: Any, k: int = 2) -> Any:
            return x * 2 + y * 3 * k

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.seen = ctx.needs_input_grad, inputs[2]

        backward = Weighted.backward

    return Split if splits else Weighted


@pytest.mark.parametrize("splits", [False, True], ids=["with ctx", "setup_context"])
@pytest.mark.parametrize(
    "given", ["x, y", "x, y=y", "y=y, x=x", "x, k=3, y=y", "y=y, x=x, k=4", "x, y, 5", "x=x.detach(), y=y"]
)
def test_arguments_by_name(given: str, splits: bool) -> None:
    def fn(s: Side) -> Any:
        x, y = s.leaf(3), s.leaf(3, seed=1)
        made = eval(f"apply({given})", {"apply": weighted(s, splits).apply, "x": x, "y": y})
        seen = made.grad_fn.seen
        made.sum().backward()
        return made, x.grad, y.grad, seen

    mine, theirs = outcome(fn, Side(True)), outcome(fn, Side(False))
    assert mine[1] is None and theirs[1] is None
    same(mine[0], theirs[0])


@pytest.mark.parametrize("splits", [False, True], ids=["with ctx", "setup_context"])
@pytest.mark.parametrize("given", ["x, y, j=3", "x", "x, y, 3, 4", "x, y, x=y", "x, k=y"])
def test_arguments_that_do_not_fit(given: str, splits: bool) -> None:
    def fn(s: Side) -> Any:
        x, y = s.leaf(3), s.leaf(3, seed=1)
        return eval(f"apply({given})", {"apply": weighted(s, splits).apply, "x": x, "y": y})

    for side in (Side(True), Side(False)):
        assert outcome(fn, side)[1][0] is TypeError


RETURNED: dict[str, Callable[[Any], Any]] = {
    "an int": lambda g: (1, None, None),
    "a float": lambda g: (g, 2.0, None),
    "a string": lambda g: ("g", g, None),
    "a list in it": lambda g: ([g], g, None),
    "one number": lambda g: 1,
    "a list": lambda g: [g, g, None],
    "too few": lambda g: (g, g),
    "more, of None": lambda g: (g, g, None, None),
}


@pytest.mark.parametrize("returned", RETURNED)
def test_gradients_that_are_none(returned: str) -> None:
    def fn(s: Side) -> Any:
        x, y = s.leaf(3), s.leaf(3, seed=1)
        weighted(s, False, RETURNED[returned]).apply(x, y, 2).sum().backward()
        return x.grad, y.grad

    mine, theirs = outcome(fn, Side(True)), outcome(fn, Side(False))
    assert mine[1] == theirs[1]
    same(mine[0], theirs[0])


@pytest.mark.parametrize("saved", [3, "s", 2.5, (), [], None], ids=repr)
@pytest.mark.parametrize("grad", [True, False])
def test_only_tensors_are_saved(saved: Any, grad: bool) -> None:
    def fn(s: Side) -> Any:
        class Saving(s.Function):  # type: ignore[misc, name-defined]
            @staticmethod
            def forward(ctx: Any, x: Any) -> Any:
                ctx.save_for_backward(x, saved)
                return x * 2

            @staticmethod
            def backward(ctx: Any, g: Any) -> Any:
                return g * 2 if ctx.saved_tensors[1] is None else None

        x = s.leaf(3, grad=grad)
        made = Saving.apply(x)
        if grad:
            made.sum().backward()
        return made, x.grad

    mine, theirs = outcome(fn, Side(True)), outcome(fn, Side(False))
    assert mine[1] == theirs[1]
    same(mine[0], theirs[0])


def hooked(pack: Callable[[Any], Any], unpack: Callable[[Any], Any], op: Callable[[Any], Any]) -> Callable[[Side], Any]:
    def fn(s: Side) -> Any:
        x = s.leaf(3)
        hooks = autograd.saved_tensors_hooks if s.ours else torch.autograd.graph.saved_tensors_hooks
        with hooks(pack, unpack):
            y = op(x * 1)
        y.sum().backward()
        return x.grad

    return fn


@pytest.mark.parametrize(
    "write", [lambda t: t.add_(1), lambda t: t[0].zero_(), lambda t: t.mul_(t)], ids=["all", "item", "own"]
)
@pytest.mark.parametrize("op", [torch.exp, torch.sin, lambda t: t * t], ids=["result", "operand", "twice"])
def test_a_pack_hook_that_writes_to_its_input(write: Callable[[Any], Any], op: Callable[[Any], Any]) -> None:
    def pack(t: Any) -> Any:
        write(t)
        return t

    fn = hooked(pack, lambda t: t, op)
    mine, theirs = outcome(fn, Side(True)), outcome(fn, Side(False))
    assert mine[1] is not None and mine[1] == theirs[1]


def test_a_pack_hook_that_writes_to_a_copy() -> None:
    fn = hooked(lambda t: t.clone().neg_(), lambda t: t.neg(), torch.exp)
    same(outcome(fn, Side(True))[0], outcome(fn, Side(False))[0])


@pytest.mark.parametrize("unpacked", [3, None, "s", [1.0]], ids=repr)
def test_an_unpack_hook_that_gives_no_tensor(unpacked: Any) -> None:
    fn = hooked(lambda t: t, lambda t: unpacked, torch.exp)
    mine, theirs = outcome(fn, Side(True)), outcome(fn, Side(False))
    assert mine[1] is not None and mine[1] == theirs[1]
