"""Prints Loops as Python text that reads like the loops it describes.

``buf.x[i0, i1]`` is memory, a bare name is an SSA value, ``over=`` names the axes that a reduction drops. The text parses as
Python and is canonical: equal Loops print equally, so it serves as an artifact and in cache keys.
"""

from __future__ import annotations

from typing import Any

import torch

from tinycompile.base.device import Device
from tinycompile.base.expr import Dim, Expr
from tinycompile.base.meta import TensorMeta
from tinycompile.ir.loops import (
    Buffer,
    Const,
    ExternCall,
    Index,
    Load,
    Loops,
    Nest,
    Reduce,
    Scalar,
    Scan,
    Statement,
    Store,
    TensorView,
)

INFIX = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "floordiv": "//", "mod": "%", "pow": "**", "shl": "<<", "shr": ">>",
    "and": "&", "or": "|", "xor": "^", "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
}  # fmt: skip
PREFIX = {"neg": "-", "not": "~"}


def print_loops(loops: Loops) -> str:
    """The whole program as one function."""
    lines = [f"def {_identifier(loops.name)}({', '.join(loops.inputs)}):"]
    for b in loops.sizes:
        lines.append(f"    {b.symbol} = {b.input}" + ("" if b.dim is None else f".shape[{b.dim}]"))
    lines += [f"    {print_buffer(b)}" for b in loops.buffers]
    known = {b.name: b.meta for b in loops.buffers}
    where = {name: f"{loc.file.rsplit('/', 1)[-1]}:{loc.line}" for name, loc in loops.lines}
    for step in loops.steps:
        lines.append("")
        text = print_nest(step, where) if isinstance(step, Nest) else print_extern(step, known)
        lines += [f"    {line}" for line in text.splitlines()]
    lines += ["", f"    return {print_argument(loops.outputs, known)}"]
    return "\n".join(lines) + "\n"


def print_nest(nest: Nest, lines: dict[str, str] | None = None) -> str:
    """One nest as a ``for`` over its axes. ``lines`` maps origins to a place in the user's source, for the comment."""
    sizes = [f"{a.name}=reduction({a.extent})" if a.kind == "reduction" else f"{a.name}={a.extent}" for a in nest.axes]
    names = [a.name for a in nest.axes]
    targets = ", ".join(names) if len(names) > 1 else f"({names[0]},)" if names else "()"
    places = dict.fromkeys(f"{o} ({lines[o]})" if lines and o in lines else o for o in nest.origins)
    comment = f"  # {', '.join(places)}" if places else ""
    head = f"for {targets} in nest({', '.join([repr(nest.name), *sizes])}):{comment}"
    body = [f"    {print_statement(s)}" for s in nest.body] or ["    pass"]
    return "\n".join([head, *body])


def print_statement(s: Statement) -> str:
    """One statement as one line."""
    if isinstance(s, Reduce):
        return _many(s.names, s.dtypes, f"{s.kind}({', '.join(s.args)}, over={_names(s.axes)})")
    if isinstance(s, Scan):
        return _many(s.names, s.dtypes, f"cumulative_{s.kind}({', '.join(s.args)}, along={s.axis})")
    if isinstance(s, Store):
        place = _place(s.buffer, s.index)
        return f"{place} = {s.value}" if s.mode == "plain" else f"{s.mode}({place}, {s.value})"
    return f"{s.name}: {dtype_name(s.dtype)} = {_right_side(s)}"


def dtype_name(dtype: torch.dtype) -> str:
    """``float32`` for ``torch.float32``."""
    return str(dtype).removeprefix("torch.")


def _right_side(s: Load | Const | Index | Scalar) -> str:
    if isinstance(s, Load):
        read = _place(s.buffer, s.index)
        return f"{read} if {' and '.join(f'{m} >= 0' for m in s.mask)} else {_number(s.other)}" if s.mask else read
    if isinstance(s, Const):
        return _number(s.value)
    if isinstance(s, Index):
        return f"index({s.expr})"
    if s.op == "cast":
        return f"{dtype_name(s.dtype)}({s.args[0]})"
    if s.op in INFIX:
        return f" {INFIX[s.op]} ".join(s.args)
    return f"{PREFIX[s.op]}{s.args[0]}" if s.op in PREFIX else f"{s.op}({', '.join(s.args)})"


def _many(names: tuple[str, ...], dtypes: tuple[torch.dtype, ...], call: str) -> str:
    if len(names) == 1:
        return f"{names[0]}: {dtype_name(dtypes[0])} = {call}"
    return f"{', '.join(names)} = {call}  # {', '.join(map(dtype_name, dtypes))}"


def _place(buffer: str, index: tuple[Dim, ...]) -> str:
    return f"buf.{buffer}[{', '.join(map(str, index)) or '()'}]"


def _names(names: tuple[str, ...]) -> str:
    return names[0] if len(names) == 1 else f"({', '.join(names)})"


def _number(value: Any) -> str:
    """A literal that parses; NaN and infinities are not literals in Python."""
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return f'float("{value}")'
    return str(value) if isinstance(value, Expr) else repr(value)


def _identifier(name: str) -> str:
    clean = "".join(c if c.isalnum() or c == "_" else "_" for c in name)
    return clean if clean.isidentifier() else f"loops_{clean}"


def print_buffer(b: Buffer) -> str:
    """A buffer's declaration."""
    return f"buf.{b.name}: {b.role!r} = tensor({_meta(b.meta)})"


def _meta(m: TensorMeta) -> str:
    offset = f", offset={m.offset}" if not (isinstance(m.offset, int) and m.offset == 0) else ""
    return f"{_tuple(m.shape)}, {_tuple(m.strides)}, {dtype_name(m.dtype)}, {str(m.device)!r}{offset}"


def _tuple(items: tuple[Any, ...]) -> str:
    return f"({', '.join(map(str, items))}{',' if len(items) == 1 else ''})"


def print_extern(call: ExternCall, known: dict[str, TensorMeta]) -> str:
    """A library call; ``known`` gives the buffers' own metas, so that only views are spelled out."""
    args = [print_argument(a, known) for a in call.args] + [f"{k}={print_argument(v, known)}" for k, v in call.kwargs]
    path = f"ops.{call.target}" if call.kind == "call" else call.target
    results = ", ".join("_" if o is None else f"buf.{o}" for o in call.outputs)
    return (f"{results} = " if results else "") + f"{path}({', '.join(args)})"


def print_argument(value: Any, known: dict[str, TensorMeta]) -> str:
    """An argument of a call, or outputs."""
    if isinstance(value, TensorView):
        same = known.get(value.buffer) == value.meta
        shown = f"buf.{value.buffer}" if same else f"view(buf.{value.buffer}, {_meta(value.meta)})"
        return f"detach({shown})" if value.alias == "detach" else f"view({shown})" if value.alias and same else shown
    if isinstance(value, (tuple, list)):
        return f"({', '.join(print_argument(v, known) for v in value)}{',' if len(value) == 1 else ''})"
    if isinstance(value, (torch.dtype, torch.memory_format, torch.layout)):
        return str(value)
    return repr(str(value)) if isinstance(value, (Device, torch.device)) else _number(value)
