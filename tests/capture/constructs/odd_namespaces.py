"""Variables as dicts, frames, class statements inside, what classes and functions say of themselves."""

from __future__ import annotations

import inspect
import sys
import typing
from types import SimpleNamespace

import torch

import tinycompile
from tests.capture.constructs.odd_objects import Ops, WithNamed
from tests.capture.constructs.registry import breaks, case
from tests.capture.corpus import r


@breaks
def frame_objects(x):
    return x * 2, sys._getframe().f_code.co_name, sys._getframe().f_lineno > 0


@breaks
def exec_statement(x):
    ns = {"x": x}
    exec("y = x + 1", ns)
    return ns["y"]


@breaks
def eval_locals(x):
    k = 3
    return x * eval("k + 1")


@case
def del_free_variable(x):
    v = 1

    def f():
        return v  # noqa: F821

    a = f()
    del v
    try:
        f()
    except NameError as e:
        return x, a, str(e)


@case
def nonlocal_del(x):
    v = 1

    def f():
        nonlocal v
        del v

    f()
    try:
        return v
    except UnboundLocalError as e:
        return x, str(e)


@case
def vars_read(x):
    o = WithNamed()
    o.__dict__["z"] = x
    return vars(o), sorted(vars(o))


def namespace():
    return r(4), SimpleNamespace(scale=2, inner=SimpleNamespace(items=[1.0]), fn=torch.relu)


@case(args=namespace)
def simple_namespaces(x, n):
    n.seen, n.scale = x, n.scale + 1
    n.inner.items.append(2)
    del n.fn
    made, empty = SimpleNamespace(by=n.scale, kept=x), SimpleNamespace()
    made.late = 1
    vars(made)["written"] = 2
    said = []
    for odd in (n, made, empty):
        try:
            odd.missing
        except AttributeError as error:
            said.append(str(error))
    facts = bool(empty), type(made) is SimpleNamespace, hasattr(empty, "by"), getattr(empty, "by", 5)
    return x * n.scale + n.inner.items[0], made, empty, sorted(vars(made)), said, facts


@breaks
def simple_namespaces_as_values(x):
    return SimpleNamespace(a=1) == SimpleNamespace(a=1), repr(SimpleNamespace(a=1)), SimpleNamespace(a=x).a + 1


class P:
    __match_args__ = ("a", "b")

    def __init__(self, a, b):
        self.a, self.b = a, b


@case
def vars_of_self(x):
    o = P(1, x)
    return {k: v for k, v in vars(o).items()}, o.__dict__ is vars(o), "a" in vars(o)


@case
def dict_update_dunder(x):
    o = P(1, x)
    o.__dict__.update(c=3)
    o.__dict__["a"] = 9
    return o.c, o.a, o


class Shares:
    def __init__(self, attributes):
        self.__dict__ = attributes


OUTSIDE = P(1, 2)


@breaks
def two_objects_with_one_dict(x):
    space = {"a": x}
    first, second = Shares(space), Shares(space)
    tinycompile.graph_break()
    first.a = x + 1
    space["b"] = 5
    del second.a
    return first.b, hasattr(first, "a"), sorted(space), second.__dict__ is space


@breaks
def an_object_and_its_dict(x):
    o = P(1, x)
    d = o.__dict__
    tinycompile.graph_break()
    d["a"] = 9
    o.b = x * 2
    d["c"] = o.a
    del o.a
    return d["b"], o.c, "a" in d, d is vars(o)


@breaks
def written_by_attribute_then_by_dict(x):
    o = P(1, x)
    d = o.__dict__
    tinycompile.graph_break()
    o.a = 7
    return d["a"], len(d), list(d.values())[0], x + o.a


@case
def the_dict_of_an_object_outside(x):
    d = OUTSIDE.__dict__
    return d["a"], OUTSIDE.b, d is vars(OUTSIDE), x + d["b"]


@case
def locals_dict(x):
    a = 1
    d = locals()
    return d["a"], d["x"] + 1, sorted(d), len(locals())


T = typing.TypeVar("T")


@case
def globals_dict(x):
    return x, globals()["P"] is P, "nope" in globals(), globals().get("T") is T, __name__


G1 = 5


@case
def globals_write(x):
    globals()["G1"] = 6
    y = x + G1
    globals()["G1"] = 5
    return y, G1


def hinted(a: int, b: str = "s") -> float:
    return 1.0


@case
def inspect_use(x):
    return x, list(inspect.signature(hinted).parameters), inspect.isfunction(hinted), inspect.isclass(P)


@case
def method_identity(x):
    p = Ops(1)
    m = p.__add__
    return x, m.__self__ is p, m.__func__ is Ops.__add__, m.__name__, m == p.__add__, m is p.__add__


@breaks
def fn_attrs(x):
    def f(a, b=2, *, c=3) -> int:
        "doc"

    return (
        x,
        f.__name__,
        f.__defaults__,
        f.__kwdefaults__,
        f.__doc__,
        f.__qualname__,
        f.__module__,
        f.__code__.co_argcount,
        f.__annotations__,
        f.__closure__,
    )


@breaks
def id_is(x):
    a = [x]
    b = a
    return x, id(a) == id(b), a is b, id(x) == id(a[0]), a != [x]


@breaks
def globals_mutation(x):
    global G2
    G2 = 1
    y = x + G2
    del G2
    try:
        G2
    except NameError as e:
        return y, str(e)


@case
def del_stuff(x):
    l = [1, 2, 3]
    d = {"a": 1, "b": 2}
    o = P(1, 2)
    del l[0], d["a"], o.a
    return x, l, d, hasattr(o, "a"), "b" in vars(o)
