"""Whether a tensor is a leaf, and requires grad, behind each kind of write: one from outside that a write gave a history is a leaf
no more, and its ``.grad`` is torch's to answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tinycompile

pytestmark = [pytest.mark.cpu, pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")]

Tensor = torch.Tensor


def without_gradients(y: Tensor, x: Tensor) -> None:
    with torch.no_grad():
        y.add_(x)


WRITES: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "add_": lambda y, x: y.add_(x),
    "an item": lambda y, x: y.__setitem__(0, x[0]),
    "a view": lambda y, x: y[1:].mul_(x[1:]),
    "copy_": lambda y, x: y.copy_(x),
    "of constants": lambda y, x: y.add_(x.detach()),
    "without gradients": without_gradients,
    "data": lambda y, x: y.data.add_(x.detach()),
    "none": lambda y, x: None,
}
ASKED: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "is_leaf": lambda y, view: (y.is_leaf, y.requires_grad),
    "of a view": lambda y, view: (view.is_leaf, view.requires_grad, y[1:].is_leaf),
    "of others": lambda y, view: ((y * 1).is_leaf, y.detach().is_leaf, y.data.is_leaf),
    "grad": lambda y, view: y.grad,
}
KINDS: dict[str, Callable[[], Tensor]] = {
    "plain": lambda: torch.ones(3),
    "leaf": lambda: torch.ones(3, requires_grad=True),
    "inner": lambda: torch.ones(3, requires_grad=True) * 1,
    "view": lambda: torch.ones(4)[1:],
}


def answer(run: Callable[..., Any], kind: str) -> Any:
    try:
        return run(KINDS[kind](), torch.ones(3, requires_grad=True))
    except RuntimeError as refused:
        return str(refused)


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("kind", KINDS)
def test_as_eager_says(kind: str, write: str) -> None:
    for what, ask in ASKED.items():

        def program(y: Tensor, x: Tensor, ask: Any = ask) -> Any:
            view = y[:2]
            WRITES[write](y, x)
            return ask(y, view)

        compiled = tinycompile.compile(program, backend="eager")
        assert answer(compiled, kind) == answer(program, kind), what


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
@pytest.mark.parametrize("kind", KINDS)
def test_in_each_mode(kind: str, mode: Any) -> None:
    def program(y: Tensor, x: Tensor) -> Any:
        before = y.is_leaf, y.requires_grad
        with torch.no_grad():
            y.add_(1)
            return before, y.is_leaf, y.requires_grad, x.is_leaf

    y = KINDS[kind]()
    found = []
    for run in (program, tinycompile.compile(program, backend="eager")):
        with mode():
            found.append(run(y, torch.ones(3, requires_grad=True)))
    assert found[0] == found[1]


FROM_NUMBERS: dict[str, Callable[[Tensor], Tensor]] = {
    "new_tensor": lambda x: x.new_tensor([1.0, 2.0]),
    "new_tensor of a number": lambda x: x.new_tensor(3),
    "new_tensor of another dtype": lambda x: x.new_tensor([1], dtype=torch.float64),
    "new_zeros": lambda x: x.new_zeros(3),
    "new_full": lambda x: x.new_full((2,), 1.5),
    "new_empty": lambda x: x.new_empty(2),
    "zeros_like": torch.zeros_like,
}


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", FROM_NUMBERS)
def test_what_is_made_like_a_tensor_has_no_part_of_its_history(name: str, backend: str) -> None:
    def program(x: Tensor) -> Any:
        made = FROM_NUMBERS[name](x)
        return made.is_leaf, made.requires_grad, made, x * 2

    x = torch.ones(3, requires_grad=True)
    found = tinycompile.compile(program, backend=backend, fullgraph=True)(x)
    assert found[:2] == program(x)[:2] == (True, False)
    assert found[2].is_leaf and not found[2].requires_grad and found[3].requires_grad


def test_conjugates_and_negatives_made_inside_tell_so() -> None:
    """The fakes have no such bit: asked about what is complex, the graph ends; of what is not, it is known."""

    def program(x: Tensor) -> Any:
        y = x.conj()
        return y.is_conj(), y.imag.is_neg(), torch.is_conj(y), x.is_conj(), x * 1 if y.is_conj() else x * 100

    x = torch.tensor([1 + 2j, 3 - 1j])
    found, want = tinycompile.compile(program, backend="eager")(x), program(x)
    assert found[:4] == want[:4] == (True, True, True, False) and torch.equal(found[4], want[4])
    plain = tinycompile.compile(lambda x: ((x * 2).is_conj(), (x * 2).is_neg(), x.is_neg()), backend="eager", fullgraph=True)
    assert plain(torch.ones(2)) == (False, False, False)
