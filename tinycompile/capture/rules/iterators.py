"""The rest of itertools, and ``iter`` with a sentinel."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tinycompile.capture.rules.registry import Args, rule
from tinycompile.capture.values.base import Kwargs, Value
from tinycompile.capture.values.constant import NONE, Const
from tinycompile.capture.values.iterator import IteratorValue
from tinycompile.capture.values.sequence import TupleValue

if TYPE_CHECKING:
    from tinycompile.capture.tracer import Tracer


@rule(itertools.compress)
def _compress(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    data, selectors = (a.iterate(tr) for a in args)
    return IteratorValue(v for v, s in zip(data, selectors, strict=False) if s.truth(tr))


@rule(itertools.takewhile)
def _takewhile(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    return IteratorValue(itertools.takewhile(lambda v: args[0].call(tr, [v], {}).truth(tr), args[1].iterate(tr)))


@rule(itertools.dropwhile)
def _dropwhile(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    return IteratorValue(itertools.dropwhile(lambda v: args[0].call(tr, [v], {}).truth(tr), args[1].iterate(tr)))


@rule(itertools.filterfalse)
def _filterfalse(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    test, plain = args[0], tr.identical(args[0], NONE)
    return IteratorValue(v for v in args[1].iterate(tr) if not (v if plain else test.call(tr, [v], {})).truth(tr))


@rule(itertools.combinations_with_replacement)
def _combinations(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    items = list(args[0].iterate(tr))
    return IteratorValue(map(TupleValue, itertools.combinations_with_replacement(items, tr.index(args[1], "combinations"))))


@rule(itertools.groupby)
def _groupby(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    key = kwargs.get("key", args[1] if len(args) > 1 else NONE)
    return IteratorValue(_groups(tr, args[0].iterate(tr), key))


def _groups(tr: Tracer, values: Iterator[Value], key: Value) -> Iterator[Value]:
    """Runs of equal keys. Going on to the next group drops what is left of the one before, as in Python."""
    keyed = ((v, v if tr.identical(key, NONE) else key.call(tr, [v], {})) for v in values)
    ahead = next(keyed, None)
    while ahead is not None:
        current = ahead[1]
        state: list[tuple[Value, Value] | None] = [ahead]

        def group(of: Value = current, at: list[tuple[Value, Value] | None] = state) -> Iterator[Value]:
            while (now := at[0]) is not None and tr.equal(now[1], of):
                at[0] = next(keyed, None)
                yield now[0]

        members = group()
        yield TupleValue([current, IteratorValue(members)])
        for _ in members:
            pass
        ahead = state[0]


@rule(itertools.tee)
def _tee(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    source, count = args[0].iterate(tr), tr.index(args[1], "tee") if len(args) > 1 else 2
    queues: list[deque[Value]] = [deque() for _ in range(count)]

    def branch(mine: deque[Value]) -> Iterator[Value]:
        while True:
            if not mine:
                value = next(source, None)
                if value is None:
                    return
                for queue in queues:
                    queue.append(value)
            yield mine.popleft()

    return TupleValue([IteratorValue(branch(q)) for q in queues])


def until(tr: Tracer, make: Value, sentinel: Value) -> Value:
    """``iter(make, sentinel)``."""

    def values() -> Iterator[Value]:
        while not tr.equal(value := make.call(tr, [], {}), sentinel):
            yield value

    return IteratorValue(values())


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
