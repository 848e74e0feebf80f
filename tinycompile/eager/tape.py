"""The tape: what ops leave behind so that gradients can go back through them.

A tensor on the tape has an :class:`AutogradMeta` and the Autograd key. A leaf's gradient is gathered by its
:class:`AccumulateGrad` node; other tensors name the :class:`Node` that made them. Nodes point at the nodes of their inputs by
edges, ``(node, index of its result)``. The backward pass over them is ``engine.py``.

Gradient mode, inference mode and anomaly mode are torch's own, so ``torch.no_grad()`` holds for both tapes.
"""

from __future__ import annotations

import threading
import traceback
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from tinycompile.base.meta import TensorMeta
from tinycompile.dispatch.keys import Key
from tinycompile.eager.hooks import ON_NODE, HookHandle, Hooks, Retain, of_its_own, serial
from tinycompile.eager.streams import where_launched
from tinycompile.eager.tensor import Tensor, from_torch, version_of
from tinycompile.ops.calls import ops

AUTOGRAD, _HAVE_STREAMS = Key.AUTOGRAD.bit, Key.CUDA.bit | Key.PRIVATEUSE1.bit
_anomaly = torch.is_anomaly_enabled


class Edge(NamedTuple):
    """Where a gradient goes: into result ``index`` of ``node``."""

    node: Node
    index: int  # type: ignore[assignment]  # a field, in place of tuple.index


class AutogradMeta:
    """What the tape knows of one tensor. ``generation`` counts the in-place writes that gave it (as the base of views) a new
    history: views made before look their own history up again. ``borrowed``: it requires grad because what it views does (it
    was made where gradients were off), and gathers none itself."""

    __slots__ = (
        "__weakref__",
        "accumulator",
        "borrowed",
        "generation",
        "grad",
        "grad_fn",
        "hooks",
        "index",
        "post_hooks",
        "retained",
    )

    def __init__(self, grad_fn: Node | None = None, index: int = 0, generation: int = 0) -> None:
        self.grad: Tensor | None = None
        self.grad_fn, self.index, self.generation = grad_fn, index, generation
        self.borrowed = False
        self.accumulator: weakref.ref[AccumulateGrad] | None = None
        self.hooks: Hooks | None = None  # of a leaf; hooks of other tensors are on their node
        self.post_hooks: Hooks | None = None
        self.retained: HookHandle | None = None  # of retain_grad()'s hook


class ViewInfo(NamedTuple):
    """How a tensor is a view: ``chain`` of (op, its other arguments) from ``base``. ``origin``: "" for an ordinary view,
    one of ``torch_words.REFUSED_VIEWS`` for those that torch does not let be written to; "opaque" where no chain leads there;
    "leaf" for an argument that is differentiated for (``chain`` is empty) and views of it. ``version``: of the memory of a view
    not to be written to, when it was made of what is on the tape. ``detour``: it was not made by ``chain``, so that its history
    is another as long as nothing is written."""

    base: Tensor
    chain: tuple[tuple[str, tuple[Any, ...]], ...]
    generation: int
    origin: str = ""
    version: int | None = None
    detour: bool = False


# --- nodes -------------------------------------------------------------------------------------------------------------------


class Node:
    """One step of the backward pass. ``metas``: shapes and dtypes of its results, one a gradient that it is given. ``stream``:
    the handle of the one on which its forward was launched, where it runs too; 0 is the default stream."""

    __slots__ = ("__weakref__", "edges", "location", "metas", "post_hooks", "pre_hooks", "serial", "stream")
    label = "Node"

    def __init__(self, edges: Sequence[Edge | None], metas: Sequence[TensorMeta]) -> None:
        self.edges, self.metas = tuple(edges), tuple(metas)
        self.serial: float = next(serial)
        self.stream = 0
        self.pre_hooks: dict[int, Hooks] | None = None
        self.post_hooks: Hooks | None = None
        self.location: list[str] | None = traceback.format_stack()[:-2] if _anomaly() else None

    def run(self, grads: Sequence[Any], create_graph: bool, keep: bool) -> Sequence[Any]:
        """One gradient (or None) an edge. Without ``keep`` what is saved is let go."""
        raise NotImplementedError

    def name(self) -> str:
        """As torch names it: ``MulBackward0``."""
        return self.label

    @property
    def next_functions(self) -> tuple[tuple[Node | None, int], ...]:
        """(node, index) an edge; (None, 0) where no gradient goes."""
        return tuple((None, 0) if e is None or type(e.node) is Nowhere else (e.node, e.index) for e in self.edges)

    def register_hook(self, hook: Callable[[tuple[Any, ...], tuple[Any, ...]], Any]) -> HookHandle:
        """``hook(grad_inputs, grad_outputs)`` after the node ran; a result replaces the input gradients."""
        if self.post_hooks is None:
            self.post_hooks = Hooks()
        return HookHandle(self.post_hooks, hook)

    def register_prehook(self, hook: Callable[[tuple[Any, ...]], Any]) -> HookHandle:
        """``hook(grad_outputs)`` before the node runs; a result replaces the output gradients."""
        return HookHandle(self.hooks_of(ON_NODE), hook)

    def hooks_of(self, index: int) -> Hooks:
        """Hooks on the gradient of one result, or (``ON_NODE``) on all of them."""
        if self.pre_hooks is None:
            self.pre_hooks = {}
        return self.pre_hooks.setdefault(index, Hooks())

    def before(self, index: int, grad: Any) -> Any:
        """The gradient of a result after its hooks."""
        hooks = self.pre_hooks.get(index) if self.pre_hooks else None
        return grad if hooks is None else hooks.replace(grad)

    def __repr__(self) -> str:
        return f"<{self.name()} at {id(self):#x}>"


class Nowhere(Node):
    """Where a gradient is dropped: torch has no node there."""

    __slots__ = ()

    def run(self, grads: Sequence[Any], create_graph: bool, keep: bool) -> Sequence[Any]:
        return ()


class AccumulateGrad(Node):
    """Adds what arrives to a leaf's ``grad``."""

    __slots__ = ("lock", "variable")
    label = "torch::autograd::AccumulateGrad"  # as torch's says

    def __init__(self, variable: Tensor) -> None:
        super().__init__((), (variable.meta,))
        self.serial = float("inf")  # as soon as it can
        self.variable, self.lock = variable, threading.Lock()

    def before(self, index: int, grad: Any) -> Any:
        """The leaf's own hooks."""
        meta = self.variable._autograd
        return grad if meta is None or meta.hooks is None else meta.hooks.replace(grad)

    def run(self, grads: Sequence[Any], create_graph: bool, keep: bool) -> Sequence[Any]:
        """Add, then call the post-accumulate hooks; nothing for a leaf that left the tape."""
        meta = self.variable._autograd
        if meta is None:
            return ()
        with self.lock:
            accumulate(meta, self.variable.meta, grads[0], create_graph)
        for hook in list(meta.post_hooks.values()) if meta.post_hooks else ():
            hook(self.variable)
        return ()


def accumulate(meta: AutogradMeta, like: TensorMeta, grad: Any, create_graph: bool) -> None:
    """Into ``meta.grad``: in place unless the sum is to be differentiated. A first gradient gets memory of its own, laid out as
    the tensor where that is dense."""
    if _is_sparse(grad) or (meta.grad is not None and _is_sparse(meta.grad)):  # torch's to add
        if meta.grad is None:
            meta.grad = of_its_own(grad, like, create_graph)
        elif _is_sparse(grad):
            meta.grad.raw().add_(grad.raw())
        else:  # torch adds a sparse one to a dense one, not the other way round
            meta.grad = from_torch(grad.raw() + meta.grad.raw())
    elif meta.grad is None:
        meta.grad = of_its_own(grad, like, create_graph)
    elif create_graph or (meta.grad.keys | grad.keys) & Key.BATCHED.bit:
        meta.grad = ops.add(meta.grad, grad)
    elif meta.grad.lacks_handle:
        meta.grad.elsewhere.put(meta.grad, ops.add(meta.grad, grad))
    else:
        meta.grad.raw().add_(grad.raw())


def _is_sparse(tensor: Any) -> bool:
    return tensor.layout is not torch.strided


# --- histories ---------------------------------------------------------------------------------------------------------------


def set_history(tensor: Tensor, node: Node, index: int) -> Tensor:
    """``tensor`` is result ``index`` of ``node`` from now on."""
    before = tensor._autograd
    if before is None:
        tensor._autograd = AutogradMeta(node, index)
    else:
        renew_history(tensor, node, index, before.generation)
    tensor.keys |= AUTOGRAD
    if tensor.keys & _HAVE_STREAMS:
        node.stream = where_launched(tensor.device)
    return tensor


def renew_history(tensor: Tensor, node: Node, index: int, generation: int) -> None:
    """The same for a tensor that has a history, or had none: what it was told to retain it goes on retaining."""
    before = tensor._autograd
    tensor._autograd = after = AutogradMeta(node, index, generation)
    if before is not None and before.grad_fn is not None:
        after.grad = before.grad
        if before.retained is not None:
            before.retained.remove()
            retain(after, tensor.meta)


def retain(meta: AutogradMeta, like: TensorMeta) -> None:
    """Keep the gradient of a tensor that a node made."""
    assert meta.grad_fn is not None
    meta.retained = HookHandle(meta.grad_fn.hooks_of(meta.index), Retain(meta, like))


def tape_of(tensor: Tensor) -> AutogradMeta:
    """The tensor's metadata on the tape."""
    assert tensor._autograd is not None
    return tensor._autograd


def require_grad(tensor: Tensor) -> Tensor:
    """Make a leaf of a tensor that is on no tape."""
    if not tensor.dtype.is_floating_point:
        if tensor.dtype.is_complex:
            raise NotImplementedError(
                "tinycompile's tape does not differentiate complex tensors; torch's does: use torch tensors"
            )
        raise RuntimeError("only Tensors of floating point dtype can require gradients")
    left = left_behind(tensor)
    tensor._autograd = AutogradMeta() if left is None else left
    tensor.keys |= AUTOGRAD
    return tensor


def leave(tensor: Tensor) -> None:
    """The tape follows it no more. A leaf keeps its gradient and its hooks."""
    meta = tape_of(tensor)
    tensor._autograd, tensor.keys = None, tensor.keys & ~AUTOGRAD
    if meta.grad_fn is None:
        tensor._left = meta


def left_behind(tensor: Tensor) -> AutogradMeta | None:
    """What the tape knew of a leaf that left it (few do)."""
    return getattr(tensor, "_left", None)


def accumulator(tensor: Tensor) -> AccumulateGrad:
    """The one node that gathers a leaf's gradient."""
    meta = tape_of(tensor)
    known = None if meta.accumulator is None else meta.accumulator()
    if known is None:
        known = AccumulateGrad(tensor)
        meta.accumulator = weakref.ref(known)
    return known


def edges_of(args: Sequence[Any], edge_of: Callable[[Any], Edge | None]) -> tuple[tuple[Any, ...], list[Edge | None]]:
    """(needs, edges) of a call. ``needs`` has a flag a tensor, a tuple of them a list of tensors, None for anything else."""
    needs: list[Any] = []
    edges: list[Edge | None] = []
    for a in args:
        if isinstance(a, (Tensor, torch.Tensor)):
            edges.append(edge_of(a))
            needs.append(edges[-1] is not None)
        elif type(a) in (tuple, list) and any(isinstance(v, (Tensor, torch.Tensor)) for v in a):
            inner = [edge_of(v) if isinstance(v, (Tensor, torch.Tensor)) else None for v in a]
            edges += inner
            needs.append(tuple(e is not None for e in inner))
        else:
            needs.append(None)
    return tuple(needs), edges


# --- views -------------------------------------------------------------------------------------------------------------------


def note_view(view: Tensor, of: Tensor, op_name: str, rest: tuple[Any, ...], several: bool = False) -> None:
    """Remember how ``view`` comes from its base, so that a write to either reaches the gradients of the other."""
    note_views(view, of, ((op_name, rest),), several)


def note_views(
    view: Tensor, of: Tensor, steps: tuple[tuple[str, tuple[Any, ...]], ...], several: bool = False, from_base: bool = False
) -> None:
    """The same for a view of a view: by several ops. ``from_base``: they lead there from the base that ``of`` is a view of."""
    info = of._view
    base, chain, origin = (of, (), "") if info is None else (info.base, info.chain, info.origin)
    if from_base:
        chain = ()
    grad = torch.is_grad_enabled()
    bound = origin in ("leaf", "opaque")
    if not bound and origin != "inference":  # the last op counts, if it has something to say
        origin = _origin_without_grad() if not grad else "several" if several else origin
    version = None
    if origin and not bound and of.keys & AUTOGRAD:
        if not grad:  # as in torch: it requires grad, and is a leaf
            view._autograd, view.keys = AutogradMeta(), view.keys | AUTOGRAD
            view._autograd.borrowed = True
        version = written_before(view)
    view._view = ViewInfo(base, (*chain, *steps), generation_of(base), origin, version, from_base)
    _add_view(base, view)


def _origin_without_grad() -> str:
    return "inference" if torch.is_inference_mode_enabled() else "no_grad"


def note_function_result(view: Tensor, several: bool) -> None:
    """A view that an autograd.Function gave: its backward would be lost to a write. ``several``: it has other results."""
    info = view._view
    view._view = info._replace(
        generation=generation_of(info.base), origin="several" if several else "function", version=written_before(view)
    )


def written_before(view: Tensor) -> int:
    """The version of its memory; 0 where torch counts none."""
    uncounted = type(view) is Tensor and not (view.is_meta or view.lacks_handle) and view.raw().is_inference()
    return 0 if uncounted else version_of(view)


def note_opaque_view(view: Tensor, of: Tensor) -> None:
    """Remember that ``view`` shares the memory of ``of`` in a way that no chain of ops tells."""
    base = base_of(of)
    if torch.is_grad_enabled():
        view._view = ViewInfo(base, (), generation_of(base), "opaque")
        _add_view(base, view)
    else:
        note_views(view, of, (), from_base=True)


def base_of(tensor: Tensor) -> Tensor:
    """What it is a view of; itself if it is no view."""
    return tensor if tensor._view is None else tensor._view.base


def _add_view(base: Tensor, view: Tensor) -> None:
    views = base._views
    if views is None:
        views = base._views = []
    views.append(weakref.ref(view))
    if not len(views) & 63:
        base._views = [r for r in views if r() is not None]


def generation_of(base: Tensor) -> int:
    """How often the base got a new history by a write."""
    return 0 if base._autograd is None else tape_of(base).generation
