"""``kernel[grid](x, out, n, BLOCK=256)``: a launch of the program's own Triton kernel as an op without effects.

A kernel returns nothing: it writes where its pointers lead. As an op it returns the new content of each tensor that it writes,
made in memory of the same strides: capture lets the program's tensors take it over. So what reads and writes them is ordered by
data alone, and a call that fails can be done again.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from tinycompile.base.meta import TensorMeta
from tinycompile.dispatch import dispatcher
from tinycompile.dispatch import schema as schemas
from tinycompile.ops.record import CUSTOM, OPS, Extern, Op, register


@dataclass(frozen=True, slots=True)
class Slot:
    """A tensor among a launch's arguments, by its place among the launch's tensors."""

    at: int


@dataclass(frozen=True, slots=True)
class Fresh:
    """A tensor to which nothing had been written before the launch: it is made for it. ``meta`` has numbers alone."""

    meta: TensorMeta

    def made(self) -> torch.Tensor:
        """Memory as it is found."""
        m: Any = self.meta
        return torch.empty_strided(m.shape, m.strides, dtype=m.dtype, device=m.device.torch())


@dataclass(frozen=True, slots=True)
class GridByConfig:
    """A grid that depends on the configuration that an autotuner tries. ``grids``: the values of its parameters -> the grid."""

    grids: tuple[tuple[tuple[tuple[str, Any], ...], tuple[int, ...]], ...]

    def __call__(self, meta: Mapping[str, Any]) -> tuple[int, ...]:
        return next(grid for config, grid in self.grids if all(meta.get(k) == v for k, v in config))


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch. ``args`` and ``kwargs``: a Slot for each tensor, else the argument itself. ``written``: what the kernel
    writes to: slots, and tensors that are made for it, which ``args`` name by places past all slots. ``text``: its source."""

    kernel: Any = field(repr=False)
    name: str
    grid: tuple[int, ...] | GridByConfig
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    written: tuple[Slot | Fresh, ...]
    tensors: int
    text: str = field(repr=False, default="")

    def __call__(self, *tensors: torch.Tensor) -> Any:
        """Launch it on copies of what it writes to; returns these."""
        given = [t.detach() for t in tensors]
        made = []
        for target in self.written:
            if isinstance(target, Fresh):
                made.append(target.made())
                given.append(made[-1])
                continue
            old = given[target.at]
            new = torch.empty_strided(old.shape, old.stride(), dtype=old.dtype, device=old.device)
            made.append(new.copy_(old))
            given[target.at] = new
        args = [given[a.at] if isinstance(a, Slot) else a for a in self.args]
        self.kernel[self.grid](*args, **{k: given[v.at] if isinstance(v, Slot) else v for k, v in self.kwargs})
        return tuple(made) if len(made) > 1 else made[0]

    def meta(self, *metas: TensorMeta) -> TensorMeta | tuple[TensorMeta, ...]:
        """The results: like the tensors that are written."""
        like = [w.meta if isinstance(w, Fresh) else metas[w.at] for w in self.written]
        made = tuple(TensorMeta(m.shape, m.strides, m.dtype, m.device) for m in like)
        return made if len(made) > 1 else made[0]


_LAUNCHES: dict[str, Launch] = {}


def op_of(launch: Launch) -> str:
    """The name of the op that a launch is; equal launches of one kernel are one op."""
    mark = hashlib.sha256(repr((launch, launch.text)).encode()).hexdigest()
    base = f"launch_{launch.name}_{mark[:10]}"
    for serial in itertools.count():
        name = f"{base}_{serial}" if serial else base
        known = _LAUNCHES.get(name)
        if known is None:
            break
        if known.kernel is launch.kernel:
            return name
    results = ", ".join(["Tensor"] * len(launch.written))
    given = ", ".join(f"Tensor t{i}" for i in range(launch.tensors))
    schema = schemas.parse(f"{name}({given}) -> {results if len(launch.written) == 1 else f'({results})'}")
    register(Op(schema, launch.meta, launch, Extern(), (), tuple, None, doc=f"A launch of the Triton kernel {launch.name}."))
    dispatcher.define(schema)
    CUSTOM[name], _LAUNCHES[name] = mark, launch
    return name


def forget(name: str) -> None:
    """Take an op of a launch out of all tables."""
    del OPS[name], CUSTOM[name], _LAUNCHES[name]
    dispatcher.undefine(name)
