"""Buffer lifetimes: where each buffer is made, where it dies, and whose memory it takes over."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch

from tinycompile.base.expr import Dim, dot
from tinycompile.fuse.deps import views_in
from tinycompile.ir.loops import Buffer, ExternCall, Load, Reduce, Scan, Store
from tinycompile.ir.plan import Alloc, Choice, Free, Kernel, Step

Layout = tuple[tuple[Dim, ...], tuple[Dim, ...], torch.dtype, object]


def place(
    steps: Sequence[Kernel | ExternCall | Choice],
    buffers: Mapping[str, Buffer],
    outputs: Sequence[object],
    donated: Sequence[str] = (),
    in_place: bool = False,
) -> list[Step]:
    """Add an Alloc before the first use of each buffer that kernels make, and a Free (or a reuse) after the last use.

    A buffer that is reused gets no Free: the Alloc that names it ends it. Memory that an extern call makes or is given is never
    reused, since the call may return a view of it; nor is that of outputs, and of inputs only ``donated`` ones'. ``in_place``:
    a kernel may write where it reads for the last time (C++ kernels must not: their pointers are told apart).
    """
    returned = set(views_in(tuple(outputs)))
    last = _last_uses(steps)
    shared = {n for s in steps for n in _seen_by_libraries(s)}
    made = {n for n, b in buffers.items() if b.role == "input"}
    mortal = {n for n, b in buffers.items() if (b.role != "input" or n in donated) and n not in returned}
    dead: dict[Layout, list[str]] = {}
    placed: list[Step] = []
    for i, step in enumerate(steps):
        taken: set[str] = set()
        if isinstance(step, Kernel):
            dying = {n for n in step.reads if last[n] == i and n in mortal and n not in shared} if in_place else set()
            for name in step.writes:
                if name not in made:
                    made.add(name)
                    below = next((n for n in sorted(dying - taken) if written_over(step, n, name, buffers)), None)
                    if below is None:
                        placed.append(Alloc(name, _take(dead, buffers[name])))
                    else:
                        taken.add(below)
                        placed.append(Alloc(name, below, in_place=True))
        placed.append(step)
        if isinstance(step, Choice):
            fresh = [n for n in step.writes if n not in made]
            placed[-1:-1] = [Alloc(n, _take(dead, buffers[n])) for n in fresh]
            made.update((*fresh, *step.lasting))
        if isinstance(step, ExternCall):
            made.update(o for o in step.outputs if o is not None)
        for name in _touched(step):
            if last[name] == i and name in mortal and name not in taken:
                if name in shared or buffers[name].role == "input":
                    placed.append(Free(name))
                else:
                    dead.setdefault(_layout(buffers[name]), []).append(name)
    for name in returned:
        if name not in made:  # nothing writes it: it has no elements
            placed.append(Alloc(name))
    return _free_early(placed, {n for names in dead.values() for n in names}, last, steps)


def written_over(kernel: Kernel, old: str, new: str, buffers: Mapping[str, Buffer]) -> bool:
    """Whether a kernel reads each element of ``old`` just before it writes that of ``new``, and never after."""
    a, b = buffers[old].meta, buffers[new].meta
    same = (a.shape, a.strides) == (b.shape, b.strides) or (a.is_contiguous() and b.is_contiguous() and a.numel == b.numel)
    body = kernel.nest.body
    if (
        kernel.more
        or not same
        or (a.dtype, a.device) != (b.dtype, b.device)
        or any(isinstance(s, (Reduce, Scan)) for s in body)
    ):
        return False
    stores = [dot(s.index, b.strides) for s in body if isinstance(s, Store) and s.buffer == new and s.mode == "plain"]
    loads = [None if s.mask else dot(s.index, a.strides) for s in body if isinstance(s, Load) and s.buffer == old]
    order = [s.buffer for s in body if isinstance(s, Load) or (isinstance(s, Store) and s.buffer == new)]
    before = new not in order or old not in order[order.index(new) :]
    return before and len(stores) == 1 and all(place == stores[0] for place in loads)


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


def _seen_by_libraries(step: Kernel | ExternCall | Choice) -> Iterable[str]:
    """The buffers that library calls make or are given."""
    if isinstance(step, Choice):
        return (*step.operands, *step.lasting)
    return _touched(step) if isinstance(step, ExternCall) else ()


def _last_uses(steps: Sequence[Kernel | ExternCall | Choice]) -> dict[str, int]:
    return {name: i for i, step in enumerate(steps) for name in _touched(step)}


def _touched(step: Kernel | ExternCall | Choice) -> Iterable[str]:
    if isinstance(step, Choice):
        return step.touched
    if isinstance(step, Kernel):
        return dict.fromkeys((*step.reads, *step.writes))
    arguments = views_in(step.args) + views_in(tuple(v for _, v in step.kwargs))
    return dict.fromkeys([*arguments, *(o for o in step.outputs if o is not None)])
