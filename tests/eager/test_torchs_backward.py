"""``torch.autograd.backward`` and ``torch.autograd.grad`` given our tensors: our tape's, and torch's beside it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tinycompile as tc

pytestmark = pytest.mark.pure

backward, grad = torch.autograd.backward, torch.autograd.grad
ONES = [1.0, 1.0]


def seed(y: Any, values: list[float]) -> Any:
    return torch.tensor(values) if isinstance(y, torch.Tensor) else tc.tensor(values)


CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "scalar": lambda x, w: backward((x * w).sum()),
    "listed": lambda x, w: backward([x * w, x * x], [seed(x, ONES), seed(x, [2.0, 3.0])]),
    "some inputs": lambda x, w: backward((x * w).sum(), inputs=[x]),
    "twice": lambda x, w: [backward(y, retain_graph=True) for y in [(x * w).sum()] * 2],
    "no scalar": lambda x, w: backward(x * w),
    "wrong shape": lambda x, w: backward(x * w, seed(x, [1.0])),
    "not required": lambda x, w: backward(x.detach().sum()),
    "grad": lambda x, w: grad((x * w).sum(), x),
    "grad of two": lambda x, w: grad([x * w], [x, w], grad_outputs=[seed(x, ONES)]),
    "grad of a grad": lambda x, w: grad(grad((x * x * w).sum(), x, create_graph=True)[0].sum(), x),
    "unused": lambda x, w: grad((x * x).sum(), [x, w]),
    "unused allowed": lambda x, w: grad((x * x).sum(), [x, w], allow_unused=True),
    "zeros": lambda x, w: grad((x * x).sum(), [x, w], materialize_grads=True),
}


def found(call: Callable[[Any, Any], Any], x: Any, w: Any) -> Any:
    try:
        made = call(x, w)
    except RuntimeError as error:
        return str(error)
    values = [None if g is None else g.tolist() for g in made] if isinstance(made, tuple) else None
    return values, *(None if t.grad is None else t.grad.tolist() for t in (x, w))


def ours() -> Any:
    return tc.tensor([1.0, 2.0], requires_grad=True)


def torchs() -> Any:
    return torch.tensor([1.0, 2.0], requires_grad=True)


@pytest.mark.parametrize("name", CALLS)
def test_as_torchs(name: str) -> None:
    expected = found(CALLS[name], torchs(), torchs())
    assert found(CALLS[name], ours(), ours()) == expected
    assert found(CALLS[name], ours(), torchs()) == expected


def test_batches_of_gradients() -> None:
    x = ours()
    (g,) = grad(x * x, x, tc.eye(2), is_grads_batched=True)
    assert g.tolist() == (2 * tc.eye(2) * x.detach()).tolist()


@pytest.mark.cpu
@pytest.mark.parametrize("name", ["scalar", "some inputs", "grad"])
def test_inside_compiled_functions(name: str) -> None:
    compiled = tc.compile(lambda x, w: CALLS[name](x, w), backend="eager")
    assert found(compiled, ours(), ours()) == found(CALLS[name], torchs(), torchs())
