"""How the family files state records: short constructors over :class:`~tinycompile.ops.record.Op`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from tinycompile.dispatch import schema as schemas
from tinycompile.ops import meta_rules as rules
from tinycompile.ops.outline import Outlined
from tinycompile.ops.record import Decompose, Lowering, Metas, Op, Pointwise, Sample, register

# One letter a namespace, as ``spelled`` reads them.
NAMESPACES = {"t": "torch", "m": "torch.Tensor", "f": "torch.nn.functional", "s": "torch.special", "l": "torch.linalg"}


def spelled(name: str, where: str = "tm", *more: str) -> tuple[str, ...]:
    """Dotted names: ``spelled("exp", "tms")`` is torch.exp, torch.Tensor.exp, torch.special.exp; ``more`` are whole names."""
    return tuple(f"{NAMESPACES[w]}.{name}" for w in where) + more


def declare(
    schema: str,
    meta: Callable[..., Metas],
    lowering: Lowering,
    eager: Callable[..., Any],
    functions: tuple[str, ...] = (),
    samples: Callable[[], Iterable[Sample]] = tuple,
    ulp: float = 1.0,
    doc: str = "",
) -> Op:
    """Make and register one record. ``eager`` is called with the arguments in schema order."""
    return register(Op(schemas.parse(schema), meta, eager, lowering, functions, samples, None, ulp, doc))


def composite(
    schema: str,
    fn: Callable[..., Any],
    eager: Callable[..., Any],
    functions: tuple[str, ...] = (),
    samples: Callable[[], Iterable[Sample]] = tuple,
    ulp: float = 4.0,
    doc: str = "",
) -> Op:
    """A record that is other ops: its metadata is what ``fn`` makes of its arguments' outlines, and its gradient ``fn``'s.

    What ``fn`` declines (NotImplemented) or raises for is torch's own call, so that the error is torch's."""
    return declare(schema, Outlined(fn), Decompose(fn), eager, functions, samples, ulp, doc)


def unary(
    name: str,
    formula: Callable[..., Any],
    promote: str,
    functions: tuple[str, ...],
    samples: Callable[[], Iterable[Sample]],
    eager: Callable[..., Any] | None = None,
    meta: Callable[..., Metas] | None = None,
    ulp: float = 1.0,
) -> Op:
    """A pointwise op of one tensor and no attributes."""
    return declare(
        f"{name}(Tensor self) -> Tensor",
        meta or _UNARY_META[promote],
        Pointwise(formula, promote),
        eager or getattr(torch, name),
        functions,
        samples,
        ulp,
    )


def binary(
    name: str,
    formula: Callable[..., Any],
    promote: str,
    functions: tuple[str, ...],
    samples: Callable[[], Iterable[Sample]],
    eager: Callable[..., Any] | None = None,
    meta: Callable[..., Metas] | None = None,
    ulp: float = 1.0,
) -> Op:
    """A pointwise op of two tensors (or a tensor and a number) and no attributes."""
    return declare(
        f"{name}(Tensor self, Tensor other) -> Tensor",
        meta or _NARY_META[promote],
        Pointwise(formula, promote),
        eager or getattr(torch, name),
        functions,
        samples,
        ulp,
    )


def _unary_default(x: rules.TensorMeta) -> rules.TensorMeta:
    return rules.like(x)


def _unary_float(x: rules.TensorMeta) -> rules.TensorMeta:
    return rules.pointwise_float(x)


def _unary_bool(x: rules.TensorMeta) -> rules.TensorMeta:
    return rules.like(x, torch.bool)


_UNARY_META: dict[str, Callable[..., Metas]] = {
    "default": _unary_default,
    "int_to_float": _unary_float,
    "bool_out": _unary_bool,
    "none": _unary_default,
}
_NARY_META: dict[str, Callable[..., Metas]] = {
    "default": rules.pointwise_default,
    "int_to_float": rules.pointwise_float,
    "bool_out": rules.pointwise_bool,
}
