"""Asking memory for what is read soon, where the CPU does not foresee it: what it reads ahead itself ends with a page, needs a
long stretch, and does not know indices."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence

from tinycompile.base import expr as ex
from tinycompile.codegen.cpp.dependences import Dependences, Open
from tinycompile.codegen.cpp.indexing import c_dim
from tinycompile.codegen.cpp.kept import Pass
from tinycompile.codegen.cpp.names import Names
from tinycompile.codegen.cpp.schedule import CACHE_LINE, Schedule, is_along
from tinycompile.codegen.cpp.statements import Statements
from tinycompile.ir.loops import Axis, Load, Statement, Store

FETCH_BYTES = 8192  # ahead along rows: two pages
TABLE_BYTES = 16384  # of a row that elements are picked from, at most: a part of L1
CLAIMED = 1 << 17  # elements of a row that are asked for before they are written, at most: a part of L2


def claims(deps: Dependences, passes: Sequence[Pass], lane: Axis, opened: Open) -> dict[tuple[int, str], list[int]]:
    """For each of the ``passes``, in order, that the next has the axis of: the stores of that one which lie in a stretch and
    stay near until then."""
    found: dict[tuple[int, str], list[int]] = {}
    for (step, axis, _), (_, after, roots) in itertools.pairwise(passes):
        stores = [(i, s) for i in roots if axis == after and isinstance(s := deps.body[i], Store) and s.mode == "plain"]
        near = [i for i, s in stores if len(s.index) == 1 and ex.coefficient(s.index[0], lane.name) == 1]
        sizes = [ex.product(deps.flat.axis(n).extent for n in deps.loops[i] - opened) for i in near]
        found[step, axis] = near if all(isinstance(n, int) and n <= CLAIMED for n in sizes) else []
    return found


def group_ahead(
    loads: Sequence[Load], stores: Sequence[Store], plan: Schedule, text: Statements, names: Names, first: str
) -> Iterator[str]:
    """What ``loads`` read about FETCH_BYTES after the group that begins at ``first``, in a later row or along a long one; and
    what ``stores`` write there in the next pass: a line that is written is read first."""
    lane = plan.lane
    assert lane is not None
    around = [a for a in (*plan.outer, *plan.inner) if a != lane]
    for s in (s for s in loads if around and is_along(s, lane)):
        step, row, size = ex.coefficient(s.index[0], around[-1].name), lane.extent, s.dtype.itemsize
        if isinstance(row, int) and isinstance(step, int) and step:
            far = FETCH_BYTES // size if row * size > 2 * FETCH_BYTES else step * max(FETCH_BYTES // (row * size), 1)
            start = c_dim(s.index[0] + far, lambda n: first if n == lane.name else text.symbol(n))
            yield _lines(s, start, plan.group * size, names)
    for store in stores:
        start = c_dim(store.index[0], lambda n: first if n == lane.name else text.symbol(n))
        yield f"tc::claim<{plan.group}>({names.buffer(store.buffer)} + {start});"


def block_ahead(s: Load, lane: Axis, block: int, text: Statements, names: Names) -> str:
    """What a load along the lanes reads in the current row of the next block."""
    next_block = f"{names.value(lane.name)}_begin + {block}"
    start = c_dim(s.index[0], lambda n: next_block if n == lane.name else text.symbol(n))
    return _lines(s, start, block * s.dtype.itemsize, names)


def picked_rows(items: Iterable[Statement], plan: Schedule, text: Statements, names: Names) -> Iterator[str]:
    """Rows of tables, one for each turn of an outer loop, from which the loop over lanes picks at least two elements a line."""
    lane = plan.lane
    assert lane is not None
    for s in items:
        if not isinstance(s, Load) or s.mask or len(s.index) != 2 or not isinstance(lane.extent, int):
            continue
        offset, at = s.index[0], ex.as_sym(s.index[1])
        steps = [ex.coefficient(offset, a.name) for a in plan.outer]
        length = at.stop if at is not None else None
        if at is None or not isinstance(length, int) or ex.coefficient(offset, at.name) != 1 or None in steps or not any(steps):
            continue
        size, lanes = length * s.dtype.itemsize, min(lane.extent, plan.block or lane.extent)
        if ex.coefficient(offset, lane.name) == 0 and 0 < size <= min(TABLE_BYTES, lanes * CACHE_LINE // 2):
            yield _lines(s, c_dim(ex.substitute(offset, {at.name: 0}), text.symbol), size, names)


def _lines(s: Load, start: str, size: int, names: Names) -> str:
    count = max(-(-size // CACHE_LINE), 1)
    return f"tc::fetch<{count}>({names.buffer(s.buffer)} + {start}, {CACHE_LINE // s.dtype.itemsize});"
