"""What a nest looks like to a code generator: flat offsets, merged axes, where each value lives, and in which pass.

``analyse`` turns each access's coordinates into one element offset, drops axes of extent 1, and merges neighbouring axes that
every access walks as one (``a*N + b``), so that a contiguous pointwise nest ends with one axis.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from tinycompile.base import expr as ex
from tinycompile.base.atoms import Atom, Sym
from tinycompile.base.errors import BackendError
from tinycompile.base.expr import Dim
from tinycompile.base.meta import TensorMeta
from tinycompile.ir.loops import Axis, Const, Index, Load, Nest, Reduce, Scalar, Scan, Statement, Store

INT32_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Checked:
    """An indirect coordinate: the value must be in ``[0, size)``."""

    value: str
    size: Dim


@dataclass(frozen=True, slots=True)
class Forms:
    """A statement's integer expressions over the final axes: element ``offset`` (or an Index's value) and masks (>= 0)."""

    offset: Dim = 0
    masks: tuple[Dim, ...] = ()
    checks: tuple[Checked, ...] = ()


@dataclass(frozen=True)
class Analysis:
    """``parallel`` and ``reduction``: the final axes, outermost first. ``forms``: by statement position. ``spans``: the axes of
    each value by name. ``level``: how many reductions in sequence a value waits for. ``hints``: the sizes at capture.
    """

    nest: Nest
    parallel: tuple[Axis, ...]
    reduction: tuple[Axis, ...]
    forms: tuple[Forms, ...]
    spans: Mapping[str, frozenset[str]]
    level: Mapping[str, int]
    metas: Mapping[str, TensorMeta]
    hints: Mapping[str, int]

    def hint(self, d: Dim) -> int:
        """The value of a dim at capture."""
        return ex.evaluate(d, self.hints)

    def extent(self, axes: tuple[Axis, ...]) -> Dim:
        """The number of points."""
        return ex.product(a.extent for a in axes)

    def accesses(self) -> list[tuple[Load | Store, Forms]]:
        """Loads and stores with their forms."""
        return [(s, f) for s, f in zip(self.nest.body, self.forms, strict=True) if isinstance(s, (Load, Store))]

    def axes_at(self, position: int) -> frozenset[str]:
        """The axes at which a statement runs."""
        statement, form = self.nest.body[position], self.forms[position]
        here = [axes_in(d, self) for d in (form.offset, *form.masks)]
        return frozenset().union(*here, *(self.spans[n] for n in (*operands_of(statement), *names_of(statement))))


def names_of(statement: Statement) -> tuple[str, ...]:
    """The values that a statement defines."""
    if isinstance(statement, Store):
        return ()
    return statement.names if isinstance(statement, (Reduce, Scan)) else (statement.name,)


def operands_of(statement: Statement) -> tuple[str, ...]:
    """The values that a statement takes as operands (indices aside)."""
    if isinstance(statement, Store):
        return (statement.value,)
    return statement.args if isinstance(statement, (Scalar, Reduce, Scan)) else ()


def uses_of(statement: Statement, form: Forms) -> set[str]:
    """Everything that a statement mentions: operands, indirect indices, axes and sizes."""
    mentioned = {s.name for d in (form.offset, *form.masks) for s in ex.symbols(d)}
    return mentioned | set(operands_of(statement)) | {c.value for c in form.checks}


def axes_in(d: Dim, analysis: Analysis) -> frozenset[str]:
    """The axes that an expression walks, through indirect values too."""
    axes = {a.name for a in (*analysis.parallel, *analysis.reduction)}
    found: set[str] = set()
    for s in ex.symbols(d):
        found |= {s.name} if s.name in axes else analysis.spans.get(s.name, frozenset())
    return frozenset(found)


def analyse(nest: Nest, metas: Mapping[str, TensorMeta], hints: Mapping[str, int]) -> Analysis:
    """Analyse a nest. Raises BackendError for reductions over different axes in one nest."""
    _check_reductions(nest)
    values = {n for s in nest.body for n in names_of(s)}
    known = {s.name: s.value for s in nest.body if isinstance(s, Const) and type(s.value) is int}
    forms = [_forms(s, metas, values, known) for s in nest.body]
    axes = _in_reduced_order(nest)
    for axis in [a for a in axes if isinstance(a.extent, int) and a.extent == 1]:
        forms = [_map_forms(f, lambda d, n=axis.name: ex.substitute(d, {n: 0})) for f in forms]  # type: ignore[misc]
        if axis.kind == "parallel":
            axes.remove(axis)
    axes, forms = _merge(axes, forms, nest)
    parallel = tuple(a for a in axes if a.kind == "parallel")
    reduction = tuple(a for a in axes if a.kind != "parallel")
    spans, level = _flow(nest, forms, {a.name for a in axes}, {a.name for a in reduction})
    return Analysis(nest, parallel, reduction, tuple(forms), spans, level, metas, hints)


def _in_reduced_order(nest: Nest) -> list[Axis]:
    """The nest's axes, those of an argmax in the order in which it flattens them (``Reduce.axes``, not the nest's)."""
    orders = {s.axes for s in nest.body if isinstance(s, Reduce) and s.kind.startswith("arg")}
    if not orders:
        return list(nest.axes)
    if len(orders) > 1:
        raise BackendError(f"{nest.name}: reductions that return positions flatten their axes in different orders")
    by_name = {a.name: a for a in nest.axes}
    return [a for a in nest.axes if a.kind == "parallel"] + [by_name[name] for name in orders.pop()]


def _check_reductions(nest: Nest) -> None:
    reduced = {a.name for a in nest.axes if a.kind != "parallel"}
    for s in nest.body:
        over = set(s.axes) if isinstance(s, Reduce) else {s.axis} if isinstance(s, Scan) else reduced
        if over != reduced:
            raise BackendError(
                f"{nest.name}: one Triton kernel reduces over one set of axes, not {sorted(over)} and {sorted(reduced)}"
            )


def _forms(statement: Statement, metas: Mapping[str, TensorMeta], values: set[str], known: Mapping[str, int]) -> Forms:
    """``known``: integer constants, which index as numbers do where they lie inside."""
    if isinstance(statement, Index):
        return Forms(statement.expr)
    if not isinstance(statement, (Load, Store)):
        return Forms()
    index, masks = statement.index, statement.mask if isinstance(statement, Load) else ()
    indirect = {s for d in (*index, *masks) for s in ex.symbols(d) if s.name in values}
    inside = {s for s in indirect if s.name in known and isinstance(s.stop, int) and 0 <= known[s.name] < s.stop}
    if inside:
        numbers = {s.name: known[s.name] for s in inside}
        index, masks = (tuple(ex.substitute(d, numbers) for d in dims) for dims in (index, masks))
        indirect -= inside
    offset = ex.dot(index, metas[statement.buffer].strides)
    checks = tuple(Checked(s.name, s.stop) for s in sorted(indirect, key=lambda s: s.name) if s.stop is not None)
    return Forms(offset, tuple(masks), checks)


def _map_forms(forms: Forms, fn: ex.Callable[[Dim], Dim]) -> Forms:
    return replace(forms, offset=fn(forms.offset), masks=tuple(fn(m) for m in forms.masks))


def _merge(axes: list[Axis], forms: list[Forms], nest: Nest) -> tuple[list[Axis], list[Forms]]:
    """Merge pairs (outer, inner) until none can be. The flat order of reduction axes is kept where an argmax sees it."""
    ordered = any(isinstance(s, Reduce) and s.kind.startswith("arg") for s in nest.body)
    merged = True
    while merged:
        merged = False
        for outer, inner in itertools.permutations(axes, 2):
            if outer.kind != inner.kind or (
                ordered and outer.kind != "parallel" and axes.index(outer) + 1 != axes.index(inner)
            ):
                continue
            moved = [_merge_forms(f, outer, inner) for f in forms]
            if all(m is not None for m in moved):
                axis = Axis(inner.name, outer.extent * inner.extent, inner.kind)
                axes = [axis if a is inner else a for a in axes if a is not outer]
                forms = [m for m in moved if m is not None]
                merged = True
                break
    return axes, forms


def _merge_forms(forms: Forms, outer: Axis, inner: Axis) -> Forms | None:
    wide = ex.sym(inner.name, 0, outer.extent * inner.extent)
    result: list[Dim] = []
    for d in (forms.offset, *forms.masks):
        a, b = ex.coefficient(d, outer.name), ex.coefficient(d, inner.name)
        if a is None or b is None or a != b * inner.extent:
            return None
        rest = ex.substitute(d, {outer.name: 0, inner.name: 0})
        result.append(rest + b * wide)
    return replace(forms, offset=result[0], masks=tuple(result[1:]))


def _flow(
    nest: Nest, forms: list[Forms], axes: set[str], reduced: set[str]
) -> tuple[dict[str, frozenset[str]], dict[str, int]]:
    spans: dict[str, frozenset[str]] = {}
    level: dict[str, int] = {}
    for statement, form in zip(nest.body, forms, strict=True):
        uses = uses_of(statement, form)
        at = frozenset(u for u in uses if u in axes).union(*(spans[u] for u in uses if u in spans))
        depth = max((level[u] for u in uses if u in level), default=0)
        if isinstance(statement, Reduce):
            at, depth = at - reduced, depth + 1
        if isinstance(statement, Scan):
            at = at | reduced
        for name in names_of(statement):
            spans[name], level[name] = at, depth
    return spans, level


def contiguous_axis(offset: Dim, axes: tuple[Axis, ...]) -> str | None:
    """The axis along which an access walks memory one element at a time."""
    return next((a.name for a in axes if ex.coefficient(offset, a.name) == 1), None)


def reach(offset: Dim, analysis: Analysis) -> int:
    """An upper bound of an offset's magnitude at the sizes seen at capture."""
    axes = {a.name: analysis.hint(a.extent) for a in (*analysis.parallel, *analysis.reduction)}
    total = 0
    for mono, coeff in ex.terms_of(offset):
        size = abs(coeff)
        for atom in mono:
            size *= _atom_reach(atom, axes, analysis)
        total += size
    return total


def _atom_reach(atom: Atom, axes: Mapping[str, int], analysis: Analysis) -> int:
    if isinstance(atom, Sym):
        if atom.name in axes:
            return max(axes[atom.name] - 1, 0)
        if atom.name in analysis.hints:
            return analysis.hints[atom.name]
        return INT32_MAX if atom.stop is None else analysis.hint(atom.stop)
    left = reach(atom.lhs, analysis)
    if atom.fn == "//":
        return left
    return reach(atom.rhs, analysis) if atom.fn == "%" else max(left, reach(atom.rhs, analysis))


def item_size(dtype: torch.dtype) -> int:
    """Bytes an element."""
    return dtype.itemsize
