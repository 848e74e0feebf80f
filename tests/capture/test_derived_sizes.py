"""Sizes that are worked out of others, ``s - 1`` or ``s // 2``: unlike a symbol they may be 1 or 0 in a later call, or negative,
and what a rule decides by that holds for no other call."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import tinycompile
from tinycompile.runtime.cpp_build import compiler

pytestmark = pytest.mark.pure

SHAPES = (((5, 6), (3, 3), (2, 2), (4, 4), (2, 5), (1, 2)), ((2, 2), (5, 5), (2, 4), (3, 2)))
OF_A_MATRIX: dict[str, Callable[[Any], Any]] = {
    "squeezed": lambda x: x[1:].squeeze(0) * 2,
    "squeezed, all dims": lambda x: x[: x.shape[0] // 2].squeeze() * 2,
    "squeezed, made": lambda x: (x * 1)[1:].squeeze(0),
    "squeezed, moved": lambda x: x[1:].unsqueeze(0).squeeze(1),
    "squeezed, narrowed": lambda x: x.narrow(0, 1, x.shape[0] - 1).squeeze(0),
    "reduced after": lambda x: x[1:].squeeze(0).sum(0),
    "its rank": lambda x: (len(x[1:].squeeze(0)), x[1:].squeeze(0).ndim, x[1:].squeeze(0).shape),
    "broadcast": lambda x: x[1:] + torch.ones(3, 1, 1),
    "expanded": lambda x: x[:1].expand(x.shape[0] - 1, -1) * x[1:],
    "stacked": lambda x: torch.stack([x[1:], x[1:] * 2], 1),
    "joined": lambda x: torch.cat([x[1:], x[:-1]], 1),
    "reduced, maybe empty": lambda x: x[2:].sum(0),
    "softmax, maybe empty": lambda x: (x * 1)[:, 2:].exp().softmax(-1).square(),
    "largest, maybe empty": lambda x: x[2:].amax(0),
    "its place, maybe empty": lambda x: (x[2:].argmax(0), x[2:].min(0)),
    "norm, maybe empty": lambda x: x[:, 2:].norm(float("inf"), dim=1),
    "attention": lambda x: F.scaled_dot_product_attention(*(x[None, 1:] * 1,) * 3),
    "groups": lambda x: F.group_norm(x[None, :, 1:] * 2, 1),
    "attention of no width": lambda x: F.scaled_dot_product_attention(*(x[None, :, 2:],) * 3),
    "attention of heads": lambda x: F.scaled_dot_product_attention(*(x[None, None],) * 3, is_causal=True),
}
OF_A_VECTOR: dict[str, Callable[[Any], Any]] = {
    "split": lambda x: x.split([1, 2, x.shape[0] - 3])[1] * 2,
    "split, first": lambda x: x.split([x.shape[0] - 3, 3])[1] * 2,
    "copied parts": lambda x: torch.split_with_sizes_copy(x, [x.shape[0] - 3, 3])[1],
    "zeros": lambda x: torch.zeros(x.shape[0] - 3) + 1,
    "narrow": lambda x: x.narrow(0, 1, x.shape[0] - 3) + 1,
    "repeat": lambda x: x.repeat(x.shape[0] - 3) + 1,
    "expand": lambda x: x[:1].expand(x.shape[0] - 4) + 1,
    "pad": lambda x: F.pad(x, (x.shape[0] - 5, -4)) + 1,
    "view": lambda x: x.view(x.shape[0] - 3, -1) + 1,
    "strided": lambda x: x.as_strided((x.shape[0] - 3,), (1,)) + 1,
    "unfolded": lambda x: x.unfold(0, x.shape[0] - 3, 1) + 1,
}


def outcome(run: Callable[[Any], Any], x: torch.Tensor, grad: bool) -> Any:
    """The result and the gradient, or what was raised."""
    x = x.clone().requires_grad_(grad)
    try:
        got = run(x)
        if grad and isinstance(got, torch.Tensor) and got.requires_grad:
            got.square().sum().backward()
    except (RuntimeError, IndexError, ValueError) as error:
        return type(error)
    return got, x.grad


def check(fn: Callable[[Any], Any], backend: str, shapes: Any, grad: bool) -> None:
    compiled = tinycompile.compile(fn, backend=backend)
    for shape in shapes:
        x = torch.randn(shape)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            got, want = outcome(compiled, x, grad), outcome(fn, x, grad)
        if isinstance(want, type) or isinstance(got, type):
            assert got == want, shape
        else:
            torch.testing.assert_close(got, want)


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", OF_A_MATRIX)
def test_one_or_none(name: str, backend: str, grad: bool) -> None:
    for shapes in SHAPES:
        check(OF_A_MATRIX[name], backend, shapes, grad)


@pytest.mark.cpu
@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
def test_of_one_step() -> None:
    """A lowering has the size that is settled, not the argument."""
    for sizes in ((5, 4, 2), (1, 2, 3)):
        check(lambda x: torch.linspace(2, 3, x.shape[0] // 2) + x.shape[0], "cpp", [(n,) for n in sizes], False)
        check(
            lambda x: (torch.linspace(0, 1, x.shape[0] - 1), torch.logspace(0, 1, x.shape[0] - 1)), "cpp", [(5,), (2,)], False
        )


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", OF_A_VECTOR)
def test_negative(name: str, backend: str) -> None:
    for sizes in ((5, 4, 6, 2), (6, 8, 7, 3, 12)):
        check(OF_A_VECTOR[name], backend, [(n,) for n in sizes], False)
