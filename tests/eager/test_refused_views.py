"""Views that torch lets nobody write to, nor use once their memory was written to: those of an op that gives several, those
made without gradients, and results of an ``autograd.Function``. On our tape and compiled, as torch: the same error or values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tinycompile as tc

View = Callable[[Any, Any], Any]
Write = Callable[[Any, Any, Any], Any]


def under(mode: Callable[[], Any], fn: Callable[..., Any]) -> Callable[..., Any]:
    """What is done there."""

    def inside(*args: Any) -> Any:
        with mode():
            return fn(*args)

    return inside


def function_of(lib: Any, forward: Callable[[Any], Any]) -> Any:
    class Doubled(lib.autograd.Function):
        @staticmethod
        def forward(ctx, y):
            return forward(y)

        @staticmethod
        def backward(ctx, *grads):
            return 2 * grads[0]

    return Doubled


def row(lib: Any, y: Any) -> Any:
    return y[0]


def piece(lib: Any, y: Any) -> Any:
    return y.split(1)[1]


def turned(mode: Callable[[], Any], view: View) -> View:
    return lambda lib, y: view(lib, under(mode, lambda: y.t())())


VIEWS: dict[str, View] = {
    "row": row,
    "split": piece,
    "unbind": lambda lib, y: y.unbind(0)[1],
    "chunk": lambda lib, y: y.chunk(2)[0],
    "iterated": lambda lib, y: list(y)[1],
    "row of split": lambda lib, y: y.split(1)[1][0],
    "row, no_grad": under(torch.no_grad, row),
    "split, no_grad": under(torch.no_grad, piece),
    "row, inference": under(torch.inference_mode, row),
    "split, inference": under(torch.inference_mode, piece),
    "row of no_grad": turned(torch.no_grad, row),
    "split of no_grad": turned(torch.no_grad, piece),
    "row of inference": turned(torch.inference_mode, row),
    "split of inference": turned(torch.inference_mode, piece),
    "no_grad of inference": turned(torch.inference_mode, under(torch.no_grad, row)),
    "no_grad of split": lambda lib, y: under(torch.no_grad, row)(lib, y.split(1)[1]),
    "detached": lambda lib, y: y.split(1)[1].detach(),
}
FUNCTIONS: dict[str, View] = {
    "given back": lambda lib, y: function_of(lib, lambda x: x).apply(y),
    "view of what is given": lambda lib, y: function_of(lib, lambda x: x[0]).apply(y),
    "view of what is made": lambda lib, y: function_of(lib, lambda x: (x * 2)[0]).apply(y),
    "two views": lambda lib, y: function_of(lib, lambda x: (x[0], x[1])).apply(y)[1],
    "row of a result": lambda lib, y: function_of(lib, lambda x: x * 2).apply(y)[0],
}
PLAIN: dict[str, Write] = {
    "itself": lambda v, y, x: v.mul_(2),
    "itself by what is followed": lambda v, y, x: v.mul_(x.sum()),
    "an item": lambda v, y, x: v.__setitem__(0, 1.0),
    "copied": lambda v, y, x: v.copy_(x.sum()),
    "base": lambda v, y, x: y.mul_(2),
    "base by what is followed": lambda v, y, x: y.mul_(x.sum()),
    "another view": lambda v, y, x: y[:1].mul_(x.sum()),
}
WRITES: dict[str, Write] = {
    "nothing": lambda v, y, x: None,
    **PLAIN,
    **{f"{name}, no_grad": under(torch.no_grad, write) for name, write in PLAIN.items()},
}
USES: dict[str, Callable[[Any, Any], Any]] = {
    "sum": lambda v, y: (v * 3).sum(),
    "base": lambda v, y: (y * 3).sum(),
    "view": lambda v, y: (v[..., :1] * 3).sum(),
    "detach": lambda v, y: v.detach() * 1,
    "no_grad": under(torch.no_grad, lambda v, y: v * 3),
}
FLAGS: dict[str, Callable[[Any, Any], Any]] = {
    "requires_grad": lambda v, y: v.requires_grad,
    "is_leaf": lambda v, y: v.is_leaf,
    "has grad_fn": under(torch.no_grad, lambda v, y: v.grad_fn is not None),
    "compared": lambda v, y: (v > 0).tolist(),
}
SOURCES: dict[str, Callable[[Any], Any]] = {
    "inner": lambda x: x * 1,
    "leaf": lambda x: x,
    "constant": lambda x: x.detach() * 1,
    "shared": lambda x: x.detach(),
}


def outcome(lib: Any, source: str, view: View, write: Write, use: Callable[[Any, Any], Any], wrap: Any = lambda f: f) -> Any:
    """Of a leaf of 2 x 3."""

    def program(x: Any) -> Any:
        y = SOURCES[source](x)
        v = view(lib, y)
        write(v, y, x)
        return use(v, y)

    x = lib.tensor([[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]], requires_grad=True)
    try:
        made = wrap(program)(x)
        if isinstance(made, (bool, list)):
            return made
        if made.requires_grad:
            made.backward()
    except RuntimeError as error:
        return type(error), str(error)
    return made.tolist(), made.requires_grad, None if x.grad is None else x.grad.tolist()


CASES = [(view, source) for view in VIEWS for source in SOURCES]
CASES += [(view, source) for view in FUNCTIONS for source in ("inner", "leaf")]  # of others a Function's call is not recorded


@pytest.mark.pure
@pytest.mark.parametrize(("view", "source"), CASES)
def test_on_our_tape(view: str, source: str) -> None:
    made = (VIEWS | FUNCTIONS)[view]
    for written, write in WRITES.items():
        for used, use in (USES | FLAGS).items():
            got = outcome(tc, source, made, write, use)
            assert got == outcome(torch, source, made, write, use), (written, used)


@pytest.mark.pure
def test_what_may_not_be_used_is_printed() -> None:
    def printed(lib: Any, view: View) -> str:
        y = lib.ones(2, 3).requires_grad_() * 1
        part = view(lib, y)
        y.mul_(2)
        return repr(part)

    for name in ("split", "row, no_grad", "row of inference"):
        assert printed(tc, VIEWS[name]) == printed(torch, VIEWS[name]), name


@pytest.mark.cpu
@pytest.mark.parametrize("view", VIEWS)
def test_compiled(view: str) -> None:
    def compiled(program: Any) -> Any:
        return tc.compile(program, backend="eager")

    for source in ("inner", "leaf"):
        for written in ("nothing", "itself", "base by what is followed", "base, no_grad"):
            args = torch, source, VIEWS[view], WRITES[written], USES["sum"]
            assert outcome(*args, compiled) == outcome(*args), (source, written)


# Calls through which no gradients go.
ASKED: dict[str, Callable[[Any, Any], Any]] = {
    "is_inference": lambda lib, v: v.is_inference(),
    "type": lambda lib, v: v.type(),
    "is_same_size": lambda lib, v: v.is_same_size(v),
    "equal": lambda lib, v: torch.equal(v, v),
    "its dtype": lambda lib, v: v.to(torch.float32) is v,
    "contiguous": lambda lib, v: v.contiguous() is v,
    "new_tensor": lambda lib, v: v.new_tensor([1.0]).tolist(),
    "new_zeros": lambda lib, v: v.new_zeros(2).tolist(),
    "real": lambda lib, v: v.real is v,
    "argmax": lambda lib, v: v.argmax().tolist(),
    "isnan": lambda lib, v: v.isnan().tolist(),
    "detach": lambda lib, v: v.detach().tolist(),
    "retain_grad": lambda lib, v: v.retain_grad(),
    "get_device": lambda lib, v: v.get_device(),
    "another dtype": lambda lib, v: v.to(torch.float64),
    "sum": lambda lib, v: v.sum(),
    "backward": lambda lib, v: v.sum().backward(),
    "logcumsumexp": lambda lib, v: torch.logcumsumexp(v, 0),
    "copy_": lambda lib, v: v.copy_(v),
}


@pytest.mark.parametrize("name", ASKED)
@pytest.mark.parametrize("view", ["row, no_grad", "split"])
def test_what_has_no_gradients_is_answered(view: str, name: str) -> None:
    said = []
    for lib in (tc, torch):
        y = lib.full((2, 2), 2.0).requires_grad_() * 1
        v = VIEWS[view](lib, y)
        y.mul_(2)
        try:
            said.append(ASKED[name](lib, v))
        except RuntimeError as error:
            said.append(str(error))
    assert said[0] == said[1]
