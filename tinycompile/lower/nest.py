"""``NestBuilder``: formulas written against it become the body of one nest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tinycompile.base import expr as ex
from tinycompile.base.atoms import Sym
from tinycompile.base.dtypes import NARROW
from tinycompile.base.expr import Dim, Expr, as_sym
from tinycompile.ir import loops as ir
from tinycompile.ir.constants import fold_constants
from tinycompile.lower.values import TensorValue, grid
from tinycompile.ops.scalar import Builder, Number, Operand, Value


class NestBuilder(Builder):
    """One nest in the making, for one graph node. ``coords`` has an entry a dim of ``shape``: its axis, or 0 for a size of 1.

    Equal statements are made once. Half values are widened before arithmetic. ``name_of`` hands out names that are unique in
    the whole program; ``buffer_of`` gives the buffer of a tensor as this nest's device can read it.
    """

    def __init__(
        self, origin: str, shape: tuple[Dim, ...], name_of: Callable[[str], str], buffer_of: Callable[[TensorValue], str]
    ) -> None:
        self.origin, self.coords = origin, grid(shape)
        self.axes = {s.name: size for c, size in zip(self.coords, shape, strict=True) if (s := as_sym(c)) is not None}
        self.body: list[ir.Statement] = []
        self._name_of, self._buffer_of = name_of, buffer_of
        self._made: dict[tuple[Any, ...], Value] = {}
        self._indices: set[str] = set()

    # --- the vocabulary ---

    def __call__(self, op: str, *args: Value, dtype: torch.dtype | None = None) -> Value:
        if op != "cast":
            args = tuple(self.widen(a) for a in args)
        return super().__call__(op, *args, dtype=dtype)

    def emit(self, op: str, args: Sequence[Value], dtype: torch.dtype) -> Value:
        names = tuple(a.name for a in args)
        return self._once(
            (op, names, dtype), f"{self.origin}_{op}", dtype, lambda name: ir.Scalar(name, dtype, op, names, self.origin)
        )

    def const(self, value: Number | Dim, dtype: torch.dtype) -> Value:
        if dtype in NARROW:
            value = value if isinstance(value, Expr) else torch.tensor(value, dtype=dtype, device="cpu").item()
            dtype = torch.float32
        number = value if isinstance(value, Expr) else _as_dtype(value, dtype)
        key = ("const", repr(number), dtype)  # repr tells -0.0 from 0.0 and True from 1
        return self._once(key, f"{self.origin}_c", dtype, lambda name: ir.Const(name, dtype, number, self.origin))

    def index(self, value: Dim, dtype: torch.dtype = torch.int64) -> Value:
        if isinstance(value, int) or not any(s.name in self.axes or s.name in self._indices for s in ex.symbols(value)):
            return self.const(value, dtype)
        key = ("index", value, dtype)
        return self._once(key, f"{self.origin}_at", dtype, lambda name: ir.Index(name, dtype, value, self.origin))

    def as_index(self, value: Value, size: Dim) -> Dim:
        name = self.cast(value, torch.int64).name
        self._indices.add(name)
        return ex.sym(name, 0, size)

    def load(self, operand: Operand, coords: Sequence[Dim], mask: Sequence[Dim] = (), other: Number = 0) -> Value:
        return self.read(operand.handle, tuple(coords), tuple(mask), other)

    # --- more than formulas need ---

    def read(self, tensor: TensorValue, coords: Sequence[Dim], mask: tuple[Dim, ...] = (), other: Number = 0) -> Value:
        """The element of a graph tensor at coordinates of that tensor, in its own dtype."""
        dtype = tensor.meta.dtype
        where = tensor.coords(coords)
        buffer = self._buffer_of(tensor)
        mask = tuple(m for m in mask if not ex.at_least(m, 0))
        fill = _as_dtype(other, torch.float32 if dtype in NARROW else dtype) if mask else 0
        found = self._once(
            ("load", buffer, where, mask, repr(fill)),
            buffer,
            dtype,
            lambda name: ir.Load(name, dtype, buffer, where, mask, fill, self.origin),
        )
        return self._where_in_range(found, self._unread(coords, where))

    def _unread(self, coords: Sequence[Dim], where: Sequence[Dim]) -> list[Sym]:
        """The indices among a tensor's coordinates that its memory has no dim for (an expanded one): no load checks them."""
        read = {s for d in where for s in ex.symbols(d)}
        lost = {s for d in coords for s in ex.symbols(d) if s.name in self._indices} - read
        return sorted(lost, key=lambda s: s.name)

    def _where_in_range(self, value: Value, indices: Sequence[Sym]) -> Value:
        """``value`` where all the indices are in range, which is checked."""
        found = value
        for s in indices:
            assert s.stop is not None
            inside = self.in_range(Value(self, s.name, torch.int64), s.stop)
            found = self.where(inside, self.widen(found), 0)
        return self.cast(found, value.dtype)

    def widen(self, value: Value) -> Value:
        """Half and float8 values as float32, others as they are."""
        return self.cast(value, torch.float32) if value.dtype in NARROW else value

    def broadcast_coords(self, rank: int, shape: Sequence[Dim]) -> tuple[Dim, ...]:
        """This nest's coordinates for a tensor of ``shape`` that broadcasts to its ``rank`` dims."""
        lead = rank - len(shape)
        return tuple(0 if isinstance(n, int) and n == 1 else c for c, n in zip(self.coords[lead:], shape, strict=True))

    def reduce(self, kind: str, value: Value, axes: tuple[str, ...], dtypes: tuple[torch.dtype, ...]) -> tuple[Value, ...]:
        """Reduce over axes of the nest."""
        names = tuple(self._name_of(f"{self.origin}_{word}") for word in _PARTS.get(kind, (kind,)))
        self.body.append(ir.Reduce(names, dtypes, kind, (value.name,), axes, self.origin))
        return tuple(Value(self, name, dtype) for name, dtype in zip(names, dtypes, strict=True))

    def scan(self, kind: str, value: Value, along: str) -> Value:
        """Inclusive scan along an axis of the nest."""
        name = self._name_of(f"{self.origin}_{kind}")
        self.body.append(ir.Scan((name,), (value.dtype,), kind, (value.name,), along, self.origin))
        return Value(self, name, value.dtype)

    def store(
        self, buffer: str, dtype: torch.dtype, coords: tuple[Dim, ...], value: Value, name: str, mode: str = "plain"
    ) -> None:
        """Write a result. A value made just before takes ``name``, the graph's name for it, when it is free to."""
        if value.dtype != dtype and not (dtype in NARROW and value.dtype == torch.float32):
            value = self.cast(value, dtype)
        self._rename_last(value, name)
        self.body.append(ir.Store(buffer, coords, value.name, mode, self.origin))

    def finish(self, name: str) -> ir.Nest:
        """The nest, with constants folded and without statements that a formula made in vain."""
        body = _live(fold_constants(self.body))
        reduced = {a for s in body if isinstance(s, ir.Reduce) for a in s.axes} | {
            s.axis for s in body if isinstance(s, ir.Scan)
        }
        axes = tuple(ir.Axis(a, n, "reduction" if a in reduced else "parallel") for a, n in self.axes.items())
        return ir.Nest(name, axes, body, (self.origin,))

    def _once(self, key: tuple[Any, ...], hint: str, dtype: torch.dtype, make: Callable[[str], ir.Statement]) -> Value:
        made = self._made.get(key)
        if made is None:
            name = self._name_of(hint)
            self.body.append(make(name))
            made = self._made[key] = Value(self, name, dtype)
        return made

    def _rename_last(self, value: Value, name: str) -> None:
        last = self.body[-1] if self.body else None
        if isinstance(last, ir.Scalar) and last.name == value.name:
            value.name = name
            self.body[-1] = ir.Scalar(name, last.dtype, last.op, last.args, last.origin)


def _live(body: list[ir.Statement]) -> tuple[ir.Statement, ...]:
    """The statements that stores need."""
    used: set[str] = set()
    kept: list[ir.Statement] = []
    for s in reversed(body):
        if isinstance(s, ir.Store):
            used.add(s.value)
            dims: tuple[Dim, ...] = s.index
        elif isinstance(s, (ir.Reduce, ir.Scan)):
            if used.isdisjoint(s.names):
                continue
            used.update(s.args)
            dims = ()
        elif s.name not in used:
            continue
        else:
            used.update(s.args if isinstance(s, ir.Scalar) else ())
            dims = (*s.index, *s.mask) if isinstance(s, ir.Load) else (s.expr,) if isinstance(s, ir.Index) else ()
        used.update(t.name for d in dims for t in ex.symbols(d))
        kept.append(s)
    return tuple(reversed(kept))


_PARTS = {"welford": ("mean", "m2"), "online_softmax": ("max", "sum")}


def _as_dtype(value: Any, dtype: torch.dtype) -> Any:
    """A number as a literal of a dtype; integers wrap."""
    if isinstance(value, Expr):
        return value
    if dtype == torch.bool:
        return bool(value)
    if dtype.is_floating_point:
        return float(value)
    info = torch.iinfo(dtype)
    return (int(value) - info.min) % (info.max - info.min + 1) + info.min
