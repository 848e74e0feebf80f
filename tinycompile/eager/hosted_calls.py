"""What torch's tape saved on the host in a call on tensors of a registered device: it must see what was done with these since.

Torch differentiates the call on copies. Before the backward each copy is brought to where its tensor is now: other data after
``x.data = y``, and a version counted up by as many writes, of which torch then says that they are too many.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd.graph import increment_version

from tinycompile.dispatch import dispatcher
from tinycompile.eager.recording import TorchCall
from tinycompile.eager.saved import Given
from tinycompile.eager.tensor import Tensor, writes_of
from tinycompile.eager.torch_words import edited, function_name


class _Watched:
    """A tensor on the device as it was, and the torch tensor on the host that follows it: its values and its version."""

    def __init__(self, there: Tensor, host: torch.Tensor) -> None:
        self._writes, self._host = writes_of(there), host
        self._then, self._hosts = self._writes.count, host._version
        self._place, self._changes = (there.storage, there.meta), there.storage.changes

    def follow(self, source: Tensor | None = None) -> None:
        """Bring the host's to where the other is. ``source``: the tensor, whose data may have been replaced."""
        if source is not None and source.lacks_handle and source.storage is not self._place[0]:
            self._place, self._changes = (source.storage, source.meta), source.storage.changes
            self._host.data = Tensor.elsewhere.host(source)
        storage, meta = self._place
        if storage.changes != self._changes:
            self._changes = storage.changes
            self._host.data.copy_(Tensor.elsewhere.host(Tensor(storage, meta)))
        missing = self._writes.count - self._then - (self._host._version - self._hosts)
        increment_version([self._host] * missing)

    def told(self, here: tuple[str, int] | None, there: tuple[str, int] | None) -> tuple[str, str]:
        """What torch says of it, and what it would say of the tensor on the device; each with what made it."""
        dtype, shape = self._host.dtype, self._host.shape
        said = edited((dtype, "cpu"), shape, self._host._version, self._hosts, here)
        return said, edited((dtype, self._place[1].device.type), shape, self._writes.count, self._then, there)


class GivenThere(Given):
    """An argument."""

    __slots__ = ("_watched",)

    def __init__(self, there: Tensor, stand_in: torch.Tensor) -> None:
        super().__init__(there, stand_in)
        self._watched = _Watched(there, stand_in)

    def follow(self) -> None:
        """Its data, where that was replaced, and its writes."""
        self._watched.follow(self.source)

    def told(self) -> tuple[str, str]:
        """As of a tensor that torch itself saved."""
        return self._watched.told(None, self.made_by())


class MadeThere(Given):
    """A result. It holds its memory alone, for a node must not hold what holds it."""

    __slots__ = ("_name", "_watched")

    def __init__(self, there: Tensor, output: torch.Tensor) -> None:
        self.source = self.stand_in = None
        maker = output.grad_fn
        assert maker is not None
        self._watched, self._name = _Watched(there, output), (function_name(maker.name()), output.output_nr)

    def follow(self) -> None:
        """Its writes."""
        self._watched.follow()

    def told(self) -> tuple[str, str]:
        """As an argument's."""
        return self._watched.told(self._name, self._name)


def watch(made: Any, results: Any, arguments: Sequence[tuple[Tensor, Tensor]]) -> None:
    """``made`` on the host are ``results`` on the device. ``arguments``: those there, each with its copy."""
    copies = {id(copy): there for there, copy in arguments}
    seen: set[TorchCall] = set()
    for host, there in zip(dispatcher.results_in(made), dispatcher.results_in(results), strict=True):
        meta = host._autograd if isinstance(host, Tensor) else None
        if meta is None or not isinstance(node := meta.grad_fn, TorchCall):
            continue
        if node not in seen:
            seen.add(node)
            node.given = [_there(g, copies.get(id(g.source))) for g in node.given]
        node.given = (*node.given, MadeThere(there, node.outputs[meta.index]))


def _there(given: Given, source: Tensor | None) -> Given:
    """The same of what the copy was made of."""
    return given if source is None or given.stand_in is None else GivenThere(source, given.stand_in)
