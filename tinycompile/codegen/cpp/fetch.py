"""Asking memory for what is read soon, where the CPU does not foresee it: what it reads ahead itself ends with a page, needs a
long stretch, and does not know indices. AMD's CPUs up to Zen 4 foresee a stretch better than we do where as much is written:
only the next page is asked for. Where little is written, a maximum and its place along rows takes 0.85 of its time there, mean
and deviation 0.88, if each line is asked for two pages ahead. Intel's and Zen 5 wait for memory and compute in turns otherwise:
mean and deviation takes 0.55 of its time on Intel's and 0.88 on Zen 5, a softmax of 2048 columns 0.9 on Zen 5, a sum of rows
0.6 and 0.96."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

from tinycompile.base import expr as ex
from tinycompile.base.expr import Dim
from tinycompile.codegen.cpp.dependences import Dependences, Open
from tinycompile.codegen.cpp.indexing import c_dim
from tinycompile.codegen.cpp.kept import Pass
from tinycompile.codegen.cpp.names import Names
from tinycompile.codegen.cpp.schedule import CACHE_LINE, Schedule, is_along
from tinycompile.codegen.cpp.statements import Statements
from tinycompile.ir.loops import Axis, Load, Scalar, Statement, Store

TABLE_BYTES = 16384  # of a row that elements are picked from, at most: a part of L1
PIECE = 64  # lanes between which parts of such a row are asked for
TURNS = 4  # before that of such a row it is asked for as far as the second cache, and once more in the turn before
BEGINNING = 512  # bytes of a row that an index names: more come in the way of the current one
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
    loads: Sequence[Load],
    rows: Sequence[Load],
    stores: Sequence[Store],
    plan: Schedule,
    text: Statements,
    names: Names,
    share: tuple[int, int],
    first: str,
) -> Iterator[str]:
    """For the group that begins at ``first``: what the first pass's ``loads`` read along the row, or ``rows`` in a later turn;
    and what ``stores`` write there in the next pass: a line that is written is read first."""
    lane = plan.lane
    assert lane is not None
    yield from later_turn(rows, plan, text, names, share, plan.group, first)
    for s in (s for s in loads if is_along(s, lane) and s not in rows):
        place = f"{names.buffer(s.buffer)} + {_spelled(s.index[0], {lane.name: first}, text)}"
        yield f"tc::{'two_pages_on' if plan.each_line else 'next_page'}<{plan.group}>({place});"
    for store in stores:
        yield _written(store, _spelled(store.index[0], {lane.name: first}, text), plan.group, names)


def later_turn(
    rows: Sequence[Load], plan: Schedule, text: Statements, names: Names, share: tuple[int, int], size: int, first: str
) -> list[str]:
    """What ``rows`` read some turns later at the ``size`` elements that begin at ``first``: of the lines of each group there
    the part that the pass of that number, of so many, asks for. (Passes differ in size: a group at a time, or a piece.)"""
    found = []
    for s in rows:
        assert plan.lane is not None
        unit, per_line = min(plan.group, size), CACHE_LINE // s.dtype.itemsize
        lines = max(unit // per_line, 1)
        begin, end = (lines * (share[0] + n) // share[1] for n in (0, 1))
        step = ex.coefficient(s.index[0], plan.outer[-1].name) or 0
        if end > begin and step != 0:
            for at in range(0, size, max(unit, per_line)):
                index = s.index[0] + step * plan.turns_ahead + at + begin * per_line
                start = _spelled(index, {plan.lane.name: first}, text)
                found.append(_lines(s, start, (end - begin) * CACHE_LINE, names, near=True))
    return list(dict.fromkeys(found))


def next_lanes(s: Load | Store, plan: Schedule, row: str, text: Statements, names: Names) -> str:
    """The index that an access of a block comes to in ``row``, with the lanes that follow."""
    assert plan.tile is not None and plan.lane is not None
    tile, lane = names.value(plan.tile.name), names.value(plan.lane.name)
    return _spelled(s.index[0], {plan.tile.name: f"({row} + {tile}_ahead)", plan.lane.name: f"{lane}_next"}, text)


def block_ahead(s: Load | Store, plan: Schedule, text: Statements, names: Names) -> str:
    """What a load or store along the lanes touches in the current row with the lanes that follow."""
    assert plan.tile is not None
    start = next_lanes(s, plan, names.value(plan.tile.name), text, names)
    if isinstance(s, Store):
        return _written(s, start, plan.block, names, near=True)
    return _lines(s, start, plan.block * s.dtype.itemsize, names, near=True)


def stretches(items: Iterable[Statement], plan: Schedule, text: Statements, names: Names, piece: str) -> list[str]:
    """Where the loop over lanes is all there is, what is read along them later than the PIECE lanes that begin at ``piece``."""
    lane = plan.lane
    assert lane is not None
    if plan.inner or plan.tile:
        return []
    loads = [s for s in items if isinstance(s, Load) and is_along(s, lane)]
    starts = [f"{names.buffer(s.buffer)} + {_spelled(s.index[0], {lane.name: piece}, text)}" for s in loads]
    return [f"tc::two_pages_on<{PIECE}>({start});" for start in dict.fromkeys(starts)]


def picked_rows(items: Iterable[Statement], plan: Schedule, text: Statements, names: Names, piece: str) -> list[str]:
    """Where the loop over lanes picks at least two elements a line from rows of tables, one for each turn of an outer loop: the
    part of later turns' rows that is asked for before the PIECE lanes that begin ``piece`` after the first."""
    lane = plan.lane
    assert lane is not None
    found = []
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
            share = -(-size // (-(-lanes // PIECE) * CACHE_LINE)) * CACHE_LINE
            for turns, near in ((TURNS, True), (1, False)):
                row = c_dim(ex.substitute(offset, {at.name: 0}) + turns * (steps[-1] or 0), text.symbol)
                found.append(_lines(s, f"{row} + ({piece})/{PIECE}*{share // s.dtype.itemsize}", share, names, near))
    return list(dict.fromkeys(found))


def named_rows(
    items: Iterable[Statement], body: Sequence[Statement], plan: Schedule, text: Statements, names: Names
) -> list[str]:
    """Where the loop over lanes walks a row that an index names: the first lines of the next turn's. The rest is foreseen."""
    lane, size = plan.lane, plan.lane.extent if plan.lane else 0
    if lane is None or not plan.outer or plan.block or not isinstance(size, int):
        return []
    turn = plan.outer[-1]
    next_turn = f"tc::least<int64_t>({names.value(turn.name)} + 1, {text.dim(turn.extent)} - 1)"
    indices = _loaded(body)
    found: list[str] = []
    for s in (s for s in items if isinstance(s, Load) and not s.mask and len(s.index) == 2):
        at = ex.as_sym(s.index[1])
        index = indices.get(at.name) if at is not None else None
        if at is None or index is None or ex.coefficient(s.index[0], lane.name) != 1:
            continue
        if ex.coefficient(index.index[0], lane.name) == 0 and ex.coefficient(index.index[0], turn.name) not in (0, None):
            ahead = names.fresh(f"{at.name}_ahead")
            place = _spelled(index.index[0], {turn.name: next_turn}, text)
            found.append(f"const int64_t {ahead} = {names.buffer(index.buffer)}[{place}];")
            start = _spelled(s.index[0], {at.name: ahead, lane.name: "0"}, text)
            found.append(_lines(s, start, min(size * s.dtype.itemsize, BEGINNING), names))
    return found


def _loaded(body: Sequence[Statement]) -> dict[str, Load]:
    """Values that come from memory at a place known beforehand; integers may have been widened since."""
    found: dict[str, Load] = {}
    for s in body:
        if isinstance(s, Load) and not s.mask and len(s.index) == 1:
            found[s.name] = s
        elif isinstance(s, Scalar) and s.op == "cast" and s.args[0] in found:
            found[s.name] = found[s.args[0]]
    return found


def _spelled(d: Dim, own: Mapping[str, str], text: Statements) -> str:
    """An index expression in which some symbols have names of their own."""
    return c_dim(d, lambda name: own.get(name) or text.symbol(name))


def _lines(s: Load, start: str, size: int, names: Names, near: bool = False) -> str:
    count, call = max(-(-size // CACHE_LINE), 1), "fetch_near" if near else "fetch"
    return f"tc::{call}<{count}>({names.buffer(s.buffer)} + {start}, {CACHE_LINE // s.dtype.itemsize});"


def _written(s: Store, start: str, count: int, names: Names, near: bool = False) -> str:
    return f"tc::{'claim_near' if near else 'claim'}<{count}>({names.buffer(s.buffer)} + {start});"
