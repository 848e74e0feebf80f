"""Tensors that must not be edited before a backward has run: known weakly, for what is gone can't be edited."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator

import torch


class Watch:
    """Some tensors, with their versions. A node of torch's autograd may have one, as its attribute ``watch``; ``of_output``:
    the position here of the tensor that it returned as its output of that number."""

    __slots__ = ("_seen", "of_output")

    def __init__(self, tensors: Iterable[torch.Tensor], of_output: dict[int, int]) -> None:
        self._seen = [(weakref.ref(t), t._version) for t in tensors]
        self.of_output = of_output

    def edited(self, positions: Iterable[int]) -> Iterator[tuple[int, torch.Tensor, int]]:
        """Those of the tensors at these positions that were edited: position, tensor, version from before."""
        for i in positions:
            ref, version = self._seen[i]
            t = ref()
            if t is not None and t._version != version:
                yield i, t, version

    def instead(self, output: int, tensor: torch.Tensor) -> None:
        """``tensor`` has taken over the values of an output."""
        at = self.of_output.get(output)
        if at is not None:
            self._seen[at] = weakref.ref(tensor), tensor._version


def take_over(tensor: torch.Tensor, data: torch.Tensor) -> None:
    """``tensor.copy_(data)``, where the program wrote in place: an edit of ``tensor`` from here on is one of ``data``."""
    tensor.copy_(data)
    watch = getattr(data.grad_fn, "watch", None)
    if watch is not None:
        watch.instead(data.output_nr, tensor)


def look_up_history(*views: torch.Tensor) -> None:
    """Have torch give views the history of what they view: it looks that up when it is asked for, and until then takes a view
    for a leaf whose owner has got its first one."""
    for view in views:
        view.grad_fn  # noqa: B018
