"""Objects with rare special methods, patterns, deletion, iteration by hand."""

from __future__ import annotations

import collections
import functools
import itertools
import operator

import torch

from tests.capture.constructs.registry import breaks, case, log
from tests.capture.corpus import r


class Named:
    def __set_name__(self, owner, name):
        self.name = name

    def __get__(self, o, t=None):
        return self if o is None else o.__dict__.get(self.name, 0) * 2

    def __set__(self, o, v):
        o.__dict__[self.name] = v


class WithNamed:
    v = Named()


@case
def set_name(x):
    o = WithNamed()
    o.v = 4
    return x * o.v, o.__dict__["v"], WithNamed.v.name


class GA:
    def __getattribute__(self, n):
        log(("ga", n))
        return object.__getattribute__(self, n)

    def __init__(self):
        self.q = 1


@case
def getattribute(x):
    g = GA()
    return x + g.q


class Ops:
    def __init__(self, v):
        self.v = v

    def __add__(self, o):
        return Ops(self.v + (o.v if isinstance(o, Ops) else o))

    __radd__ = __add__

    def __iadd__(self, o):
        self.v += o
        return self

    def __matmul__(self, o):
        return "mm"

    def __neg__(self):
        return Ops(-self.v)

    def __bool__(self):
        return self.v != 0

    def __len__(self):
        return 3

    def __contains__(self, k):
        return k == self.v

    def __call__(self, *a, **k):
        return (a, k)

    def __getitem__(self, k):
        if isinstance(k, int) and k > 2:
            raise IndexError(k)
        return k

    def __setitem__(self, k, v):
        log(("set", k, v))

    def __delitem__(self, k):
        log(("del", k))

    def __eq__(self, o):
        return isinstance(o, Ops) and o.v == self.v

    def __hash__(self):
        return 5

    def __str__(self):
        return f"Ops<{self.v}>"

    def __format__(self, s):
        return f"F{s}"

    def __index__(self):
        return 2

    def __float__(self):
        return 2.5

    def __divmod__(self, o):
        return (1, 2)

    def __pow__(self, o, m=None):
        return ("pow", o, m)

    def __reversed__(self):
        return iter("rev")

    def __round__(self, n=None):
        return ("round", n)

    def __abs__(self):
        return "abs"

    def __enter__(self):
        return self

    def __exit__(self, *a):
        return True

    def __missing__(self, k):
        return k

    def __int__(self):
        return 7

    def __rmul__(self, o):
        return ("rmul", o)

    def __lt__(self, o):
        return True


@breaks
def operators_all(x):
    a, b = Ops(1), Ops(2)
    c = a + b
    d = 5 + a
    a += 3
    a[1] = 2
    del a[4]
    return (
        x,
        c.v,
        d.v,
        a.v,
        a @ b,
        (-a).v,
        bool(Ops(0)),
        len(a),
        4 in a,
        a(1, k=2),
        a[0:2, ...],
        a == Ops(4),
        a != b,
        {a: 1}[Ops(9) if False else a],
        str(a),
        f"{a:zz}",
        [1, 2, 3][a],
        float(a),
        divmod(a, 1),
        a**2,
        pow(a, 2, 3),
        list(reversed(a)),
        round(a),
        round(a, 2),
        abs(a),
        list(a),
        int(a),
        3 * a,
        a < b,
        sorted([a, b])[0].v,
        operator.add(a, 1).v,
    )


class TF:
    def __init__(self, t):
        self.t = t

    @classmethod
    def __torch_function__(cls, fn, types, args=(), kwargs=None):
        log(fn.__name__)
        return "tf"


@breaks
def torch_function_cls(x):
    return x + 1, torch.add(TF(1), 2)


class GetAttrDyn:
    def __getattr__(self, n):
        if n.startswith("v"):
            return int(n[1:])
        raise AttributeError(n)


@case
def getattr_dyn(x):
    g = GetAttrDyn()
    return x + g.v3, getattr(g, "zz", None), hasattr(g, "v9")


@case
def slices_all(x):
    l = list(range(6))
    l[1:3] = "ab"
    l[::2] = [0, 0, 0]
    del l[-1]
    l[2:2] = [9]
    s = slice(1, None, 2)
    return (
        x[1:3],
        x[::2],
        x[..., None],
        x[-1],
        l,
        l[s],
        s.indices(5),
        "abcdef"[s],
        (1, 2, 3)[::-1],
        range(10)[2:8:3],
        l[-100:100],
    )


class It:
    def __init__(self, n):
        self.n = n

    def __iter__(self):
        return self

    def __next__(self):
        if self.n == 0:
            raise StopIteration
        self.n -= 1
        log(self.n)
        return self.n


@case
def custom_iterators(x):
    a, b, *c = It(4)
    return x, list(It(2)), [v for v in It(3)], sum(It(3)), a, b, c, 1 in It(3), dict(zip("ab", It(5))), max(It(3))


class Seq:
    def __getitem__(self, i):
        if i > 2:
            raise IndexError
        return i * 10


@case
def old_protocol(x):
    return x, list(Seq()), 10 in Seq(), [*Seq()]


@case
def input_list_mutated_in_loop(x):
    l = [1, 2, 3, 4]
    for v in l:
        if v == 2:
            l.remove(v)
    d = {1: 1}
    try:
        for k in d:
            d[k + 1] = 1
    except RuntimeError as e:
        m = str(e)
    return x, l, m


@case
def set_changed_in_loop(x):
    s = {1}
    try:
        for k in s:
            s.add(k + 1)
    except RuntimeError as e:
        return x, str(e)


class Fallback:
    __slots__ = ("slot",)

    @property
    def failing(self):
        log("failing")
        return self.absent

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        log(name)
        return "instead", name


@case(args=lambda: (r(4), Fallback()))
def getattr_after_what_failed_in_the_class(x, o):
    new = Fallback()
    return x, o.failing, new.failing, o.slot, new.slot, o.nothing


class Posing:
    @property
    def __class__(self):
        return int


POSING = Posing()


@case
def class_that_an_object_shows(x):
    o = POSING
    return (
        x,
        isinstance(o, int),
        isinstance(o, Posing),
        isinstance(o, str),
        o.__class__,
        type(o),
        isinstance(Posing(), (str, int)),
    )


class Compared:
    def __init__(self, value):
        self.value = value

    def __eq__(self, other):
        log((self.value, other.value))
        return self.value == other.value


@case
def who_is_asked_whether_it_is_equal(x):
    a, b, c = Compared(1), Compared(2), Compared(2)
    found = [a, b]
    return x, c in found, c in (a, b), found.index(c), found.count(c), found == [a, c]


def stopping(v):
    if v == 2:
        raise StopIteration("early")
    return v


@case
def stop_iteration_ends_iterators(x):
    found = [list(map(stopping, [0, 1, 2, 3])), list(filter(stopping, [1, 2, 3])), list(zip([5, 6, 7], map(stopping, [1, 2])))]
    it = map(stopping, [1, 2, 4])
    return (
        x,
        found,
        [*it],
        [*it],
        list(itertools.starmap(stopping, [(1,), (2,), (3,)])),
        list(itertools.chain(map(stopping, [2]), [9])),
    )


class Doubled(collections.namedtuple("Doubled", "a b")):
    def __new__(cls, a):
        return super().__new__(cls, a, a * 2)


@case
def named_tuple_with_its_own_new(x):
    return x, Doubled(3), Doubled(x).b, Doubled._make((1, 2)), Doubled(1)._replace(a=7)


class Pair(collections.namedtuple("Pair", "a b")):
    kind = "pair"

    def total(self):
        return self.a + self.b

    @classmethod
    def of(cls, a):
        return cls(a, a * 2)

    @staticmethod
    def twice(value):
        return value * 2


class Child(Pair):
    __slots__ = ()


class Grandchild(Child):
    def total(self):
        return super().total() + 1


@breaks
def methods_that_named_tuples_inherit(x):
    pair, child = Child(x, 1), Grandchild(1, x)
    return (
        pair.total(),
        pair.twice(x),
        pair.of(3),
        Child.of(x),
        child.total(),
        child._make((1, 2)),
        pair.kind,
        pair._replace(b=2),
    )


class Described:
    def __get__(self, obj, owner=None):
        return type(obj).__name__, owner.__name__


class Above:
    count, table, described, relu = 3, (1, 2), Described(), torch.relu
    bound = functools.partialmethod(lambda self, a, b: (a, b), 1)

    @functools.cached_property
    def kept(self):
        return 5


class Between(Above):
    count = 4


class Below(Between):
    def data(self):
        return super().count, super(Between, self).count, super().table

    def described_ones(self):
        return super().described, super().bound(2), super().kept


class Levels(type):
    level, sizes = 7, (1, 2)


class MoreLevels(Levels):
    def look(cls):
        return super().level, super().sizes


class Leveled(metaclass=MoreLevels):
    pass


@breaks
def super_finds_more_than_functions(x):
    below = Below()
    return x * 2, below.data(), below.described_ones(), Leveled.look()


class Sorted:
    def __init__(self, value):
        self.value = value

    def __lt__(self, other):
        log((self.value, other.value))
        return self.value < other.value


@case
def who_is_asked_which_is_less(x):
    given = [Sorted(v) for v in (3, 1, 2, 5, 4)]
    found = [sorted(given), sorted(given, reverse=True), sorted(given, key=lambda v: Sorted(-v.value))]
    given.sort()
    return x, [[v.value for v in each] for each in (*found, given)], min(given).value, max(given).value


TENTHS = [0.1] * 10


@case
def sums_of_floats(x):
    mixed = sum([0.1] * 6 + [x.sum()] + [0.1] * 3)
    return x, sum(TENTHS), sum([1e16, 1.0, -1e16]), sum(TENTHS, 0.5), sum([True, 2]), sum([1, 0.1, 0.2], 1), sum([], 2.0), mixed


@case(args=lambda: (r(4), 0.1), whole=False)
def sum_of_a_float_from_outside(x, a):
    return x, sum([a] * 10), sum([x.shape[0], 0.1, 0.2])


class Watched:
    def __init__(self):
        self.a = 2

    def __getattribute__(self, name):
        log(name)
        return object.__getattribute__(self, name)

    def method(self):
        return self.a


@breaks(args=lambda: (r(4), Watched()))
def every_look_at_an_object_is_the_programs(x, o):
    return x * o.method(), o.a, o is o, [o][0] is o


UNHASHABLE = [
    lambda: [], lambda: {}, set, collections.deque, collections.OrderedDict, lambda: collections.defaultdict(list),
    lambda: {}.keys(), lambda: {}.items(), lambda: slice(1), lambda: (1, []), lambda: [frozenset([[]])],
]  # fmt: skip


@case
def what_can_not_be_a_key(x):
    found = []
    for make in UNHASHABLE:
        for use in (
            lambda v: {v: 1},
            lambda v: {v},
            lambda v: v in {1},
            lambda v: hash(v),
            lambda v: {}.get(v),
            lambda v: set().add(v),
        ):
            try:
                found.append(use(make()))
            except TypeError as error:
                found.append(str(error))
    return x, [str(f) for f in found]
