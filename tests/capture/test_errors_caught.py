"""What the program reads of an error that it catches is torch's own text, with this call's numbers: whichever record, and
however often sizes have changed."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tinycompile.api import CompiledFunction
from tinycompile.options import Options

pytestmark = pytest.mark.pure

Call = Callable[[torch.Tensor, torch.Tensor], Any]


def assign(x: torch.Tensor, key: Any, value: torch.Tensor) -> torch.Tensor:
    made = x.clone()
    made[key] = value
    return made


# Wrong calls on x of (n, m) and y of (m + 1, n + 1).
WRONG: dict[str, Call] = {
    "add": lambda x, y: x + y,
    "where": lambda x, y: torch.where(y > 0, x, x),
    "masked_fill": lambda x, y: x.masked_fill(y > 0, 1.0),
    "lerp": lambda x, y: torch.lerp(x, y, 0.5),
    "add_": lambda x, y: x.clone().add_(y),
    "copy_": lambda x, y: x.clone().copy_(y),
    "mm": lambda x, y: x @ y,
    "linear": lambda x, y: F.linear(x, y.mT),
    "bmm": lambda x, y: torch.bmm(x[None], y[None]),
    "addmm": lambda x, y: torch.addmm(x, x, y),
    "view": lambda x, y: x.view(3, -1, 7),
    "reshape": lambda x, y: x.reshape(x.shape[0] + 1, 5),
    "expand": lambda x, y: x.expand(3, x.shape[1] + 1),
    "unflatten": lambda x, y: x.unflatten(0, (7, 3)),
    "unflatten by a size": lambda x, y: x.unflatten(0, (x.shape[1], -1)),
    "view_as": lambda x, y: x.view_as(y),
    "as_strided": lambda x, y: x.as_strided((x.shape[0], 9999), (9999, 1)),
    "narrow": lambda x, y: x.narrow(0, 1, x.shape[0]),
    "split": lambda x, y: x.split([1, 2, x.shape[0]]),
    "cat": lambda x, y: torch.cat([x, y], 1),
    "stack": lambda x, y: torch.stack([x, y]),
    "item": lambda x, y: x[x.shape[0]],
    "select": lambda x, y: x.select(0, x.shape[0] + 2),
    "assigned": lambda x, y: assign(x, slice(1, None), y),
    "assigned at": lambda x, y: assign(x, y[0].long() * 0, y),
    "index_put_": lambda x, y: x.clone().index_put_((y[0].long() * 0,), y),
    "layer_norm": lambda x, y: F.layer_norm(x, (y.shape[0],)),
    "batch_norm": lambda x, y: F.batch_norm(x, y[0], y[0]),
    "group_norm": lambda x, y: F.group_norm(x[None], x.shape[0] - 1),
    "nll_loss": lambda x, y: F.nll_loss(x, y),
    "kl_div": lambda x, y: F.kl_div(x, y, reduction="sum"),
    "mse_loss": lambda x, y: F.mse_loss(x, y),
    "pad": lambda x, y: F.pad(x[None], (x.shape[1], 0), mode="reflect"),
    "conv1d": lambda x, y: F.conv1d(x[None], y[None]),
    "max": lambda x, y: x.max(3),
}


@pytest.mark.parametrize("name", WRONG)
def test_torchs_words_and_this_calls_numbers(name: str) -> None:
    wrong = WRONG[name]

    def program(x: torch.Tensor, y: torch.Tensor) -> Any:
        try:
            return wrong(x, y)
        except (RuntimeError, ValueError, IndexError) as error:
            return type(error).__name__, str(error), x + 1

    compiled = CompiledFunction(program, Options(backend="eager"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # mse_loss warns of the sizes first
        for n, m in ((6, 4), (8, 5), (11, 7)):
            x, y = torch.randn(n, m), torch.randn(m + 1, n + 1)
            expected, got = program(x, y), compiled(x, y)
            assert len(expected) == 3, "the call is right"
            assert got[:2] == expected[:2]
            assert torch.equal(got[2], expected[2])


def test_asking_torch_leaves_no_trace() -> None:
    """Warnings are those of the call, and torch's generator stays where it was."""

    def program(x: torch.Tensor, y: torch.Tensor) -> Any:
        try:
            return F.mse_loss(x, y)
        except RuntimeError as error:
            return str(error)

    def told(fn: Callable[..., Any]) -> tuple[Any, list[str], torch.Tensor]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            result = fn(torch.ones(3, 4), torch.ones(5, 6))
        return result, [str(w.message) for w in caught], torch.get_rng_state()

    expected, got = told(program), told(CompiledFunction(program, Options(backend="eager")))
    assert got[:2] == expected[:2]
    assert torch.equal(got[2], expected[2])


def test_what_is_written_at_indices_must_fit_there() -> None:
    """Without a handler, too: a kernel would read past the values."""

    def program(x: torch.Tensor, at: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        return x.clone().index_put_((at,), values)

    x, at = torch.randn(4, 5), torch.tensor([0, 1])
    for values in (torch.randn(2, 5), torch.randn(5), torch.randn(2, 1)):
        assert torch.equal(CompiledFunction(program, Options(backend="eager"))(x, at, values), program(x, at, values))
    for values in (torch.randn(3, 5), torch.randn(2, 6), torch.randn(1, 2, 6)):
        with pytest.raises(RuntimeError, match="shape mismatch: value tensor of shape"):
            CompiledFunction(program, Options(backend="eager"))(x, at, values)


# Calls for which records have formulas, and torch has no kernel.
NO_KERNEL: dict[str, tuple[torch.dtype, Callable[[torch.Tensor], Any]]] = {
    "round": (torch.bool, torch.round),
    "floor": (torch.bool, lambda x: x.floor()),
    "trunc": (torch.bool, torch.trunc),
    "abs": (torch.bool, lambda x: abs(x)),
    "hypot": (torch.int32, lambda x: torch.hypot(x, x)),
    "lerp": (torch.int64, lambda x: torch.lerp(x, x, 0.5)),
    "layer_norm": (torch.int64, lambda x: F.layer_norm(x, (4,))),
    "glu": (torch.int64, F.glu),
    "hardtanh": (torch.uint8, F.hardtanh),
    "bessel_j0": (torch.float16, torch.special.bessel_j0),
}


@pytest.mark.parametrize("name", NO_KERNEL)
def test_dtypes_that_torch_has_no_kernel_for(name: str) -> None:
    dtype, call = NO_KERNEL[name]
    x = torch.ones(2, 4, dtype=dtype)

    def caught(x: torch.Tensor) -> Any:
        try:
            return call(x)
        except RuntimeError as error:
            return type(error).__name__, str(error)

    with pytest.raises(RuntimeError) as expected:
        call(x)
    with pytest.raises(type(expected.value)) as got:
        CompiledFunction(lambda x: call(x) + 1, Options(backend="eager", fullgraph=True))(x)
    assert str(got.value) == str(expected.value)
    assert CompiledFunction(caught, Options(backend="eager"))(x) == caught(x)


def test_other_arguments_decide_what_dtypes_torch_takes() -> None:
    x = torch.arange(8, dtype=torch.uint8)
    compiled = CompiledFunction(lambda x: F.hardtanh(x, 2, 6), Options(backend="eager", fullgraph=True))
    assert torch.equal(compiled(x), F.hardtanh(x, 2, 6))


@pytest.mark.parametrize("again", [lambda x: torch.tensor(x), lambda x: x.new_tensor(x)], ids=["tensor", "new_tensor"])
def test_what_a_call_without_a_record_warns_of_is_told_once(again: Callable[[torch.Tensor], torch.Tensor]) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return again(x) + 1

    compiled = CompiledFunction(program, Options(backend="eager"))
    for _ in range(2):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            compiled(torch.ones(2))
        assert len(caught) == 1


REFUSED: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "padding_idx": lambda x, i: F.embedding(i, x, padding_idx=4),
    "padding_idx before the first": lambda x, i: F.embedding(i, x, padding_idx=-5),
    "to(other=...)": lambda x, i: x.to(other=i),  # type: ignore[call-overload]
}


@pytest.mark.parametrize("name", REFUSED)
def test_arguments_that_torch_refuses(name: str) -> None:
    x, at = torch.randn(4, 3), torch.tensor([0, 2])
    with pytest.raises((AssertionError, TypeError)) as expected:
        REFUSED[name](x, at)
    with pytest.raises(type(expected.value)) as got:
        CompiledFunction(lambda x, i: REFUSED[name](x, i) + 1, Options(backend="eager"))(x, at)
    assert str(got.value) == str(expected.value)


def test_arguments_that_torch_takes() -> None:
    def program(x: torch.Tensor, i: torch.Tensor) -> Any:
        return F.embedding(i, x, padding_idx=-4), torch.embedding(x, i, 7), x.to(tensor=i)  # type: ignore[call-overload]

    x, at = torch.randn(4, 3), torch.tensor([0, 2])
    for a, b in zip(CompiledFunction(program, Options(backend="eager"))(x, at), program(x, at), strict=True):
        assert torch.equal(a, b)
