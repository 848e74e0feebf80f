"""Generators made and used up inside the frame."""

from __future__ import annotations

import contextlib
import itertools

from tests.capture.constructs.registry import breaks, case, log
from tests.capture.corpus import r


def count_up(n):
    for i in range(n):
        log(i)
        yield i


def echo(x):
    total = x
    while True:
        received = yield total
        if received is None:
            return
        total = total + received


def returns_value(x):
    yield x
    yield x + 1
    return "done"


def guarded(x):
    try:
        yield x
        yield x * 2
    except ValueError as error:
        yield x - 1
        log(str(error))
    finally:
        log("closed")


@case
def generator_in_for(x):
    for i in count_up(3):
        x = x + i
    return x


@case
def generator_next(x):
    g = count_up(3)
    a, b = next(g), next(g)
    return x * a + b, next(g), next(g, "end")


@case
def generator_exhausted(x):
    g = count_up(1)
    next(g)
    try:
        next(g)
    except StopIteration:
        return x + 1
    return x


@case
def generator_left_early(x):
    for i in count_up(10):
        x = x + i
        if i == 2:
            break
    return x


@case
def generator_send(x):
    g = echo(x)
    first = next(g)
    second = g.send(x * 2)
    third = g.send(1)
    return first, second, third


@case
def generator_send_none_first(x):
    g = echo(x)
    return g.send(None), g.send(x)


@case
def generator_return_value(x):
    def outer():
        result = yield from returns_value(x)
        yield result

    return list(outer())


@case
def generator_stop_iteration_value(x):
    g = returns_value(x)
    next(g)
    next(g)
    try:
        next(g)
    except StopIteration as stop:
        return x, stop.value


@case
def generator_yield_from_list(x):
    def g():
        yield from [x, x + 1]
        yield from (v * 2 for v in (x,))
        yield from range(2)

    return list(g())


@case
def generator_yield_from_send(x):
    def outer():
        yield from echo(x)

    g = outer()
    next(g)
    return g.send(x), g.send(2)


@case
def generator_throw(x):
    g = guarded(x)
    a = next(g)
    b = g.throw(ValueError("bad"))
    return a, b, list(g)


@case
def generator_throw_uncaught(x):
    g = count_up(3)
    next(g)
    try:
        g.throw(KeyError("k"))
    except KeyError as error:
        return x + 1, str(error), list(g)


@case
def generator_throw_class(x):
    g = guarded(x)
    next(g)
    return g.throw(ValueError), list(g)


@case
def generator_close(x):
    g = guarded(x)
    y = next(g)
    g.close()
    return y, list(g)


@case
def generator_close_unstarted(x):
    g = guarded(x)
    g.close()
    return x + 1, list(g)


@case
def generator_with_finally(x):
    def g():
        try:
            yield x
            yield x + 1
        finally:
            log("end")

    return [v * 2 for v in g()]


@case
def generator_raises(x):
    def g():
        yield x
        raise ValueError("inside")

    out = []
    try:
        for v in g():
            out.append(v)
    except ValueError as error:
        return out, str(error)


@case
def generator_expression_lazy(x):
    g = (log(i) or x * i for i in range(3))
    a = next(g)
    log("between")
    return a, list(g)


@case
def generator_nested(x):
    def inner(n):
        for i in range(n):
            yield x + i

    def outer():
        for n in (1, 2):
            yield sum(inner(n))

    return list(outer())


@case
def generator_closure(x):
    factor = 2

    def g():
        nonlocal factor
        while factor < 16:
            factor *= 2
            yield x * factor

    return list(g()), factor


@case
def generator_of_tuples(x):
    def g():
        yield "a", x
        yield "b", x * 2

    return dict(g()), {k: v + 1 for k, v in g()}


@case
def generator_unpacked(x):
    a, b, *c = count_up(4)
    return x * a + b, c, [*count_up(2)], (*count_up(1),), max(*count_up(3))


@case
def generator_as_arguments(x):
    return max(count_up(3)), sum(count_up(3)), x * len(list(count_up(2))), any(i > 1 for i in count_up(5)), sorted(count_up(2))


@case
def generator_zip_and_map(x):
    return [a * b for a, b in zip(count_up(2), (x, x + 1))], list(map(lambda v: x + v, count_up(2)))


@case
def generator_in_itertools(x):
    return list(itertools.islice(count_up(100), 2)), list(itertools.takewhile(lambda v: v < 2, count_up(9))), x + 1


class Walker:
    def __init__(self, n):
        self.n = n

    def walk(self, x):
        for i in range(self.n):
            self.n -= 1
            yield x + i

    def __iter__(self):
        yield from (1, 2, 3)


@case(args=lambda: (Walker(2), r(4)))
def generator_of_an_object(w, x):
    return list(w.walk(x)), w.n, list(w), [*w]


@case
def generator_truth_and_identity(x):
    g = count_up(2)
    return bool(g), iter(g) is g, x


@case
def generator_returned(x):
    def g():
        yield x
        yield x + 1

    made = g()
    return list(made), x + 1


@breaks
def generator_over_a_break(x):
    def g():
        for i in range(3):
            print("step", i)
            yield x + i

    total = x * 0
    for v in g():
        total = total + v
    return total


@contextlib.contextmanager
def scaled(x):
    log("enter")
    try:
        yield x * 2
    finally:
        log("leave")


@case
def generator_context_manager(x):
    with scaled(x) as y:
        z = y + 1
    return z


@case
def thrown_into_generators_that_have_not_begun(x):
    found = []
    for kind in (StopIteration, ValueError):
        for begun in (False, True):
            g = (v for v in (1, 2))
            if begun:
                list(g)
            try:
                g.throw(kind("k"))
            except (RuntimeError, StopIteration, ValueError) as error:
                found.append((type(error).__name__, str(error), type(error.__cause__).__name__, list(g)))
    return x, found
