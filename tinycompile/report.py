"""What ``explain`` returns: captured graphs, breaks, guards, kernels, fusion decisions, bytes and stage times, as text."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinycompile.base import expr as ex
from tinycompile.base.artifacts import Artifacts
from tinycompile.base.meta import TensorMeta
from tinycompile.base.target import H100
from tinycompile.capture.breaks import Break
from tinycompile.compiler import CompiledGraph, generate, stage_order
from tinycompile.ir.graph import Graph
from tinycompile.ir.graph_text import print_graph
from tinycompile.ir.plan import Decision, Plan
from tinycompile.ir.plan_text import bytes_text, moved_text
from tinycompile.ir.source import KernelSource, Source
from tinycompile.journey import report_page
from tinycompile.runtime import triton_build
from tinycompile.runtime.twins import twin_key
from tinycompile.terminal import columns, indent

if TYPE_CHECKING:
    from tinycompile.entries import CacheEntry
    from tinycompile.pieces import Piece


@functools.lru_cache(maxsize=64)
def _for_h100(graph: Graph, products: bool) -> Source:
    """The same graph generated for an H100: shown also where C++ ran, and compiled without a GPU."""
    return generate(graph, H100, Artifacts(), {}, products)[1]


@dataclass(frozen=True)
class KernelInfo:
    """One kernel, for people. What needs Triton's compiler (``ptx``, ``sass``, ``registers``, ``spills``) is made when first
    read, and kept.

    On a CPU ``source`` is the C++ that ran; ``triton`` and the rest are what an H100 (sm_90) would run. ``offered``: it is
    timed beside a library call, and runs only where it was found faster; ``why`` says whether.
    """

    name: str
    source: str
    language: str
    grid: tuple[Any, ...]
    bytes_moved: int
    lines: tuple[str, ...]
    why: str
    flops: int = 0
    offered: bool = False
    _triton: KernelSource | None = field(repr=False, default=None)
    _arch: int = field(repr=False, default=90)

    @property
    def triton(self) -> str:
        """The Triton source."""
        return self._triton.text if self._triton else ""

    @property
    def _offline(self) -> Any:
        if self._triton is None:
            raise RuntimeError(f"{self.name} has no Triton source")
        return triton_build.compile_offline(self._triton, self._arch)

    @property
    def ptx(self) -> str:
        """PTX, compiled offline."""
        return self._offline.ptx

    @property
    def sass(self) -> str:
        """Disassembled machine code."""
        return self._offline.sass

    @property
    def registers(self) -> int:
        """Registers a thread."""
        return self._offline.registers

    @property
    def spills(self) -> int:
        """Bytes of registers spilled to local memory a thread."""
        return self._offline.spills

    @property
    def shared(self) -> int:
        """Bytes of shared memory a block."""
        return self._offline.shared

    @property
    def warps(self) -> int:
        """Warps a block."""
        return self._offline.num_warps

    @property
    def listing(self) -> str:
        """``sass``, with the lines of ``triton`` that it comes from."""
        return self._offline.listing

    @property
    def twin(self) -> object:
        """Equal for kernels whose code differs in names alone."""
        return twin_key(self._triton) if self._triton else self.source


def kernel_infos(compiled: CompiledGraph | None) -> list[KernelInfo]:
    """The kernels of a compiled graph and then of its backward, in launch order; those of an H100 where C++ ran."""
    return [k for half in halves(compiled) for k in _kernels_of(half)]


def halves(compiled: CompiledGraph | None) -> list[CompiledGraph]:
    """Forward and backward, each region of them; the graph alone where there is neither."""
    both = () if compiled is None else (compiled, compiled.backward)
    return [part for half in both if half is not None for part in half.parts or (half,)]


def _kernels_of(compiled: CompiledGraph) -> list[KernelInfo]:
    if compiled.source is None or compiled.target is None:
        return []
    hints = dict(compiled.graph.hints)
    own = compiled.source.kernels
    if compiled.target.language == "triton":
        arch = int(compiled.target.arch.removeprefix("sm_"))
        told = _told(compiled.source, compiled.tuner.told if compiled.tuner is not None else {}, _UNTIMED)
        return [_info(k, k, hints, arch, told.get(k.name)) for k in own]
    on_card = _for_h100(compiled.graph, compiled.autotune)
    kernels, told = {k.name: k for k in on_card.kernels}, _told(on_card, {}, _ON_A_GPU)
    also = [_info(kernels[name], kernels[name], hints, 90, why) for name, why in told.items()]
    return [*(_info(k, kernels.get(k.name), hints, 90) for k in own), *also]


_UNTIMED = "not timed yet: the library's way is taken until it is"
_ON_A_GPU = "on a GPU it is timed beside the library's way, and runs where it is faster"


def _told(source: Source, told: Mapping[str, str], otherwise: str) -> dict[str, str]:
    """By the name of each kernel that is offered, what its contest found."""
    return {kernel: told.get(c.name, otherwise) for c in source.choices for _, kernel in c.ways}


def _info(
    kernel: KernelSource, triton: KernelSource | None, hints: dict[str, int], arch: int, told: str | None = None
) -> KernelInfo:
    moved, flops = _number(kernel.bytes_moved, hints), _number(kernel.flops, hints)
    why = kernel.why if told is None else f"{kernel.why}: {told}"
    facts = kernel.name, kernel.text, kernel.language, kernel.grid, moved, kernel.lines, why
    return KernelInfo(*facts, flops, told is not None, triton, arch)


def _number(d: Any, hints: dict[str, int]) -> int:
    return d if isinstance(d, int) else ex.evaluate(d, hints)


_STAGES = {
    "bytecode": "0_bytecode.txt",
    "python": "1_python.py",
    "guards": "1_guards.py",
    "graph": "1_graph.py",
    "joint": "2_joint.py",
    "forward": "2_forward.py",
    "backward": "2_backward.py",
    "loops": "4_loops.py",
    "plan": "5_plan.py",
    "cpp": "6_cpp.cpp",
    "wrapper": "6_wrapper.py",
}


def stage_text(entry: CacheEntry, stage: str) -> str:
    """The text of one stage of a specialisation, then that of its backward; empty where the stage was not run.

    Raises ValueError for an unknown name."""
    compiled = entry.compiled
    if stage in _STAGES:
        return _both_halves(entry.artifacts, _STAGES[stage])
    if stage == "optimized":
        passes = [name for name in entry.artifacts if name.startswith("3_") and not name.endswith("_backward.py")]
        return _both_halves(entry.artifacts, passes[-1]) if passes else ""
    if stage == "triton":
        return "\n\n".join(k.triton for k in kernel_infos(compiled))
    if stage in ("ptx", "sass"):
        return "\n\n".join(getattr(k, stage) for k in kernel_infos(compiled))
    raise ValueError(f"unknown stage {stage!r}; there are {', '.join([*_STAGES, 'optimized', 'triton', 'ptx', 'sass'])}")


def _both_halves(artifacts: Artifacts, name: str) -> str:
    stem, _, suffix = name.rpartition(".")
    texts = [artifacts.get(name), artifacts.get(f"{stem}_backward.{suffix}")]
    return "\n\n".join(t for t in texts if t)


@dataclass(frozen=True)
class Report:
    """One specialisation of a function. ``str()`` prints it all; the attributes hold the parts."""

    name: str
    backend: str
    graph: Graph | None
    breaks: tuple[Break, ...]
    guards: tuple[str, ...]
    kernels: tuple[KernelInfo, ...]
    externs: tuple[str, ...]
    decisions: tuple[Decision, ...]
    bytes_moved: int
    bytes_library: int
    bytes_minimum: int
    times: tuple[tuple[str, float], ...]
    from_disk: bool
    then: tuple[Report, ...] = ()  # of the pieces that ran behind the break
    artifacts: Artifacts = field(default_factory=Artifacts, repr=False, compare=False)
    guard_table: tuple[tuple[str, str], ...] = ()  # what each guard is about, and the guard

    def html(self, path: str | os.PathLike[str] | None = None) -> str:
        """The report as one page that needs nothing else: every stage's text, reasons, kernels' code side by side. Written to
        ``path`` too, if given."""
        text = report_page.page(self)
        if path is not None:
            Path(path).write_text(text, encoding="utf-8")
        return text

    def __str__(self) -> str:
        return self._text(self._break_lines())

    def _text(self, summary: Sequence[str]) -> str:
        parts = self._kernel_lines(), self._fusion_lines(), self._guard_lines(), self._time_lines()
        own = [f"explain {self.name}", "=" * len(f"explain {self.name}"), *summary, *self._head(), *chain.from_iterable(parts)]
        return "\n".join([*own, *("\n" + later._text(()) for later in self.then)])

    def all_breaks(self) -> tuple[Break, ...]:
        """Every break, also of the pieces behind it."""
        return (*self.breaks, *chain.from_iterable(later.all_breaks() for later in self.then))

    def _break_lines(self) -> list[str]:
        """One table of all breaks; each is told whole where it happened."""
        rows = [(b.id, f"{os.path.basename(b.file)}:{b.line}", b.reason) for b in self.all_breaks()]
        if not rows:
            return []
        return [f"breaks: {len(rows)}", *indent(columns(rows, ("id", "where", "reason")), "  ").splitlines(), ""]

    def _head(self) -> list[str]:
        lines: list[str] = []
        for b in self.breaks:
            lines += ["graph break:", *(f"  {line}" for line in str(b).splitlines())]
        if self.graph is None:
            return [*lines, "no graph was captured" if self.then else "no graph was captured: the function runs eagerly"]
        calls = [n for n in self.graph.nodes if n.kind in ("call", "extern")]
        lines.append(f"captured 1 graph of {len(calls)} ops, {len(self.graph.placeholders)} inputs; backend {self.backend}")
        return [*lines, "", print_graph(self.graph)]

    def _kernel_lines(self) -> list[str]:
        if not self.kernels and not self.externs:
            return []
        offered = sum(k.offered for k in self.kernels)
        timed = f", {offered} offered beside the library" if offered else ""
        lines = ["", f"kernels: {len(self.kernels) - offered} generated, {len(self.externs)} from libraries{timed}"]
        for k in self.kernels:
            lines.append(f"  {k.name}  {bytes_text(k.bytes_moved)}" + (f"  [{k.why}]" if k.why else ""))
            lines += [f"    covers {line}" for line in dict.fromkeys(k.lines)]
        lines += [f"  {e}  (library)" for e in self.externs]
        if self.bytes_minimum:
            lines.append(f"  {moved_text(self.bytes_moved, self.bytes_library, self.bytes_minimum)}")
        return lines

    def _fusion_lines(self) -> list[str]:
        if not self.decisions:
            return []
        lines = ["", "fusion:"]
        for d in self.decisions:
            lines.append(f"  {'+' if d.fused else '-'} {d.first} | {d.second}: {d.why} [{d.rule}]")
        return lines

    def _guard_lines(self) -> list[str]:
        if not self.guard_table:
            return []
        shown: list[tuple[str, str]] = []
        for about, group in groupby(self.guard_table, key=lambda row: row[0]):
            rows = list(group)
            shown += rows[:_SHOWN]
            if len(rows) > _SHOWN:
                shown.append((about, f"... and {len(rows) - _SHOWN} more, in .guards"))
        return ["", f"guards: {len(self.guards)}", *indent(columns(shown, ("about", "guard")), "  ").splitlines()]

    def _time_lines(self) -> list[str]:
        if not self.times:
            return []
        total = sum(t for _, t in self.times)
        lines = ["", f"time by stage: {total * 1e3:.1f} ms" + (" (code came from the disk cache)" if self.from_disk else "")]
        return lines + [f"  {stage:<10} {seconds * 1e3:9.2f} ms" for stage, seconds in self.times]


_SHOWN = 12  # guards about one kind of thing, in the text


def library_calls(source: Source) -> tuple[str, ...]:
    """The target of each library call that the wrapper makes, in order; one entry a call."""
    targets = {name: target for name, _, target in source.externs}
    called = re.findall(r"\b(\w+)\(", source.wrapper)
    return tuple(targets[name] for name in called if name in targets)


def make_report(function: Piece, entry: CacheEntry, seen: set[int] | None = None) -> Report:
    """The report of one specialisation, with the newest ones of the pieces behind its break."""
    seen = set() if seen is None else seen
    later = _behind(function, entry, seen)
    compiled = entry.compiled
    both = halves(compiled)
    plans = [(plan, dict(half.graph.hints)) for half in both if (plan := _plan_of(half)) is not None]
    kernels = tuple(kernel_infos(compiled))
    return Report(
        name=function.__name__,
        backend=_backend_name(function, compiled),
        graph=entry.captured.graph if compiled else None,
        breaks=tuple(entry.captured.breaks),
        guards=tuple(entry.captured.guards),
        guard_table=entry.captured.guard_table,
        kernels=kernels,
        externs=tuple(call for half in both if half.source for call in library_calls(half.source)),
        decisions=tuple(d for plan, _ in plans for d in plan.decisions),
        bytes_moved=sum(k.bytes_moved for k in kernels if not k.offered),
        bytes_library=sum(_number(plan.library_bytes, hints) for plan, hints in plans),
        bytes_minimum=sum(_number(plan.bytes_minimum, hints) for plan, hints in plans),
        times=tuple(stage_order(entry.times)),
        from_disk=compiled.from_disk if compiled else False,
        then=tuple(make_report(p, p._entries[0], seen) for p in later if id(p) not in seen),
        artifacts=entry.artifacts,
    )


def _behind(piece: Piece, entry: CacheEntry, seen: set[int]) -> list[Piece]:
    """The pieces behind a specialisation's break that have run and were not ``seen``; ``piece`` now is."""
    seen.add(id(piece))
    return [p for p in entry.stop.pieces if id(p) not in seen and p._entries] if entry.stop is not None else []


def with_later(piece: Piece, entry: CacheEntry, seen: set[int] | None = None) -> Iterator[CacheEntry]:
    """A specialisation and the newest ones of the pieces behind its break."""
    seen = set() if seen is None else seen
    later = _behind(piece, entry, seen)
    yield entry
    for p in later:
        if id(p) not in seen:
            yield from with_later(p, p._entries[0], seen)


def _plan_of(compiled: CompiledGraph) -> Plan | None:
    """The plan; made again from the graph when the code came from disk."""
    if compiled.target is None:
        return None
    return compiled.plan or generate(compiled.graph, compiled.target, Artifacts(), {}, compiled.tuner is not None)[0]


def _backend_name(function: Piece, compiled: CompiledGraph | None) -> str:
    if compiled is not None and compiled.target is not None:
        return f"{compiled.target.language} for {compiled.target.arch}"
    if compiled is not None and compiled.parts:
        found = dict.fromkeys(f"{p.target.language} for {p.target.arch}" for p in compiled.parts if p.target is not None)
        return f"{' and '.join(found) or 'op by op'}, by device"
    backend: Any = function.options.backend
    if compiled is not None and compiled.device is None and backend in (None, "triton"):
        places = sorted({str(n.meta.device) for n in compiled.graph.nodes if isinstance(n.meta, TensorMeta)})
        if len(places) > 1:
            return (
                f"none: code is written for one device, and these tensors are on {' and '.join(places)}, so torch runs op by op"
            )
    return backend if isinstance(backend, str) else getattr(backend, "__name__", "eager")
