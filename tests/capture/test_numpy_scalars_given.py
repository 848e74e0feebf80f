"""numpy's scalars given to torch: which of them are numbers, sizes or nothing that it takes differs from place to place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import tinycompile

pytestmark = [pytest.mark.pure, pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning")]

SCALARS = (
    np.float32(0.5), np.float64(0.5), np.float16(0.5), np.int64(2), np.int32(2), np.uint8(2), np.bool_(True), np.complex64(1),
    np.complex128(1), np.array(2), np.array(0.5),
)  # fmt: skip


def put(key: Any) -> Callable[[Any, Any], Any]:
    def program(x: Any, k: Any) -> Any:
        x[key if key != "mask" else x == 0] = k
        return x

    return program


PLACES: dict[str, Callable[[Any, Any], Any]] = {
    "put": put(0),
    "put in a slice": put(slice(None, 2)),
    "put at places": put([0]),
    "put by a mask": put("mask"),
    "split": lambda x, k: x.split(k),
    "split by name": lambda x, k: x.split(split_size=k),
    "torch.split": lambda x, k: torch.split(x, k),
    "sections": lambda x, k: x.split([k, k]),
    "chunk": lambda x, k: x.chunk(k),
    "tensor_split": lambda x, k: x.tensor_split(k),
    "sum": lambda x, k: x[None, None].sum(k),
    "view": lambda x, k: x.view(k, -1),
    "zeros": lambda x, k: torch.zeros(k),
    "full": lambda x, k: torch.full((2,), k),
    "fill": lambda x, k: x.clone().fill_(k),
    "add": lambda x, k: (x + k, k + x, torch.add(x, k)),
    "mul": lambda x, k: (x * k, torch.mul(x, k), torch.div(x, k)),
    "sub": lambda x, k: (torch.sub(x, k), torch.rsub(x, k)),
    "equal": lambda x, k: x == k,
    "clamp": lambda x, k: x.clamp(k),
    "where": lambda x, k: torch.where(x == 0, x, k),
    "masked_fill": lambda x, k: x.masked_fill(x == 0, k),
    "alpha": lambda x, k: x.add(x, alpha=k),
    "index": lambda x, k: x[k],
    "slice": lambda x, k: x[:k],
    "arange": lambda x, k: torch.arange(k),
    "linspace": lambda x, k: torch.linspace(0, k, 3),
    "steps": lambda x, k: torch.linspace(0, 1, k),
    "repeat": lambda x, k: x.repeat(k),
    "tensor": lambda x, k: torch.tensor(k),
    "leaky_relu": lambda x, k: F.leaky_relu(-x, k),
    "pad": lambda x, k: F.pad(x, (k, 1)),
    "layer_norm": lambda x, k: F.layer_norm(x, (4,), eps=k),
    "norm": lambda x, k: x.norm(k),
}


@pytest.mark.parametrize("scalar", SCALARS, ids=lambda s: f"{type(s).__name__} {s}")
@pytest.mark.parametrize("name", PLACES)
def test_taken_or_refused_as_in_eager(name: str, scalar: Any) -> None:
    def told(run: Any) -> tuple[Any, Any]:
        x = torch.arange(4.0)
        try:
            made = run(x, scalar)
        except (TypeError, RuntimeError, ValueError, IndexError) as error:
            return type(error), str(error)
        parts = made if isinstance(made, tuple) else (made,)
        return [(p.dtype, p.shape, p.tolist()) for p in parts], x.tolist()

    compiled = tinycompile.compile(PLACES[name], backend="eager")
    for _ in range(2):
        assert told(compiled) == told(PLACES[name])
