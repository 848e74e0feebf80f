"""Compiled functions called with tensors that our own tape follows: one node of it, whatever else the tape leads through."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import tinycompile as tc

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.filterwarnings("ignore:Using backward", "ignore:vmap calls Compiled"),
]


def wave(x: Any) -> Any:
    return torch.sin(x) * 2


def product(a: Any, b: Any) -> Any:
    return (a * b).sum()


def vector(x: Any) -> Any:
    return (x.sin() * x.sum()).cumsum(0)[1:]


LAYER = torch.nn.Linear(4, 3, dtype=torch.float64)


def layer(x: Any) -> Any:
    return torch.tanh(LAYER(x))


# What is differentiated: of the functions to call, and the leaf.
LOSSES: dict[str, Callable[[Any, Any], Any]] = {
    "alone": lambda f, x: f(wave)(x).sum(),
    "between ops": lambda f, x: (f(wave)(x * x) * 3).sum(),
    "beside a path of ours": lambda f, x: (lambda z: (f(wave)(z) + z).sum())(x * x),
    "two inputs of one origin": lambda f, x: (lambda w: f(product)(w.sin(), w.cos()))(x * x),
    "one after the other": lambda f, x: f(product)(f(wave)(x * x), f(vector)(x).sum() * x),
    "a view": lambda f, x: (lambda g: (g(x * 2) ** 2).sum())(f(lambda y: y.t().reshape(-1)[1:])),
    "the input itself": lambda f, x: (f(lambda y: (y, y + 1))(x * x)[0] ** 3).sum(),
    "parameters of torch's": lambda f, x: (f(layer)(x * x) ** 2).sum(),
    "several results": lambda f, x: (lambda p: (p["a"] * p["b"][0]).sum())(f(lambda y: {"a": y * 2, "b": [y.exp(), 3]})(x)),
    "written in place": lambda f, x: (lambda z: (f(lambda y: y.add_(y * 3))(z), (z * x).sum())[1])(x * 2),
}


def gradients(name: str, compiled: bool, how: str, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    """By ``how``, compiled and on our tape or eager and on torch's."""
    values = torch.linspace(0.3, 1.4, 4, dtype=dtype)
    x: Any = tc.from_torch(values.clone()).requires_grad_() if compiled else values.clone().requires_grad_()
    autograd: Any = tc.autograd if compiled else torch.autograd
    LAYER.zero_grad()
    loss = LOSSES[name](tc.compile if compiled else lambda fn: fn, x)
    if how == "backward":
        loss.backward()
        found = [x.grad, *([LAYER.weight.grad] if name.startswith("parameters") else [])]
    elif how == "torch's backward":
        (loss.torch() if compiled else loss).backward()
        found = [x.grad]
    elif how == "grad":
        found = list(autograd.grad(loss, [x]))
    else:
        (first,) = autograd.grad(loss, [x], create_graph=True)
        found = [first, *autograd.grad((first * first).sum(), [x])]
    return [g.detach().torch() if isinstance(g, tc.Tensor) else g.detach() for g in found]


@pytest.mark.parametrize("how", ["backward", "torch's backward", "grad", "grad of grad"])
@pytest.mark.parametrize("name", LOSSES)
def test_gradients(name: str, how: str) -> None:
    for got, want in zip(gradients(name, True, how), gradients(name, False, how), strict=True):
        torch.testing.assert_close(got, want)


def test_the_node_is_one_of_ours() -> None:
    x = tc.randn(4).requires_grad_()
    y = tc.compile(wave)(x)
    assert y.grad_fn.name() == "CompiledFunctionBackward0" and not y.on_torchs_tape and y.requires_grad
    with torch.no_grad():
        assert not tc.compile(wave)(x).requires_grad


def test_intermediates_have_gradients_too() -> None:
    x = tc.randn(4).requires_grad_()
    z = x * 3
    y = tc.compile(wave)(z)
    y.retain_grad()
    seen: list[Any] = []
    z.register_hook(seen.append)
    for target in (z, x):
        found = tc.autograd.grad(y.sum(), [target], retain_graph=True)[0]
        torch.testing.assert_close(found.torch(), 2 * torch.cos(z.detach().torch()) * (3 if target is x else 1))
    y.sum().backward()
    assert y.grad is not None and len(seen) == 3


def test_a_second_backward_is_refused_as_torchs() -> None:
    x = tc.randn(4).requires_grad_()
    y = tc.compile(wave)(x).sum()
    y.backward()
    with pytest.raises(RuntimeError, match="second time"):
        y.backward()


@pytest.mark.parametrize("wrapped", [False, True], ids=["itself", "in a lambda"])
def test_functions_of_functions(wrapped: bool) -> None:
    x = torch.linspace(0.3, 1.4, 4, dtype=torch.float64)

    def called(fn: Any) -> Any:
        compiled = tc.compile(fn)
        return (lambda x: compiled(x)) if wrapped else compiled

    def total(x: Any) -> Any:
        return wave(x).sum() * x.prod()

    for name in ("grad", "jacrev", "hessian"):
        fn = vector if name == "jacrev" else total
        for given in (x, tc.from_torch(x)):
            got = getattr(tc.func, name)(called(fn))(given)
            torch.testing.assert_close(got.torch() if isinstance(got, tc.Tensor) else got, getattr(torch.func, name)(fn)(x))
    rows = tc.vmap(tc.func.vjp(called(vector), x)[1])(torch.eye(3, dtype=torch.float64))[0]
    torch.testing.assert_close(rows, torch.func.jacrev(vector)(x))


def test_what_torch_alone_differentiates_has_jacobians() -> None:
    x = torch.eye(3, dtype=torch.float64) + torch.arange(9).reshape(3, 3) / 10
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        got = tc.func.jacrev(torch.linalg.inv)(x)
    torch.testing.assert_close(got.torch(), torch.func.jacrev(torch.linalg.inv)(x))


def test_bridges_from_one_origin() -> None:
    """Tensors of ours on torch's tape: torch's backward comes back to ours more than once."""
    x = tc.from_torch(torch.linspace(0.3, 1.4, 4)).requires_grad_()
    w = x * x
    product(w.sin().torch(), w.cos().torch()).backward()
    want = torch.linspace(0.3, 1.4, 4).requires_grad_()
    product((want * want).sin(), (want * want).cos()).backward()
    torch.testing.assert_close(x.grad.torch(), want.grad)
