"""``autograd.Function``: an op of the user's with its own backward, as in torch."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from tinycompile.eager.inplace import check_writable, rebase
from tinycompile.eager.recording import edge_of
from tinycompile.eager.saved import FREED, SavedTensor
from tinycompile.eager.tape import Edge, Node, note_function_result, note_views, set_history
from tinycompile.eager.tensor import Tensor, same_memory
from tinycompile.ops.gradients import zeros


class FunctionContext:
    """The ``ctx`` of a call: what forward leaves for backward."""

    def __init__(self, needs_input_grad: tuple[bool, ...]) -> None:
        self.needs_input_grad = needs_input_grad
        self.to_save: tuple[Any, ...] = ()
        self.dirty: tuple[Any, ...] = ()
        self.non_differentiable: tuple[Any, ...] = ()
        self.materialize_grads = True
        self._saved: tuple[SavedTensor | None, ...] | None = ()
        self._node: FunctionNode | None = None

    def save_for_backward(self, *tensors: Any) -> None:
        """Keep inputs or results (or None) for ``saved_tensors``."""
        self.to_save = tensors

    def mark_dirty(self, *tensors: Any) -> None:
        """Inputs that forward wrote to in place, and returns."""
        self.dirty = tensors

    def mark_non_differentiable(self, *tensors: Any) -> None:
        """Results that no gradient comes from."""
        self.non_differentiable = tensors

    def set_materialize_grads(self, value: bool) -> None:
        """Whether backward sees undefined gradients as zeros (the default) or as None."""
        self.materialize_grads = value

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """What was saved. Raises RuntimeError when it was changed in place, or freed by an earlier backward."""
        if self._saved is None:
            raise RuntimeError(FREED)
        node = self._node
        if node is None:
            return self.to_save
        keep_history = torch.is_grad_enabled()
        return tuple(None if s is None else s.unpack(node, keep_history) for s in self._saved)

    def close(self, node: FunctionNode | None, results: Sequence[Any]) -> None:
        """Forward is over."""
        if node is not None:
            for i, t in enumerate(self.to_save):
                if t is not None and not isinstance(t, (Tensor, torch.Tensor)):
                    raise TypeError(
                        f"save_for_backward can only save variables, but argument {i} is of type {type(t).__name__}"
                    )
            self._saved = tuple(_saved(t, results) for t in self.to_save)
            self._node = node
            self.to_save = ()

    def free(self) -> None:
        """Let go of what is saved."""
        if self._saved:
            self._saved = None


def _saved(tensor: Any, results: Sequence[Any]) -> SavedTensor | None:
    if tensor is None:
        return None
    return SavedTensor(tensor, next((i for i, r in enumerate(results) if r is tensor), None))


class FunctionNode(Node):
    """One call of a Function. ``places``: which arguments have edges."""

    __slots__ = ("context", "count", "function", "places")

    def __init__(self, function: type[Function], context: FunctionContext, args: Sequence[Any], edges: Sequence[Any]) -> None:
        self.places = [i for i, a in enumerate(args) if isinstance(a, (Tensor, torch.Tensor))]
        super().__init__([edges[i] for i in self.places], ())
        self.function, self.context, self.count = function, context, len(args)

    def __getattr__(self, name: str) -> Any:
        """In torch the node is the ``ctx``: what either has been given is seen through both."""
        return getattr(object.__getattribute__(self, "context"), name)

    def __setattr__(self, name: str, value: Any) -> None:
        if hasattr(type(self), name):
            super().__setattr__(name, value)
        else:
            setattr(self.context, name, value)

    def name(self) -> str:
        """``MyFunctionBackward``."""
        return f"{self.function.__name__}Backward"

    def run(self, grads: Sequence[Any], create_graph: bool, keep: bool) -> Sequence[Any]:
        """The user's backward."""
        if self.context.materialize_grads:
            grads = [zeros(m) if g is None and m is not None else g for g, m in zip(grads, self.metas, strict=True)]
        found = self.function.backward(self.context, *grads)
        found = found if isinstance(found, tuple) else (found,)
        if not keep:
            self.context.free()
        if len(found) < self.count or any(g is not None for g in found[self.count :]):
            raise RuntimeError(
                f"function {self.name()} returned an incorrect number of gradients (expected {self.count}, got {len(found)})"
            )
        for i, grad in enumerate(found[: self.count]):
            if grad is not None and i not in self.places:
                raise RuntimeError(
                    f"function {self.name()} returned a gradient different from None at position {i + 1}, but the "
                    "corresponding forward input was not a Variable"
                )
            if grad is not None and not isinstance(grad, (Tensor, torch.Tensor)):
                raise RuntimeError(f"expected Variable or None (got {type(grad).__name__})")
        return [found[i] if e is not None else None for i, e in zip(self.places, self.edges, strict=True)]


class Function:
    """Derive from it, define ``forward`` and ``backward`` as static methods, and call ``apply``."""

    @staticmethod
    def forward(*args: Any, **kwargs: Any) -> Any:
        """``forward(ctx, *args)``; or ``forward(*args)`` where ``setup_context`` is defined."""
        raise NotImplementedError("You must implement the forward function for custom autograd.Function.")

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Fill ``ctx`` after forward, instead of in it."""
        raise NotImplementedError("setup_context is not implemented.")

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        """One gradient (or None) an argument of forward."""
        raise NotImplementedError(
            "You must implement either the backward or vjp method for your custom autograd.Function to use it with backward "
            "mode AD."
        )

    @classmethod
    def apply(cls, *args: Any, **kwargs: Any) -> Any:
        """Call it, and record the call where gradients are wanted."""
        splits = cls.setup_context is not Function.setup_context
        args = _in_order(cls.forward, splits, args, kwargs) if kwargs or splits else args
        tracking = torch.is_grad_enabled()
        edges = [edge_of(a) if tracking and isinstance(a, (Tensor, torch.Tensor)) else None for a in args]
        context = FunctionContext(tuple(e is not None for e in edges))
        with torch.no_grad():
            if splits:
                output = cls.forward(*args)
                cls.setup_context(context, args, output)
            else:
                output = cls.forward(context, *args)
        if not any(context.needs_input_grad):
            return output
        node = FunctionNode(cls, context, args, edges)
        results = list(output) if isinstance(output, (tuple, list)) else [output]
        if not all(any(d is r for r in results) for d in context.dirty):
            raise RuntimeError(
                "Some elements marked as dirty during the forward method were not returned as output. The inputs that are "
                "modified inplace must all be outputs of the Function."
            )
        node.metas = tuple(r.meta if isinstance(r, Tensor) else None for r in results)  # type: ignore[misc]
        finished = [_finished(node, context, args, i, r) for i, r in enumerate(results)]
        _refuse_writes(context, finished)
        context.close(node, results)
        return type(output)(finished) if isinstance(output, (tuple, list)) else finished[0]


def _in_order(forward: Callable[..., Any], splits: bool, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """The arguments of a call by position. ``splits``: forward takes no ``ctx``; then its defaults are arguments too."""
    bound = inspect.signature(forward).bind(*(() if splits else (None,)), *args, **kwargs)
    if splits:
        bound.apply_defaults()
    if bound.kwargs:  # keyword-only, or behind one that isn't given
        raise TypeError(f"forward() got an unexpected keyword argument '{next(iter(bound.kwargs))}'")
    return bound.args if splits else bound.args[1:]


def _finished(node: FunctionNode, context: FunctionContext, args: Sequence[Any], index: int, result: Any) -> Any:
    """A result as the caller gets it: on the tape, and never an input itself but for one that was written to."""

    def among(tensors: Sequence[Any]) -> bool:
        return any(t is result for t in tensors)

    if not isinstance(result, Tensor) or not result.dtype.is_floating_point or among(context.non_differentiable):
        return result
    if among(context.dirty):
        if result._view is None and result._autograd is not None and result.is_leaf:
            raise RuntimeError("a leaf Variable that requires grad has been used in an in-place operation.")
        check_writable(result)
        rebase(result, Edge(node, index))
        return result
    if among(args):
        given, result = result, same_memory(result)
        note_views(result, given, ())
    return set_history(result, node, index)


def _refuse_writes(context: FunctionContext, results: Sequence[Any]) -> None:
    """To results that are views, of what was given or what forward made: the user's backward would not be asked."""
    unfollowed = (*context.non_differentiable, *context.dirty)
    views = [r for r in results if isinstance(r, Tensor) and r.dtype.is_floating_point and not any(r is t for t in unfollowed)]
    for view in views:
        if view._view is not None:
            note_function_result(view, several=len(views) > 1)


class _Refusal(Node):
    """Where the gradient of a gradient would go that nobody may ask for."""

    __slots__ = ()
    label = "DelayedErrorBackward"

    def run(self, grads: Sequence[Any], create_graph: bool, keep: bool) -> Sequence[Any]:
        raise RuntimeError("trying to differentiate twice a function that was marked with @once_differentiable")


def once_differentiable(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates a ``backward`` that is no differentiable function: asking for second derivatives is an error."""

    @functools.wraps(backward)
    def once(ctx: Any, *grads: Any) -> Any:
        with torch.no_grad():
            found = backward(ctx, *grads)
        if not torch.is_grad_enabled() or not any(getattr(g, "requires_grad", False) for g in grads):
            return found
        listed = found if isinstance(found, tuple) else (found,)
        refused = tuple(set_history(same_memory(g), _Refusal((), (g.meta,)), 0) if isinstance(g, Tensor) else g for g in listed)
        return refused if isinstance(found, tuple) else refused[0]

    return once
