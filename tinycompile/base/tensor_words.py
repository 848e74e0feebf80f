"""Whether many tensors are as they were: the words of memory that say what they are, compared with what stood there.

A parameter keeps its identity through ``p.data = other``, ``requires_grad_()``, ``t_()`` and ``swap_tensors``, and nothing
counts these. What torch knows of a tensor lies in three places, each of which points to the next: the Python object (its
class, and which tensor it stands for), ``c10::TensorImpl`` (sizes, strides, dtype, device, dispatch keys) and ``AutogradMeta``
(whether it requires grad, and the node that it came from). 200 tensors take 3 us so, and ``TensorGuards.check`` 8 to 13.

Where in these places a word lies depends on torch's version. It is found by looking at tensors of which all is known, and each
tensor that is watched has what its attributes say where it is looked for; others are looked at by :class:`BulkCheck`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from tinycompile.base import torch_private, words
from tinycompile.base.torch_private import BulkCheck
from tinycompile.base.words import WORD

_OBJECT, _IMPL, _META = 6, 32, 25  # words of each that are looked through
_INLINE = 5  # more sizes than these are kept elsewhere


@dataclass(frozen=True)
class Layout:
    """Positions of words. ``impl``: in the Python object, the pointer to the tensor. There: ``meta``, the pointer to what
    autograd keeps, then ``rank``, the number of dimensions, before sizes and strides, and last ``keys``, the dispatch keys.
    ``flag``: what ``requires_grad_`` changes in AutogradMeta; ``node``: what an operation in place does."""

    impl: int
    meta: int
    rank: int
    keys: int
    flag: tuple[int, ...] = ()
    node: tuple[int, ...] = ()


def _changed(before: Sequence[int], after: Sequence[int]) -> list[int]:
    return [i for i, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]


@torch.inference_mode(False)
def _layout() -> Layout | None:
    """Where the words lie in this build of torch; None where they are not found."""
    if sys.implementation.name != "cpython" or sys.maxsize < 2**32:  # an object's id is its address, a pointer one word
        return None
    probe = torch.empty(31, 37, 41, device="cpu").permute(2, 0, 1).detach()
    inside, outside, keys = words.read(probe._cdata, _IMPL), words.read(id(probe), _OBJECT), torch_private.raw_keys(probe)
    known = [3, 41, 31, 37], [1, 37 * 41, 41]
    ranks = [i for i in range(_IMPL - 14) if (inside[i : i + 4], inside[i + 6 : i + 9]) == known]
    if len(ranks) != 1 or keys not in inside[ranks[0] + 12 :] or outside[1:].count(probe._cdata) != 1:
        return None
    leaf = torch.empty(2, device="cpu")
    bare = words.read(leaf._cdata, ranks[0])
    leaf.requires_grad_()
    metas = [i for i in _changed(bare, words.read(leaf._cdata, ranks[0])) if bare[i] == 0]
    if len(metas) != 1:
        return None
    found = Layout(outside.index(probe._cdata), metas[0], ranks[0], inside.index(keys, ranks[0] + 12))
    flag = _what_changes(found, leaf, lambda: leaf.requires_grad_(False))
    node = _what_changes(found, leaf, lambda: _write(leaf))
    return Layout(found.impl, found.meta, found.rank, found.keys, flag, node) if flag and node else None


def _what_changes(where: Layout, t: torch.Tensor, change: Callable[[], object]) -> tuple[int, ...]:
    """Words of AutogradMeta."""
    address = words.read(t._cdata, where.rank)[where.meta]
    before = words.read(address, _META)
    change()
    return tuple(_changed(before, words.read(address, _META)))


def _write(t: torch.Tensor) -> None:
    with torch.enable_grad():
        t.add_(torch.ones(2, device="cpu", requires_grad=True))


LAYOUT = _layout()  # (now: a transform that is going on when it is first needed would get in the way)


def can_watch(t: torch.Tensor, where: Layout) -> bool:
    """Whether what attributes say of a tensor stands where it is looked for."""
    if type(t) not in (torch.Tensor, torch.nn.Parameter) or t.layout is not torch.strided or t.dim() > _INLINE:
        return False
    if words.read(id(t), where.impl + 1)[-1] != t._cdata:
        return False
    inside, rank = words.read(t._cdata, where.keys + 1), t.dim()
    sizes, strides = inside[where.rank + 1 :][:rank], inside[where.rank + 1 + _INLINE :][:rank]
    return (inside[where.rank], sizes, strides, inside[-1]) == (
        rank,
        list(t.shape),
        list(t.stride()),
        torch_private.raw_keys(t),
    )


class _Snapshot:
    """What stood in memory when this was made; calling it tells whether it still stands there. Each place is looked into only
    after the pointer to it was found to be the same, so it is alive."""

    __slots__ = ("_impl", "_impls", "_meta", "_metas", "_object", "_objects")

    def __init__(self, tensors: Sequence[torch.Tensor], where: Layout) -> None:
        self._objects = words.reader([id(t) + WORD for t in tensors], where.impl)
        self._object = self._objects()
        self._impls = words.reader([t._cdata + where.meta * WORD for t in tensors], where.keys + 1 - where.meta)
        self._impl = self._impls()
        kept = [(words.read(t._cdata + where.meta * WORD, 1)[0], t.requires_grad and t.is_leaf) for t in tensors]
        looks = [(meta, where.flag if flagged else (*where.flag, *where.node)) for meta, flagged in kept if meta]
        self._metas = words.reader([meta + i * WORD for meta, places in looks for i in places])
        self._meta = self._metas()

    def __call__(self) -> bool:
        return self._objects() == self._object and self._impls() == self._impl and self._metas() == self._meta


class WatchedTensors:
    """Checks that tensors are as :class:`BulkCheck` would find them. Tensors of which no word has changed are not looked at;
    where words change again and again, all are at each call."""

    _PATIENCE = 4  # the first look counts

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._where = where = LAYOUT
        self._tensors = tuple(tensors)
        self._watched = [t for t in tensors if where is not None and can_watch(t, where)]
        known = set(map(id, self._watched))
        # One of those that are watched is looked at: what this thread adds to all dispatch keys stands elsewhere.
        self._some = (*self._watched[:1], *(t for t in tensors if id(t) not in known))
        self._check, self._check_some = BulkCheck(self._tensors).check, BulkCheck(self._some).check
        self._looks = 0
        self._unchanged: Callable[[], bool] = bool  # no snapshot yet

    def check(self) -> bool:
        """Whether they are as they were when this was made."""
        return self._check_some(*self._some) if self._unchanged() else self._look()

    def _look(self) -> bool:
        if self._where is None or not self._watched or self._looks == self._PATIENCE:
            return self._check(*self._tensors)
        now = _Snapshot(self._watched, self._where)  # before the look: a change during it is seen next time
        if not self._check(*self._tensors):
            return False
        self._looks += 1
        self._unchanged = now if self._looks < self._PATIENCE else bool
        return True
