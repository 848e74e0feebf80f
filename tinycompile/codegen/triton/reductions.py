"""How each kind of reduction is spelled: over a tile that holds the whole row, and as accumulators in a loop.

In a loop each lane of the block keeps its own partial result, and lanes are combined once at the end: no exchange between
threads inside the loop.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Union

import torch

from tinycompile.codegen.triton.dtypes import highest, is_float, lowest, triton_dtype
from tinycompile.codegen.triton.indexing import wrap
from tinycompile.codegen.triton.scalars import literal

Identity = Union[float, int, bool]


def identity(kind: str, dtype: torch.dtype) -> Identity:
    """What a lane outside the row contributes."""
    if kind in ("max", "argmax", "online_softmax"):
        return lowest(dtype)
    if kind in ("min", "argmin"):
        return highest(dtype)
    return {"sum": 0, "prod": 1, "any": False, "all": True, "welford": 0}[kind]


@dataclass(frozen=True, slots=True)
class Site:
    """Where a reduction happens. ``axis``: of the tile. ``keep``: the tile has two dims. ``shape``: of the operand. ``mask``:
    of the reduced dim, or "". ``index``: the flat position along it, of ``index_dtype``. ``count``: the number of elements.
    ``block``: the block size, and ``lane`` the position in the block. ``fold``: the constant that says how many elements of a
    block share a lane, or ""."""

    axis: int
    keep: bool
    shape: str
    mask: str
    index: str
    index_dtype: str
    count: str
    block: str
    lane: str
    fold: str = ""

    @property
    def lanes(self) -> str:
        """The shape of what is accumulated."""
        return f"[{self.block} // {self.fold}]" if self.fold else self.shape

    @property
    def tail(self) -> str:
        """Trailing arguments of every reduce helper."""
        return f"{self.axis}, {self.keep}"

    def masked(self, value: str, kind: str, dtype: torch.dtype) -> str:
        """``value``, neutral outside the row: an operand that binds as tightly as a name."""
        value = wrap(value)
        if not self.mask:
            return value
        neutral = literal(identity(kind, dtype), dtype)
        if dtype == torch.bool:
            return f"({value} & {self.mask})" if kind == "any" else f"({value} | ~{self.mask})"
        if dtype not in (torch.float32,):
            neutral = f"tl.full([], {neutral}, {triton_dtype(dtype)})"
        return f"tl.where({self.mask}, {value}, {neutral})"


def whole(
    kind: str, names: tuple[str, ...], value: str, dtype: torch.dtype, results: tuple[torch.dtype, ...], at: Site
) -> list[str]:
    """Lines that reduce ``value``, a tile with the whole row, into ``names``."""
    keep = f", keep_dims={at.keep}" if at.keep else ""
    if kind == "welford":
        mean, m2 = names
        tile = at.masked(value, "sum", dtype)
        deviation = at.masked(f"{value} - {mean}", "sum", dtype)
        return [  # what rounding left of the mean is the mean of the deviations: equal elements are their own mean
            f"{mean} = tl.sum({tile}, {at.axis}{keep}) / {at.count}",
            f"{m2}_tile = {deviation}",
            f"{mean}_rest = tl.sum({m2}_tile, {at.axis}{keep}) / {at.count}",
            f"{mean}_rest = tl.where({mean}_rest - {mean}_rest == 0.0, {mean}_rest, 0.0)",
            f"{mean} += {mean}_rest",
            f"{m2}_tile = {deviation}",
            f"{m2} = tl.sum({m2}_tile * {m2}_tile, {at.axis}{keep})",
        ]
    if kind == "online_softmax":
        top, total = names
        terms = at.masked(f"exp({value} - {top})", "sum", dtype)
        return [
            f"{top} = reduce_max({at.masked(value, kind, dtype)}, {at.tail})",
            f"{total} = tl.sum({terms}, {at.axis}{keep})",
            f"{total} = tl.where({top} == float('-inf'), 0.0, {total})",
        ]
    tile = at.masked(value, kind, dtype)
    if kind.startswith("arg"):
        index = f"tl.broadcast_to({at.index}, {at.shape})"
        return [f"{names[0]} = reduce_{kind}({tile}, {index}, {at.tail})"]
    if kind == "sum":
        start = " + 0.0" if is_float(dtype) and not at.mask else ""  # a sum starts from 0: that of -0 alone is 0
        return [f"{names[0]} = tl.sum({tile}, {at.axis}{keep}){_back(results[0])}{start}"]
    return [f"{names[0]} = reduce_{kind}({tile}, {at.tail})"]


@dataclass(frozen=True, slots=True)
class Accumulator:
    """``start`` lines before the loop, ``step`` lines inside, ``finish`` lines after it."""

    start: list[str]
    step: list[str]
    finish: list[str]


def looped(
    kind: str, names: tuple[str, ...], value: str, dtype: torch.dtype, results: tuple[torch.dtype, ...], at: Site
) -> Accumulator:
    """Lanes that accumulate ``value`` block by block."""
    build = _LOOPED.get(kind, _simple)
    return build(kind, names, value, dtype, results, at)


def _full(at: Site, value: Identity, dtype: torch.dtype) -> str:
    return f"tl.full({at.lanes}, {literal(value, dtype)}, {triton_dtype(dtype)})"


def _simple(
    kind: str, names: tuple[str, ...], value: str, dtype: torch.dtype, results: tuple[torch.dtype, ...], at: Site
) -> Accumulator:
    name, lanes = names[0], f"{names[0]}_lanes"
    tile = at.masked(value, kind, dtype)
    if at.fold:
        tile = f"fold_{kind}({tile}, {at.fold})"
    combine = {
        "sum": f"{lanes} += {tile}", "prod": f"{lanes} *= {tile}", "any": f"{lanes} |= {tile}", "all": f"{lanes} &= {tile}",
        "max": f"{lanes} = maximum({lanes}, {tile})", "min": f"{lanes} = minimum({lanes}, {tile})",
    }[kind]  # fmt: skip
    if kind == "sum":
        keep = f", keep_dims={at.keep}" if at.keep else ""
        finish = f"{name} = tl.sum({lanes}, {at.axis}{keep}){_back(results[0])}"
    else:
        finish = f"{name} = reduce_{kind}({lanes}, {at.tail})"
    return Accumulator([f"{lanes} = {_full(at, identity(kind, dtype), dtype)}"], [combine], [finish])


def _arg(
    kind: str, names: tuple[str, ...], value: str, dtype: torch.dtype, results: tuple[torch.dtype, ...], at: Site
) -> Accumulator:
    best, where = f"{names[0]}_best", f"{names[0]}_index"
    index = f"tl.broadcast_to({at.index}, {at.shape})"
    first = "larger_first" if kind == "argmax" else "smaller_first"
    return Accumulator(
        [
            f"{best} = {_full(at, identity(kind, dtype), dtype)}",
            f"{where} = tl.full({at.shape}, {2**31 - 1}, {at.index_dtype})",
        ],
        [f"{best}, {where} = {first}({best}, {where}, {at.masked(value, kind, dtype)}, {index})"],
        [f"{names[0]} = reduce_{kind}({best}, {where}, {at.tail})"],
    )


def _welford(
    kind: str, names: tuple[str, ...], value: str, dtype: torch.dtype, results: tuple[torch.dtype, ...], at: Site
) -> Accumulator:
    if at.fold:
        return _folded_welford(names, value, dtype, at)
    mean, m2 = f"{names[0]}_lanes", f"{names[1]}_lanes"
    seen, delta, share = f"{names[0]}_seen", f"{names[0]}_delta", f"{names[0]}_share"
    zero = _full(at, 0, dtype)
    step = [
        f"{seen} += 1.0",
        f"{share} = 1.0 / {seen}",
        f"{delta} = {at.masked(f'{value} - {mean}', 'sum', dtype)}",
        f"{mean} += {delta} * {share}",
        f"{m2} += {delta} * {at.masked(f'{value} - {mean}', 'sum', dtype)}",
    ]
    count = f"tl.broadcast_to(({at.count} - {at.lane} + {at.block} - 1) // {at.block}, {at.shape}).to({triton_dtype(dtype)})"
    return Accumulator(
        [f"{mean} = {zero}", f"{m2} = {zero}", f"{seen} = tl.full([], 0.0, {triton_dtype(dtype)})"],
        step,
        [f"{names[0]}, {names[1]} = welford_reduce({mean}, {m2}, {count}, {at.tail})"],
    )


def _folded_welford(names: tuple[str, ...], value: str, dtype: torch.dtype, at: Site) -> Accumulator:
    """Each lane has its own count, once a mask has been met."""
    mean, m2, seen = f"{names[0]}_lanes", f"{names[1]}_lanes", f"{names[0]}_seen"
    zero = _full(at, 0, dtype)
    step, mask = ("welford_step_masked", f", {at.mask}") if at.mask else ("welford_step_folded", "")
    count = f"tl.broadcast_to({seen}, {at.lanes})"
    return Accumulator(
        [f"{mean} = {zero}", f"{m2} = {zero}", f"{seen} = tl.full([], 0.0, {triton_dtype(dtype)})"],
        [f"{mean}, {m2}, {seen} = {step}({mean}, {m2}, {seen}, {value}{mask}, {at.fold})"],
        [f"{names[0]}, {names[1]} = welford_reduce({mean}, {m2}, {count}, {at.tail})"],
    )


def _online_softmax(
    kind: str, names: tuple[str, ...], value: str, dtype: torch.dtype, results: tuple[torch.dtype, ...], at: Site
) -> Accumulator:
    top, total = f"{names[0]}_lanes", f"{names[1]}_lanes"
    step, fold = ("softmax_step_folded", f", {at.fold}") if at.fold else ("softmax_step", "")
    return Accumulator(
        [f"{top} = {_full(at, torch.finfo(dtype).min, dtype)}", f"{total} = {_full(at, 0.0, dtype)}"],
        [f"{top}, {total} = {step}({top}, {total}, {at.masked(value, kind, dtype)}{fold})"],
        [f"{names[0]}, {names[1]} = softmax_reduce({top}, {total}, {at.tail})"],
    )


_LOOPED: dict[str, Callable[..., Accumulator]] = {
    "welford": _welford, "online_softmax": _online_softmax, "argmax": _arg, "argmin": _arg,
}  # fmt: skip


def _back(dtype: torch.dtype) -> str:
    """``tl.sum`` widens narrow integers."""
    return "" if is_float(dtype) or dtype.itemsize >= 4 else f".to({triton_dtype(dtype)})"


_COMBINE = {"sum": "add", "prod": "multiply", "max": "maximum", "min": "minimum"}


def scan(kind: str, target: str, value: str, dtype: torch.dtype, at: Site, carry: str = "") -> list[str]:
    """Lines of an inclusive scan of a block. ``carry`` holds the total of the blocks before, and is brought up to date."""
    combine = _COMBINE[kind]
    block = f"tl.associative_scan({value}, {at.axis}, {combine})"
    if not carry:
        return [f"{target} = {block}"]
    return [
        f"{target} = {combine}({carry}, {block})",
        *whole(kind, (f"{carry}_block",), value, dtype, (dtype,), at),
        f"{carry} = {combine}({carry}, {carry}_block)",
    ]


def start_scan(kind: str, target: str, dtype: torch.dtype, shape: str) -> str:
    """The line that makes a scan's total before the first block."""
    return f"{target}_carry = tl.full({shape}, {literal(identity(kind, dtype), dtype)}, {triton_dtype(dtype)})"
