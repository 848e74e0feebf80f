"""Calls that no record covers are torch's to answer, one example at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import tinycompile as tc
from tinycompile.eager.tensor import from_torch

pytestmark = [pytest.mark.pure, pytest.mark.filterwarnings("ignore:vmap calls")]


def integers(*shape: int) -> torch.Tensor:
    return (torch.arange(torch.Size(shape).numel()) % 5 + 1).view(shape)


PLACES, SQUARES = torch.tensor([0, 1, 0]), torch.arange(8.0).view(2, 2, 2)
REDUCES = [(how, with_self) for how in ("sum", "prod", "mean", "amax", "amin") for with_self in (True, False)]

# Name -> a function of examples, and their tensors with the examples first.
CALLS: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    **{
        f"scatter_reduce {how} {with_self}": (
            lambda a, how=how, with_self=with_self: a.scatter_reduce(0, PLACES, a * 2, how, include_self=with_self),
            (torch.arange(6.0).view(2, 3),),
        )
        for how, with_self in REDUCES
    },
    "select_scatter": (lambda a: torch.select_scatter(a, a[0], 0, 1), (SQUARES,)),
    "slice_scatter": (lambda a: torch.slice_scatter(a, a[:1], 0, 1), (SQUARES,)),
    "diagonal_scatter": (lambda a: torch.diagonal_scatter(a, a[0]), (SQUARES,)),
    "dot of integers": (torch.dot, (integers(2, 3), integers(2, 3))),
    "vdot of integers": (torch.vdot, (integers(2, 3), integers(2, 3))),
    "trapezoid of integers": (torch.trapezoid, (integers(2, 3),)),
    "cumulative_trapezoid of integers": (torch.cumulative_trapezoid, (integers(2, 3),)),
    "mvlgamma of integers": (lambda a: torch.mvlgamma(a, 2), (integers(2, 3),)),
    "avg_pool2d of integers": (lambda a: F.avg_pool2d(a, 2), (integers(2, 1, 4, 4),)),
    "max_pool2d of integers": (lambda a: F.max_pool2d(a, 2), (integers(2, 1, 4, 4),)),
    "poisson_nll_loss of integers": (F.poisson_nll_loss, (integers(2, 3), integers(2, 3))),
    "cosine_embedding_loss of integers": (F.cosine_embedding_loss, (integers(2, 3, 2), integers(2, 3, 2), integers(2, 3))),
    "triplet_margin_loss of integers": (F.triplet_margin_loss, (integers(2, 3, 2),) * 3),
    "pixel_unshuffle of nothing": (lambda a: F.pixel_unshuffle(a, 2), (torch.zeros(2, 0, 4, 4),)),
    "gather of nothing": (lambda a: a.gather(0, torch.zeros(0)), (torch.ones(2, 3),)),
    "matrix_exp": (torch.matrix_exp, (torch.arange(24.0).view(2, 3, 2, 2) / 24,)),
    "native_group_norm": (lambda a: torch.native_group_norm(a, None, None, 2, 4, 3, 2, 1e-5), (torch.arange(48.0).view(2, 2, 4, 3),)),
    "lstsq": (lambda a: torch.linalg.lstsq(a, a[:, :1]), (torch.eye(3).expand(2, 3, 3),)),
    "attention of other ranks": (F.scaled_dot_product_attention, (torch.ones(2, 4, 3, 8), *[torch.ones(2, 4, 4, 6, 8)] * 2)),
}  # fmt: skip


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("name", CALLS)
def test_as_torchs(name: str, last: bool) -> None:
    """Examples along the first dim, and along the last."""
    fn, given = CALLS[name]
    dim = -1 if last else 0
    given = tuple([t.movedim(0, -1).contiguous() for t in given]) if last else given
    want = torch.vmap(fn, in_dims=dim)(*given)
    got = tc.vmap(fn, in_dims=dim)(*map(from_torch, given))
    for w, g in zip(want, got, strict=True) if isinstance(want, tuple) else [(want, got)]:
        torch.testing.assert_close(g.torch(), w)
