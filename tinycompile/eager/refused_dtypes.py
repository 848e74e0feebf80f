"""Dtypes for which torch has no kernel of an op. Shape rules know of some; torch knows of all.

The samples of a record are of the dtypes for which torch was seen to have a kernel. Calls with other dtypes are tried on a
sample's small tensors, once a process and device type."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from tinycompile.dispatch import dispatcher
from tinycompile.eager.autocast import outside
from tinycompile.eager.no_trace import leaving_no_trace
from tinycompile.eager.storage import ALLOCATORS
from tinycompile.ops.record import Extern, Op, Sample, TensorSpec

Kinds = tuple[tuple[torch.dtype, bool], ...]  # of each tensor of a call: its dtype, and whether it is 0-d

_TORCHS = ("cpu", "cuda")
_REFUSED: dict[tuple[str, str, Kinds], bool] = {}


def seems_refused(op: Op, args: Sequence[Any]) -> bool:
    """Whether torch refuses tensors of these dtypes in a sample's place. Other arguments may matter, too: ask for the call."""
    tensors = list(dispatcher.tensors_in(tuple(args)))
    if isinstance(op.lowering, Extern) or all(t.dtype == torch.float32 for t in tensors):
        return False  # (torch's own kernel says so itself)
    device, kinds = tensors[0].device.type, tuple((t.dtype, not len(t.shape)) for t in tensors)
    if device in ALLOCATORS:
        device = "cpu"  # what the program gave no kernel for is refused as there
    if device not in _TORCHS:
        return False
    found = _REFUSED.get((op.name, device, kinds))
    if found is None:
        found = _REFUSED[op.name, device, kinds] = _is_refused(op, device, kinds)
    return found


def _is_refused(op: Op, device: str, kinds: Kinds) -> bool:
    alike = [s for s in op.samples() if _shaped_as(_specs(s), kinds)]
    dtypes = [dtype for dtype, _ in kinds]
    known = device == "cpu" or all(dtype.is_floating_point for dtype in dtypes)  # GPUs' kernels lack other integers than CPUs'
    if known and any(_dtypes(s) == dtypes for s in alike):
        return False
    for sample in sorted(alike, key=lambda s: (_count_of_other_kinds(s, dtypes), _count_of_others(s)))[:3]:
        if _runs(op, sample, device, None):
            return not _runs(op, sample, device, kinds)
    return False


def _specs(value: Any) -> Iterator[TensorSpec]:
    if isinstance(value, TensorSpec):
        yield value
    elif isinstance(value, Sample):
        yield from _specs((*value.args, *value.kwargs.values()))
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _specs(item)


def _dtypes(sample: Sample) -> list[torch.dtype]:
    return [getattr(torch, spec.dtype) for spec in _specs(sample)]


def _shaped_as(specs: Iterable[TensorSpec], kinds: Kinds) -> bool:
    return [not spec.shape for spec in specs] == [is_0d for _, is_0d in kinds]


def _count_of_other_kinds(sample: Sample, dtypes: Sequence[torch.dtype]) -> int:
    """In whose place a number is where an index was, or the other way round: what the call means may depend on that."""
    return sum(a.is_floating_point != b.is_floating_point for a, b in zip(_dtypes(sample), dtypes, strict=True))


def _count_of_others(sample: Sample) -> int:
    return len(sample.args) + len(sample.kwargs) - len(list(_specs(sample)))


def _runs(op: Op, sample: Sample, device: str, kinds: Kinds | None) -> bool:
    dtypes = iter(_dtypes(sample) if kinds is None else [dtype for dtype, _ in kinds])
    made = _with_tensors((sample.args, dict(sample.kwargs)), lambda spec: _tensor(spec, next(dtypes), device))
    try:
        with torch.no_grad(), leaving_no_trace(), outside():
            op.eager(*op.schema.bind(*made))
    except Exception:  # noqa: BLE001  # whatever it is, torch raises it again for the call
        return False
    return True


def _with_tensors(value: Any, make: Callable[[TensorSpec], torch.Tensor]) -> Any:
    if isinstance(value, TensorSpec):
        return make(value)
    if isinstance(value, (tuple, list)):
        return type(value)(_with_tensors(v, make) for v in value)
    if isinstance(value, dict):
        return {k: _with_tensors(v, make) for k, v in value.items()}
    return value


def _tensor(spec: TensorSpec, dtype: torch.dtype, device: str) -> torch.Tensor:
    fill = torch.zeros if spec.fill.startswith("index") else torch.ones
    return fill(spec.shape, dtype=dtype, device=device)
