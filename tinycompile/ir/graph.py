"""Graph IR: what was captured. A flat tuple of nodes in execution order; nodes name their inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Union

import torch

from tinycompile.base.device import Device
from tinycompile.base.expr import Dim
from tinycompile.base.meta import TensorMeta


@dataclass(frozen=True, slots=True)
class Ref:
    """The value of another node, by name."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Location:
    """Where the user wrote it."""

    file: str
    line: int
    function: str = ""


# Numbers, strings, dims, dtypes, devices, None, Refs, and tuples of these; slices and Ellipsis are rewritten before.
Arg = Union[Ref, Dim, float, bool, str, None, torch.dtype, Device, torch.memory_format, torch.layout, tuple["Arg", ...]]
Meta = Union[TensorMeta, Dim, float, bool, None, tuple["Meta", ...]]


@dataclass(frozen=True, slots=True)
class Node:
    """``kind``: ``placeholder`` (meta: TensorMeta, or None with ``target`` "size"/"float" for numeric inputs), ``call``
    (target: the
    name of an op record; args in schema order, all defaults filled), ``extern`` (target: dotted path of a torch function; its
    own
    args and kwargs), ``item`` (args: (Ref, index): one output of a node with several), ``output`` (args: one tuple of Refs)."""

    name: str
    kind: str
    target: str
    args: tuple[Any, ...] = ()
    kwargs: tuple[tuple[str, Any], ...] = ()
    meta: Any = None
    loc: Location | None = None


@dataclass(frozen=True, slots=True)
class Graph:
    """Placeholders first, one output last. ``hints`` gives each size symbol the value seen at capture. ``donated``: inputs that
    the caller gives up: nobody reads them after the call, and their memory may be written. ``recomputed``: values that are not
    to be kept for a backward (``checkpoint``)."""

    name: str
    nodes: tuple[Node, ...]
    hints: tuple[tuple[str, int], ...] = ()
    donated: tuple[str, ...] = ()
    recomputed: frozenset[str] = frozenset()

    @property
    def placeholders(self) -> tuple[Node, ...]:
        """The inputs, in order."""
        return tuple(n for n in self.nodes if n.kind == "placeholder")

    @property
    def output(self) -> Node:
        """The output node."""
        return self.nodes[-1]

    @property
    def device_types(self) -> frozenset[str]:
        """The types of the devices on which it has tensors."""
        metas = (m for n in self.nodes for m in (n.meta if isinstance(n.meta, tuple) else (n.meta,)))
        return frozenset(m.device.type for m in metas if isinstance(m, TensorMeta))
