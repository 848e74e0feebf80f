# ruff: noqa: F601, F632, C414, RUF015, B015, SIM118
"""Lists, tuples, sets, dicts and their relatives in collections, made inside and passed in; subclasses of them."""

from __future__ import annotations

import collections
from typing import Any, NamedTuple

import torch

from tests.capture.constructs.registry import breaks, case, log
from tests.capture.corpus import r

Plain = collections.namedtuple("Plain", "a b", defaults=[5])


class Named(NamedTuple):
    x: Any
    scale: float = 2.0

    @property
    def scaled(self):
        return self.x * self.scale

    def with_scale(self, scale):
        return self._replace(scale=scale)


class Stack(list):
    def push(self, value):
        self.append(value)

    @property
    def top(self):
        return self[-1]


class Loud(list):
    def append(self, value):
        log("append")
        super().append(value)


class Config(dict):
    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name, value):
        self[name] = value


class Defaulting(dict):
    def __missing__(self, key):
        return f"no {key}"


class Bag(set):
    def both(self, other):
        return self & other


class Vector(tuple):
    def total(self):
        return sum(self)


@case
def list_methods(x):
    a = [3, 1, 2]
    a.sort()
    b = a.copy()
    b.sort(reverse=True)
    c = sorted(a, key=lambda v: -v)
    a.insert(-1, 9)
    a.remove(1)
    return x, a, b, c, a.index(9), a.count(2), a.pop(0), a * 2, a == b, a < b, [] == []


@case
def list_slices_assigned(x):
    a = list(range(6))
    a[1:3] = [x, x + 1, 7]
    del a[-1]
    a[::2] = ["e"] * len(a[::2])
    a[len(a) :] = [1, 2]
    return a, a[::-1], a[5:1:-2]


@case(args=lambda: ([r(4), 2],))
def list_argument_changed(a):
    a.append(a[0] * a[1])
    a[0] = a[0] + 1
    a += [5]
    a.extend(range(2))
    a.reverse()
    return a, len(a)


@case(args=lambda: ([3, 1, 2], r(4)))
def list_argument_sorted(a, x):
    a.sort()
    a *= 2
    del a[0]
    return x + a[0]


@case(args=lambda: ([[1], [2]], r(4)))
def nested_list_changed(a, x):
    a[0].append(x)
    a.append(a[0])
    return a[2] is a[0], a


@case
def list_aliases(x):
    a = [x]
    b = [a, a]
    b[0].append(x * 2)
    return b, b[0] is b[1], a


@case
def tuple_operations(x):
    t = (1, 2) + (x,)
    u = (1, 2, 1)
    return t, t[:2] * 2, (1, 2) == (1, 2), (1, 2) < (1, 3), hash((1, 2)) == hash((1, 2)), t.index(2), u.count(1), tuple([1, 2])


@case
def set_methods(x):
    s = {1, 2, 3}
    t = frozenset([3, 4])
    s.discard(9)
    s.discard(1)
    s.remove(2)
    s.update([5, 6], (7,))
    a = s | t, s & t, s - t, s ^ t
    s |= {8}
    s &= {3, 5, 8}
    s -= {5}
    s ^= {1}
    return x, a, s, s.issubset({1, 3, 8}), s >= {3}, s.isdisjoint({9}), 3 in s, len(s), s.copy() is s, sorted(s.union([4]))


@case
def set_pop_and_clear(x):
    s = {4}
    v = s.pop()
    t = {1, 2}
    t.clear()
    try:
        t.remove(3)
    except KeyError as e:
        return x * v, s, t, str(e)


@case(args=lambda: ({1, 2}, r(4)))
def set_argument_changed(s, x):
    s.add(3)
    s.discard(1)
    s |= {9}
    return x * len(s), sorted(s)


@case
def set_comprehension_order(x):
    return x, [v for v in {3, 1, 2}], {v % 2 for v in range(5)}, list({"a"})


@case
def dict_methods(x):
    d = {"a": 1, "b": x}
    d |= {"c": 3}
    e = d | {"a": 2}
    k = list(d.keys()), list(d.values()), list(d.items())
    return (
        e,
        k,
        d.popitem(),
        d.pop("zz", None),
        d.get("b"),
        "a" in d.keys(),
        d == {"a": 1},
        dict.fromkeys("ab", 0),
        list(reversed(d)),
    )


@case
def dict_views(x):
    d = {"a": 1, "b": 2}
    keys = d.keys()
    d["c"] = 3
    return (
        x,
        len(keys),
        list(keys),
        keys & {"a", "z"},
        keys | {"q"} == {"a", "b", "c", "q"},
        ("a", 1) in d.items(),
        3 in d.values(),
    )


@case(args=lambda: ({"a": 1, "t": r(4)},))
def dict_argument_changed(d):
    d["b"] = d["t"] * d["a"]
    del d["a"]
    d.update(c=3)
    d.setdefault("d", []).append(4)
    return d.pop("t"), d


@case(args=lambda: ({1: "a", (1, 2): "b", None: "c", torch.float32: "d"}, r(4)))
def dict_of_other_keys(d, x):
    return x, d[1], d[(1, 2)], d[None], d[x.dtype], len(d)


@case
def dict_keyed_by_objects(x):
    key = object()
    d = {x: 1, key: 2, torch.float32: 3, (1, x.dtype): 4}
    return d[x], d[key], d[torch.float32], d[1, torch.float32], x in d


@case
def dict_unpacking(x):
    a = {"k": 1, **{"m": 2}, "k": 3}
    f = lambda **kw: kw
    return x, a, f(**a, z=1), {**{}, "q": x}


@case
def dict_changed_while_iterated(x):
    d = {"a": 1}
    try:
        for k in d:
            d[k + "x"] = 1
    except RuntimeError as error:
        return x, str(error)


@case
def named_tuple_made(x):
    p = Plain(x)
    q = Plain(b=1, a=x)
    a, b = p
    return p, q.b, a, b, p._asdict(), p._replace(b=2), Plain._fields, Plain._make([1, 2]), p[0] is x, len(p)


@case
def named_tuple_class(x):
    p = Named(x)
    return p.scaled, p.with_scale(3.0), isinstance(p, tuple), Named._field_defaults, p._fields


@case(args=lambda: (Named(r(4), 3.0), Plain(r(4))))
def named_tuple_arguments(p, q):
    return p.scaled + q.a * q.b, p, q._replace(b=1), p.x is p[0]


@case
def ordered_dict_methods(x):
    d = collections.OrderedDict([("a", 1), ("b", x)])
    d["c"] = 3
    d.move_to_end("a")
    d.move_to_end("c", last=False)
    first = d.popitem(last=False)
    return d, first, list(d), list(reversed(d)), d == d.copy()


@case(args=lambda: (collections.OrderedDict(a=1, b=r(4)),))
def ordered_dict_argument(d):
    d["c"] = d["b"] * d["a"]
    d.move_to_end("a")
    return list(d), d


@case
def default_dict_made(x):
    d = collections.defaultdict(list)
    d["a"].append(x)
    d["a"].append(1)
    n = collections.defaultdict(int)
    for c in "abca":
        n[c] += 1
    f = collections.defaultdict(lambda: x)
    return d, dict(n), f["q"], len(f), d.get("zz"), "zz" in d, d.default_factory is list


@case(args=lambda: (collections.OrderedDict(a=1, b=2), collections.defaultdict(list, a=[1]), r(4)))
def dicts_united(ordered, lists, x):
    made = {} | ordered, ordered | {"b": x}, {"a": x} | lists, lists | {"c": 1}, ordered | lists
    (lists | {})["new"].append(x * 2)
    made[2]["new"].append(x + 1)
    return made, [type(m) for m in made], lists


@case(args=lambda: (collections.defaultdict(list, a=[1]), r(4)))
def default_dict_argument(d, x):
    d["a"].append(2)
    d["b"].append(x)
    return d["c"], len(d)


@case
def counter_made(x):
    c = collections.Counter("abracadabra")
    c.update("aa")
    c["z"] += 1
    return x * c["a"], c.most_common()[:2], c["missing"], sorted(c.elements())[:3], c.total(), c - collections.Counter("aab"), c


@case(args=lambda: (collections.Counter(a=2), r(4)))
def counter_argument(c, x):
    c["a"] += 1
    c["b"] += 1
    return x * c["a"], c["none"]


@case
def deque_made(x):
    d = collections.deque([1, 2, 3], maxlen=3)
    d.append(x)
    d.appendleft(0)
    d.rotate(1)
    a = d.pop()
    b = d.popleft()
    d.extend([7, 8])
    return d, a, b, len(d), d[0], d.maxlen, list(reversed(d)), 7 in d


@case(args=lambda: (collections.deque([r(4), 2], maxlen=4), 3))
def deque_argument(d, n):
    d.append(d[0] * n)
    d.popleft()
    return sum(v for v in d), len(d)


@case
def chain_map_and_user_collections(x):
    c = collections.ChainMap({"a": 1}, {"a": 2, "b": 3})
    return x * c["a"] + c["b"], list(c)


@case
def list_subclass_made(x):
    s = Stack([1, 2])
    s.push(x)
    s.append(5)
    return s, s.top, len(s), s[0], isinstance(s, list), s[1:], list(s), [*s]


@case(args=lambda: (Stack([r(4), 3]),))
def list_subclass_argument(s):
    s.push(s[0] * s.top)
    s[1] = 7
    return s.top, len(s), [v for v in s]


@case
def list_subclass_override(x):
    s = Loud()
    s.append(x)
    s.extend([1])
    return s, len(s)


@case
def dict_subclass_made(x):
    c = Config(a=1, b=x)
    c.d = 4
    return c.b * c.a + c["d"], len(c), hasattr(c, "zz"), c, c.get("a"), list(c)


@case(args=lambda: (Config(scale=2.0, x=r(4)),))
def dict_subclass_argument(c):
    c.y = c.x * c.scale
    return c["y"], "y" in c, getattr(c, "none", 5)


@case
def dict_subclass_missing(x):
    d = Defaulting(a=1)
    return x, d["a"], d["b"], d.get("b"), len(d)


@case
def set_subclass_made(x):
    b = Bag([1, 2])
    b.add(3)
    return x, sorted(b.both({2, 3, 4})), len(b), 1 in b


@case
def tuple_subclass_made(x):
    v = Vector((1, 2, 3))
    return x * v.total(), v[0], v[1:], len(v), v, isinstance(v, tuple)


@case(args=lambda: (Vector((1, 2)), r(4)))
def tuple_subclass_argument(v, x):
    return x * v.total(), v


@case
def sizes_and_slices(x):
    s = x.shape
    return s + (1,), s[:1], s == (4,), list(s), len(s), torch.Size([2, 3]).numel(), slice(1, None).indices(4), x[slice(0, 2)]


@case
def unpacking_forms(x):
    a, (b, *c), d = 1, (2, 3, 4), x
    (e, f), g = "hi", [5]
    [h, i] = {"k": 1, "l": 2}
    *j, k = range(3)
    return a, b, c, d, e, f, g, h, i, j, k


@case
def deletion_forms(x):
    a, b = [1, 2, 3], {"p": 1, "q": 2}
    del a[0], b["p"]
    y = x
    del x
    del a[:1]
    return y, a, b


@case
def strings_and_bytes(x):
    s = "Hello, World"
    return (
        x, s.lower().split(", "), s.replace("l", "L"), s[::-1], s.find("World"), s.startswith(("He", "x")), s.partition(","), s.encode()[:2],
        b"ab".hex(), f"{3.14159:.2f}|{42:>6}|{'a'!r:^5}|{x.shape[0]:03d}|{1e6:,}|{True}|{None}", "%05.1f %s" % (2.5, "x"), "{0}{k}".format(1, k=2),
        "a" "b" * 2, ",".join(str(i) for i in range(3)), s.title().swapcase(), "x" in s, s.count("l"), s.zfill(14), "a\tb".expandtabs(2), ord("a"), chr(98),
    )  # fmt: skip


@case
def fstring_nested_and_debug(x):
    width, value = 8, 2.5
    return x, f"{value:{width}.{1}f}", f"{value=}", f"{'nested ' + f'{value}'}", f"{[1, 2]}{(3,)}{ {'a': 1} }", f"{x.dtype}"


@breaks
def fstring_of_a_tensor(x):
    return f"{x}", x + 1


@case
def chained_comparisons(x):
    n = x.shape[0]
    return x, 1 < n < 5, 1 < n > 3 != 2, n == 4 == 4.0, "a" < "b" < "c", not n < 3 <= 3, n in (4, 5) and n not in [1]


@case
def boolean_logic(x):
    return (
        x,
        0 or "a",
        1 and [],
        not [],
        None or {} or "z",
        [] and 1,
        bool(""),
        bool("0"),
        any([]),
        all([]),
        True + True,
        3 if 0 else 4,
    )


@case
def integer_arithmetic(x):
    return (
        x,
        7 // -2,
        -7 % 3,
        2**-1,
        2**100,
        divmod(-7, 2),
        5 & 6 | 8 ^ 1,
        ~5,
        1 << 5,
        -1 >> 1,
        round(2.5),
        round(-1.55, 1),
        int("ff", 16),
        abs(-2.5),
        10**3 // 7.0,
    )


@case
def complex_numbers(x):
    z = 1 + 2j
    return x, z * z, z.real, z.conjugate(), abs(3 + 4j), complex(1, 2) == z


@case
def range_objects(x):
    rg = range(2, 20, 3)
    return (
        x * len(rg),
        rg[1],
        rg[-1],
        rg[1:3],
        5 in rg,
        list(reversed(rg)),
        rg.index(8),
        rg == range(2, 20, 3),
        rg.start,
        sum(rg),
        bool(range(0)),
    )


@case
def identity_questions(x):
    a, b = [1], [1]
    c = a
    t = (a, b)
    return a is c, a is b, a == b, t[0] is a, None is None, x is x, x.view(-1) is x, () == (), "a" != None, (x + 0) is x


@case
def star_calls(x):
    f = lambda *a, **k: (a, k)
    return f(1, *[2, 3], *(4,), k=5, **{"m": 6}), f(*"ab"), f(**{}), f(*[x], **dict(z=x))


@case
def walrus_forms(x):
    out = [y := 1, y + 1, (z := y * 5)]
    while (n := len(out)) < 5:
        out.append(n)
    values = [last := v for v in range(3)]
    return x + y, out, z, values, last


@case
def values_replaced_meanwhile(x):
    d = {1: x, 3: x + 1}
    for k, v in d.items():
        d[k] = v * 2
    for v in d.values():
        d[3] = v
    return d


@breaks
def keys_replaced_meanwhile(x):
    d, ordered, seen = {1: 2, 3: 4}, collections.OrderedDict({1: 2, 3: 4, 5: 6}), []
    it = iter(d)
    next(it)
    del d[3]
    d[5] = 6
    seen.append(next(it))
    try:
        for k in ordered:
            seen.append(k)
            ordered.move_to_end(k)
    except RuntimeError as error:
        seen.append(str(error))
    return d, ordered, seen, x + 1
