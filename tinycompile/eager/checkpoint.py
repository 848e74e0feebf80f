"""``checkpoint``: run a part of the forward without saving what its backward reads, and run it again when backward asks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from tinycompile.eager.autograd import saved_tensors_hooks
from tinycompile.eager.rng import cuda_devices, drawn_again, rng_state
from tinycompile.eager.saved import Given
from tinycompile.eager.tensor import Tensor


def checkpoint(function: Callable[..., Any], *args: Any, preserve_rng_state: bool = True, **kwargs: Any) -> Any:
    """``function(*args, **kwargs)``, recomputed in the backward pass. It must do the same ops again for the same arguments;
    random numbers are the same with ``preserve_rng_state``. Backward raises RuntimeError where an argument was written to."""
    frame = _Frame(function, args, kwargs, preserve_rng_state)
    with saved_tensors_hooks(frame.pack, frame.unpack):
        return function(*args, **kwargs)


class _Frame:
    """One call. What is packed is a number; what is unpacked comes from the second run, and is let go as it is read."""

    def __init__(self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], keep_rng: bool) -> None:
        self.function, self.args, self.kwargs = function, args, kwargs
        self.count = 0
        self.again: dict[int, Any] = {}
        self.devices = cuda_devices((*args, *kwargs.values()))
        self.rng = rng_state(self.devices) if keep_rng else None
        tensors = [a for a in args if isinstance(a, (Tensor, torch.Tensor))] if torch.is_grad_enabled() else []
        self.given = [Given(t) for t in tensors]  # as torch: arguments by name, and in lists, are the caller's to leave alone

    def pack(self, tensor: Any) -> int:
        """The number of a saved tensor."""
        self.count += 1
        return self.count - 1

    def unpack(self, number: int) -> Any:
        """The same tensor of the second run."""
        if number not in self.again:
            self._run_again()
        return self.again.pop(number)

    def _run_again(self) -> None:
        for argument in self.given:
            argument.check()
        found: list[Any] = []
        with (
            drawn_again(self.rng, self.devices),
            torch.enable_grad(),
            saved_tensors_hooks(lambda t: _append(found, t), lambda t: t),
        ):
            self.function(*self.args, **self.kwargs)
        if len(found) != self.count:
            raise RuntimeError(
                "checkpoint: A different number of tensors was saved during the original forward and recomputation.\n"
                f"Number of tensors saved during forward: {self.count}\n"
                f"Number of tensors saved during recomputation: {len(found)}."
            )
        self.again = dict(enumerate(found))


def _append(found: list[Any], tensor: Any) -> Any:
    found.append(tensor)
    return tensor
