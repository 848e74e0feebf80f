"""Writes to views some of whose elements are one in memory, on our tape or on none: values and gradients are torch's, or its error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tinycompile as tc

pytestmark = [pytest.mark.pure, pytest.mark.filterwarnings("ignore:Use of .* on expanded tensors is deprecated")]

VIEWS: dict[str, Callable[[Any], Any]] = {
    "expanded": lambda y: y.expand(2, 4),
    "expanded twice": lambda y: y.expand(3, 2, 4),
    "one element": lambda y: y[:1].expand(4),
    "in front alone": lambda y: y.expand(1, 4),
    "windows": lambda y: y.unfold(0, 2, 1),
    "wide windows": lambda y: y.unfold(0, 3, 1),
    "as_strided": lambda y: y.as_strided((2, 2), (1, 1)),
    "of a view": lambda y: y.view(2, 2).t().as_strided((2, 3), (1, 1)),
    "apart": lambda y: y.unfold(0, 2, 2),
}


def _zeros_like(lib: Any, y: Any) -> Any:
    return lib.zeros(tuple(y.shape), dtype=torch.int64)


def _row(lib: Any, y: Any, **kwargs: Any) -> Any:
    return lib.ones((1, *y.shape[1:]), **kwargs)


WRITES: dict[str, Callable[[Any, Any], Any]] = {
    "all by a number": lambda lib, y: y.__setitem__(..., 5.0),
    "a row by a number": lambda lib, y: y.__setitem__(0, 5.0),
    "a column by a number": lambda lib, y: y.__setitem__((..., 0), 5.0),
    "all by a tensor": lambda lib, y: y.__setitem__(..., lib.ones(y.shape)),
    "by index": lambda lib, y: y.__setitem__(lib.tensor([0]), 3.0),
    "by index, the last dim": lambda lib, y: y.__setitem__((..., lib.tensor([1])), 3.0),
    "by index, with a gradient": lambda lib, y: y.__setitem__(lib.tensor([0]), _row(lib, y, requires_grad=True)),
    "by mask": lambda lib, y: y.__setitem__(y > 1, 0.0),
    "index_put_": lambda lib, y: y.index_put_((lib.tensor([0]),), lib.tensor(3.0)),
    "masked_fill_": lambda lib, y: y.masked_fill_(y > 1, 0.0),
    "masked_scatter_": lambda lib, y: y.masked_scatter_(y > 1, lib.ones(30)),
    "index_fill_": lambda lib, y: y.index_fill_(0, lib.tensor([0]), 2.0),
    "index_copy_": lambda lib, y: y.index_copy_(0, lib.tensor([0]), _row(lib, y)),
    "index_add_": lambda lib, y: y.index_add_(0, lib.tensor([0]), _row(lib, y)),
    "scatter_": lambda lib, y: y.scatter_(0, _zeros_like(lib, y), 1.0),
    "scatter_add_": lambda lib, y: y.scatter_add_(0, _zeros_like(lib, y), lib.ones(y.shape)),
    "fill_": lambda lib, y: y.fill_(2),
    "zero_": lambda lib, y: y.zero_(),
    "add_": lambda lib, y: y.add_(1),
    "mul_": lambda lib, y: y.mul_(lib.full(y.shape, 2.0)),
    "copy_": lambda lib, y: y.copy_(lib.ones(y.shape)),
    "exp_": lambda lib, y: y.exp_(),
    "cumsum_": lambda lib, y: y.cumsum_(0),
    "tril_": lambda lib, y: y.tril_(),
    "put_": lambda lib, y: y.put_(lib.tensor([0]), lib.tensor([9.0])),
    "lerp_": lambda lib, y: y.lerp_(lib.ones(y.shape), 0.5),
}


def outcome(lib: Any, view: Callable[[Any], Any], write: Callable[[Any, Any], Any], followed: bool) -> list[Any]:
    x = lib.arange(4.0)
    base = x.requires_grad_() * 1 if followed else x
    y = view(base)
    found = [base.tolist()]
    try:
        write(lib, y)
        found += [base.tolist(), y.tolist(), y._version, y.requires_grad]
        if base.requires_grad:
            (base * lib.arange(4.0)).sum().backward(retain_graph=True)
        if y.requires_grad:
            y.sum().backward()
    except RuntimeError as error:
        return [*found, str(error).partition("\n")[0], base.tolist()]
    return [*found, x.grad.tolist() if x.is_leaf and x.grad is not None else None]


@pytest.mark.parametrize("followed", [False, True], ids=["plain", "followed"])
@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("view", VIEWS)
def test_writes_to_elements_that_are_one_in_memory(view: str, write: str, followed: bool) -> None:
    expected = outcome(torch, VIEWS[view], WRITES[write], followed)
    assert outcome(tc, VIEWS[view], WRITES[write], followed) == expected


def test_a_write_that_fails_leaves_the_history_of_its_view() -> None:
    x = tc.arange(4.0).requires_grad_()
    y = (x * 1).unfold(0, 2, 1)
    with pytest.raises(RuntimeError):
        y.add_(tc.ones(7))
    y.sum().backward()
    assert x.grad is not None and x.grad.tolist() == [1, 2, 2, 1]
