"""Comparisons of Values: ``<`` and such, equality as containers have it, identity."""

from __future__ import annotations

import enum
import operator
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tinycompile.capture import torch_calls
from tinycompile.capture.breaks import GraphBreak
from tinycompile.capture.operators import answer, by_program, class_name, contents, folded, is_set, says
from tinycompile.capture.values import array, scalar, symbolic
from tinycompile.capture.values.base import MethodOf, Value
from tinycompile.capture.values.classes import ClassValue, class_lookup
from tinycompile.capture.values.constant import NUMPY_SCALARS, SMALL_INTS, Const, boolean, has_own_specials, is_member
from tinycompile.capture.values.function import BoundFunction
from tinycompile.capture.values.mapping import DictValue
from tinycompile.capture.values.object import ObjectValue
from tinycompile.capture.values.opaque import Opaque
from tinycompile.capture.values.scalar import ScalarValue
from tinycompile.capture.values.sequence import SequenceValue, SliceValue, TupleValue
from tinycompile.capture.values.sets import SetValue
from tinycompile.capture.values.symbolic import SymInt
from tinycompile.capture.values.tensor import TensorValue

if TYPE_CHECKING:
    from tinycompile.capture.sources import Source
    from tinycompile.capture.tracer import Tracer

COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt, "<=": operator.le, "==": operator.eq, "!=": operator.ne, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_COMPARE_METHODS = {"<": "__lt__", "<=": "__le__", "==": "__eq__", "!=": "__ne__", ">": "__gt__", ">=": "__ge__"}
_MIRRORED = {"<": ">", "<=": ">=", "==": "==", "!=": "!=", ">": "<", ">=": "<="}


def compare(tr: Tracer, symbol: str, a: Value, b: Value) -> Value:
    """``a symbol b``."""
    a, b = contents(a, b, (_COMPARE_METHODS[symbol],), (_COMPARE_METHODS[_MIRRORED[symbol]],))
    if array.concerns(a, b):
        return array.call(tr, COMPARE[symbol], [a, b], {})
    if isinstance(a, TensorValue) or isinstance(b, TensorValue):
        for v, sign in ((a, symbol), (b, _MIRRORED[symbol])):
            if isinstance(v, Const):
                v.unasked(tr, _COMPARE_METHODS[sign], *(["__eq__"] if sign == "!=" else []))  # as object.__ne__ has it
        return _tensor_compare(tr, symbol, a, b)
    for v, sign in ((a, symbol), (b, _MIRRORED[symbol])):
        if isinstance(v, TupleValue):
            v.leaves(tr, _COMPARE_METHODS[sign])
            v.leaves(tr, "__eq__")
    decided = symbolic.compare(symbol, a, b)
    if decided is None:
        decided = scalar.compare(tr, symbol, a, b)
    numpys = any(isinstance(v, Const) and isinstance(v.value, np.generic) for v in (a, b))  # which have a bool of their own
    if decided is not None:
        return tr.from_python(np.bool_(decided)) if numpys else boolean(decided)
    made = _object_compare(tr, symbol, a, b)
    if made is not None:
        return made
    if symbol in ("==", "!="):
        if numpys and all(v.is_constant or isinstance(v, (SymInt, ScalarValue)) for v in (a, b)):
            return folded(tr, COMPARE[symbol], a, b)
        return boolean(_same_value(tr, a, b) == (symbol == "=="))
    if is_set(a) and is_set(b):
        left = a if isinstance(a, SetValue) else SetValue(tr, list(a.iterate(tr)))
        return boolean(left.compared(tr, symbol, b))
    if (
        isinstance(a, SequenceValue)
        and isinstance(b, SequenceValue)
        and a.family is b.family
        and not (a.is_constant and b.is_constant)
    ):
        return boolean(_lexicographic(tr, symbol, a, b))
    if isinstance(a, ObjectValue) or isinstance(b, ObjectValue):
        names = f"{class_name(tr, a)!r} and {class_name(tr, b)!r}"
        raise TypeError(f"{symbol!r} not supported between instances of {names}")
    return folded(tr, COMPARE[symbol], a, b)


def _tensor_compare(tr: Tracer, symbol: str, a: Value, b: Value) -> Value:
    made = by_program(tr, [(a, _COMPARE_METHODS[symbol], b), (b, _COMPARE_METHODS[_MIRRORED[symbol]], a)])
    if made is not None:
        return made
    other = b if isinstance(a, TensorValue) else a
    comparable = isinstance(other, (TensorValue, SymInt, ScalarValue)) or (
        isinstance(other, Const) and isinstance(other.value, (int, float, complex, *NUMPY_SCALARS))
    )
    if isinstance(other, ObjectValue):
        made = None if class_lookup(type(other.obj), "__torch_function__") else _object_compare(tr, symbol, a, b)
        if made is not None:
            return made
        if symbol not in ("==", "!=") or class_lookup(type(other.obj), "__torch_function__"):
            raise GraphBreak("unsupported-value", f"a comparison of a tensor with {other.describe()}")
    if isinstance(other, Opaque):
        other.truth(tr)  # refuses: it may be another kind of tensor, or have a say in what it equals
    if not comparable and symbol in ("==", "!="):  # torch answers NotImplemented, so Python compares identities
        return boolean(symbol == "!=")
    if not isinstance(a, TensorValue):  # torch has no comparison with a number first: Python asks the tensor
        symbol, a, b = _MIRRORED[symbol], b, a
    return torch_calls.call_torch(tr, COMPARE[symbol], [a, b], {})


def _object_compare(tr: Tracer, symbol: str, a: Value, b: Value) -> Value | None:
    """What the program's special methods say; None where neither operand has an answer."""
    if not any(isinstance(v, (ObjectValue, ClassValue)) or is_member(v) for v in (a, b)):
        return None
    tries = [(a, symbol, b), (b, _MIRRORED[symbol], a)]
    mine, theirs = a.python_type(tr), b.python_type(tr)
    if mine is not theirs and issubclass(theirs, mine):
        tries.reverse()
    for receiver, sign, other in tries:
        made = _asked(tr, receiver, sign, other) if isinstance(receiver, (ObjectValue, ClassValue, Const)) else None
        if made is not None:
            return made
    if symbol in ("==", "!=") and any(isinstance(v, Const) and has_own_specials(v.value) for v in (a, b)):
        return boolean(identical(tr, a, b) == (symbol == "=="))
    if any(tr.own_special(v, _COMPARE_METHODS[sign]) is not None for v, sign, _ in tries):
        raise GraphBreak("user-exception", f"{symbol} of {a.describe()} and {b.describe()}")
    return None


def _asked(tr: Tracer, receiver: ObjectValue | ClassValue | Const, symbol: str, other: Value) -> Value | None:
    if isinstance(receiver, ClassValue):
        return _metaclass_says(tr, receiver, symbol, other)
    if isinstance(receiver, Const):
        as_object = symbol == "!=" and (class_lookup(type(receiver.value), "__ne__") or (object,))[0] is object
        own = tr.own_special(receiver, "__eq__") if as_object and tr.own_special(receiver, "__ne__") is None else None
        made = answer(tr, own, other) if own is not None else says(tr, receiver, _COMPARE_METHODS[symbol], other)
        return made if own is None or made is None else boolean(not made.truth(tr))
    if _defines(receiver, _COMPARE_METHODS[symbol]):
        return answer(tr, receiver.special(tr, _COMPARE_METHODS[symbol]), other)
    if symbol != "!=" or not _defines(receiver, "__eq__"):
        return None
    made = answer(tr, receiver.special(tr, "__eq__"), other)  # as object.__ne__ has it
    return None if made is None else boolean(not made.truth(tr))


def _metaclass_says(tr: Tracer, cls: ClassValue, symbol: str, other: Value) -> Value | None:
    method = cls.meta_method(tr, _COMPARE_METHODS[symbol])
    made = None if method is None else answer(tr, method, other)
    if method is not None or symbol != "!=":
        return made
    said = _metaclass_says(tr, cls, "==", other)  # as object.__ne__ has it
    return None if said is None else boolean(not said.truth(tr))


def _defines(value: ObjectValue, name: str) -> bool:
    return (class_lookup(type(value.obj), name) or (object,))[0] is not object


def _lexicographic(tr: Tracer, symbol: str, a: SequenceValue, b: SequenceValue) -> bool:
    for x, y in zip(a.values(tr), b.values(tr), strict=False):
        if x is not y and not equal(tr, x, y):
            return compare(tr, symbol, x, y).truth(tr)
    return COMPARE[symbol](len(a.items), len(b.items))


def equal(tr: Tracer, a: Value, b: Value) -> bool:
    """Whether a container takes one for the other: they are one object, or equal."""
    if a is b or (is_member(a) and is_member(b) and a.same_object(tr, b)):
        return True
    if isinstance(a, Const) and isinstance(b, Const) and _is_nan(a) and _is_nan(b):
        return _one_nan(tr, a, b)
    return compare(tr, "==", a, b).truth(tr)


def _is_nan(value: Const) -> bool:
    """Whether a constant does not equal itself."""
    return not isinstance(value.value, enum.Enum) and bool(value.value != value.value)


def _one_nan(tr: Tracer, a: Const, b: Const) -> bool:
    """Two constants that equal not even themselves: which object each is counts."""
    same, texts = (
        a.value is b.value,
        [tr.guards.hold(v.value, "nan").name if v.source is None else v.source.text for v in (a, b)],
    )
    if a.source is not None or b.source is not None:
        tr.guards.check(f"({texts[0]} is {texts[1]}) is {same}", "which objects are one")
    return same


def _same_value(tr: Tracer, a: Value, b: Value) -> bool:
    """``a == b`` where no class of the program's, nor torch or numpy, decides."""
    if isinstance(a, SequenceValue) and isinstance(b, SequenceValue):
        return (
            a.family is b.family
            and len(a.items) == len(b.items)
            and all(x is y or equal(tr, x, y) for x, y in zip(a.values(tr), b.values(tr), strict=True))
        )
    if isinstance(a, SliceValue) and isinstance(b, SliceValue):
        return all(x is y or equal(tr, x, y) for x, y in zip(a.parts, b.parts, strict=True))
    if isinstance(a, DictValue) and isinstance(b, DictValue):
        ordered = issubclass(a.cls, OrderedDict) and issubclass(b.cls, OrderedDict)
        if a.items.keys() != b.items.keys() or (ordered and list(a.items) != list(b.items)):
            return False
        pairs = ((v, b.get_item(tr, k)) for k, v in a.pairs(tr))
        return all(v is other or equal(tr, v, other) for v, other in pairs)
    if is_set(a) and is_set(b):
        left = a if isinstance(a, SetValue) else SetValue(tr, list(a.iterate(tr)))
        return left.compared(tr, "==", b)
    if a.is_constant and b.is_constant:
        return bool(a.constant(tr) == b.constant(tr))
    for v in (a, b):
        if isinstance(v, Opaque):
            v.truth(tr)  # refuses: what it equals is not known
    if isinstance(a, BoundFunction) and isinstance(b, BoundFunction):
        return identical(tr, a.receiver, b.receiver) and equal(tr, a.fn, b.fn)
    if isinstance(a, MethodOf) and isinstance(b, MethodOf):
        return a.name == b.name and identical(tr, a.receiver, b.receiver)
    return identical(tr, a, b)


def identical(tr: Tracer, a: Value, b: Value) -> bool:
    """``a is b``."""
    if isinstance(b, Opaque) and not isinstance(a, Opaque):
        a, b = b, a
    if a is b:
        return True
    if any(isinstance(v, (SymInt, ScalarValue)) for v in (a, b)) and not (id(a) in tr.met and id(b) in tr.met):
        return _one_small_int(tr, a, b)
    if id(a) in tr.constant_tuples and id(b) in tr.constant_tuples:
        return tr.constant_tuples[id(a)] is tr.constant_tuples[id(b)]
    met, other, known = tr.origin(a), b, tr.origin(b)
    if met is None:
        met, other, known = known, a, None
    if met is not None and type(met[0]) not in _ONE_OF_EACH:
        if known is not None:
            return _guard_identity(tr, met, known[0], known[1].text)
        if isinstance(other, Const) and type(other.value) in _LITERALS:
            return _guard_identity(tr, met, other.value, tr.guards.hold(other.value, "constant").name)
    return a.same_object(tr, b)


def _one_small_int(tr: Tracer, a: Value, b: Value) -> bool:
    """Whether numbers, one of which is computed in each call, are one object: CPython keeps one of each small int."""
    if a.python_type(tr) is not int or b.python_type(tr) is not int or not compare(tr, "==", a, b).truth(tr):
        return False
    return all(compare(tr, "<=", *pair).truth(tr) for pair in ((Const(SMALL_INTS[0]), a), (a, Const(SMALL_INTS[-1]))))


_ONE_OF_EACH = (bool, type(None), type(Ellipsis), torch.dtype)
_LITERALS = (int, float, complex, str, bytes)


def _guard_identity(tr: Tracer, met: tuple[Any, Source], other: Any, text: str) -> bool:
    """Whether something from outside that doesn't change is another object: equal ones may be one in one call only."""
    obj, source = met
    one = obj is other
    tr.guards.check(f"({source.text} is {text}) is {one}", "which objects are one")
    return one
