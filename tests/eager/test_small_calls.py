"""Attributes, conversions and calls at the edge of what a tensor does: the same answers, errors and warnings as torch's."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import tinycompile as tc

pytestmark = pytest.mark.pure


@pytest.fixture(autouse=True)
def warned_always() -> Iterator[None]:
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    yield
    torch.set_warn_always(before)


def said(case: Callable[[Any], Any], lib: Any) -> Any:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            found = case(lib)
        except Exception as error:  # noqa: BLE001  # compared
            found = type(error), str(error)
    return found, [(w.category, str(w.message)) for w in caught]


# --- warnings and errors -----------------------------------------------------------------------------------------------------


def leaf(lib: Any, *shape: int) -> Any:
    return lib.ones(*shape).requires_grad_()


CALLS: dict[str, Callable[[Any], Any]] = {
    "T of 0 dims": lambda lib: lib.ones(()).T.tolist(),
    "T of 1": lambda lib: lib.ones(2).T.tolist(),
    "T of 2": lambda lib: lib.ones(2, 3).T.tolist(),
    "T of 3": lambda lib: tuple(lib.ones(2, 3, 4).T.shape),
    "float": lambda lib: float(leaf(lib, 1)),
    "float of a result": lambda lib: float(leaf(lib, 1) * 2),
    "int": lambda lib: int(leaf(lib, 1)),
    "complex": lambda lib: complex(leaf(lib, 1)),
    "bool": lambda lib: bool(leaf(lib, 1)),
    "item": lambda lib: leaf(lib, 1).item(),
    "float off the tape": lambda lib: float(lib.ones(1)),
    "softmax": lambda lib: [F.softmax(lib.ones(2, 3)).tolist() for _ in range(3)],
    "log_softmax": lambda lib: [F.log_softmax(lib.ones(2, 3), dtype=torch.float64).tolist() for _ in range(2)],
    "Softmax": lambda lib: torch.nn.Softmax()(lib.ones(2, 3)).tolist(),
    "softmax of a dim": lambda lib: F.softmax(lib.ones(2, 3), 1).tolist(),
    "new_zeros": lambda lib: lib.ones(2).new_zeros(),
    "new_ones": lambda lib: lib.ones(2).new_ones(),
    "new_empty": lambda lib: lib.ones(2).new_empty(),
    "new_zeros of a scalar": lambda lib: lib.ones(2).new_zeros(()).tolist(),
    "integers with gradients": lambda lib: lib.arange(3, requires_grad=True),
    "booleans with gradients": lambda lib: lib.ones(2, dtype=torch.bool, requires_grad=True),
    "data with gradients": lambda lib: lib.tensor([1, 2], requires_grad=True),
    "requires_grad_ of integers": lambda lib: lib.tensor([1, 2]).requires_grad_(),
    "resize_ of a leaf": lambda lib: leaf(lib, 2).resize_(3),
    "resize_as_ of a result": lambda lib: (leaf(lib, 2) * 1).resize_as_(lib.ones(3)),
    "resize_": lambda lib: tuple(lib.ones(2).resize_(3).shape),
    "backward of a vector": lambda lib: (leaf(lib, 2) * 1).backward(),
}


def version_of_an_inference_tensor(lib: Any) -> Any:
    with torch.inference_mode():
        x = lib.ones(2)
    return x._version


CALLS["_version of what is not counted"] = version_of_an_inference_tensor


@pytest.mark.parametrize("name", CALLS)
def test_said_as_torch(name: str) -> None:
    assert said(CALLS[name], tc) == said(CALLS[name], torch)


def test_resize_without_gradients_is_refused_too() -> None:
    def case(lib: Any) -> Any:
        x = leaf(lib, 2)
        with torch.no_grad():
            return x.resize_(3)

    assert said(case, tc) == said(case, torch)


def test_create_graph_is_warned_of_once() -> None:
    x = leaf(tc, 2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            (x * x).sum().backward(create_graph=True)
    assert ["create_graph=True" in str(w.message) for w in caught] == [True] and caught[0].filename == __file__


# --- attributes --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["device", "shape", "dtype", "layout", "is_leaf", "grad_fn", "ndim", "_version", "is_cuda"])
def test_not_to_be_assigned(name: str) -> None:
    for lib in (tc, torch):
        x = lib.ones(2)
        with pytest.raises(AttributeError):
            setattr(x, name, getattr(x, name))


PARTS: dict[str, Callable[[Any, Any], None]] = {
    "a tensor": lambda lib, x: setattr(x, "real", lib.zeros(2)),
    "one for all": lambda lib, x: setattr(x, "real", lib.zeros(1)),
    "a number": lambda lib, x: setattr(x, "real", 3),
    "imag": lambda lib, x: setattr(x, "imag", lib.full((2,), 4.0)),
    "another size": lambda lib, x: setattr(x, "real", lib.zeros(3)),
}


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_real_and_imag_are_written(name: str, dtype: torch.dtype) -> None:
    def case(lib: Any) -> Any:
        x = lib.ones(2, dtype=dtype)
        PARTS[name](lib, x)
        return x.tolist()

    assert said(case, tc) == said(case, torch)


def test_what_a_view_views() -> None:
    def case(lib: Any) -> Any:
        x = lib.ones(2, 2)
        y = leaf(lib, 2, 2)
        z = y * 1
        with torch.no_grad():
            v = z[0]
        of_x = [x[0], x[0][0], x.t(), x.split(1)[0], x.chunk(2)[1], x.expand(2, 2, 2), x.adjoint(), x.tensor_split(2)[0]]
        none = [x, x + 1, x.detach(), x.data, x.clone(), x.unsafe_split(1)[0], x.view(torch.int32)]
        ours = [t._base is x for t in of_x], [t._base for t in none], [t._is_view() for t in (x, x[0], x.detach())]
        return *ours, y[0]._base is y, z[0]._base is z, v._base is z

    assert case(tc) == case(torch)


# --- gradients ---------------------------------------------------------------------------------------------------------------


def one_output(lib: Any) -> Any:
    x = leaf(lib, 2)
    return torch.autograd.grad(x * x, x, lib.eye(2), is_grads_batched=True)


def several(lib: Any) -> Any:
    x, z = leaf(lib, 2), leaf(lib, 2)
    seeds = lib.arange(3.0), lib.arange(6.0).reshape(3, 2)
    return torch.autograd.grad((x.sum(), x * z), (x, z), seeds, is_grads_batched=True)


def unused(lib: Any) -> Any:
    x, z = leaf(lib, 2), leaf(lib, 2)
    return torch.autograd.grad(x * 2, (x, z), (lib.ones(3, 2),), is_grads_batched=True, allow_unused=True)


def second(lib: Any) -> Any:
    x = leaf(lib, 2)
    (g,) = torch.autograd.grad(x**3, x, lib.eye(2), is_grads_batched=True, create_graph=True)
    return g, torch.autograd.grad(g.sum(), x)[0]


@pytest.mark.parametrize("case", [one_output, several, unused, second], ids=lambda f: f.__name__)
def test_several_gradients_of_each_output(case: Callable[[Any], Any]) -> None:
    got, want = ([None if g is None else (g.tolist(), g.requires_grad) for g in case(lib)] for lib in (tc, torch))
    assert got == want


def test_edited_indices_are_no_nodes() -> None:
    def case(lib: Any) -> Any:
        values, indices = leaf(lib, 2, 3).max(1)
        indices.fill_(1)
        values.sum().backward()

    assert said(case, tc) == said(case, torch)


def test_an_edited_mask_is_named() -> None:
    def case(lib: Any) -> Any:
        mask = lib.tensor([True, False])
        y = leaf(lib, 2).masked_fill(mask, 0).sum()
        mask.fill_(True)
        y.backward()

    assert said(case, tc) == said(case, torch)
