"""Guards on the modes around a call: gradients, inference, autocast, torch-function and dispatch modes, the default dtype."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tinycompile.base import torch_private
from tinycompile.base.device import default_device
from tinycompile.capture.breaks import GraphBreak
from tinycompile.eager.autocast import region_state

if TYPE_CHECKING:
    from tinycompile.capture.tracer import Tracer


def guard_modes(tr: Tracer) -> None:
    """The modes of this call must be those of each later one. Breaks under a mode that capture can't follow."""
    check = tr.guards.state_check
    on_default = torch_private.only_default_device()
    if not on_default and not torch_private.no_python_modes():
        check("not _no_python_modes() and not _only_default_device()", "a torch function or dispatch mode, or a dual level")
        raise GraphBreak("mode", "a torch function or dispatch mode, or forward-mode differentiation, is active")
    check(f"_grad_enabled() is {tr.grad_enabled}", f"grad mode is {'on' if tr.grad_enabled else 'off'}")
    inference = torch.is_inference_mode_enabled()
    if tr.root_regions is None and not inference and not on_default:
        tr.guards.ordinary_mode()
    else:
        if on_default:
            device = tr.guards.hold(default_device(), "device_")
            check(f"_only_default_device() and _default_device() == {device.name}", f"the default device is {device.value}")
        else:
            check("_no_python_modes()", "no torch function or dispatch mode, no dual level")
        check(f"_inference_mode() is {inference}", f"inference mode is {'on' if inference else 'off'}")
        if tr.root_regions is None:
            check("not _any_autocast()", "no autocast")
        else:
            state, now = tr.guards.hold(tr.root_regions, "autocast"), tr.guards.hold(region_state, "region_state")
            check(f"{now.name}() == {state.name}", f"autocast: {state.value}")
    dtype = tr.guards.hold(torch.get_default_dtype(), str(torch.get_default_dtype()).removeprefix("torch."))
    tr.guards.state_check(f"_default_dtype() is {dtype.name}", f"the default dtype is {dtype.value}")
    if torch.cuda.is_initialized():  # there sums at indices depend on the order of atomic additions: see lower/scatter.py
        wanted = torch.are_deterministic_algorithms_enabled()
        check(f"_deterministic() is {wanted}", f"deterministic algorithms are {'wanted' if wanted else 'not wanted'}")
    if inference and tr.grad_enabled:
        raise GraphBreak("grad-mode", "gradients are switched on within inference mode, which takes none")
