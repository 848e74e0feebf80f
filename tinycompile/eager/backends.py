"""What each backend key runs: fills the dispatcher for every op record.

CPU and CUDA: views by stride arithmetic, everything else by the record's eager function on torch handles. META: the record's
shape rule alone. Any other backend: kernels that users register, or the record's decomposition.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

import tinycompile.ops  # noqa: F401  fills OPS and defines every op
from tinycompile.base.holdings import tell_holdings
from tinycompile.base.meta import TensorMeta, meta_of_torch
from tinycompile.dispatch import dispatcher
from tinycompile.dispatch.keys import Key, KeySet
from tinycompile.eager import shortcut
from tinycompile.eager.sparse import SparseTensor
from tinycompile.eager.tape import note_view
from tinycompile.eager.tensor import Tensor, from_meta, unwrap, view_of, wrap
from tinycompile.ops.randomness import DRAWS
from tinycompile.ops.record import OPS, Decompose, Op, View

# Ops whose result is a view when strides or dtypes allow it, else a copy: torch decides.
MAY_COPY = frozenset({"reshape", "flatten", "contiguous", "to", "view_as"})
SEVERAL_VIEWS = frozenset({"split", "split_with_sizes", "chunk", "unbind"})
# Ops that need the data of a meta tensor when they name another device; factories don't.
_COPIES_DATA = frozenset({"to", "to_device", "copy_"})
# Ops that torch lets have tensors on several devices: copies, and indices on the CPU.
_DEVICES_MAY_DIFFER = frozenset({"copy_", "copy", "to_device", "index", "index_put"})


def is_same(op: Op) -> bool:
    """Whether the result is the argument itself, the same object (``contiguous`` on a contiguous tensor binds to it)."""
    return op.name == "identity"


def is_view(op: Op) -> bool:
    """Whether the results always alias the first argument."""
    aliases = {r.alias for r in op.schema.returns}
    return isinstance(op.lowering, View) and aliases == {"a"} and op.name not in MAY_COPY


def meta_of(value: Any) -> Any:
    """TensorMeta for tensors of ours or torch's, also in lists; anything else as it is."""
    if isinstance(value, Tensor):
        return value.meta
    if isinstance(value, torch.Tensor):
        return meta_of_torch(value)
    kind = type(value)
    return kind(meta_of(v) for v in value) if kind is tuple or kind is list else value


def named_results(op: Op, items: Sequence[Any]) -> Any:
    """Several results as torch returns them: ``torch.return_types.max(values=..., indices=...)``, or a tuple."""
    kind = getattr(torch.return_types, op.name.removesuffix("_dim"), None)
    named = all(r.name for r in op.schema.returns) and len(op.schema.returns) == len(items) > 1
    return kind(items) if kind is not None and named else tuple(items)


def make_view(op: Op, of: Tensor, meta: Any, rest: tuple[Any, ...]) -> Tensor:
    """A view, which knows its base: but for detach, whose point is to know nothing."""
    view = view_of(of, meta)
    if op.name != "detach":
        note_view(view, of, op.name, rest)
    return view


def run_torch(op_name: str, keyset: KeySet, args: tuple[Any, ...]) -> Any:
    """CPU and CUDA. Called with torch tensors alone it returns torch tensors."""
    op = OPS[op_name]
    if op_name in _ALIASES and isinstance(args[0], Tensor) and not isinstance(args[0], SparseTensor):
        if is_same(op):
            return args[0]
        if not args[0].on_torchs_tape:  # (what torch follows, it follows through views that it makes, now)
            return make_view(op, args[0], op.meta(args[0].meta, *args[1:]), args[1:])
    if op_name in _PLACED and args and getattr(args[0], "lacks_handle", False):
        args = (_outline(args[0]), *args[1:])
    try:
        result = op.eager(*[a.raw() if type(a) is Tensor else unwrap(a) for a in args])
    except RuntimeError as error:
        tell_holdings(error)
        raise
    first = args[0] if args else None
    if type(first) is Tensor and type(result) is torch.Tensor and op_name not in _PLACED:
        if result is first._handle:
            return first
        if not any(type(a) is Tensor and a._handle is result for a in args[1:]):
            return first._sibling(result)
    inputs = dispatcher.tensors_in(args)
    if inputs and not any(isinstance(t, Tensor) for t in inputs):
        return result
    wrapped = wrap(result, inputs)
    if op_name in SEVERAL_VIEWS and isinstance(args[0], Tensor) and not isinstance(args[0], SparseTensor):
        for piece in wrapped:
            note_view(piece, args[0], op_name, args[1:], several=True)
    return named_results(op, wrapped) if type(wrapped) is tuple else wrapped


def _outline(like: Tensor) -> Tensor:
    """A tensor without data as one on a registered device, for a result of its shape elsewhere."""
    return from_meta(like.meta)


def run_meta(op_name: str, keyset: KeySet, args: tuple[Any, ...]) -> Any:
    """The meta device. A factory that names another device (``zeros_like(x, device="cpu")``) makes real data there."""
    op = OPS[op_name]
    if is_same(op):
        return args[0]
    metas = op.meta(*(meta_of(a) for a in args))
    if op_name in _ALIASES and isinstance(args[0], Tensor):
        return run_torch(op_name, keyset, args) if args[0].on_torchs_tape else make_view(op, args[0], metas, args[1:])
    if isinstance(metas, TensorMeta):
        if metas.device.type == "meta":
            return from_meta(metas)
        if op_name in _COPIES_DATA:
            raise NotImplementedError("Cannot copy out of meta tensor; no data!")
        return run_torch(op_name, keyset, args)
    return named_results(op, [from_meta(m) for m in metas])


def _decomposition(op: Op, lowering: Decompose) -> Any:
    def run(*args: Any) -> Any:
        result = lowering.fn(*args)
        if result is NotImplemented:
            raise NotImplementedError(f"Could not run '{op.name}': its decomposition does not cover these arguments")
        return result

    run.__qualname__ = f"decompose {op.name}"
    return run


def fill() -> None:
    """Set the backends' fallbacks, and the composites of records that decompose."""
    dispatcher.fallback(Key.CPU, run_torch, leaf=True)
    dispatcher.fallback(Key.CUDA, run_torch, leaf=True)
    dispatcher.fallback(Key.META, run_meta)
    for name in _DEVICES_MAY_DIFFER & OPS.keys():
        dispatcher.let_devices_differ(name)
    for name in (SEVERAL_VIEWS | _DEVICES_MAY_DIFFER | DRAWS | {"identity"}) & OPS.keys():
        dispatcher.never_leaf(name)
    shortcut.VIEWS.update(op.name for op in OPS.values() if is_view(op))
    for op in OPS.values():
        if isinstance(op.lowering, Decompose):
            dispatcher.composite(op.name, _decomposition(op, op.lowering))


_PLACED = _COPIES_DATA | {op.name for op in OPS.values() if op.schema.device_arg is not None}  # maybe elsewhere
_ALIASES = frozenset(op.name for op in OPS.values() if is_view(op) or is_same(op))
fill()
