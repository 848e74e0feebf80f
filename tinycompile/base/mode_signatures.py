"""What a tensor's signature says of the modes around a call.

Torch's native check compares a tensor's dispatch keys *as this thread sees them*: entering inference mode, a dispatch mode or a
region of autocast for the tensor's device type changes these. A guard on such a tensor need not ask for these modes one by one.
"""

from __future__ import annotations

import contextlib
import functools

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tinycompile.base.torch_private import BulkCheck, function_modes

_DEVICES = ("cpu", "cuda")


def tells_modes(tensor: torch.Tensor) -> bool:
    """Whether a :class:`BulkCheck` of this tensor fails in inference mode, under a dispatch mode, and in a region of autocast
    for its device type; what is left are torch-function modes, which can be counted, and forward-mode differentiation."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.is_inference():
        return False
    return tensor.device.type in _DEVICES and _tells(tensor.device.type)


@functools.cache
def _tells(device: str) -> bool:
    """Tried out, for it is no documented property of torch."""
    tensor = torch.empty(1, device=device)
    check = BulkCheck((tensor,))
    if function_modes is None or not check.private or not check.check(tensor):
        return False
    modes: tuple[contextlib.AbstractContextManager[object], ...] = (
        torch.inference_mode(),
        TorchDispatchMode(),
        torch.autocast(device, dtype=torch.bfloat16),
    )
    return not any(_holds(check, tensor, mode) for mode in modes)


def _holds(check: BulkCheck, tensor: torch.Tensor, mode: contextlib.AbstractContextManager[object]) -> bool:
    with mode:
        return check.check(tensor)
