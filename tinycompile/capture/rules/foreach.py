"""``torch._foreach_*``: the same op on each tensor of a list, one node each; horizontal fusion makes few launches of them.

Optimizers written with them, and ``clip_grad_norm_`` and ``clip_grad_value_``, whose code is followed, are captured so."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _foreach_utils

from tinycompile.capture import torch_calls
from tinycompile.capture.breaks import GraphBreak
from tinycompile.capture.rules.registry import RULES, Args, rule
from tinycompile.capture.values.base import Kwargs, Value
from tinycompile.capture.values.constant import FALSE, NONE, Const, boolean
from tinycompile.capture.values.mapping import DictValue
from tinycompile.capture.values.queue import DequeValue
from tinycompile.capture.values.sequence import ListValue, SequenceValue, TupleValue
from tinycompile.capture.values.tensor import TensorValue

if TYPE_CHECKING:
    from tinycompile.capture.tracer import Tracer

_UNARY = (
    "abs", "acos", "asin", "atan", "ceil", "cos", "cosh", "erf", "erfc", "exp", "expm1", "floor", "frac", "lgamma", "log",
    "log10", "log1p", "log2", "neg", "reciprocal", "round", "rsqrt", "sigmoid", "sign", "sin", "sinh", "sqrt", "tan", "tanh",
    "trunc", "zero", "clone", "max",
)  # fmt: skip
_BINARY = ("add", "sub", "mul", "div", "maximum", "minimum", "pow", "lerp", "copy", "clamp_min", "clamp_max")
_TERNARY = ("addcmul", "addcdiv")  # with a factor behind the tensors
_OPERANDS = ("other", "exponent", "tensors1", "tensor1", "tensors2", "tensor2", "src")  # by name, in order
_NAMED = {"add": {"alpha"}, "sub": {"alpha"}, "copy": {"non_blocking"}, "norm": {"dtype"}}  # what else they take
# With numbers these are ``clamp`` by this keyword. (``maximum`` takes none itself.)
_BY_METHOD = {"clamp_min": "min", "clamp_max": "max", "maximum": "min", "minimum": "max"}


def _lists(tr: Tracer, args: Args, count: int) -> list[list[Value]]:
    """One list of operands for each tensor of the first list; what is no list counts for all."""
    columns = []
    for value in args:
        if isinstance(value, DequeValue):
            raise GraphBreak("unsupported-argument", "a deque for torch._foreach, which torch refuses")
        column = list(value.values(tr)) if isinstance(value, SequenceValue) else [value] * count
        columns.append(column)
        if len(column) != count:
            raise GraphBreak("unsupported-argument", "lists of different lengths for torch._foreach")
    return [list(row) for row in zip(*columns, strict=True)]


def _foreach(name: str, tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    """``torch._foreach_<name>``."""
    plain = name.rstrip("_")
    first = args[0] if args else kwargs.get("self", NONE)
    operands = ("ord",) if plain == "norm" else _OPERANDS
    args = [first, *args[1:], *(kwargs[k] for k in operands if k in kwargs)]
    kwargs = {k: v for k, v in kwargs.items() if k not in ("self", *operands)}
    if name == "pow" and isinstance(args[0], Const):
        args, plain = [args[1], args[0]], "rpow"
    if not isinstance(args[0], SequenceValue):
        raise GraphBreak("unsupported-argument", f"torch._foreach_{name} of {args[0].describe()}")
    count = len(args[0].items)
    factor = _factor(plain, args, kwargs)
    rows = _lists(tr, args, count)
    factors = [row[0] for row in _lists(tr, [factor], count)]
    named = {k: v for k, v in kwargs.items() if k not in ("value", "weight", "scalar", "scalars")}
    _require_operands(name, plain, args, named)
    made = [_one(tr, name, plain, row, f, named) for row, f in zip(rows, factors, strict=True)]
    return args[0] if name.endswith("_") else TupleValue(made)


def _factor(plain: str, args: list[Value], kwargs: Kwargs) -> Value:
    """The number, or the numbers, that come behind the tensors."""
    behind = {"addcmul": 3, "addcdiv": 3, "lerp": 2}.get(plain)
    if behind is not None and len(args) > behind:
        return args.pop()
    scalar = kwargs.get("scalar", kwargs.get("scalars", NONE))
    if behind is None and scalar is not NONE:
        args.append(scalar)
        return NONE
    return kwargs.get("value", kwargs.get("weight", scalar))


def _require_operands(name: str, plain: str, args: Args, named: Kwargs) -> None:
    """Torch says what is wrong with others than these."""
    counts = {1} if plain in _UNARY else {1, 2} if plain == "norm" else {3} if plain in _TERNARY else {2}
    lists = args if plain in (*_TERNARY, "copy") else args[:1]
    orders = args[1:] if plain == "norm" else []
    taken = all(isinstance(a, SequenceValue) for a in lists) and all(map(_is_order, orders))
    if not taken or len(args) not in counts or not named.keys() <= _NAMED.get(plain, set()):
        raise GraphBreak("unsupported-argument", f"torch._foreach_{name} of {', '.join(a.describe() for a in args)}")


def _is_order(value: Value) -> bool:
    """Whether torch takes it for the order of a norm."""
    is_flag = isinstance(value, Const) and isinstance(value.value, bool)
    return not is_flag and not isinstance(value, (SequenceValue, TensorValue))


def _one(tr: Tracer, name: str, plain: str, row: Sequence[Value], factor: Value, named: Kwargs) -> Value:
    """The op on one tensor."""
    first = row[0]
    if not isinstance(first, TensorValue):
        raise GraphBreak("unsupported-argument", f"torch._foreach_{name} of {first.describe()}")
    if plain == "norm":
        return torch_calls.call_torch(tr, torch.linalg.vector_norm, list(row), named)
    if plain == "rpow":
        return torch_calls.call_torch(tr, torch.pow, [row[1], first], named)
    method = name
    if plain in _BY_METHOD:
        if not isinstance(row[1], TensorValue):
            named, row = {**named, _BY_METHOD[plain]: row[1]}, row[:1]
            method = "clamp_" if name.endswith("_") else "clamp"
        else:
            method = ("maximum" if _BY_METHOD[plain] == "min" else "minimum") + ("_" if name.endswith("_") else "")
    if factor is not NONE:
        if plain in _TERNARY:
            named = {**named, "value": factor}
        else:
            row = [*row, factor]
    return _method(tr, first, method, row[1:], named)


def _method(tr: Tracer, t: TensorValue, name: str, args: Args, kwargs: Kwargs) -> Value:
    if name in ("maximum_", "minimum_"):
        return tr.write(t, lambda: torch_calls.call_method(tr, t, name[:-1], args, kwargs), [t, *args])
    return t.call_method(tr, name, args, kwargs)


def _register() -> None:
    for plain in (*_UNARY, *_BINARY, *_TERNARY, "norm"):
        for name in (plain, f"{plain}_"):
            fn = getattr(torch, f"_foreach_{name}", None)
            if fn is not None:
                RULES[fn] = functools.partial(_foreach, name)


_register()


# --- how torch's own code asks for them ---------------------------------------------------------------------------------------


@rule(_foreach_utils._group_tensors_by_device_and_dtype)
def _group(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    """Lists of tensors by the device and dtype of those in the first list, in the order in which they come up."""
    lists = args[0].values(tr) if isinstance(args[0], SequenceValue) else ()
    columns = [list(v.values(tr)) for v in lists if isinstance(v, SequenceValue)]
    groups: dict[Any, list[int]] = {}
    for at, t in enumerate(columns[0] if columns else ()):
        if not isinstance(t, TensorValue):
            raise GraphBreak("unsupported-argument", f"{t.describe()} among tensors to be grouped")
        groups.setdefault((t.meta.device.torch(), t.meta.dtype), []).append(at)
    indexed = (args[1] if len(args) > 1 else kwargs.get("with_indices", FALSE)).truth(tr)
    pairs: list[tuple[Value, Value]] = []
    for (device, dtype), where in groups.items():
        parts = [ListValue([column[i] for i in where]) for column in columns]
        indices = ListValue([Const(i) for i in where] if indexed else [])
        pairs.append((TupleValue([Const(device), Const(dtype)]), TupleValue([ListValue(parts), indices])))
    return DictValue(tr, pairs)


@rule(_foreach_utils._has_foreach_support)
def _has_support(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    tensors = args[0] if args else kwargs["tensors"]
    plain = isinstance(tensors, SequenceValue) and all(isinstance(t, TensorValue) for t in tensors.values(tr))
    return boolean(plain and _device_supports(tr, args[1] if len(args) > 1 else kwargs["device"]))


@rule(_foreach_utils._device_has_foreach_support)
def _device_has_support(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    return boolean(_device_supports(tr, args[0] if args else kwargs["device"]))


def _device_supports(tr: Tracer, device: Value) -> bool:
    return _foreach_utils._device_has_foreach_support(device.constant(tr))
