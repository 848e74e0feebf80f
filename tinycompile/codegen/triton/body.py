"""Statements of a nest as lines of Triton, given the tile they run on."""

from __future__ import annotations

import linecache
import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from tinycompile.base import expr as ex
from tinycompile.base.atoms import Sym
from tinycompile.base.expr import Dim, Expr
from tinycompile.codegen.triton.analysis import INT32_MAX, Analysis, Forms, axes_in, names_of, reach
from tinycompile.codegen.triton.bounds import magnitudes
from tinycompile.codegen.triton.dtypes import is_float, triton_dtype
from tinycompile.codegen.triton.indexing import Names, at_least_zero, dim_text
from tinycompile.codegen.triton.scalars import cast, literal, spell
from tinycompile.codegen.triton.tiles import Schedule, TileDim
from tinycompile.ir.graph import Location
from tinycompile.ir.loops import Const, Index, Load, Nest, Reduce, Scalar, Scan, Statement, Store

NEAR_ANGLE = 2.2  # up to it a sine is one polynomial
BOUNDED_ANGLE = 2.0**18  # below it sine and cosine need no long reduction
_INFIX = frozenset(["add", "sub", "mul", "and", "or", "xor", "shl", "shr", "eq", "ne", "lt", "le", "gt", "ge"])


@dataclass
class Body:
    """Spells statements. ``variables``: value -> its variable; ``inline``: constants; ``axes``: axis -> its variable.
    ``masks``: blocks may stick out, but for that of the tile dimension ``inside``."""

    analysis: Analysis
    schedule: Schedule
    pointers: Mapping[str, str]
    fast: bool
    size: Callable[[Sym], str]
    axes: dict[str, str] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    inline: dict[str, str] = field(default_factory=dict)
    dtypes: dict[str, torch.dtype] = field(default_factory=dict)
    masks: bool = True
    inside: str = ""
    eviction: str = ""
    far: bool = False
    magnitudes: Mapping[str, float] = field(init=False)

    def __post_init__(self) -> None:
        self.magnitudes = magnitudes(self.analysis.nest)

    # where values live ---------------------------------------------------------------------------------------------------

    def covers(self, dim: TileDim, span: frozenset[str]) -> bool:
        """Whether something at the axes ``span`` varies along a tile dimension."""
        return any(a.name in span for a in dim.axes)

    def shape(self, span: frozenset[str], whole: TileDim | None = None) -> str:
        """The shape of a value at ``span``: 1 along tile dimensions that it does not touch (``whole`` counts as touched)."""
        return f"[{', '.join(d.block if d is whole or self.covers(d, span) else '1' for d in self.schedule.dims)}]"

    def dim_mask(self, span: frozenset[str]) -> list[str]:
        """Masks of the tile dimensions that ``span`` touches."""
        return [f"{d.name}_mask" for d in self.schedule.dims if self.sticks_out(d) and self.covers(d, span)]

    def sticks_out(self, dim: TileDim) -> bool:
        """Whether the block at hand may reach past the end of a tile dimension."""
        return self.masks and dim.masked and dim.name != self.inside

    # expressions ---------------------------------------------------------------------------------------------------------

    def symbol(self, s: Sym) -> str:
        """An axis, an indirect index or a size."""
        if s.name in self.axes:
            return self.axes[s.name]
        if s.name in self.inline:  # a constant that lies outside
            return self.operand(s.name)
        if s.name in self.variables:
            small = s.stop is None or self.analysis.hint(s.stop) <= INT32_MAX
            return (
                f"{self.variables[s.name]}.to(tl.int32)"
                if small and not self.far and self.dtypes[s.name] == torch.int64
                else self.variables[s.name]
            )
        return self.size(s)

    def text(self, d: Dim) -> str:
        """An integer expression."""
        return dim_text(d, self.symbol)

    def operand(self, name: str, literal_ok: bool = False) -> str:
        """A value as an operand; constants as literals where Triton gives them the right dtype, else as typed scalars."""
        if name in self.variables:
            return self.variables[name]
        text = self.inline[name]
        return text if literal_ok else f"tl.full([], {text}, {triton_dtype(self.dtypes[name])})"

    def constant(self, s: Const) -> None:
        """Remember a constant; symbolic sizes become kernel arguments."""
        self.dtypes[s.name] = s.dtype
        if isinstance(s.value, Expr):
            self.inline[s.name] = self.text(s.value)
        else:
            self.inline[s.name] = literal(s.value, s.dtype)

    def scalar(self, s: Scalar) -> str:
        """The expression of a scalar op."""
        dtype = self.dtypes[s.args[-1]]
        if s.op == "cast":
            return cast(self.operand(s.args[0]), dtype, s.dtype)
        constant = [a in self.inline for a in s.args]
        typed = dtype == torch.float32 or (s.op in _INFIX and not is_float(dtype) and dtype != torch.bool)
        symbolic = any(not re.match(r"[-\d]|float\(", self.inline[a]) for a in s.args if a in self.inline)
        ok = (
            typed
            and not symbolic
            and not all(constant)
            and (s.op in _INFIX or s.op in ("where", "minimum", "maximum", "fmin", "fmax"))
        )
        args = [self.operand(a, ok and self.dtypes[a] == dtype) for a in s.args]
        op = s.op
        if op in ("sin", "cos") and not any(self.covers(d, self.analysis.spans[s.args[0]]) for d in self.schedule.dims):
            op += "_scalar"  # no block to look for large arguments in
        elif op == "sin" and self.magnitudes.get(s.args[0], math.inf) <= NEAR_ANGLE:
            op += "_near"
        elif op in ("sin", "cos") and self.magnitudes.get(s.args[0], math.inf) < BOUNDED_ANGLE:
            op += "_bounded"
        return spell(op, dtype, args, self.fast)

    # memory --------------------------------------------------------------------------------------------------------------

    def pointer(self, buffer: str, offset: Dim, span: frozenset[str], at: frozenset[str]) -> str:
        """The address; broadcast when a mask or value (at ``at``) touches tile dimensions that the offset does not."""
        self.far = reach(offset, self.analysis) > INT32_MAX
        base = self.pointers[buffer]
        text = base if offset == 0 else f"{base} + {self._offset(offset)}"
        self.far = False
        missing = [d for d in self.schedule.dims if self.covers(d, at) and not self.covers(d, span)]
        return f"tl.broadcast_to({text}, {self.shape(span | at)})" if missing else text

    def _offset(self, offset: Dim) -> str:
        text = self.text(self._flattened(offset))
        return text if re.fullmatch(r"[\w.]+", text) else f"({text})"

    def _flattened(self, offset: Dim) -> Dim:
        """Axes that the offset walks in the order in which a dimension flattens them, as that dimension's own index."""
        for dim in (*self.schedule.dims, *self.schedule.scalars):
            step = ex.coefficient(offset, dim.axes[-1].name) if len(dim.axes) > 1 else None
            if step is None or step == 0:
                continue
            flat, after = offset, step
            for axis in reversed(dim.axes):
                if ex.coefficient(flat, axis.name) != after:
                    break
                flat = ex.substitute(flat, {axis.name: 0})
                after = after * axis.extent
            else:
                offset = flat + step * ex.sym(f"@{dim.name}", 0, dim.extent)  # no value or axis has such a name
                self.axes[f"@{dim.name}"] = dim.name
        return offset

    def reached(self, form: Forms) -> frozenset[str]:
        """The axes of an access: of its offset, its masks, and the coordinates it checks (a stride of 0 hides these)."""
        walked = (axes_in(d, self.analysis) for d in (form.offset, *form.masks))
        return frozenset[str]().union(*walked, *(self.analysis.spans[c.value] for c in form.checks))

    def checks(self, form: Forms) -> list[str]:
        """Conditions that keep indirect coordinates inside their dimension."""
        lines = []
        for check in form.checks:
            name = self.operand(check.value)
            if isinstance(check.size, int) or check.size is not None:
                lines += [f"({name} >= 0)", f"({name} < {self.text(check.size)})"]
        return lines

    def bounds_check(self, form: Forms) -> list[str]:
        """An assertion, where the element is wanted at all, that indirect coordinates lie inside their dimension."""
        inside = self.checks(form)
        if not inside:
            return []
        at = self.reached(form)
        wanted = " & ".join([*self.dim_mask(at), *(f"({at_least_zero(m, self.symbol)})" for m in form.masks)])
        where = f", mask={wanted}" if wanted else ""
        return [f'tl.device_assert({" & ".join(inside)}, "index out of range"{where})']

    def checked(self, s: Scalar) -> list[str]:
        """The assertion of the op that checks an index; none for the others."""
        if s.op != "checked":
            return []
        wanted = " & ".join(self.dim_mask(self.analysis.spans[s.name]))
        return [f'tl.device_assert({self.operand(s.args[0])}, "index out of range"{f", mask={wanted}" if wanted else ""})']

    def load(self, s: Load, form: Forms) -> str:
        """``tl.load(...)``, masked as the tile, the program's own masks and bounds checks require."""
        span = axes_in(form.offset, self.analysis)
        at = self.reached(form)
        conditions = [f"({at_least_zero(m, self.symbol)})" for m in form.masks] + self.checks(form)
        parts = [self.pointer(s.buffer, form.offset, span, at)]
        mask = " & ".join([*self.dim_mask(at), *conditions])
        if mask:
            parts.append(f"mask={mask[1:-1] if len(conditions) == 1 and mask == conditions[0] else mask}")
        if conditions:
            parts.append(f"other={literal(s.other, s.dtype) if is_float(s.dtype) or s.dtype == torch.bool else int(s.other)}")
        if self.eviction and self.covers(self.schedule.dims[-1], span):
            parts.append(f'eviction_policy="{self.eviction}"')
        return f"tl.load({', '.join(parts)})"

    def prefetch(self, s: Load, form: Forms) -> str:
        """``prefetch(...)`` of what a load will read."""
        span = axes_in(form.offset, self.analysis)
        at = self.reached(form)
        mask = " & ".join([*self.dim_mask(at), *(f"({at_least_zero(m, self.symbol)})" for m in form.masks)])
        return f"prefetch({self.pointer(s.buffer, form.offset, span, at)}, {mask or True})"

    def store(self, s: Store, form: Forms) -> str:
        """``tl.store(...)`` or an atomic add; half buffers round to nearest even."""
        span, value_span = axes_in(form.offset, self.analysis), self.analysis.spans[s.value]
        dtype = self.analysis.metas[s.buffer].dtype
        value = cast(self.operand(s.value), self.dtypes[s.value], dtype)
        value_span |= self.reached(form)
        parts = [self.pointer(s.buffer, form.offset, span, value_span), value]
        mask = " & ".join([*self.dim_mask(span | value_span), *self.checks(form)])
        if s.mode == "atomic_add" and any(self.covers(d, span | value_span) for d in self.schedule.dims):
            parts[1] = f"tl.broadcast_to({value}, {self.shape(span | value_span)})"
        if mask:
            parts.append(f"mask={mask}")
        if s.mode == "atomic_add":
            return f'tl.atomic_add({", ".join(parts)}, sem="relaxed")'
        if self.eviction and self.covers(self.schedule.dims[-1], span):
            parts.append('eviction_policy="evict_first"')  # rows that a later pass reads stay longer
        return f"tl.store({', '.join(parts)})"

    def index(self, s: Index, form: Forms) -> str:
        """An index expression as a value of its dtype."""
        text = self.text(form.offset)
        if not ex.symbols(form.offset):
            return f"tl.full([], {text}, {triton_dtype(s.dtype)})"
        wide = reach(form.offset, self.analysis) > INT32_MAX
        if wide:
            self.far = True
            text = dim_text(form.offset, lambda y: f"{self.symbol(y)}.to(tl.int64)" if y.name in self.axes else self.symbol(y))
            self.far = False
        return f"tl.cast({text}, {triton_dtype(s.dtype)})"


def variable_name(statement: Statement, last_of_origin: bool) -> str:
    """What to call a statement's value: the user's name for the last value of a graph node, else its own."""
    if isinstance(statement, Load):
        return statement.buffer
    if isinstance(statement, (Const, Index, Scalar)):
        return statement.origin if last_of_origin and statement.origin else statement.name
    return statement.origin or "value"


def name_values(nest: Nest, names: Names) -> dict[str, str]:
    """A variable for each value: a load is called as its buffer, the last value of a graph node as the user called it."""
    last = {s.origin: i for i, s in enumerate(nest.body) if not isinstance(s, (Store, Const, Load))}
    variables: dict[str, str] = {}
    for i, s in enumerate(nest.body):
        if isinstance(s, Const):
            continue
        for name in names_of(s):
            wanted = variable_name(s, last.get(getattr(s, "origin", "")) == i)
            variables[name] = names.fresh(name if isinstance(s, (Reduce, Scan)) and len(names_of(s)) > 1 else wanted)
    return variables


def location_text(loc: Location) -> str:
    """``file.py:12: the line's own text`` when the file can be read."""
    text = linecache.getline(loc.file, loc.line).strip()
    return f"{os.path.basename(loc.file)}:{loc.line}" + (f": {text}" if text else "")
