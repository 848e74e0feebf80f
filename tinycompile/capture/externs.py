"""torch functions without a record, which become extern nodes: which can't, and in whose memory their results are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from tinycompile.capture.breaks import GraphBreak
from tinycompile.dispatch import dispatcher
from tinycompile.eager.fake import Extern
from tinycompile.ir.interpreter import torch_function
from tinycompile.ops.in_place import asks_in_place, names_a_write

if TYPE_CHECKING:
    from tinycompile.capture.values.tensor import TensorValue

_SEEDS = frozenset({"seed", "initial_seed", "manual_seed", "get_rng_state", "set_rng_state"})
# Results or effects that no graph node can have.
_NOT_EXTERN = frozenset(
    {
        "set_default_dtype",
        "set_default_device",
        "set_grad_enabled",
        "save",
        "load",
        "from_numpy",
        "as_tensor",
        "compile",
        "sparse_coo_tensor",
        "quantize_per_tensor",
        "use_deterministic_algorithms",
        "set_num_threads",
        "asarray",
        "multi_head_attention_forward",
    }
)


def viewed_by(path: str, found: Extern, given: tuple[Sequence[Any], Mapping[str, Any]], inputs: list[TensorValue]) -> Any:
    """The tensor in whose memory the results are, if any."""
    args, kwargs = given
    if found.owners is None:
        base = inputs[0] if inputs and _may_alias(path) else None
    else:
        owners = {id(o) for o in found.owners}
        if len(owners) > 1:
            raise GraphBreak("unsupported-op", f"{path} returns views of several tensors, or also something else")
        base = next((t for t in inputs if id(t.fake) in owners), None)
    if base is None:
        return None
    if args[0] is not base.fake or len(dispatcher.tensors_in((*args, *kwargs.values()))) > 1:
        raise GraphBreak("unsupported-op", f"{path} returns a view of one of several tensors")
    if base.memory.writes and path.rpartition(".")[2] == "as_strided":
        raise GraphBreak("input-mutation", f"{path} sees memory that was written to, also beside {base.describe()}")
    return base


# Python functions that do, whatever numbers they are given.
_MAKE_NEW = frozenset({"torch.nn.functional.interpolate"})


def makes_new(path: str) -> bool:
    """Whether a torch function's results have their own memory, whatever numbers it is given."""
    return path in _MAKE_NEW or not _may_alias(path)


@cache
def _may_alias(path: str) -> bool:
    """Whether a torch function's result can share memory with its input, by ATen's schemas; True when there is none to tell."""
    found = _schemas(path)
    return not found or any(r.alias_info is not None for s in found for r in s.returns if not _writes(s))


@cache
def _schemas(path: str) -> tuple[Any, ...]:
    """ATen's schemas of a torch function: all overloads but those that take ``out``; none for what is written in Python."""
    parts = path.removeprefix("torch.ops.aten.").split(".")
    if path.startswith("torch.ops.") and len(parts) == 2:
        return (getattr(getattr(torch.ops.aten, parts[0]), parts[1])._schema,)
    names = (parts[0], parts[-1], "_".join(parts[-2:]))
    found = (getattr(torch.ops.aten, n, None) for n in names)
    packet = next((p for p in found if isinstance(p, torch._ops.OpOverloadPacket)), None)  # (__dir__ is the namespace's)
    if packet is None:
        return ()
    every = (getattr(packet, overload)._schema for overload in packet.overloads())
    return tuple(s for s in every if not s.name.endswith("_") and not any(a.is_out for a in s.arguments))


def is_of_tensors(path: str, fn: Any) -> bool:
    """Whether a schema tells that a torch function returns tensors; nothing is told of settings, and of what is in Python."""
    schemas = (fn._schema,) if isinstance(fn, torch._ops.OpOverload) else _schemas(path)
    return any("Tensor" in str(r.type) for s in schemas for r in s.returns)


def _writes(schema: Any) -> bool:
    """Whether a tensor is written; TorchScript's lists have schemas of these names too."""
    return any(
        a.alias_info is not None and a.alias_info.is_write and str(a.type) in ("Tensor", "Optional[Tensor]")
        for a in schema.arguments
    )


def check_extern(path: str, fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    name = path.rpartition(".")[2]
    try:
        found = torch_function(path)
    except AttributeError:
        found = None
    if found is None or found is not fn:
        raise GraphBreak("unknown-function", path)
    if kwargs.get("out") is not None or asks_in_place(fn, args, kwargs) or names_a_write(name):
        raise GraphBreak("input-mutation", f"{path} writes to a tensor")
    if name.startswith("__i") and hasattr(torch.Tensor, name.replace("__i", "__", 1)):
        raise GraphBreak("input-mutation", f"{path} writes to a tensor")
    if name in _SEEDS:
        raise GraphBreak("random", path)
    if name in _NOT_EXTERN or kwargs.get("generator") is not None:
        raise GraphBreak("unsupported-op", path)
    written = _WRITTEN.get(path)
    if written is not None:
        if all(_given(args, kwargs, at, word, default) for at, word, default in written):
            raise GraphBreak("input-mutation", f"{path} writes to a tensor")
    elif any(_writes(s) for s in _schemas(path)):
        raise GraphBreak("input-mutation", f"{path} can write to a tensor")


# Functions that write to an argument if all of these are given: position, name, default.
_WRITTEN: dict[str, tuple[tuple[int, str, Any], ...]] = {
    "torch.nn.functional.batch_norm": ((1, "running_mean", None), (5, "training", False)),
    "torch.batch_norm": ((3, "running_mean", None), (5, "training", False)),
    "torch.native_batch_norm": ((3, "running_mean", None), (5, "training", False)),
    "torch.nn.functional.instance_norm": ((1, "running_mean", None), (5, "use_input_stats", True)),
    "torch.instance_norm": ((3, "running_mean", None), (5, "use_input_stats", True)),
    "torch.nn.functional.embedding": ((3, "max_norm", None),),
    "torch.nn.functional.embedding_bag": ((4, "max_norm", None),),
}


def _given(args: Sequence[Any], kwargs: Mapping[str, Any], at: int, name: str, default: Any) -> bool:
    value = kwargs.get(name, args[at] if len(args) > at else default)
    return value is not None and value is not False


# Functions whose gradients are sparse if this is given.
_SPARSE_GRADIENTS: dict[str, tuple[int, str, Any]] = {
    "torch.nn.functional.embedding": (6, "sparse", False),
    "torch.embedding": (4, "sparse", False),
    "torch.nn.functional.embedding_bag": (7, "sparse", False),
    "torch.embedding_bag": (5, "sparse", False),
    "torch.gather": (3, "sparse_grad", False),
    "torch.Tensor.gather": (3, "sparse_grad", False),
}


def gives_sparse_gradients(path: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether gradients of the call have no strides, as all that a graph computes with must."""
    found = _SPARSE_GRADIENTS.get(path)
    return found is not None and _given(args, kwargs, *found)
