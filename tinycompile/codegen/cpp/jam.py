"""Where a reduction of columns may take in several rows at once (unroll and jam): accumulators are loaded and stored once for
all of them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from tinycompile.codegen.cpp.accumulators import Accumulator
from tinycompile.codegen.cpp.dependences import Dependences, Open
from tinycompile.codegen.cpp.names import Names
from tinycompile.codegen.cpp.statements import Statements
from tinycompile.codegen.writer import Writer
from tinycompile.ir.loops import Axis, Index, Load, Reduce, Scan

JAM = 8  # rows


def can_jam(deps: Dependences, text: Statements, inside: Open, rows: Axis, lanes: Axis | None, roots: Sequence[int]) -> bool:
    """Whether a loop over ``rows`` holds nothing but one over ``lanes`` that takes values into accumulators. ``inside``: the
    axes that are open then. Where indices are checked, rows go one by one; and what is dear is not computed in each lane."""
    if lanes is None or rows == lanes or (isinstance(rows.extent, int) and rows.extent < JAM):
        return False
    items = deps.closure(roots)
    feeding = [deps.body[i] for i in items if i not in roots]
    fixed = [deps.body[i] for i in items if lanes.name not in deps.loops[i]]
    return (
        all(isinstance(s := deps.body[i], Reduce) and lanes.name in deps.at[s.names[0]] for i in roots)
        and all(deps.loops[i] <= inside for i in items)
        and not any(isinstance(s, (Reduce, Scan)) or text.may_fault(s) for s in feeding)
        and all(isinstance(s, (Load, Index)) for s in fixed)
    )


@contextlib.contextmanager
def jammed_rows(
    out: Writer, names: Names, name: str, first: str, accumulators: Mapping[int, Accumulator], place: str
) -> Iterator[dict[int, Accumulator]]:
    """Inside a loop over lanes: the loop over the rows ``name`` of the group that begins at ``first``. Yields the accumulators
    as local variables, which the elements at ``place`` go into and come from."""
    here = {i: replace(a, part=names.fresh(f"{a.part}_here"), lanes=False) for i, a in accumulators.items()}
    for i, a in accumulators.items():
        out.line(f"{a.part_type} {here[i].part} = {a.part}{place};")
    row = names.fresh(f"{name}_row")
    out.line(f"#pragma GCC unroll {JAM}")
    with out.block(f"for (int {row} = 0; {row} < {JAM}; ++{row}) {{", "}"):
        out.line(f"const int64_t {name} = {first} + {row};")
        yield here
    for i, a in accumulators.items():
        out.line(f"{a.part}{place} = {here[i].part};")
