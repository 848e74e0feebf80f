"""Which objects are one key, and in which order sets are: guarded where they come from outside."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

import pytest
import torch

import tinycompile
from tinycompile.api import CompiledFunction
from tinycompile.options import Options

pytestmark = pytest.mark.pure


def compiled(fn: Any) -> CompiledFunction:
    return CompiledFunction(fn, Options(backend="eager"))


class Plain:
    pass


@pytest.mark.parametrize("make", [lambda: torch.ones(2), Plain, lambda: lambda: 1])
@pytest.mark.parametrize("same_first", [False, True])
def test_keys_that_are_one_object_in_one_call_and_two_in_the_next(make: Any, same_first: bool) -> None:
    def fn(a: Any, b: Any) -> Any:
        d = {a: 1}
        return b in d, len({a, b})

    f, one, other = compiled(fn), make(), make()
    for b in (one, other, one) if same_first else (other, one, other):
        assert f(one, b) == fn(one, b)


def test_equal_sets_in_another_order() -> None:
    def fn(s: Any) -> Any:
        return [v for v in s]

    f = compiled(fn)
    for members in ([0, 8], [8, 0], [0.0, 8], [8, False]):
        s = set(members)
        assert [(type(v), v) for v in f(s)] == [(type(v), v) for v in s]


def test_order_in_one_piece() -> None:
    def fn(x: Any) -> Any:
        s = {8, 0, 16, "b"}
        t = set([0, 8])
        s |= {1, 2, 3}
        s.discard(16)
        u = s ^ t
        v = [s.pop(), s.pop()]
        return x, list(s), list(t), list(u), v, str(t), [*{8, 0}], [*frozenset([8, 0])], sorted(s, key=str)

    f = compiled(fn)
    assert f(None) == f(None) == fn(None) and not f.breaks


MEMBERS = ["0", "8", "16", "24", "'a'", "'b'", "(1, 2)", "None", "1.5", "32", "-1", "100"]
STEPS = [
    "s.add({m})", "s.discard({m})", "s |= t", "s -= t", "s &= set(t) | s", "s ^= t", "s = s | t", "s = s & (t | s)",
    "s = set(t ^ s)", "out += [s.pop()] if s else []", "s = s.copy()", "s.update([{m}], t)", "s.update(dict.fromkeys([{m}, 5]))",
    "t = s.union(t, [3])", "t = s.difference(t)", "t = s.intersection([8, 0], s)", "t = s.symmetric_difference([8, 99])",
    "s.difference_update([{m}], t)", "s.intersection_update(s, [{m}, 8])", "out.append(str(s))", "s = {{*s, *t}}",
    "out.append(list(s))", "s.symmetric_difference_update([{m}, 7])", "s = {{v for v in s}}", "t = frozenset(s)",
]  # fmt: skip


def program(seed: int) -> str:
    rng = random.Random(seed)
    many = lambda: ", ".join(rng.choice(MEMBERS) for _ in range(rng.randint(1, 6)))  # noqa: E731
    steps = [f"    {rng.choice(STEPS).format(m=rng.choice(MEMBERS))}" for _ in range(rng.randint(2, 9))]
    start = [f"    s, t, out = {{{many()}}}, set([{many()}]), []"]
    return "\n".join(["def fn(x):", *start, *steps, "    return out, list(s), list(t)"])


def test_random_programs_of_sets_have_pythons_order() -> None:
    whole = 0
    for seed in range(60):
        space: dict[str, Any] = {}
        exec(program(seed), space)
        f, want = compiled(space["fn"]), space["fn"](None)
        got = f(None), f(None)
        if not f.breaks:  # (a set that is carried over a break is a copy)
            whole += 1
            assert got == (want, want), program(seed)
    assert whole > 40


OUTSIDE = [
    "s ^= t", "s |= {{{m}, {m}}} ^ t", "u = s | t; s.add({m})", "u = s; s ^= u", "u = t - s", "s.clear()", "s.update(u)",
    "s -= s", "s = {{{m}: 1, {m}: 2}}.keys() | s", "s = set(d.keys() ^ s)", "s = s - d.keys()", "d[{m}] = 1", "s = u",
    "d['s'] = s", "t = frozenset(t)", "s.discard({m})", "t = s.union(t, [3])", "out.append(str([s]))", "out.append(list(s))",
    "out.append(list(u))", "out += [s.pop()] if s else []", "tinycompile.graph_break()", "for v in t: out.append(v)",
]  # fmt: skip


def set_with_a_past(rng: random.Random) -> set[Any]:
    s: set[Any] = set()
    for _ in range(rng.randint(0, 12)):
        (s.add if rng.random() < 0.7 else s.discard)(eval(rng.choice(MEMBERS[:6] + MEMBERS[7:])))
    if rng.random() < 0.2:  # its table stays large
        s.update(range(50, 90))
        s -= set(range(50, 90))
    return s


def observed(fn: Any, seed: int) -> Any:
    """Results and arguments afterwards: what is one object, orders, and what becomes of them when more is done to them."""
    rng = random.Random(seed)
    s, t, d = set_with_a_past(rng), set_with_a_past(rng), dict.fromkeys([8, 3, "a"])
    out, *sets = fn(s, t, d)
    sets += [s, t]
    seen: list[Any] = [[a is b for a in sets for b in sets], str(d), str(out)]
    for made in sets:
        seen.append([(type(v), v) for v in made])
        if type(made) is set:
            made.update((48, -9))
            seen.append([made.pop(), *made])
    return seen


def test_random_programs_of_sets_from_outside_have_pythons_order() -> None:
    whole = 0
    for seed in range(70):
        rng = random.Random(seed)
        steps = [f"    {rng.choice(OUTSIDE).format(m=rng.choice(MEMBERS))}" for _ in range(rng.randint(2, 7))]
        text = "\n".join(["def fn(s, t, d):", "    u, out = t, []", *steps, "    return out, s, t, u"])
        space: dict[str, Any] = {"tinycompile": tinycompile}
        exec(text, space)
        f = compiled(space["fn"])
        for past in (seed, seed, -seed):
            assert observed(f, past) == observed(space["fn"], past), text
        whole += not f.breaks
    assert whole > 15


def test_an_order_that_sets_from_outside_decide_is_guarded() -> None:
    def fn(s: Any, t: Any) -> Any:
        u = s | t
        u.discard(16)
        return [*u], u

    f = compiled(fn)
    for members in ([0, 8], [8, 0], [0, 8]):
        assert f(set(members), {16}) == fn(set(members), {16}) and not f.breaks
    assert len(f.all_entries) == 2


def test_sets_of_objects_keep_what_was_done_to_them() -> None:
    def fn(kinds: Any) -> Any:
        s = {int, str, float, kinds}
        s.discard(str)
        s |= {bool, list, dict, set, kinds}
        return s, frozenset(s) - {int}

    f = compiled(fn)
    for _ in range(2):
        assert [list(s) for s in f(Plain)] == [list(s) for s in fn(Plain)]


def test_a_set_of_the_programs_class_has_pythons_order() -> None:
    class Mine(set):
        pass

    def fn(x: Any, given: Any) -> Any:
        made = Mine([8, 0, 16])
        made.discard(8)
        made |= {24, 8, 32}
        given |= {24, 8} ^ made
        return made, made | given, given

    f = compiled(fn)
    for _ in range(2):
        a, b = Mine([0, 40]), Mine([0, 40])
        got, want = f(None, a), fn(None, b)
        assert [(type(s), list(s)) for s in got] == [(type(s), list(s)) for s in want] and got[2] is a


def test_a_set_that_is_asked_for_a_set() -> None:
    def fn(x: Any) -> Any:
        s = {frozenset({1, 2}), 3}
        known = {1, 2} in s, set() in s
        s.discard({1})
        s.remove({2, 1})
        return known, s, str(defaultdict(list, a=1))

    f = compiled(fn)
    assert f(None) == fn(None) and not f.breaks
