"""Tensors of ours that a compiled function makes: ``tinycompile.ones(3)`` is recorded as torch's factory, and what leaves the
graph is a ``tinycompile.Tensor``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tinycompile.base.device import Device
from tinycompile.capture.breaks import GraphBreak
from tinycompile.capture.rules.registry import Args, rule
from tinycompile.capture.values.base import Kwargs, Value
from tinycompile.capture.values.constant import NONE, Const
from tinycompile.capture.values.mapping import DictValue
from tinycompile.capture.values.tensor import TensorValue
from tinycompile.eager import factories
from tinycompile.eager.tensor import Tensor as OurTensor

if TYPE_CHECKING:
    from tinycompile.capture.tracer import Tracer


@rule(factories.make)
def _make(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    """What every factory ends in: torch's function, its arguments, and the options by name."""
    fn, given, options = args
    if not isinstance(options, DictValue):
        raise GraphBreak("unsupported-argument", "options of a factory that are no dict of its own")
    return _ours(tr, fn, list(given.iterate(tr)), {str(key.constant(tr)): value for key, value in options.pairs(tr)})


@rule(factories.tensor)
def _tensor(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    return _ours(tr, tr.from_python(torch.tensor), args, kwargs)


def _ours(tr: Tracer, fn: Value, args: Args, named: Kwargs) -> Value:
    wants_grad = named.get("requires_grad", NONE)
    if not wants_grad.is_constant or wants_grad.constant(tr):
        raise GraphBreak("unsupported-argument", "requires_grad=True of a tensor that is made inside")
    options = {name: _option(tr, value) for name, value in named.items() if name not in _OURS}
    made = fn.call(tr, args, options)
    if not isinstance(made, TensorValue) or made.obj is not None:
        raise GraphBreak("unsupported-op", f"{made.describe()} of a factory")
    made.cls = OurTensor
    return made


_OURS = frozenset(("requires_grad", *(() if torch.cuda.is_available() else ("pin_memory",))))  # as in ``factories``


def _option(tr: Tracer, value: Value) -> Value:
    """torch's device for ours."""
    found = value.constant(tr) if value.is_constant else None
    return Const(found.torch()) if isinstance(found, Device) else value
