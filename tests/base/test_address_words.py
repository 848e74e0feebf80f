"""Where tensors begin, watched by words of memory: each move is seen that torch's own addresses would show."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from tinycompile.base import address_words
from tinycompile.base.address_words import PLACE, WatchedAddresses, WatchedAlignment
from tinycompile.base.torch_private import BulkAlignment

pytestmark = pytest.mark.pure


def tensors(count: int = 5) -> list[nn.Parameter]:
    return [nn.Parameter(torch.zeros(3, 4)) for _ in range(count)]


def misaligned() -> torch.Tensor:
    return torch.zeros(13)[1:].view(3, 4)


def _resized(t: torch.Tensor) -> None:
    """The storage stays, and its memory is another."""
    kept = t.untyped_storage()
    kept.resize_(0)
    _resized.held = torch.zeros(1 << 12)  # type: ignore[attr-defined]  # so that the old place is not given again
    kept.resize_(1 << 16)


MOVES: dict[str, Callable[[torch.Tensor], object]] = {
    "other data": lambda t: setattr(t, "data", torch.zeros(3, 4)),
    "other data, not aligned": lambda t: setattr(t, "data", misaligned()),
    "moved within its storage": lambda t: setattr(t, "data", t.detach().as_strided((2, 2), (2, 1), 1)),
    "swapped": lambda t: torch.utils.swap_tensors(t, nn.Parameter(torch.zeros(3, 4))),
    "storage resized": _resized,
}
STAYS: dict[str, Callable[[torch.Tensor], object]] = {
    "nothing": lambda t: None,
    "values": lambda t: t.detach().add_(1),
    "requires_grad": lambda t: t.requires_grad_(False),
    "a gradient": lambda t: (t * 2).sum().backward(),
    "an equal view": lambda t: setattr(t, "data", t.detach().view(4, 3)),
}


@pytest.mark.skipif(PLACE is None, reason="words do not tell here")
@pytest.mark.parametrize("at", [0, 4])
@pytest.mark.parametrize("move", MOVES)
def test_each_move_is_seen(move: str, at: int) -> None:
    found = tensors()
    watched = WatchedAddresses.of(found)
    assert watched is not None and watched()
    before = found[at].data_ptr()
    MOVES[move](found[at])
    assert found[at].data_ptr() != before and not watched()


@pytest.mark.skipif(PLACE is None, reason="words do not tell here")
@pytest.mark.parametrize("change", STAYS)
def test_what_moves_nothing_is_no_move(change: str) -> None:
    found = tensors()
    watched = WatchedAddresses.of(found)
    STAYS[change](found[2])
    assert watched is not None and watched()


@pytest.mark.parametrize("odd", [torch.ones(3).to_sparse(), torch.ones(3).as_subclass(type("Own", (torch.Tensor,), {}))])
def test_tensors_whose_words_do_not_tell_are_not_watched(odd: torch.Tensor) -> None:
    assert WatchedAddresses.of([torch.ones(2), odd]) is None


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("change", MOVES | STAYS)
def test_alignment_is_that_of_all_addresses(change: str, known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not known:
        monkeypatch.setattr(address_words, "PLACE", None)
    found = tensors()
    watched, every = WatchedAlignment(found), BulkAlignment(found)
    for t in found:
        assert watched.check() and watched.check() and every.check()
        (MOVES | STAYS)[change](t)
        assert watched.check() == every.check()
        if not every.check():
            return


def test_what_moves_at_each_call_is_looked_at_whole() -> None:
    found, looks = tensors(), 0
    watched = WatchedAlignment(found)
    for _ in range(10):
        found[0].data = torch.zeros(3, 4)
        assert watched.check()
        looks += watched._same is not None
    assert looks <= 4
    found[0].data = misaligned()
    assert not watched.check()
