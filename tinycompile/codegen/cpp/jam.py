"""Where a reduction of columns may take in several rows at once (unroll and jam): accumulators are loaded and stored once for
all of them."""

from __future__ import annotations

from collections.abc import Sequence

from tinycompile.codegen.cpp.dependences import Dependences, Open
from tinycompile.codegen.cpp.statements import Statements
from tinycompile.ir.loops import Axis, Index, Load, Reduce, Scan

JAM = 8  # rows


def can_jam(deps: Dependences, text: Statements, inside: Open, rows: Axis, lanes: Axis, roots: Sequence[int]) -> bool:
    """Whether a loop over ``rows`` holds nothing but one over ``lanes`` that takes values into accumulators. ``inside``: the
    axes that are open then. Where indices are checked, rows go one by one; and what is dear is not computed in each lane."""
    if isinstance(rows.extent, int) and rows.extent < JAM:
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
