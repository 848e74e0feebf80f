"""Exceptions, contexts and generators in ways that few programs use them."""

from __future__ import annotations

import contextlib
import sys
import types

from tests.capture.constructs.registry import breaks, case, log


@case
def star_except(x):
    out = []
    try:
        raise ExceptionGroup("g", [ValueError(1), TypeError("t"), ValueError(2)])
    except* ValueError as g:
        out.append([e.args for e in g.exceptions])
    except* TypeError as g:
        out.append(g.message)
    return x, out


@breaks
def star_except_nested(x):
    out = []
    try:
        raise ExceptionGroup("g", [ValueError(1), ExceptionGroup("h", [TypeError("t"), ValueError(3)])])
    except* ValueError as g:
        out.append(len(g.exceptions))
        out.append(str(g))
    except* TypeError as g:
        out.append(g.message)
    return x, out


@case
def star_except_left(x):
    try:
        try:
            raise ExceptionGroup("g", [ValueError(1), KeyError(2)])
        except* ValueError:
            pass
    except ExceptionGroup as g:
        return x, g.message, [type(e).__name__ for e in g.exceptions]


@breaks
def star_except_raises(x):
    try:
        try:
            raise ExceptionGroup("g", [ValueError(1), KeyError(2), OSError(3)])
        except* ValueError:
            raise RuntimeError("new")
        except* KeyError:
            raise LookupError("other")
    except ExceptionGroup as g:
        return x, g.message, [repr(e) for e in g.exceptions]


@breaks
def group_methods(x):
    g = ExceptionGroup("g", [ValueError(1), TypeError(2)])
    a, b = g.split(ValueError)
    return x, str(a), str(b), g.subgroup(lambda e: isinstance(e, TypeError)).exceptions[0].args, g.derive([KeyError(1)]).message


def gen_ret(x):
    got = yield x
    got2 = yield got
    return x + got2


def outer_gen(x):
    r = yield from gen_ret(x)
    log("inner done")
    yield r
    return 7


@case
def yield_from_send(x):
    g = outer_gen(x)
    a = next(g)
    b = g.send(3)
    c = g.send(4)
    try:
        next(g)
    except StopIteration as s:
        return a, b, c, s.value


class Swallow:
    def __init__(self, n, s):
        self.n, self.s = n, s

    def __enter__(self):
        log(("in", self.n))
        return self

    def __exit__(self, k, e, t):
        log(("out", self.n, k and k.__name__))
        return self.s


@case
def swallow_chain(x):
    with Swallow(1, False), Swallow(2, True), Swallow(3, False):
        x = x + 1
        raise KeyError("x")
    return x


class ExitRaises:
    def __enter__(self):
        return self

    def __exit__(self, k, e, t):
        raise RuntimeError("in exit")


@case
def exit_raises(x):
    try:
        with ExitRaises():
            raise KeyError("a")
    except RuntimeError as e:
        return x, type(e.__context__).__name__, e.__context__.args


@case
def finally_overrides(x):
    def f():
        try:
            raise ValueError("lost")
        finally:
            return 5

    def g():
        for i in range(3):
            try:
                continue
            finally:
                log(i)
        return i

    def h():
        while True:
            try:
                return 1
            finally:
                break
        return 2

    return x + f(), g(), h()


@case
def exitstack(x):
    with contextlib.ExitStack() as s:
        a = s.enter_context(Swallow(1, False))
        s.callback(log, "cb")
        s.push(lambda *e: log("push"))
        y = x + a.n
    return y


@case
def exitstack_swallow(x):
    with contextlib.ExitStack() as s:
        s.enter_context(Swallow(1, True))
        s.enter_context(Swallow(2, False))
        raise ValueError("x")
    return x + 1


@case
def exitstack_whose_callback_raises(x):
    def bad():
        raise RuntimeError("in the callback")

    try:
        with contextlib.ExitStack() as s:
            s.enter_context(Swallow(1, False))
            s.callback(bad)
            raise ValueError("x")
    except RuntimeError as e:
        return x, repr(e.__context__), e.__cause__


@case
def tracebacks_handed_on(x):
    before, seen = ValueError("never raised").__traceback__, []
    try:
        raise KeyError("a")
    except KeyError as e:
        seen.append(isinstance(e.__traceback__, types.TracebackType))
        swallowed = Swallow(1, True).__exit__(type(e), e, e.__traceback__)
        seen.append(e.__traceback__ is None)
    return x, before, seen, swallowed


@breaks
def one_traceback(x):
    try:
        raise KeyError("a")
    except KeyError as e:
        return x, sys.exc_info()[2] is e.__traceback__


@case
def causes_and_contexts_set_by_hand(x):
    outer = ValueError("outer")
    outer.__cause__, outer.__context__ = KeyError("cause"), IndexError("context")
    try:
        raise outer
    except ValueError as e:
        e.__cause__ = None
        return x, repr(e.__cause__), repr(e.__context__), e.__suppress_context__


@breaks
def a_chained_exception_is_given_out(x):
    error = ValueError("outer")
    error.__cause__ = KeyError("cause")
    return x + 1, [repr(e) for e in (error, error.__cause__)], error


@case
def exitstack_popall(x):
    s = contextlib.ExitStack()
    with s:
        s.enter_context(Swallow(1, False))
        t = s.pop_all()
    log("moved")
    t.close()
    return x


def gen_try(x):
    try:
        yield x
        yield x + 1
    finally:
        log("gen closed")


@breaks
def gen_left_next(x):
    g = gen_try(x)
    a = next(g)
    print("hi")
    return a + next(g)


@breaks
def async_fn(x):
    async def f():
        return x + 1

    c = f()
    try:
        c.send(None)
    except StopIteration as s:
        return s.value


@breaks
def async_gen(x):
    import asyncio

    async def ag():
        for i in range(3):
            yield x + i

    async def main():
        return [v async for v in ag()]

    return asyncio.run(main())


@case
def try_deep(x):
    out = []
    for i in range(4):
        try:
            try:
                if i == 0:
                    raise ValueError(i)
                if i == 1:
                    raise KeyError(i)
                if i == 2:
                    continue
                out.append("ok")
            except ValueError as e:
                out.append(repr(e))
                raise TypeError("t") from e
            else:
                out.append("else")
            finally:
                out.append("fin")
        except TypeError as e:
            out.append((str(e), repr(e.__cause__)))
        except KeyError as e:
            out.append(e.args)
    return x, out


@case
def exc_info(x):
    try:
        raise ValueError("a")
    except ValueError:
        k = sys.exc_info()[0]
    return x, k, sys.exc_info()


@breaks
def tb(x):
    import traceback

    try:
        raise ValueError("a")
    except ValueError as e:
        n = e.__traceback__ is not None
        s = traceback.format_exc().splitlines()[-1]
    return x, n, s


@breaks
def with_traceback(x):
    try:
        try:
            raise ValueError("a")
        except ValueError as e:
            raise e.with_traceback(None)
    except ValueError as f:
        f.add_note("n")
        return x, f.__notes__


@breaks
def base_exceptions(x):
    try:
        raise KeyboardInterrupt
    except BaseException as e:
        return x, type(e).__name__


@breaks
def system_exit(x):
    try:
        sys.exit(3)
    except SystemExit as e:
        return x, e.code


@case
def stop_iter_in_gen(x):
    def g():
        yield 1
        raise StopIteration

    try:
        list(g())
    except RuntimeError as e:
        return x, str(e), type(e.__cause__).__name__


@case
def gen_throw(x):
    def g():
        while True:
            try:
                v = yield 1
            except ValueError as e:
                log(str(e))
                yield "caught"

    it = g()
    next(it)
    return x, it.throw(ValueError("z")), next(it), it.close()


@case
def gen_expr_nested(x):
    m = [[1, 2], [3]]
    return (
        x,
        sum(v for row in m for v in row if v != 2),
        list((a, b) for a in range(2) for b in "xy"),
        max((len(r) for r in m), default=0),
    )


@case
def places_that_a_list_lacks(x):
    def store(at):
        [][at] = x

    def delete(at):
        l = [x]
        del l[at]

    seen = []
    for action, at in ((store, 0), (delete, 3)):
        try:
            try:
                action(at)
            finally:
                try:
                    {}["missing"]
                except KeyError:
                    raise ValueError(at)
        except ValueError as error:
            seen.append(repr(error.__context__.__context__))
    return x + 1, seen


@breaks
def places_that_a_list_lacks_last(x):
    empty = []
    try:
        empty[0] = x
    finally:
        try:
            {}["missing"]
        except KeyError:
            raise ValueError("last")


@case
def names_that_are_not(x):
    out = []

    def early():
        return late

    for look in (early, lambda: never_defined):  # noqa: F821
        try:
            look()
        except NameError as e:
            out.append((e.name, e.args))
    late = 1
    try:
        del x
        x.shape  # noqa: F821
    except UnboundLocalError as e:
        out.append((e.name, e.args))
    try:
        raise NameError("q", name="w")
    except NameError as e:
        out.append((e.name, late))
    try:
        raise AttributeError("q")
    except AttributeError as e:
        out.append((e.name, e.obj))
    return out


class Bare:
    pass


BARE = Bare()


def remove(obj):
    del obj.missing


@breaks
def whose_attribute_is_missing(x):
    out = []
    for ask in (
        lambda: BARE.missing,
        lambda: x.missing,
        lambda: Bare.missing,
        lambda: super(Bare, BARE).missing,
        lambda: remove(BARE),
    ):
        try:
            ask()
        except AttributeError as e:
            out.append((e.name, e.obj is BARE, e.obj is x, e.obj is Bare, e.args))
    return out


class Stop(StopIteration):
    def __init__(self, a):
        super().__init__(a, 2)
        self.a = a


class Named(NameError):
    def __init__(self, a):
        super().__init__(a, name="named")


class Leaving(SystemExit):
    def __init__(self, code):
        super().__init__(code)


@breaks
def what_exceptions_know_of_their_arguments(x):
    stop, own, leaving = StopIteration(3), Stop(5), Leaving(6)
    decoding, syntax = UnicodeDecodeError("utf8", b"a", 0, 1, "r"), SyntaxError("m", ("f", 1, 2, "t"))
    log("made")
    return (
        x + own.value,
        (stop.value, own.a, own.args, leaving.code, leaving.args),
        (decoding.reason, decoding.start, syntax.lineno, syntax.msg, syntax.text),
    )


@breaks
def what_exceptions_know_by_keyword(x):
    name, attribute = NameError("q", name="w"), AttributeError("q", name="w", obj=7)
    module, own = ImportError("q", name="w", path="p"), Named("z")
    log("made")
    return (name.name, attribute.name, attribute.obj, module.name, module.path, module.msg, own.name, own.args), x


@breaks
def what_a_stop_brings_is_a_tensor(x):
    stop = StopIteration(x + 1)
    log("made")
    return stop.value
