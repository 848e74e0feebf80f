"""Copies of tensors (pickling and ``torch.save``, ``copy.deepcopy``), and how they print. All as torch's tensors do."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch

from tinycompile.eager.storage import ALLOCATORS

_NOT_A_LEAF = (
    "Only Tensors created explicitly by the user (graph leaves) support the deepcopy protocol at the moment.  If you were "
    "attempting to deepcopy a module, this may be because of a torch.nn.utils.weight_norm usage, see "
    "https://github.com/pytorch/pytorch/pull/103001"
)


class CopyMethods:
    """A part of ``Tensor``."""

    __slots__ = ()

    def __reduce_ex__(self: Any, protocol: Any) -> Any:
        """Its torch tensor, so tensors that share memory share it again when they are loaded; whether it requires grad; and the
        user's attributes. On a registered device, as torch's there, each is a copy."""
        if self.lacks_handle:
            return unpickled_there, (str(self.device), self.detach().cpu().raw(), self.requires_grad, vars(self))
        given = self.raw().detach(), self.requires_grad
        return unpickled, (*given, vars(self)) if vars(self) else given

    def __copy__(self: Any) -> Any:
        """Another tensor on the same memory; a leaf where this one requires grad."""
        if self.lacks_handle:
            made = self._same_memory(keep_history=False)
            vars(made).update(vars(self))
            return made.requires_grad_() if self.requires_grad else made
        make, given = self.__reduce_ex__(4)
        return make(*given)

    def __deepcopy__(self: Any, memo: dict[int, Any]) -> Any:
        """A leaf with its ``grad``. What shares memory shares it in the copy. Raises RuntimeError for a computed tensor."""
        known = memo.get(id(self))
        if known is not None:
            return known
        if not self.is_leaf:
            raise RuntimeError(_NOT_A_LEAF)
        made = self._copied(memo)
        memo[id(self)] = made
        if not self.on_torchs_tape:
            if self.requires_grad:
                made.requires_grad_()
            if self.grad is not None:
                made.grad = copy.deepcopy(self.grad, memo)
        vars(made).update(copy.deepcopy(vars(self), memo))
        return made

    def _copied(self: Any, memo: dict[int, Any]) -> Any:
        """The tensor alone, on no tape of ours, for ``copy.deepcopy``."""
        return self.elsewhere.copied(self, memo) if self.lacks_handle else make[0](copy.deepcopy(self.raw(), memo))

    def __repr__(self: Any) -> str:
        text = repr(self.readable().detach())
        if self.lacks_handle:
            text = f"{text[:-1]}, device='{self.device}')"
        if not self.requires_grad:
            return text
        try:
            node = self.grad_fn
        except RuntimeError:  # a view whose memory was written to, which has no history; it can be looked at
            return _with(text, "grad_fn=<Invalid>")
        return _with(text, f"grad_fn=<{node.name()}>" if node is not None else "requires_grad=True")


make: list[Any] = []
"""``make[0](handle)`` is ``from_torch``; set by ``tensor.py``, which stands above this file."""


def unpickled(handle: torch.Tensor, requires_grad: bool, attributes: Mapping[str, Any] = MappingProxyType({})) -> Any:
    """A tensor as it was saved."""
    made = make[0](handle)
    vars(made).update(attributes)
    return made.requires_grad_() if requires_grad else made


def unpickled_there(device: str, handle: torch.Tensor, requires_grad: bool, attributes: Mapping[str, Any]) -> Any:
    """One of a registered device. Raises RuntimeError where there is none of that name."""
    if device.partition(":")[0] not in ALLOCATORS:
        raise RuntimeError(f"a tensor on {device} is loaded where no device of that name is registered: see register_device")
    made = make[0](handle).to(device)
    vars(made).update(attributes)
    return made.requires_grad_() if requires_grad else made


torch.serialization.add_safe_globals([unpickled, unpickled_there])  # so that torch.load takes it with weights_only, too


def _with(text: str, suffix: str) -> str:
    """``tensor(...)`` with one more field, on a line of its own where the last is full, as ``torch._tensor_str`` counts: a line
    of values as two longer than one that a field begins."""
    line = text[text.rfind("\n") + 1 : -1]
    last = len(line) + (0 if re.match(r"\s+\w+=", line) else 2)
    width = torch._tensor_str.PRINT_OPTS.linewidth  # what torch.set_printoptions sets
    indent = " " * len("tensor(")
    return f"{text[:-1]},\n{indent}{suffix})" if last + len(suffix) + 2 > width else f"{text[:-1]}, {suffix})"
