"""Changes of dicts as source. Where keys were deleted, all that was done to the keys is done again, in its order: which key an
iterator comes to next depends on how Python has laid the dict out, and the program may have one that outlives the graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tinycompile.capture.values.base import Lazy, Value
from tinycompile.capture.values.mapping import DictValue

if TYPE_CHECKING:
    from tinycompile.capture.reconstruct import Rebuilder

Entries = dict[Any, tuple[Value, Value | Lazy]]


def dict_changes(r: Rebuilder, call: Callable[..., str], value: DictValue, before: Entries) -> list[str]:
    """Calls that bring a dict from outside to what it is at the end. ``call``: gives the text of one."""
    lines, kept = list[str](), set(before)
    steps = value.steps if any(s.method != "__setitem__" for s in value.steps) else ()
    last = {s.at: i for i, s in enumerate(steps) if s.method == "__setitem__"}
    for i, step in enumerate(steps):
        if step.method == "clear":
            kept.clear()
            lines.append(call("clear"))
            continue
        args = [r.expr(step.key), *map(repr, step.more)]
        if step.method == "__setitem__":
            stays = last[step.at] == i and step.at in value.items
            args.append(r.expr(value.items[step.at][1]) if stays else "None")  # (no code of the program's sees that)
        elif step.method == "__delitem__":
            kept.discard(step.at)
        lines.append(call(step.method, *args))
    for at, (key, item) in value.items.items():
        is_new = at not in kept and at not in last
        if is_new or (at in kept and not unchanged(item, before[at][1])):
            lines.append(call("__setitem__", r.expr(key), r.expr(item)))
    return lines


def unchanged(now: Value | Lazy, before: Value | Lazy) -> bool:
    """Whether an entry is what it was."""
    return now is before or (isinstance(before, Lazy) and now.source == before.source)
