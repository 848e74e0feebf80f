"""Where Python asks a class or an object that capture can't look into: in patterns, handlers, issubclass and comparisons."""

from __future__ import annotations

import collections
import collections.abc

import torch

from tests.capture.constructs.registry import breaks, case, log
from tests.capture.corpus import r


class Mapping(collections.abc.Mapping):
    def __init__(self, **entries):
        self.entries = entries

    def __getitem__(self, key):
        log(("item", key))
        return self.entries[key]

    def __iter__(self):
        log("iter")
        return iter(self.entries)

    def __len__(self):
        log("len")
        return len(self.entries)


class Getter(dict):
    def get(self, key, default=None):
        log(("get", key))
        return default if key == "hidden" else (key, "got")


@case(args=lambda: (r(4), [Mapping(a=1, b=2), Getter(a=1, hidden=2), Mapping(), {"a": 5}, collections.Counter("a")]))
def mappings_are_asked_by_get(x, subjects):
    found = []
    for subject in subjects:
        match subject:
            case {"a": a, "hidden": hidden}:
                found.append((a, hidden))
            case {"a": a}:
                found.append(a)
            case {}:
                found.append("none of these")
    return x + 1, found


class Keys:
    FIRST, SECOND = "a", "a"


@case
def key_that_is_twice_in_a_pattern(x):
    try:
        match {"a": x}:
            case {Keys.FIRST: a, Keys.SECOND: b}:
                return a, b
    except ValueError as error:
        return str(error)


@breaks
def classes_made_inside_in_patterns(x):
    class Positional:
        __match_args__ = ("first",)

        def __init__(self, first):
            self.first = first

    class Wrong:
        __match_args__ = 5

    match Positional(x):
        case Positional(first):
            found = [first + 1]
    try:
        match Wrong():
            case Wrong(first):
                found.append(first)
    except TypeError as error:
        found.append(str(error))
    return found


@breaks
def subclasses_made_inside(x):
    class A:
        pass

    class B(A):
        pass

    return x + 1, issubclass(B, A), issubclass(A, (int, B)), isinstance(B(), A), [issubclass(c, A) for c in (B, int)]


class TakesAll(type):
    def __instancecheck__(cls, obj):
        log("instance")
        return True

    def __subclasscheck__(cls, other):
        log("subclass")
        return True


class Everything(Exception, metaclass=TakesAll):
    pass


@case
def handlers_ask_no_metaclass(x):
    found = []
    try:
        raise ValueError("plain")
    except Everything:
        found.append("wrong")
    except ValueError as error:
        found.append(str(error))
    try:
        raise ExceptionGroup("group", [ValueError("inside")])
    except* Everything:
        found.append("wrong")
    except* ValueError as group:
        found.append(group.exceptions[0].args)
    return x + 1, found


@breaks
def comparisons_with_what_is_made_inside(x):
    class Odd:
        def __eq__(self, other):
            log(("eq", type(other).__name__))
            return "equal"

        def __lt__(self, other):
            return "less"

        __gt__ = __lt__

    odd = Odd()
    return odd == x, x == odd, odd != x, x < odd, odd < x, odd == 1, odd in [x, odd], [x] == [odd]


class Hooked:
    def __getattribute__(self, name):
        log(name)
        return object.__getattribute__(self, name)

    def __eq__(self, other):
        log("eq")
        return 5

    __hash__ = None


@breaks(args=lambda: (r(4), Hooked()))
def comparisons_with_a_hooked_object(x, o):
    return [o == x, x == o, o != x, o == 3]


class Kind(torch.Tensor):
    pass


@breaks(args=lambda: (torch.ones(2), torch.ones(2).to_sparse(), torch.ones(2).as_subclass(Kind)))
def comparisons_with_other_kinds_of_tensors(x, sparse, kind):
    y = x + 1
    return (y == kind).tolist(), (kind != y).tolist(), (y < kind).tolist(), (sparse.to_dense() == y).tolist()


class Refuses:
    __contains__ = __iter__ = __call__ = __bool__ = __add__ = __radd__ = __eq__ = __lt__ = __getitem__ = __index__ = None
    __enter__ = __exit__ = __neg__ = __next__ = __setitem__ = __format__ = __float__ = __reversed__ = __iadd__ = None

    def __len__(self):
        return 2


class Iterable:
    def __iter__(self):
        return iter([5])

    def __getitem__(self, i):
        return [5, 6][i]


class NotContaining(Iterable):
    __contains__ = None


class NotIterable(Iterable):
    __iter__ = None


REFUSED = [
    lambda x, o: 1 in o, lambda x, o: list(o), lambda x, o: o(), lambda x, o: bool(o), lambda x, o: o + 1, lambda x, o: 1 + o,
    lambda x, o: o == 1, lambda x, o: 1 == o, lambda x, o: o < 1, lambda x, o: o[0], lambda x, o: [1][o], lambda x, o: -o,
    lambda x, o: next(o), lambda x, o: f"{o}", lambda x, o: float(o), lambda x, o: reversed(o), lambda x, o: not o,
    lambda x, o: x + o, lambda x, o: x == o, lambda x, o: x[o], lambda x, o: [*o], lambda x, o: len(o), lambda x, o: o.__enter__,
    lambda x, o: 5 in o,
]  # fmt: skip


def refused(x, o):
    found = []
    for ask in REFUSED:
        try:
            found.append(ask(x, o))
        except TypeError as error:
            found.append(str(error))
    return found


REFUSES = Refuses()


@breaks
def special_methods_that_are_none(x):
    return refused(x, REFUSES)


@breaks(args=lambda: (r(4), NotContaining(), NotIterable()))
def special_methods_that_a_class_takes_away(x, a, b):
    return refused(x, a), refused(x, b)


@breaks
def contexts_that_are_none(x):
    try:
        with REFUSES:
            log("never")
    except TypeError as error:
        return x + 1, str(error)
