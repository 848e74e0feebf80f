"""Tensors that must not be edited before a backward has run. Held are their version counters, not their memory: what was edited
may be gone by then."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator

import torch

from tinycompile.base.known_tensors import method_of_torchs

_copy = method_of_torchs("copy_")
_NOTHING = torch.empty(0, device="cpu")


class Seen:
    """A tensor as it was. ``shape``, ``dtype``, ``device``: what it had then."""

    __slots__ = ("_counter", "_ref", "device", "dtype", "shape", "version")

    def __init__(self, tensor: torch.Tensor) -> None:
        self._ref, self._counter, self.version = weakref.ref(tensor), _counter(tensor), tensor._version
        self.shape, self.dtype, self.device = tensor.shape, tensor.dtype, tensor.device

    def rename(self, alias: torch.Tensor) -> None:
        """``alias``, which counts the same versions, is what the program has of it."""
        self._ref = weakref.ref(alias)

    @property
    def tensor(self) -> torch.Tensor | None:
        """Itself, as long as the program has it."""
        return self._ref()

    @property
    def now(self) -> int:
        """Its version."""
        if self._counter is not None:
            return self._counter._version
        tensor = self._ref()
        return self.version if tensor is None else tensor._version


def _counter(tensor: torch.Tensor) -> torch.Tensor | None:
    """A tensor without elements that counts the same versions; None where torch makes none."""
    alias = tensor.detach()
    try:
        alias.data = _NOTHING
    except RuntimeError:  # another kind of tensor
        return None
    return alias


class Watch:
    """Some tensors, with their versions. A node of torch's autograd may have one, as its attribute ``watch``; ``of_output``:
    the position here of the tensor that it returned as its output of that number."""

    __slots__ = ("_seen", "of_output")

    def __init__(self, tensors: Iterable[torch.Tensor], of_output: dict[int, int]) -> None:
        self._seen = [Seen(t) for t in tensors]
        self.of_output = of_output

    def edited(self, positions: Iterable[int]) -> Iterator[tuple[int, Seen]]:
        """Those of the tensors at these positions that were edited."""
        for i in positions:
            seen = self._seen[i]
            if seen.now != seen.version:
                yield i, seen

    def rename(self, output: int, alias: torch.Tensor) -> None:
        """The program has ``alias`` of an output."""
        at = self.of_output.get(output)
        if at is not None:
            self._seen[at].rename(alias)

    def instead(self, output: int, tensor: torch.Tensor) -> None:
        """``tensor`` has taken over the values of an output."""
        at = self.of_output.get(output)
        if at is not None:
            self._seen[at] = Seen(tensor)


def take_over(tensor: torch.Tensor, data: torch.Tensor) -> None:
    """``tensor.copy_(data)``, where the program wrote in place: an edit of ``tensor`` from here on is one of ``data``."""
    _copy(tensor, data)
    watch = getattr(data.grad_fn, "watch", None)
    if watch is not None:
        watch.instead(data.output_nr, tensor)


def look_up_history(*views: torch.Tensor) -> None:
    """Have torch give views the history of what they view: it looks that up when it is asked for, and until then takes a view
    for a leaf whose owner has got its first one."""
    for view in views:
        view.grad_fn  # noqa: B018
