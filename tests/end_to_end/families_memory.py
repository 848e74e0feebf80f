"""Families of programs about memory: shapes without elements, layouts, writes that read elsewhere, scatters, far offsets."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tests.end_to_end.families_values import Program

# --------------------------------------------------------------------------------------------------------- shapes and memory


_SHAPED: dict[str, Callable[[Tensor], Any]] = {
    "add": lambda x: x + 1,
    "relu": torch.relu,
    "gelu": F.gelu,
    "sum": torch.sum,
    "sum 0": lambda x: x.sum(0),
    "mean -1": lambda x: x.mean(-1),
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(0),
    "cumsum": lambda x: x.cumsum(-1),
    "any": torch.any,
    "norm": torch.linalg.vector_norm,
    "var": lambda x: x.var(-1, correction=0),
    "cat": lambda x: torch.cat([x.reshape(-1), x.reshape(-1)]),
    "stack": lambda x: torch.stack([x, x], -1),
    "flip": lambda x: x.flip(0) if x.dim() else x.flip(()),
    "reshape": lambda x: x.reshape(-1) * 2,
    "clamp": lambda x: x.clamp(-1, 1),
    "to": lambda x: x.to(torch.int32),
    "where": lambda x: torch.where(x > 0, x, -x),
    "prod": torch.prod,
    "logsumexp": lambda x: x.logsumexp(-1),
}


def empty_and_scalar_tensors() -> Iterator[Program]:
    for (name, fn), shape in itertools.product(_SHAPED.items(), ((), (0,), (3, 0), (0, 3), (1,), (1, 1, 1))):
        yield f"{name} of {shape}", lambda x, f=fn: f(x), (torch.randn(shape, generator=torch.Generator().manual_seed(0)),)
    for dtype in (torch.int64, torch.bool):
        yield f"softmax of empty {dtype}", lambda x: torch.softmax(x, 0), (torch.zeros(0, dtype=dtype),)
        yield f"softmax of {dtype}", lambda x: torch.softmax(x, 0), (torch.zeros(3, dtype=dtype),)
        yield f"mean of empty {dtype}", lambda x: torch.mean(x), (torch.zeros(0, dtype=dtype),)


def _laid_out() -> dict[str, Tensor]:
    """One 4-d tensor of each kind of memory."""
    data = torch.randn(2, 3, 4, 6, generator=torch.Generator().manual_seed(1))
    wide = torch.randn(4000, generator=torch.Generator().manual_seed(2))
    return {
        "channels_last": data.contiguous(memory_format=torch.channels_last),
        "transposed": data.transpose(1, 3).contiguous().transpose(1, 3),
        "expanded": data[:, :, :1].expand(2, 3, 4, 6),
        "all one element": data[:1, :1, :1, :1].expand(2, 3, 4, 6),
        "every second": torch.randn(2, 3, 4, 12, generator=torch.Generator().manual_seed(3))[..., ::2],
        "unaligned": wide[1 : 1 + data.numel()].view(data.shape),
        "odd offset": wide[7 : 7 + 2 * data.numel() : 2].view(data.shape),
        "overlapping": wide.as_strided(data.shape, (5, 3, 2, 1)),
        "size one dims": data[:, :1].as_strided((2, 1, 4, 6), (72, 7, 6, 1)),
    }


_OF_IMAGES: dict[str, Callable[[Tensor], Any]] = _SHAPED | {
    "sum of channels": lambda x: x.sum(1, keepdim=True) + x,
    "mean of space": lambda x: x.mean((2, 3)),
    "max": lambda x: x.max(1),
    "batch statistics": lambda x: (x - x.mean((0, 2, 3), keepdim=True)) * (x.var((0, 2, 3), keepdim=True) + 1).rsqrt(),
    "layer norm": lambda x: F.layer_norm(x, (6,)),
    "pad": lambda x: F.pad(x, (1, 2, 0, 1)),
    "pool": lambda x: F.max_pool2d(x, 2),
    "average": lambda x: F.avg_pool2d(x, 2, 1, 1),
    "interpolate": lambda x: F.interpolate(x, scale_factor=2.0),
    "roll": lambda x: x.roll((1, -1), (2, 3)),
    "permute": lambda x: x.permute(0, 2, 3, 1).contiguous() + 1,
    "slices": lambda x: x[:, :, 1:] - x[:, :, :-1],
    "with channels_last": lambda x: x + x.contiguous(memory_format=torch.channels_last),
}


def every_kind_of_memory() -> Iterator[Program]:
    for (layout, x), (name, fn) in itertools.product(_laid_out().items(), _OF_IMAGES.items()):
        yield f"{name} of {layout}", lambda x, f=fn: f(x), (x,)
    for dtype in (torch.float16, torch.bfloat16, torch.int8, torch.bool):
        x = (torch.arange(500) % 7 - 3).to(dtype)[3:403].view(4, 100)
        yield f"unaligned {dtype}", lambda x: (x.float() * 2, x.sum(1)), (x,)


def _written(write: Callable[[Tensor], Any]) -> Callable[[Tensor], Any]:
    def program(x: Tensor) -> Any:
        write(x)
        return x * 2

    return program


def writes_that_read_elsewhere() -> Iterator[Program]:
    """The new value of a place depends on others of the same tensor: nothing may be read after it was overwritten."""
    writes: dict[str, Callable[[Tensor], Any]] = {
        "shifted": lambda x: x.copy_(x.roll(1, 0)),
        "shifted back": lambda x: x.copy_(x.roll(-1, 1) + 1),
        "mirrored": lambda x: x.mul_(x.flip(0)),
        "mirrored twice": lambda x: x.add_(x.flip((0, 1))),
        "transposed": lambda x: x.add_(x.t().contiguous()),
        "transposed copy": lambda x: x.copy_(x.t().clone()),
        "sum of rows": lambda x: x.sub_(x.sum(0)),
        "distance to the greatest": lambda x: x.copy_(x.amax(0) - x),
        "cumsum": lambda x: x.copy_(x.cumsum(1)),
        "gathered": lambda x: x.copy_(x[:, [3, 2, 1, 0, 5, 4]]),
        "twice": lambda x: x.add_(1).mul_(x),
        "from a clone": lambda x: x.copy_(x.clone().t() * 2),
    }
    for name, write in writes.items():
        yield name, _written(write), (torch.arange(36.0).reshape(6, 6),)
        yield f"{name}, from fresh", lambda x, w=_written(write): w(x + 1), (torch.arange(36.0).reshape(6, 6),)


def scatter_then_gather() -> Iterator[Program]:
    index = torch.tensor([3, 0, 3, 1])
    x, src = torch.arange(12.0).reshape(4, 3), torch.arange(12.0).reshape(4, 3) * 10
    programs: dict[str, Callable[..., Any]] = {
        "index_add": lambda x, i, s: x.index_add(0, i, s)[i] * 2,
        "scatter_add": lambda x, i, s: x.scatter_add(0, i[:, None].expand(4, 3), s).gather(0, i[:, None].expand(4, 3)),
        "index_copy": lambda x, i, s: x.index_copy(0, i[1:], s[1:]).index_select(0, i),
        "index_put": lambda x, i, s: x.index_put((i,), s, accumulate=True)[i] + 1,
        "index_fill": lambda x, i, s: x.index_fill(0, i, 7.0)[i],
        "masked_scatter": lambda x, i, s: x.masked_scatter(x > 4, s)[i],
        "select_scatter": lambda x, i, s: x.select_scatter(s[0], 0, 2)[i],
        "put": lambda x, i, s: (x + 1).put(i, s[:, 0]).take(i),
    }
    for name, fn in programs.items():
        yield name, fn, (x, index, src)


def paddings_of_every_layout() -> Iterator[Program]:
    """What padding makes of a layout, of nothing, and of a crop that leaves nothing."""
    pads = ((1, 1), (-1, 2), (-1, -1), (-2, -2), (1, 0, 2, 1), (-1, -1, 0, 1), (0, 0, 0, 0), (-2, -2, -1, -2))
    g = torch.Generator().manual_seed(4)
    for mode, shape, pad in itertools.product(
        ("constant", "reflect", "replicate", "circular"), ((2, 3, 4), (2, 0, 4), (0, 3, 4), (2, 3, 4, 5), (1, 1, 4, 5)), pads
    ):
        x = torch.randn(shape, generator=g)
        layouts = {"": x, "channels_last": x.to(memory_format=torch.channels_last)} if x.dim() == 4 else {"": x}
        for layout, data in layouts.items():
            yield f"{mode} {shape} by {pad} {layout}", lambda x, m=mode, p=pad: F.pad(x, p, mode=m), (data,)


def products_with_sizes_of_one_and_none() -> Iterator[Program]:
    """einsum and convolution: the strides of their results come from what is left of the operands."""
    g = torch.Generator().manual_seed(5)
    equations = (
        "ij,jk->ik", "ij,jk->ki", "bij,bjk->bki", "bij,bjk->ibk", "i,j->ji", "ij,ij->i", "bij,kj->bki", "bhij,bhjd->bihd",
        "ijk,jil->kl", "ijk->kji", "ii->i", "abc,cbd->ad", "ab,cd->dbca", "ij,jk,kl->il",
    )  # fmt: skip
    for equation, (one, none) in itertools.product(
        equations, (("", ""), ("i", ""), ("j", ""), ("bk", ""), ("ad", ""), ("", "j"))
    ):
        sizes = {c: 1 if c in one else 0 if c in none else 2 + (ord(c) % 2) for c in equation if c.isalpha()}
        operands = [torch.randn([sizes[c] for c in part], generator=g) for part in equation.split("->")[0].split(",")]
        for layout, given in (("", operands), ("reversed", [o.mT.contiguous().mT if o.dim() > 1 else o for o in operands])):
            yield f"{equation} {sizes} {layout}", lambda *o, e=equation: torch.einsum(e, *o), tuple(given)
    shapes: tuple[tuple[tuple[int, ...], tuple[int, ...], Any], ...] = (
        ((2, 0, 5), (3, 0, 2), 0), ((0, 2, 5), (3, 2, 2), 0), ((2, 4, 6), (4, 4, 2), "same"), ((1, 4, 1), (2, 4, 1), 0),
        ((2, 0, 5, 5), (3, 0, 2, 2), 0), ((2, 2, 5, 5), (2, 2, 2, 3), "same"), ((2, 2, 5, 5), (2, 2, 3, 3), "valid"),
        ((2, 1, 5, 5), (3, 1, 2, 2), 1), ((2, 3, 1, 1), (3, 3, 1, 1), 0),
    )  # fmt: skip
    for shape, kernel, padding in shapes:
        x, w = torch.randn(shape, generator=g), torch.randn(kernel, generator=g)
        conv = F.conv1d if x.dim() == 3 else F.conv2d
        for data in (x, x.to(memory_format=torch.channels_last)) if x.dim() == 4 else (x,):
            name = f"conv {shape} {kernel} {padding} {data.stride()}"
            yield name, lambda x, w, f=conv, p=padding: f(x, w, padding=p), (data, w)
