"""Sample calls that the families share: dtypes, layouts, ranks, broadcasting, empties and special values."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tinycompile.ops.record import Sample, TensorSpec

LAYOUTS = ("transposed", "strided", "expanded", "offset")
FLOATS = ("float32", "float64", "float16", "bfloat16")
INTS = ("int64", "int32", "int16", "int8", "uint8")

Samples = Callable[[], Iterable[Sample]]


def t(*shape: int, dtype: str = "float32", layout: str = "contiguous", fill: str = "normal") -> TensorSpec:
    """A TensorSpec, tersely."""
    return TensorSpec(shape, dtype, layout, fill)


def call(*args: Any, name: str = "", **kwargs: Any) -> Sample:
    """A Sample, tersely."""
    return Sample(args, kwargs, name)


def shaped_inputs(dtypes: Iterable[str], fill: str = "normal") -> list[TensorSpec]:
    """One tensor each: every dtype, every layout, 0-d, empty, size 1, channels_last and special values."""
    kinds = tuple(dtypes)
    specs = [t(4, 5, dtype=d, fill=fill if d in FLOATS else "integers") for d in kinds]
    specs += [t(4, 6, dtype=kinds[0], layout=layout, fill=fill) for layout in LAYOUTS]
    specs += [t(*shape, dtype=kinds[0], fill=fill) for shape in ((), (0,), (3, 0, 2), (1, 5, 1))]
    specs += [t(2, 3, 4, 5, dtype=kinds[0], layout=layout, fill=fill) for layout in ("channels_last", "transposed")]
    if kinds[0] in FLOATS:
        specs.append(t(4, 4, dtype=kinds[0], fill="special"))
    return specs


def one(dtypes: Iterable[str] = FLOATS, fill: str = "normal", *rest: Any, **kwargs: Any) -> Samples:
    """Calls of a unary op; ``rest`` and ``kwargs`` follow the tensor."""
    chosen = tuple(dtypes)
    return lambda: [Sample((spec, *rest), kwargs) for spec in shaped_inputs(chosen, fill)]


def two(dtypes: Iterable[str] = FLOATS, fill: str = "normal", number: Any = 2, mixed: bool = True, **kwargs: Any) -> Samples:
    """Calls of a binary op: same shape, broadcasting, mixed layouts and dtypes, 0-d, empty, numbers."""
    chosen = tuple(dtypes)
    return lambda: list(_pairs(chosen, fill, number, mixed, kwargs))


def _pairs(dtypes: tuple[str, ...], fill: str, number: Any, mixed: bool, kwargs: Mapping[str, Any]) -> Iterable[Sample]:
    def fill_of(dtype: str) -> str:
        return fill if dtype in FLOATS else ("integers" if fill != "positive" else "positive")

    for d in dtypes:
        yield Sample((t(4, 5, dtype=d, fill=fill_of(d)), t(4, 5, dtype=d, fill=fill_of(d))), kwargs)
    d, f = dtypes[0], fill_of(dtypes[0])
    shapes = [((4, 5), (5,)), ((4, 1), (1, 5)), ((4, 5), ()), ((), (3,)), ((), ()), ((0, 3), (1, 3)), ((2, 1, 4), (3, 1))]
    for left, right in shapes:
        yield Sample((t(*left, dtype=d, fill=f), t(*right, dtype=d, fill=f)), kwargs)
    for layout in LAYOUTS:
        yield Sample((t(4, 6, dtype=d, layout=layout, fill=f), t(4, 6, dtype=d, fill=f)), kwargs)
        yield Sample((t(4, 6, dtype=d, layout=layout, fill=f), t(4, 6, dtype=d, layout=layout, fill=f)), kwargs)
    for first, second in (("channels_last", "contiguous"), ("channels_last", "channels_last"), ("contiguous", "transposed")):
        a, b = t(2, 3, 4, 5, dtype=d, layout=first, fill=f), t(2, 3, 4, 5, dtype=d, layout=second, fill=f)
        yield Sample((a, b), kwargs)
    yield Sample((t(2, 3, 4, 5, dtype=d, layout="channels_last", fill=f), t(3, 1, 1, dtype=d, fill=f)), kwargs)
    if number is not None:
        yield Sample((t(4, 5, dtype=d, fill=f), number), kwargs)
        yield Sample((t(6, 4, dtype=d, layout="transposed", fill=f), number), kwargs)
        yield Sample((t(dtype=d, fill=f), number), kwargs)
    if d in FLOATS:
        yield Sample((t(6, 6, dtype=d, fill="special"), t(6, 6, dtype=d, fill="special")), kwargs)
    if mixed and len(dtypes) > 1:
        yield from _mixed_dtypes(dtypes, fill_of, kwargs)


def _mixed_dtypes(dtypes: tuple[str, ...], fill_of: Callable[[str], str], kwargs: Mapping[str, Any]) -> Iterable[Sample]:
    for a, b in itertools.pairwise(dtypes):
        yield Sample((t(4, 5, dtype=a, fill=fill_of(a)), t(5, dtype=b, fill=fill_of(b))), kwargs)
        yield Sample((t(4, 5, dtype=a, fill=fill_of(a)), t(dtype=b, fill=fill_of(b))), kwargs)
        yield Sample((t(dtype=a, fill=fill_of(a)), t(4, 5, dtype=b, fill=fill_of(b))), kwargs)
