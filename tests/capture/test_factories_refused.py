"""Factories that torch refuses: devices that are not there, numbers that a dtype can't hold. Compiled code raises eager's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tinycompile as tc

pytestmark = pytest.mark.pure
CASES: dict[str, Callable[[Any], Any]] = {
    "ones on cuda:0": lambda x: x + torch.ones(3, device="cuda:0"),
    "zeros on cuda:99": lambda x: torch.zeros(3, device="cuda:99"),
    "a device object": lambda x: torch.zeros(3, device=torch.device("cuda", 99)),
    "an index": lambda x: torch.zeros(3, device=99),
    "another kind": lambda x: torch.zeros(3, device="mps"),
    "no kind at all": lambda x: torch.zeros(3, device="nothing"),
    "cuda": lambda x: x.cuda(99),
    "to": lambda x: x.to("cuda:99"),
    "tensor": lambda x: torch.tensor(3, device="cuda:99"),
    "as_tensor": lambda x: torch.as_tensor([1.0], device="cuda:99"),
    "random": lambda x: torch.randn(3, device="cuda:99"),
    "like": lambda x: torch.zeros_like(x, device="cuda:99"),
    "new": lambda x: x.new_ones(2, device="cuda:99"),
    "a module": lambda x: torch.nn.Linear(2, 2, device="cuda:99"),
    "ours": lambda x: tc.ones(3, device="cuda:99"),
    "ours, moved": lambda x: tc.ones(3).to("cuda:99"),
    "full of int8": lambda x: torch.full((2,), 300, dtype=torch.int8),
    "full of float": lambda x: torch.full((2,), 1e40, dtype=torch.float32),
    "full_like": lambda x: torch.full_like(x, 2**40, dtype=torch.int32),
    "new_full": lambda x: x.new_full((2,), 300, dtype=torch.uint8),
    "tensor of int8": lambda x: torch.tensor([300], dtype=torch.int8),
    "fill_": lambda x: torch.ones(2, dtype=torch.int8).fill_(300),
    **{f"{n} of no size": lambda x, n=n: getattr(torch, n)() for n in ("zeros", "ones", "empty", "rand", "randn")},
    "ones of no sizes in turn": lambda x: torch.ones(*x.sum().shape, dtype=torch.float64),
    "sum_to_size of no size": lambda x: x.sum_to_size(),
    "full of ours": lambda x: tc.full((2,), 300, dtype=torch.int8),
    "tensor of ours": lambda x: tc.tensor([300], dtype=torch.int8),
}


def observed(fn: Callable[[Any], Any]) -> Any:
    with pytest.raises(Exception) as caught:  # noqa: PT011  # which one is what is compared
        fn(torch.ones(3))
    return caught.type, str(caught.value)


@pytest.mark.parametrize("backend", ["eager", None])
@pytest.mark.parametrize("name", CASES)
def test_the_error_is_eagers(name: str, backend: str | None) -> None:
    assert observed(tc.compile(CASES[name], backend=backend)) == observed(CASES[name])
