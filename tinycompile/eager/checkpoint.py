"""``checkpoint``: run a part of the forward without saving what its backward reads, and run it again when backward asks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointError

from tinycompile.base.meta import TensorMeta
from tinycompile.eager.autograd import saved_tensors_hooks
from tinycompile.eager.rng import cuda_devices, drawn_again, rng_state
from tinycompile.eager.saved import Given, metadata
from tinycompile.eager.tensor import Tensor


def checkpoint(function: Callable[..., Any], *args: Any, preserve_rng_state: bool = True, **kwargs: Any) -> Any:
    """``function(*args, **kwargs)``, recomputed in the backward pass, as far as the last tensor that it saved. It must do the
    same ops again for the same arguments; random numbers are the same with ``preserve_rng_state``. Backward raises RuntimeError
    where an argument was written to, or where the function itself has written to what it saved before it saved the last."""
    frame = _Frame(function, args, kwargs, preserve_rng_state)
    with saved_tensors_hooks(frame.pack, frame.unpack):
        return function(*args, **kwargs)


class _Frame:
    """One call. What is packed is a number; what is unpacked comes from the second run, and is let go as it is read."""

    def __init__(self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], keep_rng: bool) -> None:
        self.function, self.args, self.kwargs = function, args, kwargs
        self.metas: list[TensorMeta] = []  # of what was saved, in order
        self.again: dict[int, Given] = {}
        self.devices = cuda_devices((*args, *kwargs.values()))
        self.rng = rng_state(self.devices) if keep_rng else None
        tensors = [a for a in args if isinstance(a, (Tensor, torch.Tensor))] if torch.is_grad_enabled() else []
        self.given = [Given(t) for t in tensors]  # as torch: arguments by name, and in lists, are the caller's to leave alone

    def pack(self, tensor: Any) -> int:
        """The number of a saved tensor."""
        self.metas.append(metadata(tensor))
        return len(self.metas) - 1

    def unpack(self, number: int) -> Any:
        """The same tensor of the second run, as it was saved there."""
        if number not in self.again:
            self._run_again()
        saved = self.again.pop(number)
        saved.check()
        return saved.source

    def _run_again(self) -> None:
        for argument in self.given:
            argument.check()
        run = _SecondRun(len(self.metas))
        with (
            drawn_again(self.rng, self.devices),
            torch.enable_grad(),
            saved_tensors_hooks(run.pack, lambda t: t),
            suppress(_Enough),
        ):
            self.function(*self.args, **self.kwargs)
        self._compare(run.found)
        self.again = dict(enumerate(run.found))

    def _compare(self, found: Sequence[Given]) -> None:
        """Raise torch's error where the second run has saved other tensors."""
        if len(found) != len(self.metas):
            raise CheckpointError(
                "checkpoint: A different number of tensors was saved during the original forward and recomputation.\n"
                f"Number of tensors saved during forward: {len(self.metas)}\n"
                f"Number of tensors saved during recomputation: {len(found)}."
            )
        pairs = [(_described(a), _described(metadata(b.source))) for a, b in zip(self.metas, found, strict=True)]
        others = [(i, a, b) for i, (a, b) in enumerate(pairs) if a != b]
        if others:
            listed = (f"tensor at position {i}:\nsaved metadata: {a}\nrecomputed metadata: {b}\n" for i, a, b in others)
            raise CheckpointError(
                "checkpoint: Recomputed values for the following tensors have different metadata than during the forward "
                f"pass.\n{''.join(listed)}"
            )


class _Enough(Exception):  # noqa: N818  it is no error
    """Leaves the second run once all that the first saved was saved again: what would come after may write to it."""


class _SecondRun:
    """What the second run saves: so many tensors."""

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted
        self.found: list[Given] = []

    def pack(self, tensor: Any) -> Any:
        """Take the next."""
        self.found.append(Given(tensor))
        if len(self.found) == self.wanted:
            raise _Enough
        return tensor


def _described(meta: TensorMeta) -> dict[str, Any]:
    """What torch compares."""
    return {"shape": torch.Size(tuple(map(int, meta.shape))), "dtype": meta.dtype, "device": meta.device.torch()}
