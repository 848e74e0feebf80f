"""Numbers, strings and tensors from outside, and the guards of each."""

from __future__ import annotations

import enum
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tinycompile.base.device import Device
from tinycompile.base.expr import Expr
from tinycompile.capture import scalars, signature
from tinycompile.capture.breaks import GraphBreak
from tinycompile.capture.guards import is_aligned, shown_shortly
from tinycompile.capture.pins import guard_one_object, guard_type, is_replaced, pin
from tinycompile.capture.sources import Attr, Held, HeldItem, Item, Local, Source
from tinycompile.capture.told_apart import has_metadata
from tinycompile.capture.values.array import ArrayValue
from tinycompile.capture.values.base import Value
from tinycompile.capture.values.constant import LITERALS, Const
from tinycompile.capture.values.symbolic import SymInt
from tinycompile.eager.tensor import Tensor as OurTensor

if TYPE_CHECKING:
    from tinycompile.capture.tracer import Tracer


def constant(tr: Tracer, obj: Any, source: Source) -> Value:
    if tr.resumed and not isinstance(source, (Held, HeldItem)) and tr.options.unstable(source.text, obj):
        tr.constants_seen[source.text] = obj
        raise GraphBreak("data-dependent", f"{source.label} is a value that differs from call to call")
    if isinstance(obj, np.dtype) and has_metadata(obj):
        raise GraphBreak("unsupported-value", f"{source.label} is a numpy dtype with metadata")
    plain = isinstance(source, (Local, Item, Attr)) or (isinstance(source, HeldItem) and not source.pinned)
    if type(obj) is int and plain and tr.is_dynamic_int(source.text, obj):
        return symbolic_int(tr, obj, source)
    is_size = type(obj) is int and obj in scalars.SIZES  # a float is searched for in a range one by one
    if type(obj) in (int, float) and plain and not is_size and tr.is_dynamic_number(source.text, obj):
        return scalars.from_outside(tr, obj, source)
    if isinstance(source, Held):
        return Const(obj, source)
    if isinstance(source, HeldItem) and source.pinned:  # a parameter that is None
        tr.guards.item(source, obj, equal=False)
        return Const(obj, source)
    if isinstance(obj, (enum.Enum, torch.dtype, re.Pattern)):
        pin(tr, obj, source, "constant")
    elif isinstance(source, HeldItem) and type(obj) in LITERALS:
        # -0.0 == 0.0, and NaN differs from itself: go by identity
        has_twin = isinstance(obj, complex) or (isinstance(obj, float) and (obj == 0 or obj != obj))
        if has_twin and is_replaced(tr, obj, source):  # by another in each call, maybe
            tr.guards.check(tr.guards.equals(source.text, obj), f"{source.label} == {shown_shortly(obj)}")
        else:
            tr.guards.item(source, obj, equal=not has_twin)
    else:
        tr.guards.check(tr.guards.equals(source.text, obj), f"{source.label} == {shown_shortly(obj)}")
    tr.constants_seen[source.text] = obj
    return Const(obj, source)


def symbolic_int(tr: Tracer, obj: int, source: Source) -> Value:
    dim = tr.new_size(obj)
    tr.guards.check(
        f"_type({source.text}) is {tr.guards.hold(int, 'int_').name} and 2 <= ({dim} := {source.text}) < {scalars.SIZES.stop}",
        f"{source.label} is a size, {dim}",
    )
    tr.add_number(source, str(dim), obj)
    tr.constants_seen[source.text] = obj
    return SymInt(dim, source)  # type: ignore[arg-type]


def our_device(tr: Tracer, obj: Device, source: Source) -> Value:
    guard_type(tr, obj, source, f"{{}} == {tr.guards.hold(obj, 'device_').name}", str(obj))
    return Const(obj.torch())


def tensor(tr: Tracer, obj: Any, source: Source) -> Value:
    if isinstance(obj, OurTensor):
        if type(obj) is not OurTensor:
            raise GraphBreak("tensor-kind", f"{source.label} is a {type(obj).__qualname__}")
        if not obj.lacks_handle:
            signature.check_plain(obj.torch(), source.label)
        signature.guard_ours(tr, obj, source)
        meta = signature.symbolic_meta(tr, obj.torch(), ())
        return tr.add_tensor(source, obj, meta, is_aligned(obj.torch()))
    signature.check_plain(obj, source.label)
    known = tr.find(obj) if obj.requires_grad and obj.is_leaf else None
    if known is not None:  # its gradient and what an optimizer makes of it are seen by every name
        guard_one_object(tr, known, source)
        return known
    if isinstance(source, Held) or (isinstance(source, HeldItem) and source.pinned):
        return _pinned_tensor(tr, obj, source)
    dynamic = tr.dynamic_dims(source.text, obj)
    meta = signature.symbolic_meta(tr, obj, dynamic, source, tr.dynamic_strides(source.text, obj))
    if any(isinstance(d, Expr) for d in (*meta.shape, *meta.strides)):
        signature.guard_symbolic(tr, obj, meta, source)
    else:
        signature.guard_static(tr, obj, source)
    return tr.add_tensor(source, obj, meta, is_aligned(obj))


def _pinned_tensor(tr: Tracer, obj: torch.Tensor, source: Source) -> Value:
    """A module's tensor: identity and signature are guarded in bulk, and the rebuilt code holds the object itself."""
    held = pin(tr, obj, source)
    found = tr.pinned.get(id(obj))
    if found is None:
        tr.guards.held_tensor(held)
        meta = signature.symbolic_meta(tr, obj, ())
        found = tr.pinned[id(obj)] = tr.add_tensor(held, obj, meta, is_aligned(obj))
    return found


def array(tr: Tracer, obj: np.ndarray, source: Source) -> Value:
    """A numpy array: its layout is guarded. What it holds may change, if nobody looks."""
    if has_metadata(obj.dtype):
        raise GraphBreak("unsupported-value", f"the dtype of {source.label} has metadata")
    if obj.dtype.hasobject:
        raise GraphBreak("unsupported-value", f"{source.label} is a numpy array of objects")
    dtype = tr.guards.equals("{0}.dtype", obj.dtype)
    layout = f"{dtype} and {{0}}.shape == {obj.shape} and {{0}}.strides == {obj.strides}"
    writable = f"{{0}}.flags.writeable is {obj.flags.writeable}"
    return ArrayValue(None, guard_type(tr, obj, source, f"{layout} and {writable}", f"{obj.dtype}{list(obj.shape)}"), obj)
