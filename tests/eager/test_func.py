"""``tinycompile.func`` against ``torch.func``: results that don't depend on an argument, structures, and errors; and compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tinycompile as tc
from tests.lower.support import leaves

pytestmark = pytest.mark.pure

X = torch.randn(3, generator=torch.Generator().manual_seed(0))
Y = torch.randn(3, generator=torch.Generator().manual_seed(1))
XS = torch.randn(2, 3, generator=torch.Generator().manual_seed(2))
C = torch.tensor(2.0)

# Name -> (a function of ``func`` and ``vmap``, ours or torch's, that makes a function; its arguments).
Made = Callable[[Any, Any], Callable[..., Any]]
UNUSED: dict[str, tuple[Made, tuple[Any, ...]]] = {
    "grad of a constant": (lambda f, v: f.grad(lambda x: C * 1), (X,)),
    "grad for another argument": (lambda f, v: f.grad(lambda x, y: (y * y).sum()), (X, Y)),
    "grad for both": (lambda f, v: f.grad(lambda x, y: (y * y).sum(), argnums=(0, 1)), (X, Y)),
    "grad for neither": (lambda f, v: f.grad(lambda x, y: C * 3, argnums=(1, 0)), (X, Y)),
    "grad_and_value": (lambda f, v: f.grad_and_value(lambda x: C * 3), (X,)),
    "aux": (lambda f, v: f.grad(lambda x: (C * 1, x * 2), has_aux=True), (X,)),
    "part of a dict": (lambda f, v: f.grad(lambda d: d["a"].sum()), ({"a": X, "b": Y},)),
    "an integer result": (lambda f, v: f.grad(lambda x: (x > 0).sum()), (X,)),
    "detached": (lambda f, v: f.grad(lambda x: x.detach().sum()), (X,)),
    "grad of grad": (lambda f, v: f.grad(lambda x: f.grad(lambda z: z.sum())(x).sum()), (X,)),
    "grad inside grad, of the outer alone": (lambda f, v: f.grad(lambda x: f.grad(lambda z: (x * x).sum())(x).sum()), (X,)),
    "vjp": (lambda f, v: lambda x, y: f.vjp(lambda x: y * 2, x)[1](y), (X, Y)),
    "vjp of two results": (lambda f, v: lambda x, y: f.vjp(lambda x, y: (y * 2, C * 1), x, y)[1]((y, C)), (X, Y)),
    "vjp of one of two": (lambda f, v: lambda x, y: f.vjp(lambda x, y: y * 2, x, y)[1](y), (X, Y)),
    "jacrev": (lambda f, v: f.jacrev(lambda x: Y * 2), (X,)),
    "jacrev for both": (lambda f, v: f.jacrev(lambda x, y: y * 2, argnums=(0, 1)), (X, Y)),
    "jacrev of two results": (lambda f, v: f.jacrev(lambda x, y: (y * 2, x * 3)), (X, Y)),
    "hessian of what is linear": (lambda f, v: f.hessian(lambda x: x.sum()), (X,)),
    "hessian of a constant": (lambda f, v: f.hessian(lambda x: C * 1), (X,)),
    "hessian for another argument": (lambda f, v: f.hessian(lambda y, x: (x * x).sum()), (Y, X)),
    "hessian for both": (lambda f, v: f.hessian(lambda x, y: (x**3).sum() + y.sum(), argnums=(0, 1)), (X, Y)),
    "under vmap": (lambda f, v: v(f.grad(lambda x: (Y * Y).sum())), (XS,)),
    "jacrev under vmap": (lambda f, v: v(f.jacrev(lambda x: Y * Y)), (XS,)),
    "both under vmap": (lambda f, v: v(f.grad(lambda x, y: (y * y).sum(), argnums=(0, 1))), (XS, XS + 1)),
    "of a vmap": (lambda f, v: f.grad(lambda x: v(lambda y: y * 2)(XS).sum()), (X,)),
}
STRUCTURES: dict[str, tuple[Made, tuple[Any, ...]]] = {
    "jacrev of a dict": (lambda f, v: f.jacrev(lambda x, y: {"p": y * x, "q": x[:2]}, argnums=(1, 0)), (X, Y)),
    "jacrev for a dict": (lambda f, v: f.jacrev(lambda d: d["a"] * d["b"].sum()), ({"a": X, "b": Y},)),
    "jacrev with aux": (lambda f, v: f.jacrev(lambda x: (x * x, x + 1), has_aux=True), (X,)),
    "jacrev from the end": (lambda f, v: f.jacrev(lambda x, y: y * x, argnums=-1), (X, Y)),
    "jacrev of matrices": (lambda f, v: f.jacrev(lambda x: (x @ x.T, x.sum())), (XS,)),
    "jacrev of an empty result": (lambda f, v: f.jacrev(lambda x: x[:0]), (X,)),
    "jacrev, a row at once": (lambda f, v: f.jacrev(torch.sin, chunk_size=1), (X,)),
    "jacrev, some rows at once": (lambda f, v: f.jacrev(lambda x: (x @ x.T, x.sum()), chunk_size=2), (XS,)),
    "jacrev, a row at once, under vmap": (lambda f, v: v(f.jacrev(torch.sin, chunk_size=1)), (XS,)),
    "hessian of two results": (lambda f, v: f.hessian(lambda x: (x.prod(), (x**3).sum())), (X,)),
    "hessian of a dict": (lambda f, v: f.hessian(lambda x, y: {"a": (x * y).prod(), "b": x.sum()}, argnums=(0, 1)), (X, Y)),
    "jacrev of jacrev of two": (lambda f, v: f.jacrev(f.jacrev(lambda x: (x**3, x.prod()))), (X,)),
    "hessian for a list": (lambda f, v: f.hessian(lambda p: (p[0] * p[1]).prod()), ([X, Y],)),
    "vjp with aux": (lambda f, v: lambda x: f.vjp(lambda x: (x * x, x + 1), x, has_aux=True)[2], (X,)),
}
CASES = UNUSED | STRUCTURES
REFUSED: dict[str, tuple[Made, tuple[Any, ...]]] = {
    "no scalar": (lambda f, v: f.grad(lambda x: x), (X,)),
    "no tensor": (lambda f, v: f.grad(lambda x: 3.0), (X,)),
    "integers of jacrev": (lambda f, v: f.jacrev(lambda x: (x > 0).long()), (X,)),
    "integers of vjp": (lambda f, v: lambda x: f.vjp(lambda x: (x > 0).long(), x), (X,)),
    "rows none at once": (lambda f, v: f.jacrev(torch.sin, chunk_size=0), (X,)),
    "a number of jacrev": (lambda f, v: f.jacrev(lambda x: 3), (X,)),
    "a number among results": (lambda f, v: f.jacrev(lambda x: (x, 3)), (X,)),
    "a number of hessian": (lambda f, v: f.hessian(lambda x: 3), (X,)),
    "a number of vjp": (lambda f, v: lambda x: f.vjp(lambda x: 3, x), (X,)),
    "None of jacrev": (lambda f, v: f.jacrev(lambda x: None), (X,)),
    "sizes of vjp": (lambda f, v: lambda x: f.vjp(lambda x: x.shape, x), (X,)),
    "nothing of jacrev": (lambda f, v: f.jacrev(lambda x: ()), (X,)),
    "complex numbers of jacrev": (lambda f, v: f.jacrev(lambda x: x + 1j), (X,)),
    "for integers": (lambda f, v: f.grad(lambda x: x.sum() * 1.0), (torch.arange(3),)),
    "for a number": (lambda f, v: f.grad(lambda x, y: x.sum(), argnums=1), (X, 3.0)),
    "a number in a dict": (lambda f, v: f.grad(lambda d: d["x"].sum()), ({"x": X, "n": 3},)),
    "beyond the last": (lambda f, v: f.grad(lambda x: x.sum(), argnums=2), (X,)),
    "before the first": (lambda f, v: f.jacrev(lambda x: x * 2, argnums=-2), (X,)),
    "none": (lambda f, v: f.grad(lambda x: x.sum(), argnums=()), (X,)),
    "twice": (lambda f, v: f.grad(lambda x: x.sum(), argnums=(0, 0)), (X,)),
    "no number": (lambda f, v: f.grad(lambda x: x.sum(), argnums="x"), (X,)),
    "cotangents of another structure": (lambda f, v: lambda x: f.vjp(lambda x: (x, x), x)[1](x), (X,)),
    "cotangents of another shape": (lambda f, v: lambda x: f.vjp(lambda x: x * 1, x)[1](x[:2]), (X,)),
    "aux that is none": (lambda f, v: lambda x: f.vjp(lambda x: x * 2, x, has_aux=True), (X,)),
}


def plain(value: Any) -> Any:
    """torch's tensors in a structure, off every tape."""
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, (tuple, list)):
        return [plain(v) for v in value]
    return (value.torch() if isinstance(value, tc.Tensor) else value).detach()


@pytest.mark.parametrize("name", CASES)
def test_as_torchs(name: str) -> None:
    make, args = CASES[name]
    want = make(torch.func, torch.vmap)(*args)
    torch.testing.assert_close(plain(make(tc.func, tc.vmap)(*args)), plain(want))


@pytest.mark.cpu
@pytest.mark.parametrize("name", CASES)
def test_compiled(name: str) -> None:
    """Made outside, made inside, and of a compiled function."""
    make, args = CASES[name]
    want = plain(make(torch.func, torch.vmap)(*args))
    for compiled in (
        tc.compile(make(tc.func, tc.vmap), backend="eager"),
        tc.compile(lambda *given: make(tc.func, tc.vmap)(*given), backend="eager"),
        tc.compile(lambda *given: make(torch.func, torch.vmap)(*given), backend="eager"),
    ):
        torch.testing.assert_close(plain(compiled(*args)), want)


LAID_OUT: dict[str, tuple[Made, tuple[Any, ...]]] = {
    "hessian": (lambda f, v: f.hessian(lambda x: (x**3).sum() * x.sum()), (X,)),
    "hessian of a matrix": (lambda f, v: f.hessian(lambda x: (x @ x.T).sum() ** 2), (XS,)),
    "hessian for both": (lambda f, v: f.hessian(lambda x, y: (x * y[:, :1]).sum() ** 3, argnums=(0, 1)), (X, XS)),
    "jacrev": (lambda f, v: f.jacrev(lambda x: x.softmax(-1)), (XS,)),
    "a sum of each example": (lambda f, v: v(f.grad(lambda x: x.sum())), (XS,)),
    "inverses": (lambda f, v: v(torch.linalg.inv), (torch.stack([XS @ XS.T + torch.eye(2)] * 3),)),
    "decompositions": (lambda f, v: v(lambda x: tuple(torch.linalg.qr(x))), (torch.stack([XS] * 3),)),
    "solutions": (lambda f, v: v(lambda a: torch.linalg.solve(a, a)), (torch.stack([XS @ XS.T + torch.eye(2)] * 3),)),
}


@pytest.mark.parametrize("name", LAID_OUT)
def test_strides_are_torchs(name: str) -> None:
    make, args = LAID_OUT[name]
    want = make(torch.func, torch.vmap)(*args)
    for got in (
        make(tc.func, tc.vmap)(*map(tc.from_torch, args)),
        tc.compile(lambda *given: make(tc.func, tc.vmap)(*given), backend="eager")(*args),
        tc.compile(lambda *given: make(torch.func, torch.vmap)(*given), backend="eager")(*args),
    ):
        torch.testing.assert_close(plain(got), plain(want))
        assert [t.stride() for t in leaves(plain(got))] == [t.stride() for t in leaves(plain(want))]


@pytest.mark.parametrize("name", REFUSED)
def test_refused_as_torchs(name: str) -> None:
    make, args = REFUSED[name]
    with pytest.raises(Exception) as theirs:  # noqa: PT011  # which one is what is asked
        make(torch.func, torch.vmap)(*args)
    with pytest.raises(type(theirs.value)) as ours:
        make(tc.func, tc.vmap)(*args)
    assert str(ours.value) == str(theirs.value)
