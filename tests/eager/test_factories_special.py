"""Factories by a rule, a distribution or a window against torch's of the same name."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch

import tinycompile as tc
from tests.eager.test_tensor import assert_same
from tinycompile.eager import factories_special
from tinycompile.eager.tensor import Tensor

pytestmark = pytest.mark.pure

CALLS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "asarray": (([1.0, 2.0],), {"dtype": torch.float64}),
    "frombuffer": ((bytearray(8),), {"dtype": torch.float32}),
    "scalar_tensor": ((3,), {"dtype": torch.int32}),
    "tril_indices": ((3, 4, 1), {}),
    "triu_indices": ((3, 4, -1), {"dtype": torch.int32}),
    "vander": ((torch.arange(3.0),), {"N": 2}),
    "cartesian_prod": ((torch.arange(2), torch.arange(3)), {}),
    "complex": ((torch.ones(2), torch.zeros(2)), {}),
    "polar": ((torch.ones(2), torch.zeros(2)), {}),
    "normal": ((torch.zeros(5), torch.ones(5)), {}),
    "bernoulli": ((torch.full((9,), 0.5),), {}),
    "multinomial": ((torch.ones(5), 3), {}),
    "poisson": ((torch.full((9,), 3.0),), {}),
    "hann_window": ((6,), {}),
    "hamming_window": ((6,), {"periodic": False}),
    "blackman_window": ((6,), {}),
    "bartlett_window": ((6,), {"dtype": torch.float64}),
    "kaiser_window": ((6, False, 3.0), {}),
}
TESTED_ELSEWHERE = {"empty_permuted", *(f"sparse_{n}_tensor" for n in ("bsc", "bsr", "compressed", "coo", "csc", "csr"))}


def test_every_factory_is_tested_and_public() -> None:
    made_here = {
        n for n, f in vars(factories_special).items() if inspect.isfunction(f) and f.__module__ == factories_special.__name__
    }
    assert made_here == CALLS.keys() | TESTED_ELSEWHERE
    assert all(getattr(tc, n) is getattr(factories_special, n) for n in made_here)


@pytest.mark.parametrize("name", CALLS)
def test_as_torch(name: str) -> None:
    args, kwargs = CALLS[name]
    torch.manual_seed(3)
    want = getattr(torch, name)(*args, **kwargs)
    torch.manual_seed(3)
    got = getattr(tc, name)(*(tc.from_torch(a) if isinstance(a, torch.Tensor) else a for a in args), **kwargs)
    assert isinstance(got, Tensor)
    assert_same(got, want)


def test_layouts_and_leaves() -> None:
    assert tc.empty_permuted((2, 3), (1, 0)).stride() == torch.empty_permuted((2, 3), (1, 0)).stride()
    assert tc.hann_window(4, requires_grad=True).requires_grad
    assert tc.normal(0.0, 1.0, (2, 3)).shape == (2, 3)


@pytest.mark.parametrize("name", ["zeros", "ones", "empty", "rand", "randn"])
def test_no_size_is_torchs_error(name: str) -> None:
    ours, theirs = getattr(tc, name), getattr(torch, name)
    for options in ({}, {"dtype": torch.float64}):
        for make in (ours, theirs):
            with pytest.raises(TypeError):
                make(**options)
    assert ours(()).shape == theirs(()).shape and ours(size=(2,)).shape == (2,)


def test_copies_that_are_asked_for() -> None:
    a = tc.ones(3)
    assert tc.asarray(a) is a is tc.asarray(a, copy=False)
    assert tc.asarray(a, copy=True).storage is not a.storage
    assert tc.asarray([1, 2], copy=True).tolist() == [1, 2] == tc.tensor([1, 2], pin_memory=True).tolist()
    for asarray, x in ((tc.asarray, a), (torch.asarray, a.torch())):
        with pytest.raises(ValueError):
            asarray(x, dtype=torch.float64, copy=False)
        with pytest.raises(ValueError):
            asarray([1, 2], copy=False)


def test_sparse_tensors_are_not_contiguous() -> None:
    assert tc.ones(2, 2).to_sparse().is_contiguous() is torch.ones(2, 2).to_sparse().is_contiguous() is False
