"""Ints that choose what an op does (a dim, an offset, a number of parts, a window), and that are not the same in every call:
each call gives what eager gives, errors too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

import tinycompile

pytestmark = pytest.mark.cpu
X = torch.arange(24.0).reshape(2, 3, 4)
IDS = torch.tensor([0, 1, 2])

CASES: dict[str, tuple[Callable[[Any, int], Any], list[int]]] = {
    "one_hot": (lambda x, n: F.one_hot(IDS, n), [5, 7, 9, 3, 2, 1, 0, -1, -2, 4]),
    "diagonal": (lambda x, n: x.diagonal(n, 1, 2), [0, 1, 2, 3, 4, 5, -1, -2, -3, -4]),
    "diagonal_dim": (lambda x, n: x.diagonal(0, n, 2), [0, 1, 0, -3, -2, 2, 3, -4, 5]),
    "floor_divide": (lambda x, n: x.long().floor_divide(n), [2, 3, 5, -1, -3, 0, 1, 7, 2**40]),
    "floordiv": (lambda x, n: x.long() // n, [2, 3, 5, -1, -3, 0, 1, 7, 2**40]),
    "rfloordiv": (lambda x, n: n // (x.long() + 1), [2, 3, 5, -1, -3, 0, 1, 7, 2**40]),
    "mod": (lambda x, n: x.long() % n, [2, 3, 5, -1, -3, 0, 1, 7, 2**40]),
    "unfold": (lambda x, n: x.unfold(2, n, 1), [1, 2, 3, 4, 5, 0, -1]),
    "unfold_step": (lambda x, n: x.unfold(2, 2, n), [1, 2, 3, 4, 5, 0, -1]),
    "unfold_dim": (lambda x, n: x.unfold(n, 2, 1), [0, 1, 2, 3, -1, -2, -3, -4]),
    "narrow": (lambda x, n: x.narrow(2, n, 1), [1, 2, 3, 4, 0, -1, -4, -5]),
    "narrow_len": (lambda x, n: x.narrow(2, 1, n), [1, 2, 3, 4, 0, -1]),
    "select": (lambda x, n: x.select(2, n), [1, 2, 3, 4, 0, -1, -4, -5]),
    "index": (lambda x, n: x[:, :, n], [1, 2, 3, 4, 0, -1, -4, -5]),
    "slice": (lambda x, n: x[:, :, n:], [1, 2, 3, 4, 0, -1, -4, -5, 9]),
    "slice2": (lambda x, n: x[:, :, :n], [1, 2, 3, 4, 0, -1, -4, -5, 9]),
    "slice3": (lambda x, n: x[:, :, ::n], [1, 2, 3, 4, 0, -1, 9]),
    "sum": (lambda x, n: x.sum(n), [0, 1, 2, 3, -1, -3, -4]),
    "softmax": (lambda x, n: x.softmax(n), [0, 1, 2, 3, -1, -3, -4]),
    "cumsum": (lambda x, n: x.cumsum(n), [0, 1, 2, 3, -1, -3, -4]),
    "roll": (lambda x, n: x.roll(n, 2), [0, 1, 2, 3, 4, 5, -1, -9]),
    "tril": (lambda x, n: x.tril(n), [0, 1, 2, 3, 4, 5, -1, -9]),
    "repeat": (lambda x, n: x.repeat(1, 1, n), [2, 3, 1, 0, -1]),
    "ri": (lambda x, n: x.repeat_interleave(n, 1), [2, 3, 1, 0, -1]),
    "expand": (lambda x, n: x[:, :, :1].expand(2, 3, n), [2, 3, 4, 1, 0, -1, -2]),
    "view": (lambda x, n: x.view(n, -1), [2, 3, 4, 6, 1, 24, 5, 0, -1]),
    "unflatten": (lambda x, n: x.unflatten(2, (n, -1)), [2, 4, 1, 3, 0]),
    "flatten": (lambda x, n: x.flatten(n), [0, 1, 2, 3, -1, -3, -4]),
    "transpose": (lambda x, n: x.transpose(n, 0), [0, 1, 2, 3, -1, -3, -4]),
    "unsqueeze": (lambda x, n: x.unsqueeze(n), [0, 1, 2, 3, 4, -1, -4, -5]),
    "squeeze": (lambda x, n: x[:, :1].squeeze(n), [0, 1, 2, 3, -1, -2, -4]),
    "topk": (lambda x, n: x.topk(n)[0], [1, 2, 3, 4, 5, 0, -1]),
    "split": (lambda x, n: x.split(n, 2), [1, 2, 3, 4, 5, 0, -1]),
    "chunk": (lambda x, n: x.chunk(n, 2), [1, 2, 3, 4, 5, 0, -1]),
    "pad": (lambda x, n: F.pad(x, (n, 0)), [1, 2, 3, 4, 5, 0, -1, -4, -5]),
    "arange": (lambda x, n: torch.arange(n), [1, 2, 3, 0, -1]),
    "arange2": (lambda x, n: torch.arange(0, 10, n), [1, 2, 3, 0, -1]),
    "linspace": (lambda x, n: torch.linspace(0, 1, n), [1, 2, 3, 0, -1]),
    "full": (lambda x, n: torch.full((2,), n, dtype=torch.int8), [1, 2, 3, 0, -1, 127, 128, 300, -129]),
    "fullsz": (lambda x, n: torch.zeros(n), [1, 2, 3, 0, -1]),
    "eye": (lambda x, n: torch.eye(n), [1, 2, 3, 0, -1]),
    "pow": (lambda x, n: x.long() ** n, [1, 2, 3, 0, -1, 4]),
    "shift": (lambda x, n: x.long() << n, [1, 2, 3, 0, -1, 64, 4]),
    "and": (lambda x, n: x.long() & n, [1, 2, 3, 0, -1, 64, 2**62]),
    "clamp": (lambda x, n: x.long().clamp(n), [1, 2, 3, 0, -1, 64]),
    "int8add": (lambda x, n: x.to(torch.int8) + n, [1, 2, 3, 0, -1, 127, 300, -200, 2**40]),
    "int8mul": (lambda x, n: x.to(torch.int8) * n, [1, 2, 3, 0, -1, 127, 300, -200]),
    "eq": (lambda x, n: x.to(torch.int8) == n, [1, 2, 3, 0, -1, 127, 300, -200]),
    "masked_fill": (lambda x, n: x.to(torch.int8).masked_fill(x > 3, n), [1, 2, 3, 0, -1, 127, 300, -200]),
    "where": (lambda x, n: torch.where(x > 3, x.to(torch.int8), n), [1, 2, 3, 0, -1, 127, 300]),
    "movedim": (lambda x, n: x.movedim(n, 0), [0, 1, 2, 3, -1, -3, -4]),
    "permute": (lambda x, n: x.permute(n, 0, 1), [2, 1, 0, -1, 3]),
    "flip": (lambda x, n: x.flip(n), [0, 1, 2, 3, -1, -3, -4]),
    "rot90": (lambda x, n: x.rot90(n), [0, 1, 2, 3, -1, -3, -4, 5]),
    "diff": (lambda x, n: x.diff(n), [1, 2, 3, 4, 5, 0, -1]),
    "kthvalue": (lambda x, n: x.kthvalue(n)[0], [1, 2, 3, 4, 5, 0, -1]),
    "maxdim": (lambda x, n: x.max(n)[0], [0, 1, 2, 3, -1, -3, -4]),
    "gather_dim": (lambda x, n: x.gather(n, torch.zeros(1, 1, 1, dtype=torch.long)), [0, 1, 2, 3, -1, -4]),
    "index_select": (lambda x, n: x.index_select(n, torch.tensor([0])), [0, 1, 2, 3, -1, -4]),
    "cat": (lambda x, n: torch.cat([x, x], n), [0, 1, 2, 3, -1, -4]),
    "stack": (lambda x, n: torch.stack([x, x], n), [0, 1, 2, 3, 4, -1, -4, -5]),
    "pool": (lambda x, n: F.avg_pool1d(x, n), [1, 2, 3, 4, 5, 0, -1]),
    "maxpool": (lambda x, n: F.max_pool1d(x, n), [1, 2, 3, 4, 5, 0, -1]),
    "pixel": (lambda x, n: F.pixel_shuffle(torch.ones(1, 36, 2, 2), n), [2, 3, 6, 1, 4, 0, -1]),
    "gelu_logsum": (lambda x, n: x.logsumexp(n), [0, 1, 2, 3, -1, -4]),
    "group_norm": (lambda x, n: F.group_norm(torch.ones(1, 12, 2), n), [2, 3, 4, 6, 5, 0, 1]),
    "tensor_split": (lambda x, n: x.tensor_split(n, 2), [1, 2, 3, 4, 5, 0, -1]),
    "var": (lambda x, n: x.var(2, correction=n), [0, 1, 2, 3, 4, 5, -1]),
    "norm": (lambda x, n: x.norm(n), [1, 2, 3, 0, -1]),
    "vander": (lambda x, n: torch.vander(x[0, 0], n), [1, 2, 3, 0, -1]),
    "bincount": (lambda x, n: torch.bincount(IDS, minlength=n), [1, 5, 9, 0, -1]),
    "cross_ig": (lambda x, n: F.cross_entropy(x[0], IDS, ignore_index=n), [0, 1, 2, 3, -1]),
    "unbind": (lambda x, n: x.unbind(n), [0, 1, 2, 3, -1, -4]),
    "as_strided": (lambda x, n: x.as_strided((2, n), (4, 1)), [1, 2, 3, 4, 5, 0, -1]),
    "as_strided2": (lambda x, n: x.as_strided((2, 2), (n, 1)), [1, 2, 3, 4, 5, 0, -1]),
    "as_strided3": (lambda x, n: x.as_strided((2, 2), (4, 1), n), [1, 2, 3, 4, 5, 0, -1, 18, 19, 30]),
    "diag": (lambda x, n: torch.diag(x[0, 0], n), [0, 1, 2, 3, -1, -3]),
    "diag_embed": (lambda x, n: torch.diag_embed(x[0], n), [0, 1, 2, 3, -1, -3]),
    "trapz": (lambda x, n: torch.addmm(x[0, :, :3], x[0], x[0].T, beta=n), [2, 3, 0, 1, -1]),
    "addcmul": (lambda x, n: torch.addcmul(x, x, x, value=n), [2, 3, 0, 1, -1]),
    "leaky": (lambda x, n: F.leaky_relu(x - 5, n), [2, 3, 0, 1, -1]),
    "elu": (lambda x, n: F.elu(x - 5, n), [2, 3, 0, 1, -1]),
    "lerp": (lambda x, n: torch.lerp(x, x * 2, n), [2, 3, 0, 1, -1]),
    "hardtanh": (lambda x, n: F.hardtanh(x, n, 5), [2, 3, 0, 1, -1, 5, 6]),
    "smooth": (lambda x, n: F.smooth_l1_loss(x, x * 2, beta=n), [2, 3, 0, 1, -1]),
    "ls": (lambda x, n: F.layer_norm(x, (n,)), [4, 3, 4, 5]),
    "interp": (lambda x, n: F.interpolate(x, n), [2, 3, 5, 1, 0, -1]),
    "conv": (lambda x, n: F.conv1d(x, torch.ones(3, 3, 1), stride=n), [2, 3, 5, 1, 0, -1]),
    "convg": (lambda x, n: F.conv1d(torch.ones(1, 4, 5), torch.ones(4, 4 // n if n else 1, 1), groups=n), [2, 4, 1, 3, 0]),
    "glu": (lambda x, n: F.glu(torch.ones(2, 4, 6), n), [0, 1, 2, 3, -1, -3]),
}


def described(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.dtype, value.shape, value.stride(), [round(v, 4) for v in value.flatten().tolist()]
    return [described(v) for v in value] if isinstance(value, (tuple, list)) else value


def observed(fn: Callable[..., Any], n: int) -> Any:
    try:
        return described(fn(X, n))
    except (RuntimeError, IndexError, ValueError, TypeError, ZeroDivisionError) as error:
        return type(error), str(error).partition("\n")[0]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_each_number_gives_what_eager_gives(name: str) -> None:
    fn, numbers = CASES[name]
    compiled = tinycompile.compile(fn, backend="eager")
    for n in (*numbers, *reversed(numbers)):
        assert repr(observed(compiled, n)) == repr(observed(fn, n)), n


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["one_hot", "diagonal", "floor_divide", "unfold", "sum", "tensor_split", "topk", "mod"])
def test_generated_code(name: str) -> None:
    fn, numbers = CASES[name]
    compiled = tinycompile.compile(fn)
    for n in numbers[:6]:
        assert repr(observed(compiled, n)) == repr(observed(fn, n)), n
