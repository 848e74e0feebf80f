"""Backwards that are compiled when they are first needed. The guards of their capture are written by then, so what sizes decide
on the way is asked again at each use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from tinycompile.base.collector import without_collections
from tinycompile.base.shapes import Relation, ShapeEnv
from tinycompile.eager import autocast

Made = TypeVar("Made")


class Late(Generic[Made]):
    """What ``make(sizes, *key)`` gives, once for each key and for each way in which sizes decide. ``symbols``: the sizes whose
    values come with each use; ``make`` has them by name."""

    def __init__(self, symbols: Sequence[str], make: Callable[..., Made]) -> None:
        self._symbols, self._make = tuple(symbols), make
        self._made: dict[tuple[Any, ...], tuple[tuple[tuple[Relation, ...], Made], ...]] = {}

    def __call__(self, sizes: Sequence[int], *key: Any) -> Made:
        known: Mapping[str, int] = dict(zip(self._symbols, sizes, strict=True))
        before = self._made.get(key, ())
        for relations, made in before:
            if all(r.fits(known) for r in relations):
                return made
        return self._new(known, key, before)

    @without_collections
    def _new(
        self, known: Mapping[str, int], key: tuple[Any, ...], before: tuple[tuple[tuple[Relation, ...], Made], ...]
    ) -> Made:
        with ShapeEnv(dict(known)).active() as env, autocast.outside():
            made = self._make(known, *key)
        self._made[key] = ((tuple(env.relations), made), *before)
        return made
