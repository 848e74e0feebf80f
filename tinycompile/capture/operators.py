"""Python's operators on Values."""

from __future__ import annotations

import enum
import operator
import re
from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch

from tinycompile.capture import strings, torch_calls
from tinycompile.capture.breaks import GraphBreak
from tinycompile.capture.provenance import natively
from tinycompile.capture.trust import module_of, trusts
from tinycompile.capture.values import array, scalar, symbolic
from tinycompile.capture.values.array import ArrayValue
from tinycompile.capture.values.base import Value
from tinycompile.capture.values.classes import class_lookup
from tinycompile.capture.values.constant import LITERALS, Const, has_own_specials
from tinycompile.capture.values.container import contents_of
from tinycompile.capture.values.mapping import DictValue, DictView
from tinycompile.capture.values.object import ObjectValue
from tinycompile.capture.values.queue import DequeValue
from tinycompile.capture.values.scalar import ScalarValue
from tinycompile.capture.values.sequence import ListValue, SequenceValue, TupleValue
from tinycompile.capture.values.sets import SET_OPERATORS, SetValue, operated
from tinycompile.capture.values.symbolic import SymInt
from tinycompile.capture.values.tensor import TensorValue

if TYPE_CHECKING:
    from tinycompile.capture.tracer import Tracer

BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv, "//": operator.floordiv, "%": operator.mod,
    "**": operator.pow, "@": operator.matmul, "&": operator.and_, "|": operator.or_, "^": operator.xor, "<<": operator.lshift,
    ">>": operator.rshift,
}  # fmt: skip
UNARY: dict[str, Callable[[Any], Any]] = {"-": operator.neg, "+": operator.pos, "~": operator.invert}
_METHODS = {
    "+": "add", "-": "sub", "*": "mul", "/": "truediv", "//": "floordiv", "%": "mod", "**": "pow", "@": "matmul", "&": "and",
    "|": "or", "^": "xor", "<<": "lshift", ">>": "rshift", "divmod": "divmod",
}  # fmt: skip
_UNARY_METHODS = {"-": "__neg__", "+": "__pos__", "~": "__invert__"}


def binary(tr: Tracer, symbol: str, a: Value, b: Value) -> Value:
    """``a symbol b``; a symbol that ends with ``=`` is the in-place form."""
    inplace = symbol.endswith("=")
    symbol = symbol.rstrip("=")
    name = _METHODS[symbol]
    if symbol == "%" and isinstance(a, Const) and isinstance(a.value, (str, bytes)):
        return _text_of(tr, a, b)
    if symbol == "|" and _unites_in_python(a, b, inplace):
        raise GraphBreak("unsupported-value", f"{a.describe()} | {b.describe()}")
    in_place = inplace and contents_of(a) is not a and hasattr(contents_of(a).python_type(tr), f"__i{name}__")
    left, right = contents(a, b, (f"__i{name}__",) if in_place else (f"__{name}__", f"__i{name}__"), (f"__r{name}__",))
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
        made = answer(tr, own, b)
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
        raise TypeError(f"unsupported operand type(s) for {shown}: {class_name(tr, a)!r} and {class_name(tr, b)!r}")
    return folded(tr, BINARY[symbol], a, b) if made is None else made


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
        return folded(tr, operator.mod, a, b)
    shown = [kind for kind in _PLAIN_FIELDS.findall(a.value) if kind != "%"] if isinstance(a.value, str) else []
    if "%" in _PLAIN_FIELDS.sub("", str(a.value)) or len(shown) != len(values) or contents_of(b) is not b:
        raise GraphBreak("unsupported-value", f"{a.describe()} % {b.describe()}")
    texts = [strings.text(tr, v, kind) for v, kind in zip(values, shown, strict=True)]
    return tr.computed(a.value.replace("%r", "%s") % tuple(texts), b)


def divided(tr: Tracer, a: Value, b: Value) -> Value:
    """``divmod(a, b)``."""
    if isinstance(a, Const) and isinstance(b, Const):
        return tr.computed(natively(divmod, a.value, b.value), a, b)
    if isinstance(b, ScalarValue) and b.value == 0 and isinstance(a, (Const, SymInt, ScalarValue)):  # it has its own words
        return folded(tr, divmod, a, b)
    made = _object_binary(tr, "divmod", a, b, False)
    if made is not None:
        return made
    if not all(isinstance(v, (Const, SymInt, ScalarValue, ArrayValue)) for v in (a, b)):
        raise GraphBreak("user-exception", f"divmod() of {a.describe()} and {b.describe()}")
    return TupleValue([binary(tr, "//", a, b), binary(tr, "%", a, b)])


def contents(a: Value, b: Value, mine: tuple[str, ...], theirs: tuple[str, ...]) -> tuple[Value, Value]:
    """The built-in containers in instances of the program's subclasses, unless one of these has its own such operator."""
    left, right = contents_of(a, *mine), contents_of(b, *theirs)
    own = (left is a and contents_of(a) is not a) or (right is b and contents_of(b) is not b)
    return (a, b) if own else (left, right)


def class_name(tr: Tracer, value: Value) -> str:
    """As errors of operators name an operand's class."""
    return value.python_type(tr).__name__


def _tensor_binary(tr: Tracer, symbol: str, a: Value, b: Value, inplace: bool) -> Value:
    name = _METHODS[symbol]
    tries = [(a, f"__i{name}__", b)] if inplace else []
    made = by_program(tr, [*tries, (a, f"__{name}__", b), (b, f"__r{name}__", a)])
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


def by_program(tr: Tracer, tries: Sequence[tuple[Value, str, Value]]) -> Value | None:
    """What special methods of tensors give that the program replaced; None where torch's own answers first."""
    for receiver, name, other in tries:
        method = receiver.replaced(tr, name) if isinstance(receiver, TensorValue) else None
        made = answer(tr, method, other)
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
    if isinstance(a, SetValue) and a.cls is set and symbol in SET_OPERATORS and is_set(b):
        a.updated(tr, SET_OPERATORS[symbol], [b])
        return a
    return None


def is_set(value: Value) -> bool:
    """A set, or a view of a dict that acts as one."""
    return isinstance(value, SetValue) or (isinstance(value, DictView) and value.what != "values")


def _set_binary(tr: Tracer, symbol: str, a: Value, b: Value) -> Value | None:
    """Sets, and views of dicts as sets."""
    if symbol not in SET_OPERATORS or not (is_set(a) and is_set(b)):
        return None
    return operated(tr, symbol, a, b)


def _sequence_binary(tr: Tracer, symbol: str, a: Value, b: Value) -> Value | None:
    name = _METHODS[symbol]
    for value, method in ((a, f"__{name}__"), (b, f"__r{name}__")):
        if isinstance(value, TupleValue):
            value.leaves(tr, method)
    if symbol == "+" and isinstance(a, SequenceValue) and isinstance(b, SequenceValue):
        if a.family is not b.family:
            shown = f"{module_of(b.cls)}." * (module_of(b.cls) in ("torch", "collections")) + b.cls.__name__
            raise TypeError(f'can only concatenate {a.family.__name__} (not "{shown}") to {a.family.__name__}')
        if torch.Size in (a.cls, b.cls):
            return _sequence_like(a, a.values(tr) + b.values(tr), True)
        whole = next((v for v, other in ((b, a), (a, b)) if v.is_plain_tuple and not other.items), None)
        return whole or _sequence_like(a, a.values(tr) + b.values(tr), False)
    if symbol == "*" and (isinstance(a, SequenceValue) or isinstance(b, SequenceValue)):
        seq, count = (a, b) if isinstance(a, SequenceValue) else (b, a)
        assert isinstance(seq, SequenceValue)
        times = tr.index(count, "sequence")
        if seq.is_plain_tuple and times == 1:
            return seq
        items = seq.values(tr) * times
        return _sequence_like(seq, items, seq.cls is torch.Size)
    made = _set_binary(tr, symbol, a, b)
    if made is not None:
        return made
    if symbol == "|" and isinstance(a, DictValue) and isinstance(b, DictValue):
        return _united(tr, a, b)
    return None


def _unites_in_python(a: Value, b: Value, inplace: bool) -> bool:
    """Whether dicts are united of which one is of a class of the program's, in ways where C's order of who is asked counts."""
    left, right = contents_of(a), contents_of(b)
    if not (isinstance(left, DictValue) and isinstance(right, DictValue)) or (left is a and right is b):
        return False
    asked = contents_of(b, "__ror__") is b is not right
    if inplace:
        return asked and left is not a
    if contents_of(a, "__or__") is a is not left or (asked and left is a and left.cls is dict):
        return False
    return asked or not (left.cls is right.cls is dict)


def _united(tr: Tracer, a: DictValue, b: DictValue) -> DictValue:
    """``a | b``: of the class of the left one, which has the say, unless that is a plain dict: the right one's may derive
    from it."""
    decides = b if a.cls in (dict, MappingProxyType) else a
    made = DictValue(tr, [*a.pairs(tr), *b.pairs(tr)], dict if decides.cls is MappingProxyType else decides.cls)
    made.default_factory = decides.default_factory
    return made


def _sequence_like(seq: SequenceValue, items: list[Value], is_size: bool) -> Value:
    """A new sequence of the same family."""
    if isinstance(seq, DequeValue):
        return DequeValue(items, seq.maxlen)
    return ListValue(items) if seq.family is list else TupleValue(items, cls=torch.Size if is_size else tuple)


def _object_binary(tr: Tracer, symbol: str, a: Value, b: Value, inplace: bool) -> Value | None:
    name = _METHODS[symbol]
    if inplace and isinstance(a, ObjectValue):
        made = answer(tr, a.special(tr, f"__i{name}__"), b)
        if made is not None:
            return made
    elif inplace:
        made = answer(tr, tr.own_special(a, f"__i{name}__"), b)
        if made is not None:
            return made
    tries = [(a, f"__{name}__", b), (b, f"__r{name}__", a)]
    mine, theirs = a.python_type(tr), b.python_type(tr)
    if mine is theirs:
        tries.pop()  # what refuses its own kind is not asked again
    elif issubclass(theirs, mine) and class_lookup(theirs, f"__r{name}__") != class_lookup(mine, f"__r{name}__"):
        tries.reverse()
    for receiver, method, other in tries:
        made = says(tr, receiver, method, other)
        if made is not None:
            return made
    if any(_own(tr, receiver, method) is not None for receiver, method, _ in tries if not isinstance(receiver, ObjectValue)):
        raise GraphBreak("user-exception", f"{symbol} of {a.describe()} and {b.describe()}")
    return None


def _own(tr: Tracer, value: Value, name: str) -> Value | None:
    """A special method that the program wrote, for its objects or for an enumeration's members."""
    return value.special(tr, name) if isinstance(value, ObjectValue) else tr.own_special(value, name)


def says(tr: Tracer, receiver: Value, name: str, other: Value) -> Value | None:
    """What a special method gives of an object, of a member, or of a constant that is asked before or after a member."""
    own = _own(tr, receiver, name)
    if own is not None or not isinstance(receiver, Const) or not isinstance(other, Const):
        return answer(tr, own, other)
    if not (has_own_specials(receiver.value) or has_own_specials(other.value)):
        return None
    method = getattr(type(receiver.value), name, None)
    said = NotImplemented if method is None else natively(method, _for_python(tr, receiver), _for_python(tr, other))
    return None if said is NotImplemented else tr.from_python(said)


def answer(tr: Tracer, method: Value | None, other: Value) -> Value | None:
    """What a special method gives; None where there is none or it gives NotImplemented."""
    result = None if method is None else method.call(tr, [other], {})
    return None if isinstance(result, Const) and result.value is NotImplemented else result


def folded(tr: Tracer, fn: Callable[..., Any], *operands: Value) -> Value:
    """Compute on Python constants; symbolic sizes are specialised."""
    return tr.computed(natively(fn, *(_for_python(tr, v) for v in operands)), *operands)


def _for_python(tr: Tracer, value: Value) -> Any:
    """An operand whose own special methods were asked before. Python's own of flags may look for a member that there is not."""
    if not isinstance(value, Const):
        return value.constant(tr)
    found = class_lookup(type(value.value), "_missing_") if isinstance(value.value, enum.Flag) else None
    if found is not None and not trusts(found[0]):
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
        raise TypeError(f"bad operand type for unary {symbol}: {class_name(tr, a)!r}")
    own = tr.own_special(a, _UNARY_METHODS[symbol])
    if own is not None:
        return own.call(tr, [], {})
    return folded(tr, UNARY[symbol], a)
