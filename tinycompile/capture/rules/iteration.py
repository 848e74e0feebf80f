"""Iterators of builtins and itertools, folds over them, and sorting."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from tinycompile.base import shapes
from tinycompile.base.errors import InternalError
from tinycompile.capture.breaks import GraphBreak
from tinycompile.capture.bytecode import VERSION
from tinycompile.capture.provenance import is_the_programs, natively
from tinycompile.capture.rules.iterators import until
from tinycompile.capture.rules.registry import RULES, Args, Rule, rule
from tinycompile.capture.values import scalar
from tinycompile.capture.values.array import ArrayValue
from tinycompile.capture.values.base import Kwargs, Value
from tinycompile.capture.values.constant import NONE, Const, boolean
from tinycompile.capture.values.container import contents_of
from tinycompile.capture.values.iterator import IteratorValue
from tinycompile.capture.values.mapping import DictValue, DictView
from tinycompile.capture.values.module import ModuleValue
from tinycompile.capture.values.object import ObjectValue
from tinycompile.capture.values.scalar import ScalarValue
from tinycompile.capture.values.sequence import ListValue, TupleValue
from tinycompile.capture.values.sets import SetValue
from tinycompile.capture.values.symbolic import SymInt
from tinycompile.capture.values.tensor import TensorValue

if TYPE_CHECKING:
    from tinycompile.capture.tracer import Tracer


@rule(range)
def _range(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    return tr.computed(natively(range, *(tr.index(a, "range") for a in args)))


@rule(iter)
def _iter(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    return tr.iter(args[0]) if len(args) == 1 else until(tr, *args)


@rule(next)
def _next(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    if isinstance(args[0], ObjectValue):
        if len(args) == 1 or args[0].special(tr, "__next__") is None:
            return args[0].required(tr, "__next__").call(tr, [], {})
        value, _ = args[0].step(tr)
        return args[1] if value is None else value
    if not isinstance(args[0], IteratorValue):
        raise GraphBreak("unsupported-value", f"next() of {args[0].describe()}")
    if len(args) < 2:
        return tr.next(args[0])
    value = args[0].next(tr)
    return args[1] if value is None else value


def _lazily(make: Callable[[Tracer, Args, Kwargs], Iterator[Value]], *fns: Any) -> None:
    for fn in fns:
        RULES[fn] = lambda tr, args, kwargs: IteratorValue(make(tr, args, kwargs))


def _enumerate(tr: Tracer, args: Args, kwargs: Kwargs) -> Iterator[Value]:
    start = tr.index(kwargs.get("start", args[1] if len(args) > 1 else Const(0)), "enumerate")
    return map(_numbered, enumerate(args[0].iterate(tr), start))


def _numbered(pair: tuple[int, Value]) -> Value:
    return TupleValue([Const(pair[0]), pair[1]])


def _zip(tr: Tracer, args: Args, kwargs: Kwargs) -> Iterator[Value]:
    strict = kwargs.get("strict", Const(False)).truth(tr)
    return _Together([a.iterate(tr) for a in args], strict)


class _Together(Iterator[Value]):
    """``zip``. Behind the end the first is asked again."""

    def __init__(self, sources: list[Iterator[Value]], strict: bool) -> None:
        self.sources, self.strict = sources, strict

    def __next__(self) -> Value:
        found: list[Value] = []
        for at, source in enumerate(self.sources):
            value = next(source, None) if self.strict else next(source)
            if value is None:
                self._check_ended(at)
                break
            found.append(value)
        if len(found) < max(len(self.sources), 1):
            raise StopIteration
        return TupleValue(found)

    def _check_ended(self, at: int) -> None:
        """Complain, as ``strict`` asks for, where not all are at their ends now that one is."""
        if at:
            raise ValueError(f"zip() argument {at + 1} is shorter than argument{' ' if at == 1 else 's 1-'}{at}")
        for more, other in enumerate(self.sources[1:], 1):
            if next(other, None) is not None:
                words = f"argument{' ' if more == 1 else 's 1-'}{more}"
                raise ValueError(f"zip() argument {more + 1} is longer than {words}")


def _zip_longest(tr: Tracer, args: Args, kwargs: Kwargs) -> Iterator[Value]:
    fill = kwargs.get("fillvalue", NONE)
    return map(TupleValue, itertools.zip_longest(*(a.iterate(tr) for a in args), fillvalue=fill))


def _map(tr: Tracer, args: Args, kwargs: Kwargs) -> Iterator[Value]:
    return map(_calling(tr, args[0]), *(a.iterate(tr) for a in args[1:]))


def _calling(tr: Tracer, fn: Value) -> Callable[..., Value]:
    """The program's function, for an iterator of Python's: StopIteration from it ends that, as it would in the program."""

    def call(*values: Value) -> Value:
        try:
            return fn.call(tr, values, {})
        except StopIteration as error:
            if is_the_programs(error):
                raise
            raise InternalError("StopIteration came up in capture") from error

    return call


def _starmap(tr: Tracer, args: Args, kwargs: Kwargs) -> Iterator[Value]:
    return itertools.starmap(_calling(tr, args[0]), map(_iterating(tr), args[1].iterate(tr)))


def _iterating(tr: Tracer) -> Callable[[Value], Iterator[Value]]:
    return lambda value: value.iterate(tr)


def _filter(tr: Tracer, args: Args, kwargs: Kwargs) -> Iterator[Value]:
    call = None if _is_none(args[0]) else _calling(tr, args[0])
    return filter(lambda v: (v if call is None else call(v)).truth(tr), args[1].iterate(tr))


def _is_none(value: Value) -> bool:
    return isinstance(value, Const) and value.value is None


@rule(reversed)
def _reversed(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    """What ``__reversed__`` gives, be it an iterator or not: a tensor's is a tensor. Else an iterator from the end."""
    if isinstance(args[0], TensorValue):
        return args[0].get_attr(tr, "__reversed__").call(tr, [], {})
    if isinstance(args[0], ObjectValue) and not isinstance(args[0], ModuleValue):
        method = args[0].special(tr, "__reversed__")
        if method is not None:
            return method.call(tr, [], {})
    return IteratorValue(_from_the_end(tr, args))


def _from_the_end(tr: Tracer, args: Args) -> Iterator[Value]:
    if isinstance(args[0], ObjectValue) and not isinstance(args[0], ModuleValue):
        if contents_of(args[0]) is args[0]:
            raise GraphBreak("unsupported-value", f"reversed({args[0].describe()})")
    if isinstance(args[0], Const) and isinstance(args[0].value, range):
        return map(Const, reversed(args[0].value))
    if not hasattr(args[0].python_type(tr), "__reversed__") and not hasattr(args[0].python_type(tr), "__getitem__"):
        raise GraphBreak("user-exception", f"reversed({args[0].describe()})")
    if isinstance(args[0], DictView):
        return args[0].iterate(tr, backwards=True)
    of = contents_of(args[0])
    if isinstance(of, TupleValue) and contents_of(args[0], "__len__", "__getitem__") is not of:  # (list has a way of its own)
        raise GraphBreak("unsupported-value", f"reversed({args[0].describe()})")
    return of.each_key(backwards=True) if isinstance(of, DictValue) else reversed(list(of.iterate(tr)))


def _islice(tr: Tracer, args: Args, kwargs: Kwargs) -> Iterator[Value]:
    return natively(itertools.islice, args[0].iterate(tr), *(a.constant(tr) for a in args[1:]))


def _accumulate(tr: Tracer, args: Args, kwargs: Kwargs) -> Iterator[Value]:
    fn = kwargs.get("func", args[1] if len(args) > 1 else None)
    initial = kwargs.get("initial")
    add = (lambda a, b: tr.binary("+", a, b)) if fn is None else (lambda a, b: fn.call(tr, [a, b], {}))
    return itertools.accumulate(args[0].iterate(tr), add, initial=initial)


def _product(tr: Tracer, args: Args, kwargs: Kwargs) -> Iterator[Value]:
    repeat = tr.index(kwargs.get("repeat", Const(1)), "product")
    return map(TupleValue, itertools.product(*(list(a.filling(tr)) for a in args), repeat=repeat))


def _repeat(tr: Tracer, args: Args, kwargs: Kwargs) -> Iterator[Value]:
    given = [*args, *(kwargs[name] for name in ("object", "times") if name in kwargs)]
    return itertools.repeat(given[0]) if len(given) == 1 else itertools.repeat(given[0], tr.index(given[1], "repeat"))


for _make, _fns in (
    (_enumerate, [enumerate]),
    (_zip, [zip]),
    (_zip_longest, [itertools.zip_longest]),
    (_map, [map]),
    (_starmap, [itertools.starmap]),
    (_filter, [filter]),
    (_islice, [itertools.islice]),
    (_accumulate, [itertools.accumulate]),
    (_product, [itertools.product]),
    (_repeat, [itertools.repeat]),
    (lambda tr, args, kwargs: itertools.chain.from_iterable(map(_iterating(tr), args)), [itertools.chain]),
    (
        lambda tr, args, kwargs: itertools.chain.from_iterable(map(_iterating(tr), args[0].iterate(tr))),
        [itertools.chain.from_iterable],
    ),
    (
        lambda tr, args, kwargs: map(
            TupleValue, natively(itertools.combinations, list(args[0].filling(tr)), args[1].constant(tr))
        ),
        [itertools.combinations],
    ),
    (
        lambda tr, args, kwargs: map(
            TupleValue, natively(itertools.permutations, list(args[0].filling(tr)), *(a.constant(tr) for a in args[1:]))
        ),
        [itertools.permutations],
    ),
    (lambda tr, args, kwargs: map(TupleValue, itertools.pairwise(args[0].iterate(tr))), [itertools.pairwise]),
    (lambda tr, args, kwargs: itertools.cycle(args[0].iterate(tr)), [itertools.cycle]),
):
    _lazily(_make, *_fns)


# --- folds


@rule(sum)
def _sum(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    total: Value = kwargs.get("start", args[1] if len(args) > 1 else Const(0))
    if isinstance(total, Const) and isinstance(total.value, (str, bytes, bytearray)):
        raise GraphBreak("user-exception", "sum() of text")
    values, numbers = args[0].iterate(tr), list[Any]()
    rest: Iterator[Value] = iter(())
    for v in values:
        if not (isinstance(v, Const) and type(v.value) in _NUMBERS and isinstance(total, Const)):
            rest = itertools.chain((v,), values)
            break
        numbers.append(v.value)
    if numbers:  # (from 3.12 on, what rounding takes from floats is kept aside)
        start = total
        total = tr.computed(natively(sum, numbers, start.constant(tr)), start)
    for v in rest:
        if (
            VERSION >= (3, 12)
            and _is_number(tr, total)
            and _is_number(tr, v)
            and float in (total.python_type(tr), v.python_type(tr))
        ):
            raise GraphBreak("unsupported-value", "sum() of floats that change")
        total = tr.binary("+", total, v)
    return total


_NUMBERS = (int, float, bool, complex)


def _is_number(tr: Tracer, value: Value) -> bool:
    return isinstance(value, (Const, SymInt, ScalarValue)) and value.python_type(tr) in _NUMBERS


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
    values = itertools.chain(args[2:3], args[1].iterate(tr))
    total = next(values, None)
    if total is None:
        raise TypeError("reduce() of empty iterable with no initial value")
    for v in values:
        total = args[0].call(tr, [total, v], {})
    return total


def _extremum(symbol: str, name: str) -> Rule:
    def handler(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
        key = kwargs.get("key")
        best: tuple[Value, Value] | None = None
        for v in args[0].iterate(tr) if len(args) == 1 else args:
            candidate = (v if key is None or _is_none(key) else key.call(tr, [v], {}), v)
            if best is None or tr.compare(symbol, candidate[0], best[0]).truth(tr):
                best = candidate
        if best is not None:
            return best[1]
        if "default" in kwargs:
            return kwargs["default"]
        raise ValueError(f"{name}() iterable argument is empty" if VERSION >= (3, 12) else f"{name}() arg is an empty sequence")

    return handler


RULES[min] = _extremum("<", "min")
RULES[max] = _extremum(">", "max")


@rule(sorted)
def _sorted(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    values = _compared_ones(tr, args[0], kwargs)
    sort(tr, values, kwargs)
    return ListValue(values)


def _compared_ones(tr: Tracer, values: Value, kwargs: Kwargs) -> list[Value]:
    """The values of an iterable, of which all are compared: the order of a set of constants does not matter then."""
    if isinstance(values, SetValue) and values.is_constant and "key" not in kwargs:
        return values.in_any_order()
    return list(values.filling(tr))


def sort(tr: Tracer, values: list[Value], kwargs: Kwargs) -> None:
    """In place and stable, by ``key``, ``reverse`` as ``list.sort`` has it. Where a comparison fails, it stops half-way."""
    key = kwargs.get("key")
    keys = values if key is None or _is_none(key) else [key.call(tr, [v], {}) for v in values]
    reverse = kwargs.get("reverse", Const(False)).truth(tr)
    order = list(range(len(values)))
    compared = [_Compared(tr, k) for k in keys]
    before = values.copy()
    try:
        order.sort(key=compared.__getitem__, reverse=reverse)
    finally:
        values[:] = [before[i] for i in order]


class _Compared:
    """What Python's own sort compares, so that the program's ``__lt__`` is asked what it would be asked, in that order."""

    __slots__ = ("tr", "value")

    def __init__(self, tr: Tracer, value: Value) -> None:
        self.tr, self.value = tr, value

    def __lt__(self, other: _Compared) -> bool:
        return self.tr.compare("<", self.value, other.value).truth(self.tr)


@rule(abs)
def _abs(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    if isinstance(args[0], TensorValue):
        made = args[0].by_program(tr, "__abs__")
        return args[0].call_method(tr, "abs", [], {}) if made is None else made
    if isinstance(args[0], ArrayValue):
        return args[0].call_method(tr, "__abs__", [], {})
    if isinstance(args[0], SymInt):
        return args[0] if shapes.at_least(args[0].dim, 0) else tr.unary("-", args[0])
    if isinstance(args[0], ObjectValue) and (method := args[0].special(tr, "__abs__")) is not None:
        return method.call(tr, [], {})
    number = scalar.called(tr, abs, args[0])
    return tr.computed(natively(abs, args[0].constant(tr)), *args) if number is None else number


@rule(divmod)
def _divmod(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    return tr.divided(*args)


@rule(pow)
def _pow(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    if len(args) == 2:
        return tr.binary("**", *args)
    return tr.computed(natively(pow, *(a.constant(tr) for a in args)), *args)


def _rounded(fn: Any) -> None:
    def handler(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
        if isinstance(args[0], SymInt):
            return args[0]
        number = scalar.called(tr, fn, *args)
        return tr.computed(natively(fn, *(a.constant(tr) for a in args)), *args) if number is None else number

    RULES[fn] = handler


for _fn in (math.floor, math.ceil, math.trunc):
    _rounded(_fn)
