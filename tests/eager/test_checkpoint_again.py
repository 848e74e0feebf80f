"""The second run of a ``checkpoint``: up to the last tensor that was saved, of the same tensors, as they were saved."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import CheckpointError
from torch.utils.checkpoint import checkpoint as torchs

import tinycompile
from tinycompile.eager.checkpoint import checkpoint
from tinycompile.eager.tensor import from_torch

pytestmark = pytest.mark.cpu

Body = Callable[[Any], Any]
eagers = functools.partial(torchs, use_reentrant=False)
DATA = torch.tensor([0.1, 0.4, 0.9], dtype=torch.float64)


def ours() -> Any:
    return from_torch(DATA.clone()).requires_grad_()


def written(name: str, op: Body, *args: Any) -> Body:
    """``op``, whose result, and what it was computed of, is then written to."""

    def body(t: Any) -> Any:
        y = op(t)
        getattr(y, name)(*args)
        return y.sum()

    return body


def squared_before(t: Any) -> Any:
    y = t.exp()
    z = y * y
    y.add_(1)
    return z.sum() + y.sum()


def operand_after(t: Any) -> Any:
    a = t * 2
    z = a.sin() * 3
    a.zero_()
    return z.sum() + a.sum()


def view_after(t: Any) -> Any:
    y = t.sigmoid()
    y[1:].mul_(3)
    return y.sum()


def item_after(t: Any) -> Any:
    y = t.tanh()
    y[0] = 5.0
    return y.sum()


def in_place_twice(t: Any) -> Any:
    y = (t * 1).exp_()
    y.add_(1)
    y.neg_()
    return y.sum()


def sine_before(t: Any) -> Any:
    y = t.exp()
    z = y.sin()
    y.add_(1)
    return z.sum() + y.sum()


AFTER = {
    "add": written("add_", torch.exp, 1),
    "mul": written("mul_", torch.sigmoid, 3),
    "zero": written("zero_", torch.sqrt),
    "copy": written("fill_", torch.tanh, 2.0),
    "several": written("add_", lambda t: torch.softmax(t, 0), 1),
    "squared": squared_before,
    "operand": operand_after,
    "view": view_after,
    "item": item_after,
    "in place": in_place_twice,
    "sine": sine_before,
}


@pytest.mark.parametrize("name", AFTER)
def test_what_is_written_to_after_all_was_saved(name: str) -> None:
    body, x = AFTER[name], DATA.clone().requires_grad_()
    (wanted,) = torch.autograd.grad(eagers(body, x), x)
    z = ours()
    (found,) = tinycompile.autograd.grad(checkpoint(body, z), z)
    torch.testing.assert_close(found.torch(), wanted)
    (found,) = tinycompile.autograd.grad(checkpoint(lambda t: checkpoint(body, t.sin()).cos(), z), z)
    (wanted,) = torch.autograd.grad(eagers(lambda t: eagers(body, t.sin()).cos(), x), x)
    torch.testing.assert_close(found.torch(), wanted)


def test_second_derivatives_of_it() -> None:
    def twice(way: Any, x: Any, grad: Any) -> Any:
        (g,) = grad(way(squared_before, x), x, create_graph=True)
        return grad((g * g).sum(), x)[0]

    found = twice(checkpoint, ours(), tinycompile.autograd.grad)
    torch.testing.assert_close(found.torch(), twice(lambda _, t: (t.exp() ** 2 + t.exp()).sum(), *_torchs()))


def _torchs() -> tuple[torch.Tensor, Any]:
    return DATA.clone().requires_grad_(), torch.autograd.grad


@pytest.mark.parametrize("write", ["add_", "mul_"])
def test_what_is_written_to_before_the_last_is_refused(write: str) -> None:
    """torch takes what is in memory then, for a gradient of nothing."""

    def body(t: Any) -> Any:
        y = t.exp()
        getattr(y, write)(2)
        return (y * y).sum()

    y = checkpoint(body, ours())
    with pytest.raises(RuntimeError, match=r"modified by an inplace operation: \[torch.DoubleTensor \[3\]\] is at version 1"):
        y.backward()


def test_nothing_runs_after_the_last_tensor_that_was_saved() -> None:
    after: list[int] = []

    def body(t: Any) -> Any:
        y = t.exp()
        after.append(1)
        return y + 1

    z = ours()
    checkpoint(body, z).sum().backward()
    assert len(after) == 1


def times(counts: tuple[int, int], shapes: tuple[int, int] = (3, 3)) -> Body:
    """A function that saves so many tensors the first time, and so many the second."""
    calls: list[int] = []

    def body(t: Any) -> Any:
        again = min(len(calls), 1)
        calls.append(1)
        for _ in range(counts[again]):
            t = t[: shapes[again]].exp()
        return t

    return body


@pytest.mark.parametrize("way", ["torch's", "ours"])
def test_other_tensors_the_second_time(way: str) -> None:
    """More are not seen, fewer or others are an error."""
    run, leaf = (checkpoint, ours) if way == "ours" else (eagers, lambda: DATA.clone().requires_grad_())
    x = leaf()
    run(times((1, 2)), x).sum().backward()
    torch.testing.assert_close(torch.as_tensor(x.grad.tolist(), dtype=torch.float64), DATA.exp())
    with pytest.raises(
        CheckpointError, match=r"(?s)A different number of tensors was saved .* forward: 2\n.* recomputation: 1"
    ):
        run(times((2, 1)), leaf()).sum().backward()
    with pytest.raises(
        CheckpointError, match=r"(?s)position 0:\nsaved metadata: {'shape': torch.Size\(\[3\]\), 'dtype'.*\[2\]"
    ):
        run(times((1, 1), (3, 2)), leaf()).sum().backward()
