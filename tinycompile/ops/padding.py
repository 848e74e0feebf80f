"""Padding: by a constant, by reflection, by the edge, or around."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional as F

from tinycompile.base import expr as ex
from tinycompile.base import shapes
from tinycompile.base.expr import Dim
from tinycompile.base.meta import TensorMeta
from tinycompile.ops import meta_rules as rules
from tinycompile.ops.declare import declare
from tinycompile.ops.record import Indexed, Sample
from tinycompile.ops.samples import FLOATS, INTS, call, t
from tinycompile.ops.scalar import Builder, Operand, Value

ANY = (*FLOATS, *INTS, "bool")
Coords = tuple[Dim, ...]


def _pad_meta(x: TensorMeta, pad: Sequence[Dim], mode: str = "constant", value: float | None = None) -> TensorMeta:
    if len(pad) % 2:
        raise RuntimeError("Padding length must be divisible by 2")
    n = len(pad) // 2
    if n > x.rank:
        raise RuntimeError(
            "Padding length should be less than or equal to two times the input dimension but got padding length "
            f"{len(pad)} and "
            f"input of dimension {x.rank}"
        )
    if mode not in ("constant", "reflect", "replicate", "circular"):
        raise NotImplementedError(f"Unrecognised padding mode {mode}")
    if mode != "constant" and not (x.rank - n in (1, 2) and 1 <= n <= 3):
        raise NotImplementedError("Only 2D, 3D, 4D, 5D padding with non-constant padding are supported for now")
    if mode in ("reflect", "replicate") and x.dtype == torch.bool:
        raise NotImplementedError(f"\"{mode}_pad{n}d\" not implemented for 'Bool'")
    shape = list(x.shape)
    for k in range(n):
        d = x.rank - 1 - k
        before, after = pad[2 * k], pad[2 * k + 1]
        _check_padding(x, d, before, after, mode)
        shape[d] = shape[d] + before + after
        if isinstance(shape[d], int) and shape[d] < 0:  # type: ignore[operator]
            if all(isinstance(p, int) and p <= 0 for p in pad):
                raise RuntimeError("narrow(): length must be non-negative.")
            raise RuntimeError(
                f"The input size {x.shape[d]}, plus negative padding {before} and {after} resulted in a negative output size, "
                f"which is invalid. Check dimension {d} of your input."
            )
    if mode in ("reflect", "replicate") and any(isinstance(s, int) and s < 1 for s in (*x.shape[-n - 1 :], *shape[-n:])):
        sizes = [shapes.hint(s) for s in x.shape]  # torch has words for what has no elements
        F.pad(torch.empty(sizes, dtype=x.dtype), tuple(map(shapes.hint, pad)), mode)
    return TensorMeta(tuple(shape), _pad_strides(x, tuple(shape), pad, mode), x.dtype, x.device)


def _check_padding(x: TensorMeta, d: int, before: Dim, after: Dim, mode: str) -> None:
    size = x.shape[d]
    if mode == "reflect" and not (shapes.at_least(size - 1, before) and shapes.at_least(size - 1, after)):
        raise RuntimeError(
            "Argument #4: Padding size should be less than the corresponding input dimension, but got: padding "
            f"({before}, {after}) at dimension {d} of input {list(x.shape)}"
        )
    if mode == "circular" and not (shapes.at_least(size, before) and shapes.at_least(size, after)):
        raise RuntimeError("Padding value causes wrapping around more than once.")


def _pad_strides(x: TensorMeta, shape: Coords, pad: Sequence[Dim], mode: str) -> Coords:
    """Circular padding forgets the layout; what is only cropped is a clone of a slice."""
    if mode == "constant" and all(isinstance(p, int) and p <= 0 for p in pad):
        known = tuple(1 if shapes.same(s, 1) else s for s in shape)  # a symbol is no 1, but what is left of one may be
        return rules.preserved_strides(TensorMeta(known, x.strides, x.dtype, x.device))
    if mode != "circular" and rules.suggests_channels_last(x):
        return rules.channels_last_strides(shape)
    return rules.dense_strides(shape)


def _pad(
    b: Builder, coords: Coords, meta_out: TensorMeta, x: Operand, pad: Sequence[Dim], mode: str = "constant", value: Any = None
) -> Value:
    rank = x.meta.rank
    places, mask = list(coords), []
    for k in range(len(pad) // 2):
        d = rank - 1 - k
        size = x.meta.shape[d]
        place = coords[d] - pad[2 * k]
        if mode == "constant":
            mask += [place] if not rules.is_zero(pad[2 * k]) else []
            mask += [size - 1 - place] if not rules.is_zero(pad[2 * k + 1]) else []
        elif mode == "replicate":
            place = ex.minimum(ex.maximum(place, 0), size - 1)
        elif mode == "circular":
            crop = ex.maximum(-pad[2 * k], 0)  # what negative padding removes is gone before the rest is wrapped
            length = size - crop - ex.maximum(-pad[2 * k + 1], 0)
            place = crop + ex.mod(place - crop + length, length)
        else:  # reflect: |p| from the left, then 2(n-1) - p from the right
            place = ex.maximum(place, -place)
            place = ex.minimum(place, 2 * (size - 1) - place)
        places[d] = place
    return b.load(x, tuple(places), tuple(mask), 0 if value is None else value)


def _eager_pad(x: torch.Tensor, pad: Any, mode: str = "constant", value: Any = None) -> torch.Tensor:
    return F.pad(x, tuple(pad), mode, value)


def _pad_calls() -> list[Sample]:
    return [
        *(call(t(4, 5, dtype=d), (1, 2)) for d in ANY),
        call(t(4, 5), (1, 2, 0, 3), value=1.5),
        call(t(4, 5), (-1, 2)),
        call(t(4, 5), (-1, -1, 1, 0)),
        call(t(2, 3, 4, 5, layout="channels_last"), (1, 1, 2, 2)),
        call(t(4, 6, layout="transposed"), (1, 1)),
        call(t(3), (0, 0)),
        call(t(3, 0), (1, 1)),
        *(call(t(2, 3, 4, 5), (1, 2, 3, 1), mode) for mode in ("reflect", "replicate", "circular")),
        *(call(t(1, 3, 4, 4), (-1, 1, 2, -1), mode) for mode in ("reflect", "replicate", "circular")),
        *(call(t(2, 3, 4), (1, 2), mode) for mode in ("reflect", "replicate", "circular")),
        call(t(3), (1,)),
        call(t(3), (1, 1, 1, 1)),
        call(t(3), (-2, -2)),
        call(t(2, 3, 4), (-2, -2)),
        call(t(1, 1, 4, 5), (-2, -2, -1, -2)),
        call(t(2, 3, 4, layout="transposed"), (-2, -2)),
        *(call(t(2, 3, 4, 5, layout="channels_last"), (1, 0, 2, 1), mode) for mode in ("reflect", "replicate", "circular")),
        *(call(t(2, 0, 4), (1, 1), mode) for mode in ("reflect", "replicate", "circular")),
        *(call(t(2, 3, 4), (-2, -2), mode) for mode in ("reflect", "replicate")),
        *(call(t(0, 3, 4, 5), (1, 1, 0, 1), mode) for mode in ("reflect", "replicate")),
    ]


declare(
    "pad(Tensor self, SymInt[] pad, str mode='constant', float? value=None) -> Tensor",
    _pad_meta,
    Indexed(_pad),
    _eager_pad,
    ("torch.nn.functional.pad",),
    _pad_calls,
)
