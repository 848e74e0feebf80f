"""What a product asks the L2 for while the kernel before it ends (``library_overlap.py``). A product of few rows reads its
weights once, so they are most of what it waits for.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tinycompile.base import expr as ex
from tinycompile.codegen.triton.analysis import Analysis, Forms
from tinycompile.ir.loops import Load


def known_early(analysis: Analysis, positions: Sequence[int], inputs: Collection[str]) -> list[tuple[Load, Forms]]:
    """Of some statements, the loads of the call's ``inputs`` from places that axes and sizes alone decide."""
    fixed = {a.name for a in (*analysis.parallel, *analysis.reduction)} | set(analysis.hints)
    found = []
    for position in positions:
        s, form = analysis.nest.body[position], analysis.forms[position]
        if isinstance(s, Load) and s.buffer in inputs and not form.checks:
            if all(symbol.name in fixed for symbol in ex.symbols(form.offset)):
                found.append((s, form))
    return found
