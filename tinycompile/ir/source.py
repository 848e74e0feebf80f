"""Source: generated code and all that is needed to build and launch it. Text and numbers only."""

from __future__ import annotations

from dataclasses import dataclass

from tinycompile.base.device import Device
from tinycompile.base.expr import Dim
from tinycompile.base.shapes import Relation


@dataclass(frozen=True, slots=True)
class KernelArg:
    """``kind``: ``pointer`` (``name`` a buffer, ``dtype`` its element type), ``size`` (an int argument with value ``value``),
    ``scratch`` (``value`` elements of fresh memory of ``dtype``), ``counters`` (``value`` elements that are 0) and, behind it,
    ``spare`` (as many, which the launch sets to 0 for the next one).
    ``aligned``: a pointer known 16-byte aligned, or a size known divisible by 16 (Triton's ``tt.divisibility``)."""

    name: str
    kind: str
    dtype: str
    value: Dim | None = None
    aligned: bool = True

    @property
    def is_tensor(self) -> bool:
        """Whether the kernel gets an address."""
        return self.kind != "size"


@dataclass(frozen=True, slots=True)
class Config:
    """One way to run a Triton kernel: compile-time constants by name, warps, stages, and a cap on a thread's registers (0:
    none), so that more threads fit on a multiprocessor."""

    constants: tuple[tuple[str, int], ...] = ()
    num_warps: int = 4
    num_stages: int = 2
    max_registers: int = 0


@dataclass(frozen=True, slots=True)
class KernelSource:
    """One generated kernel.

    ``text``: Triton: a whole importable module whose function ``name`` is the kernel. C++: the function alone (the module's
    prelude is shared by ``Source.prelude``). ``grid``: up to three expressions over size symbols and constants' names.
    ``configs``: candidates,
    the cost model's choice first. ``overlaps``: it may begin while the kernel before it ends. ``bytes_moved``,
    ``flops``, ``lines`` (user's "file:line" strings) and ``why`` are for people.
    """

    name: str
    language: str
    text: str
    args: tuple[KernelArg, ...]
    grid: tuple[Dim, ...] = (1,)
    configs: tuple[Config, ...] = (Config(),)
    bytes_moved: Dim = 0
    flops: Dim = 0
    lines: tuple[str, ...] = ()
    why: str = ""
    overlaps: bool = False


@dataclass(frozen=True, slots=True)
class ChoiceSource:
    """Functions of the wrapper of which the fastest is found at the first call of ``name``. ``library``: the one that is sure
    to work; ``ways``: of each other its name, and that of the kernel that it launches. ``writes``: positions of the parameters
    (behind the stream) that they fill."""

    name: str
    library: str
    ways: tuple[tuple[str, str], ...]
    writes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Source:
    """All code of a plan. ``wrapper``: Python text defining ``call(*inputs) -> tuple``. ``externs``: ``(name, kind, target)``
    of each library function that the wrapper calls. ``aliases``: ``(output, input)`` positions where an output is a view of
    an input. ``aligned``: positions of inputs that the code takes to begin at a multiple of 16 bytes, or not, as captured.
    ``donated``: positions of inputs that the caller gives up; with any, ``call`` takes all in one list, which it empties.
    ``overwritten``: those of them that the code writes to. ``choices``: what is decided by timing. ``relations``: what was
    decided about sizes on the way from the graph; for others the code is wrong."""

    name: str
    device: Device
    kernels: tuple[KernelSource, ...]
    wrapper: str
    prelude: str = ""
    externs: tuple[tuple[str, str, str], ...] = ()
    aliases: tuple[tuple[int, int], ...] = ()
    aligned: tuple[int, ...] = ()
    donated: tuple[int, ...] = ()
    overwritten: tuple[int, ...] = ()
    choices: tuple[ChoiceSource, ...] = ()
    relations: tuple[Relation, ...] = ()

    @property
    def offered(self) -> frozenset[str]:
        """The kernels that only run where they were found fastest."""
        return frozenset(kernel for c in self.choices for _, kernel in c.ways)
