"""Hooks on gradients: of a tensor, of a node before and after it runs, and the one of ``retain_grad()``."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Sequence
from typing import Any

import torch

from tinycompile.base.meta import TensorMeta
from tinycompile.eager.tensor import Tensor, same_memory
from tinycompile.ops import meta_rules as rules
from tinycompile.ops.calls import ops

ON_NODE = -1  # in place of a result's number: hooks on all of a node's gradients
serial = itertools.count()


class HookHandle:
    """``remove()`` takes a hook away again; also a context manager."""

    __slots__ = ("_hooks", "_key")

    def __init__(self, hooks: Hooks, hook: Any) -> None:
        self._hooks, self._key = weakref.ref(hooks), next(serial)
        hooks[self._key] = hook

    def remove(self) -> None:
        """The hook is called no more."""
        hooks = self._hooks()
        if hooks is not None:
            hooks.pop(self._key, None)

    def __enter__(self) -> HookHandle:
        return self

    def __exit__(self, *exc: object) -> None:
        self.remove()


class Hooks(dict[int, Any]):
    """Hooks in the order in which they were added; a class of its own because a plain dict can't be referenced weakly."""

    __slots__ = ("__weakref__",)

    def replace(self, grad: Any) -> Any:
        """The gradient after all hooks; those that retain it see it last."""
        for hook in sorted(self.values(), key=lambda h: isinstance(h, Retain)):
            replaced = hook(grad)
            if replaced is not None:
                _check(hook, replaced, grad)
                grad = replaced
        return grad

    def replace_all(self, grads: Sequence[Any], *more: Any) -> list[Any]:
        """The gradients after all hooks, which are given ``more`` too and return a tuple or nothing."""
        found = tuple(grads)
        for hook in list(self.values()):
            replaced = hook(found, *more)
            if replaced is None:
                continue
            if not isinstance(replaced, tuple):
                raise TypeError(f"expected tuple, but hook returned '{type(replaced).__name__}'")
            if len(replaced) != len(found):
                raise RuntimeError(
                    f"hook '{_name(hook)}' has returned an incorrect number of values (got {len(replaced)}, but expected "
                    f"{len(found)})"
                )
            for new, old in zip(replaced, found, strict=True):
                if new is not None:
                    _check(hook, new, old)
            found = replaced
        return list(found)


def _check(hook: Any, new: Any, old: Any) -> None:
    """A hook may change a gradient's values, and neither its size nor its type. The words are torch's."""
    if not isinstance(new, (Tensor, torch.Tensor)):
        raise TypeError(f"expected Variable, but hook returned '{type(new).__name__}'")
    if old is None:
        raise RuntimeError("can't replace a None gradient with a non-None value")
    if new.dtype != old.dtype:
        was, got = (f"torch.{'cuda.' if g.device.type == 'cuda' else ''}{rules.type_name(g.dtype)}Tensor" for g in (old, new))
        raise RuntimeError(f"hook '{_name(hook)}' has changed the type of value (was {was} got {got})")
    if tuple(new.shape) != tuple(old.shape):
        raise RuntimeError(f"hook '{_name(hook)}' has changed the size of value")


def _name(hook: Any) -> str:
    return str(getattr(hook, "__name__", repr(hook)))


class Retain:
    """The hook of ``retain_grad()``. ``like``: the tensor's metadata."""

    __slots__ = ("_like", "_meta")

    def __init__(self, meta: Any, like: TensorMeta) -> None:
        self._meta, self._like = weakref.ref(meta), like

    def __call__(self, grad: Any) -> None:
        meta = self._meta()
        if meta is not None:
            first = meta.grad is None
            meta.grad = of_its_own(grad, self._like, torch.is_grad_enabled()) if first else ops.add(meta.grad, grad)


def of_its_own(grad: Any, like: TensorMeta, create_graph: bool) -> Any:
    """A gradient on memory of its own, laid out as the tensor ``like``."""
    if grad.layout is not torch.strided:
        return same_memory(grad)
    grad = laid_out(grad, like)
    return ops.clone(grad) if create_graph else ops.clone(same_memory(grad))


def laid_out(grad: Any, like: TensorMeta) -> Any:
    """A gradient with the strides of the tensor ``like`` where that is dense, else with those of a new tensor."""
    dense = rules.is_non_overlapping_and_dense(like)
    wanted = like.strides if dense else rules.dense_strides(like.shape)
    same = all(a == b or size == 1 for a, b, size in zip(grad.strides, wanted, like.shape, strict=True))
    return grad if same else ops.restride(grad, wanted)
