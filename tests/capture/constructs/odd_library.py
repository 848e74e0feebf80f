"""Rarer methods of containers, and corners of the standard library."""

from __future__ import annotations

import bisect
import collections
import copy
import decimal
import fractions
import functools
import gc
import heapq
import json
import re
import statistics
import time
import types
import typing

import torch

from tests.capture.constructs.registry import breaks, case, log


@breaks
def odd_dict_views(x):
    d = {"a": 1, "b": 2}
    e = {"b": 3, "c": 4}
    return (
        x,
        sorted(d.keys() & e.keys()),
        sorted(d.keys() | e.keys()),
        sorted(d.keys() - e.keys()),
        sorted(d.keys() ^ e),
        d.items() <= {"a": 1, "b": 2, "c": 3}.items(),
        ("a", 1) in d.items(),
        list(reversed(d.values())),
        d.keys() == {"a", "b"},
        d.keys().isdisjoint(["z"]),
        len(d.items()),
        d | e,
        next(iter(d.items())),
    )


@breaks
def set_ops(x):
    a, b = {1, 2, 3}, {2, 3, 4}
    c = set(a)
    c |= b
    c -= {1}
    c ^= {9}
    d = a.copy()
    d.discard(99)
    d.remove(1)
    d.update([7], (8,))
    e = d.pop() in (2, 3, 7, 8)
    return (
        x,
        a & b,
        a | b,
        a - b,
        a ^ b,
        c,
        a <= {1, 2, 3, 4},
        a < a,
        a.isdisjoint({9}),
        e,
        frozenset(a) == a,
        hash(frozenset(a)) == hash(frozenset({3, 2, 1})),
        a.symmetric_difference([1]),
        a.issuperset([1]),
        {1} | {2} == {1, 2},
    )


NT = collections.namedtuple("NT", "a b", defaults=[9])


class NTC(typing.NamedTuple):
    p: int
    q: str = "d"

    def tot(self):
        return self.p + 1


@case
def namedtuples(x):
    n = NT(x)
    m = n._replace(b=x * 2)
    return (
        n,
        m.b + 1,
        NT._fields,
        m._asdict(),
        NT._make([1, 2]),
        NTC(3).tot(),
        NTC(1) == (1, "d"),
        NTC(p=2)._replace(q="z"),
        len(n),
        n[-1],
        n.index(9) if False else 0,
        NT._field_defaults,
        *NTC(5),
    )


@case
def ordereddict(x):
    d = collections.OrderedDict(a=1, b=2, c=x)
    d.move_to_end("a")
    d.move_to_end("b", last=False)
    p = d.popitem(last=False)
    return d, p, list(reversed(d)), d == collections.OrderedDict([("c", 1), ("a", 1)]) if False else 1, d.setdefault("z", 3)


@case
def counters(x):
    a, b = collections.Counter("aab"), collections.Counter(a=1, c=3)
    a2 = a.copy()
    a2.update("cc")
    a2.subtract({"a": 5})
    return (
        x,
        a + b,
        a - b,
        a & b,
        a | b,
        a.most_common(1),
        sorted(b.elements()),
        a2,
        a["zz"],
        a.total(),
        +a2,
        -a2,
        a2.most_common(),
    )


@case
def deques(x):
    d = collections.deque([1, 2, 3], maxlen=3)
    d.append(x)
    d.rotate(1)
    d.appendleft(0)
    e = d.copy()
    d.extend([7, 8])
    f = list(e)
    e.extendleft("ab")
    e.reverse()
    return (
        d,
        e,
        f,
        d.maxlen,
        d.popleft(),
        d.pop(),
        e.count("a"),
        e.index("b"),
        len(d),
        collections.deque([1, 2]) + collections.deque([3]),
        collections.deque([1]) * 3,
    )


@functools.singledispatch
def sd(v):
    return "obj"


@sd.register
def _(v: int):
    return "int"


@sd.register(list)
def _(v):
    return [sd(e) for e in v]


@sd.register
def _(v: torch.Tensor):
    return v + 1


@breaks
def singledisp(x):
    return sd(1), sd([1, "a"]), sd(x), sd(True)


class SDM:
    k = 2

    @functools.singledispatchmethod
    def f(self, v):
        return "o"

    @f.register
    def _(self, v: int, by=1):
        return v + self.k + by

    @f.register
    def _(self, v: torch.Tensor, by=1):
        return v * self.k * by

    @f.register(list)
    @staticmethod
    def _(v):
        return len(v)

    @f.register(dict)
    @classmethod
    def _(cls, v):
        return cls, v


class SDM3(SDM):
    k = 3


THREE = SDM3()


@case
def singledispmethod(x):
    two, g = SDM(), THREE.f
    return two.f(3), two.f("s"), two.f(x, by=2), g(x), g(True), g([1]), g({"a": 1}), [f(3, by=2) for f in (two.f, g)]


@breaks
def singledispmethod_otherwise(x):
    g = SDM().f
    try:
        g()
    except (TypeError, IndexError) as error:
        return str(error), g.__name__, x + 1


class CP:
    n = 0

    @functools.cached_property
    def big(self):
        log("computed")
        return 42


@case
def cachedprop(x):
    c = CP()
    return x * c.big + c.big, "big" in c.__dict__


@functools.total_ordering
class TO:
    def __init__(self, v):
        self.v = v

    def __eq__(self, o):
        return self.v == o.v

    def __lt__(self, o):
        return self.v < o.v


@case
def totalordering(x):
    return x, TO(1) <= TO(2), TO(2) >= TO(3), max([TO(1), TO(3)], key=lambda t: t.v).v, sorted([TO(3), TO(1)])[0].v


class DeepC:
    def __init__(self, v):
        self.v = v

    def __deepcopy__(self, memo):
        log("dc")
        return DeepC(self.v + 1)

    def __copy__(self):
        log("cc")
        return DeepC(-1)


@breaks
def copies_custom(x):
    return x, copy.deepcopy([DeepC(1)])[0].v, copy.copy(DeepC(1)).v


def hinted(a: int, b: str = "s") -> float:
    return 1.0


@breaks
def typing_helpers(x):
    return (
        typing.cast(torch.Tensor, x) + 1,
        typing.get_type_hints(hinted),
        typing.get_origin(list[int]),
        typing.get_args(dict[str, int]),
        typing.Optional[int] == int | None,
    )


NAME = re.compile(r"layer\.(?P<at>\d+)\.(\w+)")


@case
def regexes(x):
    m = re.match(r"(\w)(\d+)", "a12")
    return x, m.group(2), re.sub("a", "b", "banana"), re.findall(r"\d", "a1b2"), re.match("b", "a"), bool(m), re.escape("a.b")


@case
def compiled_patterns(x):
    m = NAME.fullmatch("layer.12.weight")
    found = [int(m.group("at")), m.groups(), m.groupdict(), m.span(2), m[2], m.re is NAME, m.string[m.start() :]]
    for part in NAME.finditer("layer.1.a layer.2.b"):
        x = x * int(part["at"]) if part else x
    pattern = re.compile("[ab]+", re.IGNORECASE)
    return x, found, NAME.search("none"), pattern.sub("-", "xABc"), pattern.split("1a2B3"), NAME.pattern, pattern.flags


@case
def patterns_as_keys_and_errors(x):
    kinds = {NAME: 2.0, re.compile("bias"): 3.0}
    scales = [scale for pattern, scale in kinds.items() if pattern.search("layer.1.bias")]
    try:
        re.compile("(")
    except re.error as error:
        words = str(error)
    return x * sum(scales), words


@breaks
def replaced_by_a_function(x):
    return x, re.sub("[a-z]", lambda m: m.group(0).upper(), "abc")


@breaks
def a_match_over_a_break(x):
    m = NAME.match("layer.3.bias")
    print(m.group(1))
    return x * int(m.group(1)), m.group(2)


@breaks
def stdlib_misc(x):
    h = [3, 1, 2]
    heapq.heapify(h)
    return (
        x,
        heapq.heappop(h),
        bisect.bisect([1, 2, 3], 2),
        json.dumps({"a": [1, None]}),
        statistics.mean([1, 2, 3]),
        fractions.Fraction(1, 3) + 1,
        decimal.Decimal("1.1") + 1,
    )


@breaks
def gc_and_time(x):
    gc.collect()
    t = time.time()
    return x + 1, time.time() >= t


@breaks
def types_zoo(x):
    ns = types.SimpleNamespace(a=1, b=x)
    mp = types.MappingProxyType({"a": 1})
    ns.c = 3
    return ns.b + ns.a, ns.c, mp["a"], list(mp), len(mp), ns == types.SimpleNamespace(a=1)


@case
def chainmap_userdict(x):
    c = collections.ChainMap({"a": 1}, {"b": 2})
    u = collections.UserDict(k=x)
    return c["b"], dict(c), u["k"] + 1, len(c)


@case
def sort_zoo(x):
    l = [3, 1, 2]
    l.sort(reverse=True)
    return (
        x,
        l,
        sorted("bA", key=str.lower),
        sorted({"b": 1, "a": 2}.items(), key=lambda t: t[1]),
        sorted([(1, "b"), (1, "a")]),
        min([3, 1], key=lambda v: -v),
        sorted([2.5, 1], key=None),
        l.index(2),
        l.count(1),
        l.copy(),
        l[::-1],
    )


@breaks
def bytes_zoo(x):
    b = bytearray(b"abc")
    b.append(100)
    m = memoryview(b)
    return x, bytes(b), m[0], b"a" + b"b", b"%d" % 3, bytes([1, 2]), b"abc".find(b"c")


@case
def numbers_as_keys(x):
    d = {1: "a", 1.0: "b", True: "c"}  # noqa: F601
    return x, d, {0: 1, -0.0: 2}, {float("inf"): 1}, {(1, "a"): x}, {None: 1}, {frozenset([1]): 2}, {torch.float32: 1}  # noqa: F601


@case
def strings_of_several_lines(x):
    a = "one\ntwo\r\nthree"
    d = {"key\nof two lines": x}
    return a.splitlines(), a + "\n    raise", d["key\nof two lines"], "\x0c\x85\u2028", x + 1
