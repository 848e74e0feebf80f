"""Sorting, picking and Fourier transforms under vmap: one call for all examples, as torch's, with gradients, and no warning."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import tinycompile as tc
from tinycompile.eager.tensor import from_torch

pytestmark = pytest.mark.pure
Function = Callable[..., Any]

PICKS: dict[str, Function] = {
    "sort": lambda x: x.sort(),
    "sort of rows": lambda x: torch.sort(x, 0),
    "sort, descending": lambda x: torch.sort(x, 1, True),
    "sort, stable": lambda x: x.sort(stable=True, dim=0, descending=True),
    "topk": lambda x: x.topk(2),
    "topk, least": lambda x: torch.topk(x, 2, 0, False),
    "topk, unsorted": lambda x: x.topk(2, dim=-1, sorted=True, largest=False),
    "kthvalue": lambda x: x.kthvalue(2),
    "kthvalue, kept": lambda x: torch.kthvalue(x, 1, 0, True),
    "mode": lambda x: x.mode(),
    "median": lambda x: x.median(0),
    "median, kept": lambda x: torch.median(x, dim=-1, keepdim=True),
    "nanmedian": lambda x: x.nanmedian(1, True),
}
OTHERS: dict[str, Function] = {
    "argsort": lambda x: x.argsort(),
    "argsort, descending": lambda x: torch.argsort(x, 0, True),
    "fft": lambda x: torch.fft.fft(x),
    "fft of rows": lambda x: torch.fft.fft(x, 4, 0, "ortho"),
    "rfft": lambda x: torch.fft.rfft(x, dim=0),
    "irfft": lambda x: torch.fft.irfft(torch.fft.rfft(x), n=5),
}
X = (torch.arange(24.0) * 7 % 11 + torch.arange(24.0) / 100).reshape(2, 4, 3)


def plain(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return [plain(v) for v in value]
    return value.tolist() if value.is_complex() else (tuple(value.shape), value.dtype, value.tolist())


def given(x: torch.Tensor) -> Any:
    return from_torch(x.clone())


@pytest.mark.parametrize("dims", [(0, 0), (1, -1), (2, 1)], ids=str)
@pytest.mark.parametrize("name", [*PICKS, *OTHERS])
def test_one_call_for_all_examples(name: str, dims: tuple[int, int]) -> None:
    fn = {**PICKS, **OTHERS}[name]
    into = dims[1] if "," not in name and name not in ("kthvalue", "mode", "median") else 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = tc.vmap(fn, dims[0], into)(given(X))
    assert plain(found) == plain(torch.vmap(fn, dims[0], into)(X.clone()))
    assert isinstance(found, type(fn(X[0]))) or not isinstance(found, tuple)


@pytest.mark.parametrize("name", PICKS)
def test_gradients_are_those_of_what_was_picked(name: str) -> None:
    def loss(x: Any) -> Any:
        return (PICKS[name](x)[0] * x.sum()).sum()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = tc.vmap(tc.func.grad(loss))(given(X))
        hessian = tc.vmap(tc.func.hessian(loss))(given(X))
        twice = tc.vmap(tc.vmap(tc.func.grad(lambda x: loss(x[None] * x[:, None]))))(given(X))
        followed = given(X).requires_grad_()
        tc.vmap(PICKS[name])(followed)[0].sum().backward()
    assert torch.allclose(found.torch(), torch.vmap(torch.func.grad(loss))(X))
    assert torch.allclose(hessian.torch(), torch.vmap(torch.func.hessian(loss))(X))
    of_torch = torch.vmap(torch.vmap(torch.func.grad(lambda x: loss(x[None] * x[:, None]))))(X)
    assert torch.allclose(twice.torch(), of_torch)
    theirs = X.clone().requires_grad_()
    torch.vmap(PICKS[name])(theirs)[0].sum().backward()
    assert followed.grad is not None and theirs.grad is not None and followed.grad.tolist() == theirs.grad.tolist()


@pytest.mark.parametrize("name", [*PICKS, *OTHERS])
def test_compiled_around_it(name: str) -> None:
    fn = {**PICKS, **OTHERS}[name]

    def program(x: torch.Tensor) -> Any:
        found = torch.vmap(lambda y: fn(y * 2))(x)
        return found if isinstance(found, torch.Tensor) else tuple(found)

    assert plain(tc.compile(program)(X.clone())) == plain(program(X.clone()))


@pytest.mark.filterwarnings("ignore:vmap calls")
@pytest.mark.parametrize("fn", [lambda x: x.sort(3), lambda x: x.topk(9), lambda x: x[0, 0].sort()[0], lambda x: x.kthvalue(0)])
def test_what_torch_refuses_and_examples_without_dims(fn: Function) -> None:
    def outcome(vmap: Function, x: Any) -> Any:
        try:
            return plain(vmap(fn)(x))
        except (RuntimeError, IndexError) as error:
            return type(error), str(error).partition("\n")[0]

    assert outcome(tc.vmap, given(X)) == outcome(torch.vmap, X.clone())
