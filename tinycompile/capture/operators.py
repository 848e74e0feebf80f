"""Python's operators on Values."""

from __future__ import annotations

import enum
import operator
import re
from collections import OrderedDict
from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tinycompile.capture import strings, torch_calls
from tinycompile.capture.breaks import GraphBreak
from tinycompile.capture.provenance import natively
from tinycompile.capture.trust import is_trusted
from tinycompile.capture.values import array, scalar, symbolic
from tinycompile.capture.values.array import ArrayValue
from tinycompile.capture.values.base import MethodOf, Value
from tinycompile.capture.values.classes import ClassValue, class_lookup
from tinycompile.capture.values.constant import LITERALS, NUMPY_SCALARS, Const, boolean, has_own_specials, is_member
from tinycompile.capture.values.container import contents_of
from tinycompile.capture.values.function import BoundFunction
from tinycompile.capture.values.mapping import DictValue, DictView
from tinycompile.capture.values.object import ObjectValue
from tinycompile.capture.values.opaque import Opaque
from tinycompile.capture.values.queue import DequeValue
from tinycompile.capture.values.scalar import ScalarValue
from tinycompile.capture.values.sequence import ListValue, SequenceValue, SliceValue, TupleValue
from tinycompile.capture.values.sets import SET_OPERATORS, SetValue, operated
from tinycompile.capture.values.symbolic import SymInt
from tinycompile.capture.values.tensor import TensorValue

if TYPE_CHECKING:
    from tinycompile.capture.sources import Source
    from tinycompile.capture.tracer import Tracer

BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv, "//": operator.floordiv, "%": operator.mod,
    "**": operator.pow, "@": operator.matmul, "&": operator.and_, "|": operator.or_, "^": operator.xor, "<<": operator.lshift,
    ">>": operator.rshift,
}  # fmt: skip
COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt, "<=": operator.le, "==": operator.eq, "!=": operator.ne, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
UNARY: dict[str, Callable[[Any], Any]] = {"-": operator.neg, "+": operator.pos, "~": operator.invert}
_METHODS = {
    "+": "add", "-": "sub", "*": "mul", "/": "truediv", "//": "floordiv", "%": "mod", "**": "pow", "@": "matmul", "&": "and",
    "|": "or", "^": "xor", "<<": "lshift", ">>": "rshift", "divmod": "divmod",
}  # fmt: skip
_UNARY_METHODS = {"-": "__neg__", "+": "__pos__", "~": "__invert__"}
_COMPARE_METHODS = {"<": "__lt__", "<=": "__le__", "==": "__eq__", "!=": "__ne__", ">": "__gt__", ">=": "__ge__"}
_MIRRORED = {"<": ">", "<=": ">=", "==": "==", "!=": "!=", ">": "<", ">=": "<="}


def binary(tr: Tracer, symbol: str, a: Value, b: Value) -> Value:
    """``a symbol b``; a symbol that ends with ``=`` is the in-place form."""
    inplace = symbol.endswith("=")
    symbol = symbol.rstrip("=")
    name = _METHODS[symbol]
    if symbol == "%" and isinstance(a, Const) and isinstance(a.value, (str, bytes)):
        return _text_of(tr, a, b)
    left, right = _contents(a, b, (f"__{name}__", f"__i{name}__"), (f"__r{name}__",))
    if inplace and symbol == "+" and isinstance(left, ListValue) and not isinstance(left, DequeValue):
        left.extend(tr, [b])  # (whose own way of being iterated counts)
        return a
    if left is not a or right is not b:
        result = binary(tr, symbol + "=" * inplace, left, right)
        return a if inplace and result is left else result
    if array.concerns(a, b):
        return array.binary(tr, getattr(operator, f"__i{name}__") if inplace else BINARY[symbol], a, b, inplace)
    if isinstance(a, TensorValue) or isinstance(b, TensorValue):
        own = tr.own_special(a, f"__{name}__")
        made = _answer(tr, own, b)
        if made is not None:
            return made
        if own is not None or tr.own_special(b, f"__r{name}__") is not None:
            raise GraphBreak("unsupported-value", f"an operator between {a.describe()} and {b.describe()}")
        return _tensor_binary(tr, symbol, a, b, inplace)
    if inplace and isinstance(a, (ListValue, DictValue, SetValue)):
        changed = _inplace_container(tr, symbol, a, b)
        if changed is not None:
            return changed
    made = symbolic.binary(symbol, a, b)
    if made is None:
        made = scalar.binary(tr, symbol, a, b)
    if made is None:
        made = _sequence_binary(tr, symbol, a, b)
    if made is None:
        made = _object_binary(tr, symbol, a, b, inplace)
    if made is None and (isinstance(a, ObjectValue) or isinstance(b, ObjectValue)):
        if symbol == "*" and any(isinstance(v, ObjectValue) and v.special(tr, "__index__") for v in (a, b)):
            raise GraphBreak("unsupported-value", "a product with an object that is an index")
        if not all(_refuses_plainly(symbol, v) for v in (a, b)):
            raise GraphBreak("user-exception", f"{symbol} of {a.describe()} and {b.describe()}")
        shown = {"**": "** or pow()"}.get(symbol, symbol) if not inplace else symbol + "="
        raise TypeError(f"unsupported operand type(s) for {shown}: {_class_name(tr, a)!r} and {_class_name(tr, b)!r}")
    return _folded(tr, BINARY[symbol], a, b) if made is None else made


def _refuses_plainly(symbol: str, value: Value) -> bool:
    """Whether a value has no more to say of an operator than its class's special methods: a sequence's words are its own."""
    if isinstance(value, Const):
        return type(value.value) in LITERALS and not (symbol in "+*" and isinstance(value.value, (str, bytes)))
    return isinstance(value, ObjectValue)


_PLAIN_FIELDS = re.compile(r"%([%sr])")


def _text_of(tr: Tracer, a: Const, b: Value) -> Value:
    """``text % values``, which comes before what the values' classes have: of constants, or where all are just shown."""
    values = b.values(tr) if isinstance(b, TupleValue) else [b]
    if all(v.is_constant or isinstance(v, (SymInt, ScalarValue)) for v in values):
        return _folded(tr, operator.mod, a, b)
    shown = [kind for kind in _PLAIN_FIELDS.findall(a.value) if kind != "%"] if isinstance(a.value, str) else []
    if "%" in _PLAIN_FIELDS.sub("", str(a.value)) or len(shown) != len(values) or contents_of(b) is not b:
        raise GraphBreak("unsupported-value", f"{a.describe()} % {b.describe()}")
    texts = [strings.text(tr, v, kind) for v, kind in zip(values, shown, strict=True)]
    return Const(a.value.replace("%r", "%s") % tuple(texts))


def divided(tr: Tracer, a: Value, b: Value) -> Value:
    """``divmod(a, b)``."""
    if isinstance(a, Const) and isinstance(b, Const):
        return tr.from_python(natively(divmod, a.value, b.value))
    made = _object_binary(tr, "divmod", a, b, False)
    if made is not None:
        return made
    if not all(isinstance(v, (Const, SymInt, ScalarValue, ArrayValue)) for v in (a, b)):
        raise GraphBreak("user-exception", f"divmod() of {a.describe()} and {b.describe()}")
    return TupleValue([binary(tr, "//", a, b), binary(tr, "%", a, b)])


def _contents(a: Value, b: Value, mine: tuple[str, ...], theirs: tuple[str, ...]) -> tuple[Value, Value]:
    """The built-in containers in instances of the program's subclasses, unless one of these has its own such operator."""
    left, right = contents_of(a, *mine), contents_of(b, *theirs)
    own = (left is a and contents_of(a) is not a) or (right is b and contents_of(b) is not b)
    return (a, b) if own else (left, right)


def _class_name(tr: Tracer, value: Value) -> str:
    return value.python_type(tr).__name__


def _tensor_binary(tr: Tracer, symbol: str, a: Value, b: Value, inplace: bool) -> Value:
    name = _METHODS[symbol]
    tries = [(a, f"__i{name}__", b)] if inplace else []
    made = _by_program(tr, [*tries, (a, f"__{name}__", b), (b, f"__r{name}__", a)])
    if made is not None:
        return made
    if isinstance(a, ObjectValue) and not isinstance(b, ObjectValue):
        made = _object_binary(tr, symbol, a, b, inplace)
        if made is not None:
            return made
    for v in (a, b):
        if isinstance(v, ObjectValue):
            raise GraphBreak("unsupported-value", f"an operator between a tensor and {v.describe()}")
    if not inplace or not isinstance(a, TensorValue) or symbol == "@":
        return torch_calls.call_torch(tr, BINARY[symbol], [a, b], {})
    return torch_calls.call_method(tr, a, f"__i{_METHODS[symbol]}__", [b], {})


def _by_program(tr: Tracer, tries: Sequence[tuple[Value, str, Value]]) -> Value | None:
    """What special methods of tensors give that the program replaced; None where torch's own answers first."""
    for receiver, name, other in tries:
        method = receiver.replaced(tr, name) if isinstance(receiver, TensorValue) else None
        made = _answer(tr, method, other)
        if made is not None:
            return made
        if isinstance(receiver, TensorValue) and method is None:
            return None
    return None


def _inplace_container(tr: Tracer, symbol: str, a: Value, b: Value) -> Value | None:
    if isinstance(a, ListValue) and symbol == "+":
        a.extend(tr, [b])
        return a
    if isinstance(a, ListValue) and symbol == "*":
        a.changed(tr)
        a.items[:] = _sequence_like(a, a.values(tr) * tr.index(b, "list"), False).items  # type: ignore[attr-defined]
        return a
    if isinstance(a, DictValue) and symbol == "|":
        a.update(tr, b)
        return a
    if isinstance(a, SetValue) and a.cls is set and symbol in SET_OPERATORS and _is_set(b):
        a.updated(tr, SET_OPERATORS[symbol], [b])
        return a
    return None


def _is_set(value: Value) -> bool:
    return isinstance(value, SetValue) or (isinstance(value, DictView) and value.what != "values")


def _set_binary(tr: Tracer, symbol: str, a: Value, b: Value) -> Value | None:
    """Sets, and views of dicts as sets."""
    if symbol not in SET_OPERATORS or not (_is_set(a) and _is_set(b)):
        return None
    return operated(tr, symbol, a, b)


def _sequence_binary(tr: Tracer, symbol: str, a: Value, b: Value) -> Value | None:
    name = _METHODS[symbol]
    for value, method in ((a, f"__{name}__"), (b, f"__r{name}__")):
        if isinstance(value, TupleValue):
            value.leaves(tr, method)
    if symbol == "+" and isinstance(a, SequenceValue) and isinstance(b, SequenceValue):
        if a.family is not b.family:
            shown = f"{b.cls.__module__}." * (b.cls.__module__ in ("torch", "collections")) + b.cls.__name__
            raise TypeError(f'can only concatenate {a.family.__name__} (not "{shown}") to {a.family.__name__}')
        return _sequence_like(a, a.values(tr) + b.values(tr), torch.Size in (a.cls, b.cls))
    if symbol == "*" and (isinstance(a, SequenceValue) or isinstance(b, SequenceValue)):
        seq, count = (a, b) if isinstance(a, SequenceValue) else (b, a)
        assert isinstance(seq, SequenceValue)
        items = seq.values(tr) * tr.index(count, "sequence")
        return _sequence_like(seq, items, seq.cls is torch.Size)
    made = _set_binary(tr, symbol, a, b)
    if made is not None:
        return made
    if symbol == "|" and isinstance(a, DictValue) and isinstance(b, DictValue):
        return DictValue(tr, [*a.pairs(tr), *b.pairs(tr)], dict if a.cls is MappingProxyType else a.cls)
    return None


def _sequence_like(seq: SequenceValue, items: list[Value], is_size: bool) -> Value:
    """A new sequence of the same family."""
    if isinstance(seq, DequeValue):
        return DequeValue(items, seq.maxlen)
    return ListValue(items) if seq.family is list else TupleValue(items, cls=torch.Size if is_size else tuple)


def _object_binary(tr: Tracer, symbol: str, a: Value, b: Value, inplace: bool) -> Value | None:
    name = _METHODS[symbol]
    if inplace and isinstance(a, ObjectValue):
        made = _answer(tr, a.special(tr, f"__i{name}__"), b)
        if made is not None:
            return made
    elif inplace:
        made = _answer(tr, tr.own_special(a, f"__i{name}__"), b)
        if made is not None:
            return made
    tries = [(a, f"__{name}__", b), (b, f"__r{name}__", a)]
    mine, theirs = a.python_type(tr), b.python_type(tr)
    if mine is theirs:
        tries.pop()  # what refuses its own kind is not asked again
    elif issubclass(theirs, mine) and class_lookup(theirs, f"__r{name}__") != class_lookup(mine, f"__r{name}__"):
        tries.reverse()
    for receiver, method, other in tries:
        made = _says(tr, receiver, method, other)
        if made is not None:
            return made
    if any(_own(tr, receiver, method) is not None for receiver, method, _ in tries if not isinstance(receiver, ObjectValue)):
        raise GraphBreak("user-exception", f"{symbol} of {a.describe()} and {b.describe()}")
    return None


def _own(tr: Tracer, value: Value, name: str) -> Value | None:
    """A special method that the program wrote, for its objects or for an enumeration's members."""
    return value.special(tr, name) if isinstance(value, ObjectValue) else tr.own_special(value, name)


def _says(tr: Tracer, receiver: Value, name: str, other: Value) -> Value | None:
    """What a special method gives of an object, of a member, or of a constant that is asked before or after a member."""
    own = _own(tr, receiver, name)
    if own is not None or not isinstance(receiver, Const) or not isinstance(other, Const):
        return _answer(tr, own, other)
    if not (has_own_specials(receiver.value) or has_own_specials(other.value)):
        return None
    method = getattr(type(receiver.value), name, None)
    said = NotImplemented if method is None else natively(method, _for_python(tr, receiver), _for_python(tr, other))
    return None if said is NotImplemented else tr.from_python(said)


def _answer(tr: Tracer, method: Value | None, other: Value) -> Value | None:
    """What a special method gives; None where there is none or it gives NotImplemented."""
    result = None if method is None else method.call(tr, [other], {})
    return None if isinstance(result, Const) and result.value is NotImplemented else result


def _folded(tr: Tracer, fn: Callable[..., Any], *operands: Value) -> Value:
    """Compute on Python constants; symbolic sizes are specialised."""
    return tr.from_python(natively(fn, *(_for_python(tr, v) for v in operands)))


def _for_python(tr: Tracer, value: Value) -> Any:
    """An operand whose own special methods were asked before. Python's own of flags may look for a member that there is not."""
    if not isinstance(value, Const):
        return value.constant(tr)
    found = class_lookup(type(value.value), "_missing_") if isinstance(value.value, enum.Flag) else None
    if found is not None and not is_trusted(found[0].__module__):
        raise GraphBreak("unsupported-value", f"an operator of {value.describe()}, whose class has a _missing_")
    return value.value


def unary(tr: Tracer, symbol: str, a: Value) -> Value:
    """``-a``, ``+a`` or ``~a``."""
    if array.concerns(a):
        return array.call(tr, UNARY[symbol], [a], {})
    if isinstance(a, TensorValue):
        method = a.replaced(tr, _UNARY_METHODS[symbol])
        if method is not None:
            return method.call(tr, [], {})
        return a if symbol == "+" else torch_calls.call_torch(tr, UNARY[symbol], [a], {})  # +t is t itself
    number = scalar.unary(tr, symbol, a)
    if number is not None:
        return number
    if isinstance(a, SymInt) and symbol != "~":
        made = symbolic.binary("*", a, Const(-1 if symbol == "-" else 1))
        assert made is not None
        return made
    if isinstance(a, ObjectValue):
        method = a.special(tr, _UNARY_METHODS[symbol])
        if method is not None:
            return method.call(tr, [], {})
        raise TypeError(f"bad operand type for unary {symbol}: {_class_name(tr, a)!r}")
    own = tr.own_special(a, _UNARY_METHODS[symbol])
    if own is not None:
        return own.call(tr, [], {})
    return _folded(tr, UNARY[symbol], a)


# --- comparison ---------------------------------------------------------------------------------------------


def compare(tr: Tracer, symbol: str, a: Value, b: Value) -> Value:
    """``a symbol b``."""
    a, b = _contents(a, b, (_COMPARE_METHODS[symbol],), (_COMPARE_METHODS[_MIRRORED[symbol]],))
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
            return _folded(tr, COMPARE[symbol], a, b)
        return boolean(_same_value(tr, a, b) == (symbol == "=="))
    if _is_set(a) and _is_set(b):
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
        names = f"{_class_name(tr, a)!r} and {_class_name(tr, b)!r}"
        raise TypeError(f"{symbol!r} not supported between instances of {names}")
    return _folded(tr, COMPARE[symbol], a, b)


def _tensor_compare(tr: Tracer, symbol: str, a: Value, b: Value) -> Value:
    made = _by_program(tr, [(a, _COMPARE_METHODS[symbol], b), (b, _COMPARE_METHODS[_MIRRORED[symbol]], a)])
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
        made = _answer(tr, own, other) if own is not None else _says(tr, receiver, _COMPARE_METHODS[symbol], other)
        return made if own is None or made is None else boolean(not made.truth(tr))
    if _defines(receiver, _COMPARE_METHODS[symbol]):
        return _answer(tr, receiver.special(tr, _COMPARE_METHODS[symbol]), other)
    if symbol != "!=" or not _defines(receiver, "__eq__"):
        return None
    made = _answer(tr, receiver.special(tr, "__eq__"), other)  # as object.__ne__ has it
    return None if made is None else boolean(not made.truth(tr))


def _metaclass_says(tr: Tracer, cls: ClassValue, symbol: str, other: Value) -> Value | None:
    method = cls.meta_method(tr, _COMPARE_METHODS[symbol])
    made = None if method is None else _answer(tr, method, other)
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
    if _is_set(a) and _is_set(b):
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
    met, other, known = tr.met.get(id(a)), b, tr.met.get(id(b))
    if met is None:
        met, other, known = known, a, None
    if met is not None and type(met[0]) not in _ONE_OF_EACH:
        if known is not None:
            return _guard_identity(tr, met, known[0], known[1].text)
        if isinstance(other, Const) and type(other.value) in _LITERALS:
            return _guard_identity(tr, met, other.value, tr.guards.hold(other.value, "constant").name)
    return a.same_object(tr, b)


_ONE_OF_EACH = (bool, type(None), type(Ellipsis), torch.dtype)
_LITERALS = (int, float, complex, str, bytes)


def _guard_identity(tr: Tracer, met: tuple[Any, Source], other: Any, text: str) -> bool:
    """Whether something from outside that doesn't change is another object: equal ones may be one in one call only."""
    obj, source = met
    one = obj is other
    tr.guards.check(f"({source.text} is {text}) is {one}", "which objects are one")
    return one
