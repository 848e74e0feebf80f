"""Pickling, torch.save, deepcopy and printing of our tensors; devices that torch takes; writes that resize."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch

import tinycompile as tc
from tests.eager.test_tensor import assert_same
from tinycompile.base.device import Device
from tinycompile.eager.tensor import Tensor, from_torch

pytestmark = pytest.mark.pure


def saved(value: Any, weights_only: bool) -> Any:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=weights_only)


WAYS = {
    "pickle": lambda v: pickle.loads(pickle.dumps(v)),
    "save": lambda v: saved(v, False),
    "save weights": lambda v: saved(v, True),
    "deepcopy": copy.deepcopy,
}


@pytest.mark.parametrize("way", WAYS)
def test_values_strides_and_flags_come_back(way: str) -> None:
    base = torch.arange(24.0).reshape(4, 6)
    for t in (base, base.T, base[1:, ::2], base.to(torch.bfloat16), torch.tensor(3), torch.zeros(0, 2), base > 3):
        made = WAYS[way](from_torch(t))
        assert isinstance(made, Tensor)
        assert_same(made, WAYS[way](t))
        assert not made.requires_grad
    leaf = tc.ones(3).requires_grad_()
    assert WAYS[way](leaf).requires_grad and WAYS[way](leaf).is_leaf


@pytest.mark.parametrize("way", ["save", "deepcopy"])
def test_tensors_that_share_memory_share_it_afterwards(way: str) -> None:
    x = tc.arange(6.0)
    made = WAYS[way]({"all": x, "part": x[2:], "again": x})
    made["all"][3] = 100
    assert float(made["part"][1]) == 100 and made["all"].storage is made["part"].storage
    assert float(x[3]) == 3
    if way == "deepcopy":
        assert made["again"] is made["all"]


def test_deepcopy_of_leaves_and_of_results() -> None:
    leaf = tc.ones(3).requires_grad_()
    (leaf * 2).sum().backward()
    made = copy.deepcopy(leaf)
    assert torch.equal(made.grad.torch(), leaf.grad.torch()) and made.grad is not leaf.grad
    with pytest.raises(RuntimeError, match="Only Tensors created explicitly by the user"):
        copy.deepcopy(leaf * 2)
    assert copy.copy(leaf).torch().data_ptr() == leaf.torch().data_ptr()


def test_deepcopy_and_gradients_under_vmap() -> None:
    def twice(x: Any) -> Any:
        leaf = copy.deepcopy(x).detach().requires_grad_()
        (leaf * 2).sum().backward()
        (leaf * x).sum().backward()
        return leaf.grad

    x = torch.arange(6.0).reshape(3, 2)
    assert torch.equal(tc.vmap(twice)(from_torch(x)).torch(), 2 + x)


# --- attributes of the user --------------------------------------------------------------------------------------------------

KINDS = {"strided": lambda: torch.ones(3, 3), "sparse": lambda: torch.eye(3).to_sparse()}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", [*WAYS, "copy"])
def test_attributes_of_the_user_are_kept_as_torch_keeps_them(way: str, kind: str) -> None:
    found = []
    for t in (from_torch(KINDS[kind]()), KINDS[kind]()):
        t.note, t.other = {"by": ["me"]}, t * 2  # type: ignore[union-attr]
        made: Any = (WAYS | {"copy": copy.copy})[way](t)
        assert type(made) is type(made.other) is type(t)
        found.append((made.note, made.note is t.note, made.other is t.other, made.other.to_dense().tolist()))  # type: ignore[union-attr]
    assert found[0] == found[1]


def test_attributes_of_the_user_are_one_tensors_own() -> None:
    for t in (tc.ones(3), torch.ones(3)):
        t.tag = 1  # type: ignore[union-attr]
        assert vars(t) == {"tag": 1} and t.requires_grad_().tag == 1  # type: ignore[union-attr]
        assert not any(hasattr(other, "tag") for other in (t.detach(), t.view(-1), t.clone(), t * 1, t.data))
        del t.tag  # type: ignore[union-attr]
        with pytest.raises(AttributeError, match="'Tensor' object has no attribute 'tag'"):
            t.tag  # type: ignore[union-attr]  # noqa: B018
        with pytest.raises(AttributeError):
            t.shape = (1,)  # type: ignore[misc, assignment]


@pytest.mark.parametrize("kind", ["Parameter", "Buffer"])
def test_what_torchs_modules_would_pass_over_is_refused(kind: str) -> None:
    make = getattr(torch.nn, kind)
    for x in (tc.ones(3), tc.ones(3).requires_grad_(), tc.ones(3).requires_grad_() * 2, from_torch(torch.eye(3).to_sparse())):
        assert not isinstance(x, make)
        with pytest.raises(TypeError, match=rf"use torch.nn.{kind}\(x.detach\(\).torch\(\)\), which lies on the same memory"):
            make(x)
        assert isinstance(make(x.detach().torch()), make)
        if x.layout is torch.strided:
            assert make(x.detach().torch()).data_ptr() == x.data_ptr()


def test_compiled_code_reads_and_sets_attributes_of_the_user() -> None:
    def f(x: Any) -> Any:
        y = x * x.scale
        y.tag, x.seen = "made here", True
        return y

    compiled = tc.compile(f, backend="eager")
    x: Any = tc.ones(3)
    for scale in (2.0, 5.0):
        x.scale = scale
        y = compiled(x)
        assert y.tolist() == [scale] * 3 and y.tag == "made here" and x.seen


def test_printing() -> None:
    for t in (torch.arange(3.0), torch.randn(2, 2, dtype=torch.float64), torch.arange(3), torch.randn(50, 50)):
        assert repr(from_torch(t)) == repr(t)
        if t.is_floating_point():
            assert repr(from_torch(t).requires_grad_()) == repr(t.clone().requires_grad_())
            ours, theirs = from_torch(t.clone()).requires_grad_() * 2, t.clone().requires_grad_() * 2
            assert repr(ours) == repr(theirs)
    long = torch.randn(8) * 1e5
    assert repr(from_torch(long.clone()).requires_grad_() * 2) == repr(long.clone().requires_grad_() * 2)


# --- devices -----------------------------------------------------------------------------------------------------------------


def test_torch_takes_our_devices() -> None:
    x = tc.ones(2)
    assert torch.zeros(3, device=x.device).device == x.device == torch.device("cpu")  # type: ignore[arg-type]
    assert torch.device(x.device) == torch.device("cpu") and torch.ones(2).to(x.device).device.type == "cpu"
    assert x.device != "cpu" and x.device != torch.device("meta")
    assert {x.device: 1}[torch.device("cpu")] == 1  # type: ignore[index]
    assert hash(Device("cuda", 1)) == hash(torch.device("cuda", 1)) and Device("cuda", 1) == torch.device("cuda:1")
    assert (
        f"{Device('cuda', 1)}" == str(Device("cuda", 1)) == "cuda:1" and repr(Device("cpu")) == "Device(type='cpu', index=-1)"
    )
    assert pickle.loads(pickle.dumps(Device("cuda", 1))) == Device("cuda", 1)
    with pytest.raises(AttributeError):
        x.device.index = 3  # type: ignore[misc]


# --- writes that resize ------------------------------------------------------------------------------------------------------


def test_sizes_follow_what_torch_changes() -> None:
    x, out = tc.ones(3, 4), tc.empty(0)
    assert out.shape == (0,)
    assert torch.add(x, x, out=out) is out and out.shape == (3, 4)
    assert x.t_().shape == (4, 3) and x.resize_(2, 2).shape == (2, 2)
    other = tc.zeros(5)
    storage = other.storage
    assert storage is not x.storage
    other.set_(x)
    assert other.shape == (2, 2) and other.storage is x.storage
    values, indices = tc.empty(0), tc.empty(0, dtype=torch.int64)
    torch.max(tc.ones(3, 4), 1, out=(values, indices))
    assert values.shape == indices.shape == (3,)
