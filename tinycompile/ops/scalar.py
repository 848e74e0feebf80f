"""The vocabulary of scalar operations, and the builder against which formulas are written.

Op records state their scalar formulas with these words; the Loops IR stores them; each backend has one table that spells
them. A word means the same everywhere: the numpy function beside it is its definition (on arrays of the statement's dtype).

Dtype rules. All arguments of an op have one dtype (``where`` excepted: bool, then two of one dtype) and the result has that
dtype, or bool for comparisons and predicates. Half types never occur in arithmetic: values are cast to float32 first.
Narrow integers compute in their own dtype and wrap. ``cast`` is the only change of dtype and casts as torch's ``.to()`` does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Union

import numpy as np
import torch

from tinycompile.base.expr import Dim
from tinycompile.base.meta import TensorMeta

Number = Union[bool, int, float]


@dataclass(frozen=True, slots=True)
class ScalarOp:
    """``domain``: which dtypes it takes: ``f`` float, ``i`` integer, ``b`` bool. ``predicate``: the result is bool."""

    name: str
    arity: int
    domain: str
    numpy: Callable[..., Any]
    predicate: bool = False


def _c_div(a: Any, b: Any) -> Any:
    return np.trunc(np.true_divide(a, b)) if a.dtype.kind == "f" else (a - np.fmod(a, b)) // b


def power(a: Any, b: Any) -> Any:
    """numpy's power as C's pow: numpy takes square roots where one exponent serves all elements, and those differ at -inf."""
    shape = np.broadcast_shapes(np.shape(a), np.shape(b))
    return np.power(np.atleast_1d(a), np.array(np.broadcast_to(b, shape or (1,)), order="C")).reshape(shape)


def _erf(x: Any) -> Any:
    return torch.erf(torch.from_numpy(np.ascontiguousarray(x))).numpy().reshape(np.shape(x))


def _via_torch(fn: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Any], Any]:
    return lambda x: fn(torch.from_numpy(np.ascontiguousarray(x))).numpy().reshape(np.shape(x))


def _philox(seed: Any, counter: Any) -> Any:
    """Philox4x32-10 (Salmon et al., 2011): word 0 of the block that a 64-bit counter has under a 64-bit key."""
    low = np.uint64(0xFFFFFFFF)
    shift = np.uint64(32)
    seed, counter = np.asarray(seed).astype(np.uint64), np.asarray(counter).astype(np.uint64)
    k0, k1, c0, c1 = seed & low, seed >> shift, counter & low, counter >> shift
    c2 = c3 = np.zeros_like(c0)
    for _ in range(10):
        a, b = c0 * np.uint64(0xD2511F53), c2 * np.uint64(0xCD9E8D57)
        c0, c1, c2, c3 = (b >> shift) ^ c1 ^ k0, b & low, (a >> shift) ^ c3 ^ k1, a & low
        k0, k1 = (k0 + np.uint64(0x9E3779B9)) & low, (k1 + np.uint64(0xBB67AE85)) & low
    return c0.astype(np.int64)


def _checked(inside: Any) -> Any:
    if not np.all(inside):
        raise IndexError("index out of range in self")
    return inside


_ALL = (
    # arithmetic
    ScalarOp("add", 2, "fi", np.add),
    ScalarOp("sub", 2, "fi", np.subtract),
    ScalarOp("mul", 2, "fi", np.multiply),
    ScalarOp("neg", 1, "fi", np.negative),
    ScalarOp("abs", 1, "fi", np.abs),
    ScalarOp("div", 2, "f", np.true_divide),
    ScalarOp("floordiv", 2, "i", np.floor_divide),  # towards minus infinity; integers only: floats are floor(div) by formula
    ScalarOp("truncdiv", 2, "i", _c_div),  # towards zero, as C
    ScalarOp("mod", 2, "i", np.mod),  # sign of the divisor, as Python and torch.remainder
    ScalarOp("fmod", 2, "fi", np.fmod),  # sign of the dividend, as C
    ScalarOp("pow", 2, "f", power),
    ScalarOp("fma", 3, "f", lambda a, b, c: a * b + c),  # one rounding where the target has it
    # of equals the second, which shows in zeros; NaN if either is NaN
    ScalarOp("minimum", 2, "fi", lambda a, b: np.where((a < b) | (a != a), a, b)),
    ScalarOp("maximum", 2, "fi", lambda a, b: np.where((a > b) | (a != a), a, b)),
    ScalarOp("fmin", 2, "f", lambda a, b: np.where((a < b) | (b != b), a, b)),  # the other if one is NaN
    ScalarOp("fmax", 2, "f", lambda a, b: np.where((a > b) | (b != b), a, b)),
    ScalarOp("sqrt", 1, "f", np.sqrt),
    ScalarOp("rsqrt", 1, "f", lambda x: 1 / np.sqrt(x)),
    ScalarOp("reciprocal", 1, "f", np.reciprocal),
    # rounding
    ScalarOp("floor", 1, "f", np.floor),
    ScalarOp("ceil", 1, "f", np.ceil),
    ScalarOp("trunc", 1, "f", np.trunc),
    ScalarOp("round", 1, "f", np.round),  # half to even
    # transcendental
    ScalarOp("exp", 1, "f", np.exp),
    ScalarOp("exp2", 1, "f", np.exp2),
    ScalarOp("expm1", 1, "f", np.expm1),
    ScalarOp("log", 1, "f", np.log),
    ScalarOp("log2", 1, "f", np.log2),
    ScalarOp("log10", 1, "f", np.log10),
    ScalarOp("log1p", 1, "f", np.log1p),
    ScalarOp("sin", 1, "f", np.sin),
    ScalarOp("cos", 1, "f", np.cos),
    ScalarOp("tan", 1, "f", np.tan),
    ScalarOp("asin", 1, "f", np.arcsin),
    ScalarOp("acos", 1, "f", np.arccos),
    ScalarOp("atan", 1, "f", np.arctan),
    ScalarOp("atan2", 2, "f", np.arctan2),
    ScalarOp("sinh", 1, "f", np.sinh),
    ScalarOp("cosh", 1, "f", np.cosh),
    ScalarOp("tanh", 1, "f", np.tanh),
    ScalarOp("asinh", 1, "f", np.arcsinh),
    ScalarOp("acosh", 1, "f", np.arccosh),
    ScalarOp("atanh", 1, "f", np.arctanh),
    ScalarOp("sigmoid", 1, "f", _via_torch(torch.sigmoid)),
    ScalarOp("erf", 1, "f", _erf),
    ScalarOp("erfc", 1, "f", _via_torch(torch.erfc)),
    ScalarOp("lgamma", 1, "f", _via_torch(torch.lgamma)),
    # comparison: false for NaN, except ne
    ScalarOp("eq", 2, "fib", np.equal, predicate=True),
    ScalarOp("ne", 2, "fib", np.not_equal, predicate=True),
    ScalarOp("lt", 2, "fib", np.less, predicate=True),
    ScalarOp("le", 2, "fib", np.less_equal, predicate=True),
    ScalarOp("gt", 2, "fib", np.greater, predicate=True),
    ScalarOp("ge", 2, "fib", np.greater_equal, predicate=True),
    ScalarOp("isnan", 1, "f", np.isnan, predicate=True),
    ScalarOp("isinf", 1, "f", np.isinf, predicate=True),
    ScalarOp("signbit", 1, "f", np.signbit, predicate=True),
    # bitwise on integers, logical on bools
    ScalarOp("and", 2, "ib", np.bitwise_and),
    ScalarOp("or", 2, "ib", np.bitwise_or),
    ScalarOp("xor", 2, "ib", np.bitwise_xor),
    ScalarOp("not", 1, "ib", np.invert),
    ScalarOp("shl", 2, "i", np.left_shift),  # the count is in [0, bits): formulas handle the rest as torch does
    ScalarOp("shr", 2, "i", np.right_shift),  # arithmetic on signed
    # an index is inside its dimension, or torch must say what is wrong with it
    ScalarOp("checked", 1, "b", _checked),
    # random bits: of a key and a counter (int64), 32 bits
    ScalarOp("philox", 2, "i", _philox),
    # choice
    ScalarOp("where", 3, "fib", np.where),
    ScalarOp("cast", 1, "fib", lambda x: x),  # the statement's dtype is the target
)
SCALAR_OPS: dict[str, ScalarOp] = {op.name: op for op in _ALL}

# Reductions: kind -> number of values. ``argmax``/``argmin`` return an int64 index along the flattened reduction axes, the
# first among equals, NaN winning. ``welford`` returns (mean, m2) where m2 is the sum of squared deviations; the count is known
# from the extents. ``online_softmax`` returns (max, sum of exp(x - max)), both 0-sum-safe for rows of -inf.
REDUCTIONS: dict[str, int] = {
    "sum": 1, "prod": 1, "max": 1, "min": 1, "any": 1, "all": 1, "argmax": 1, "argmin": 1, "welford": 2, "online_softmax": 2,
}  # fmt: skip
SCANS: dict[str, int] = {"sum": 1, "prod": 1, "max": 1, "min": 1}


class Value:
    """A handle on a scalar value inside a formula. Operators build ops; Python numbers become constants of its dtype."""

    __slots__ = ("builder", "dtype", "name")

    def __init__(self, builder: Builder, name: str, dtype: torch.dtype) -> None:
        self.builder, self.name, self.dtype = builder, name, dtype

    def _bin(self, op: str, other: Value | Number, swap: bool = False) -> Value:
        rhs = other if isinstance(other, Value) else self.builder.const(other, self.dtype)
        return self.builder(op, rhs, self) if swap else self.builder(op, self, rhs)

    def __add__(self, o: Value | Number) -> Value:
        return self._bin("add", o)

    def __radd__(self, o: Number) -> Value:
        return self._bin("add", o, swap=True)

    def __sub__(self, o: Value | Number) -> Value:
        return self._bin("sub", o)

    def __rsub__(self, o: Number) -> Value:
        return self._bin("sub", o, swap=True)

    def __mul__(self, o: Value | Number) -> Value:
        return self._bin("mul", o)

    def __rmul__(self, o: Number) -> Value:
        return self._bin("mul", o, swap=True)

    def __truediv__(self, o: Value | Number) -> Value:
        return self._bin("div", o)

    def __rtruediv__(self, o: Number) -> Value:
        return self._bin("div", o, swap=True)

    def __neg__(self) -> Value:
        return self.builder("neg", self)

    def __and__(self, o: Value | Number) -> Value:
        return self._bin("and", o)

    def __or__(self, o: Value | Number) -> Value:
        return self._bin("or", o)

    def __xor__(self, o: Value | Number) -> Value:
        return self._bin("xor", o)

    def __invert__(self) -> Value:
        return self.builder("not", self)

    def __lt__(self, o: Value | Number) -> Value:
        return self._bin("lt", o)

    def __le__(self, o: Value | Number) -> Value:
        return self._bin("le", o)

    def __gt__(self, o: Value | Number) -> Value:
        return self._bin("gt", o)

    def __ge__(self, o: Value | Number) -> Value:
        return self._bin("ge", o)

    def eq(self, o: Value | Number) -> Value:
        return self._bin("eq", o)

    def ne(self, o: Value | Number) -> Value:
        return self._bin("ne", o)


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor argument inside an ``Indexed`` formula; ``handle`` is the builder's own. Read it with ``Builder.load``."""

    meta: TensorMeta
    handle: Any


class Builder(ABC):
    """What formulas are written against: lowering emits Loops with it, tests evaluate with it."""

    def __call__(self, op: str, *args: Value, dtype: torch.dtype | None = None) -> Value:
        """Apply a scalar op of the vocabulary. ``dtype`` only for ``cast``."""
        spec = SCALAR_OPS[op]
        if len(args) != spec.arity:
            raise TypeError(f"{op} takes {spec.arity} arguments, got {len(args)}")
        if op == "cast":
            assert dtype is not None
            return args[0] if args[0].dtype == dtype else self.emit(op, args, dtype)
        data = args[1:] if op == "where" else args
        if any(a.dtype != data[0].dtype for a in data):
            raise TypeError(f"{op} needs one dtype, got {[str(a.dtype) for a in data]}")
        return self.emit(op, args, torch.bool if spec.predicate else data[0].dtype)

    def cast(self, value: Value, dtype: torch.dtype) -> Value:
        """Convert as torch's ``.to(dtype)`` does; nothing when the dtype is right already."""
        return self("cast", value, dtype=dtype)

    def where(self, cond: Value, a: Value | Number, b: Value | Number) -> Value:
        """``a`` where ``cond``, else ``b``; at least one is a Value."""
        dtype = a.dtype if isinstance(a, Value) else b.dtype  # type: ignore[union-attr]
        return self("where", cond, *(v if isinstance(v, Value) else self.const(v, dtype) for v in (a, b)))

    def in_range(self, index: Value, size: Dim) -> Value:
        """True: an index in ``[0, size)``. At run time any other is an error, whatever is made of it."""
        wide = self.cast(index, torch.int64)
        return self("checked", (wide >= 0) & (wide < self.const(size, torch.int64)))

    @abstractmethod
    def emit(self, op: str, args: Sequence[Value], dtype: torch.dtype) -> Value:
        """Append one checked scalar op."""

    @abstractmethod
    def const(self, value: Number | Dim, dtype: torch.dtype) -> Value:
        """A constant of ``dtype`` (never a half type), or a symbolic size."""

    @abstractmethod
    def index(self, value: Dim, dtype: torch.dtype = torch.int64) -> Value:
        """An index expression (over the output coordinates) as a value."""

    @abstractmethod
    def as_index(self, value: Value, size: Dim) -> Dim:
        """An integer value as a symbol in ``[0, size)`` for use in coordinates: bounds-checked where it is read at."""

    @abstractmethod
    def load(self, operand: Operand, coords: Sequence[Dim], mask: Sequence[Dim] = (), other: Number = 0) -> Value:
        """The element of ``operand`` at ``coords`` (one per dim), in its own dtype. It is read only where every ``mask``
        expression is ``>= 0``; elsewhere the value is ``other``."""
