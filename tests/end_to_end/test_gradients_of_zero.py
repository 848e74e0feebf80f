"""Arguments whose values count for nothing: torch gives them gradients of zeros, or none at all, and so do we."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tinycompile

pytestmark = pytest.mark.cpu

M, N = torch.linspace(-1, 2, 12).reshape(3, 4), torch.linspace(1, 3, 12).reshape(3, 4)
ROW, COLUMN = N[0], N[:, 0]
CALLS: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "addr, beta": (lambda m, v, w: torch.addr(m, v, w, beta=0), (M, COLUMN, ROW)),
    "addr, alpha": (lambda m, v, w: torch.addr(m, v, w, alpha=0), (M, COLUMN, ROW)),
    "addmm, beta": (lambda m, a, b: torch.addmm(m, a, b, beta=0), (M[:, :3], M, N.t())),
    "addmm, alpha": (lambda m, a, b: torch.addmm(m, a, b, alpha=0), (M[:, :3], M, N.t())),
    "addmv": (lambda v, m, w: torch.addmv(v, m, w, beta=0), (COLUMN, M, ROW)),
    "addbmm": (lambda m, a, b: torch.addbmm(m, a[None], b[None], beta=0), (M[:, :3], M, N.t())),
    "add": (lambda a, b: torch.add(a, b, alpha=0), (M, N)),
    "addcmul": (lambda a, b, c: torch.addcmul(a, b, c, value=0), (M, N, M)),
    "lerp": (lambda a, b: torch.lerp(a, b, 0.0), (M, N)),
    "pow": (lambda a: a**0, (M,)),
    "rounding": (lambda a, b: a.floor() + b.round() + torch.trunc(a) + torch.sign(b), (M, N)),
    "clamp": (lambda a: a.clamp(1, 0), (M,)),
    "mask": (lambda a, b: a.masked_fill(a == a, 1.0) + b, (M, N)),
    "empty": (lambda a, b: a[:0].sum() + b.sum(), (M, N)),
    "zero_": (lambda a, b: (a * 1).zero_() + b, (M, N)),
    "copy_": (lambda a, b: (a * 1).copy_(b), (M, N)),
    "like": (lambda a, b: torch.zeros_like(a) + b, (M, N)),
    "index_copy": (lambda a, b: a.index_copy(0, torch.arange(3), b), (M, N)),
    "floor division": (lambda a, b: torch.div(a, b, rounding_mode="floor"), (M, N)),
}


def gradients(fn: Callable[..., Any], args: list[Any]) -> list[Any]:
    fn(*args).sum().backward()
    return [None if x.grad is None else torch.as_tensor(x.grad) for x in args]


@pytest.mark.parametrize("name", CALLS)
def test_zeros_or_none(name: str) -> None:
    fn, args = CALLS[name]

    def leaves() -> list[torch.Tensor]:
        return [x.clone().requires_grad_() for x in args]

    want = gradients(fn, leaves())
    ours = [tinycompile.from_torch(x.clone()).requires_grad_() for x in args]
    for got in (gradients(tinycompile.compile(fn), leaves()), gradients(fn, ours)):
        assert [g is None for g in got] == [w is None for w in want]
        for g, w in zip(got, want, strict=True):
            torch.testing.assert_close(g, w)
