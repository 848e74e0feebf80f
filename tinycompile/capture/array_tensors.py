"""Tensors made of numpy arrays.

An array from outside becomes an input of the graph: what it holds is not guarded. One that the function made is a constant."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from tinycompile.capture import signature
from tinycompile.capture.breaks import GraphBreak
from tinycompile.capture.guards import is_aligned
from tinycompile.capture.provenance import natively
from tinycompile.capture.sources import Asked, Computed
from tinycompile.capture.values.array import ArrayValue, owner
from tinycompile.capture.values.base import Value
from tinycompile.capture.values.tensor import TensorValue

if TYPE_CHECKING:
    from tinycompile.capture.tracer import Tracer


def in_memory(tr: Tracer, value: ArrayValue) -> Value:
    """``torch.from_numpy(array)``."""
    if value.source is None:
        return _of_a_new_one(tr, value)
    obj = value.layout
    if not obj.flags.writeable:
        raise GraphBreak("unsupported-value", f"torch warns of {value.describe()}, which is not writable")
    given = natively(torch.from_numpy, obj)
    source = Asked(tr.guards.hold(torch.from_numpy, "from_numpy"), value.source)
    tr.guards.alignment(source.text, source.label, is_aligned(given))
    return tr.add_tensor(source, given, signature.symbolic_meta(tr, given, ()), is_aligned(given))


def _of_a_new_one(tr: Tracer, value: ArrayValue) -> Value:
    """From here on the array's memory is the tensor's: what would write to it as an array breaks."""
    array = value.contents(tr)
    root = owner(array)
    if id(root) in tr.arrays.tensors or id(root) in tr.arrays.outside:
        raise GraphBreak("unsupported-value", f"a tensor in the memory of {value.describe()}, which something else shares")
    made = constant(tr, array)
    tr.arrays.tensors[id(root)] = made, array
    return made


def copied(tr: Tracer, value: ArrayValue) -> Value:
    """A tensor of what an array holds, with memory of its own."""
    if value.source is not None:
        return in_memory(tr, value).call_method(tr, "clone", [], {})
    return constant(tr, value.contents(tr))


def constant(tr: Tracer, array: np.ndarray) -> TensorValue:
    """A new tensor of known numbers. The rebuilt code keeps them, and the graph copies them."""
    return known(tr, natively(torch.from_numpy, array.copy(order="K")).clone())


def known(tr: Tracer, held: torch.Tensor) -> TensorValue:
    """A new tensor that holds what another holds, which nobody else has."""
    given = tr.add_computed(
        Computed(tr.guards.hold(held, "array").name), held, signature.symbolic_meta(tr, held, ()), frozenset()
    )
    made = given.call_method(tr, "clone", [], {})
    assert isinstance(made, TensorValue)
    return made
