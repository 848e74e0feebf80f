"""Factories of a registered device: by its name, as torch's default device, and like tensors that are there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import tinycompile
from tests.eager.device_support import registered
from tests.eager.numpy_device import NAME

pytestmark = pytest.mark.cpu


@pytest.fixture(autouse=True)
def device() -> Iterator[None]:
    with registered():
        yield


def there(t: torch.Tensor) -> tinycompile.Tensor:
    return tinycompile.from_torch(t).to(NAME)


def same(mine: tinycompile.Tensor, theirs: torch.Tensor) -> None:
    assert mine.device.type == NAME and mine.dtype == theirs.dtype and mine.shape == theirs.shape
    torch.testing.assert_close(mine.cpu().torch().detach(), theirs.detach())


MADE_THERE: dict[str, Callable[[Any], Any]] = {
    "ones": lambda lib: lib.ones(2),
    "a scalar": lambda lib: lib.zeros(()),
    "arange": lambda lib: lib.arange(3),
    "linspace": lambda lib: lib.linspace(0, 1, 3),
    "eye": lambda lib: lib.eye(2),
    "tensor": lambda lib: lib.tensor([1.0, 2.0]),
    "as_tensor": lambda lib: lib.as_tensor([1.0, 2.0]),
    "asarray": lambda lib: lib.asarray([1, 2]),
    "hann_window": lambda lib: lib.hann_window(3),
    "tril_indices": lambda lib: lib.tril_indices(2, 2),
    "scalar_tensor": lambda lib: lib.scalar_tensor(2.0),
}


@pytest.mark.parametrize("name", MADE_THERE)
def test_it_may_be_torchs_default_device(name: str) -> None:
    want = MADE_THERE[name](torch)
    with torch.device(NAME):
        same(MADE_THERE[name](tinycompile), want)
    torch.set_default_device(f"{NAME}:1")
    try:
        made = MADE_THERE[name](tinycompile)
    finally:
        torch.set_default_device(None)
    same(made, want)
    assert made.device.index == 1


def test_under_it_as_default_device() -> None:
    x = there(torch.ones(2, 3))
    with torch.device(NAME):
        assert tinycompile.as_tensor(x) is x and tinycompile.zeros_like(x.cpu()).device.type == "cpu"
        with pytest.warns(UserWarning, match="To copy construct from a tensor"):
            moved = tinycompile.tensor(x.cpu())
        added = tinycompile.compile(lambda a: a + tinycompile.ones(3))(x)
        w = tinycompile.ones(2, requires_grad=True)
        (w * 3).sum().backward()
    same(moved, torch.ones(2, 3))
    same(added, torch.full((2, 3), 2.0))
    same(w.grad, torch.full((2,), 3.0))


@pytest.mark.parametrize("name", ["zeros_like", "ones_like", "empty_like", "rand_like", "randn_like"])
def test_like_to_and_from_it(name: str) -> None:
    x, fn = there(torch.ones(2, 3).t()), getattr(torch, name)
    for of, device in (
        (x, "cpu"),
        (x, "meta"),
        (x, f"{NAME}:1"),
        (x.cpu(), NAME),
        (tinycompile.ones(3, 2, device="meta"), NAME),
    ):
        for _ in range(2):
            made = fn(of, device=device)
            assert made.device.type == device.partition(":")[0] and made.shape == (3, 2) and made.stride() == of.stride()
    assert fn(x, device=f"{NAME}:1").device.index == 1


def test_tensors_of_tensors_there() -> None:
    x = there(torch.ones(2, 3))
    with pytest.warns(UserWarning, match="To copy construct from a tensor"):
        same(tinycompile.tensor(x), torch.ones(2, 3))
    assert tinycompile.tensor([x[0, 0], 2.0]).device.type == tinycompile.as_tensor(x, device="cpu").device.type == "cpu"
    same(tinycompile.as_tensor(x, dtype=torch.float64), torch.ones(2, 3, dtype=torch.float64))
    same(tinycompile.tensor([[x[0, 0], 2.0]], device=NAME), torch.tensor([[1.0, 2.0]]))
    assert x.new_tensor([1.0]).device.type == NAME and x.new_tensor([1.0], device="cpu").device.type == "cpu"
    w = tinycompile.ones(2, requires_grad=True)
    tinycompile.as_tensor(w, device=NAME).sum().backward()
    assert w.grad.tolist() == [1, 1] and w.to(NAME, None).device.type == NAME
