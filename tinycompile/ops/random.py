"""Ops that draw random numbers.

Eagerly they are torch's own kernels and generators. In generated code (unless ``config.fallback_random``) each has a *form*:
a function of a seed, written in ops, so it fuses with what uses it and a backward computes it again instead of keeping it. The
bits are Philox4x32-10's (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011), keyed by the seed and counted by
an element's position; the seeds, one a call, are drawn together from torch's generator, so ``torch.manual_seed`` decides them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from tinycompile.base.expr import Dim
from tinycompile.base.meta import TensorMeta
from tinycompile.ops import meta_rules as rules
from tinycompile.ops.calls import cast, ops
from tinycompile.ops.creation import fresh, torch_device
from tinycompile.ops.declare import declare, spelled
from tinycompile.ops.record import Extern, Indexed
from tinycompile.ops.samples import call, t
from tinycompile.ops.scalar import SCALAR_OPS, Builder, Operand, Value

Size = Sequence[Dim]


# ------------------------------------------------------------------------------------------------- torch's random functions


def _dropout_meta(x: TensorMeta, p: float, train: bool) -> TensorMeta:
    """The noise is made as a copy is; the product with it is an elementwise kernel's."""
    if any(rules.is_zero(n) for n in x.shape):
        return rules.empty_like(x)
    return rules.elementwise((x, rules.empty_like(x)), x.dtype)


def _like_meta(x: TensorMeta, dtype: Any = None) -> TensorMeta:
    return TensorMeta(x.shape, rules.preserved_strides(x), dtype or x.dtype, x.device)


def _eager_like(fn: Any) -> Any:
    return lambda x, dtype=None: fn(x, dtype=dtype)


def _size_meta(size: Size, dtype: Any = None, device: Any = None) -> TensorMeta:
    return fresh(size, dtype or torch.get_default_dtype(), device)


def _eager_size(fn: Any) -> Any:
    return lambda size, dtype=None, device=None: fn(size, dtype=dtype, device=torch_device(device))


def _bernoulli_meta(self: TensorMeta) -> TensorMeta:
    return rules.empty_like(self)


declare(
    "dropout(Tensor self, float p, bool train) -> Tensor",
    _dropout_meta,
    Extern(),
    torch.dropout,
    (),
    lambda: [call(t(4, 5), 0.5, True)],
    doc="Training only: in evaluation, and for p = 0, binding gives the identity.",
)
for _name in ("rand_like", "randn_like"):
    declare(
        f"{_name}(Tensor self, *, ScalarType? dtype=None) -> Tensor",
        _like_meta,
        Extern(),
        _eager_like(getattr(torch, _name)),
        spelled(_name, "t"),
        lambda: [call(t(4, 5))],
    )
for _name in ("rand", "randn"):
    declare(
        f"{_name}(SymInt[] size, *, ScalarType? dtype=None, Device? device=None) -> Tensor",
        _size_meta,
        Extern(),
        _eager_size(getattr(torch, _name)),
        (),
        lambda: [call((4, 5)), call((), dtype=torch.float64), call((0, 3))],
        doc="Sizes as torch takes them, as a list or one by one, are bound by spellings_tensors.py.",
    )
declare(
    "bernoulli(Tensor self) -> Tensor",
    _bernoulli_meta,
    Extern(),
    torch.bernoulli,
    spelled("bernoulli"),
    lambda: [call(t(4, 5, fill="unit")), call(t(3, dtype="float64", fill="unit"))],
    doc="1 with the probability that the element states, else 0. Drawn by torch, which refuses what is no probability.",
)


# -------------------------------------------------------------------------------------------------------- bits from a seed


def _seeds_meta(count: int, device: Any) -> TensorMeta:
    return fresh((count,), torch.int64, device)


def _eager_seeds(count: int, device: Any) -> torch.Tensor:
    return torch.randint(-(2**63), 2**63 - 1, (count,), dtype=torch.int64, device=torch_device(device))


declare(
    "random_seeds(int count, Device device) -> Tensor",
    _seeds_meta,
    Extern(),
    _eager_seeds,
    doc="Seeds of one call, int64, drawn from torch's generator of the device.",
)


def _bits_meta(seeds: TensorMeta, which: int, lane: int, size: Size, stride: Size) -> TensorMeta:
    return TensorMeta(tuple(size), tuple(stride), torch.int64, seeds.device)


def _bits(
    b: Builder, coords: Sequence[Dim], meta_out: TensorMeta, seeds: Operand, which: int, lane: int, size: Size, stride: Size
) -> Value:
    position: Any = lane << 60
    for at, step in zip(coords, rules.shapes.contiguous_strides(tuple(size)), strict=True):
        position = position + at * step
    return b("philox", b.load(seeds, (which,)), b.index(position))


def _eager_bits(seeds: torch.Tensor, which: int, lane: int, size: Any, stride: Any) -> torch.Tensor:
    place = torch.arange(torch.Size(size).numel()) + (lane << 60)
    found = torch.from_numpy(SCALAR_OPS["philox"].numpy(seeds[which].cpu().numpy(), place.numpy()))
    out = torch.empty_strided(tuple(size), tuple(stride), dtype=torch.int64, device=seeds.device)
    return out.copy_(found.reshape(tuple(size)))


declare(
    "philox_bits(Tensor seeds, int which, int lane, SymInt[] size, SymInt[] stride) -> Tensor",
    _bits_meta,
    Indexed(_bits),
    _eager_bits,
    (),
    lambda: [
        call(t(3, dtype="int64", fill="integers"), 1, 0, (4, 5), (5, 1)),
        call(t(1, dtype="int64", fill="integers"), 0, 1, (4, 5), (1, 4)),
        call(t(1, dtype="int64", fill="integers"), 0, 0, (), ()),
        call(t(2, dtype="int64", fill="integers"), 0, 0, (70, 3), (3, 1)),
    ],
    doc="32 random bits an element, as int64 in [0, 2**32). Lanes are independent streams of one seed.",
)


# ------------------------------------------------------------------------------------------------------------------- forms

_DIGITS = {torch.float16: 11, torch.bfloat16: 8, torch.float32: 24}


def _uniform(seeds: Any, which: int, out: TensorMeta, lane: int = 0) -> Any:
    """In [0, 1), on the grid of ``out``'s dtype: rounding never gives 1."""
    if out.dtype == torch.float64:
        high, low = _leading(seeds, which, out, lane, 27), _leading(seeds, which, out, lane + 1, 26)
        return ops.mul(ops.add(ops.mul(high, 2.0**26), low), 2.0**-53)
    digits = _DIGITS[out.dtype]
    return cast(ops.mul(_leading(seeds, which, out, lane, digits), 2.0**-digits), out.dtype)


def _leading(seeds: Any, which: int, out: TensorMeta, lane: int, digits: int) -> Any:
    """The leading binary digits of a word, as a float that holds them exactly."""
    word = ops.philox_bits(seeds, which, lane, out.shape, out.strides)
    return ops.to(ops.bitwise_right_shift(word, 32 - digits), rules.opmath(out.dtype))


def _normal(seeds: Any, which: int, out: TensorMeta) -> Any:
    """Box and Muller's transform of two uniforms."""
    wide = replace(out, dtype=rules.opmath(out.dtype))
    radius = ops.sqrt(ops.mul(ops.log(ops.add(ops.neg(_uniform(seeds, which, wide)), 1.0)), -2.0))
    angle = ops.mul(_uniform(seeds, which, wide, lane=2), 2 * torch.pi)
    return cast(ops.mul(radius, ops.cos(angle)), out.dtype)


def _noise(seeds: Any, which: int, x: Any, p: float) -> tuple[Any, Any]:
    """What dropout multiplies by, and which elements it keeps: 1 / (1 - p) or 0, in the dtype of arithmetic."""
    out = replace(rules.empty_like(x.meta), dtype=rules.opmath(x.meta.dtype))
    kept = ops.ge(_uniform(seeds, which, replace(out, dtype=torch.float32)), p)
    scale = 0.0 if p == 1 else 1 / (1 - p)
    return ops.mul(ops.to(kept, out.dtype), scale), kept


def _dropout(seeds: Any, which: int, x: Any, p: float, train: bool) -> Any:
    return cast(ops.mul(x, _noise(seeds, which, x, p)[0]), x.meta.dtype)


def _native_dropout(seeds: Any, which: int, x: Any, p: float, train: bool | None) -> Any:
    if train is False:
        return NotImplemented
    noise, kept = _noise(seeds, which, x, p)
    return cast(ops.mul(x, noise), x.meta.dtype), kept


def _sized(draw: Callable[..., Any], meta: Callable[..., TensorMeta]) -> Callable[..., Any]:
    def form(seeds: Any, which: int, *args: Any) -> Any:
        out = meta(*(getattr(a, "meta", a) for a in args))
        return draw(seeds, which, out) if out.dtype.is_floating_point else NotImplemented

    return form


# By record: ``form(seeds, which, *args)``, which draws with seed number ``which``. NotImplemented: torch's own call.
FORMS: dict[str, Callable[..., Any]] = {
    "dropout": _dropout,
    "native_dropout": _native_dropout,
    "rand": _sized(_uniform, _size_meta),
    "randn": _sized(_normal, _size_meta),
    "rand_like": _sized(_uniform, _like_meta),
    "randn_like": _sized(_normal, _like_meta),
}
