"""Makes real tensors of TensorSpecs, the same ones every time."""

from collections.abc import Iterator
from typing import Any

import torch

from tinycompile.ops.record import TensorSpec

_SPECIAL = (float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.5, 1e-3, 100.0)


def _values(spec, shape, generator):
    dtype = getattr(torch, spec.dtype)
    n = torch.Size(shape).numel()
    if spec.fill.startswith("index:"):
        bound = int(spec.fill[6:])
        low, high = (0, bound) if bound > 0 else (bound, -bound)
        return torch.randint(low, high, shape, generator=generator).to(dtype)
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    if not dtype.is_floating_point:
        low = 1 if spec.fill == "positive" else 0 if dtype == torch.uint8 else -5
        return torch.randint(low, 6, shape, generator=generator).to(dtype)
    x = torch.randn(shape, generator=generator, dtype=torch.float64)
    if spec.fill == "positive":
        x = x.abs() + 1.1
    elif spec.fill == "unit":
        x = torch.tanh(x) * 0.98
    elif spec.fill == "integers":
        x = torch.randint(-3, 4, shape, generator=generator).double()
    elif spec.fill == "special":
        order = torch.randint(0, len(_SPECIAL), (n,), generator=generator)
        x = torch.tensor(_SPECIAL, dtype=torch.float64)[order].reshape(shape)
    elif spec.fill != "normal":
        raise ValueError(spec.fill)
    return x.to(dtype)


def tensor(spec: TensorSpec, seed: int) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    shape = tuple(spec.shape)
    if spec.layout == "contiguous":
        return _values(spec, shape, g)
    if spec.layout == "transposed":
        return _values(spec, shape[::-1], g).permute(tuple(reversed(range(len(shape)))))
    if spec.layout == "strided":
        return _values(spec, (*shape[:-1], shape[-1] * 2), g)[..., ::2]
    if spec.layout == "expanded":
        return _values(spec, (1, *shape[1:]), g).expand(shape)
    if spec.layout == "offset":
        return _values(spec, (shape[0] + 1, *shape[1:]), g)[1:]
    if spec.layout == "channels_last":
        return _values(spec, shape, g).to(memory_format=torch.channels_last)
    raise ValueError(spec.layout)


def arguments(value, seed=0):
    """Replace every TensorSpec, also in lists; each gets its own seed."""
    if isinstance(value, TensorSpec):
        return tensor(value, seed)
    if isinstance(value, (tuple, list)):
        return type(value)(arguments(v, seed * 31 + i + 1) for i, v in enumerate(value))
    if isinstance(value, dict):
        return {k: arguments(v, seed * 37 + i + 1) for i, (k, v) in enumerate(value.items())}
    return value


def specs_in(value: Any) -> Iterator[TensorSpec]:
    """The TensorSpecs in a sample's arguments, in order."""
    if isinstance(value, TensorSpec):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from specs_in(item)
