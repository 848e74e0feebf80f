"""The rest of itertools, and ``iter`` with a sentinel."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tinycompile.base.errors import InternalError
from tinycompile.capture.breaks import GraphBreak
from tinycompile.capture.provenance import is_the_programs
from tinycompile.capture.rules.registry import Args, rule
from tinycompile.capture.values.base import Kwargs, Value
from tinycompile.capture.values.constant import NONE, Const
from tinycompile.capture.values.iterator import IteratorValue
from tinycompile.capture.values.object import ObjectValue
from tinycompile.capture.values.sequence import TupleValue

if TYPE_CHECKING:
    from tinycompile.capture.tracer import Tracer


class _Truths(Iterator[bool]):
    """Whether each of some values is true."""

    def __init__(self, tr: Tracer, values: Iterator[Value]) -> None:
        self.tr, self.values = tr, values

    def __next__(self) -> bool:
        return next(self.values).truth(self.tr)


@rule(itertools.compress)
def _compress(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    data, selectors = (a.iterate(tr) for a in args)
    return IteratorValue(itertools.compress(data, _Truths(tr, selectors)))


@rule(itertools.takewhile)
def _takewhile(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    return IteratorValue(itertools.takewhile(lambda v: args[0].call(tr, [v], {}).truth(tr), args[1].iterate(tr)))


@rule(itertools.dropwhile)
def _dropwhile(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    return IteratorValue(itertools.dropwhile(lambda v: args[0].call(tr, [v], {}).truth(tr), args[1].iterate(tr)))


@rule(itertools.filterfalse)
def _filterfalse(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    test, plain = args[0], tr.identical(args[0], NONE)
    return IteratorValue(
        itertools.filterfalse(lambda v: (v if plain else test.call(tr, [v], {})).truth(tr), args[1].iterate(tr))
    )


@rule(itertools.combinations_with_replacement)
def _combinations(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    items = list(args[0].iterate(tr))
    return IteratorValue(map(TupleValue, itertools.combinations_with_replacement(items, tr.index(args[1], "combinations"))))


@rule(itertools.groupby)
def _groupby(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    key = kwargs.get("key", args[1] if len(args) > 1 else NONE)
    return IteratorValue(_Groups(tr, args[0].iterate(tr), key))


class _Groups(Iterator[Value]):
    """``groupby``: runs of equal keys. Going on to the next group drops what is left of the one before.

    ``ahead``: the value that was asked for and not given yet, and its key; ``of``: the key of the group that was given last."""

    def __init__(self, tr: Tracer, values: Iterator[Value], key: Value) -> None:
        self.tr, self.values = tr, values
        self.key = None if tr.identical(key, NONE) else key
        self.ahead: tuple[Value, Value] | None = None
        self.of: Value | None = None
        self.group: _Group | None = None

    def __next__(self) -> Value:
        self.group = None
        while self.ahead is None or (self.of is not None and self.tr.equal(self.of, self.ahead[1])):
            self.ahead = self.asked()
        self.of = self.ahead[1]
        self.group = _Group(self, self.of)
        return TupleValue([self.of, IteratorValue(self.group)])

    def asked(self) -> tuple[Value, Value]:
        """The next value, with its key."""
        value = next(self.values, None)
        if value is None:
            raise StopIteration
        return value, value if self.key is None else self.key.call(self.tr, [value], {})


class _Group(Iterator[Value]):
    """One group, as long as the next one was not asked for."""

    def __init__(self, groups: _Groups, of: Value) -> None:
        self.groups, self.of = groups, of

    def __next__(self) -> Value:
        groups = self.groups
        if groups.group is not self:
            raise StopIteration
        groups.ahead = groups.ahead or groups.asked()
        value, key = groups.ahead
        if not groups.tr.equal(self.of, key):
            raise StopIteration
        groups.ahead = None
        return value


@rule(itertools.tee)
def _tee(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    iterator, count = tr.iter(args[0]), tr.index(args[1], "tee") if len(args) > 1 else 2
    if isinstance(iterator, ObjectValue) and iterator.may_have("__copy__"):
        raise GraphBreak("unsupported-value", f"tee() of {iterator.describe()}, which has a way of its own of being copied")
    source = tr.steps(tr.iter(iterator))  # (Python asks what it is given for an iterator, and that again)
    queues: list[deque[Value]] = [deque() for _ in range(count)]
    return TupleValue([IteratorValue(_Branch(source, queues, q)) for q in queues])


class _Branch(Iterator[Value]):
    """One of the iterators of ``tee``: what others asked the source for, and then the source."""

    def __init__(self, source: Iterator[Value], queues: list[deque[Value]], mine: deque[Value]) -> None:
        self.source, self.queues, self.mine = source, queues, mine

    def __next__(self) -> Value:
        if not self.mine:
            value = next(self.source, None)
            if value is None:
                raise StopIteration
            for queue in self.queues:
                queue.append(value)
        return self.mine.popleft()


def until(tr: Tracer, make: Value, sentinel: Value) -> Value:
    """``iter(make, sentinel)``."""
    return IteratorValue(_Until(tr, make, sentinel))


class _Until(Iterator[Value]):
    """Calls of a function until one gives the sentinel, or raises StopIteration; behind any other error it is called again."""

    def __init__(self, tr: Tracer, make: Value, sentinel: Value) -> None:
        self.tr, self.make, self.sentinel = tr, make, sentinel
        self.ended = False

    def __next__(self) -> Value:
        if self.ended:
            raise StopIteration
        try:
            value = self.make.call(self.tr, [], {})
        except StopIteration as error:
            if not is_the_programs(error):
                raise InternalError("StopIteration came up in capture") from error
            self.ended = True
            raise StopIteration from None
        if self.tr.equal(value, self.sentinel):
            self.ended = True
            raise StopIteration
        return value


@rule(itertools.count)
def _count(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    start = kwargs.get("start", args[0] if args else Const(0))
    step = kwargs.get("step", args[1] if len(args) > 1 else Const(1))

    def values() -> Iterator[Value]:
        value = start
        while True:
            yield value
            value = tr.binary("+", value, step)

    return IteratorValue(values())
