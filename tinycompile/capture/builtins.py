"""Functions written in C, and classes that are called: what each means on Values."""

from __future__ import annotations

import collections
import contextlib
import copy
import functools
import itertools
import math
import operator
import typing
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from tinycompile.base import shapes
from tinycompile.capture import torch_calls
from tinycompile.capture.breaks import graph_break
from tinycompile.capture.values.base import Kwargs, MethodOf, Value
from tinycompile.capture.values.constant import NONE, Const, boolean
from tinycompile.capture.values.context import NullContext
from tinycompile.capture.values.function import BoundFunction, BuiltinValue, FunctionValue, PartialValue
from tinycompile.capture.values.iterator import IteratorValue
from tinycompile.capture.values.mapping import DictValue
from tinycompile.capture.values.module import ModuleValue
from tinycompile.capture.values.object import ClassValue, ObjectValue
from tinycompile.capture.values.sequence import ListValue, SetValue, SliceValue, TupleValue
from tinycompile.capture.values.symbolic import SymInt
from tinycompile.capture.values.tensor import TensorValue

if TYPE_CHECKING:
    from tinycompile.capture.tracer import Tracer

Args = Sequence[Value]
Rule = Callable[["Tracer", Args, Kwargs], Value]
RULES: dict[Any, Rule] = {}


def rule(*fns: Any) -> Callable[[Rule], Rule]:
    """Register what calls of these functions mean."""

    def register(handler: Rule) -> Rule:
        for fn in fns:
            RULES[fn] = handler
        return handler

    return register


def call(tr: Tracer, fn: Any, args: Args, kwargs: Kwargs) -> Value:
    """A call of a builtin, of a function of the standard library written in C, or of torch's."""
    try:
        handler = RULES.get(fn)
    except TypeError:
        handler = None
    if handler is not None:
        return handler(tr, args, kwargs)
    if fn in _PURE and all(v.is_constant or isinstance(v, SymInt) for v in (*args, *kwargs.values())):
        return tr.from_python(fn(*(a.constant(tr) for a in args), **{k: v.constant(tr) for k, v in kwargs.items()}))
    owner = getattr(fn, "__objclass__", None)
    if owner is not None and args and not issubclass(owner, torch._C.TensorBase):  # list.append(x, y): an unbound method
        return args[0].call_method(tr, fn.__name__, args[1:], kwargs)
    receiver = getattr(fn, "__self__", None)
    if owner is None and isinstance(receiver, (str, bytes, range, dict, list, tuple)):  # a bound C method from outside
        return tr.from_python(receiver).call_method(tr, fn.__name__, args, kwargs)
    if is_torch(fn):
        return torch_calls.call_torch(tr, fn, args, kwargs)
    graph_break("unknown-function", BuiltinValue(fn).describe())


def is_torch(fn: Any) -> bool:
    """Whether a C function is torch's."""
    module = getattr(fn, "__module__", None) or ""
    owner = getattr(fn, "__objclass__", None) or getattr(fn, "__self__", None)
    name = getattr(owner, "__module__", None) or getattr(type(owner), "__module__", "") if owner is not None else ""
    return module.startswith("torch") or str(name).startswith("torch")


_PURE = frozenset({
    *(f for f in vars(math).values() if callable(f)),
    divmod, round, pow, ord, chr, hex, bin, oct, ascii, format, hash, operator.index, operator.truth, operator.concat,
    str.maketrans, int.from_bytes, float.fromhex,
})  # fmt: skip


# --- types and attributes ---------------------------------------------------------------------------------------------------------


@rule(len)
def _len(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    return args[0].length(tr)


@rule(isinstance)
def _isinstance(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    classes = _classes(tr, args[1])
    cls = args[0].python_type(tr)
    if isinstance(args[0], TensorValue) and cls is not torch.nn.Parameter and any(c is torch.nn.Parameter for c in classes):
        classes = tuple(c for c in classes if c is not torch.nn.Parameter)  # its metaclass looks at the instance
    return boolean(any(_is_subclass(cls, c) for c in classes))


@rule(issubclass)
def _issubclass(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    if not isinstance(args[0], ClassValue):
        raise TypeError("issubclass() arg 1 must be a class")
    return boolean(any(_is_subclass(args[0].cls, c) for c in _classes(tr, args[1])))


def _is_subclass(cls: type, other: Any) -> bool:
    if other in (torch.FloatTensor, torch.cuda.FloatTensor):
        graph_break("unsupported-value", f"isinstance(..., {other})")
    return issubclass(cls, other)


def _classes(tr: Tracer, value: Value) -> tuple[Any, ...]:
    if isinstance(value, ClassValue):
        return (value.cls,)
    if isinstance(value, TupleValue):
        return tuple(c for v in value.values(tr) for c in _classes(tr, v))
    if isinstance(value, BuiltinValue) or (isinstance(value, ObjectValue) and hasattr(value.obj, "__args__")):
        plain = value.fn if isinstance(value, BuiltinValue) else value.obj
        return tuple(type(None) if c is None else c for c in getattr(plain, "__args__", (plain,)))
    graph_break("unsupported-value", f"isinstance of {value.describe()}")


@rule(type)
def _type(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    if len(args) != 1:
        graph_break("unsupported-value", "a class is made")
    return tr.from_python(args[0].python_type(tr))


@rule(getattr)
def _getattr(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    try:
        return args[0].get_attr(tr, args[1].constant(tr))
    except AttributeError:
        if len(args) < 3:
            raise
        return args[2]


@rule(hasattr)
def _hasattr(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    return boolean(args[0].has_attr(tr, args[1].constant(tr)))


@rule(setattr)
def _setattr(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    args[0].set_attr(tr, args[1].constant(tr), args[2])
    return NONE


@rule(callable)
def _callable(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    if isinstance(args[0], (FunctionValue, BoundFunction, BuiltinValue, PartialValue, ClassValue, ModuleValue, MethodOf)):
        return boolean(True)
    return boolean(hasattr(args[0].python_type(tr), "__call__"))


@rule(print)
def _print(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    graph_break("print", "print()")


@rule(id)
def _id(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    graph_break("unsupported-value", "id()")


# --- conversions ------------------------------------------------------------------------------------------------------------------


@rule(int)
def _int(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    if len(args) == 1 and isinstance(args[0], SymInt):
        return args[0]
    return _converted(tr, int, args, kwargs)


@rule(float)
def _float(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    return _converted(tr, float, args, kwargs)


@rule(complex)
def _complex(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    return _converted(tr, complex, args, kwargs)


def _converted(tr: Tracer, cls: type, args: Args, kwargs: Kwargs) -> Value:
    return Const(cls(*(a.constant(tr) for a in args), **{k: v.constant(tr) for k, v in kwargs.items()}))


@rule(bool)
def _bool(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    return boolean(args[0].truth(tr)) if args else boolean(False)


@rule(operator.truth)
def _truth(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    return boolean(args[0].truth(tr))


@rule(operator.not_)
def _not(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    return boolean(not args[0].truth(tr))


@rule(str)
def _str(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    return Const(str(tr.printable(args[0]))) if args else Const("")


@rule(repr)
def _repr(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    return Const(repr(tr.printable(args[0])))


@rule(format)
def _format(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    return Const(format(tr.printable(args[0]), *(a.constant(tr) for a in args[1:])))


@rule(list)
def _list(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    return ListValue(args[0].iterate(tr) if args else ())


@rule(tuple)
def _tuple(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    if args and isinstance(args[0], TupleValue) and args[0].cls is tuple:
        return args[0]
    return TupleValue(args[0].iterate(tr) if args else ())


@rule(torch.Size)
def _size(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    return TupleValue(args[0].iterate(tr) if args else (), cls=torch.Size)


@rule(set)
def _set(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    return SetValue(tr, args[0].iterate(tr) if args else ())


@rule(frozenset)
def _frozenset(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    return SetValue(tr, args[0].iterate(tr) if args else (), frozenset)


@rule(dict)
def _dict(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    return _mapping(tr, dict, args, kwargs)


@rule(collections.OrderedDict)
def _ordered_dict(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    return _mapping(tr, collections.OrderedDict, args, kwargs)


@rule(collections.defaultdict)
def _defaultdict(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    made = _mapping(tr, collections.defaultdict, args[1:], kwargs)
    made.default_factory = args[0] if args and args[0] is not NONE else None
    return made


def _mapping(tr: Tracer, cls: type, args: Args, kwargs: Kwargs) -> DictValue:
    made = DictValue(tr, (), cls)
    for other in args:
        made.update(tr, other)
    for key, value in kwargs.items():
        made.set_item(tr, Const(key), value)
    return made


@rule(slice)
def _slice(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    parts = [NONE, args[0], NONE] if len(args) == 1 else [*args, *[NONE] * (3 - len(args))]
    return SliceValue(*parts)


# --- iteration --------------------------------------------------------------------------------------------------------------------


@rule(range)
def _range(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    return Const(range(*(tr.index(a, "range") for a in args)))


@rule(iter)
def _iter(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    if len(args) != 1:
        graph_break("unsupported-value", "iter() with a sentinel")
    return tr.iter(args[0])


@rule(next)
def _next(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    if not isinstance(args[0], IteratorValue):
        graph_break("unsupported-value", f"next() of {args[0].describe()}")
    value = args[0].next()
    if value is None:
        if len(args) < 2:
            raise StopIteration
        return args[1]
    return value


def _lazily(make: Callable[[Tracer, Args, Kwargs], Iterator[Value]], *fns: Any) -> None:
    for fn in fns:
        RULES[fn] = lambda tr, args, kwargs: IteratorValue(make(tr, args, kwargs))


def _enumerate(tr: Tracer, args: Args, kwargs: Kwargs) -> Iterator[Value]:
    start = tr.index(kwargs.get("start", args[1] if len(args) > 1 else Const(0)), "enumerate")
    return (TupleValue([Const(i), v]) for i, v in enumerate(args[0].iterate(tr), start))


def _zip(tr: Tracer, args: Args, kwargs: Kwargs) -> Iterator[Value]:
    strict = kwargs.get("strict", Const(False)).truth(tr)
    return (TupleValue(vs) for vs in zip(*(a.iterate(tr) for a in args), strict=strict))


def _zip_longest(tr: Tracer, args: Args, kwargs: Kwargs) -> Iterator[Value]:
    fill = kwargs.get("fillvalue", NONE)
    return (TupleValue(vs) for vs in itertools.zip_longest(*(a.iterate(tr) for a in args), fillvalue=fill))


def _map(tr: Tracer, args: Args, kwargs: Kwargs) -> Iterator[Value]:
    return (args[0].call(tr, list(vs), {}) for vs in zip(*(a.iterate(tr) for a in args[1:]), strict=False))


def _starmap(tr: Tracer, args: Args, kwargs: Kwargs) -> Iterator[Value]:
    return (args[0].call(tr, list(v.iterate(tr)), {}) for v in args[1].iterate(tr))


def _filter(tr: Tracer, args: Args, kwargs: Kwargs) -> Iterator[Value]:
    test = args[0]
    return (v for v in args[1].iterate(tr) if (v if test is NONE or _is_none(test) else test.call(tr, [v], {})).truth(tr))


def _is_none(value: Value) -> bool:
    return isinstance(value, Const) and value.value is None


def _reversed(tr: Tracer, args: Args, kwargs: Kwargs) -> Iterator[Value]:
    if isinstance(args[0], ObjectValue) and not isinstance(args[0], ModuleValue):
        graph_break("unsupported-value", f"reversed({args[0].describe()})")
    if isinstance(args[0], Const) and isinstance(args[0].value, range):
        return map(Const, reversed(args[0].value))
    return reversed(list(args[0].iterate(tr)))


def _islice(tr: Tracer, args: Args, kwargs: Kwargs) -> Iterator[Value]:
    return itertools.islice(args[0].iterate(tr), *(a.constant(tr) for a in args[1:]))


def _accumulate(tr: Tracer, args: Args, kwargs: Kwargs) -> Iterator[Value]:
    fn = kwargs.get("func", args[1] if len(args) > 1 else None)
    initial = kwargs.get("initial")
    add = (lambda a, b: tr.binary("+", a, b)) if fn is None else (lambda a, b: fn.call(tr, [a, b], {}))
    return itertools.accumulate(args[0].iterate(tr), add, initial=initial)


def _product(tr: Tracer, args: Args, kwargs: Kwargs) -> Iterator[Value]:
    repeat = tr.index(kwargs.get("repeat", Const(1)), "product")
    return map(TupleValue, itertools.product(*(list(a.iterate(tr)) for a in args), repeat=repeat))


def _repeat(tr: Tracer, args: Args, kwargs: Kwargs) -> Iterator[Value]:
    times = kwargs.get("times", args[1] if len(args) > 1 else None)
    return itertools.repeat(args[0]) if times is None else itertools.repeat(args[0], tr.index(times, "repeat"))


def _count(tr: Tracer, args: Args, kwargs: Kwargs) -> Iterator[Value]:
    return map(Const, itertools.count(*(a.constant(tr) for a in args)))


for _make, _fns in (
    (_enumerate, [enumerate]), (_zip, [zip]), (_zip_longest, [itertools.zip_longest]), (_map, [map]), (_starmap, [itertools.starmap]),
    (_filter, [filter]), (_reversed, [reversed]), (_islice, [itertools.islice]), (_accumulate, [itertools.accumulate]),
    (_product, [itertools.product]), (_repeat, [itertools.repeat]), (_count, [itertools.count]),
    (lambda tr, args, kwargs: (v for a in args for v in a.iterate(tr)), [itertools.chain]),
    (lambda tr, args, kwargs: (v for a in args[0].iterate(tr) for v in a.iterate(tr)), [itertools.chain.from_iterable]),
    (lambda tr, args, kwargs: map(TupleValue, itertools.combinations(list(args[0].iterate(tr)), args[1].constant(tr))),
     [itertools.combinations]),
    (lambda tr, args, kwargs: map(TupleValue, itertools.permutations(list(args[0].iterate(tr)), *(a.constant(tr) for a in args[1:]))),
     [itertools.permutations]),
    (lambda tr, args, kwargs: map(TupleValue, itertools.pairwise(args[0].iterate(tr))), [itertools.pairwise]),
    (lambda tr, args, kwargs: itertools.cycle(list(args[0].iterate(tr))), [itertools.cycle]),
):  # fmt: skip
    _lazily(_make, *_fns)


# --- folds ------------------------------------------------------------------------------------------------------------------------


@rule(sum)
def _sum(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    total: Value = kwargs.get("start", args[1] if len(args) > 1 else Const(0))
    for v in args[0].iterate(tr):
        total = tr.binary("+", total, v)
    return total


@rule(math.prod)
def _prod(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    total: Value = kwargs.get("start", Const(1))
    for v in args[0].iterate(tr):
        total = tr.binary("*", total, v)
    return total


@rule(any)
def _any(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    return boolean(any(v.truth(tr) for v in args[0].iterate(tr)))


@rule(all)
def _all(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    return boolean(all(v.truth(tr) for v in args[0].iterate(tr)))


@rule(functools.reduce)
def _reduce(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    values = [*args[2:3], *args[1].iterate(tr)]
    if not values:
        raise TypeError("reduce() of empty iterable with no initial value")
    total = values[0]
    for v in values[1:]:
        total = args[0].call(tr, [total, v], {})
    return total


def _extremum(symbol: str, name: str) -> Rule:
    def handler(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
        key = kwargs.get("key")
        values = list(args[0].iterate(tr)) if len(args) == 1 else list(args)
        if not values:
            if "default" in kwargs:
                return kwargs["default"]
            raise ValueError(f"{name}() iterable argument is empty")
        keyed = [(v if key is None or _is_none(key) else key.call(tr, [v], {}), v) for v in values]
        best = keyed[0]
        for candidate in keyed[1:]:
            if tr.compare(symbol, candidate[0], best[0]).truth(tr):
                best = candidate
        return best[1]

    return handler


RULES[min] = _extremum("<", "min")
RULES[max] = _extremum(">", "max")


@rule(sorted)
def _sorted(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    return ListValue(sort(tr, list(args[0].iterate(tr)), kwargs))


def sort(tr: Tracer, values: list[Value], kwargs: Kwargs) -> list[Value]:
    """Stable, by ``key``, ``reverse`` as ``sorted`` has it."""
    key = kwargs.get("key")
    keys = values if key is None or _is_none(key) else [key.call(tr, [v], {}) for v in values]

    def order(i: int, j: int) -> int:
        return -1 if tr.compare("<", keys[i], keys[j]).truth(tr) else int(tr.compare("<", keys[j], keys[i]).truth(tr))

    reverse = kwargs.get("reverse", Const(False)).truth(tr)
    return [values[i] for i in sorted(range(len(values)), key=functools.cmp_to_key(order), reverse=reverse)]


@rule(abs)
def _abs(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    if isinstance(args[0], TensorValue):
        return args[0].call_method(tr, "abs", [], {})
    if isinstance(args[0], SymInt):
        return args[0] if shapes.at_least(args[0].dim, 0) else tr.unary("-", args[0])
    return Const(abs(args[0].constant(tr)))


@rule(divmod)
def _divmod(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    return TupleValue([tr.binary("//", *args), tr.binary("%", *args)])


@rule(pow)
def _pow(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    if len(args) == 2:
        return tr.binary("**", *args)
    return Const(pow(*(a.constant(tr) for a in args)))


def _rounded(fn: Any) -> None:
    def handler(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
        return args[0] if isinstance(args[0], SymInt) else tr.from_python(fn(*(a.constant(tr) for a in args)))

    RULES[fn] = handler


for _fn in (math.floor, math.ceil, math.trunc):
    _rounded(_fn)


# --- operators as functions -------------------------------------------------------------------------------------------------------


def _as_operators() -> None:
    for symbol, name in (
        ("+", "add"), ("-", "sub"), ("*", "mul"), ("/", "truediv"), ("//", "floordiv"), ("%", "mod"), ("**", "pow"), ("@", "matmul"),
        ("&", "and_"), ("|", "or_"), ("^", "xor"), ("<<", "lshift"), (">>", "rshift"),
    ):  # fmt: skip
        RULES[getattr(operator, name)] = lambda tr, args, kwargs, s=symbol: tr.binary(s, *args)
        RULES[getattr(operator, "i" + name.rstrip("_"))] = lambda tr, args, kwargs, s=symbol: tr.binary(s + "=", *args)
    for symbol, name in (("<", "lt"), ("<=", "le"), ("==", "eq"), ("!=", "ne"), (">", "gt"), (">=", "ge")):
        RULES[getattr(operator, name)] = lambda tr, args, kwargs, s=symbol: tr.compare(s, *args)
    for symbol, name in (("-", "neg"), ("+", "pos"), ("~", "invert")):
        RULES[getattr(operator, name)] = lambda tr, args, kwargs, s=symbol: tr.unary(s, *args)
    RULES[operator.is_] = lambda tr, args, kwargs: boolean(tr.identical(*args))
    RULES[operator.is_not] = lambda tr, args, kwargs: boolean(not tr.identical(*args))
    RULES[operator.contains] = lambda tr, args, kwargs: boolean(args[0].contains(tr, args[1]))
    RULES[operator.getitem] = lambda tr, args, kwargs: args[0].get_item(tr, args[1])


_as_operators()


@rule(operator.setitem)
def _setitem(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    args[0].set_item(tr, args[1], args[2])
    return NONE


# --- makers -----------------------------------------------------------------------------------------------------------------------


@rule(functools.partial)
def _partial(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    return PartialValue(args[0], args[1:], kwargs)


@rule(contextlib.nullcontext)
def _nullcontext(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    return NullContext(kwargs.get("enter_result", args[0] if args else NONE))


@rule(typing.cast)
def _typing_cast(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    return args[1]


@rule(copy.copy)
def _copy(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    if isinstance(args[0], (ListValue, DictValue)):
        return args[0].call_method(tr, "copy", [], {})
    if args[0].is_constant:
        return args[0]
    graph_break("unsupported-value", f"copy.copy({args[0].describe()})")


@rule(super)
def _super(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    if not args:
        args = tr.super_arguments()
    if len(args) != 2 or not isinstance(args[0], ClassValue) or not isinstance(args[1], ObjectValue):
        graph_break("unsupported-value", "super() of something that is no object")
    return SuperValue(args[0], args[1])


class SuperValue(Value):
    """``super()`` as an object (3.11; later versions have an instruction)."""

    __slots__ = ("cls", "receiver")

    def __init__(self, cls: ClassValue, receiver: ObjectValue) -> None:
        super().__init__()
        self.cls, self.receiver = cls, receiver

    def get_attr(self, tr: Tracer, name: str) -> Value:
        return tr.super_attribute(self.cls, self.receiver, name)


def call_class(tr: Tracer, cls: Any, args: Args, kwargs: Kwargs) -> Value:
    """``cls(...)``."""
    handler = RULES.get(cls)
    if handler is not None:
        return handler(tr, args, kwargs)
    if cls in _CONSTANT_CLASSES or (cls.__module__ == "torch" and cls in (torch.device, torch.finfo, torch.iinfo)):
        return Const(cls(*(a.constant(tr) for a in args), **{k: v.constant(tr) for k, v in kwargs.items()}))
    if hasattr(cls, "_make") and hasattr(cls, "_fields"):
        return _named_tuple(tr, cls, args, kwargs)
    if cls.__module__ == "torch.return_types":
        return TupleValue(args[0].iterate(tr), cls=cls)
    if issubclass(cls, BaseException):
        graph_break("user-exception", f"{cls.__name__} was made")
    if issubclass(cls, torch.Tensor):
        graph_break("unsupported-value", f"a {cls.__name__} is made")
    graph_break("unsupported-value", f"an object of class {cls.__qualname__} is made")


_CONSTANT_CLASSES: frozenset[type] = frozenset({torch.device, torch.finfo, torch.iinfo, bytes})


def _named_tuple(tr: Tracer, cls: Any, args: Args, kwargs: Kwargs) -> Value:
    if len(args) > len(cls._fields):
        raise TypeError(f"{cls.__name__}.__new__() takes {len(cls._fields) + 1} positional arguments but {len(args) + 1} were given")
    given = {**dict(zip(cls._fields, args, strict=False)), **kwargs}
    for name, default in cls._field_defaults.items():
        given.setdefault(name, tr.from_python(default))
    if set(given) != set(cls._fields):
        raise TypeError(f"{cls.__name__}.__new__() got the wrong arguments")
    return TupleValue([given[name] for name in cls._fields], cls=cls)

