"""Strides of results where torch's rules are oddest: empty tensors, dims of size 1, gaps, and operands that are cast."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import pytest
import torch

from tests.lower.support import bind_sample, meta_of
from tinycompile.base.meta import TensorMeta
from tinycompile.ops.record import OPS, Op, Pointwise

pytestmark = [pytest.mark.pure, pytest.mark.filterwarnings("ignore:Using a target size")]

LAYOUTS = {
    (0,): [(1,), (5,)],
    (1,): [(1,), (7,)],
    (2, 0): [(0, 1), (1, 1), (7, 3)],
    (0, 3): [(3, 1), (1, 0), (1, 5)],
    (1, 1): [(1, 1), (3, 7)],
    (3, 1): [(1, 9), (1, 1), (1, 3), (2, 1), (9, 1)],
    (1, 3): [(1, 1), (9, 1), (3, 2), (1, 9), (1, 3)],
    (2, 3): [(1, 2), (3, 1), (6, 2)],
    (2, 0, 3): [(1, 1, 2), (3, 3, 1), (0, 3, 1)],
    (1, 2, 1): [(1, 1, 2), (2, 1, 1), (5, 1, 9), (1, 7, 1), (3, 9, 3)],
    (1, 1, 5): [(9, 7, 1), (5, 5, 1), (1, 1, 1), (1, 2, 6), (2, 1, 6)],
    (2, 1, 2, 2): [(4, 1, 2, 1), (4, 4, 2, 1), (1, 9, 4, 2), (1, 1, 2, 9)],
}
MORE = ("huber_loss", "l1_loss", "kl_div", "mse_loss", "smooth_l1_loss", "nan_to_num", "roll", "prelu", "clamp", "where",
        "binary_cross_entropy_with_logits", "native_dropout", "dropout", "isclose", "lerp", "addcmul", "addcdiv")  # fmt: skip
NAMES = sorted(n for n, op in OPS.items() if isinstance(op.lowering, Pointwise) or n in MORE)


def made(shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Ones in that layout."""
    length = 1 if 0 in shape else 1 + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
    return torch.ones(length, dtype=dtype).as_strided(shape, strides)


def operands(dtypes: list[torch.dtype], rank: int) -> Iterator[list[torch.Tensor]]:
    """All in one layout, the first in another, and the first or the others with the dims of size 1 larger."""
    first, *rest = dtypes
    for shape, layouts in LAYOUTS.items():
        if len(shape) != rank:
            continue
        larger = tuple(5 if n == 1 else n for n in shape)
        for one in layouts:
            for other in layouts if rest else [one]:
                yield [made(shape, one, first), *(made(shape, other, d) for d in rest)]
            if rest:
                yield [made(shape, one, first), *(torch.ones(larger, dtype=d) for d in rest)]
                yield [torch.ones(larger, dtype=first), *(made(shape, one, d) for d in rest)]


def calls(op: Op) -> Iterator[tuple[object, ...]]:
    """The samples' calls, one of each kind, with the tensors of the first one's rank replaced."""
    seen = set()
    for sample in op.samples():
        args = bind_sample(op, sample)
        at = [i for i, a in enumerate(args) if isinstance(a, torch.Tensor)]
        kind = tuple((a.ndim, a.dtype) if isinstance(a, torch.Tensor) else repr(a) for a in args)
        if not at or kind in seen:
            continue
        seen.add(kind)
        at = [i for i in at if args[i].ndim == args[at[0]].ndim]
        for tensors in operands([args[i].dtype for i in at], args[at[0]].ndim):
            yield tuple(tensors[at.index(i)] if i in at else a for i, a in enumerate(args))


@pytest.mark.parametrize("name", NAMES)
def test_as_torch(name: str) -> None:
    op = OPS[name]
    for args in calls(op):
        try:
            want = op.eager(*args)
        except (RuntimeError, ValueError, IndexError, NotImplementedError, TypeError):
            continue  # the layouts don't fit this op
        got = op.meta(*(meta_of(a) if isinstance(a, torch.Tensor) else a for a in args))
        pairs = zip(got, want, strict=True) if isinstance(got, tuple) else [(got, want)]
        for g, w in pairs:
            assert isinstance(g, TensorMeta)
            layouts = [(tuple(a.shape), a.stride(), a.dtype) if isinstance(a, torch.Tensor) else a for a in args]
            assert (g.shape, g.strides) == (tuple(w.shape), w.stride()), layouts


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
def test_indexed_as_torch(order: tuple[int, ...]) -> None:
    """Values at indices lie as those that they are of, whatever the order of these dims."""
    x = torch.randn(4, 5, 6).permute(order)
    i, table = torch.tensor([1, 0]), torch.tensor([[1, 0, 2], [3, 1, 0]])
    for indices in (
        (i,),
        (None, i),
        (None, None, i),
        (i, i),
        (i, None, i),
        (None, i, i),
        (table,),
        (None, table),
        (None, table.t()),
    ):
        want = torch.ops.aten.index(x, indices)
        got = OPS["index"].meta(meta_of(x), tuple(None if k is None else meta_of(k) for k in indices))
        assert isinstance(got, TensorMeta) and (got.shape, got.strides) == (tuple(want.shape), want.stride()), indices


def _indices(rng: random.Random) -> torch.Tensor:
    """Zeros in one of many shapes, with dims of size 1 and permuted ones."""
    shape = rng.choice([(1,), (2,), (1, 1), (2, 1), (1, 2), (), (3, 1, 2), (2, 2), (0,)])
    return torch.zeros(shape, dtype=torch.int64).permute(rng.sample(range(len(shape)), len(shape)))


@pytest.mark.parametrize("shape", LAYOUTS, ids=str)
def test_indexed_with_dims_of_size_one(shape: tuple[int, ...]) -> None:
    """Values in odd layouts at indices in odd layouts, as Python's indexing has them: what a 0-d one selects is gone first, the
    others are expanded and reshaped as ATen does before its iterator sees them."""
    rng = random.Random(0)
    for strides in LAYOUTS[shape]:
        x = made(shape, strides, torch.float32)
        for _ in range(40):
            indices = [_indices(rng) if n and rng.random() < 0.5 else None for n in shape]
            if all(i is None or i.dim() == 0 for i in indices):
                continue  # a view
            try:
                want = x[tuple(slice(None) if i is None else i for i in indices)]
            except (RuntimeError, IndexError):
                continue  # indices that don't broadcast
            got = OPS["index"].meta(meta_of(x), tuple(None if i is None else meta_of(i) for i in indices))
            layouts = [i if i is None else (tuple(i.shape), i.stride()) for i in indices]
            assert isinstance(got, TensorMeta)
            assert (got.shape, got.strides) == (tuple(want.shape), want.stride()), (strides, layouts)
