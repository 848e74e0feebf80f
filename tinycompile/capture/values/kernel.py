"""The program's own Triton kernels: ``kernel[grid](...)`` is one node of the graph, and what it writes is followed."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from tinycompile.capture.breaks import GraphBreak
from tinycompile.capture.kernel_writes import layers, source_of, written_parameters
from tinycompile.capture.sources import Source
from tinycompile.capture.trust import module_of
from tinycompile.capture.values.base import Kwargs, Value
from tinycompile.capture.values.constant import Const
from tinycompile.capture.values.mapping import DictValue
from tinycompile.capture.values.object import ObjectValue
from tinycompile.capture.values.sequence import SequenceValue
from tinycompile.capture.values.symbolic import SymInt
from tinycompile.capture.values.tensor import TensorValue
from tinycompile.capture.writes import write
from tinycompile.dispatch import dispatcher
from tinycompile.eager.fake import FakeTensor
from tinycompile.eager.kernel_launch import Fresh, GridByConfig, Launch, Slot, op_of

if TYPE_CHECKING:
    from tinycompile.capture.tracer import Tracer

_UNDEFINED = frozenset({"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided"})


class KernelValue(Value):
    """A function of Triton's."""

    __slots__ = ("obj",)

    def __init__(self, obj: Any, source: Source | None = None) -> None:
        super().__init__(source)
        self.obj = obj

    def describe(self) -> str:
        return f"the Triton kernel {name_of(self.obj)}"

    def python_type(self, tr: Tracer) -> type:
        return type(self.obj)

    def truth(self, tr: Tracer) -> bool:
        return True

    def get_item(self, tr: Tracer, key: Value) -> Value:
        return OnGrid(self.obj, key)


class OnGrid(Value):
    """``kernel[grid]``."""

    __slots__ = ("grid", "kernel")

    def __init__(self, kernel: Any, grid: Value) -> None:
        super().__init__()
        self.kernel, self.grid = kernel, grid

    def describe(self) -> str:
        return f"the Triton kernel {name_of(self.kernel)} on a grid"

    def truth(self, tr: Tracer) -> bool:
        return True

    def call(self, tr: Tracer, args: Sequence[Value], kwargs: Kwargs) -> Value:
        _launch(tr, self.kernel, self.grid, args, kwargs)
        return Launched()


class Launched(Value):
    """What a launch returns: a handle of the compiled kernel, which nearly nobody looks at."""

    __slots__ = ()

    def describe(self) -> str:
        return "what the launch of a Triton kernel returns"


def name_of(kernel: Any) -> str:
    """The name of its Python function."""
    *_, fn = layers(kernel)
    return str(fn.__name__)


def _launch(tr: Tracer, kernel: Any, grid: Value, args: Sequence[Value], kwargs: Kwargs) -> None:
    names = list(kernel.arg_names)
    named = {**dict(zip(names, args, strict=False)), **kwargs}
    tensors: list[TensorValue] = []
    slots = {k: _slot(tr, v, tensors) for k, v in named.items()}
    found = written_parameters(kernel)
    written = sorted({s.at for k, s in slots.items() if isinstance(s, Slot) and (found is None or k in found)})
    _check(tr, kernel, tensors, written)
    fresh = [at for at in written if _is_fresh(tr, tensors[at])]
    fresh = fresh if len(fresh) < len(tensors) else fresh[1:]  # an op takes a tensor
    order = [at for at in range(len(tensors)) if at not in fresh] + fresh  # tensors that are made come last
    slots = {k: Slot(order.index(s.at)) if isinstance(s, Slot) else s for k, s in slots.items()}
    kept = len(tensors) - len(fresh)
    targets = [at for at in written if at not in fresh] + fresh
    launch = Launch(
        kernel,
        name_of(kernel),
        _grid(tr, kernel, grid, named),
        tuple(slots[k] for k, _ in zip(names, args, strict=False)),
        tuple((k, slots[k]) for k in kwargs),
        tuple(Fresh(tensors[at].meta) if at in fresh else Slot(order.index(at)) for at in targets),
        kept,
        source_of(kernel),
    )
    _record(tr, launch, [tensors[at] for at in order], [tensors[at] for at in targets])


def _slot(tr: Tracer, value: Value, tensors: list[TensorValue]) -> Any:
    """An argument: a Slot for a tensor, else a number for which the graph is valid. One place of memory is one slot."""
    if isinstance(value, TensorValue):
        for at, known in enumerate(tensors):
            if known is value or tr.is_same_place(known, value):
                return Slot(at)
        tensors.append(value)
        return Slot(len(tensors) - 1)
    if isinstance(value, KernelValue) or (isinstance(value, ObjectValue) and module_of(type(value.obj)).startswith("triton.")):
        return value.obj  # a function or a type that the kernel is made for
    if value.is_constant or isinstance(value, (SymInt, SequenceValue)):
        return value.constant(tr)
    raise GraphBreak("unsupported-argument", f"{value.describe()} given to a Triton kernel")


def _check(tr: Tracer, kernel: Any, tensors: Sequence[TensorValue], written: Sequence[int]) -> None:
    """What eager had better do: writes that autograd or another name of the memory would see otherwise."""
    name = name_of(kernel)
    for t in tensors:
        if t.cls not in (torch.Tensor, torch.nn.Parameter) or type(t.fake) is not FakeTensor:
            raise GraphBreak("unsupported-argument", f"{t.describe()} given to the Triton kernel {name}")
        interpreted = any(module_of(type(k)) == "triton.runtime.interpreter" for k in layers(kernel))
        if t.meta.device.type == "cpu" and not interpreted:
            raise GraphBreak("unsupported-argument", f"a tensor on the CPU is given to the Triton kernel {name}")
    if not written:
        raise GraphBreak("side-effect", f"the Triton kernel {name} writes to no tensor that it is given")
    for at in written:
        target = tensors[at]
        if target.requires_grad:
            raise GraphBreak("input-mutation", f"the Triton kernel {name} writes to {target.describe()}, which requires grad")
        if any(other is not target and other.memory is target.memory for other in tensors):
            raise GraphBreak("input-mutation", f"the Triton kernel {name} writes to memory that it is given in two ways")


def _is_fresh(tr: Tracer, t: TensorValue) -> bool:
    """Whether nothing has been written to a tensor's memory, and its sizes are the same in every call."""
    node = tr.builder.nodes.get(t.fake.ref.name)
    known = all(isinstance(d, int) for d in (*t.meta.shape, *t.meta.strides))
    return known and t.view is None and node is not None and node.target.rpartition(".")[2] in _UNDEFINED


def _record(tr: Tracer, launch: Launch, tensors: Sequence[TensorValue], targets: Sequence[TensorValue]) -> None:
    results: list[FakeTensor] = []

    def result(position: int) -> Callable[[], Value]:
        def compute() -> Value:
            if not results:
                tr.about_to_record()
                given = [t.fake for t in tensors[: launch.tensors]]
                fakes = [dispatcher.call("detach", f) if t.requires_grad else f for f, t in zip(given, tensors, strict=False)]
                found = dispatcher.call(op_of(launch), *fakes)
                results.extend(found if isinstance(found, tuple) else (found,))
            return TensorValue(results[position], torch.Tensor, False)

        return compute

    for position, target in enumerate(targets):
        write(tr, target, result(position), tensors, counted=False)


def _grid(tr: Tracer, kernel: Any, grid: Value, named: Mapping[str, Value]) -> tuple[int, ...] | GridByConfig:
    if isinstance(grid, SequenceValue):
        return tuple(grid.constant(tr))
    *wrappers, fn = layers(kernel)
    defaults = {p.name: p.default for p in inspect.signature(fn).parameters.values() if p.default is not p.empty}
    meta = {**{k: tr.from_python(v) for k, v in defaults.items()}, **named}
    if any(type(w).__name__ == "Heuristics" for w in wrappers):
        raise GraphBreak(
            "unsupported-argument", f"a grid that depends on the heuristics of the Triton kernel {name_of(kernel)}"
        )
    configs = [c for w in wrappers for c in getattr(w, "configs", ())]
    if not configs:
        return _called(tr, grid, meta)
    made = []
    for config in configs:
        chosen = {**config.kwargs, "num_warps": config.num_warps, "num_stages": config.num_stages}
        here = {**meta, **{k: tr.from_python(v) for k, v in chosen.items()}}
        made.append((tuple(config.kwargs.items()), _called(tr, grid, here)))
    return GridByConfig(tuple(made))


def _called(tr: Tracer, grid: Value, meta: Mapping[str, Value]) -> tuple[int, ...]:
    found = grid.call(tr, [DictValue(tr, [(Const(k), v) for k, v in meta.items()])], {})
    if not isinstance(found, SequenceValue):
        raise GraphBreak("unsupported-argument", f"a grid that is {found.describe()}")
    return tuple(found.constant(tr))
