"""What is asked of values themselves: their class, what built-in classes have that is no method, attributes of OrderedDicts."""

from __future__ import annotations

import collections
import copy
import functools
from collections import OrderedDict

from tests.capture.constructs.registry import breaks, case
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


# --- the dict of a class ---


class Described:
    """Words."""

    scale, table = 3, {"a": 1}

    def method(self, x):
        return x * self.scale

    @property
    def name(self):
        return "described"

    @staticmethod
    def still(x):
        return x


class Deriving(Described):
    own = 1


@case
def names_in_the_dict_of_a_class(x):
    found = "scale" in Described.__dict__, "scale" in Deriving.__dict__, "own" in vars(Deriving), "__init__" in vars(Described)
    return x * Described.__dict__["scale"], found, Described.__dict__.get("other", 4), vars(Deriving).get("own")


@case
def a_function_in_the_dict_of_a_class(x):
    method = Described.__dict__["method"]
    return method(Deriving(), x), Described.__dict__["table"]["a"], Described.__dict__["table"] is Described.table


@case
def all_of_the_dict_of_a_class(x):
    public = [name for name in vars(Described) if not name.startswith("_")]
    plain = {k: v for k, v in Described.__dict__.items() if isinstance(v, int)}
    return x, public, plain, len(vars(Deriving)) > 1, [n for n in Deriving.__dict__.keys() if n == "own"]


@case
def missing_in_the_dict_of_a_class(x):
    try:
        return Deriving.__dict__["scale"]
    except KeyError as error:
        return x, error.args, isinstance(vars(Deriving), dict), type(vars(Deriving)).__name__


@case
def dicts_of_classes_along_the_order(x):
    owners = [cls.__name__ for cls in Deriving.__mro__ if "scale" in cls.__dict__]
    return (
        x * len(owners),
        owners,
        dict(vars(Deriving))["own"],
        (vars(Deriving) | {"own": 5})["own"],
        vars(Deriving).copy()["own"],
    )


@case
def descriptors_in_the_dict_of_a_class(x):
    name, still = Described.__dict__["name"], vars(Described)["still"]
    return name.fget(None), still.__func__(x), type(name), isinstance(still, staticmethod), name.fset


@breaks
def the_dict_of_a_class_is_refused_and_set(x):
    try:
        vars(Described)["scale"] = 4
    except TypeError as error:
        words = str(error)
    Deriving.own = 2
    found = vars(Deriving)["own"], "own" in Deriving.__dict__
    Deriving.own = 1
    return x, words, found, vars(Deriving)["own"]
