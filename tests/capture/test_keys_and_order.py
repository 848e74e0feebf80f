"""Which objects are one key, and in which order sets are: guarded where they come from outside."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

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
