"""What a step of torch's optimizers touches: gathered from parameter groups and state, checked, and counted."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.optim import Optimizer

from tinycompile.base import dict_versions
from tinycompile.base.shapes import reach

APART = ("capturable", "fused", "differentiable")  # settings under which torch's own step runs
SCALARS = ("lr", "weight_decay", "momentum", "dampening", "eps")  # settings that are single numbers
_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@dataclass(frozen=True)
class Tensors:
    """All that a group's step touches, parameter by parameter; ``states``: one list a name. ``held``: the parameters' own
    dicts in ``optimizer.state``."""

    parameters: list[torch.Tensor]
    grads: list[torch.Tensor]
    states: list[list[torch.Tensor]]
    held: list[dict[str, Any]]

    @functools.cached_property
    def flat(self) -> list[torch.Tensor]:
        """The graph's inputs before the numbers."""
        return [*self.parameters, *self.grads, *itertools.chain.from_iterable(self.states)]

    @property
    def updated(self) -> list[torch.Tensor]:
        """What the step writes."""
        return [*self.parameters, *itertools.chain.from_iterable(self.states)]


def why_group_apart(group: Mapping[str, Any]) -> str | None:
    """Why a group's settings ask for torch's own step, in words; None where they don't. What it can't compute with it says."""
    for name in APART:
        if group.get(name):
            return f"a group is {name}"
    rate = group["lr"]
    if isinstance(rate, torch.Tensor) and rate.device.type != "cpu":
        return "a learning rate lies on a device"
    for name in SCALARS:
        if type(group.get(name, 0.0)) is not float and not _is_number(group.get(name, 0.0)):
            return f"{name} of a group is {group[name]!r}"
    betas = group.get("betas", (0.0, 0.0))
    if not isinstance(betas, (tuple, list)) or len(betas) != 2 or not all(map(_is_number, betas)):
        return f"betas of a group are {betas!r}"
    return None


def _is_number(value: Any) -> bool:
    """Whether torch takes it for a number wherever a step reads one: not so booleans, and fractions."""
    if isinstance(value, torch.Tensor):
        return value.numel() == 1
    return isinstance(value, (float, int, np.floating, np.integer)) and type(value) is not bool


def gather(optimizer: Optimizer, group: Mapping[str, Any], names: Sequence[str]) -> Tensors | None:
    """A group's tensors with the states of these names; None where torch's own step is to run: it makes the state."""
    pairs = [(p, g) for p in group["params"] if (g := p.grad) is not None]
    parameters, grads = [p for p, _ in pairs], [g for _, g in pairs]
    if not names:
        return Tensors(parameters, grads, [], [])
    state = optimizer.state
    held = [state[p] for p in parameters]
    try:
        states = [[s[name] for s in held] for name in names]
    except KeyError:
        return None
    return Tensors(parameters, grads, states, held) if all(t is not None for s in states for t in s) else None


class Standing:
    """A group's parameters and states as a step found them. Dicts hold them, whose versions tell that they are still there: a
    step then only gathers gradients."""

    def __init__(self, optimizer: Optimizer, group: Mapping[str, Any], names: Sequence[str], found: Tensors) -> None:
        self._group, self._names, self._found = group, tuple(names), replace(found, grads=[])
        self._everything = list(group["params"])
        self._dicts = optimizer.state, *found.held
        self._read = dict_versions.Reader(self._dicts)  # (a version is no longer asked for when a dict is gone: they are held)
        self._versions = self._read()

    @classmethod
    def of(cls, optimizer: Optimizer, group: Mapping[str, Any], names: Sequence[str], found: Tensors) -> Standing | None:
        """None where nothing tells of changes, or some parameters have no gradient."""
        # An empty dict may be filled without a change of its version.
        plain = isinstance(optimizer.state, dict) and all(held and type(held) is dict for held in found.held)
        told = plain and dict_versions.can_tell() and len(found.parameters) == len(group["params"])
        return cls(optimizer, group, names, found) if told else None

    def gave(self, tensors: Tensors) -> bool:
        """Whether these were gathered by :meth:`now`."""
        return tensors.held is self._found.held and tensors.parameters is self._found.parameters

    def now(self, optimizer: Optimizer, group: Mapping[str, Any], names: Sequence[str]) -> Tensors | None:
        """The same with the gradients of now; None where something has changed, or a gradient is missing."""
        same = self._group is group and optimizer.state is self._dicts[0] and self._names == tuple(names)
        if not same or self._read() != self._versions or not same_objects(group["params"], self._everything):
            return None
        grads = list(map(_GRAD, self._everything))
        return replace(self._found, grads=grads) if all(map(operator.is_not, grads, itertools.repeat(None))) else None


_GRAD = operator.attrgetter("grad")


def same_objects(a: Sequence[Any], b: Sequence[Any]) -> bool:
    """Whether two sequences hold the same objects."""
    return len(a) == len(b) and all(map(operator.is_, a, b))


class Counter:
    """The step count that a group's parameters share. Their counters become views of one tensor, so that one addition counts
    for all; what somebody else writes to them is noticed by its version."""

    def __init__(self) -> None:
        self.value = 0.0
        self._all = torch.zeros(0)
        self._each: list[torch.Tensor] = []
        self._version = 0

    def advance(self) -> float:
        """Count a step and return its number."""
        self._all.add_(1.0)
        self._version, self.value = self._all._version, self.value + 1
        return self.value

    def follow(self, held: Sequence[dict[str, Any]]) -> bool:
        """Make sure that these counters are ours and known. False where they differ or lie on a device."""
        counts = [s["step"] for s in held]
        known = len(counts) == len(self._each) and self._version == self._all._version
        if known and all(map(operator.is_, counts, self._each)):
            return True
        if any(c.device.type != "cpu" for c in counts):
            return False
        values = {c.item() for c in counts}
        if len(values) != 1:
            return False
        self.value = values.pop()
        self._all = torch.full((len(counts),), self.value, dtype=counts[0].dtype)
        self._each = [self._all[i] for i in range(len(counts))]
        self._version = self._all._version
        for s, view in zip(held, self._each, strict=True):
            s["step"] = view
        return True


def covered(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether all lie on one device as plain floating tensors, each in memory of its own."""
    device = tensors[0].device
    plain = all(t.device == device and t.layout is torch.strided and t.dtype in _DTYPES for t in tensors)
    return plain and not _overlap(tensors)


def _overlap(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether two tensors share memory, to be on the safe side."""
    spans = sorted((t.data_ptr(), t.data_ptr() + t.dtype.itemsize * reach(t.shape, t.stride())) for t in tensors if t.numel())
    return any(end > start for (_, end), (start, _) in itertools.pairwise(spans))


def alignment(tensors: Sequence[torch.Tensor]) -> tuple[bool, ...] | None:
    """Which tensors begin at a multiple of 16 bytes; None when all do."""
    every = functools.reduce(operator.or_, map(torch.Tensor.data_ptr, tensors), 0)
    return None if not every & 15 else tuple(t.data_ptr() % 16 == 0 for t in tensors)
