"""Numbers that change from call to call, as inputs: how they are guarded, and torch calls that take them.

Such a number enters the graph as a tensor of no dims and dtype float64 or int64. Torch treats numbers and such tensors
differently when it chooses the result's dtype and the precision, so each call is written out: operands are cast to the dtype
in which torch computes with a number (float32 for half types), and the result to the dtype that torch gives with a number."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from tinycompile.base.device import Device
from tinycompile.base.meta import TensorMeta
from tinycompile.capture import torch_calls
from tinycompile.capture.sources import Computed, Source
from tinycompile.capture.values import scalar
from tinycompile.capture.values.base import Kwargs, Value
from tinycompile.capture.values.constant import NONE, Const
from tinycompile.capture.values.scalar import ScalarValue
from tinycompile.capture.values.sequence import TupleValue
from tinycompile.capture.values.symbolic import SymInt
from tinycompile.capture.values.tensor import TensorValue
from tinycompile.ops import ranges
from tinycompile.ops.in_place import names_a_write

if TYPE_CHECKING:
    from tinycompile.capture.tracer import Tracer

# Ints outside this range are no sizes.
SIZES = range(2, 2**31)
_HALVES = (torch.float16, torch.bfloat16)


def scalar_tensor(value: float, device: torch.device) -> torch.Tensor:
    """The input of a graph that stands for a number: float64 or int64, no dims."""
    return torch.full((), value, dtype=torch.float64 if type(value) is float else torch.int64, device=device)


def from_outside(tr: Tracer, obj: float, source: Source) -> ScalarValue:
    """A number of any value is guarded to be a number of its type."""
    name = tr.guards.names.take(f"n{len(tr.scalars)}")
    kind = tr.guards.hold(type(obj), f"{type(obj).__name__}_").name
    tr.guards.check(f"_type({name} := {source.text}) is {kind}", f"{source.label} is a number, {name}")
    tr.scalars[name] = source
    tr.constants_seen[source.text] = obj
    return ScalarValue(name, obj, frozenset((name,)), source)


def as_tensor(tr: Tracer, value: ScalarValue, dtype: torch.dtype, device: Device) -> TensorValue:
    """The number, which is guarded to be one of torch's, as a tensor of the graph; one input for each expression and device."""
    found = tr.scalar_inputs.get((value.text, device))
    if found is None:
        make, where = tr.guards.hold(scalar_tensor, "scalar_tensor").name, tr.guards.hold(device.torch(), "device_").name
        made = scalar_tensor(value.value, device.torch())
        is_torchs(tr, value)
        meta = TensorMeta((), (), made.dtype, device)
        source = Computed(f"{make}({value.text}, {where})")
        found = tr.add_computed(source, made, meta, value.names)
        tr.scalar_inputs[value.text, device] = found
    return _to(tr, found, dtype)


def is_torchs(tr: Tracer, value: ScalarValue) -> bool:
    """Whether torch takes a number, which is guarded: of ints those of 64 bits."""
    if type(value.value) is float:
        return True
    if value.value not in ranges.INT64:
        return False
    low, end = ranges.INT64.start, ranges.INT64.stop
    tr.guards.late_check(f"{low} <= {value.text} < {end}", f"{value.text} is a number of {torch.int64}")
    return True


def _to(tr: Tracer, t: TensorValue, dtype: torch.dtype) -> TensorValue:
    made = torch_calls.call_method(tr, t, "to", [Const(dtype)], {})
    assert isinstance(made, TensorValue)
    return made


# --- calls --------------------------------------------------------------------------------------------------

_OPERATORS = {
    "add": "+", "sub": "-", "subtract": "-", "mul": "*", "multiply": "*", "truediv": "/", "true_divide": "/", "div": "/",
    "divide": "/", "floordiv": "//", "floor_divide": "//", "mod": "%", "remainder": "%", "pow": "**",
    "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!=",
    "less": "<", "less_equal": "<=", "greater": ">", "greater_equal": ">=", "not_equal": "!=",
}  # fmt: skip


def call(tr: Tracer, name: str, args: Sequence[Value], kwargs: Kwargs) -> Value | None:
    """A torch call with changing numbers among its arguments; None where it is compiled for the numbers of this call.

    ``name``: of the function or method, ``__iadd__`` and ``add_`` too."""
    inplace = name.startswith("__i") and name.endswith("__") and name != "__invert__"
    plain = name[3:-2] if inplace else name.strip("_")
    inplace = inplace or names_a_write(name)
    if name.startswith("__r") and name.endswith("__") and name[3:-2] in _OPERATORS:
        plain, args = name[3:-2], [args[1], args[0]]
    if plain == "rsub" and len(args) == 2:
        plain, args = "sub", [args[1], args[0]]
    changing = (ScalarValue, SymInt) if plain == "pow" else ScalarValue
    given = (*args, *kwargs.values())
    if not any(isinstance(v, changing) for v in given):
        return None
    if any(isinstance(v, ScalarValue) and type(v.value) is int and v.value not in ranges.INT64 for v in given):
        return None
    rule = _RULES.get(plain)
    if rule is None and plain in _OPERATORS and len(args) == 2:
        return _written(tr, args[0], inplace, lambda: _operator(tr, _OPERATORS[plain], args, kwargs), kwargs)
    if rule is None:
        return None
    return _written(tr, args[0], inplace, lambda: rule(tr, args, kwargs), None)


def _written(tr: Tracer, target: Value, inplace: bool, make: Callable[[], Value | None], kwargs: Kwargs | None) -> Value | None:
    if not inplace:
        return make()
    if not isinstance(target, TensorValue) or (kwargs and set(kwargs) - {"alpha"}):
        return None
    made = make()
    return None if made is None else tr.write(target, lambda: made)


def _dtypes(tensors: Sequence[TensorValue], scalars: Sequence[ScalarValue]) -> tuple[torch.dtype, torch.dtype]:
    """The result's dtype, as torch has it for tensors and numbers, and the dtype to compute in."""
    like: Any = None
    for t in tensors:
        other = torch.empty([1] * t.meta.rank, dtype=t.meta.dtype)
        if like is not None:
            other = torch.empty([1] * max(like.ndim, other.ndim), dtype=torch.result_type(like, other))
        like = other
    number = next((s.value for s in scalars if type(s.value) is float), scalars[0].value)
    dtype = torch.result_type(like, number)
    return dtype, torch.float32 if dtype in _HALVES else dtype


def is_held(tr: Tracer, value: Value, dtype: torch.dtype) -> bool:
    """Whether a dtype holds a number, which is guarded: torch refuses others. False: compile for the number of this call."""
    if not isinstance(value, ScalarValue) or dtype == torch.float64:
        return True
    ends = ranges.bounds(dtype)
    if ends is None or not ranges.holds(dtype, value.value):
        return ends is None
    low, high = ends
    # infinities and NaN are numbers of all float dtypes
    outside = f"{high!r} < abs({value.text}) <= {sys.float_info.max!r}" if dtype.is_floating_point else ""
    tr.guards.late_check(
        f"not {outside}" if outside else f"{low} <= {value.text} <= {high}", f"{value.text} is a number of {dtype}"
    )
    return True


def _cast(tr: Tracer, values: Sequence[Value], compute: torch.dtype, device: Device) -> list[Value]:
    made: list[Value] = []
    for v in values:
        if isinstance(v, ScalarValue):
            made.append(as_tensor(tr, v, compute, device))
        else:
            made.append(_to(tr, v, compute) if isinstance(v, TensorValue) else v)
    return made


def _computed(
    tr: Tracer,
    values: Sequence[Value],
    fn: Callable[..., Value],
    exact: torch.dtype | None = None,
    rounded: bool = False,
    free: bool = False,
) -> Value | None:
    """``fn`` on operands cast to the dtype of computation; the result is cast back. ``exact``: the result's dtype. ``rounded``:
    torch rounds the number to the result's dtype first. ``free``: torch takes a number that the result's dtype can't hold."""
    tensors = [v for v in values if isinstance(v, TensorValue)]
    if not tensors or any(t.meta.dtype.is_complex for t in tensors):
        return None
    result, compute = _dtypes(tensors, [v for v in values if isinstance(v, ScalarValue)])
    if exact is not None:
        result = exact
        compute = torch.float32 if exact in _HALVES else exact
    if not free and not all(is_held(tr, v, result) for v in values):
        return None
    if rounded:
        compute = result
    made = fn(*_cast(tr, values, compute, tensors[0].meta.device))
    assert isinstance(made, TensorValue)
    return _to(tr, made, result) if made.meta.dtype == compute != result else made


def _operator(tr: Tracer, symbol: str, args: Sequence[Value], kwargs: Kwargs) -> Value | None:
    alpha = kwargs.get("alpha")
    if set(kwargs) - {"alpha"} or (alpha is not None and symbol not in "+-"):
        return None
    if alpha is not None:
        a, b = args
        if not isinstance(b, TensorValue) or not _floating(args):
            return None
        return _computed(tr, [a, b, alpha], lambda x, y, s: tr.binary(symbol, x, tr.binary("*", y, s)))
    if symbol in ("<", "<=", ">", ">=", "==", "!="):
        return _computed(tr, args, lambda x, y: tr.compare(symbol, x, y), free=True)
    return _computed(
        tr, args, lambda x, y: tr.binary(symbol, x, y), rounded=symbol in ("%", "//"), free=symbol in ("+", "-", "*", "/")
    )


def _pow(tr: Tracer, args: Sequence[Value], kwargs: Kwargs) -> Value | None:
    """An int as exponent, of a size too. A negative power of ints is an error, which torch tells by the number."""
    given = [*args, *([kwargs["exponent"]] if "exponent" in kwargs else [])]
    if len(given) != 2 or set(kwargs) - {"exponent"}:
        return None
    base, number = given[0], scalar.changing(tr, given[1])
    if number is None or type(number.value) is float or not isinstance(base, TensorValue):
        return _operator(tr, "**", given, {}) if any(isinstance(v, ScalarValue) for v in given) else None
    if _floating([base]):
        return _computed(tr, [base, number], lambda x, y: tr.binary("**", x, y))
    return torch_calls.call_torch(tr, torch.pow, [base, Const(number.constant(tr))], {})


def _floating(args: Sequence[Value]) -> bool:
    return all(t.meta.dtype.is_floating_point for t in args if isinstance(t, TensorValue))


def _lerp(tr: Tracer, args: Sequence[Value], kwargs: Kwargs) -> Value | None:
    if len(args) + len(kwargs) != 3 or not isinstance(args[0], TensorValue):
        return None
    weight = kwargs.get("weight", args[2] if len(args) == 3 else None)
    if not isinstance(weight, ScalarValue) or len(args) < 2 or not _floating(args):
        return None
    return _computed(
        tr,
        [args[0], args[1], weight],
        lambda x, y, w: torch_calls.call_torch(tr, torch.lerp, [x, y, w], {}),
        args[0].meta.dtype,
    )


def _scaled(symbol: str) -> Callable[[Tracer, Sequence[Value], Kwargs], Value | None]:
    """addcmul and addcdiv: ``x + value * (a * b)``, ``x + value * (a / b)``."""

    def rule(tr: Tracer, args: Sequence[Value], kwargs: Kwargs) -> Value | None:
        value = kwargs.get("value")
        if len(args) != 3 or set(kwargs) != {"value"} or not isinstance(value, ScalarValue) or not _floating(args):
            return None
        return _computed(tr, [*args, value], lambda x, a, b, s: tr.binary("+", x, tr.binary("*", s, tr.binary(symbol, a, b))))

    return rule


def _clamp(tr: Tracer, args: Sequence[Value], kwargs: Kwargs) -> Value | None:
    low = kwargs.get("min", args[1] if len(args) > 1 else None)
    high = kwargs.get("max", args[2] if len(args) > 2 else None)
    bounds = {
        k: v for k, v in (("min", low), ("max", high)) if v is not None and not (isinstance(v, Const) and v.value is None)
    }
    given = [v if isinstance(v, ScalarValue) else scalar.fixed(tr, v) for v in bounds.values()]
    numbers = [v for v in given if v is not None]
    if not isinstance(args[0], TensorValue) or len(numbers) < len(bounds):
        return None
    names = list(bounds)
    return _computed(
        tr,
        [args[0], *numbers],
        lambda x, *limits: torch_calls.call_torch(tr, torch.clamp, [x], dict(zip(names, limits, strict=True))),
    )


def _where(tr: Tracer, args: Sequence[Value], kwargs: Kwargs) -> Value | None:
    if len(args) != 3 or kwargs or isinstance(args[0], ScalarValue):
        return None
    return _computed(tr, args[1:], lambda x, y: torch_calls.call_torch(tr, torch.where, [args[0], x, y], {}))


def _masked_fill(tr: Tracer, args: Sequence[Value], kwargs: Kwargs) -> Value | None:
    value = kwargs.get("value", args[2] if len(args) == 3 else None)
    x, mask = args[0], args[1] if len(args) > 1 else None
    if not isinstance(value, ScalarValue) or not isinstance(x, TensorValue) or not isinstance(mask, TensorValue):
        return None
    if not is_held(tr, value, x.meta.dtype):
        return None
    number = as_tensor(tr, value, x.meta.dtype, x.meta.device)
    return torch_calls.call_torch(tr, torch.where, [mask, number, x], {})


def _full(tr: Tracer, args: Sequence[Value], kwargs: Kwargs) -> Value | None:
    """Ones times the number: exact, for the sign of zero and NaN too."""
    value = kwargs.get("fill_value", args[1] if len(args) == 2 else None)
    return None if not isinstance(value, ScalarValue) or not args else _filled(tr, torch.ones, args[:1], kwargs, value)


def can_fill(dtype: torch.dtype, value: ScalarValue) -> bool:
    """Whether a number of a type is converted to a dtype as a product is."""
    return dtype.is_floating_point or (type(value.value) is int and not dtype.is_complex and dtype != torch.bool)


def _filled(tr: Tracer, ones: Any, args: Sequence[Value], kwargs: Kwargs, value: ScalarValue) -> Value | None:
    given = {k: v for k, v in kwargs.items() if k != "fill_value"}
    if ones is torch.ones and tr.identical(given.get("dtype", NONE), NONE):
        given["dtype"] = Const(torch.get_default_dtype() if type(value.value) is float else torch.int64)
    made = torch_calls.call_torch(tr, ones, args, given)
    assert isinstance(made, TensorValue)
    dtype = made.meta.dtype
    if not can_fill(dtype, value):
        return None
    return tr.binary("*", made, as_tensor(tr, value, dtype, made.meta.device)) if is_held(tr, value, dtype) else None


def _scalar_tensor(tr: Tracer, args: Sequence[Value], kwargs: Kwargs) -> Value | None:
    """Of the default dtype, of an int too."""
    if len(args) != 1 or not isinstance(args[0], ScalarValue) or set(kwargs) - {"dtype", "device"}:
        return None
    given = {k: v for k, v in kwargs.items() if not tr.identical(v, NONE)}
    return _filled(tr, torch.ones, [TupleValue([])], {"dtype": Const(torch.get_default_dtype()), **given}, args[0])


def _new_full(tr: Tracer, args: Sequence[Value], kwargs: Kwargs) -> Value | None:
    value = kwargs.get("fill_value", args[2] if len(args) == 3 else None)
    return None if not isinstance(value, ScalarValue) else _filled(tr, torch.Tensor.new_ones, args[:2], kwargs, value)


def _full_like(tr: Tracer, args: Sequence[Value], kwargs: Kwargs) -> Value | None:
    value = kwargs.get("fill_value", args[1] if len(args) == 2 else None)
    return None if not isinstance(value, ScalarValue) else _filled(tr, torch.ones_like, args[:1], kwargs, value)


def _fill(tr: Tracer, args: Sequence[Value], kwargs: Kwargs) -> Value | None:
    return _filled(tr, torch.ones_like, args[:1], {}, args[1]) if len(args) == 2 and isinstance(args[1], ScalarValue) else None


_RULES: dict[str, Callable[[Any, Sequence[Value], Kwargs], Value | None]] = {
    "pow": _pow,
    "lerp": _lerp,
    "addcmul": _scaled("*"),
    "addcdiv": _scaled("/"),
    "clamp": _clamp,
    "clip": _clamp,
    "where": _where,
    "masked_fill": _masked_fill,
    "full": _full,
    "full_like": _full_like,
    "fill": _fill,
    "new_full": _new_full,
    "scalar_tensor": _scalar_tensor,
}
