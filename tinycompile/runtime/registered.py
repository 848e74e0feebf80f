"""Compiled code for registered devices: the same wrapper as everywhere, over launchers that the device's ``codegen`` made."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from tinycompile.base.device import Device
from tinycompile.base.meta import TensorMeta
from tinycompile.dispatch import dispatcher
from tinycompile.eager.custom_device import as_strided
from tinycompile.eager.device_memory import allocate
from tinycompile.eager.tensor import Tensor
from tinycompile.ir.graph import Graph, Node
from tinycompile.ir.interpreter import Interpreter, torch_function
from tinycompile.ir.source import Source
from tinycompile.ops.calls import ops
from tinycompile.ops.record import OPS
from tinycompile.runtime.linked import Linked

Call = Callable[..., tuple[Any, ...]]


def link_registered(source: Source, device: Device, launchers: Mapping[str, Callable[..., None]]) -> Call:
    """The wrapper's function over tensors of ours. ``launchers``: by kernel name, called with the kernel's buffers and the
    plan's sizes."""
    namespace: dict[str, Any] = {
        "torch": torch,
        "empty": functools.partial(_empty, device),
        "stream": _no_stream,
        "as_strided": as_strided,
        "restride": _restride,
        **{name: functools.partial(_launch, launcher) for name, launcher in launchers.items()},
        **{name: _extern(kind, target) for name, kind, target in source.externs},
    }
    return Linked(source, namespace).link()


class ByOps(Interpreter):
    """The graph op by op, through the dispatcher: the device's kernels run, and our tape follows."""

    def call(self, node: Node, args: tuple[Any, ...]) -> Any:
        """By the op's name."""
        return dispatcher.call_bound(node.target, args)


def run_by_ops(graph: Graph, *inputs: Any) -> tuple[Any, ...]:
    """The outputs for these tensors and numbers."""
    return ByOps(graph).run(*inputs)


def _empty(device: Device, shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> Tensor:
    return allocate(TensorMeta(tuple(shape), tuple(strides), dtype, device, 0))


def _no_stream() -> int:
    return 0


def _launch(launcher: Callable[..., None], stream: int, *args: Any) -> None:
    launcher(*args)


def _restride(tensor: Tensor, size: Sequence[int], strides: Sequence[int]) -> Any:
    return ops.restride(tensor, tuple(strides))


def _extern(kind: str, target: str) -> Callable[..., Any]:
    if kind == "call":
        return functools.partial(_called, target)
    return torch_function(target)


def _called(target: str, *args: Any) -> Any:
    """``args`` are in schema order, those that are given by keyword too."""
    schema = OPS[target].schema
    named = zip(schema.args[schema.positional :], args[schema.positional :], strict=False)
    return dispatcher.call(target, *args[: schema.positional], **{argument.name: value for argument, value in named})
