"""What torch refuses, records refuse: every record's samples with other dtypes and sizes. A kernel that takes more than torch
does gives numbers where the program expects an error, or reads past what it was given."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

import tinycompile.eager.backends  # noqa: F401  fills the dispatcher, through which decompositions run
from tests.ops.materialize import arguments, specs_in
from tinycompile.eager.refused_dtypes import seems_refused
from tinycompile.ops import table
from tinycompile.ops.evaluate import meta_of
from tinycompile.ops.record import OPS, Extern, Op, Sample, TensorSpec

pytestmark = pytest.mark.pure
warnings.filterwarnings("ignore")

DTYPES = ("float64", "float16", "bfloat16", "int64", "int32", "uint8", "bool")
_OF_VALUES = {"masked_scatter"}  # besides records that take indices: these are judged when kernels run

Edit = Callable[[TensorSpec], TensorSpec]


def _edited(value: Any, edits: Iterator[Edit | None]) -> Any:
    """The value with each TensorSpec as its edit makes it."""
    if isinstance(value, TensorSpec):
        edit = next(edits)
        return value if edit is None else edit(value)
    if isinstance(value, (tuple, list)):
        return type(value)(_edited(v, edits) for v in value)
    if isinstance(value, dict):
        return {k: _edited(v, edits) for k, v in value.items()}
    return value


def _function(op: Op) -> Any:
    return next((f for f in map(table.resolve, op.functions) if f is not None), None)


def _check(op: Op, sample: Sample, edits: list[Edit | None]) -> None:
    args, kwargs = _edited((tuple(sample.args), dict(sample.kwargs)), iter(edits))
    args, kwargs = arguments(args), arguments(kwargs)
    try:
        op.eager(*(tuple(v) if isinstance(v, list) else v for v in op.schema.bind(args, kwargs)))
    except Exception as error:  # noqa: BLE001  # whatever it is, the record may not take the call
        if str(error) == "ZeroDivisionError":
            return  # a value, which kernels see
        refusal = error
    else:
        return
    try:
        bound = table.bind(_function(op), args, kwargs)
        if bound is None or isinstance(bound.op.lowering, Extern) or seems_refused(bound.op, bound.args):
            return  # torch's own call
        bound.op.meta(*(meta_of(a) for a in bound.args))
    except Exception:  # noqa: BLE001  # torch is asked for the words: see tests/capture/test_errors_caught.py
        return
    tensors = [(a.dtype, tuple(a.shape)) for a in (*args, *kwargs.values()) if isinstance(a, torch.Tensor)]
    pytest.fail(f"{op.name} takes {tensors}, {sample}; torch: {type(refusal).__name__}: {refusal}")


def _of(op: Op, count: int) -> list[tuple[Sample, list[TensorSpec]]]:
    every = list(op.samples())
    chosen = every[:: max(1, len(every) // count)][:count]
    return [(s, list(specs_in((s.args, tuple(s.kwargs.values()))))) for s in chosen]


NAMED = [op for op in OPS.values() if _function(op) is not None]


@pytest.mark.parametrize("op", NAMED, ids=lambda op: op.name)
def test_dtypes(op: Op) -> None:
    for sample, specs in _of(op, 4):
        for dtype in DTYPES:
            edit: Edit = lambda spec, dtype=dtype: replace(spec, dtype=dtype)  # type: ignore[misc]
            _check(op, sample, [edit] * len(specs))
            for i in range(len(specs) if len(specs) > 1 else 0):
                _check(op, sample, [edit if j == i else None for j in range(len(specs))])


@pytest.mark.parametrize("op", [op for op in NAMED if op.name not in _OF_VALUES], ids=lambda op: op.name)
def test_sizes(op: Op) -> None:
    for sample, specs in _of(op, 3):
        if any(spec.fill.startswith("index") for spec in specs):
            continue
        for i, spec in enumerate(specs):
            for shape in _other_shapes(spec.shape):
                edit: Edit = lambda spec, shape=shape: TensorSpec(shape, spec.dtype, fill=spec.fill)  # type: ignore[misc]
                _check(op, sample, [edit if j == i else None for j in range(len(specs))])


def _other_shapes(shape: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    for d, n in enumerate(shape):
        for m in {n + 1, max(n - 1, 0), 1} - {n}:
            yield (*shape[:d], m, *shape[d + 1 :])
    yield from ((*shape, 2), (1, *shape))
    if shape:
        yield from (shape[1:], shape[:-1])
