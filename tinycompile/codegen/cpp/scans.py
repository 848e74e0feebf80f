"""Running sums along a row, a block at a time: what goes into them and what is made of them are vectorised loops, and the sums
of a block are made in registers. One by one, each addition waits for the last."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence

from tinycompile.codegen.cpp.accumulators import result_text, scan_state
from tinycompile.codegen.cpp.dependences import Dependences, Open
from tinycompile.codegen.cpp.names import Names
from tinycompile.codegen.cpp.statements import Statements
from tinycompile.codegen.writer import Writer
from tinycompile.ir.loops import Axis, Load, Reduce, Scan, Store

BLOCK = 16  # elements: two vectors of float64 at least


def blocked_scans(deps: Dependences, text: Statements, inside: Open, axis: Axis, roots: Sequence[int]) -> list[int]:
    """The scans in a loop over ``axis`` that holds nothing but sums in float64, what goes into them and stores of what is made
    of them; else none. ``inside``: the axes that are open there."""
    items = deps.closure(roots)
    body = [deps.body[i] for i in items]
    scans = [i for i in items if isinstance(deps.body[i], Scan)]
    fed = {i for scan in scans for i in deps.closure(deps.needs(scan))}
    read, written = {s.buffer for s in body if isinstance(s, Load)}, {s.buffer for s in body if isinstance(s, Store)}
    blocked = (
        (not isinstance(axis.extent, int) or axis.extent >= BLOCK)
        and all(isinstance(deps.body[i], Store) for i in roots)
        and all(s.axis == axis.name and s.kind == "sum" and scan_state(s)[0] == "double" for s in body if isinstance(s, Scan))
        and all(deps.loops[i] <= inside for i in items)
        and not any(isinstance(s, Reduce) or text.may_fault(s) for s in body)
        and not fed & set(scans)
        and not read & written
    )
    return scans if blocked else []


def scanned_blocks(
    deps: Dependences, text: Statements, names: Names, out: Writer, write: Callable[[int], None],
    axis: Axis, roots: Sequence[int], scans: Mapping[int, str], begin: str, end: str,
) -> str:  # fmt: skip
    """The loop over whole blocks from ``begin``; returns where the elements that are left begin. ``scans``: each with the
    variable of its running sum; ``write`` writes a statement."""
    name, saved = names.value(axis.name), dict(text.texts)
    first, whole = names.fresh(f"{name}_first"), names.fresh(f"{name}_whole")
    out.line(f"const int64_t {whole} = {end} - ({end} - {begin}) % {BLOCK};")
    with out.block(f"for (int64_t {first} = {begin}; {first} < {whole}; {first} += {BLOCK}) {{", "}"):
        running = {s: variable for i, variable in scans.items() if isinstance(s := deps.body[i], Scan)}
        arrays = {s: names.fresh(f"{variable}_block") for s, variable in running.items()}
        for array in arrays.values():
            out.line(f"double {array}[{BLOCK}];")
        with _block_loop(text, out, name, first):
            for i in deps.closure(d for scan in scans for d in deps.needs(scan)):
                write(i)
            for s, array in arrays.items():
                out.line(f"{array}[{name} - {first}] = {text.texts[s.args[0]]};")
        text.texts = dict(saved)
        for s, array in arrays.items():
            out.line(f"{running[s]} = tc::running_sums<{BLOCK}>({array}, {running[s]});")
            text.texts[s.names[0]] = result_text(f"{array}[{name} - {first}]", "double", s.dtypes[0])
        with _block_loop(text, out, name, first):
            for i in deps.closure(roots):
                write(i)
    text.texts = saved
    return whole


@contextlib.contextmanager
def _block_loop(text: Statements, out: Writer, name: str, first: str) -> Iterator[None]:
    """The vectorised loop over the block of elements ``name`` that begins at ``first``."""
    out.line("#pragma omp simd")
    with out.block(f"for (int64_t {name} = {first}; {name} < {first} + {BLOCK}; ++{name}) {{", "}"):
        text.forget_comment()
        yield
