"""Sparse tensors of ours: made, used through torch's functions, differentiated, refused by what is strided."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import tinycompile as tc
from tinycompile.eager.sparse import SparseTensor
from tinycompile.eager.tensor import Tensor, from_torch

pytestmark = pytest.mark.cpu

DENSE = torch.tensor([[0.0, 2.0, 0.0], [3.0, 0.0, 1.0]])
LAYOUTS = {"coo": torch.Tensor.to_sparse, "csr": torch.Tensor.to_sparse_csr, "csc": torch.Tensor.to_sparse_csc}


def same(ours: Any, theirs: Any) -> None:
    if not isinstance(theirs, torch.Tensor):
        assert ours == theirs
        return
    assert isinstance(ours, SparseTensor) == (theirs.layout is not torch.strided)
    assert (ours.layout, ours.dtype, tuple(ours.shape)) == (theirs.layout, theirs.dtype, tuple(theirs.shape))
    assert torch.equal(ours.detach().to_dense().torch(), theirs.detach().to_dense())


USES: dict[str, Callable[[Any, Any], Any]] = {
    "sum of two": lambda s, d: s + s,
    "times a number": lambda s, d: s * 2,
    "matrix product": lambda s, d: s @ d,
    "torch.mm": lambda s, d: torch.mm(s, d),
    "torch.sparse.mm": lambda s, d: torch.sparse.mm(s, d),
    "dense": lambda s, d: s.to_dense() + 1,
    "nnz": lambda s, d: s._nnz(),
    "sum": lambda s, d: s.sum(),
    "dtype": lambda s, d: s.to(torch.float64),
    "transpose": lambda s, d: s.t(),
    "relu": lambda s, d: torch.relu(s),
    "neg": lambda s, d: -s,
    "clone": lambda s, d: s.clone(),
    "device": lambda s, d: s.device == torch.device("cpu"),
}


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("use", USES)
def test_as_torch(use: str, layout: str) -> None:
    sparse, dense = LAYOUTS[layout](DENSE), torch.ones(3, 2)
    ours, right = from_torch(sparse), from_torch(dense)
    try:
        want = USES[use](sparse, dense)
    except (RuntimeError, NotImplementedError) as error:
        with pytest.raises(type(error)):
            USES[use](ours, right)
        return
    same(USES[use](ours, right), want)


def test_made_by_hand() -> None:
    coo = tc.sparse_coo_tensor([[0, 1, 1], [1, 0, 2]], [2.0, 3.0, 1.0], (2, 3))
    csr = tc.sparse_csr_tensor([0, 1, 3], [1, 0, 2], [2.0, 3.0, 1.0], (2, 3))
    for made in (coo, csr, from_torch(DENSE).to_sparse()):
        assert isinstance(made, SparseTensor) and made.shape == (2, 3) and made.ndim == made.dim() == 2
        assert torch.equal(made.to_dense().torch(), DENSE) and made.size(1) == 3 and made.numel() == 6
        assert repr(made).startswith("tensor(") and "sparse" in repr(made)
    assert torch.equal(pickle.loads(pickle.dumps(coo)).to_dense().torch(), DENSE)
    assert coo.is_sparse and csr.is_sparse_csr and torch.equal(coo.coalesce().values().torch(), torch.tensor([2.0, 3.0, 1.0]))


def test_there_are_no_strides_and_no_storage() -> None:
    coo, csr = from_torch(DENSE.to_sparse()), from_torch(DENSE.to_sparse_csr())
    for ask in (lambda: csr.strides, lambda: csr.stride(), lambda: coo.storage, lambda: coo.view(6)):
        with pytest.raises((RuntimeError, NotImplementedError)):
            ask()


def test_gradients_of_dense_and_sparse_operands() -> None:
    found = []
    for wrap in (lambda t: t, from_torch):
        s, d = wrap(DENSE.to_sparse()).requires_grad_(), wrap(torch.ones(3, 2)).requires_grad_()
        (torch.sparse.mm(s, d) ** 2).sum().backward()
        found.append((s.grad, d.grad))
    for theirs, ours in zip(*found, strict=True):
        same(ours, theirs)


def test_sparse_gradients_of_dense_leaves_add_up() -> None:
    found = []
    for wrap in (lambda t: t, from_torch):
        weight, at = wrap(torch.ones(4, 2)).requires_grad_(), wrap(torch.tensor([0, 2, 2]))
        F.embedding(at, weight, sparse=True).sum().backward()
        first = weight.grad
        F.embedding(at, weight, sparse=True).sum().backward()
        both = weight.grad
        (weight * 2).sum().backward()
        found.append((first, both, weight.grad))
    for theirs, ours in zip(*found, strict=True):
        same(ours, theirs)


def test_dense_to_sparse_and_back_on_the_tape() -> None:
    x = from_torch(DENSE.clone()).requires_grad_()
    ((x * 2).to_sparse().to_dense() * 3).sum().backward()
    t = DENSE.clone().requires_grad_()
    ((t * 2).to_sparse().to_dense() * 3).sum().backward()
    assert isinstance(x.grad, Tensor) and torch.equal(x.grad.torch(), t.grad)


@pytest.mark.parametrize("ours", [False, True], ids=["torch", "ours"])
def test_compiled_functions_leave_them_to_torch(ours: bool) -> None:
    def fn(s: Any, d: Any) -> Any:
        return torch.sparse.mm(s, d) * 2

    s, d = DENSE.to_sparse(), torch.ones(3, 2)
    args = (from_torch(s), from_torch(d)) if ours else (s, d)
    got = tc.compile(fn)(*args)
    assert torch.equal(got.torch() if ours else got, fn(s, d))
