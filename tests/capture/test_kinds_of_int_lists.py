"""Sizes, dims and such given to torch as all kinds of sequences: it takes some and refuses others, each function its own."""

from __future__ import annotations

import array
import collections
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812

import tinycompile

pytestmark = pytest.mark.pure
X = torch.arange(24.0).reshape(2, 3, 4)
IMAGES = torch.arange(384.0).reshape(2, 3, 8, 8)
KERNEL = torch.ones(2, 3, 2, 2)
POOLED, PLACES = F.max_pool2d(IMAGES, 2, return_indices=True)


class Own(Sequence):
    def __init__(self, *items: int) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, at: Any) -> Any:
        return self.items[at]


class Index:
    def __init__(self, value: int) -> None:
        self.value = value

    def __index__(self) -> int:
        return self.value


class OwnList(list):
    pass


class OwnTuple(tuple):
    pass


def generator(items: Sequence[int]) -> Iterator[int]:
    yield from items


KINDS: dict[str, Callable[..., Any]] = {
    "list": lambda *v: list(v),
    "tuple": lambda *v: v,
    "range": lambda *v: range(v[0], v[0] + len(v)),
    "deque": lambda *v: collections.deque(v),
    "own sequence": Own,
    "numpy": lambda *v: np.array(v),
    "size": lambda *v: torch.Size(v),
    "own list": lambda *v: OwnList(v),
    "own tuple": lambda *v: OwnTuple(v),
    "indices": lambda *v: [Index(i) for i in v],
    "own list of indices": lambda *v: OwnList([Index(i) for i in v]),
    "numpy's ints": lambda *v: [np.int64(i) for i in v],
    "tensors": lambda *v: [torch.tensor(i) for i in v],
    "floats": lambda *v: [float(i) for i in v],
    "bools": lambda *v: tuple(map(bool, v)),
    "set": lambda *v: set(v),
    "dict": lambda *v: dict.fromkeys(v),
    "generator": lambda *v: generator(v),
    "tensor": lambda *v: torch.tensor(v),
    "text": lambda *v: "12",
    "array": lambda *v: array.array("q", v),
}
CALLS: dict[str, tuple[Callable[[Any, Any], Any], tuple[int, ...]]] = {
    "new_tensor": (lambda x, s: x.new_tensor(s), (0, 1, 2)),
    "tensor": (lambda x, s: torch.tensor(s), (0, 1, 2)),
    "as_tensor": (lambda x, s: torch.as_tensor(s), (0, 1, 2)),
    "unfold": (lambda x, s: F.unfold(IMAGES, s), (2, 3)),
    "stride of unfold": (lambda x, s: F.unfold(IMAGES, 2, stride=s), (1, 2)),
    "fold": (lambda x, s: F.fold(torch.ones(1, 12, 12), s, (2, 2)), (4, 5)),
    "pad": (lambda x, s: F.pad(x, s), (1, 2)),
    "reflected": (lambda x, s: F.pad(x, s, mode="reflect"), (1, 2)),
    "reshape": (lambda x, s: x.reshape(s), (4, 6)),
    "view": (lambda x, s: x.view(s), (4, 6)),
    "sum": (lambda x, s: x.sum(s), (1, 2)),
    "mean": (lambda x, s: torch.mean(x, s), (1, 2)),
    "amax": (lambda x, s: x.amax(dim=s), (1, 2)),
    "var": (lambda x, s: x.var(s), (1, 2)),
    "flip": (lambda x, s: x.flip(s), (1, 2)),
    "roll": (lambda x, s: torch.roll(x, s, (0, 1)), (1, 2)),
    "permute": (lambda x, s: x.permute(s), (0, 1, 2)),
    "zeros": (lambda x, s: torch.zeros(s), (1, 2)),
    "full": (lambda x, s: torch.full(s, 1.0), (1, 2)),
    "new_zeros": (lambda x, s: x.new_zeros(s), (1, 2)),
    "expand": (lambda x, s: torch.ones(1, 1).expand(s), (1, 2)),
    "tile": (lambda x, s: x.tile(s), (1, 2)),
    "repeat": (lambda x, s: x.repeat(s), (1, 1, 2)),
    "max_pool2d": (lambda x, s: F.max_pool2d(IMAGES, s), (2, 3)),
    "dilation": (lambda x, s: F.max_pool2d(IMAGES, 2, 1, 0, s), (1, 2)),
    "avg_pool2d": (lambda x, s: F.avg_pool2d(IMAGES, s), (2, 3)),
    "adaptive pool": (lambda x, s: F.adaptive_avg_pool2d(IMAGES, s), (2, 3)),
    "lp_pool2d": (lambda x, s: F.lp_pool2d(IMAGES, 2, s), (2, 2)),
    "max_unpool2d": (lambda x, s: F.max_unpool2d(POOLED, PLACES, 2, output_size=s), (8, 9)),
    "conv2d": (lambda x, s: F.conv2d(IMAGES, KERNEL, stride=s), (1, 2)),
    "padding of conv2d": (lambda x, s: F.conv2d(IMAGES, KERNEL, padding=s), (1, 2)),
    "interpolate": (lambda x, s: F.interpolate(IMAGES, size=s), (4, 5)),
    "factors of interpolate": (lambda x, s: F.interpolate(IMAGES, scale_factor=s), (1, 2)),
    "layer_norm": (lambda x, s: F.layer_norm(x, s), (3, 4)),
    "rms_norm": (lambda x, s: F.rms_norm(x, s), (3, 4)),
    "split": (lambda x, s: x.split(s, 1), (1, 2)),
    "tensor_split": (lambda x, s: x.tensor_split(s, 1), (1, 2)),
    "unflatten": (lambda x, s: x.unflatten(2, s), (2, 2)),
    "squeeze": (lambda x, s: x[:1].squeeze(s), (0, 1)),
    "movedim": (lambda x, s: x.movedim(s, (1, 0)), (0, 1)),
    "as_strided": (lambda x, s: x.as_strided(s, (2, 1)), (2, 3)),
    "sum_to_size": (lambda x, s: x.sum_to_size(s), (3, 4)),
    "tensordot": (lambda x, s: torch.tensordot(x, x, (s, s)), (1, 2)),
    "vector_norm": (lambda x, s: torch.linalg.vector_norm(x, dim=s), (1, 2)),
    "rot90": (lambda x, s: x.rot90(1, s), (1, 2)),
    "randint": (lambda x, s: torch.randint(0, 1, s), (1, 2)),
    "fftn": (lambda x, s: torch.fft.fftn(x, dim=s).real, (1, 2)),
    "unravel_index": (lambda x, s: torch.unravel_index(torch.arange(6), s), (6, 7)),
    "index": (lambda x, s: x[s], (0, 1)),
    "index behind dims": (lambda x, s: x[..., s], (0, 1)),
}


def caught(x, s, fn):
    """The same with a handler, which sees torch's words, and something in the graph before."""
    y = x * 2
    try:
        return fn(y, s), y
    except (TypeError, RuntimeError, ValueError, IndexError, AttributeError) as error:
        return type(error).__name__, str(error), y


def shown(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.dtype, tuple(value.shape), value.stride(), value.tolist()
    return [shown(v) for v in value] if isinstance(value, (tuple, list)) else value


def outcome(fn: Callable[..., Any], *args: Any) -> Any:
    try:
        return shown(fn(*args))
    except Exception as error:  # noqa: BLE001  # it is compared
        return type(error), str(error)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CALLS)
def test_each_kind_is_taken_or_refused_as_in_eager(name: str) -> None:
    fn, items = CALLS[name]
    for kind, make in KINDS.items():
        compiled = tinycompile.compile(fn, backend="eager")
        with_handler = tinycompile.compile(caught, backend="eager")
        for _ in range(2):
            assert outcome(compiled, X, make(*items)) == outcome(fn, X, make(*items)), kind
            assert outcome(with_handler, X, make(*items), fn) == outcome(caught, X, make(*items), fn), kind
