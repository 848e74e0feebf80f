"""What is asked of values themselves: their class, what built-in classes have that is no method, attributes of OrderedDicts."""

from __future__ import annotations

import collections
import copy
import functools
from collections import OrderedDict

from tests.capture.constructs.registry import case
from tests.capture.corpus import r

Pair = collections.namedtuple("Pair", "a b")
BUILT_IN = (
    "[]", "()", "{}", "set()", "frozenset()", "(1)", "(1.5)", "True", "None", "'a'", "b'b'", "range(3)", "slice(1)", "OrderedDict()",
    "collections.defaultdict(list)", "collections.Counter()", "collections.deque()", "Pair(1, 2)", "x.shape", "x", "iter([])", "zip()",
    "enumerate([])", "{}.keys()", "{}.items()", "functools.partial(len)", "ValueError()", "len", "(lambda: 0)",
)  # fmt: skip


def _of(text):
    """Cases about one value: its class, and names that its class has in an odd place, or nowhere."""
    space = {"collections": collections, "functools": functools, "OrderedDict": OrderedDict, "Pair": Pair}
    exec(f"def of_class(x):\n    return x, type({text}), {text}.__class__ is type({text}), isinstance({text}, object)", space)
    names = ("__dict__", "__len__", "__call__", "__name__", "__mro__", "mro", "__module__", "nope")
    asked = ", ".join(f"hasattr({text}, {name!r})" for name in names)
    exec(f"def names(x):\n    return x, {asked}, {text}.__hash__ is None, {text}.__doc__, callable({text})", space)
    return space["of_class"], space["names"]


for _at, _text in enumerate(BUILT_IN):
    for _fn in _of(_text):
        _fn.__name__ = f"{_fn.__name__}_{_at}"
        case(_fn, whole=False)  # (some have attributes that break)


def ordered():
    d = OrderedDict(a=1)
    d.tag = 2
    return d, r(4)


@case(args=ordered)
def attributes_of_an_ordered_dict(d, x):
    d.tag += 1
    d.new = x * d.tag
    del d["a"]
    return d, d.tag, d.new, hasattr(d, "tag"), hasattr(d, "other"), getattr(d, "other", 4), d.__dict__


@case(args=ordered)
def deleted_attribute_of_an_ordered_dict(d, x):
    del d.tag
    return x * 2, hasattr(d, "tag"), d


@case
def attributes_of_a_new_ordered_dict(x):
    d = OrderedDict(a=x)
    d.tag = [x * 2]
    d.itself = d
    held = [d, d]
    d["b"] = d.tag
    return held, hasattr(d, "tag"), hasattr(d, "other"), d.tag[0]


@case(args=ordered)
def copies_of_an_ordered_dict(d, x):
    copies = [copy.copy(d), copy.deepcopy(d), d.copy(), OrderedDict(d), d | {}]
    return copies, [hasattr(c, "tag") for c in copies], x + 1
