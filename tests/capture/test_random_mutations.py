"""Random mutations of a container or an object from outside, with looks at it between them or without: the object, the results
and the errors are eager's. What is only added to is not looked at, so the order of looks and changes counts.

``TINYCOMPILE_TESTS=full`` tries 3,000 programs, by default a few."""

from __future__ import annotations

import os
import random
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any

import pytest
import torch

import tinycompile

pytestmark = pytest.mark.pure
COUNT = 3000 if os.environ.get("TINYCOMPILE_TESTS") == "full" else 60


class Plain:
    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(a=1, held=[0], **attributes)


MAKERS: dict[str, list[Callable[[], Any]]] = {
    "dict": [
        dict, lambda: {"a": 1}, lambda: {"a": 1, "b": [2], "c": None}, lambda: OrderedDict(b=1, a=2),
        lambda: defaultdict(list, a=[1]),
    ],
    "list": [list, lambda: [1], lambda: [3, 1, "s"], lambda: [[1], None]],
    "set": [set, lambda: {"a"}, lambda: {"a", 5, "q"}],
    "deque": [deque, lambda: deque([1, 2]), lambda: deque([3, 1, 2], maxlen=4)],
    "object": [Plain, lambda: Plain(q=None)],
}  # fmt: skip
CHANGES = {
    "dict": [
        "d['q'] = x", "d['a'] = 5", "d.clear()", "d.pop('a', None)", "d.update(z=1)", "d.setdefault('a', 9)", "del d['a']",
        "d.setdefault('n', x)", "d.popitem()", "d |= {'w': 2}", "e = d; e['s'] = 3", "d.update([('l', 1)])", "d.copy()['v'] = 1",
        "d['a'] = d.get('a')", "for k in list(d): d[k] = 1", "for k in d: d[k + 'x'] = 1",
    ],
    "list": [
        "d.append(x)", "d.append(1)", "d.extend([2, 3])", "d += [4]", "d.insert(0, 5)", "d.clear()", "d.pop()", "d.reverse()",
        "del d[0]", "d[0] = 9", "d[1:] = [7]", "d *= 2", "d.remove(1)", "d.sort(key=str)", "d.extend(d)", "d[:] = []",
        "e = d; e.append(0)", "d.insert(-1, 6)", "d.extend(i for i in range(2))", "d[len(d):] = [3]",
    ],
    "set": [
        "d.add('q')", "d.add(5)", "d.clear()", "d.discard('a')", "d.update({'z', 1})", "d |= {'w'}", "d -= {'a'}", "d.remove('a')",
        "d &= {'a', 'q'}", "d ^= {'x'}", "d.update([])", "e = d; e.add(9)", "d.difference_update(['q'])",
        "d.symmetric_difference_update([5])", "for k in d: d.add(str(k) + 'x')",
    ],
    "deque": [
        "d.append(x)", "d.appendleft(1)", "d.extend([2, 3])", "d.extendleft([4, 5])", "d.clear()", "d.pop()", "d.popleft()",
        "d.rotate(1)", "d.reverse()", "d[0] = 9", "d += [6]", "d.remove(1)", "d.insert(1, 7)", "del d[0]", "e = d; e.append(0)",
        "for v in d: d.append(v)",
    ],
    "object": [
        "d.q = x", "d.a = 5", "del d.a", "setattr(d, 'n', 1)", "d.__dict__['u'] = 2", "d.held.append(x)", "d.held = []",
        "d.held.clear()", "d.__dict__.clear()", "d.__dict__.update(v=1)", "d.held += [1]", "e = d; e.w = 3",
        "delattr(d, 'held')", "d.__dict__.pop('a', 0)", "d.__dict__ = {'z': 1}",
    ],
}  # fmt: skip
LOOKS = {
    "dict": [
        "len(d)", "list(d)", "'a' in d", "d.get('q')", "d == {'a': 5}", "list(d.items())", "sorted(d)", "bool(d)",
        "next(iter(d), None)", "list(reversed(d))", "d['a']", "d",
    ],
    "list": ["len(d)", "list(d)", "1 in d", "d[-1]", "d[::2]", "d.index(1)", "d == [1]", "bool(d)", "[v for v in d]", "d"],
    "set": ["len(d)", "'a' in d", "sorted(map(str, d))", "d == {'a'}", "sorted(map(str, d | {1}))", "d.isdisjoint([5])", "bool(d)"],
    "deque": ["len(d)", "list(d)", "1 in d", "d[0]", "d.count(1)", "d.maxlen", "[v for v in d]", "list(reversed(d))", "bool(d)"],
    "object": ["hasattr(d, 'a')", "d.a", "sorted(vars(d))", "len(d.held)", "list(d.__dict__)", "getattr(d, 'q', None)", "d.held"],
}  # fmt: skip


def program(rng: random.Random, kind: str) -> str:
    """The source of a function of ``d``, the object, and ``x``, a tensor."""
    lines = ["def fn(d, x):", "    seen = []"]
    for _ in range(rng.randint(1, 6)):
        look = rng.random() < 0.4
        line = f"seen.append({rng.choice(LOOKS[kind])})" if look else rng.choice(CHANGES[kind])
        lines += ["    graph_break()"] if rng.random() < 0.15 else []
        if rng.random() < 0.6:
            lines.append(f"    {line}")
        else:
            lines += ["    try:", f"        {line}", "    except Exception as error:", "        seen.append(type(error))"]
    return "\n".join([*lines, "    return seen, x + 1", ""])


def shown(value: Any) -> Any:
    """A value as something that compares."""
    if isinstance(value, torch.Tensor):
        return tuple(value.tolist())
    if isinstance(value, set):
        return set, sorted(map(str, value))
    if isinstance(value, dict):
        return type(value), [(k, shown(v)) for k, v in value.items()]
    if isinstance(value, (list, tuple, deque)):
        return type(value), [shown(v) for v in value]
    return (Plain, shown(vars(value))) if isinstance(value, Plain) else repr(value)


def observed(fn: Callable[..., Any], make: Callable[[], Any]) -> Any:
    obj = make()
    try:
        result = shown(fn(obj, torch.arange(2.0)))
    except Exception as error:  # noqa: BLE001
        result = type(error), str(error)
    return result, shown(obj)


def check(seed: int) -> None:
    rng = random.Random(seed)
    kind = rng.choice(list(MAKERS))
    source = program(rng, kind)
    space: dict[str, Any] = {"graph_break": tinycompile.graph_break}
    exec(source, space)
    compiled = tinycompile.compile(space["fn"], backend="eager")
    for make in rng.choices(MAKERS[kind], k=3):
        assert observed(compiled, make) == observed(space["fn"], make), f"seed {seed}\n{source}"


@pytest.mark.parametrize("part", range(20))
def test_random_mutations(part: int) -> None:
    for seed in range(part, COUNT, 20):
        check(seed)


@pytest.mark.parametrize(
    "source",
    [
        "d['q'] = x; d.clear()",
        "d['q'] = x; d.clear(); d['r'] = 1",
        "d.setdefault('q', x); d.clear(); seen.append(len(d))",
    ],
)
@pytest.mark.parametrize("make", MAKERS["dict"])
def test_a_dict_that_is_added_to_and_cleared(source: str, make: Callable[[], Any]) -> None:
    space: dict[str, Any] = {}
    exec(f"def fn(d, x):\n    seen = []\n    {source}\n    return seen, x + 1\n", space)
    assert observed(tinycompile.compile(space["fn"], backend="eager"), make) == observed(space["fn"], make)


def test_a_set_that_makes_room() -> None:
    """Its order depends on when what was taken out leaves its table. Text hashes otherwise in each process, numbers don't."""

    def fn(d: Any, x: Any) -> Any:
        d.remove(3)
        d.difference_update([11])
        d |= {19}
        d.add(27)
        return list(d), x + 1

    compiled = tinycompile.compile(fn, backend="eager")
    for members in ([3, 5, 11], [11, 3, 5], [5, 3, 11], [3, 11, 12]):
        assert observed(compiled, lambda: set(members)) == observed(fn, lambda: set(members))


@pytest.mark.parametrize("add", ["append(x)", "appendleft(1)", "extend([2, 3])"])
def test_a_deque_that_is_added_to_and_iterated(add: str) -> None:
    space: dict[str, Any] = {}
    exec(f"def fn(d, x):\n    d.{add}\n    return list(d), [v for v in d], x + 1\n", space)
    for make in MAKERS["deque"]:
        assert observed(tinycompile.compile(space["fn"], backend="eager"), make) == observed(space["fn"], make)


def keyword_defaults(f: Any, x: Any) -> Any:
    named, first = f.__kwdefaults__, f()
    named["k"] = x * 2
    second = f()
    named["held"].append(3)
    third = f()[1][:]
    del named["held"]
    try:
        f()
    except TypeError as error:
        return first, second, third, str(error)
    return first


def with_keyword_defaults() -> Any:
    def fn(*, k: Any = 1, held: Any = None) -> Any:
        return k, held

    fn.__kwdefaults__["held"] = [2]
    return fn


def made_inside(f: Any, x: Any) -> Any:
    def fn(*, k: Any = 1) -> Any:
        return k

    fn.__kwdefaults__["k"] = x
    return fn()


@pytest.mark.parametrize("fn", [keyword_defaults, made_inside], ids=lambda fn: fn.__name__)
def test_keyword_defaults_that_are_written_as_a_dict(fn: Callable[..., Any]) -> None:
    compiled = tinycompile.compile(fn, backend="eager")
    for _ in range(2):
        got, want = compiled(with_keyword_defaults(), torch.ones(2)), fn(with_keyword_defaults(), torch.ones(2))
        assert shown(got) == shown(want)
