"""The shape signature of a tensor from outside: which dims are symbolic, and the guards for all else."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import torch

from tinycompile.base import expr as ex
from tinycompile.base import shapes, torch_private
from tinycompile.base.device import Device
from tinycompile.base.expr import Dim, Expr
from tinycompile.base.meta import TensorMeta
from tinycompile.capture.breaks import GraphBreak
from tinycompile.capture.guards import is_aligned
from tinycompile.capture.sources import Source
from tinycompile.capture.trust import module_of
from tinycompile.eager.tensor import Tensor as OurTensor

if TYPE_CHECKING:
    from tinycompile.capture.tracer import Tracer

PLAIN = (torch.Tensor, torch.nn.Parameter)


def check_plain(t: torch.Tensor, label: str) -> None:
    """Break unless it is a strided tensor that behaves as one."""
    cls = type(t)
    if cls not in PLAIN:
        raise GraphBreak("tensor-kind", f"{label} is a {module_of(cls)}.{cls.__qualname__}")
    if t.layout is not torch.strided or t.is_quantized or t.is_nested:
        raise GraphBreak(
            "tensor-kind", f"{label} has layout {t.layout}" if t.layout is not torch.strided else f"{label} is quantised"
        )
    if t.is_conj() or t.is_neg():
        raise GraphBreak("tensor-kind", f"{label} is a {'conjugate' if t.is_conj() else 'negative'} view")
    if t.is_inference() and not torch.is_inference_mode_enabled():
        raise GraphBreak("tensor-kind", f"{label} is an inference tensor")
    if torch_private.is_functorch_wrapped(t):
        raise GraphBreak("tensor-kind", f"{label} is wrapped by a functorch transform")


def symbolic_meta(
    tr: Tracer, t: torch.Tensor, dynamic: Collection[int], source: Source | None = None, dynamic_strides: Collection[int] = ()
) -> TensorMeta:
    """The metadata, with a fresh symbol for each size in ``dynamic``, and for each stride in ``dynamic_strides`` that is not
    made of sizes: ``source`` gives it. The pointer counts from the tensor's own first element, so the offset only tells its
    alignment: 0, or 1 where it is no multiple of 16 bytes."""
    shape = tuple(tr.new_size(size) if d in dynamic else size for d, size in enumerate(t.shape))
    strides: tuple[Dim, ...] = t.stride()
    if dynamic or dynamic_strides:
        symbols: dict[int, Dim] = {}
        if source is not None:
            symbols = {d: tr.new_stride(source, d, t.stride(d)) for d in _irregular(t) if d in dynamic_strides}
        strides = _symbolic_strides(shape, t, symbols)
    return TensorMeta(shape, strides, t.dtype, Device.of(t.device), 0 if is_aligned(t) else 1)


def _regular(t: torch.Tensor) -> dict[int, int]:
    """The dims whose stride is that of the next inner dim, which is given, times its size; the inner ones first."""
    strides, order = t.stride(), sorted(range(t.ndim), key=lambda d: (t.stride(d), -d))
    pairs = itertools.pairwise(order)
    return {outer: inner for inner, outer in pairs if strides[outer] == strides[inner] * t.shape[inner] and t.shape[inner] != 1}


def _irregular(t: torch.Tensor) -> list[int]:
    regular = _regular(t)
    return [d for d in range(t.ndim) if d not in regular]


def _symbolic_strides(shape: tuple[Dim, ...], t: torch.Tensor, symbols: Mapping[int, Dim]) -> tuple[Dim, ...]:
    """A regular stride is a product; the innermost and irregular ones are ``symbols``, else numbers."""
    result: list[Dim] = [symbols.get(d, stride) for d, stride in enumerate(t.stride())]
    for outer, inner in _regular(t).items():
        result[outer] = result[inner] * shape[inner]
    return tuple(result)


def guard_static(tr: Tracer, t: torch.Tensor, source: Source) -> None:
    """Nothing may change but the data."""
    tr.guards.tensor(source.text, t)
    _guard_alignment(tr, t, source)


def _guard_alignment(tr: Tracer, t: Any, source: Source) -> None:
    tr.guards.alignment(source.text, source.label, is_aligned(t))


def guard_symbolic(tr: Tracer, t: torch.Tensor, meta: TensorMeta, source: Source) -> None:
    """All but the symbolic sizes is as it was; the symbols are bound, with their ranges."""
    text, hold = source.text, tr.guards.hold
    cls, keys = hold(type(t), type(t).__name__ + "_"), torch_private.raw_keys(t)
    dtype, device = hold(t.dtype, str(t.dtype).removeprefix("torch.")), hold(t.device, "device_")
    tr.guards.check(
        f"_type({text}) is {cls.name} and {text}.dtype is {dtype.name} and {text}.device == {device.name}"
        f" and _raw_keys({text}) == {keys} and {text}.requires_grad is {t.requires_grad} and {text}.ndim == {t.ndim}",
        f"{source.label}: {t.dtype} {t.device}, {t.ndim} dims, requires_grad={t.requires_grad}",
    )
    for d, size in enumerate(meta.shape):
        bound = f"({size} := {text}.size({d})) >= 2" if isinstance(size, Expr) else f"{text}.size({d}) == {size}"
        tr.guards.check(
            bound, f"{source.label}.shape[{d}] {'is a size, ' + str(size) if isinstance(size, Expr) else '== ' + str(size)}"
        )
    for d, stride in enumerate(meta.strides):
        if (symbol := ex.as_sym(stride)) is not None and symbol.name in tr.strides:
            tr.guards.check(f"({stride} := {text}.stride({d})) >= 2", f"{source.label}.stride({d}) is a stride, {stride}")
    strides = ", ".join(map(str, meta.strides))
    tr.guards.check(f"{text}.stride() == ({strides},)", f"{source.label}.stride() == ({strides},)")
    _guard_alignment(tr, t, source)
    reach = sum(((n - 1) * s for n, s in zip(meta.shape, meta.strides, strict=True)), start=0)
    shapes.at_least(2**31 - 1, reach)  # 32-bit offsets reach its end, or don't: a relation, hence a guard


def guard_ours(tr: Tracer, t: OurTensor, source: Source) -> None:
    """A tensor of our eager layer: its own metadata says all."""
    text, hold = source.text, tr.guards.hold
    cls, meta = hold(OurTensor, "OurTensor"), hold(t.meta, "meta")
    tr.guards.check(
        f"_type({text}) is {cls.name} and {text}.meta == {meta.name} and {text}.keys == {t.keys}"
        f" and {text}.requires_grad is {t.requires_grad}",
        f"{source.label}: {t.meta}, requires_grad={t.requires_grad}",
    )
    _guard_alignment(tr, t, source)


def symbol_range_holds(size: int) -> bool:
    """Whether a size may be symbolic: 0 and 1 are always specialised."""
    return size >= 2


def symbol_names(dim: Dim) -> list[str]:
    """Names of the symbols in a dim."""
    return sorted(s.name for s in ex.symbols(dim))
