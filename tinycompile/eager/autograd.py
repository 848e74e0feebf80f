"""Differentiation of our tensors: ``backward``, ``grad``, hooks, and the bridge to torch's tape.

The modes are torch's own (``no_grad``, ``enable_grad``, ``set_grad_enabled``, ``inference_mode``, ``detect_anomaly``), so that
either spelling holds for both kinds of tensors.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch

from tinycompile.base.device import Device
from tinycompile.base.logs import warn_once
from tinycompile.dispatch.keys import Key
from tinycompile.eager import inplace
from tinycompile.eager.as_strided import as_strided, note_views_among
from tinycompile.eager.autograd_function import Function, once_differentiable
from tinycompile.eager.bridge import Found, gradients_of_torchs, run_all, to_torch
from tinycompile.eager.engine import Backward
from tinycompile.eager.hooks import HookHandle, Hooks
from tinycompile.eager.recording import call_torch, edge_of, functions, is_refused, is_tracked, refuse_half
from tinycompile.eager.saved import saved_hooks
from tinycompile.eager.tape import (
    AUTOGRAD,
    AutogradMeta,
    Edge,
    Nowhere,
    leave,
    left_behind,
    require_grad,
    retain,
    tape_of,
)
from tinycompile.eager.tensor import Tensor, apart, device_and_keys, from_torch, put_on_memory
from tinycompile.eager.tensor import version_of as _version_of
from tinycompile.eager.torch_words import raise_torchs, unused
from tinycompile.ops.calls import cast, ops
from tinycompile.ops.gradients import zeros
from tinycompile.ops.in_place import writes_first

__all__ = [
    "Function", "backward", "detect_anomaly", "enable_grad", "grad", "inference_mode", "is_grad_enabled", "no_grad",
    "once_differentiable", "saved_tensors_hooks", "set_detect_anomaly", "set_grad_enabled",
]  # fmt: skip

no_grad = torch.no_grad
enable_grad = torch.enable_grad
set_grad_enabled = torch.set_grad_enabled
is_grad_enabled = torch.is_grad_enabled
inference_mode = torch.inference_mode
detect_anomaly = torch.autograd.detect_anomaly
set_detect_anomaly = torch.autograd.set_detect_anomaly


# --- backward and grad -------------------------------------------------------------------------------------------------------


def backward(
    tensors: Any,
    grad_tensors: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Any = None,
) -> None:
    """Add the gradients of ``tensors`` to the ``grad`` of every leaf they came from, or of ``inputs`` alone.

    ``grad_tensors``: one a tensor, of its shape; None for a scalar. Raises RuntimeError as torch does."""
    outputs = _listed(tensors)
    targets = None if inputs is None else _listed(inputs)
    if targets is not None and not targets:
        raise RuntimeError("`inputs` argument to `backward()` cannot be empty.")
    if create_graph:
        warn_once(
            "Using backward() with create_graph=True will create a reference cycle between the parameter and its gradient "
            "which can cause a memory leak. We recommend using autograd.grad when creating the graph to avoid this. If you "
            "have to use this function, make sure to reset the .grad fields of your parameters to None after use to break the "
            "cycle and avoid the leak.",
            category=UserWarning,
        )
    found = _run(outputs, grad_tensors, retain_graph, create_graph, targets, retain=True)
    for target, grad in zip(targets or (), found, strict=True):
        if grad is None or not target.is_leaf:  # what is no leaf has retained it
            continue
        if isinstance(target, torch.Tensor):
            target.grad = grad if target.grad is None else target.grad + grad
        else:
            edge = edge_of(target)
            assert edge is not None
            edge.node.run((grad,), create_graph, True)


def grad(
    outputs: Any,
    inputs: Any,
    grad_outputs: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    allow_unused: bool | None = None,
    materialize_grads: bool = False,
    is_grads_batched: bool = False,
) -> tuple[Any, ...]:
    """The gradients of ``outputs`` for ``inputs``, which are not added to anything.

    An input that the outputs do not depend on is an error unless ``allow_unused`` (then its gradient is None, or zeros with
    ``materialize_grads``). ``is_grads_batched``: the first dim of ``grad_outputs`` is one of examples, and so is that of the
    gradients."""
    if is_grads_batched:
        options = {"retain_graph": retain_graph, "create_graph": create_graph}
        checks = {"allow_unused": allow_unused, "materialize_grads": materialize_grads}
        return of_several[0](outputs, inputs, grad_outputs, **options, **checks)
    targets = _listed(inputs)
    if not targets:
        raise_torchs(lambda x: torch.autograd.grad(x.sum(), ()))
    if materialize_grads and allow_unused is False:
        raise ValueError(
            "Expected allow_unused to be True or not passed when materialize_grads=True, but got: allow_unused=False."
        )
    found = _run(_listed(outputs), grad_outputs, retain_graph, create_graph, targets)
    if materialize_grads:
        return tuple(zeros(t) if g is None else g for t, g in zip(targets, found, strict=True))
    for i, g in enumerate(found):
        if g is None and not allow_unused:
            raise RuntimeError(unused(i))
    return tuple(found)


of_several: list[Callable[..., tuple[Any, ...]]] = []
"""``of_several[0]``: :func:`grad` of several gradients of each output; set by ``several_gradients.py``, above this file."""


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (tuple, list)) else [value]


def _run(
    outputs: Sequence[Any],
    seeds: Any,
    retain_graph: bool | None,
    create_graph: bool,
    targets: Sequence[Any] | None,
    retain: bool = False,
) -> list[Any]:
    """Passes of our engine, and of torch's for what came out at torch tensors, until nothing comes back. ``retain``: targets
    that are no leaves are to keep their gradients."""
    given = [None] * len(outputs) if seeds is None else [seeds] if isinstance(seeds, (Tensor, torch.Tensor)) else list(seeds)
    for seed in given:
        if seed is not None and not isinstance(seed, (Tensor, torch.Tensor)):
            raise TypeError(f"gradients can be either Tensors or None, but got {type(seed).__name__}")
    if len(given) != len(outputs):
        raise RuntimeError(f"got {len(outputs)} tensors and {len(given)} gradients")
    roots: list[Edge] = []
    grads: list[Any] = []
    for i, (output, seed) in enumerate(zip(outputs, given, strict=True)):
        grads.append(None if seed is None and not output.requires_grad else _seed(output, seed, i))
    roots += [_root(output, i) for i, output in enumerate(outputs)]
    for target in (targets or ()) if retain else ():
        target.retain_grad()
    keep = create_graph if retain_graph is None else retain_graph
    edges = None if targets is None else [_target(t) for t in targets]
    ours = None if edges is None else [e for e in edges if isinstance(e, Edge)]
    if targets is None or edges is None:
        run_all(roots, grads, keep, create_graph)
        return []
    theirs = [t if isinstance(t, torch.Tensor) else t.raw() for t, e in zip(targets, edges, strict=True) if e is None]
    found = Found(create_graph)
    while roots:
        run = Backward(roots, grads, ours, keep, create_graph, to_torch=bool(theirs))
        found.add(run.run().items())
        made, back = gradients_of_torchs(run.outside, theirs, keep, create_graph)
        found.add((id(t), None if g is None else from_torch(g)) for t, g in zip(theirs, made, strict=True))
        roots, grads = [edge for edge, _ in back], [g for _, g in back]
    return [found.of(t, e) for t, e in zip(targets, edges, strict=True)]


def _root(output: Any, i: int) -> Edge:
    edge = edge_of(output)
    if edge is None or type(edge.node) is Nowhere:
        raise RuntimeError(f"element {i} of tensors does not require grad and does not have a grad_fn")
    return edge


def _seed(output: Any, seed: Any, i: int) -> Any:
    if seed is None:
        if not all(size == 1 for size in output.shape):
            raise RuntimeError("grad can be implicitly created only for scalar outputs")
        if output.dtype.is_complex:
            raise RuntimeError(f"grad can be implicitly created only for real scalar outputs but got {output.dtype}")
        ones = ops.full_like(output, 1.0)  # under vmap each example has its own
        return ones if isinstance(ones, Tensor) else from_torch(ones)
    if tuple(seed.shape) != tuple(output.shape):
        raise RuntimeError(
            f"Mismatch in shape: grad_output[{i}] has a shape of {torch.Size(seed.shape)} and output[{i}] has a shape of "
            f"{torch.Size(output.shape)}."
        )
    return cast(seed if isinstance(seed, Tensor) else from_torch(seed), output.dtype)


def _target(tensor: Any) -> Edge | None:
    """Where a wanted gradient is found; None: on torch's side."""
    if not tensor.requires_grad:
        raise RuntimeError("One of the differentiated Tensors does not require grad")
    return None if isinstance(tensor, torch.Tensor) or tensor._autograd is None else edge_of(tensor)


# --- what Tensor asks for ----------------------------------------------------------------------------------------------------


def _of_torchs_grad(
    outputs: Any,
    inputs: Any,
    grad_outputs: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    only_inputs: bool = True,
    *args: Any,
    **options: Any,
) -> tuple[Any, ...]:
    """``torch.autograd.grad`` that is given tensors of ours."""
    named = dict(zip(("allow_unused", "is_grads_batched", "materialize_grads"), args, strict=False))
    return grad(outputs, inputs, grad_outputs, retain_graph, create_graph, **named, **options)


def _check_grad(tensor: Tensor, value: Any) -> None:
    """Whether torch would take it for a ``grad``, in its words."""
    sizes: Any = tensor.shape  # no symbols: those are FakeTensor's
    bare = torch.empty(sizes, dtype=tensor.dtype, device="meta")
    if value is tensor:
        bare.grad = bare  # raises
    if not isinstance(value, (Tensor, torch.Tensor)):
        bare.grad = value  # raises
    here, there = Device.of(tensor.device), Device.of(value.device)
    if value.dtype == tensor.dtype and here.type != there.type:
        raise RuntimeError(
            f"attempting to assign a gradient with device type '{there.type}' to a tensor with device type '{here.type}'. "
            "Please ensure that the gradient and the tensor are on the same device"
        )
    if value.dtype == tensor.dtype and max(here.index, 0) != max(there.index, 0):
        raise RuntimeError(
            f"attempting to assign a gradient located on device with index '{there.index}' to a tensor located on device with "
            f"index '{here.index}'. Please ensure that the gradient and the tensor are on the same device"
        )
    if tuple(value.shape) != tuple(tensor.shape) or value.dtype != tensor.dtype:
        bare.grad = torch.empty(tuple(value.shape), dtype=value.dtype, device="meta")  # raises


def _resize(tensor: Any, *args: Any, **kwargs: Any) -> Any:
    """torch's own does, but for what requires grad."""
    if isinstance(tensor, Tensor) and tensor.keys & AUTOGRAD:
        raise_torchs(lambda x: x.resize_(1))
    return NotImplemented


def _set(tensor: Any, *args: Any, **kwargs: Any) -> Any:
    """torch's own does, on a handle by which no view knows its memory."""
    if type(tensor) is Tensor and not (tensor.lacks_handle or tensor.on_torchs_tape):
        tensor._handle = tensor.raw().detach()
    return NotImplemented


def _detached(tensor: Any) -> Any:
    return tensor.detach_()


def _check_data(dtype: torch.dtype, requires_grad: bool) -> None:
    """Raise torch's RuntimeError where what requires grad can't have data of this dtype."""
    if requires_grad and not (dtype.is_floating_point or dtype.is_complex):
        torch.empty(0, requires_grad=True).data = torch.empty(0, dtype=dtype)


class _Tape:
    """``Tensor.tape``: see ``differentiable.py`` for what each is."""

    functions: ClassVar[Mapping[Any, Callable[..., Any]]] = {
        torch.autograd.backward: backward,
        torch.autograd.grad: _of_torchs_grad,
        torch.ops.aten.detach_: _detached,
        torch.ops.aten.detach_.default: _detached,
        torch.Tensor.set_: _set,
        torch.Tensor.resize_: _resize,
        torch.Tensor.resize_as_: _resize,
        torch.as_strided: as_strided,
        torch.Tensor.as_strided: as_strided,
        torch.ops.aten.as_strided: as_strided,
        torch.ops.aten.as_strided.default: as_strided,
    }
    note_views_among = staticmethod(note_views_among)
    write = staticmethod(inplace.write)
    write_item = staticmethod(inplace.write_item)
    backward = staticmethod(backward)

    @staticmethod
    def nested() -> int:
        """Within how many functions that are differentiated the program is."""
        return functions.nested

    @staticmethod
    def version_of(tensor: Tensor) -> int:
        if type(tensor) is Tensor and not tensor.is_meta and not tensor.lacks_handle and tensor.raw().is_inference():
            return int(tensor.raw()._version)  # raises: it is not counted
        return _version_of(tensor)

    @staticmethod
    def follows(args: Sequence[Any], kwargs: Mapping[str, Any], out: Any = None) -> bool:
        """Whether the call must be recorded."""
        given = (*args, *kwargs.values(), out)
        if not torch.is_grad_enabled():
            refuse_half(given)
            return False
        return is_tracked(given)

    @staticmethod
    def call(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """A torch function without a record; ``sort_`` and the like write."""
        if not writes_first(fn, args, kwargs):
            return call_torch(fn, args, kwargs)
        return (inplace.call if isinstance(args[0], Tensor) else inplace.write_to_torchs)(fn, args, kwargs)

    @staticmethod
    def require(tensor: Tensor, value: bool) -> Tensor:
        meta = tensor._autograd
        if meta is not None and meta.grad_fn is not None:
            if not value:
                raise RuntimeError(
                    "you can only change requires_grad flags of leaf variables. If you want to use a computed variable in a "
                    "subgraph that doesn't require differentiation use var_no_grad = var.detach()."
                )
        elif meta is not None and tensor._view is not None and tensor._view.origin in ("no_grad", "inference"):
            meta.borrowed = not value
        elif value and meta is None:
            has_data = not (tensor.lacks_handle or tensor.keys & Key.TRACING.bit)
            if has_data and tensor.raw().is_inference() and not torch.is_inference_mode_enabled():
                raise RuntimeError("Setting requires_grad=True on inference tensor outside InferenceMode is not allowed.")
            require_grad(tensor)
        elif not value and meta is not None:
            leave(tensor)
        return tensor

    @staticmethod
    def grad_fn(tensor: Tensor) -> Any:
        if not tensor.keys & AUTOGRAD:
            return tensor._read("grad_fn")
        edge = edge_of(tensor)
        return None if edge is None or tape_of(tensor).grad_fn is None else edge.node

    @staticmethod
    def grad_of(tensor: Tensor) -> Any:
        meta = tensor._autograd
        if meta is None:
            left = left_behind(tensor)
            return tensor._read("grad") if left is None or tensor.on_torchs_tape else left.grad
        if meta.grad is None and meta.grad_fn is not None and not meta.retained:
            warnings.warn(
                "The .grad attribute of a Tensor that is not a leaf Tensor is being accessed. Its .grad attribute won't be "
                "populated during autograd.backward(). If you indeed want the .grad field to be populated for a non-leaf "
                "Tensor, use .retain_grad() on the non-leaf Tensor. If you access the non-leaf Tensor by mistake, make sure "
                "you access the leaf Tensor instead. See github.com/pytorch/pytorch/pull/30531 for more information.",
                UserWarning,
                stacklevel=3,
            )
        return meta.grad

    @staticmethod
    def set_grad(tensor: Tensor, value: Any) -> None:
        if value is not None:
            _check_grad(tensor, value)
        if tensor._autograd is None and tensor.on_torchs_tape:
            tensor.raw().grad = value.raw() if isinstance(value, Tensor) else value
            return
        meta = tensor._autograd or left_behind(tensor)
        if meta is None:
            tensor._left = meta = AutogradMeta()
        meta.grad = from_torch(value) if isinstance(value, torch.Tensor) else value

    @staticmethod
    def register_hook(tensor: Tensor, hook: Callable[[Any], Any]) -> HookHandle:
        if not tensor.keys & AUTOGRAD:
            raise RuntimeError("cannot register a hook on a tensor that doesn't require gradient")
        edge, meta = edge_of(tensor), tape_of(tensor)
        if meta.grad_fn is not None:
            assert edge is not None
            return HookHandle(edge.node.hooks_of(edge.index), hook)
        if meta.hooks is None:
            meta.hooks = Hooks()
        return HookHandle(meta.hooks, hook)

    @staticmethod
    def register_post_accumulate_grad_hook(tensor: Tensor, hook: Callable[[Any], None]) -> HookHandle:
        if not tensor.keys & AUTOGRAD:
            raise RuntimeError("cannot register a hook on a tensor that doesn't require gradient")
        meta = tape_of(tensor)
        if meta.grad_fn is not None:
            raise RuntimeError("post accumulate grad hooks cannot be registered on non-leaf tensors")
        if meta.post_hooks is None:
            meta.post_hooks = Hooks()
        return HookHandle(meta.post_hooks, hook)

    @staticmethod
    def retain_grad(tensor: Tensor) -> None:
        if not tensor.keys & AUTOGRAD:
            raise RuntimeError("can't retain_grad on Tensor that has requires_grad=False")
        if is_refused(tensor) and tape_of(tensor).grad_fn is None:  # made without gradients: a leaf
            return
        edge_of(tensor)  # a view's history may be its base's
        meta = tape_of(tensor)
        if meta.grad_fn is not None and meta.retained is None:
            retain(meta, tensor.meta)

    @staticmethod
    def detach_(tensor: Tensor) -> Tensor:
        if tensor._view is not None:
            raise_torchs(lambda x: x.view(2).detach_())
        if tensor.on_torchs_tape:
            tensor.raw().detach_()
        if tensor._autograd is not None:
            leave(tensor)
        return tensor

    @staticmethod
    def data(tensor: Tensor) -> Tensor:
        if not tensor.lacks_handle:
            return from_torch(tensor.raw().data)
        return apart(tensor) if type(tensor) is Tensor else tensor.detach()  # of examples

    @staticmethod
    def set_data(tensor: Tensor, value: Any) -> None:
        if type(tensor) is Tensor and (tensor.lacks_handle or getattr(value, "lacks_handle", False)):
            if not isinstance(value, (Tensor, torch.Tensor)):
                torch.empty(0).data = value  # raises
            _check_data(value.dtype, tensor.requires_grad)
            put_on_memory(tensor, value if isinstance(value, Tensor) else from_torch(value))
            return
        was = tensor.raw()
        handle = was if was.requires_grad else was.detach()  # with the same count of writes; views go on viewing what was there
        other = value.raw() if isinstance(value, Tensor) else value
        if isinstance(other, torch.Tensor):
            _check_data(other.dtype, tensor.requires_grad)
        handle.data = other
        device, keys = device_and_keys(handle.device)
        tensor._device, tensor.keys = device, keys | (tensor.keys & AUTOGRAD)
        tensor._handle, tensor._meta, tensor._storage, tensor._viewed, tensor._view = handle, None, None, None, None

    @staticmethod
    def bridge(tensor: Tensor) -> torch.Tensor:
        """The tensor on torch's tape: torch's backward goes on in ours."""
        return to_torch(tensor) if torch.is_grad_enabled() else tensor.raw()


Tensor.tape = _Tape


# --- saved tensors -----------------------------------------------------------------------------------------------------------


class saved_tensors_hooks:  # noqa: N801  torch's name
    """Inside the ``with`` block what is saved for backward is ``pack(tensor)``, and ``unpack`` of that when it is read."""

    def __init__(self, pack: Callable[[Any], Any], unpack: Callable[[Any], Any]) -> None:
        self.pair = pack, unpack

    def __enter__(self) -> None:
        saved_hooks.stack.append(self.pair)

    def __exit__(self, *exc: object) -> None:
        saved_hooks.stack.pop()
