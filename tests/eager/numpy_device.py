"""A device whose memory is numpy's: what ``tinycompile.register_device`` needs, in full.

Registered under the name ``npd``. It has kernels for six ops, and generates numpy code for fused pointwise kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

import tinycompile
from tinycompile.ir.loops import Const, Load, Nest, Scalar, Store
from tinycompile.ir.plan import Kernel, Plan

NAME = "npd"
log: list[str] = []  # what ran, for the tests


class Chunk:
    """Memory of the device: numpy bytes, and where they are."""

    def __init__(self, nbytes: int, index: int) -> None:
        self.bytes, self.index = np.zeros(nbytes, np.uint8), index


def copy(to: Any, of: Any) -> None:
    """Between chunks and flat uint8 torch tensors on the host."""
    log.append("copy")
    target, source = (m.bytes if isinstance(m, Chunk) else m.numpy() for m in (to, of))
    target[:] = source


def array(t: tinycompile.Tensor) -> np.ndarray:
    """A tensor's elements as a numpy view of its memory."""
    dtype = np.dtype(str(t.dtype).removeprefix("torch."))
    flat = t.storage.memory.bytes[: t.storage.nbytes // dtype.itemsize * dtype.itemsize].view(dtype)
    strides = tuple(s * dtype.itemsize for s in t.stride())
    return np.lib.stride_tricks.as_strided(flat[t.offset :], tuple(t.shape), strides)


def kernel(name: str, fn: Callable[..., Any]) -> Callable[..., None]:
    """A kernel from a numpy function of the tensors' arrays."""

    def run(out: tinycompile.Tensor, *args: Any) -> None:
        log.append(name)
        array(out)[...] = fn(*(array(a) if isinstance(a, tinycompile.Tensor) else a for a in args))

    run.__qualname__ = f"numpy {name}"
    return run


KERNELS = {
    "add": kernel("add", lambda a, b, alpha=1: a + alpha * b),
    "mul": kernel("mul", np.multiply),
    "neg": kernel("neg", np.negative),
    "relu": kernel("relu", lambda a: np.maximum(a, 0)),
    "mm": kernel("mm", np.matmul),
    "matmul": kernel("matmul", np.matmul),
}

# --- code: one numpy statement for each statement of a pointwise nest --------------------------------------------------------

_SCALAR = {
    "add": "{0} + {1}", "sub": "{0} - {1}", "mul": "{0} * {1}", "neg": "-{0}", "exp": "np.exp({0})", "maximum": "np.maximum({0}, {1})",
}  # fmt: skip


def codegen(fused: Kernel, plan: Plan) -> tuple[str, Callable[..., None]] | None:
    """Numpy source and its function; None for anything but plain pointwise nests, which then runs op by op."""
    lines = [line for nest in fused.nests for line in _body(nest) or [""]]
    if "" in lines:
        return None
    buffers = list(dict.fromkeys((*fused.reads, *fused.writes)))
    names = [*(f"at_{b}" for b in buffers), *(s.symbol for s in plan.sizes)]
    text = f"def {fused.nest.name}({', '.join(names)}):\n" + "\n".join(f"    {line}" for line in lines) + "\n"
    space: dict[str, Any] = {"np": np}
    exec(text, space)

    def launch(*args: Any) -> None:
        log.append(f"code {fused.nest.name}")
        space[fused.nest.name](*map(array, args[: len(buffers)]), *args[len(buffers) :])

    return text, launch


def _body(nest: Nest) -> list[str] | None:
    """The lines of one nest; None where a statement is not known here."""
    rank = len(nest.axes)
    lines = []
    for i, axis in enumerate(nest.axes):
        shape = ", ".join("-1" if j == i else "1" for j in range(rank))
        lines.append(f"{axis.name} = np.arange({axis.extent}).reshape({shape})")
    for s in nest.body:
        if isinstance(s, Load) and not s.mask:
            lines.append(f"{s.name} = at_{s.buffer}[{_index(s.index)}]")
        elif isinstance(s, Const) and isinstance(s.value, (int, float)):
            lines.append(f"{s.name} = np.array({s.value!r}, np.{_numpy(s.dtype)})")
        elif isinstance(s, Scalar) and s.op in _SCALAR:
            lines.append(f"{s.name} = {_SCALAR[s.op].format(*s.args)}")
        elif isinstance(s, Store) and s.mode == "plain":
            lines.append(f"at_{s.buffer}[{_index(s.index)}] = {s.value}")
        else:
            return None
    return lines


def _index(index: tuple[Any, ...]) -> str:
    return ", ".join(str(i) for i in index) or "()"


def _numpy(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.").replace("bool", "bool_")


def register(codegen: Callable[..., Any] | None = codegen, kernels: Mapping[str, Any] = KERNELS) -> tinycompile.Device:
    """Put it into the slot."""
    return tinycompile.register_device(NAME, Chunk, copy, kernels, codegen)
