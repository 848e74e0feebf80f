"""Sizes of a library function's results in the symbols of its arguments' sizes.

Nobody states how ``torch.topk`` or ``torch.cdist`` get their results' sizes: they are seen at the call's own sizes and at a few
others, tried on tensors without data. An expression that is right at all of these is taken: a number, a symbol, a size that the
call is given (``x.topk(n // 2)``) or that a tensor has, a multiple of one and a number, its half, the lesser or the greater of
two, a product, a multiple of one and another. Generated code asks each result for its sizes before it is used and leaves the
call to eager where they are others, so what was guessed can't give a wrong answer. Where nothing fits, the sizes of the call
are made a condition.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tinycompile.base import expr as ex
from tinycompile.base import shapes
from tinycompile.base.expr import Dim, Expr, Sym
from tinycompile.base.meta import TensorMeta
from tinycompile.base.shapes import ShapeEnv
from tinycompile.eager.fake import Extern, fake_extern

Sizes = Mapping[str, int]
# What is added to the sizes of the call, by the symbol's place among the symbols: sizes grow apart, and change their order.
_TRIALS: tuple[Callable[[int, int, int], int], ...] = (
    lambda hint, at, top: hint + 1 + at,
    lambda hint, at, top: hint + 3 + 2 * at,
    lambda hint, at, top: hint + 6 + 5 * at,
    lambda hint, at, top: top + 23 - 4 * at if at < 5 else top + 31 + at,
)


def sized_extern(
    fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], given: Sequence[Dim]
) -> tuple[Extern, bool]:
    """The results of a call whose tensors have the sizes and strides ``given``, and whether they are for other sizes, too.
    Where the results' sizes don't follow from these and from the numbers among the arguments, or ``fn`` refuses them, those
    of the call are made a condition. Raises what ``fn`` raises at the sizes of the call."""
    found: Extern | None = None
    numbers = list(_numbers([*args, *kwargs.values()]))
    try:
        seen = fake_extern(fn, args, kwargs)
        found = _in_symbols(fn, args, kwargs, given, numbers, seen)
    finally:
        if found is None:
            shapes.pin_symbols([*given, *numbers])
    return (seen, False) if found is None else (found, True)


def _numbers(values: Sequence[Any]) -> Iterator[Expr]:
    """Sizes that a call is given as numbers."""
    for v in values:
        if isinstance(v, Expr):
            yield v
        elif isinstance(v, (tuple, list)):
            yield from _numbers(v)


def _in_symbols(
    fn: Callable[..., Any], args: Any, kwargs: Any, given: Sequence[Dim], numbers: Sequence[Expr], seen: Extern
) -> Extern | None:
    """What was ``seen`` at the sizes of the call, in their symbols; None where these are all numbers, or nothing fits."""
    env, symbols = shapes.current_env(), sorted({s for d in (*given, *numbers) for s in ex.symbols(d)}, key=lambda s: s.name)
    if env is None or not symbols or any(s.name not in env.hints for s in symbols):
        return None
    if seen.same or seen.owners is None or any(o is not None for o in seen.owners):
        return None
    rows = [(env.hints, seen.metas), *_tried(fn, args, kwargs, env, symbols)]
    if len(rows) <= len(_TRIALS) // 2 or not all(_alike(seen.metas, metas) for _, metas in rows):
        return None
    sizes = [s for s, _ in rows]
    terms = list(dict.fromkeys([*numbers, *(ex.sym(s.name, s.lo, s.stop) for s in symbols), *_numbers(given)]))
    fitted = [_fitted([row[i] for row in map(_each, [m for _, m in rows])], sizes, terms) for i in _places(seen)]
    found = [m for m in fitted if m is not None]
    return None if len(found) < len(fitted) else seen._replace(metas=_as(seen.metas, found))


def _tried(
    fn: Callable[..., Any], args: Any, kwargs: Any, env: ShapeEnv, symbols: Sequence[Sym]
) -> Iterator[tuple[Sizes, Any]]:
    """Other sizes that the conditions of the capture allow, with the results there: each symbol's its own, else those that
    were equal in the call still equal (a call may need that)."""
    top = max(env.hints[s.name] for s in symbols)
    hints = sorted({env.hints[s.name] for s in symbols})
    for places in ({s.name: i for i, s in enumerate(symbols)}, {s.name: hints.index(env.hints[s.name]) for s in symbols}):
        found = []
        for trial in _TRIALS:
            sizes = {**env.hints, **{s.name: trial(env.hints[s.name], places[s.name], top) for s in symbols}}
            if not all(r.fits(sizes) for r in env.relations):
                continue
            try:
                with ShapeEnv(sizes).active():
                    found.append((sizes, fake_extern(fn, args, kwargs).metas))
            except Exception:  # noqa: BLE001  # such sizes are no call: whatever torch says of it
                break
        else:
            yield from found
            return


def _each(metas: Any) -> tuple[Any, ...]:
    return (metas,) if isinstance(metas, TensorMeta) else tuple(metas)


def _places(seen: Extern) -> range:
    return range(len(_each(seen.metas)))


def _as(like: Any, metas: Sequence[TensorMeta]) -> Any:
    """Some metadata as the function returns it: alone, in a tuple, or in one of torch's named ones."""
    return metas[0] if isinstance(like, TensorMeta) else type(like)(metas)


def _alike(a: Any, b: Any) -> bool:
    """Whether two calls gave as many tensors, of the same dtypes, devices and ranks."""

    def kind(m: Any) -> Any:
        return (m.dtype, m.device, len(m.shape), m.offset) if isinstance(m, TensorMeta) else NotImplemented

    kinds = list(map(kind, _each(a)))
    return kinds == list(map(kind, _each(b))) and NotImplemented not in kinds


def _fitted(metas: Sequence[TensorMeta], sizes: Sequence[Sizes], terms: Sequence[Dim]) -> TensorMeta | None:
    """One result, by what it was at each of some sizes."""
    fits = [_fit(values, sizes, terms) for values in zip(*(m.shape for m in metas), strict=True)]
    shape = [d for d in fits if d is not None]
    if len(shape) < len(fits):
        return None
    order = sorted(range(len(shape)), key=lambda d: (-metas[0].strides[d], d))
    for m in metas:
        dense = shapes.contiguous_strides([m.shape[d] for d in order])
        if tuple(m.strides[d] for d in order) != dense:
            return None
    strides = dict(zip(order, shapes.contiguous_strides([shape[d] for d in order]), strict=True))
    return replace(metas[0], shape=tuple(shape), strides=tuple(strides[d] for d in range(len(shape))))


def _fit(values: Sequence[int], sizes: Sequence[Sizes], terms: Sequence[Dim]) -> Dim | None:
    """An expression of some terms that has these values at these sizes; None where none is found."""
    if len(set(values)) == 1:
        return values[0]
    for candidate in _candidates(values, sizes, terms):
        if all(ex.evaluate(candidate, at) == value for at, value in zip(sizes, values, strict=True)):
            return candidate
    return None


def _candidates(values: Sequence[int], sizes: Sequence[Sizes], terms: Sequence[Dim]) -> Iterator[Dim]:
    yield from terms
    for t in terms:
        first = ex.evaluate(t, sizes[0])
        yield from _multiples(t, values, sizes)
        for half, value in ((ex.floordiv(t, 2), first // 2), (ex.floordiv(t + 1, 2), (first + 1) // 2)):
            yield half + (values[0] - value)
    for a, b in itertools.combinations(terms, 2):
        yield from (ex.minimum(a, b), ex.maximum(a, b), a + b, a * b)
    for a, b in itertools.permutations(terms, 2):
        rest = [value - ex.evaluate(b, at) for at, value in zip(sizes, values, strict=True)]
        yield from (found + b for found in _multiples(a, rest, sizes))


def _multiples(t: Dim, values: Sequence[int], sizes: Sequence[Sizes]) -> Iterator[Dim]:
    """A multiple of a term and a number, that has the first two values."""
    first, second = (ex.evaluate(t, at) for at in sizes[:2])
    factor, rest = divmod(values[1] - values[0], second - first) if second != first else (0, 1)
    if not rest:
        yield t * factor + (values[0] - first * factor)
