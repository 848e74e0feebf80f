"""Views made under ``no_grad`` of what requires grad: to torch they are leaves that do, too, whose gradient goes nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tinycompile

pytestmark = pytest.mark.cpu


def without_grad(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return x[1:]


SOURCES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "leaf": lambda leaf: leaf,
    "of_a_leaf": lambda leaf: leaf[1:],
    "inner": lambda leaf: leaf * 1,
    "of_an_inner": lambda leaf: (leaf * 1).t(),
    "of_its_kind": without_grad,
    "one_of_several": lambda leaf: leaf.split(2)[0],
    "plain": lambda leaf: leaf.detach(),
}
VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "row": lambda x: x[0],
    "turned": lambda x: x.transpose(0, 1),
    "expanded": lambda x: x.unsqueeze(0).expand(2, *x.shape),
    "strided": lambda x: x.as_strided((3,), (1,)),
    "piece": lambda x: x.chunk(2)[0],
    "detached": lambda x: x.detach(),
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("source", SOURCES)
def test_as_torchs(source: str, view: str) -> None:
    part = VIEWS[view]

    def used(x):
        with torch.no_grad():
            y = part(x)
        return y * 2, y.requires_grad, y

    def looked_into(x):
        with torch.no_grad():
            y = part(x)
        return y[..., 0], y

    def only_returned(x):
        with torch.no_grad():
            y = part(x)
            z = y * 2
        return y, z

    def of_a_result(x):
        h = x * 3
        with torch.no_grad():
            y = part(h)
        return h + 1, y.detach() * 2, y + 1

    def said(fn: Callable[..., Any]) -> Any:
        leaf = torch.arange(12.0).view(4, 3).clone().requires_grad_()
        found = fn(SOURCES[source](leaf))
        tensors = [t for t in found if isinstance(t, torch.Tensor)]
        loss = sum((t * 1).sum() for t in tensors)
        if loss.requires_grad:
            loss.backward()
        flags = [(t.requires_grad, t.is_leaf) if isinstance(t, torch.Tensor) else t for t in found]
        return [t.tolist() for t in tensors], flags, None if leaf.grad is None else leaf.grad.tolist()

    for fn in (used, looked_into, only_returned, of_a_result):
        assert said(tinycompile.compile(fn, backend="eager")) == said(fn), fn.__name__
