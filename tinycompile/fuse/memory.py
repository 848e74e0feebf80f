"""Buffer lifetimes: where each buffer is made, where it dies, and whose memory it takes over."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch

from tinycompile.base.expr import Dim
from tinycompile.fuse.deps import views_in
from tinycompile.ir.loops import Buffer, ExternCall
from tinycompile.ir.plan import Alloc, Free, Kernel, Step

Layout = tuple[tuple[Dim, ...], tuple[Dim, ...], torch.dtype, object]


def place(steps: Sequence[Kernel | ExternCall], buffers: Mapping[str, Buffer], outputs: Sequence[object]) -> list[Step]:
    """Add an Alloc before the first use of each buffer that kernels make, and a Free (or a reuse) after the last use.

    A buffer that is reused gets no Free: the Alloc that names it ends it. Memory that an extern call makes or is given is never
    reused, since the call may return a view of it; nor is that of inputs and outputs.
    """
    returned = set(views_in(tuple(outputs)))
    last = _last_uses(steps)
    shared = {n for s in steps if isinstance(s, ExternCall) for n in _touched(s)}
    made = {n for n, b in buffers.items() if b.role == "input"}
    dead: dict[Layout, list[str]] = {}
    placed: list[Step] = []
    for i, step in enumerate(steps):
        if isinstance(step, Kernel):
            for name in step.writes:
                if name not in made:
                    made.add(name)
                    placed.append(Alloc(name, _take(dead, buffers[name])))
        placed.append(step)
        if isinstance(step, ExternCall):
            made.update(o for o in step.outputs if o is not None)
        for name in _touched(step):
            if last[name] == i and name not in returned and buffers[name].role != "input":
                if name in shared:
                    placed.append(Free(name))
                else:
                    dead.setdefault(_layout(buffers[name]), []).append(name)
    for name in returned:
        if name not in made:  # nothing writes it: it has no elements
            placed.append(Alloc(name))
    return _free_early(placed, {n for names in dead.values() for n in names}, last, steps)


def _free_early(placed: list[Step], unused: set[str], last: Mapping[str, int], steps: Sequence[object]) -> list[Step]:
    """Free what nothing took over directly after its last use."""
    after: dict[int, list[str]] = {}
    for name in sorted(unused):
        after.setdefault(id(steps[last[name]]), []).append(name)
    result: list[Step] = []
    for step in placed:
        result.append(step)
        result.extend(Free(name) for name in after.get(id(step), ()))
    return result


def _take(dead: dict[Layout, list[str]], wanted: Buffer) -> str | None:
    held = dead.get(_layout(wanted))
    return held.pop() if held else None


def _layout(b: Buffer) -> Layout:
    return (b.meta.shape, b.meta.strides, b.meta.dtype, b.meta.device)


def _last_uses(steps: Sequence[Kernel | ExternCall]) -> dict[str, int]:
    return {name: i for i, step in enumerate(steps) for name in _touched(step)}


def _touched(step: Kernel | ExternCall) -> Iterable[str]:
    if isinstance(step, Kernel):
        return dict.fromkeys((*step.reads, *step.writes))
    arguments = views_in(step.args) + views_in(tuple(v for _, v in step.kwargs))
    return dict.fromkeys([*arguments, *(o for o in step.outputs if o is not None)])
