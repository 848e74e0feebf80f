"""Functions with graph breaks in them. Each case: a function, and a function that makes its arguments. The function's prints,
its effects on its arguments and on ``WORLD``, its result and its errors are all compared with eager."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tests.capture.corpus import r

CASES: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Any, ...]]]] = {}
WORLD: dict[str, Any] = {}
TOTAL = 0


def case(*shapes: Any, args: Any = None) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(fn: Callable[..., Any]) -> Callable[..., Any]:
        assert fn.__name__ not in CASES
        CASES[fn.__name__] = fn, args or (lambda: tuple(r(*s) for s in shapes))
        return fn

    return register


# --- what breaks ---


@case((4,))
def printing(x):
    y = x * 2
    print("shape", tuple(y.shape))
    return y + 1


@case((4,))
def branch_on_data(x):
    y = x * 2
    if y.sum() > 0:
        z = y + 1
    else:
        z = y - 1
    return z * 3


@case((4,))
def boolean_operators_on_data(x):
    a = x.sum() > 100 or x.max() > 0
    b = x.sum() > 0 and x.min()
    c = not x.sum()
    return a, b, c, 1 if x.sum() > 5 else 2, x + 1


@case((4,))
def numbers_from_data(x):
    a = x.sum().item()
    b = int(x.abs().max())
    c = float(x[0]) + a
    return x * a, b, c, x.tolist(), (x + 1).numpy().sum()


@case((4,))
def text_of_data(x):
    s = f"{x.sum():.2f}"
    return s + str(x[0].item()), x + len(s)


@case((4,))
def unknown_functions(x):
    start = time.perf_counter()
    y = x.sin() + 1
    took = time.perf_counter() - start
    return y, took >= 0


@case((4,))
def mask(x):
    y = x[x > 0]
    return y * 2, y.shape[0]


@case((4,))
def failing_assertion(x):
    y = x + 1
    assert y.sum() > 1000, "too small"
    return y


@case((4,))
def wrong_shapes(x):
    y = x * 2
    return y + torch.ones(7)


@case((4,))
def raising(x):
    y = x.sum()
    if y > -1000:
        raise ValueError("bad", int(y))
    return x


@case((4,))
def cause_and_context(x):
    try:
        x + torch.ones(7)
    except RuntimeError as error:
        raise ValueError("outer") from error


# --- loops ---


@case((4,))
def loop_with_prints(x):
    for i in range(4):
        x = x + i
        print(i)
        x = x * 2
    return x


@case((4,))
def nested_loops(x):
    out = []
    for i in range(3):
        for name in ("a", "b"):
            x = x + 1
            if x.sum() > 20 + i:
                break
            out.append((name, i, x.sum().item()))
        else:
            out.append("whole")
            continue
        x = x - 2
    return x, out


@case((4,))
def while_on_data(x):
    n = 0
    while x.abs().sum() > 0.5:
        x = x / 2
        n += 1
    else:
        n += 100
    return x, n


@case((4,))
def live_iterators(x):
    rows = [x, x + 1, x + 2]
    out = []
    for i, (a, b) in enumerate(zip(rows, reversed(rows), strict=True), 5):
        out.append(a * i + b)
        print(i)
    for k, v in {"a": 1, "b": 2}.items():
        print(k)
        x = x + v
    for y in map(lambda t: t * 2, filter(lambda t: True, rows)):
        print(len(out))
        out.append(y)
    return out, x


@case((4,))
def explicit_iterator(x):
    it = iter([1, 2, 3])
    a = next(it)
    print(a)
    b = next(it)
    return x + a + b, list(it)


@case((4,))
def list_grows_under_the_loop(x):
    xs = [x]
    for y in xs:
        if len(xs) < 4:
            xs.append(y + 1)
        print(len(xs))
    return xs


@case((4,))
def generator_inside(x):
    def numbers(n):
        for i in range(n):
            WORLD["asked"] = WORLD.get("asked", 0) + 1
            yield x + i

    total = x
    for y in numbers(3):
        print("loop")
        total = total + y
    return total


@case((4,))
def early_return_in_loop(x):
    for i in range(10):
        x = x + 1
        if x.sum() > 8:
            return x, i
    return None


# --- with, try ---


class Timer:
    def __init__(self, log, swallow=False):
        self.log, self.swallow = log, swallow

    def __enter__(self):
        self.log.append("enter")
        return self

    def __exit__(self, kind, value, trace):
        self.log.append(kind.__name__ if kind else None)
        return self.swallow


@contextlib.contextmanager
def managed(log):
    log.append("in")
    try:
        yield len(log)
    finally:
        log.append("out")


@case((4,))
def user_contexts(x):
    log = []
    with Timer(log) as t, managed(log) as n:
        y = x * n
        print(len(t.log))
        y = y + 1
    return y, log


@case((4,))
def error_in_a_context(x):
    log = []
    with Timer(log, swallow=True):
        y = x * 2
        y = y + torch.ones(9)
        log.append("not reached")
    return x + 1, log


@case(args=lambda: (r(4).requires_grad_(),))
def grad_modes(x):
    with torch.no_grad():
        y = x * 2
        print(torch.is_grad_enabled())
        z = y + 1
        with torch.enable_grad():
            w = x * 3
            print(torch.is_grad_enabled())
            v = w + 1
    torch.set_grad_enabled(False)
    print(torch.is_grad_enabled())
    u = x + 1
    torch.set_grad_enabled(True)
    return y, z, w, v, u, x * 2


@case(args=lambda: (r(4).requires_grad_(),))
def error_under_no_grad(x):
    try:
        with torch.no_grad():
            y = x * 2
            print("before")
            y = y + torch.ones(9)
    except RuntimeError:
        print(torch.is_grad_enabled())
    return x * 2


@case((4,))
def handlers(x):
    found = []
    for key in ("a", "b", "c"):
        try:
            y = x + 1
            found.append({"a": y}[key])
        except KeyError as error:
            found.append(str(error))
            print("missing", key)
            if key == "c":
                break
        else:
            found.append("else")
        finally:
            found.append(key)
    return found, x * 2


@case((4,))
def torch_error_is_caught(x):
    try:
        y = x + torch.ones(9)
    except RuntimeError as error:
        y = x * len(str(error))
    return y + 1


@case((4,))
def run_time_error_is_caught(x):
    try:
        y = torch.linalg.cholesky(-torch.eye(3) + 0 * x[0])
    except RuntimeError:
        y = x + 5
    return y


@case((4,))
def finally_with_return(x):
    try:
        y = x + 1
        print("body")
        return y
    finally:
        print("finally")
        WORLD["closed"] = True


@case((4,))
def reraised(x):
    try:
        try:
            raise KeyError("k")
        except KeyError:
            print("inner")
            raise
    except KeyError as error:
        return x + 1, error.args


# --- objects that live over a break ---


@case((4,))
def shared_list(x):
    a = [x]
    b = a
    d = {"a": a, "t": (a, x)}
    print("break")
    b.append(x + 1)
    return a, b is a, d["a"] is a, d["t"][0] is b, len(a)


@case((4,))
def closures_and_cells(x):
    total = 0
    scale = x * 2

    def add(k, *, by=1):
        nonlocal total
        total += k * by
        return scale * total

    a = add(1)
    print(total)
    scale = scale + 1
    b = add(2, by=3)
    print(total)
    return a, b, add(3), total


@case((4,))
def recursive_closure(x):
    def down(n):
        return x if n == 0 else down(n - 1) + 1

    print(down.__name__)
    return down(3)


@case((4,))
def methods_and_partials(x):
    import functools

    f = functools.partial(torch.add, x, alpha=2)
    g = "abc".upper
    h = x.mul
    keys = {"a": 1}.keys()
    print("break")
    return f(x), g(), h(3), list(keys)


@case((4,))
def unbound_and_deleted(x):
    y = x + 1
    if y.sum() > 1000:
        late = 1
    del y
    print("break")
    try:
        return late + y  # noqa: F821
    except UnboundLocalError as error:
        return str(error), x + 1


@case((4,))
def same_tensor_twice(x):
    y = x + 1
    z = y
    print("break")
    z.add_(1)
    return y, z, y is z


@case((4,))
def views_over_a_break(x):
    y = x * 2
    v = y.view(2, 2)
    print("break")
    v.mul_(3)
    y[0] = 100
    return y, v


@case((4,))
def calls_in_flight(x):
    def f(*args, **kwargs):
        return args, kwargs

    return f(x + 1, print("first"), *[x * 2, print("second")], k=x.sum().item(), **{"m": print("third")})


@case((4,))
def comprehensions_that_break(x):
    a = [y.item() for y in x]
    b = {i: print(i) for i in range(2)}
    return a, b, [x + i for i in range(3) if x.sum() > -100], sum(t.item() for t in x)


@case((4,))
def comprehensions_over_names_of_cells(x):
    i, k = "outer", 2
    a = [i for i in range(3)]
    functions = [lambda: (i, k) for i in range(2)]
    b = {i: [k for k in range(i)] for i in range(3)}
    print("break")
    return a, i, k, [f() for f in functions], b, x + 1, (lambda: i)()


# --- effects ---


@dataclass
class Box:
    value: Any = None
    count: int = 0

    def bump(self, x):
        self.count += 1
        self.value = x * self.count
        return self.value


@case(args=lambda: (Box(), r(4)))
def attributes(box, x):
    y = box.bump(x)
    box.value = y + 1
    return box.bump(y), box.count


@case(args=lambda: ([r(2)], {"a": r(3)}, r(4)))
def containers_from_outside(xs, d, x):
    xs.append(x + 1)
    d["b"] = x * 2
    del d["a"]
    xs[0] = x
    xs += [x - 1]
    return len(xs), xs[-1] + 1, sorted(d)


@case((4,))
def globals_change(x):
    global TOTAL
    TOTAL = TOTAL + 1
    y = x + TOTAL
    WORLD["total"] = y
    TOTAL -= 1
    return y


@case((4,))
def input_in_place(x):
    x += 1
    y = x * 2
    x.mul_(y)
    x[0] = 7
    return x, y


@case((4,), (4,))
def inputs_in_place(x, y):
    x.add_(y)
    y.copy_(x * 2)
    return x.sum() + y.sum()


@case((4,))
def objects_made_inside(x):
    b = Box()
    b.value = x + 1
    c = Box(x, 3)
    return b.bump(x), c.count, b.value + c.value, b


@case((4,))
def setattr_and_getattr(x):
    box = Box()
    setattr(box, "other", x + 1)
    print(getattr(box, "other").shape)
    del box.value
    return box.other, hasattr(box, "value"), vars(box)["count"]


@case((4,))
def local_names(x):
    a = x + 1
    names = sorted(locals())
    return a, names, eval("a + 1")


@case((4,))
def random_numbers(x):
    torch.manual_seed(3)
    return x + torch.normal(torch.zeros(4), 1.0), torch.rand(2)


# --- calls that break ---


def helper(x, k=1):
    y = x + k
    print("helper")
    return y * 2


def chain(x):
    return helper(x * 2) + helper(x, k=3)


@case((4,))
def callee_breaks(x):
    a = x * 2
    b = helper(a)
    return a + b + chain(b)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.calls = 0

    def forward(self, x):
        x = self.a(x).relu()
        x = self.middle(x)
        return self.b(x)

    def middle(self, x):
        self.calls += 1
        print("calls", self.calls)
        return x + 1


@case(args=lambda: (Model(), r(2, 4)))
def module_that_breaks(m, x):
    return m(x) * 2, m.calls


@case(args=lambda: (nn.Sequential(Model(), nn.ReLU(), Model()), r(2, 4)))
def modules_in_a_sequence(m, x):
    return m(x) * 2


def _hooked():
    m = Model()
    m.register_forward_hook(lambda module, args, out: out + 1)
    m.a.register_forward_pre_hook(lambda module, args: (args[0] * 2,))
    return m


@case(args=lambda: (_hooked(), r(2, 4)))
def module_with_hooks(m, x):
    return m(x) + 1


@case(args=lambda: (nn.BatchNorm1d(4), r(3, 4)))
def batch_norm_in_training(m, x):
    return m(x), m.running_mean, m.num_batches_tracked


class Child(Model):
    def middle(self, x):
        y = super().middle(x * 2)
        print("child")
        return super(Child, self).middle(y)


@case(args=lambda: (Child(), r(2, 4)))
def super_calls(m, x):
    return m(x)


def fibonacci(n, x):
    if x.sum() > 1000:
        return x
    return x if n < 2 else fibonacci(n - 1, x) + fibonacci(n - 2, x)


@case((4,))
def recursion_that_breaks(x):
    return fibonacci(4, x)


def count_down(n, x):
    return x if n == 0 else count_down(n - 1, x + 1) * 2


@case((4,))
def recursion_that_is_deep(x):
    return count_down(120, x * 0)


@case(args=lambda: (lambda t: (print("fn"), t + 1)[1], r(4)))
def function_argument(f, x):
    return f(f(x) * 2)


@case((4,))
def match_on_data(x):
    match x.sum().item() > 0, x.tolist():
        case True, [first, *rest]:
            return first, rest, x + 1
        case False, [*_, last]:
            return last, x - 1


@case((4,))
def mathematics_on_items(x):
    return x * math.sqrt(abs(x.sum().item())), max(x.tolist()), round(x[0].item(), 2)


@case(args=lambda: (r(4), 2, 3))
def star_arguments(x, *rest, scale=2, **more):
    y = x * sum(rest)
    print(scale, more)
    return y * scale, rest


@case((4,))
def autocast_region(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x[None] @ x[:, None]
    return y, x + 1
