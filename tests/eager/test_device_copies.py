"""Copies between a registered device and the CPU are laid out as torch's between the CPU and another device, here meta."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import tinycompile as tc
from tests.eager import numpy_device
from tests.eager.device_support import registered
from tests.eager.numpy_device import NAME
from tinycompile.eager.custom_device import forget_device

pytestmark = pytest.mark.pure

LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "plain": lambda b: b,
    "gaps": lambda b: b[..., ::2],
    "gaps of rows": lambda b: b[:, ::2],
    "turned": lambda b: b.transpose(1, 3),
    "turned, a part": lambda b: b.transpose(1, 3)[:, :1],
    "expanded": lambda b: b[:1].expand(5, 3, 4, 2),
    "expanded at the end": lambda b: b[..., :1].expand(2, 3, 4, 6),
    "behind others": lambda b: b[1:],
    "selected": lambda b: b[:, 1],
    "a diagonal": lambda b: b.diagonal(0, 1, 2),
    "channels last": lambda b: b.to(memory_format=torch.channels_last),
    "nothing": lambda b: b[:0],
}
COPIES: dict[str, Callable[[Any, Any], Any]] = {
    "to": lambda x, d: x.to(d),
    "another dtype": lambda x, d: x.to(d, torch.float64),
    "copy": lambda x, d: x.to(d, copy=True),
    "contiguous": lambda x, d: x.to(d, memory_format=torch.contiguous_format),
    "channels last": lambda x, d: x.to(d, memory_format=torch.channels_last) if x.dim() == 4 else x.to(d),
}


@pytest.fixture(autouse=True)
def device() -> Iterator[None]:
    with registered():
        yield


def place(t: Any, storage: Any) -> Any:
    return (
        t.dtype,
        tuple(t.shape),
        t.stride(),
        t.storage_offset(),
        storage.nbytes() if callable(storage.nbytes) else storage.nbytes,
    )


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("way", COPIES)
@pytest.mark.parametrize("grad", [False, True])
def test_they_have_no_gaps(layout: str, way: str, grad: bool) -> None:
    plain = torch.arange(48.0).reshape(2, 3, 4, 2)
    want = COPIES[way](LAYOUTS[layout](plain), "meta")
    values = LAYOUTS[layout](plain).tolist()
    for source, target in (("cpu", NAME), (NAME, "cpu"), (NAME, f"{NAME}:1")):
        x = LAYOUTS[layout](tc.from_torch(plain).to(source).requires_grad_(grad))
        made = COPIES[way](x, target)
        assert place(made, made.storage) == place(want, want.untyped_storage())
        assert made.tolist() == values and made.requires_grad is grad


def test_a_function_on_the_host_sees_what_lies_beside() -> None:
    def ask(x: Any) -> Any:
        return torch.logcumsumexp(x, 0) * x.as_strided((2,), (1,)).sum()

    found = []
    for a in (torch.arange(8.0), tc.arange(8.0, device=NAME)):
        a = a.detach().requires_grad_()
        y = (a * 1)[1::2]
        found.append([ask(y.detach()).tolist(), torch.autograd.grad(torch.logcumsumexp(y, 0).sum(), a)[0].tolist()])
    assert found[0][0] == found[1][0]
    torch.testing.assert_close(torch.tensor(found[1][1]), torch.tensor(found[0][1]))


def saved(value: Any) -> Any:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("copied", [lambda value: pickle.loads(pickle.dumps(value)), saved], ids=["pickle", "torch.save"])
def test_they_are_pickled(copied: Callable[[Any], Any]) -> None:
    x = tc.arange(6.0, device=f"{NAME}:1").reshape(2, 3).t()[1:].requires_grad_()
    x.note = ["me"]
    made, other = copied([x, tc.ones(2, device=NAME, dtype=torch.bfloat16)])
    assert (made.device, made.tolist(), made.stride(), made.note) == (x.device, x.tolist(), (1, 2), ["me"])
    assert made.is_leaf and made.requires_grad and made.note is not x.note and made.storage is not x.storage
    assert other.dtype is torch.bfloat16 and other.device.index == 0 and not other.requires_grad


def test_a_device_that_is_not_there_is_named() -> None:
    data = pickle.dumps(tc.ones(2, device=NAME))
    forget_device()
    with pytest.raises(RuntimeError, match=f"a tensor on {NAME}:0 is loaded where no device of that name is registered"):
        pickle.loads(data)
    numpy_device.register()
    assert pickle.loads(data).tolist() == [1.0, 1.0]
