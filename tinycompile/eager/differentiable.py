"""What a tensor has for differentiation: ``requires_grad``, ``grad``, ``backward()``, hooks.

A tensor that our tape does not follow answers as its torch tensor does: that may be on torch's tape.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch

from tinycompile.dispatch.keys import Key

_AUTOGRAD = Key.AUTOGRAD.bit


class _Mark:
    """What ``torch.nn.Parameter`` and ``Buffer`` set on the tensor of another class that they are given: modules and optimizers
    take subclasses of ``torch.Tensor`` only, so they would pass over ours without a word. Raises TypeError when it is set."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __get__(self, tensor: Any, cls: type) -> bool:
        return False

    def __set__(self, tensor: Any, value: object) -> None:
        way = "detach().cpu().torch()" if tensor.lacks_handle else "detach().torch()"
        raise TypeError(
            f"torch.nn.{self.kind}(x) takes torch's tensors, as torch's modules and optimizers do, and x is tinycompile's: use "
            f"torch.nn.{self.kind}(x.{way})" + ("" if tensor.lacks_handle else ", which lies on the same memory")
        )


class DifferentiableMethods:
    """A part of ``Tensor``. The work is done by ``Tensor.tape``."""

    __slots__ = ()
    _is_param = _Mark("Parameter")
    _is_buffer = _Mark("Buffer")

    _autograd: Any
    _extern: Any
    detach: Any
    _read: Any
    keys: int

    @property
    def on_torchs_tape(self) -> bool:
        """Whether torch's own autograd follows it: it was made of a torch tensor that requires grad."""
        raise NotImplementedError

    @property
    def lacks_handle(self) -> bool:
        """Whether torch has no tensor on its memory."""
        raise NotImplementedError

    tape: ClassVar[Any]

    @property
    def requires_grad(self) -> bool:
        """Whether our tape follows it, or torch's."""
        return bool(self.keys & _AUTOGRAD) or self.on_torchs_tape

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        if not self.is_leaf and value:
            raise RuntimeError("you can only change requires_grad flags of leaf variables.")
        self.requires_grad_(value)

    def requires_grad_(self, requires_grad: bool = True) -> Any:
        """Make it a leaf of our tape, or take a leaf off it. Raises RuntimeError for integers and for computed tensors."""
        if type(requires_grad) is not bool:
            requires_grad = torch.empty(0).requires_grad_(requires_grad).requires_grad
        if self.on_torchs_tape:
            return self._extern(torch.Tensor.requires_grad_, (self, requires_grad), {})
        return self.tape.require(self, requires_grad)

    @property
    def is_leaf(self) -> bool:
        """Whether it is no result of an op on the tape."""
        if self._autograd is None:
            return self.lacks_handle or self._read("is_leaf")
        return self.grad_fn is None

    @property
    def grad_fn(self) -> Any:
        """The node that made it, None for a leaf."""
        return self.tape.grad_fn(self)

    @property
    def output_nr(self) -> int:
        """Which result of ``grad_fn`` it is."""
        return self._read("output_nr") if self._autograd is None else self._autograd.index

    @property
    def grad(self) -> Any:
        """The gradient gathered so far: of a leaf, or after ``retain_grad()``."""
        return self.tape.grad_of(self)

    @grad.setter
    def grad(self, value: Any) -> None:
        self.tape.set_grad(self, value)

    @grad.deleter
    def grad(self) -> None:
        self.tape.set_grad(self, None)

    @property
    def retains_grad(self) -> bool:
        """Whether ``retain_grad()`` was called."""
        return self._read("retains_grad") if self._autograd is None else self._autograd.retained is not None

    @property
    def _version(self) -> int:
        """How often its memory was written to in place."""
        return self.tape.version_of(self)

    def backward(
        self, gradient: Any = None, retain_graph: bool | None = None, create_graph: bool = False, inputs: Any = None
    ) -> None:
        """As ``torch.Tensor.backward``: gradients of the leaves (or of ``inputs`` alone) are added to their ``grad``."""
        if self._autograd is None and self.on_torchs_tape:
            self._extern(torch.Tensor.backward, (self, gradient, retain_graph, create_graph, inputs), {})
        else:
            self.tape.backward(self, gradient, retain_graph, create_graph, inputs)

    def register_hook(self, hook: Callable[[Any], Any]) -> Any:
        """``hook(grad)`` is called when the gradient is known; a result replaces it."""
        if self._autograd is None and self.on_torchs_tape:
            return self._extern(torch.Tensor.register_hook, (self, hook), {})
        return self.tape.register_hook(self, hook)

    def register_post_accumulate_grad_hook(self, hook: Callable[[Any], None]) -> Any:
        """``hook(leaf)`` is called after each accumulation into its ``grad``."""
        if self._autograd is None and self.on_torchs_tape:
            return self._extern(torch.Tensor.register_post_accumulate_grad_hook, (self, hook), {})
        return self.tape.register_post_accumulate_grad_hook(self, hook)

    def retain_grad(self) -> None:
        """Keep the gradient of a computed tensor in ``grad`` too."""
        if self._autograd is None and self.on_torchs_tape:
            self._extern(torch.Tensor.retain_grad, (self,), {})
        else:
            self.tape.retain_grad(self)

    def detach_(self) -> Any:
        """Take it off the tape, in place. Raises RuntimeError for views."""
        return self.tape.detach_(self)

    @property
    def data(self) -> Any:
        """The same memory, off the tape; writes to it are not counted."""
        return self.tape.data(self)

    @data.setter
    def data(self, value: Any) -> None:
        self.tape.set_data(self, value)
