"""Tensors that are watched by their words in memory: each change is seen that one look at all of them would see."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from tinycompile.base import tensor_words, words
from tinycompile.base.tensor_words import LAYOUT, WatchedTensors, can_watch
from tinycompile.base.torch_private import BulkCheck

pytestmark = pytest.mark.pure


class Sub(nn.Parameter):
    pass


def _swap(t: torch.Tensor, other: torch.Tensor) -> None:
    torch.utils.swap_tensors(t, other)


def _transposed(t: torch.Tensor) -> None:
    with torch.no_grad():
        t.t_()


def _written(t: torch.Tensor) -> None:
    t.requires_grad_(False)
    t.mul_(torch.ones(4, requires_grad=True))
    t.detach_()


CHANGES: dict[str, Callable[[nn.Parameter], object]] = {
    "dtype": lambda p: setattr(p, "data", p.data.double()),
    "sizes": lambda p: setattr(p, "data", torch.ones(3, 5)),
    "rank": lambda p: setattr(p, "data", torch.ones(3)),
    "strides": _transposed,
    "strides of other data": lambda p: setattr(p, "data", torch.ones(4, 3).t()),
    "unsqueezed": lambda p: setattr(p, "data", p.data.unsqueeze(0)),
    "conjugate": lambda p: setattr(p, "data", p.data.to(torch.complex64).conj()),
    "requires_grad": lambda p: p.requires_grad_(False),
    "class": lambda p: setattr(p, "__class__", Sub),
    "swapped": lambda p: _swap(p, nn.Parameter(torch.ones(2))),
    "written, detached": _written,
}
QUIET: dict[str, Callable[[nn.Parameter], object]] = {
    "nothing": lambda p: None,
    "values": lambda p: p.data.add_(1),
    "equal data": lambda p: setattr(p, "data", torch.zeros(3, 4)),
    "gradient": lambda p: (p * 2).sum().backward(),
    "gradient cleared": lambda p: setattr(p, "grad", None),
    "hook": lambda p: p.register_hook(lambda g: g),
    "requires_grad and back": lambda p: p.requires_grad_(False).requires_grad_(True),
    "swapped for a like one": lambda p: _swap(p, nn.Parameter(torch.zeros(3, 4))),
    "attribute": lambda p: setattr(p, "mark", 1),
}


def _parameters() -> list[nn.Parameter]:
    return [nn.Parameter(torch.ones(3, 4)) for _ in range(40)]


def test_this_torch_has_them_in_memory() -> None:
    assert LAYOUT is not None
    with torch.inference_mode(), torch.device("meta"):
        assert tensor_words._layout() == LAYOUT
    assert all(can_watch(p, LAYOUT) for p in _parameters())


@pytest.mark.parametrize("change", CHANGES)
def test_each_change_is_seen(change: str) -> None:
    params = _parameters()
    watched, bulk = WatchedTensors(params), BulkCheck(params)
    assert watched.check() and watched.check()
    CHANGES[change](params[7])
    assert not bulk.check(*params)
    assert not watched.check() and not watched.check()


@pytest.mark.parametrize("change", QUIET)
def test_what_changes_nothing_is_let_pass(change: str) -> None:
    params = _parameters()
    watched = WatchedTensors(params)
    for _ in range(10):
        QUIET[change](params[7])
        assert watched.check() and watched.check()
    CHANGES["dtype"](params[8])
    assert not watched.check()


def test_what_was_changed_and_is_changed_back_holds_again() -> None:
    params = _parameters()
    watched = WatchedTensors(params)
    for _ in range(10):
        assert watched.check()
        params[3].requires_grad_(False)
        assert not watched.check()
        params[3].requires_grad_(True)


@pytest.mark.parametrize("change", ["written in place", "requires_grad"])
def test_a_buffer_comes_to_require_grad(change: str) -> None:
    buffers = [torch.ones(4) for _ in range(40)]
    buffers[5].requires_grad_().requires_grad_(False)  # it has autograd's words already
    watched = WatchedTensors(buffers)
    for i in (5, 6):
        assert watched.check() and watched.check()
        if change == "requires_grad":
            buffers[i].requires_grad_()
        else:
            buffers[i].mul_(torch.ones(4, requires_grad=True))
        assert buffers[i].requires_grad and not watched.check()
        buffers[i].detach_().requires_grad_(False)


def test_others_are_looked_at() -> None:
    odd = [torch.ones(1, 1, 1, 1, 1, 2), torch.eye(3).to_sparse(), Sub(torch.ones(2)), torch.ones(2)]
    assert [can_watch(t, LAYOUT) for t in odd] == [False, False, False, True]
    watched = WatchedTensors(odd)
    assert watched.check() and watched.check()
    odd[0].data = torch.ones(1, 1, 1, 1, 2, 1)
    assert not watched.check()


def test_keys_of_the_thread_are_seen() -> None:
    params = _parameters()
    watched, bulk = WatchedTensors(params), BulkCheck(params)
    assert watched.check() and watched.check()
    seen: list[tuple[bool, bool]] = []
    torch.vmap(lambda x: seen.append((watched.check(), bulk.check(*params))) or x)(torch.ones(2))
    assert seen == [(False, False)]
    assert watched.check()


def test_where_the_words_are_not_found_all_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_words, "LAYOUT", None)
    params = _parameters()
    watched = WatchedTensors(params)
    assert watched.check() and watched.check()
    CHANGES["dtype"](params[7])
    assert not watched.check()


@pytest.mark.parametrize("many", [0, 1, 499, 500, 501, 1203])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_words_are_where_they_are_read(many: int, count: int) -> None:
    held = [torch.arange(i, i + 8) for i in range(many)]
    read = words.reader([t.data_ptr() + 8 for t in held], count)
    assert list(memoryview(read()).cast("q")) == [i + 1 + k for i in range(many) for k in range(count)]
    for t in held:
        t.neg_()
    assert list(memoryview(read()).cast("q")) == [-(i + 1 + k) for i in range(many) for k in range(count)]
