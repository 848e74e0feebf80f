"""Writes to views and to what they view, on our tape. As torch, line by line: gradients, or the same error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tinycompile as tc

pytestmark = pytest.mark.pure


def outcome(lib: Any, case: Callable[[Any, Any], Any]) -> list[Any]:
    """Of a leaf of 2 x 3."""
    x = lib.full((2, 3), 2.0)
    x.requires_grad_()
    try:
        found = case(lib, x)
        if found.requires_grad:
            found.backward()
    except RuntimeError as error:
        return [str(error)]
    return [found.tolist(), found.requires_grad, None if x.grad is None else (x.grad.tolist(), tuple(x.grad.stride()))]


# Name -> (a view of what is 2 x 3 that is written to, what lays the gradient out otherwise).
LAID_OUT: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "flat": (lambda y: y.view(6), lambda y: y.t()),
    "other rows": (lambda y: y.view(3, 2)[1:], lambda y: y.t()),
    "flattened": (lambda y: y.flatten(), lambda y: y.t().contiguous()),
    "reshaped": (lambda y: y.reshape(-1)[::2], lambda y: y.t()),
    "of two dims": (lambda y: y.unsqueeze(0).view(2, 3, 1), lambda y: y.t()),
}


@pytest.mark.parametrize("name", LAID_OUT)
def test_gradients_laid_out_otherwise_than_what_is_written_to(name: str) -> None:
    """A view that the base's strides allow, and the gradient's own strides may not."""
    view, other = LAID_OUT[name]

    def by_number(lib: Any, x: Any) -> Any:
        y = x * 1
        view(y).mul_(3)
        return (other(y) * lib.arange(6.0).reshape(3, 2)).sum()

    def by_itself(lib: Any, x: Any) -> Any:
        y = x * 1
        view(y).copy_(view(x) * x.sum())
        return (other(y) * lib.arange(6.0).reshape(3, 2)).sum()

    def of_columns(lib: Any, x: Any) -> Any:
        y = (x * 1).t().clone()
        view(y.t()).mul_(3)
        return (y.t().contiguous() * lib.arange(6.0).reshape(2, 3)).sum()

    for case in (by_number, by_itself, of_columns):
        assert outcome(tc, case) == outcome(torch, case)
    rows = torch.arange(12.0).reshape(2, 2, 3)
    got = tc.vmap(tc.func.grad(lambda x: by_number(tc, x)))(tc.from_torch(rows))
    assert got.tolist() == torch.vmap(torch.func.grad(lambda x: by_number(torch, x)))(rows).tolist()


# Views that functions without a record of their own give of what is 2 x 3, and torch.ops.aten's.
ATEN = torch.ops.aten
BY_OTHER_FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "adjoint": lambda y: y.adjoint(),
    "torch.adjoint": lambda y: torch.adjoint(y),
    "atleast_3d of a list": lambda y: torch.atleast_3d([y])[0],
    "broadcast_tensors": lambda y: torch.broadcast_tensors(y, torch.ones(2, 1, 1))[0][1],
    "meshgrid": lambda y: torch.meshgrid(y[0], y[1], indexing="ij")[0][:, 0],
    "dropout1d": lambda y: torch.nn.functional.dropout1d(y, training=False),
    "at a tensor": lambda y: y.tensor_split(torch.tensor(2), 1)[0],
    "tensor_split": lambda y: y.tensor_split(2, 1)[1],
    "hsplit": lambda y: torch.hsplit(y, 3)[2],
    "vsplit": lambda y: y.vsplit(2)[0],
    "dsplit": lambda y: y.unsqueeze(0).dsplit([2])[1],
    "unsafe_split": lambda y: y.unsafe_split(1)[0],
    "unsafe_split_with_sizes": lambda y: y.unsafe_split_with_sizes([1, y.shape[0] - 1])[0],
    "unsafe_chunk": lambda y: torch.unsafe_chunk(y, 2)[1],
    "view as integers": lambda y: y.view(torch.int32).view(torch.float32),
    **{
        f"aten.{name}": (lambda y, fn=getattr(ATEN, name), args=args: fn(y, *args))
        for name, args in {
            "adjoint": (), "alias": (), "detach": (), "diagonal": (), "expand": ((1, 2, 3),), "flatten": (), "mT": (),
            "movedim": (0, 1), "narrow": (1, 1, 2), "numpy_T": (), "permute": ((1, 0),), "ravel": (), "reshape": ((3, 2),),
            "select": (1, 2), "slice": (1, 1, 3), "squeeze": (), "t": (), "swapaxes": (0, 1), "transpose": (0, 1),
            "unflatten": (1, (3, 1)), "unfold": (1, 2, 2), "unsqueeze": (1,), "view": ((6,),), "_reshape_alias": ((6,), (1,)),
            "as_strided": ((2,), (3,)), "slice_inverse": (torch.zeros(2, 3), 1, 0, 3), "linalg_diagonal": (),
        }.items()
    },
    "aten.select.int": lambda y: ATEN.select.int(self=y, dim=0, index=1),
    "aten.slice.Tensor": lambda y: ATEN.slice.Tensor(y, 1, 0, 3, 2),
    "aten.tensor_split": lambda y: ATEN.tensor_split(y, 3, 1)[2],
    "aten.split": lambda y: ATEN.split(y, 1)[0],
    "aten.chunk": lambda y: ATEN.chunk(y, 2)[0],
    "aten.unbind.int": lambda y: ATEN.unbind.int(y, 1)[2],
    "aten.unsafe_split": lambda y: ATEN.unsafe_split(y, 1)[0],
}  # fmt: skip


def write_to_part(view: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    def case(lib: Any, x: Any) -> Any:
        y = x * 1
        view(y).mul_(3)
        return (y * y).sum()

    return case


def read_after(view: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    def case(lib: Any, x: Any) -> Any:
        y = x * 1
        v = view(y)
        y.mul_(2)
        return (v * v).sum()

    return case


@pytest.mark.parametrize("name", BY_OTHER_FUNCTIONS)
def test_views_by_functions_without_a_record(name: str) -> None:
    """On the tape, under ``func.grad``, and of what had no gradient when it was viewed."""
    view = BY_OTHER_FUNCTIONS[name]
    for case in (write_to_part(view), read_after(view)):
        assert outcome(tc, case) == outcome(torch, case)

    def into_zeros(lib: Any, x: Any) -> Any:
        y = lib.zeros(2, 3)
        view(y).copy_(view(x * 2))
        return y.sum() + 0 * x.sum()

    assert outcome(tc, into_zeros) == outcome(torch, into_zeros)
    try:
        want = torch.func.grad(lambda x: write_to_part(view)(torch, x))(torch.full((2, 3), 2.0)).tolist()
    except RuntimeError:  # one of several views
        return
    assert tc.func.grad(lambda x: write_to_part(view)(tc, x))(tc.full((2, 3), 2.0)).tolist() == want


def test_views_of_complex_numbers() -> None:
    """Their elements are written to; a write to the parts of numbers is refused."""

    def of_a_row(lib: Any, x: Any) -> Any:
        y = torch.complex(x, x * 2)
        y[0].mul_(2)
        return y.abs().sum()

    assert outcome(tc, of_a_row) == outcome(torch, of_a_row)
    for part in (torch.view_as_real, torch.real, torch.imag):
        y = torch.complex(tc.ones(2).requires_grad_(), tc.zeros(2))
        with pytest.raises(NotImplementedError, match="parts of complex numbers"):
            part(y).mul_(2)


def test_detach_by_aten() -> None:
    y = tc.ones(2).requires_grad_() * 1
    assert ATEN.detach_(y) is y and not y.requires_grad


def test_writes_by_overloads_of_aten() -> None:
    def case(lib: Any, x: Any) -> Any:
        y = x * 1
        ATEN.t_.default(y)
        ATEN.mul_.Tensor(y[0], lib.tensor(3.0))
        ATEN.add_(y, y)
        return (y * lib.arange(6.0).view(3, 2)).sum()

    assert outcome(tc, case) == outcome(torch, case)


# Name -> a write of floats into integers.
INTO_INTEGERS: dict[str, Callable[[Any, Any], Any]] = {
    "copy_": lambda i, x: i.copy_(x),
    "a slice": lambda i, x: i.__setitem__(slice(0, 1), x[:1]),
    "all": lambda i, x: i.__setitem__(..., x),
    "through a view": lambda i, x: i.view(3, 2)[1].copy_(x[0, :2]),
    "to one of several views": lambda i, x: i.unbind(1)[0].copy_(x[:, 2]),
    "aten.copy_": lambda i, x: ATEN.copy_(i, x),
}


@pytest.mark.parametrize("name", INTO_INTEGERS)
def test_integers_have_no_gradients(name: str) -> None:
    def case(lib: Any, x: Any) -> Any:
        i = lib.zeros(2, 3, dtype=torch.int64)
        INTO_INTEGERS[name](i, x * 1)
        assert i.is_leaf and not i.requires_grad
        return (i * x).sum()

    assert outcome(tc, case) == outcome(torch, case)
    at = tc.full((2, 3), 2.0)
    assert tc.func.grad(lambda x: case(tc, x))(at).tolist() == outcome(torch, case)[2][0]


@pytest.mark.parametrize("name", ["acosh", "arccosh", "asinh", "arcsinh", "atanh", "arctanh"])
def test_what_has_no_derivative_in_place(name: str) -> None:
    """Torch says so in the backward; the values are there."""
    for wrap in (lambda t: t, tc.from_torch):
        y = getattr(wrap(torch.tensor([0.5, 0.25])).requires_grad_() * 1, f"{name}_")()
        with pytest.raises(NotImplementedError, match=f"inplace version of {name.replace('arc', 'a')}"):
            y.sum().backward()


REFUSED: dict[str, Callable[[Any], Any]] = {
    "t_": lambda y: y.t_(),
    "transpose_": lambda y: y.transpose_(0, 5),
    "squeeze_": lambda y: y.squeeze_(4),
    "unsqueeze_": lambda y: y.unsqueeze_(7),
    "swapaxes_": lambda y: y.swapaxes_(0, 5),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("grad", [False, True])
def test_views_in_place_are_refused_in_their_words(name: str, grad: bool) -> None:
    said = []
    for wrap in (lambda t: t, tc.from_torch):
        with pytest.raises((RuntimeError, IndexError)) as caught:
            REFUSED[name](wrap(torch.ones(2, 2, 2)).requires_grad_(grad) * 1)
        said.append((caught.type, str(caught.value)))
    assert said[0] == said[1]
