"""The cost model: sizes at the hints, bytes touched, parallelism. Every threshold of the planner is named here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tinycompile.base import expr as ex
from tinycompile.base.expr import Dim
from tinycompile.base.target import Target
from tinycompile.fuse.deps import Access
from tinycompile.ir.loops import Buffer
from tinycompile.ir.sharing import MOST_PARTS

UNKNOWN_SIZE = 1024  # stands for a size that capture had no value for
MAX_BUFFERS = 48  # parameters of one kernel
MAX_STATEMENTS = 1500  # of one body: compile time grows faster than linearly
MAX_INSTANCES = 8  # copies of one inlined producer in one kernel
CHEAP_WEIGHT = 6  # a producer this light may be computed again in several kernels
SIBLING_SHARE = 0.15  # siblings fuse when this share of the smaller one's traffic is saved
PRODUCT_ROWS = 64  # of halves: up to here generated products were not slower than the library's
PROLOGUE_ROWS = 8  # of those, rows that a product's programs may make, where the host launches each kernel


@dataclass(frozen=True, slots=True)
class Limits:
    """What depends on the target. ``launch_bytes``: traffic that takes as long as starting a kernel. ``flops_per_byte``:
    arithmetic that takes as long as moving a byte. ``lanes``: parallel points that one program or thread takes at once along a
    contiguous axis. A reduction is split when it has fewer programs than ``enough``, at least ``least_work`` points and rows of
    ``least_row``; into ``wanted`` programs of at least ``least_chunk`` elements.
    ``shares``: programs of one kernel can share a row. ``product_rows``: the most rows of a matrix product of halves for which
    code is generated whatever the library takes. ``prologue_rows``: for which its programs make the rows themselves."""

    launch_bytes: int
    flops_per_byte: int
    lanes: int
    enough: int
    wanted: int
    least_work: int
    least_row: int = 1024
    least_chunk: int = 4096
    shares: bool = False
    product_rows: int = 0
    prologue_rows: int = 0

    @classmethod
    def of(cls, target: Target) -> Limits:
        """The limits of a target."""
        if target.language == "cpp":
            return cls(64 << 10, 4, max(target.vector // 4, 1), target.units if target.units > 1 else 0, target.units, 1 << 17)
        tensor_cores = target.language == "triton" and int(target.arch.removeprefix("sm_")) >= 80
        units = target.units
        return cls(
            8 << 20, 16, 64, 2 * units, 8 * units, 1 << 16, shares=units >= MOST_PARTS,
            product_rows=PRODUCT_ROWS * tensor_cores,
            prologue_rows=PROLOGUE_ROWS * tensor_cores * (not target.overlaps),
        )  # fmt: skip


class _Values(dict[str, int]):
    def __missing__(self, key: str) -> int:
        return UNKNOWN_SIZE


class Cost:
    """Answers about sizes in one plan. Symbolic sizes count as their hints; no guard comes of asking."""

    def __init__(self, buffers: Mapping[str, Buffer], hints: Iterable[tuple[str, int]], target: Target) -> None:
        self.buffers = buffers
        self.limits = Limits.of(target)
        self._hints = _Values(hints)

    def size(self, d: Dim) -> int:
        """A dim at the hints."""
        return d if isinstance(d, int) else ex.evaluate(d, self._hints)

    def points(self, axes: Mapping[str, Dim], among: Iterable[str] | None = None) -> int:
        """The number of points of some axes."""
        total = 1
        for name in axes if among is None else among:
            total *= self.size(axes[name])
        return total

    def elements(self, name: str) -> Dim:
        """The distinct elements of a buffer (expanded dims count once)."""
        meta = self.buffers[name].meta
        return ex.product(n for n, stride in zip(meta.shape, meta.strides, strict=True) if stride != 0)

    def itemsize(self, name: str) -> int:
        """Bytes of one element."""
        return self.buffers[name].meta.dtype.itemsize

    def touched(self, name: str, accesses: Iterable[Access], axes: Mapping[str, Dim]) -> Dim:
        """Elements of a buffer that the accesses reach: all, or one a point where that is less (gathers, slices)."""
        whole = self.elements(name)
        seen: Dim = 0
        for _, at in {(a.index, a.axes) for a in accesses}:
            seen = seen + ex.product(axes[x] for x in sorted(at))
        return seen if self.size(seen) < self.size(whole) else whole

    def bytes_of(self, name: str, accesses: Iterable[Access], axes: Mapping[str, Dim]) -> int:
        """Bytes of :meth:`touched`, at the hints."""
        return self.size(self.touched(name, accesses, axes)) * self.itemsize(name)

    def fastest_axis(self, accesses: Iterable[Access], axes: Mapping[str, Dim]) -> str | None:
        """The axis along which the widest accesses walk memory in the smallest steps."""
        best: tuple[int, int] | None = None
        found: str | None = None
        for a in accesses:
            offset = self.offset(a.buffer, a.index)
            width = len(a.axes)
            for name in a.axes:
                step = ex.coefficient(offset, name)
                if step is None or step == 0:
                    continue
                rank = (width, -abs(self.size(step)))
                if best is None or rank > best:
                    best, found = rank, name
        return found

    def offset(self, name: str, index: Iterable[Dim]) -> Dim:
        """Elements from the buffer's first element."""
        return ex.dot(tuple(index), self.buffers[name].meta.strides)

    def programs(self, axes: Mapping[str, Dim], reduction: Iterable[str], accesses: Iterable[Access]) -> int:
        """How many programs (threads' worth of rows) a reduction over these axes can keep busy."""
        reduced = set(reduction)
        count = self.points(axes, [a for a in axes if a not in reduced])
        fastest = self.fastest_axis(accesses, axes)
        return count // self.limits.lanes if fastest is not None and fastest not in reduced and count > 1 else count

    def starved(self, axes: Mapping[str, Dim], reduction: Iterable[str], accesses: Iterable[Access]) -> bool:
        """Whether a reduction has too few parallel points for the target and enough work for that to matter."""
        reduced = set(reduction)
        if not reduced or self.points(axes) < self.limits.least_work or self.points(axes, reduced) < self.limits.least_row:
            return False
        return self.programs(axes, reduced, accesses) < self.limits.enough
