"""The makers of resume code alone. Imports no torch: ``python tests/capture/test_resume.py`` runs it on any supported
interpreter. Each function is run one instruction at a time, and from each place to its end."""

from __future__ import annotations

import gc
import sys
import traceback
import types
from contextlib import contextmanager
from pathlib import Path
from types import CellType, FunctionType

if "tinycompile" not in sys.modules:  # the package without its __init__, which imports torch
    _ROOT = Path(__file__).parents[2] / "tinycompile"
    for _name, _path in (("tinycompile", _ROOT), ("tinycompile.capture", _ROOT / "capture")):
        _package = types.ModuleType(_name)
        _package.__path__ = [str(_path)]
        sys.modules.setdefault(_name, _package)

from tinycompile.capture.bytecode import decode
from tinycompile.capture.resume import TRIVIAL, Outcome, Place, Slot, is_resumable, rest, step, throw

if not hasattr(sys.modules["tinycompile"], "__file__") or sys.modules["tinycompile"].__file__ is None:
    for _name in ("tinycompile", "tinycompile.capture"):  # whoever comes next gets the real ones
        sys.modules.pop(_name)

try:
    import pytest

    pytestmark = pytest.mark.pure
except ImportError:  # an interpreter without pytest runs main() below
    pytest = None


# --- functions ---

LOG = []
CASES = {}


def case(*args):
    def register(fn):
        CASES[fn.__name__] = fn, args
        return fn

    return register


@case(3, 4)
def arithmetic(a, b):
    c = a + b * 2
    c -= 1
    d = -c, ~c, not c
    return c**2 // a % 7, d, a < b < c, a in (1, 3), a is not b


@case(5)
def branches(n):
    if n > 3 and n != 4:
        word = "big"
    elif n or n is None:
        word = "small"
    else:
        word = None
    return (word or "none"), (n and word), word if word is not None else n


@case(2)
def called_functions_raise(n):
    """An exception that leaves a called function finds the caller's handler (3.13 looks one unit before the call)."""

    def check(k):
        if k:
            raise ValueError(k)
        return {}[k]

    found = []
    for k in range(n, -1, -1):
        try:
            found.append(check(k))
        except ValueError as error:
            found.append(error.args)
        except KeyError:
            found.append("key")
    return found


@case([3, 1, 2])
def loops(xs):
    total = 0
    for i, x in enumerate(xs):
        if i == 1:
            continue
        for k in range(x):
            total += k * x
            if total > 100:
                break
        else:
            total += 1
    while total > 5:
        total -= 3
    return total


@case("a", [1, 2])
def strings_and_slices(s, xs):
    xs = list(xs)
    xs[0:1] = [7, 8]
    del xs[-1]
    return f"{s!r:>5}{xs[1:]}{len(xs):03d}", xs[::2], {**{"k": s}, "z": 1}, [*xs, *s], {1, *xs}


@case(2)
def unpacking(n):
    a, (b, *c) = n, (n + 1, 4, 5)
    a, b = b, a
    first, *_, last = [a, b, *c]
    return a, b, c, first, last


def _callee(*args, k=0, **more):
    return sum(args) + k, sorted(more)


@case(1, 2)
def calls(a, b):
    return (
        _callee(a, b, k=b),
        _callee(*[a, b], k=3, **{"m": 4}),
        max(a, min(b, 7)),
        "x".join(["a", "b"]).upper(),
        (lambda q, w=2: q + w)(a),
        print(end=""),
    )


@case([1, 2, 3])
def comprehensions(xs):
    n = 2
    return [x * n for x in xs if x > 1], {x: [y for y in range(x)] for x in xs}, {x % 2 for x in xs}, sum(x for x in xs)


@case(4)
def closures(n):
    total = 0

    def add(k):
        nonlocal total
        total += k * n
        return total

    add(1)
    n = 10
    add(2)
    return total, add(3), (lambda: n)()


class Context:
    def __init__(self, swallow=False):
        self.swallow = swallow

    def __enter__(self):
        LOG.append("enter")
        return self

    def __exit__(self, kind, value, trace):
        LOG.append(("exit", kind and kind.__name__))
        return self.swallow


@contextmanager
def _managed(value):
    LOG.append("in")
    try:
        yield value
    finally:
        LOG.append("out")


@case(3)
def with_blocks(n):
    with Context() as c, _managed(n) as m:
        n += m
        if n > 5:
            return n, c.swallow
    return n


@case(3)
def swallowed(n):
    with Context(swallow=True):
        n = n + 1
        n = n / 0
        n = 100
    return n


@case({"a": 1})
def handlers(d):
    found = []
    for key in ("a", "b", "c"):
        try:
            found.append(d[key])
        except KeyError as error:
            found.append(str(error))
            if key == "c":
                break
        else:
            found.append("else")
        finally:
            LOG.append(key)
    return found


@case(0)
def reraised(n):
    try:
        try:
            return 1 // n
        except ZeroDivisionError as error:
            raise ValueError("outer") from error
    except ValueError as error:
        return type(error.__cause__).__name__, error.args


@case({"kind": "circle", "r": 2})
def matching(shape):
    match shape:
        case {"kind": "square", "side": s}:
            return s
        case {"kind": "circle", "r": int(r), **others}:
            return r * 3, others
        case [a, b, *_]:
            return a + b
        case _:
            return None


class Base:
    scale = 2

    def value(self, x):
        return x * self.scale


class Derived(Base):
    def value(self, x):
        self.seen = x
        return super().value(x) + super(Derived, self).value(1) + self.scale


@case(5)
def methods(n):
    d = Derived()
    r = d.value(n)
    d.extra = [d.seen]
    d.extra[0] += 1
    del d.seen
    return r, d.extra, hasattr(d, "seen")


CASES["super_method"] = Derived.value, (Derived(), 4)


@case(1)
def star_arguments(a, *rest, k=5, **more):
    global GLOBAL
    GLOBAL = a
    import math
    from os import path

    assert a == 1, "message"
    return a, rest, k, more, GLOBAL, math.pi, path.sep


@case(2)
def unbound(n):
    if n > 5:
        late = 1
    del n
    try:
        return late  # noqa: F821
    except UnboundLocalError as error:
        return str(error)


@case(2)
def local_names(n):
    a = n + 1
    return sorted(locals()), (b := a), eval("a + n")


def _many():
    body = "\n".join(f"    x{i} = n + {i}.5\n    if x{i} < 0:\n        n = x{i}" for i in range(300))
    space = {}
    exec(f"def many(n):\n    for i in range(2):\n{body.replace('    ', '        ')}\n    return n, x299, i", space)
    return space["many"]


CASES["many_constants"] = _many(), (3,)


# --- running by steps ---


def start(fn, args):
    code = fn.__code__
    values = list(args)
    names = list(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])
    values += [fn.__kwdefaults__[n] for n in names[len(values) :]] if fn.__kwdefaults__ else []
    for flag, empty in ((4, ()), (8, {})):
        if code.co_flags & flag:
            names.append(code.co_varnames[len(names)])
            values.append(empty)
    return Place(code, 0, tuple(map(Slot, names)), ()), tuple(values)


def call(code, fn, state):
    return FunctionType(code, fn.__globals__, fn.__name__, None, (*(fn.__closure__ or ()), CellType(state)))(
        *[None] * code.co_argcount
    )


class Emulator:
    """The trivial instructions, on plain values; all others are steps."""

    def __init__(self, place, state, fn):
        self.code, self.fn, self.at = place.code, fn, place.at
        values = iter(state)
        self.slots = {slot: next(values) for slot in place.slots}
        self.stack = [next(values) if v else NULL for v in place.stack]

    def place(self):
        state = [*self.slots.values(), *(v for v in self.stack if v is not NULL)]
        return Place(self.code, self.at, tuple(self.slots), tuple(v is not NULL for v in self.stack)), tuple(state)

    def trivial(self, ins):
        op, stack, at = ins.op, self.stack, self.at
        self.at += 1
        if op == "LOAD_CONST":
            stack.append(ins.arg)
        elif op == "POP_TOP":
            stack.pop()
        elif op == "COPY":
            stack.append(stack[-ins.arg])
        elif op == "SWAP":
            stack[-1], stack[-ins.arg] = stack[-ins.arg], stack[-1]
        elif op == "PUSH_NULL":
            stack.append(NULL)
        elif op in ("STORE_FAST", "LOAD_FAST_AND_CLEAR", "MAKE_CELL", "LOAD_FAST"):
            self.variable(op, ins.arg)
        elif op == "JUMP":
            self.at = ins.target
        elif op == "MAKE_FUNCTION":
            stack.append(FunctionType(stack.pop(), self.fn.__globals__, closure=None if ins.arg is None else ()))
        else:
            raise AssertionError((op, at))

    def variable(self, op, name):
        old = next((s for s in self.slots if s.name == name), None)
        if op == "LOAD_FAST":
            self.stack.append(self.slots[old])
        elif op == "LOAD_FAST_AND_CLEAR":
            self.stack.append(NULL if old is None else self.slots.pop(old))
        elif op == "MAKE_CELL":
            value = NULL if old is None else self.slots.pop(old)
            self.slots[Slot(name, True)] = CellType() if value is NULL else CellType(value)
        else:
            value = self.stack.pop()
            self.slots.pop(old, None)
            if value is not NULL:
                self.slots[Slot(name, bool(old and old.cell))] = value


NULL = type("Null", (), {})()


def functions(frame):
    """MAKE_FUNCTION and what follows it at once: a function needs its closure when it is made."""
    ins = decode(frame.code)
    at, parts = frame.at, {}
    code = frame.stack.pop()
    at += 1
    while ins[at].op == "SET_FUNCTION_ATTRIBUTE":
        parts[ins[at].arg] = frame.stack.pop()
        at += 1
    made = FunctionType(code, frame.fn.__globals__, code.co_name, parts.get(1), parts.get(8))
    made.__kwdefaults__ = parts.get(2)
    frame.stack.append(made)
    frame.at = at


def by_steps(fn, args, stop=None, error=None):
    """The result of ``fn``; after ``stop`` instructions the rest runs at once, or ``error`` is raised there."""
    frame = Emulator(*start(fn, args), fn)
    count = 0
    while True:
        ins = decode(frame.code)[frame.at]
        if count == stop and ins.op != "SET_FUNCTION_ATTRIBUTE":
            place, state = frame.place()
            if error is not None:
                return call(throw(place), fn, (*state, error)), count
            return call(rest(place), fn, state), count
        count += 1
        bound = ins.op == "LOAD_FAST" and any(s.name == ins.arg for s in frame.slots)
        if ins.op == "RETURN_VALUE":
            return frame.stack.pop(), count
        if ins.op == "MAKE_FUNCTION":
            functions(frame)
        elif ins.op in TRIVIAL or bound:
            frame.trivial(ins)
        else:
            place, state = frame.place()
            code, ends = step(place)
            result = call(code, fn, state)
            if not (type(result) is tuple and len(result) == 2 and type(result[1]) is Outcome):
                return result, count  # through a handler, to the end
            state, end = result
            assert end in ends and len(state) == end.place.size
            frame = Emulator(end.place, state, fn)


def observed(run):
    LOG.clear()
    try:
        return run(), list(LOG)
    except Exception as error:
        return type(error), error.args, list(LOG)


def check(name):
    fn, args = CASES[name]
    assert is_resumable(fn.__code__)
    want = observed(lambda: fn(*args))
    counts = []

    def stepped(stop=None):
        result, count = by_steps(fn, args, stop)
        counts.append(count)
        return result

    assert observed(stepped) == want, (name, observed(stepped), want)
    total = counts[0]
    for stop in range(total) if total < 400 else range(0, total, 97):
        got = observed(lambda: stepped(stop))
        assert got == want, (name, stop, got, want)


class Block:
    """Notes that it was entered, and how it was left."""

    def __init__(self, name):
        self.name, self.value = name, 0

    def __enter__(self):
        LOG.append(("enter", self.name))

    def __exit__(self, kind, error, trace):
        LOG.append(("exit", self.name, kind))


def left_by_falling(box):
    with Block("a"), Block("b"):
        box.value = 1
        with Block("c"):
            pass
    return box.value


def left_by_returning(box):
    with Block("a"):
        for k in (1, 2):
            with Block("b"):
                box.value = k
                if k == 2:
                    return box.value + 1


def left_by_going_on(box):
    for k in (1, 2, 3):
        with Block("a"):
            with Block(k):
                box.value = k
                if k == 2:
                    break
                continue
    return box.value


def left_at_last(box):
    try:
        with Block("a"):
            box.value = 1
    finally:
        with Block("b"):
            box.value += 1
    return [box.value]


BLOCKS = [left_by_falling, left_by_returning, left_by_going_on, left_at_last]


def check_throw(fn):
    """Wherever an error is raised, all blocks that were entered are left once, the last first; those that are still entered
    are told of the error."""
    _, total = by_steps(fn, (Block("box"),))
    told = 0
    for stop in range(total):
        LOG.clear()
        error = KeyboardInterrupt()
        try:
            by_steps(fn, (Block("box"),), stop, error)
        except KeyboardInterrupt as raised:
            assert raised is error
            last = traceback.extract_tb(error.__traceback__)[-1]
            assert last.name == fn.__name__
        else:
            raise AssertionError("it was not raised")
        entered = []
        for what, name, *kind in LOG:
            if what == "enter":
                entered.append(name)
                continue
            assert entered.pop() == name, (fn, stop, LOG)
            told += kind == [KeyboardInterrupt]
        assert not entered, (fn, stop, LOG)
    assert told, fn


def check_lines():
    def fails(x):
        y = x
        for k in [1]:
            y = (y +
                 (k / x))  # fmt: skip
        return y

    first = fails.__code__.co_firstlineno
    for stop in (None, *range(12)):
        try:
            by_steps(fails, (0,), stop)
        except ZeroDivisionError as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            assert (last.lineno, last.name) == (first + 4, "fails"), (stop, last)
            assert (last.colno, last.end_colno) == (18, 23), (stop, last)
        else:
            raise AssertionError("no error")


def check_no_leak():
    class Thing:
        alive = 0

        def __init__(self):
            Thing.alive += 1

        def __del__(self):
            Thing.alive -= 1

    def fn(a, b):
        for x in [a, b]:
            with Context():
                c = [x, a]
                b.extra = str(1)
        return len(c)

    for stop in (None, *range(40)):
        by_steps(fn, (Thing(), Thing()), stop)
    gc.collect()
    assert Thing.alive == 0


def check_refused():
    def generator():
        yield 1

    async def coroutine():
        pass

    assert not is_resumable(generator.__code__) and not is_resumable(coroutine.__code__)
    assert not is_resumable(compile("x = 1", "m", "exec"))


if pytest is not None:

    @pytest.mark.parametrize("name", list(CASES))
    def test_step_by_step_and_the_rest_at_once(name):
        check(name)

    @pytest.mark.parametrize("fn", BLOCKS, ids=lambda fn: fn.__name__)
    def test_an_error_leaves_the_blocks_that_were_entered(fn):
        check_throw(fn)

    def test_tracebacks_show_lines_and_columns():
        check_lines()

    def test_nothing_is_kept_alive():
        check_no_leak()

    def test_what_can_not_be_resumed():
        check_refused()


def main():
    for name in CASES:
        check(name)
    for fn in BLOCKS:
        check_throw(fn)
    check_lines()
    check_no_leak()
    check_refused()
    print(f"{len(CASES)} functions on Python {sys.version.split()[0]}")


if __name__ == "__main__":
    main()
