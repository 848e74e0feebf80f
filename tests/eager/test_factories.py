"""Where factories make their tensors: on the device that is named, torch's default one, or that of what they are like."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tinycompile as tc

pytestmark = pytest.mark.pure

LIKES: dict[str, tuple[Any, ...]] = {
    "zeros_like": (), "ones_like": (), "empty_like": (), "full_like": (3,), "rand_like": (), "randn_like": (), "randint_like": (3,)
}  # fmt: skip


@pytest.mark.parametrize("name", LIKES)
@pytest.mark.parametrize("device", ["meta", "cpu"])
@pytest.mark.parametrize("of", ["cpu", "meta"])
def test_like_on_another_device(name: str, device: str, of: str) -> None:
    def case(lib: Any, fn: Any) -> list[Any]:
        x = lib.ones(2, 3, device=of).t()
        made = [fn(x, *LIKES[name], device=device) for _ in range(3)]  # later calls go the short way
        made.append(fn(x, *LIKES[name], device=torch.device(device), dtype=torch.float64))
        made.append(fn(x, *LIKES[name]))
        return [(m.device.type, m.dtype, tuple(m.shape), m.stride()) for m in made]

    want = case(torch, getattr(torch, name))
    assert case(tc, getattr(torch, name)) == case(tc, getattr(tc, name)) == want


def test_new_on_another_device() -> None:
    for lib in (torch, tc):
        x = lib.ones(2)
        made = [x.new_zeros(2, device="meta"), x.new_full((2,), 3, device="meta"), x.new_tensor([1], device="meta")]
        assert [m.device.type for m in made] == ["meta"] * 3


def test_torchs_default_device() -> None:
    x = tc.ones(2)
    with torch.device("meta"):
        made = [tc.ones(2), tc.tensor([1.0]), tc.as_tensor([1.0]), tc.as_tensor(x), tc.arange(3), tc.hann_window(3)]
        assert [m.device.type for m in made] == ["meta"] * 6
        assert tc.zeros_like(x).device.type == tc.tensor([1], device="cpu").device.type == "cpu"


def test_as_tensor_stays_on_the_tape() -> None:
    x = tc.ones(2).requires_grad_()
    assert tc.as_tensor(x) is x
    made = tc.as_tensor(x, dtype=torch.float64)
    made.sum().backward()
    assert made.dtype == torch.float64 and x.grad.tolist() == [1, 1]
