"""Whether torch's tensors themselves say what they are: a program may put attributes of its own over those that this package's
code reads, and that code is not to ask the program."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import torch

from tinycompile.base import dict_versions

# What says what a tensor is, and the few operations by which compiled code hands tensors on. Others, also those that look like
# attributes (``T``, ``real``), are not among them: capture follows what a program puts in their place.
FACTS = frozenset(
    {
        "_backward_hooks", "_base", "_cdata", "_is_view", "_post_accumulate_grad_hooks", "_version", "as_strided", "copy_",
        "data", "data_ptr", "detach", "device", "dim", "dtype", "element_size", "get_device", "grad", "grad_fn", "is_complex",
        "is_conj", "is_contiguous", "is_cpu", "is_cuda", "is_floating_point", "is_inference", "is_leaf", "is_meta", "is_neg",
        "is_nested", "is_quantized", "is_signed", "is_sparse", "itemsize", "layout", "name", "nbytes", "ndim", "ndimension",
        "nelement", "numel", "output_nr", "requires_grad", "retains_grad", "shape", "size", "storage_offset", "stride",
        "untyped_storage",
    }
)  # fmt: skip
_METHODS = dict(vars(torch.Tensor))
_CLASSES = (torch.nn.Parameter, torch.Tensor)
_ATTRIBUTES = tuple(vars(cls) for cls in _CLASSES)
_OWN = tuple({name: held[name] for name in FACTS if name in held} for held in _ATTRIBUTES)


def _look() -> bool:
    """Whether both classes have of these names what they had when this was imported."""
    for held, own in zip(_ATTRIBUTES, _OWN, strict=True):
        found = FACTS & held.keys()
        if found != own.keys() or any(held[name] is not own[name] for name in found):
            return False
    return True


def _known() -> Callable[[], bool]:
    """A look whose answer holds as long as the classes' dicts have the versions that they had then."""
    behind = [gc.get_referents(held) for held in _ATTRIBUTES]
    if not dict_versions.can_tell() or any(len(found) != 1 for found in behind):
        return _look
    read = dict_versions.Reader([found[0] for found in behind]).bare()
    seen: tuple[object, bool] = (None, False)

    def known() -> bool:
        """Whether torch's tensors say themselves what they are (0.1 us where versions can be read)."""
        nonlocal seen
        now = read()  # before the look: a change during it is seen next time
        last = seen
        if last[0] != now:
            seen = last = now, _look()
        return last[1]

    return known


tensors_are_torchs = _known()


def method_of_torchs(name: str) -> Any:
    """What torch has for a method of tensors, whatever the program put in its place."""
    return _METHODS[name] if name in _METHODS else getattr(super(torch.Tensor, torch.Tensor), name)
