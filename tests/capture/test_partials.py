"""What a ``functools.partial`` is made of is its own: one tuple, one dict of keywords, and the dict may be written."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch

import tinycompile

pytestmark = pytest.mark.pure

KEPT = functools.partial(torch.add, alpha=2)


def scaled(x: Any, *more: Any, scale: float = 1.0, shift: float = 0.0) -> Any:
    return x * scale + shift + len(more)


def reads(p: Any, x: Any) -> Any:
    return p.keywords is p.keywords, p.args is p.args, list(p.keywords), p.func is scaled, p(x)


def writes(p: Any, x: Any) -> Any:
    named = p.keywords
    first = p(x)
    named["scale"] = named.get("scale", 1.0) + 1.0
    named["shift"] = x.sum()
    second = p(x)
    del p.keywords["scale"]
    return first, second, p(x), named, named is p.keywords


def breaks_between(p: Any, x: Any) -> Any:
    named, listed = p.keywords, p.args
    named["scale"] = 4.0
    tinycompile.graph_break()
    named["shift"] = 1.0
    y = p(x)
    tinycompile.graph_break()
    return y, named is p.keywords, listed is p.args, sorted(named)


def of_a_global(p: Any, x: Any) -> Any:
    KEPT.keywords["alpha"] += 1
    return KEPT(x, x), KEPT.keywords is KEPT.keywords


def made_inside(p: Any, x: Any) -> Any:
    made = functools.partial(scaled, scale=3.0)
    named = made.keywords
    named["shift"] = x * 2
    outer = functools.partial(made, 1, **{"scale": 2.0})
    named["scale"] = 5.0
    return made, named, outer, made(x), outer.keywords is named, outer.args, outer.func is scaled


def made_inside_over_a_break(p: Any, x: Any) -> Any:
    made = functools.partial(scaled, scale=3.0)
    named, twice = made.keywords, [made, made.keywords]
    tinycompile.graph_break()
    named["shift"] = 2.0
    return made(x), named is made.keywords, twice[0] is made, twice[1] is named, made.keywords


def of_names_that_are_none(p: Any, x: Any) -> Any:
    made = functools.partial(lambda **more: [k for k in more], **{"a b": 1, "c": 2, "class": 3})
    return made, made(d=x), list(made.keywords)


def state(p: Any) -> Any:
    return p.args, list(p.keywords.items())


def same(a: Any, b: Any) -> bool:
    if isinstance(a, functools.partial):
        return same((a.args, list(a.keywords.items())), (b.args, list(b.keywords.items())))
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(map(same, a, b))
    return same(list(a.items()), list(b.items())) if isinstance(a, dict) else bool(a == b)


FUNCTIONS = [
    reads, writes, breaks_between, of_a_global, made_inside, made_inside_over_a_break, of_names_that_are_none,
]  # fmt: skip


@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda fn: fn.__name__)
def test_partials(fn: Callable[..., Any]) -> None:
    compiled = tinycompile.compile(fn, backend="eager")
    seen = []
    for call in (fn, compiled, compiled):
        KEPT.keywords["alpha"] = 2
        given, named = functools.partial(scaled, scale=2.0), []
        named.append(given.keywords)
        results = [call(given, torch.arange(3.0)), call(given, torch.ones(3))]
        if isinstance(results[0][0], functools.partial) and isinstance(results[0][1], dict):
            assert results[0][0].keywords is results[0][1]
        seen.append((results, state(given), named[0] is given.keywords, dict(KEPT.keywords)))
    assert same(seen[1], seen[0])
    assert same(seen[2], seen[0])


def test_keywords_that_change_between_calls_take_effect() -> None:
    compiled, p, x = tinycompile.compile(reads, backend="eager"), functools.partial(scaled, scale=2.0), torch.ones(3)
    for change in (lambda: None, lambda: p.keywords.update(shift=3.0), lambda: p.keywords.clear(), lambda: None):
        change()
        assert same(compiled(p, x), reads(p, x))
