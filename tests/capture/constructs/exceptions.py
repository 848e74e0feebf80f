# ruff: noqa: F821, PLE0643, B012, B904, SIM105, B017, TRY, F841, PLR1704
"""Raising and handling: try, except, else, finally in every combination."""

from __future__ import annotations

from tests.capture.constructs.registry import breaks, case, log
from tests.capture.corpus import r


class Problem(Exception):
    pass


class Detailed(ValueError):
    def __init__(self, code, text="none"):
        super().__init__(f"{code}: {text}")
        self.code = code


@case
def try_else_finally(x):
    try:
        y = x + 1
    except ValueError:
        log("except")
    else:
        log("else")
        y = y * 2
    finally:
        log("finally")
    return y


@case
def try_except_taken(x):
    try:
        raise ValueError("a", 2)
    except (KeyError, ValueError) as error:
        log(error.args)
        y = x * 2
    else:
        log("else")
    finally:
        log("finally")
    return y


@case
def except_order(x):
    out = []
    for error in (KeyError("k"), IndexError("i"), ValueError("v")):
        try:
            raise error
        except LookupError as e:
            out.append(("lookup", type(e).__name__))
        except Exception as e:
            out.append(("other", type(e).__name__))
    return x, out


@case
def finally_return_overrides(x):
    def f():
        try:
            return 1
        finally:
            return 2

    return x * f()


@case
def finally_swallows(x):
    def f():
        try:
            raise ValueError("lost")
        finally:
            return 3

    return x * f()


@case
def finally_in_loop(x):
    for i in range(4):
        try:
            if i == 1:
                continue
            if i == 3:
                break
            x = x + i
        finally:
            log(i)
    return x


@case
def finally_break_in_finally(x):
    for i in range(4):
        try:
            raise ValueError(i)
        finally:
            if i == 2:
                break
            continue
    return x + i


@case
def nested_handlers(x):
    try:
        try:
            raise KeyError("inner")
        except ValueError:
            log("wrong")
        finally:
            log("inner finally")
    except KeyError as error:
        log(error.args[0])
    return x


@case
def raise_in_handler(x):
    try:
        try:
            raise KeyError("first")
        except KeyError as error:
            raise ValueError("second") from error
    except ValueError as error:
        return x, str(error), type(error.__cause__).__name__, error.__suppress_context__


@case
def implicit_context(x):
    try:
        try:
            raise KeyError("first")
        except KeyError:
            raise ValueError("second")
    except ValueError as error:
        return x, repr(error.__context__), error.__cause__


@case
def raise_from_none(x):
    try:
        try:
            raise KeyError("first")
        except KeyError:
            raise ValueError("second") from None
    except ValueError as error:
        return x, error.__cause__, error.__suppress_context__


@case
def bare_raise(x):
    try:
        try:
            raise KeyError("k")
        except KeyError:
            log("seen")
            raise
    except KeyError as error:
        return x + 1, error.args


@case
def custom_exception(x):
    try:
        raise Problem("p", 1)
    except Problem as p:
        return x, p.args, isinstance(p, Exception)


@case
def exception_with_init(x):
    try:
        raise Detailed(404, text="missing")
    except Detailed as error:
        return x * 2, error.code, str(error)


@case
def exception_in_callee(x):
    def check(n):
        if n > 2:
            raise ValueError(n)
        return n

    total = 0
    for i in range(5):
        try:
            total += check(i)
        except ValueError as error:
            total -= error.args[0]
    return x * total


@case
def exception_instance_identity(x):
    error = Problem("one")
    try:
        raise error
    except Problem as caught:
        return x, caught is error


@case
def exception_class_raised(x):
    try:
        raise Problem
    except Problem as p:
        return x, p.args


@case
def exception_name_unbound_after(x):
    try:
        raise ValueError("v")
    except ValueError as error:
        pass
    try:
        error
    except UnboundLocalError:
        return x + 1
    return x


@case
def python_errors_caught(x):
    out = []
    for action in (
        lambda: {}["missing"],
        lambda: [][0],
        lambda: (1,)[3],
        lambda: x.nothing,
        lambda: 1 / 0,
        lambda: int("z"),
        lambda: None + 1,
        lambda: next(iter([])),
        lambda: "a".index("z"),
        lambda: [].pop(),
        lambda: {}.popitem(),
        lambda: [1].remove(2),
    ):
        try:
            action()
        except Exception as error:
            out.append((type(error).__name__, str(error)))
    return x, out


@case
def assertion_caught(x):
    try:
        assert x.shape[0] == 5, "wrong size"
    except AssertionError as error:
        return x, str(error)


@case
def try_in_comprehension_helper(x):
    def safe(d, k):
        try:
            return d[k]
        except KeyError:
            return None

    return x, [safe({"a": 1}, k) for k in ("a", "b")]


@case
def exception_group_made(x):
    try:
        raise ExceptionGroup("several", [ValueError(1), KeyError("k")])
    except ExceptionGroup as group:
        return x, len(group.exceptions), group.message


@case
def except_star(x):
    out = []
    try:
        raise ExceptionGroup("several", [ValueError(1), KeyError("k"), ValueError(2)])
    except* ValueError as group:
        out.append([e.args for e in group.exceptions])
    except* KeyError as group:
        out.append(len(group.exceptions))
    return x, out


@case
def except_star_single(x):
    try:
        raise ValueError("alone")
    except* ValueError as group:
        log(len(group.exceptions))
    return x + 1


@case
def exception_notes(x):
    try:
        error = ValueError("v")
        error.add_note("note")
        raise error
    except ValueError as caught:
        return x, caught.__notes__


@case
def exception_attributes_set(x):
    try:
        error = Problem("p")
        error.data = {"n": 2}
        raise error
    except Problem as caught:
        return x * caught.data["n"]


@case
def exception_returned(x):
    error = ValueError("kept", 1)
    return x, error, [error]


@breaks
def exception_escapes(x):
    y = x + 1
    log("before")
    raise Problem("out", y.shape[0])


@breaks
def exception_escapes_through_finally(x):
    try:
        y = x * 2
        raise Detailed(y.shape[0])
    finally:
        log("finally")


@breaks(args=lambda: (r(4), {}))
def exception_after_mutation(x, d):
    d["a"] = x + 1
    raise KeyError("after")


@case
def tensor_error_caught(x):
    try:
        y = x + x.new_zeros(7)
    except RuntimeError as error:
        return x * 2, "size" in str(error)
    return y


@breaks
def print_in_handler(x):
    try:
        raise ValueError("v")
    except ValueError as error:
        print("handling", error)
        x = x + 1
    finally:
        print("finally")
    return x * 2


@breaks
def break_in_try(x):
    try:
        y = x + 1
        print("in try")
        z = y * 2
    except ValueError:
        z = y
    else:
        z = z + 1
    finally:
        z = z - 1
    return z


@case
def exception_str_and_repr(x):
    e = ValueError("a", 1)
    return x, str(e), repr(e), f"{e}", str(KeyError("k")), repr(Problem())


@case
def deep_unwinding(x):
    def a(n):
        try:
            return b(n)
        finally:
            log(("a", n))

    def b(n):
        with_log = []
        try:
            if n == 0:
                raise Problem("bottom")
            return a(n - 1)
        finally:
            log(("b", n))
            with_log.append(n)

    try:
        a(2)
    except Problem as p:
        return x, str(p)


KINDS = ((ValueError, KeyError), TypeError)


@case
def classes_nested_in_tuples(x):
    found = []
    for kinds in (KINDS, (ValueError, (KeyError,)), (KINDS,)):
        try:
            try:
                raise ValueError("a")
            except kinds:
                found.append("caught")
        except TypeError as error:
            found.append((str(error), repr(error.__context__)))
    return found, x


@case
def classes_nested_after_a_star(x):
    try:
        try:
            raise ExceptionGroup("g", [ValueError("a")])
        except* (ValueError, (KeyError,)):
            log("caught")
    except TypeError as error:
        return str(error), x
