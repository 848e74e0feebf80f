"""Plan: which kernels run in which order, what they read and write, which memory they use, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Union

from tinycompile.base.device import Device
from tinycompile.base.expr import Dim
from tinycompile.base.shapes import numel
from tinycompile.ir.graph import Location
from tinycompile.ir.loops import Buffer, ExternCall, Nest, SizeBinding, views_in


@dataclass(frozen=True, slots=True)
class Decision:
    """One fusion considered. ``rule`` is a stable id ("producer-consumer", "cycle", "axes-differ", ...); ``why`` says it in
    words."""

    first: str
    second: str
    fused: bool
    rule: str
    why: str


@dataclass(frozen=True, slots=True)
class Alloc:
    """Make a buffer; ``reuses`` names a dead buffer of the same size and dtype whose memory it takes over. ``in_place``: the
    next kernel still reads that buffer, each element just before it writes the new one there."""

    buffer: str
    reuses: str | None = None
    in_place: bool = False


@dataclass(frozen=True, slots=True)
class Kernel:
    """A fused nest to be generated. ``reads``/``writes``: buffers in parameter order. ``bytes_moved``: reads once + writes
    once. ``more``: nests that the same launch does too, each ``nest`` again over other buffers and another number of elements
    (see ``fuse/horizontal.py``)."""

    nest: Nest
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    bytes_moved: Dim = 0
    flops: Dim = 0
    why: str = ""
    more: tuple[Nest, ...] = ()

    @property
    def nests(self) -> tuple[Nest, ...]:
        """All that the launch does."""
        return (self.nest, *self.more)


@dataclass(frozen=True, slots=True)
class Free:
    """The buffer is dead from here."""

    buffer: str


Step = Union[Alloc, Kernel, ExternCall, Free]


@dataclass(frozen=True, slots=True)
class Plan:
    """``outputs`` and ``donated`` as in Loops. ``bytes_minimum``: graph inputs read once plus outputs written once."""

    name: str
    device: Device
    inputs: tuple[str, ...]
    sizes: tuple[SizeBinding, ...]
    buffers: tuple[Buffer, ...]
    steps: tuple[Step, ...]
    outputs: tuple[Any, ...]
    decisions: tuple[Decision, ...] = ()
    bytes_minimum: Dim = 0
    hints: tuple[tuple[str, int], ...] = ()
    lines: tuple[tuple[str, Location], ...] = ()
    donated: tuple[str, ...] = ()

    @property
    def library_bytes(self) -> Dim:
        """What the library calls move at least: their operands read once, their results written once."""
        metas = {b.name: b.meta for b in self.buffers}
        total: Dim = 0
        for s in self.steps:
            if isinstance(s, ExternCall):
                operands = [v.meta for v in views_in((s.args, s.kwargs))]
                for meta in (*operands, *(metas[n] for n in s.outputs if n is not None)):
                    total = total + numel(meta.shape) * meta.dtype.itemsize
        return total

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """The generated kernels, in order."""
        return tuple(s for s in self.steps if isinstance(s, Kernel))
