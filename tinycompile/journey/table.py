"""A profile as text."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tinycompile.journey.events import Step
from tinycompile.terminal import columns, size

if TYPE_CHECKING:
    from tinycompile.journey.session import Profile

MOST_LINES = 200


def text(p: Profile) -> str:
    """One line a step, children below their parents; kernels' launches where the device has them."""
    rows = [row for step in p.steps for row in _rows(p, step, 0)]
    on_device = p.device.type == "cuda"
    head = ["op", "keys", "route", "kernel", "host", "kernel", "moved", "share", "line"]
    if on_device:
        head[5:5] = ["grid x block", "regs", "shared", "occ.", "stream"]
    shown = [[cell for i, cell in enumerate(row) if on_device or not 5 <= i < 10] for row in rows[:MOST_LINES]]
    right = "    r" + ("lrrrr" if on_device else "") + "rrr"
    lines = [f"{_us(p.end - p.start)} us on {p.card.name}, {p.card.bandwidth / 1e9:.0f} GB/s; times in us"]
    if p.problem:
        lines.append(p.problem)
    lines += ["", columns(shown, head, right)]
    if len(rows) > MOST_LINES:
        lines.append(f"... and {len(rows) - MOST_LINES} more: p.html() shows all")
    return "\n".join(lines)


def _rows(p: Profile, step: Step, depth: int) -> Iterator[list[str]]:
    share = p.share(step)
    first = max(step.kernels, key=lambda k: k.nanoseconds, default=None)
    more = f" +{len(step.kernels) - 1}" if len(step.kernels) > 1 else ""
    launch = ["", "", "", "", ""]
    if first is not None:
        if first.grid is not None and first.block is not None:
            launch[0] = f"{'x'.join(map(str, first.grid))} x {'x'.join(map(str, first.block))}"
        values = (first.registers, first.shared, None if first.occupancy is None else f"{first.occupancy:.0%}", first.stream)
        launch[1:] = ["" if v is None else str(v) for v in values]
    yield [
        "  " * depth + _name(step),
        step.keyset.strip("{}").replace(", ", " "),
        " > ".join(route(step)),
        "" if first is None else _short(first.name) + more,
        _us(step.nanoseconds),
        *launch,
        _us(step.busy) if step.kernels else "",
        "" if step.moved is None else size(step.moved),
        "" if share is None else f"{share:.0%}",
        place(step),
    ]
    for child in step.children:
        yield from _rows(p, child, depth + 1)


def own_times(step: Step) -> list[int]:
    """Nanoseconds of each handler, those that it called on the same route taken off."""
    found = []
    for i, h in enumerate(step.handlers):
        below = [o for o in step.handlers[i + 1 :] if o.depth == h.depth + 1 and h.start <= o.start <= h.end]
        found.append(h.nanoseconds - sum(o.nanoseconds for o in below))
    return found


def route(step: Step) -> list[str]:
    """The handlers in words, each with its own microseconds; the stages of a compile as one."""
    told = [f"{h.key} {_us(own)}" for h, own in zip(step.handlers, own_times(step), strict=True) if h.key != "COMPILE"]
    stages = sum(h.nanoseconds for h in step.handlers if h.key == "COMPILE")
    return [*told, f"COMPILE {_us(stages)}"] if stages else told


def place(step: Step) -> str:
    """The user's line, with the file's name alone."""
    line = step.line or (step.lines[-1] if step.lines else "")
    return os.path.basename(line)


def _name(step: Step) -> str:
    return step.name if step.kind in ("op", "torch") else f"{step.kind} {step.name}"


def _short(name: str, most: int = 40) -> str:
    name = name.removeprefix("void ").partition("<")[0].partition("(")[0]
    return name if len(name) <= most else name[: most - 3] + "..."


def _us(nanoseconds: int) -> str:
    return f"{nanoseconds / 1e3:.1f}"
