"""Changes outside the function don't break the graph: they are replayed after it, once a call, with identities kept.

PYTEST_DONT_REWRITE"""

from __future__ import annotations

import collections
import contextlib
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn

import tests.capture.breaking as breaking
from tests.capture.corpus import r
from tests.capture.test_corpus import same
from tests.capture.test_resumed import compiled
from tinycompile.capture.captured import CaptureOptions
from tinycompile.capture.frame import capture

pytestmark = pytest.mark.pure
CASES: dict[str, tuple[Any, Any]] = {}
COUNTER = [5]
REGISTRY: dict[str, Any] = {}


def case(args: Any) -> Any:
    def register(fn: Any) -> Any:
        CASES[fn.__name__] = fn, args
        return fn

    return register


class Thing:
    limit = 3

    def __init__(self, value: Any = None) -> None:
        self.value = value
        self.items: list[Any] = []

    @property
    def double(self) -> Any:
        return self.value * 2

    @double.setter
    def double(self, value: Any) -> None:
        self.value = value / 2

    def add(self, x: Any) -> Thing:
        self.items.append(x)
        return self


class Slotted:
    __slots__ = ("a", "b")

    def __init__(self, a: Any) -> None:
        self.a = a


@dataclass
class Record:
    x: Any
    name: str = "r"
    more: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.more.append(self.name)


@dataclass(frozen=True)
class Frozen:
    x: Any
    y: int = 2


class Stack(Thing):
    def __init__(self, value: Any) -> None:
        super().__init__(value)
        self.kind = type(self).__name__

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, at: int) -> Any:
        return self.items[at]

    def __enter__(self) -> Stack:
        self.items.append("enter")
        return self

    def __exit__(self, *error: Any) -> None:
        self.items.append("exit")

    def __add__(self, other: Any) -> Any:
        return self.value + other


@case(lambda: ([r(2)], r(2)))
def lists(xs, x):
    xs.append(x + 1)
    xs.insert(0, x)
    first = xs.pop()
    xs[0] = first * 2
    xs += [x, "end"]
    return len(xs), first


@case(lambda: ([1, 2, 3], r(2)))
def list_order(xs, x):
    xs.reverse()
    xs.sort(key=lambda v: -v)
    del xs[0]
    xs.extend(range(2))
    return x + xs[0], xs.index(0)


@case(lambda: ([r(2)], r(2)))
def same_list_twice(xs, x):
    ys = xs
    ys.append(x)
    return ys is xs, xs, [xs, ys]


@case(lambda: ({"a": r(2), "b": 1, "c": 2}, r(2)))
def dicts(d, x):
    d["new"] = x + 1
    d["a"] = d["a"] * 2
    gone = d.pop("b")
    d.setdefault("c", 7)
    d.update(z=3)
    return gone + x, list(d)


@case(lambda: ({"a": 1, "b": 2}, r(2)))
def dict_key_comes_back(d, x):
    v = d.pop("a")
    d["a"] = v + 1
    return x + v, list(d)


@case(lambda: ({1, 2}, r(2)))
def sets(s, x):
    s.add(5)
    s |= {6}
    return x + len(s)


@case(lambda: ([r(2)], {"k": [1]}, r(2)))
def read_before_write(xs, d, x):
    old, inner = xs[0], d["k"]
    xs[0] = x + 1
    d["k"] = (old, inner)
    inner.append(2)
    return old * 2, inner


@case(lambda: (Thing(r(2)), r(2)))
def attributes(t, x):
    t.value = t.value + x
    t.double = t.double + 1
    t.fresh = [t.value]
    t.fresh.append(x)
    t.limit = t.limit + 1
    del t.items
    t.items = []
    t.gone = 1
    del t.gone
    return t.value, t.fresh[0], hasattr(t, "fresh"), t.add(x) is t


@case(lambda: (Slotted(r(2)), r(2)))
def slots(s, x):
    s.b = s.a + x
    s.a = 1
    return s.b * s.a


@case(lambda: (r(2),))
def cells(x):
    n = 0

    def bump(k):
        nonlocal n
        n += k
        return x * n

    return bump(1), bump(2), n


@case(lambda: (r(2),))
def global_things(x):
    COUNTER[0] += 1
    COUNTER[0] -= 1
    breaking.TOTAL = 3
    REGISTRY["last"] = x + 1
    return x * COUNTER[0]


def set_total(x):
    global TOTAL
    TOTAL = x
    return TOTAL


@case(lambda: (r(2),))
def global_is_read_back(x):
    y = set_total(x + 1)
    return TOTAL * 2, y is TOTAL  # noqa: F821


@case(lambda: (r(2),))
def objects(x):
    a, b = Thing(x + 1), Stack(x)
    a.add(x).add(b)
    b.other = a
    with b as entered:
        entered.items.append(len(b))
    return a, b, b.other is a, b + 1, b[0], b.kind, a.double


@case(lambda: (r(2),))
def dataclasses(x):
    a = Record(x + 1)
    b = Record(x, name="other", more=[1])
    return a, b, Frozen(x * 2), a.more is b.more, Frozen(1).y


@case(lambda: ([], r(2)))
def objects_that_escape(log, x):
    t = Thing(x)
    log.append(t)
    log.append(t)
    t.value = x + 1
    return t.value


@case(lambda: (r(2),))
def objects_in_a_ring(x):
    a, b = Thing(x), Thing(x + 1)
    a.other, b.other = b, a
    return a.other.other.value, b.other.value


class Cached(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.inner = nn.Linear(2, 2)
        self.register_buffer("seen", torch.zeros(2))
        self.calls = 0
        self.cache: dict[str, Any] = {}

    def forward(self, x: Any) -> Any:
        self.calls += 1
        self.cache["x"] = self.inner(x)
        self.seen = self.seen + x.detach()
        self.last = self.cache["x"]
        return self.last * self.calls + self.seen


@case(lambda: (Cached(), r(2)))
def modules(m, x):
    return m(x) + m(x + 1), m.calls


@case(lambda: (r(3), r(3)))
def inputs_in_place(x, y):
    x += 1
    before = x * 1
    x.mul_(y)
    y[0] = 7
    y.view(-1)
    x[1:] = y[1:]
    return x, before, y.sum() + x.sum(), x is y


@case(lambda: (torch.arange(4), r(4)))
def dtypes_in_place(i, x):
    i += 3
    i.clamp_(max=5)
    torch.nn.functional.relu(x, inplace=True)
    return i * x


class Statistics(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("count", torch.tensor(0))

    def forward(self, x: Any) -> Any:
        self.count += 1
        self.mean.mul_(0.9).add_(x, alpha=0.1)
        return x - self.mean


@case(lambda: (Statistics(), r(3)))
def buffers_in_place(m, x):
    return m(m(x))


def _hooked() -> nn.Module:
    m = Cached()
    m.register_forward_pre_hook(lambda module, args: (args[0] * 2,))
    m.register_forward_pre_hook(lambda module, args, kwargs: (args, kwargs), with_kwargs=True)
    m.register_forward_hook(lambda module, args, out: setattr(module, "out", out * args[0]))
    m.register_forward_hook(lambda module, args, kwargs, out: (out, len(kwargs)), with_kwargs=True)
    m.inner.register_forward_pre_hook(lambda module, args: args[0] + 1)
    return m


@case(lambda: (_hooked(), r(2)))
def hooks(m, x):
    out, n = m(x)
    return out + 1, n, m.out


@contextlib.contextmanager
def traced(log, name):
    log.append(name)
    try:
        yield len(log)
    finally:
        log.append("end " + name)


@case(lambda: ([], r(2)))
def context_managers(log, x):
    with traced(log, "a") as n, traced(log, "b"):
        y = x * n
    return y


@case(lambda: (r(2),))
def exceptions(x):
    found = []
    for key in ("a", "b", "c"):
        try:
            found.append({"a": x, "b": 1}[key])
        except (KeyError, IndexError) as error:
            found.append((type(error).__name__, error.args, str(error)))
        else:
            found.append("else")
        finally:
            found.append(key)
    return found


def checked(x, n):
    if n > 2:
        raise ValueError("large", n)
    return x + n


@case(lambda: (r(2),))
def exceptions_of_callees(x):
    out = []
    for n in range(5):
        try:
            out.append(checked(x, n))
        except ValueError as error:
            try:
                raise RuntimeError("again") from error
            except RuntimeError as second:
                out.append(second.args)
        except Exception:
            raise
    try:
        assert x.ndim == 7, "dims"
    except AssertionError as error:
        out.append(str(error))
    return out


@case(lambda: (r(2),))
def swallowed(x):
    log: list[Any] = []
    with contextlib.suppress(KeyError):
        log.append(1)
        log.append({}["k"])
        log.append(2)
    return x + len(log), log


@case(lambda: (collections.OrderedDict(a=1), r(2)))
def ordered(d, x):
    d["z"] = x
    return d, x + 1


def described(value: Any, depth: int = 0) -> Any:
    """Our classes as what they hold."""
    if isinstance(value, (Thing, Record, Frozen, Slotted)) and depth < 4:
        names = value.__slots__ if isinstance(value, Slotted) else vars(value)
        return {"class": type(value).__name__, **{k: described(getattr(value, k, None), depth + 1) for k in names}}
    if isinstance(value, Thing):
        return "..."
    if type(value) in (list, tuple):
        return type(value)(described(v, depth) for v in value)
    if type(value) in (dict, collections.OrderedDict):
        return {k: described(v, depth) for k, v in value.items()}
    if isinstance(value, nn.Module):
        return described([dict(value.state_dict()), {k: v for k, v in vars(value).items() if not k.startswith("_")}], depth)
    return value


def call(run: Any, make_args: Any) -> Any:
    REGISTRY.clear()
    args = make_args()
    return described([run(*args), list(args), REGISTRY, COUNTER])


@pytest.mark.parametrize("name", list(CASES))
def test_effects_are_replayed(name: str) -> None:
    fn, make_args = CASES[name]
    captured = capture(fn, make_args(), {}, CaptureOptions(resume=True, redo=True))
    assert captured.place is None, str(captured.breaks[0])
    assert captured.graph is not None, str(captured.breaks[0])
    f = compiled(fn, fullgraph=True)
    for _ in range(3):
        want = call(fn, make_args)
        same(call(f, make_args), want, name)


def test_changes_add_up_over_calls() -> None:
    def f(log, box, x):
        box.value = x if box.value is None else box.value + x
        log.append(len(log))
        return box.value

    g = compiled(f)
    logs, boxes = ([], []), (Thing(), Thing())
    for step in range(4):
        got, want = (h(log, box, torch.ones(2)) for h, log, box in zip((g, f), logs, boxes, strict=True))
        same(got, want, str(step))
    assert logs[0] == logs[1] == [0, 1, 2, 3]


def test_a_list_that_grows_in_each_call() -> None:
    def f(log, x):
        log.append(x.sum())
        return x + 1

    g, log = compiled(f), []
    for k in range(20):
        same(g(log, torch.ones(2)), torch.full((2,), 2.0))
        assert len(log) == k + 1
    assert len(g._entries) == 1


def test_objects_that_are_one_in_one_call_and_not_in_the_next() -> None:
    def f(a, b, x):
        a.value = x + 1
        return b.value

    g = compiled(f)
    one, two = Thing(0), Thing(7)
    x = torch.ones(2)
    assert g(one, two, x) == 7
    same(g(one, one, x), x + 1)
    assert g(one, two, x) == 7

    def h(xs, ys, x):
        xs.append(1)
        return x + len(ys)

    k, xs, ys = compiled(h), [], []
    same(k(xs, ys, x), x)
    same(k(ys, ys, x), x + 1)


def test_an_object_reached_through_a_bound_method_is_that_object() -> None:
    def f(box, bump, x):
        bump(x)
        return box.value + x

    g = compiled(f)
    boxes = breaking.Box(torch.zeros(2)), breaking.Box(torch.zeros(2))
    for _ in range(3):
        got, want = (h(b, b.bump, torch.ones(2)) for h, b in zip((g, f), boxes, strict=True))
        same(got, want)


def test_hooks_that_come_and_go() -> None:
    m = nn.Linear(2, 2)
    f = compiled(lambda x: m(x) + 1, fullgraph=True)
    x = torch.ones(2)
    for register in (None, lambda *a: a[2] * 2, lambda *a: a[2] * 3):
        handle = None if register is None else m.register_forward_hook(register)
        same(f(x), m(x) + 1)
        if handle is not None:
            handle.remove()
    same(f(x), m(x) + 1)


def test_inputs_that_are_one_tensor_in_the_next_call() -> None:
    def f(x, y):
        x.add_(1)
        return y * 2

    g = compiled(f)
    for make in (lambda: (torch.ones(2), torch.ones(2)), lambda: (torch.ones(2),) * 2, lambda: (torch.ones(2), torch.ones(2))):
        got, want = make(), make()
        same([g(*got), *got], [f(*want), *want])


def test_nothing_is_replayed_when_the_call_fails() -> None:
    def f(log, x, i):
        log.append(1)
        return x[i]

    g = compiled(f)
    log: list[Any] = []
    with pytest.raises(IndexError):
        g(log, torch.ones(2), torch.tensor([5]))
    assert log == [1], "what eager did before the error, once"


def test_effects_are_applied_once_when_one_fails() -> None:
    class Refusing(nn.Module):
        refuse = False

        def __setattr__(self, name: str, value: Any) -> None:
            if type(self).refuse:
                raise OSError("full")
            super().__setattr__(name, value)

    def f(log, m, x):
        log.append(1)
        m.value = x + 1
        return x

    g, m = compiled(f), Refusing()
    g([], m, torch.ones(2))
    log: list[Any] = []
    Refusing.refuse = True
    with pytest.raises(OSError, match="full"):
        g(log, m, torch.ones(2))
    assert log == [1]
