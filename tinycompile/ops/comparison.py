"""Comparisons, logic, predicates and choices between values."""

from __future__ import annotations

import math
from typing import Any

import torch

from tinycompile.base.meta import TensorMeta
from tinycompile.ops import meta_rules as rules
from tinycompile.ops.calls import ops
from tinycompile.ops.declare import binary, declare, spelled, unary
from tinycompile.ops.outline import NotCoveredError
from tinycompile.ops.record import Decompose, Pointwise
from tinycompile.ops.samples import FLOATS, INTS, LAYOUTS, call, one, t, two
from tinycompile.ops.scalar import Builder, Value

ANY = (*FLOATS, *INTS, "bool")


def _compare(word: str) -> Any:
    return lambda b, x, y: b(word, x, y)


_HALF_NUMBERS = tuple(call(t(9, dtype=d, fill="special"), n) for d in ("float16", "bfloat16") for n in (0.1, 1e-8, 1e6, 1.0001))
_ALIASES = {"ne": "not_equal", "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal"}
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    _functions = spelled(_name, "tm", f"operator.{_name}", f"torch.Tensor.__{_name}__")
    if _name in _ALIASES:
        _functions += spelled(_ALIASES[_name])
    binary(_name, _compare(_name), "bool_out", _functions, lambda: [*two(ANY, fill="integers")(), *_HALF_NUMBERS])


# ------------------------------------------------------------------------------------------------------------------ logic


def _nonzero(b: Builder, x: Value) -> Value:
    return x if x.dtype == torch.bool else x.ne(0)


unary("logical_not", lambda b, x: ~_nonzero(b, x), "bool_out", spelled("logical_not"), one(ANY))
binary(
    "logical_and",
    lambda b, x, y: _nonzero(b, x) & _nonzero(b, y),
    "bool_out",
    spelled("logical_and"),
    two(ANY, fill="integers", number=None),
)
binary(
    "logical_or",
    lambda b, x, y: _nonzero(b, x) | _nonzero(b, y),
    "bool_out",
    spelled("logical_or"),
    two(ANY, fill="integers", number=None),
)
binary(
    "logical_xor",
    lambda b, x, y: _nonzero(b, x) ^ _nonzero(b, y),
    "bool_out",
    spelled("logical_xor"),
    two(ANY, fill="integers", number=None),
)


# -------------------------------------------------------------------------------------------------------------- predicates


def _false(b: Builder, x: Value) -> Value:
    return b("ne", x, x)


def _predicate(name: str) -> Any:
    """A word of the vocabulary; integers have no such values."""
    return lambda b, x: b(name, x) if x.dtype.is_floating_point else _false(b, x)


def _isfinite(b: Builder, x: Value) -> Value:
    return ~(b("isinf", x) | b("isnan", x)) if x.dtype.is_floating_point else b("eq", x, x)


def _infinite(sign: int) -> Any:
    return lambda b, x: x.eq(sign * float("inf")) if x.dtype.is_floating_point else _false(b, x)


def _signbit(b: Builder, x: Value) -> Value:
    if x.dtype.is_floating_point:
        return b("signbit", x)
    return _false(b, x) if x.dtype in (torch.bool, torch.uint8) else x < 0


def _known_for_integers(x: TensorMeta) -> TensorMeta:
    """Integers have no infinities: their answer is filled in. Floats: ``abs`` first, then a comparison with a number."""
    if not x.dtype.is_floating_point:
        return rules.empty_like(x, torch.bool)
    return rules.elementwise((rules.like(x), math.inf), torch.bool)


def _isfinite_meta(x: TensorMeta) -> TensorMeta:
    """As ``(x == x) * (abs(x) != inf)``, which is how torch spells it."""
    if not x.dtype.is_floating_point:
        return _known_for_integers(x)
    return rules.elementwise((rules.elementwise((x, x), torch.bool), _known_for_integers(x)), torch.bool)


unary("isnan", _predicate("isnan"), "bool_out", spelled("isnan"), one(ANY))
unary("isinf", _predicate("isinf"), "bool_out", spelled("isinf"), one(ANY), meta=_known_for_integers)
unary("isfinite", _isfinite, "bool_out", spelled("isfinite"), one(ANY), meta=_isfinite_meta)
unary("isposinf", _infinite(1), "bool_out", spelled("isposinf"), one(ANY))
unary("isneginf", _infinite(-1), "bool_out", spelled("isneginf"), one(ANY))
unary("signbit", _signbit, "bool_out", spelled("signbit"), one(ANY))


# ------------------------------------------------------------------------------------------------------- where, clamp, masks


def _where_meta(condition: TensorMeta, x: Any, other: Any) -> TensorMeta:
    if condition.dtype not in (torch.bool, torch.uint8):
        raise RuntimeError(
            f"where expected condition to be a boolean tensor, but got a tensor with dtype {rules.type_name(condition.dtype)}"
        )
    dtype = rules.result_type((x, other))
    cast = [rules.empty_like(o, dtype) if isinstance(o, TensorMeta) and o.dtype != dtype else o for o in (x, other)]
    return rules.elementwise((condition, *cast), dtype)


def _common(b: Builder, x: Value, y: Value) -> tuple[Value, Value]:
    dtype = rules.promote_types(x.dtype, y.dtype)
    return b.cast(x, dtype), b.cast(y, dtype)


def _where(b: Builder, condition: Value, x: Value, other: Value) -> Value:
    """The inputs keep their dtypes: promotion here, a narrower result dtype is the store's."""
    return b.where(_nonzero(b, condition), *_common(b, x, other))


def _masked_fill_meta(x: TensorMeta, mask: TensorMeta, value: Any) -> TensorMeta:
    if mask.dtype != torch.bool:
        raise RuntimeError(f"masked_fill_ only supports boolean masks, but got mask with dtype {mask.dtype}")
    if isinstance(value, TensorMeta):
        if value.shape:
            raise RuntimeError(
                f"masked_fill only supports a 0-dimensional value tensor, but got tensor with {value.rank} dimension(s)."
            )
        if value.dtype.is_floating_point and not x.dtype.is_floating_point and not x.dtype.is_complex:
            raise NotCoveredError("whether an integer can hold it depends on its value")
    else:
        rules.check_fits(value, x.dtype)
    return rules.fresh(rules.shapes.broadcast_shapes(x.shape, mask.shape), x.dtype, x.device)


def _masked_fill(b: Builder, x: Value, mask: Value, value: Value) -> Value:
    return b.where(mask, b.cast(value, x.dtype), x)


def _clamp_meta(x: TensorMeta, low: Any = None, high: Any = None) -> TensorMeta:
    if low is None and high is None:
        raise RuntimeError("torch.clamp: At least one of 'min' or 'max' must not be None")
    dtype = rules.result_type((x, low, high))
    if dtype == torch.bool and not _is_lone_tensor(low, high):
        numbers = "" if isinstance(low, TensorMeta) else "_scalar"
        side = "_max" if low is None else "_min" if high is None else ""
        raise NotImplementedError(f"\"clamp{side}{numbers}_cpu\" not implemented for 'Bool'")
    if not isinstance(low, TensorMeta) and not isinstance(high, TensorMeta):  # numbers make it a unary kernel, on a cast copy
        return rules.like(x if dtype == x.dtype else rules.empty_like(x, dtype), dtype)
    return rules.elementwise((x, low, high), dtype, dtype)


def _is_lone_tensor(low: Any, high: Any) -> bool:
    """Whether one bound is given, a tensor: then torch takes bools too."""
    return isinstance(high if low is None else low, TensorMeta) and (low is None or high is None)


def _greater(b: Builder, x: Value, y: Value) -> Value:
    return b("or" if x.dtype == torch.bool else "maximum", x, y)


def _lesser(b: Builder, x: Value, y: Value) -> Value:
    return b("and" if x.dtype == torch.bool else "minimum", x, y)


def _clamp(b: Builder, x: Value, min: Value | None = None, max: Value | None = None) -> Value:
    """NaN in any of the three wins, and ``max`` beats ``min``. Of two zeros ``x`` keeps its own: equals give the second."""
    if min is not None:
        x = _greater(b, min, x)
    return x if max is None else _lesser(b, max, x)


LONE_NAN_BOUNDS = bool(torch.zeros(()).clamp(math.nan).isnan())
"""Whether ``clamp(nan)`` gives NaN. Up to torch 2.11 a number that is NaN and the only bound is no bound."""


def _is_nan(bound: Any) -> bool:
    return isinstance(bound, float) and math.isnan(bound)


def bounds_as_torch_takes_them(low: Any, high: Any) -> tuple[Any, Any]:
    """The bounds for a record's ``clamp``, in which NaN wins, that give what this torch's gives."""
    if not LONE_NAN_BOUNDS and (low is None or high is None):
        return -math.inf if _is_nan(low) else low, math.inf if _is_nan(high) else high
    return low, high


def _clamp_eagerly(x: torch.Tensor, min: Any = None, max: Any = None) -> torch.Tensor:
    if max is None and _is_nan(min):
        return torch.clamp(x, min, math.inf)
    if min is None and _is_nan(max):
        return torch.clamp(x, -math.inf, max)
    return torch.clamp(x, min, max)


def _clamp_min(b: Builder, x: Value, min: Value) -> Value:
    return _greater(b, min, x)


def _clamp_max(b: Builder, x: Value, max: Value) -> Value:
    return _lesser(b, max, x)


declare(
    "where(Tensor condition, Tensor self, Tensor other) -> Tensor",
    _where_meta,
    Pointwise(_where, "none"),
    torch.where,
    spelled("where", "t"),
    lambda: [
        *(call(t(4, 5, dtype="bool"), t(4, 5, dtype=d), t(4, 5, dtype=d)) for d in ANY),
        call(t(4, 1, dtype="bool"), t(5), t(4, 5)),
        call(t(4, 5, dtype="bool"), t(4, 5), 0.0),
        call(t(4, 5, dtype="bool"), 1, t(4, 5)),
        call(t(4, 5, dtype="bool"), t(4, 5, dtype="float16"), t(dtype="float32")),
        call(t(4, 5, dtype="bool"), t(5, dtype="int32"), 0.5),
        call(t(4, 5, dtype="bool"), t(5, dtype="int32"), t(4, 5, dtype="float16")),
        call(t(4, dtype="bool"), 1.0, 0.0),
        call(t(4, dtype="bool"), 1, 0),
        call(t(dtype="bool"), t(), t()),
        call(t(0, dtype="bool"), t(0), t(1)),
        *(call(t(4, 6, dtype="bool", layout=lay), t(4, 6, layout=lay), t(4, 6)) for lay in LAYOUTS),
    ],
)
declare(
    "masked_fill(Tensor self, Tensor mask, Tensor value) -> Tensor",
    _masked_fill_meta,
    Pointwise(_masked_fill, "none"),
    torch.masked_fill,
    spelled("masked_fill"),
    lambda: [
        *(call(t(4, 5, dtype=d), t(4, 5, dtype="bool"), 1) for d in ANY),
        call(t(4, 5), t(5, dtype="bool"), float("-inf")),
        call(t(4, 5), t(4, 5, dtype="bool"), t()),
        call(t(5), t(4, 5, dtype="bool"), 2.0),
        call(t(4, 6, layout="transposed"), t(4, 6, dtype="bool"), 0.0),
        call(t(4, 6, layout="expanded"), t(4, 6, dtype="bool"), 0.0),
        call(t(4, 1), t(4, 5, dtype="bool"), 0.0),
        call(t(4, dtype="int8"), t(4, dtype="bool"), 200),
    ],
)
declare(
    "clamp(Tensor self, Tensor? min=None, Tensor? max=None) -> Tensor",
    _clamp_meta,
    Pointwise(_clamp),
    _clamp_eagerly,
    (*spelled("clamp"), *spelled("clip")),
    lambda: [
        *(call(t(4, 5, dtype=d, fill="integers" if d in INTS else "normal"), 0, 2) for d in (*FLOATS, *INTS)),
        call(t(9, fill="special"), -1.0, 1.0),
        call(t(9), None, 0.5),
        call(t(9), min=0.1),
        call(t(9), 1.0, -1.0),
        call(t(6, 4, layout="transposed"), 0),
        call(t(4, 5), t(5), t(4, 1)),
        call(t(4, 5), t(5)),
        *(call(t(*shape, dtype="int32"), 0.5) for shape in ((9,), (4, 5), (2, 3, 4), (2, 3, 4, 5))),
        call(t(3, 4, 5, dtype="bool"), 0, 1),
        call(t(9), float("nan")),
        call(t(6, fill="special"), t(6, fill="special")),
    ],
)
declare(
    "clamp_min(Tensor self, Tensor min) -> Tensor",
    _clamp_meta,
    Pointwise(_clamp_min),
    torch.clamp_min,
    spelled("clamp_min"),
    lambda: [
        *(call(t(4, 5), 0.0), call(t(4, 5), t(5)), call(t(9, fill="special"), 0.0), call(t(9, dtype="int32"), 1)),
        *(call(t(4, 5, dtype="bool"), t(5, dtype="bool")), call(t(5, dtype="bool"), True)),
        *(call(t(3, 4, 5, dtype=d), 0.5) for d in ("bool", "int8", "float16")),
    ],
)
declare(
    "clamp_max(Tensor self, Tensor max) -> Tensor",
    lambda x, high: _clamp_meta(x, None, high),
    Pointwise(_clamp_max),
    torch.clamp_max,
    spelled("clamp_max"),
    lambda: [
        *(call(t(4, 5), 0.0), call(t(4, 5), t(5)), call(t(9, fill="special"), 0.0), call(t(9, dtype="int32"), 1)),
        *(call(t(4, 5, dtype="bool"), t(5, dtype="bool")), call(t(5, dtype="bool"), True)),
    ],
)


# -------------------------------------------------------------------------------------------------------------- nan_to_num


def _nan_to_num(x: Any, nan: float | None = None, posinf: float | None = None, neginf: float | None = None) -> Any:
    if not x.dtype.is_floating_point:
        return ops.clone(x)
    info = torch.finfo(x.dtype)
    high, low = info.max if posinf is None else posinf, info.min if neginf is None else neginf
    return ops.replace_nonfinite(x, 0.0 if nan is None else nan, high, low)


declare(
    "nan_to_num(Tensor self, float? nan=None, float? posinf=None, float? neginf=None) -> Tensor",
    lambda x, nan=None, posinf=None, neginf=None: rules.empty_like(x),
    Decompose(_nan_to_num),
    torch.nan_to_num,
    spelled("nan_to_num"),
    lambda: [
        *(call(t(8, dtype=d, fill="special")) for d in FLOATS),
        call(t(8, fill="special"), 1.0, 2.0, 3.0),
        call(t(4, dtype="int32")),
    ],
)
