"""Records' lowerings give the dtype and shape that torch gives, also for dtypes and mixtures that no sample has."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import tinycompile.eager.backends  # noqa: F401  fills the dispatcher, through which decompositions run
from tests.ops.materialize import arguments, specs_in
from tinycompile.api import CompiledFunction
from tinycompile.eager.refused_dtypes import seems_refused
from tinycompile.ops.evaluate import evaluate, meta_of
from tinycompile.ops.record import OPS, Extern, Op, TensorSpec
from tinycompile.options import Options

pytestmark = pytest.mark.pure
warnings.filterwarnings("ignore")

DTYPES = ("float64", "float16", "bfloat16", "int32", "uint8", "bool")
_LOSSES = ("_loss", "_div", "_logits")
_FLOATS_ONLY = {"pow"}  # integers stay torch's: the binder leaves them to it


def _cast(value: Any, dtypes: Iterator[str]) -> Any:
    if isinstance(value, TensorSpec):
        return replace(value, dtype=next(dtypes))
    if isinstance(value, (tuple, list)):
        return type(value)(_cast(v, dtypes) for v in value)
    if isinstance(value, dict):
        return {k: _cast(v, dtypes) for k, v in value.items()}
    return value


def _mixtures(own: list[str]) -> Iterator[list[str]]:
    for dtype in DTYPES:
        yield [dtype] * len(own)
        for i in range(len(own) if len(own) > 1 else 0):
            yield [*own[:i], dtype, *own[i + 1 :]]


def _kinds(result: Any) -> list[tuple[torch.dtype, tuple[int, ...]]]:
    return [(t.dtype, tuple(t.shape)) for t in (result if isinstance(result, (tuple, list)) else [result])]


PUBLIC = [
    op
    for op in OPS.values()
    if (op.functions or op.name.endswith(_LOSSES)) and not isinstance(op.lowering, Extern) and op.name not in _FLOATS_ONLY
]


@pytest.mark.parametrize("op", PUBLIC, ids=lambda op: op.name)
def test_dtype_and_shape(op: Op) -> None:
    for sample in list(op.samples())[:2]:
        own = [spec.dtype for spec in specs_in((sample.args, tuple(sample.kwargs.values())))]
        for dtypes in _mixtures(own):
            args, kwargs = _cast((tuple(sample.args), dict(sample.kwargs)), iter(dtypes))
            bound = [tuple(v) if isinstance(v, list) else v for v in op.schema.bind(arguments(args), arguments(kwargs))]
            try:
                expected = op.eager(*bound)
                declared = op.meta(*(meta_of(a) for a in bound))
            except Exception:  # noqa: BLE001  # refused: see test_wrong_calls
                continue
            if seems_refused(op, bound):
                continue
            assert _kinds(declared) == _kinds(expected), (sample, dtypes)
            found = evaluate(op, bound)
            assert found is NotImplemented or _kinds(found) == _kinds(expected), (sample, dtypes)


def test_losses_of_odd_pairs() -> None:
    """Mixed dtypes, and shapes that broadcast to more dims than the input has."""
    x, labels = torch.linspace(-2, 2, 12).view(4, 3), torch.arange(12, dtype=torch.uint8).view(4, 3) % 3
    for loss, given in (
        (F.soft_margin_loss, (x, labels)),
        (F.huber_loss, (x, x.double() / 2)),
        (F.binary_cross_entropy_with_logits, (x, (labels / 3).half())),
        (lambda a, b: F.l1_loss(a, b, reduction="sum"), (labels.int(), labels.int() + 1)),
        (F.multilabel_soft_margin_loss, (x[0], x)),
        (lambda a, b: F.kl_div(a, b, reduction="batchmean"), (torch.tensor(0.5), x.softmax(-1))),
    ):
        expected, got = loss(*given), CompiledFunction(loss, Options(backend="aot_eager"))(*given)  # type: ignore[operator]
        assert got.dtype == expected.dtype
        torch.testing.assert_close(got, expected)


def test_numbers_in_tensors_as_indices() -> None:
    """What they select is gone before it is asked whether other indices are adjacent."""

    def program(x: torch.Tensor, i: torch.Tensor, j: torch.Tensor) -> Any:
        written = x.clone()
        written[i, :, j] = 1.0
        written[:, i, :, j] += 2.0
        return x[i, :, j], x[j, :, i], x[:, i, :, j], x[i, :, i], x[i, j, :, j], written

    given = torch.arange(360.0).view(4, 5, 6, 3), torch.tensor(1), torch.tensor([0, 2])
    compiled = CompiledFunction(program, Options(backend="cpp"))
    for got, expected in zip(compiled(*given), program(*given), strict=True):
        assert torch.equal(got, expected)
