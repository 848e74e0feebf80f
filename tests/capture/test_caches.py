"""Functions under ``lru_cache``: what the cache gives counts, their code runs once, and numbers of objects are guarded."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

from tinycompile.api import CompiledFunction
from tinycompile.options import Options

pytestmark = pytest.mark.pure
SETTINGS = {"scale": 2.0}


def compiled(fn: Any) -> CompiledFunction:
    return CompiledFunction(fn, Options(backend="eager"))


def test_a_cached_tensor_is_one_object_and_is_made_once() -> None:
    calls = []

    def watched(n: int) -> torch.Tensor:
        made: torch.Tensor = torch.ones(n) * 2
        return made

    @functools.lru_cache
    def made(n: int) -> torch.Tensor:
        return watched(n)

    def fn(x: torch.Tensor) -> Any:
        return x + made(3), made(3)

    f, x = compiled(fn), torch.ones(3)
    first, second = f(x), f(x)
    assert not f.breaks and len(f.all_entries) == 1 and first[1] is second[1] is made(3)
    assert made.cache_info().misses == 1 and not calls
    made(3).add_(1)
    assert f(x)[0].tolist() == [4.0] * 3
    made.cache_clear()
    third = f(x)
    assert third[0].tolist() == [3.0] * 3 and third[1] is made(3) and made.cache_info().misses == 1


def test_a_cached_number_stays_what_it_was() -> None:
    @functools.cache
    def scale() -> float:
        return SETTINGS["scale"]

    def fn(x: torch.Tensor) -> Any:
        return x * scale()

    f, x = compiled(fn), torch.ones(1)
    assert f(x).item() == fn(x).item() == 2
    SETTINGS["scale"] = 5.0
    try:
        assert f(x).item() == fn(x).item() == 2
        scale.cache_clear()
        assert f(x).item() == fn(x).item() == 5
    finally:
        SETTINGS["scale"] = 2.0


def test_what_is_cached_and_has_effects_breaks() -> None:
    seen: list[int] = []

    @functools.cache
    def noisy(n: int) -> torch.Tensor:
        seen.append(n)
        return torch.ones(n)

    def fn(x: torch.Tensor) -> Any:
        return x + noisy(2)

    f, x = compiled(fn), torch.ones(2)
    for _ in range(3):
        assert torch.equal(f(x), x + 1)
    assert seen == [2] and f.breaks[0].id == "side-effect"


def test_random_numbers_that_are_cached() -> None:
    @functools.cache
    def noise() -> torch.Tensor:
        return torch.rand(3)

    def fn(x: torch.Tensor) -> Any:
        return x * 1, noise()

    f, x = compiled(fn), torch.ones(3)
    torch.manual_seed(7)
    got = f(x)[1]
    torch.manual_seed(7)
    assert torch.equal(got, torch.rand(3)) and f(x)[1] is got is noise()


def test_numbers_of_objects() -> None:
    def fn(a: Any, b: Any, x: torch.Tensor) -> Any:
        return id(a) == id(b), id(x), x + 1

    f = compiled(fn)
    for a, b in (([], []), ([], [1]), ([1], [])):
        x = torch.ones(1)
        assert f(a, b, x)[:2] == (False, id(x))
        assert f(a, a, x)[:2] == (True, id(x))


def test_a_cached_list_behind_a_change() -> None:
    @functools.cache
    def shared() -> list[int]:
        return [1]

    def fn(x: torch.Tensor, log: list[int]) -> Any:
        log.append(1)
        return shared(), shared(), x + 1

    f = compiled(fn)
    for _ in range(2):
        got = f(torch.ones(1), [])
        assert got[0] is got[1] is shared()


def test_a_cached_method_gives_what_the_cache_has() -> None:
    """Also where what it gives is a constant, and where it lies under a property."""

    class Scaled:
        def __init__(self) -> None:
            self.k = 3

        @functools.lru_cache  # noqa: B019
        def times(self, n: int) -> int:
            return self.k * n

        @property
        @functools.lru_cache  # noqa: B019
        def scale(self) -> int:
            return self.k

    def fn(scaled: Scaled, x: torch.Tensor) -> Any:
        return x * scaled.times(2), scaled.scale

    f, scaled, x = compiled(fn), Scaled(), torch.ones(1)
    for k in (3, 5, 5):
        scaled.k = k
        made, scale = f(scaled, x)
        assert (made.item(), scale) == (6, 3)
    assert scaled.times.cache_info().misses == 1


def test_a_cached_number_behind_a_change_is_the_caches() -> None:
    @functools.cache
    def scale(n: int) -> float:
        return SETTINGS["scale"] * n

    def fn(x: torch.Tensor) -> Any:
        x.add_(1)
        return x * scale(1)

    f = compiled(fn)
    assert f(torch.zeros(1)).item() == 2
    SETTINGS["scale"] = 5.0
    try:
        assert f(torch.zeros(1)).item() == 2
    finally:
        SETTINGS["scale"] = 2.0
