"""With statements: user-defined, several, nested, contextlib's, gradient modes."""

from __future__ import annotations

import contextlib

import torch

from tests.capture.constructs.registry import breaks, case, log
from tests.capture.corpus import r


class Noted:
    def __init__(self, name, swallow=False):
        self.name, self.swallow = name, swallow

    def __enter__(self):
        log(f"enter {self.name}")
        return self

    def __exit__(self, kind, error, trace):
        log(f"exit {self.name} {kind.__name__ if kind else None}")
        return self.swallow


class Counter:
    depth = 0

    def __enter__(self):
        self.depth += 1
        return self.depth

    def __exit__(self, *error):
        self.depth -= 1


@contextlib.contextmanager
def noted(name):
    log(f"in {name}")
    try:
        yield name + "!"
    except ValueError as error:
        log(f"caught {error}")
    finally:
        log(f"out {name}")


@contextlib.contextmanager
def plain(value):
    yield value


class Both(contextlib.ContextDecorator):
    def __enter__(self):
        log("on")
        return self

    def __exit__(self, *error):
        log("off")
        return False


@case
def with_user_manager(x):
    with Noted("a") as a:
        y = x * 2
    return y, a.name


@case
def with_several(x):
    with Noted("a") as a, Noted("b") as b:
        y = x + len(a.name + b.name)
    return y


@case
def with_nested(x):
    with Noted("a"):
        x = x + 1
        with Noted("b"):
            x = x * 2
        x = x - 1
    return x


@case
def with_parenthesised(x):
    with (
        Noted("a") as a,
        Noted(a.name + "b"),
    ):
        return x * 3


@case
def with_return_inside(x):
    with Noted("a"):
        return x + 1


@case
def with_break_and_continue(x):
    for i in range(4):
        with Noted(str(i)):
            if i == 1:
                continue
            if i == 3:
                break
            x = x + i
    return x


@case
def with_exception_swallowed(x):
    with Noted("a", swallow=True):
        raise ValueError("lost")
    return x + 1


@case
def with_exception_passed_on(x):
    try:
        with Noted("a"):
            raise ValueError("kept")
    except ValueError as error:
        return x, str(error)


@case
def with_inner_swallows(x):
    with Noted("outer"):
        with Noted("inner", swallow=True):
            raise KeyError("k")
        x = x * 2
    return x


@case(args=lambda: (Counter(), r(4)))
def with_manager_argument(c, x):
    with c as depth:
        x = x * depth
        with c as deeper:
            x = x * deeper
    return x, c.depth


@case
def with_contextmanager(x):
    with noted("a") as name:
        y = x + len(name)
    return y


@case
def with_contextmanager_exception(x):
    with noted("a"):
        raise ValueError("bad")
    return x + 1


@case
def with_contextmanager_reraise(x):
    try:
        with noted("a"):
            raise KeyError("k")
    except KeyError as error:
        return x, error.args


@case
def with_contextmanagers_nested(x):
    with noted("a"), plain(x * 2) as y, noted("b"):
        z = y + 1
    return z


@case
def with_contextmanager_return(x):
    with plain(x) as y:
        return y * 2


@case
def with_contextmanager_decorator(x):
    @noted("deco")
    def f(v):
        return v * 2

    return f(x)


@case
def with_context_decorator(x):
    @Both()
    def f(v):
        return v + 1

    return f(x), f(x)


@case
def with_nullcontext(x):
    with contextlib.nullcontext() as a, contextlib.nullcontext(3) as b:
        return x * b, a


@case
def with_suppress(x):
    with contextlib.suppress(ValueError, KeyError):
        x = x + 1
        raise KeyError("k")
    return x


class Closable:
    def close(self):
        log("closed")


@case
def with_contextlib_closing(x):
    with contextlib.closing(Closable()):
        y = x + 1
    return y


@case
def with_exit_stack(x):
    with contextlib.ExitStack() as stack:
        stack.enter_context(Noted("a"))
        stack.callback(log, "callback")
        y = x * 2
    return y


@case
def with_no_grad(x):
    with torch.no_grad():
        a = torch.is_grad_enabled()
        with torch.enable_grad():
            b = torch.is_grad_enabled()
        c = torch.is_grad_enabled()
    return x * 2, a, b, c, torch.is_grad_enabled()


@case(args=lambda: (r(4).requires_grad_(),))
def with_no_grad_on_leaf(x):
    with torch.no_grad():
        y = x * 2
    z = x * 3
    return y, z, y.requires_grad, z.requires_grad


@case
def with_set_grad_enabled(x):
    with torch.set_grad_enabled(False):
        a = torch.is_grad_enabled()
    torch.set_grad_enabled(False)
    b = torch.is_grad_enabled()
    torch.set_grad_enabled(True)
    return x + 1, a, b, torch.is_grad_enabled()


@case
def with_set_grad_enabled_flag(x):
    for flag in (True, False):
        with torch.set_grad_enabled(flag):
            x = x + torch.is_grad_enabled()
    return x


@torch.no_grad()
def without_grad(v):
    return v * 2, torch.is_grad_enabled()


@torch.enable_grad()
def with_grad(v):
    return v * 2, torch.is_grad_enabled()


@case(args=lambda: (r(4).requires_grad_(),))
def grad_mode_decorators(x):
    a, off = without_grad(x)
    b, on = with_grad(x)
    return a, b, off, on


@case
def grad_mode_exception(x):
    try:
        with torch.no_grad():
            raise ValueError("x")
    except ValueError:
        pass
    return x, torch.is_grad_enabled()


@case
def grad_mode_decorates_inside(x):
    @torch.no_grad()
    def f(v):
        return v * 2, torch.is_grad_enabled()

    return f(x)


@breaks
def with_around_a_print(x):
    with Noted("a") as a:
        x = x + 1
        print("inside", a.name)
        x = x * 2
    return x


@breaks
def contextmanager_around_a_print(x):
    with noted("a"):
        x = x + 1
        print("inside")
    return x


@breaks
def no_grad_around_a_print(x):
    with torch.no_grad():
        y = x + 1
        print("inside", torch.is_grad_enabled())
        y = y * 2
    return y, torch.is_grad_enabled()


@case
def with_target_tuple(x):
    with plain((x, 2)) as (a, b):
        return a * b


@case
def with_target_attribute(x):
    holder = Closable()
    with plain(3) as holder.value:
        pass
    return x * holder.value
