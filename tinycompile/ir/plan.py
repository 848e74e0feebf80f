"""Plan: which kernels run in which order, what they read and write, which memory they use, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Union

from tinycompile.base.device import Device
from tinycompile.base.expr import Dim
from tinycompile.base.meta import TensorMeta
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
    (see ``fuse/horizontal.py``). ``product``: it sums products, with the card's instructions for that."""

    nest: Nest
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    bytes_moved: Dim = 0
    flops: Dim = 0
    why: str = ""
    more: tuple[Nest, ...] = ()
    product: bool = False

    @property
    def nests(self) -> tuple[Nest, ...]:
        """All that the launch does."""
        return (self.nest, *self.more)


@dataclass(frozen=True, slots=True)
class Choice:
    """Library calls and the kernels around them (``library``, in order), or one kernel that does all of it (``product``): which
    of the two is measured at the first call, on the card. ``lasting``: what the calls make and later steps read, too; both ways
    return it. The other results of the calls exist in the first way alone."""

    name: str
    product: Kernel
    library: tuple[ExternCall | Kernel, ...]
    lasting: tuple[str, ...] = ()

    @property
    def calls(self) -> tuple[ExternCall, ...]:
        """The library calls."""
        return tuple(s for s in self.library if isinstance(s, ExternCall))

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """The kernels around them."""
        return tuple(s for s in self.library if isinstance(s, Kernel))

    @property
    def operands(self) -> tuple[str, ...]:
        """The buffers that the calls are given."""
        return tuple(dict.fromkeys(v.buffer for c in self.calls for v in views_in((c.args, tuple(x for _, x in c.kwargs)))))

    @property
    def inside(self) -> frozenset[str]:
        """What the calls make and nobody else sees."""
        return frozenset(o for c in self.calls for o in c.outputs if o is not None) - set(self.lasting)

    @property
    def writes(self) -> tuple[str, ...]:
        """The buffers that the kernels fill."""
        return tuple(dict.fromkeys(w for k in self.kernels for w in k.writes))

    @property
    def touched(self) -> tuple[str, ...]:
        """Every buffer that it reads, fills or makes for others."""
        kernels = (b for k in (*self.kernels, self.product) for b in (*k.reads, *k.writes))
        return tuple(b for b in dict.fromkeys((*self.operands, *kernels)) if b not in self.inside)


@dataclass(frozen=True, slots=True)
class Free:
    """The buffer is dead from here."""

    buffer: str


Step = Union[Alloc, Kernel, ExternCall, Choice, Free]


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
    named: Mapping[str, Buffer] = field(init=False, repr=False, compare=False)
    """The buffers by name."""
    metas: Mapping[str, TensorMeta] = field(init=False, repr=False, compare=False)
    places: Mapping[str, Location] = field(init=False, repr=False, compare=False)
    """The user's lines, by the name of the graph's node."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "named", {b.name: b for b in self.buffers})
        object.__setattr__(self, "metas", {b.name: b.meta for b in self.buffers})
        object.__setattr__(self, "places", dict(self.lines))

    @property
    def library_bytes(self) -> Dim:
        """What the library calls move at least: their operands read once, their results written once."""
        total: Dim = 0
        for s in self.leaves:
            if isinstance(s, ExternCall):
                operands = [v.meta for v in views_in((s.args, s.kwargs))]
                for meta in (*operands, *(self.metas[n] for n in s.outputs if n is not None)):
                    total = total + numel(meta.shape) * meta.dtype.itemsize
        return total

    @property
    def leaves(self) -> tuple[Alloc | Kernel | ExternCall | Free, ...]:
        """The steps, with what a choice takes from the library in its place."""
        return tuple(s for step in self.steps for s in (step.library if isinstance(step, Choice) else (step,)))

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """The generated kernels that belong to the program, in order."""
        return tuple(s for s in self.leaves if isinstance(s, Kernel))

    @property
    def choices(self) -> tuple[Choice, ...]:
        """What one kernel can do as well."""
        return tuple(s for s in self.steps if isinstance(s, Choice))
