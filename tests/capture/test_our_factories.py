"""``tinycompile``'s factories inside compiled functions: recorded, and what leaves is ours; what can't be recorded is eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tinycompile as tc

pytestmark = pytest.mark.cpu
HERE = tc.device("cpu")

RECORDED: dict[str, Callable[[Any], Any]] = {
    "alone": lambda x: tc.ones(3),
    "ones": lambda x: tc.ones(3) + x,
    "zeros_like": lambda x: tc.zeros_like(x) + x,
    "full": lambda x: tc.full((3,), 2.0) + x,
    "tensor": lambda x: tc.tensor([1.0, 2.0, 3.0]) + x,
    "a size": lambda x: tc.tensor(x.shape[0]) + x,
    "arange": lambda x: tc.arange(x.shape[0], dtype=torch.float64) * x,
    "eye": lambda x: tc.eye(3) @ x,
    "logspace": lambda x: tc.logspace(0, 1, 3) + x,
    "our device": lambda x: tc.ones(3, device=HERE) + x,
    "its device": lambda x: tc.ones((3,), device=x.device) + x,
    "pinned": lambda x: tc.zeros(3, pin_memory=True) + x,
    "written": lambda x: tc.zeros(3).add_(x),
    "a view": lambda x: tc.zeros(2, 3)[0] + x,
    "strided": lambda x: tc.empty_strided((2, 3), (1, 2)).fill_(2.0),
    "permuted": lambda x: tc.empty_permuted((2, 3), (1, 0)).fill_(1.0) + x,
    "indices": lambda x: tc.tril_indices(3, 3)[0, :3] + x,
    "window": lambda x: tc.hann_window(3) + x,
    "combined": lambda x: tc.cartesian_prod(x, x),
    "complex": lambda x: tc.complex(x, x),
    "random": lambda x: tc.randn(3) * 0 + x,
    "its class": lambda x: x + isinstance(tc.ones(2), tc.Tensor),
    "mapped": lambda x: tc.vmap(lambda a: a + tc.ones(()))(x),
    "random, mapped": lambda x: tc.vmap(lambda a: a + 0 * tc.randn(()), randomness="different")(x),
    "mapped, alone": lambda x: tc.vmap(lambda a: tc.ones(()))(x),
    "mapped twice": lambda x: tc.vmap(tc.vmap(lambda a, b: a * tc.ones(2) + b, (None, 0)), (0, None))(x, x),
    "differentiated": lambda x: tc.func.grad(lambda a: (a * tc.full((3,), 2.0)).sum())(x),
}
BREAKS: dict[str, Callable[[Any], Any]] = {
    "a leaf": lambda x: tc.ones(3, requires_grad=True) + x,
    "sparse": lambda x: tc.sparse_coo_tensor([[0, 1], [1, 0]], [1.0, 2.0], (2, 3)) @ x,
    "compressed": lambda x: tc.sparse_csr_tensor([0, 1, 2], [1, 0], [1.0, 2.0], (2, 3)) @ x,
    "shared": lambda x: tc.as_tensor([1.0, 2.0, 3.0]) + x,
}
WRONG: dict[str, Callable[[Any], Any]] = {
    "size": lambda x: tc.ones(-3) + x,
    "dtype": lambda x: tc.ones(3, dtype="x") + x,
    "argument": lambda x: tc.ones(3, colour=1) + x,
}


def same(got: Any, want: Any) -> None:
    assert type(got) is type(want) and (got.dtype, got.shape, got.stride()) == (want.dtype, want.shape, want.stride())
    plain = [t.torch() if isinstance(t, tc.Tensor) else t for t in (got, want)]
    torch.testing.assert_close(*plain, rtol=0, atol=0)


@pytest.mark.parametrize("given", [tc.arange(3.0), torch.arange(3.0)], ids=["ours", "torch"])
@pytest.mark.parametrize("name", RECORDED)
def test_recorded(name: str, given: Any) -> None:
    same(tc.compile(RECORDED[name], fullgraph=True)(given), RECORDED[name](given))


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("name", BREAKS)
def test_left_to_eager(name: str) -> None:
    x = tc.arange(3.0)
    with pytest.raises(tc.errors.GraphBreakError):
        tc.compile(BREAKS[name], fullgraph=True)(x)
    same(tc.compile(BREAKS[name])(x), BREAKS[name](x))


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_said_as_eager_says_it(name: str) -> None:
    x = tc.arange(3.0)
    with pytest.raises((RuntimeError, TypeError)) as want:
        WRONG[name](x)
    with pytest.raises(want.type) as got:
        tc.compile(WRONG[name])(x)
    assert str(got.value) == str(want.value)


def test_gradients_reach_ours_beside_what_is_made() -> None:
    x = tc.arange(3.0).requires_grad_()
    (tc.compile(lambda x: tc.full((3,), 2.0) * x, fullgraph=True)(x)).sum().backward()
    assert x.grad.tolist() == [2.0, 2.0, 2.0]
