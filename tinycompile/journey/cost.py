"""Bytes and operations of one call, from its operands' metadata."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tinycompile.base.device import Device
from tinycompile.base.torch_private import storage_id
from tinycompile.dispatch.dispatcher import results_in, tensors_in
from tinycompile.eager.no_trace import leaving_no_trace
from tinycompile.eager.tensor import Tensor, unwrap
from tinycompile.ops.record import OPS, Pointwise, Reduction, Scan, View

_SHORT = {
    torch.float32: "f32", torch.float64: "f64", torch.float16: "f16", torch.bfloat16: "bf16", torch.int64: "i64",
    torch.int32: "i32", torch.int16: "i16", torch.int8: "i8", torch.uint8: "u8", torch.bool: "bool",
}  # fmt: skip


def told(values: Any) -> str:
    """Tensors as ``f32[64, 128]``, separated by commas."""
    return ", ".join(f"{_SHORT.get(t.dtype, str(t.dtype))}[{', '.join(map(str, t.shape))}]" for t in results_in(values))


def span(tensor: Any) -> int:
    """Bytes of the elements that it reaches, each once: an expanded dim costs nothing, nor does what has no data. Of one that
    is not strided, bytes of its indices and values."""
    if tensor.device.type == "meta":
        return 0
    if tensor.layout is not torch.strided:
        raw = tensor if isinstance(tensor, torch.Tensor) else tensor.raw()
        return sum(part.numel() * part.itemsize for part in (getattr(raw, name)() for name in _PARTS[tensor.layout]))
    count = math.prod(n for n, s in zip(tensor.shape, tensor.stride(), strict=True) if s != 0)
    return count * tensor.dtype.itemsize


_BY_ROW, _BY_COLUMN = ("crow_indices", "col_indices", "values"), ("ccol_indices", "row_indices", "values")
_PARTS = {
    torch.sparse_coo: ("_indices", "_values"), torch.sparse_csr: _BY_ROW, torch.sparse_bsr: _BY_ROW,
    torch.sparse_csc: _BY_COLUMN, torch.sparse_bsc: _BY_COLUMN,
}  # fmt: skip
# What takes places out of its first operand: it reads as much of that as it writes.
_PICK = frozenset(("index", "index_select", "embedding", "gather", "take_along_dim", "take"))
# What writes without a look at what was there.
_OVERWRITE = frozenset(
    (
        "fill_",
        "zero_",
        "copy_",
        "normal_",
        "uniform_",
        "random_",
        "bernoulli_",
        "exponential_",
        "geometric_",
        "log_normal_",
        "cauchy_",
    )
)


def moved(name: str, args: Any, result: Any, written: Sequence[Any] = ()) -> int:
    """Bytes: operands read once and results written once, nothing for what is a view, or only allocated. ``written``: the
    operands that are written to."""
    if written:
        return _written(name, tensors_in(args), args, written)
    if name.startswith(("empty", "new_empty")) or name == "numpy":  # memory alone
        return 0
    reads_none = name.endswith("_like") or name.startswith("new_")  # but metadata
    operands = [] if reads_none else _unique(tensors_in(args))
    results = results_in(result)
    memory = {_memory(t) for t in tensors_in(args)}
    made = [r for r in _unique(results) if (where := _memory(r)) is None or where not in memory]
    if results and not made:
        return 0
    if name in _PICK and operands:
        return 2 * sum(map(span, made)) + sum(map(span, operands[1:]))
    return sum(map(span, operands)) + sum(map(span, made))


def _written(name: str, given: Sequence[Any], args: Sequence[Any], written: Sequence[Any]) -> int:
    """Of a write in place, or to ``out=``."""
    targets = {id(t) for t in written}
    if name == "index_put_":
        return _part(args[0], args[1]) + sum(map(span, _unique([t for t in given if id(t) not in targets])))
    op = OPS.get(name.removesuffix("_"))
    if op is not None and isinstance(op.lowering, View) and name.endswith("_") and any(r.alias for r in op.schema.returns):
        return 0
    in_place = name.endswith("_") and name not in _OVERWRITE
    times = Counter(map(id, given))  # an out= may be an operand too
    read = [t for t in _unique(given) if in_place or id(t) not in targets or times[id(t)] > 1]
    return sum(map(span, read)) + sum(map(span, written))


def _part(target: Any, index: Any) -> int:
    """Bytes of ``target[index]``: torch is asked, with one byte for all elements."""
    there = isinstance(target, Tensor) and target.lacks_handle
    index = Tensor.elsewhere.hosted(index) if there else unwrap(index)
    byte = torch.empty((), dtype=torch.uint8, device="cpu" if there else Device.of(target.device).torch())
    if target.device.type == "meta":
        return 0
    with leaving_no_trace():
        return byte.expand(tuple(target.shape))[index].numel() * int(target.dtype.itemsize)


def _unique(tensors: Sequence[Any]) -> list[Any]:
    return list({id(t): t for t in tensors}.values())


def _memory(tensor: Any) -> Any:
    """What names the memory of a tensor; None where it has none that others could share."""
    if tensor.layout is not torch.strided:
        return None
    return storage_id(tensor.untyped_storage()) if isinstance(tensor, torch.Tensor) else tensor.storage.key


def _product(args: Sequence[Any], result: Any) -> int:
    a = args[0]
    return 2 * int(result.numel()) * int(a.shape[-1])


def _addmm(args: Sequence[Any], result: Any) -> int:
    return 2 * int(result.numel()) * int(args[1].shape[-1]) + int(result.numel())


def _attention(args: Sequence[Any], result: Any) -> int:
    q, k = args[0], args[1]
    return 4 * math.prod(q.shape) * int(k.shape[-2])


def _convolution(args: Sequence[Any], result: Any) -> int:
    return 2 * int(result.numel()) * math.prod(args[1].shape[1:])


# Operations of library ops: a multiplication and an addition for each term of a sum.
_FLOPS: dict[str, Callable[[Sequence[Any], Any], int]] = {
    "mm": _product,
    "bmm": _product,
    "matmul": _product,
    "mv": _product,
    "dot": lambda args, result: 2 * int(args[0].numel()),
    "linear": _product,
    "addmm": _addmm,
    "baddbmm": _addmm,
    "scaled_dot_product_attention": _attention,
    "convolution": _convolution,
    "conv1d": _convolution,
    "conv2d": _convolution,
    "conv3d": _convolution,
}


def flops(name: str, args: Sequence[Any], result: Any) -> int | None:
    """Operations of a call: of matrix products by their sizes, one an element for pointwise ops and reductions, else None."""
    found = _FLOPS.get(name)
    if found is not None:
        return found(args, result)
    op = OPS.get(name)
    if op is None:
        return None
    if isinstance(op.lowering, View):
        return 0
    if isinstance(op.lowering, (Pointwise, Reduction, Scan)):
        of = results_in(result) if isinstance(op.lowering, Pointwise) else tensors_in((args,))
        return max((int(t.numel()) for t in of), default=0)
    return None
