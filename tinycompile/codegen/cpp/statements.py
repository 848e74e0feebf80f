"""Single statements as C++: what each value is called at the current point, and the text that computes it."""

from __future__ import annotations

import linecache
import os
from collections.abc import Callable, Iterator, Mapping

import torch

from tinycompile.base import expr as ex
from tinycompile.base.atoms import Sym
from tinycompile.base.dtypes import NARROW
from tinycompile.base.expr import Dim
from tinycompile.codegen.cpp.analysis import FlatNest, dtypes_of
from tinycompile.codegen.cpp.indexing import c_dim
from tinycompile.codegen.cpp.names import Names
from tinycompile.codegen.cpp.scalars import C_TYPES, c_cast, c_const, c_read, c_scalar, op_may_fault
from tinycompile.codegen.writer import Writer
from tinycompile.ir.graph import Location
from tinycompile.ir.loops import Const, Index, Load, Scalar, Statement, Store


class Statements:
    """Writes statements. ``texts`` maps each value that can be named at the current point to an expression: a variable, a
    literal, or an element of an array."""

    def __init__(
        self, flat: FlatNest, dtypes: Mapping[str, torch.dtype], lines: Mapping[str, Location], names: Names, out: Writer
    ) -> None:
        self.buffer_dtypes, self.lines, self.names, self.out = dtypes, lines, names, out
        self.dtypes = dtypes_of(flat.body)
        self.texts: dict[str, str] = {s.name: self._const(s) for s in flat.body if isinstance(s, Const)}
        self.tiled: dict[str, str] = {}  # loads whose block lies transposed in an array: where the element is
        self._last_comment = ""

    # --- names and expressions ---

    def has(self, name: str) -> bool:
        """Whether a value can be named here."""
        return name in self.texts

    def symbol(self, name: str) -> str:
        """A symbol inside an index expression: a value, an axis or a size."""
        if name not in self.texts:
            return self.names.value(name)
        text = self.texts[name]
        return text if self.dtypes[name] == torch.int64 and text.isidentifier() else f"(int64_t)({text})"

    def dim(self, d: Dim) -> str:
        """An index expression."""
        return c_dim(d, self.symbol)

    def _const(self, s: Const) -> str:
        if isinstance(s.value, ex.Expr):
            return f"({C_TYPES[s.dtype]})({c_dim(s.value, self.names.value)})"
        text = c_const(s.value, s.dtype)
        return f"({text})" if text.startswith("-") else text

    # --- statements ---

    def write(self, s: Load | Index | Scalar) -> None:
        """Declare the value of a statement as a local variable."""
        self.comment(s)
        text = self._load(s) if isinstance(s, Load) else self._value(s)
        variable = self.names.value(s.name)
        self.out.line(f"const {C_TYPES[s.dtype]} {variable} = {text};")
        self.texts[s.name] = variable

    def _value(self, s: Index | Scalar) -> str:
        if isinstance(s, Index):
            text = self.dim(s.expr)
            return text if s.dtype == torch.int64 else f"({C_TYPES[s.dtype]})({text})"
        return c_scalar(s.op, s.dtype, [self.texts[a] for a in s.args], [self.dtypes[a] for a in s.args])

    def _load(self, s: Load) -> str:
        if s.name in self.tiled:
            return c_read(self.tiled[s.name], s.dtype)
        other = c_const(s.other, s.dtype)
        if any(ex.as_sym(c).stop == 0 for c in s.index[1:]):  # type: ignore[union-attr]
            self.out.line("fault |= tc::INDEX_OUT_OF_RANGE;  // nothing can be read from an empty tensor")
            return other
        inside = self._mask(s) if s.mask else ""
        place = self._checked_offset(s, inside)
        read = c_read(f"{self.names.buffer(s.buffer)}[{place}]", s.dtype)
        return f"{inside} ? {read} : {other}" if inside else read

    def _mask(self, s: Load) -> str:
        inside = self.names.fresh(f"{s.name}_inside")
        self.out.line(f"const bool {inside} = {' & '.join(f'({self.dim(m)} >= 0)' for m in s.mask)};")
        return inside

    def _checked_offset(self, s: Load | Store, inside: str) -> str:
        """The offset, with every indirect index replaced by one that is known to be in range."""
        saved = dict(self.texts)
        for d in s.index[1:]:
            index = _checked(d)
            safe = self.texts.get(_ahead(index)) or self._check(index, inside)
            self.texts[index.name] = safe if self.dtypes[index.name] == torch.int64 else f"(int64_t){safe}"
        place = self.dim(s.index[0])
        self.texts = saved
        return place

    def _check(self, index: Sym, inside: str) -> str:
        """A variable that is the index, or 0 where that is out of range."""
        safe = self.names.fresh(f"{index.name}_in_range")
        check = f"tc::checked({self.symbol(index.name)}, {self.dim(0 if index.stop is None else index.stop)}, fault)"
        self.out.line(f"const int64_t {safe} = {f'{inside} ? {check} : 0' if inside else check};")
        return safe

    def check_ahead(self, s: Statement, fixed: Callable[[str], bool]) -> None:
        """Before a loop: check those of a statement's indices that are known and the same in all of it."""
        if not isinstance(s, (Load, Store)) or (isinstance(s, Load) and (s.mask or s.name in self.tiled)):
            return
        for index in map(_checked, s.index[1:]):
            if index.stop != 0 and self.has(index.name) and fixed(index.name) and not self.has(_ahead(index)):
                self.texts[_ahead(index)] = self._check(index, "")

    def may_fault(self, s: Statement) -> bool:
        """Whether a statement can set ``fault`` here."""
        if isinstance(s, (Load, Store)):
            return any(not self.has(_ahead(_checked(d))) for d in s.index[1:])
        return isinstance(s, Scalar) and op_may_fault(s.op, self.dtypes[s.args[-1]])

    def store(self, s: Store) -> None:
        """Write to memory."""
        self.comment(s)
        dtype = self.buffer_dtypes[s.buffer]
        if any(ex.as_sym(c).stop == 0 for c in s.index[1:]):  # type: ignore[union-attr]
            self.out.line("fault |= tc::INDEX_OUT_OF_RANGE;  // nothing can be written to an empty tensor")
            return
        target = f"{self.names.buffer(s.buffer)}[{self._checked_offset(s, '')}]"
        value = self.texts[s.value]
        if s.mode == "atomic_add":  # points that may meet here are one thread's
            value = self._sum_into(target, value, dtype, self.dtypes[s.value])
        else:
            value = c_cast(value, self.dtypes[s.value], dtype)
        self.out.line(f"{target} = {value};")

    def _sum_into(self, target: str, value: str, dtype: torch.dtype, value_dtype: torch.dtype) -> str:
        if dtype in NARROW:
            wide = torch.float32
            return c_cast(f"{c_cast(target, dtype, wide)} + {c_cast(value, value_dtype, wide)}", wide, dtype)
        if dtype == torch.bool:
            return f"{target} | {value}"
        return f"{target} + {value}" if dtype.is_floating_point else f"tc::add({target}, {value})"

    # --- the user's lines ---

    def comment(self, s: Statement) -> None:
        """The user's line that a statement comes from, once for a run of statements."""
        where = self.lines.get(s.origin)
        if where is None:
            return
        text = linecache.getline(where.file, where.line).strip()
        comment = f"{os.path.basename(where.file)}:{where.line}" + (f"  {text}" if text else "")
        if comment != self._last_comment:
            self._last_comment = comment
            self.out.line(f"// {comment}")

    def forget_comment(self) -> None:
        """A new block begins: say the line again."""
        self._last_comment = ""


def _checked(d: Dim) -> Sym:
    index = ex.as_sym(d)
    assert index is not None and index.stop is not None
    return index


def _ahead(index: Sym) -> str:
    """The key in ``texts`` of an index that was checked before a loop; no value has such a name."""
    return f"{index.name} < {index.stop}"


def used_symbols(dims: Iterator[Dim]) -> Iterator[str]:
    """The symbols in index expressions, in order of name within each."""
    for d in dims:
        yield from sorted(t.name for t in ex.symbols(d))
