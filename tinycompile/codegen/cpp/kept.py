"""Which values of a row are kept in an array: costly ones that two passes over it share (softmax's exponentials)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, MutableMapping, Sequence

from tinycompile.codegen.cpp.dependences import Dependences, Open
from tinycompile.codegen.cpp.names import Names
from tinycompile.codegen.cpp.scalars import MEMORY_TYPES, c_read
from tinycompile.codegen.writer import Writer
from tinycompile.ir.loops import Axis, Scalar

KEEP_BYTES = 1 << 19  # on the stack of a thread (8 MiB as a rule)

Pass = tuple[int, str, list[int]]  # the stage it runs in, its axis, its roots


Keep = dict[tuple[int, str], list[tuple[str, str]]]  # (stage, axis) of a pass: values to be read from an array after it


def keep_dear(
    deps: Dependences,
    passes: Sequence[Pass],
    lane: Axis,
    opened: Open,
    kept: MutableMapping[str, str],
    names: Names,
    out: Writer,
) -> Keep:
    """Declare arrays for costly values that passes over a row share, and note in ``kept`` where each is written."""
    keep: Keep = {}
    if not isinstance(lane.extent, int):
        return keep
    along = [p for p in passes if p[1] == lane.name]
    for maker, s in _values_to_keep(deps, along, lane.extent, opened, kept):
        array = names.fresh(f"{names.value(s.name)}_row")
        out.line(f"alignas(64) {MEMORY_TYPES[s.dtype]} {array}[{lane.extent}];")
        kept[s.name] = f"{array}[{names.value(lane.name)}]"
        keep.setdefault(maker, []).append((s.name, c_read(kept[s.name], s.dtype)))
    return keep


def _values_to_keep(
    deps: Dependences, passes: Sequence[Pass], length: int, opened: Open, kept: Collection[str]
) -> Iterator[tuple[tuple[int, str], Scalar]]:
    """The values, each with the (stage, axis) of the pass that makes it. ``passes``: those along a row of ``length`` elements,
    in order. ``kept``: names that are kept already."""
    maker_pass: dict[int, tuple[int, str]] = {}
    room = KEEP_BYTES
    for step, axis, roots in passes:
        items = deps.pass_items(roots, opened)
        new = [i for i in items if i not in maker_pass]
        for i in (i for i in items if i in maker_pass):
            s = deps.body[i]
            used_by_new = any(i in deps.needs(j) for j in new)
            if not isinstance(s, Scalar) or s.name in kept or not used_by_new or not deps.is_dear(i, items):
                continue
            room -= length * s.dtype.itemsize
            if room >= 0:
                yield maker_pass[i], s
        maker_pass.update(dict.fromkeys(new, (step, axis)))
