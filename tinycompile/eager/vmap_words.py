"""What torch says of a wrong ``vmap``. Its words differ by version: the installed torch is asked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from tinycompile.base import shapes
from tinycompile.eager.batched import BatchedTensor, mapped
from tinycompile.eager.no_trace import leaving_no_trace


@contextmanager
def said_by_torch(name: str, in_dims: Any, args: tuple[Any, ...], out_dims: Any = 0, results: Any = None) -> Iterator[None]:
    """What the block finds wrong with ``vmap(fn, in_dims, out_dims)(*args)``, where ``fn`` is called ``name`` and has returned
    ``results``, is raised as torch raises it."""
    try:
        yield
    except (ValueError, IndexError) as error:

        def fn(*given: Any) -> Any:
            return mapped(results, lambda t: _stand_in(t) + 0 * _first(given) if _has_examples(t) else _stand_in(t))

        fn.__name__ = name
        try:
            with leaving_no_trace():
                torch.vmap(fn, in_dims, out_dims)(*mapped(args, _stand_in))
        except Exception as torchs:  # noqa: BLE001  # whatever it is, the caller gets it
            raise torchs.with_traceback(None) from None
        raise error


def refuse_as_strided(x: BatchedTensor, size: Any, stride: Any, offset: Any) -> None:
    """Raise what torch raises for ``as_strided`` of each example: where one would reach beyond its own elements."""
    value = x.value
    sizes, strides, start = ([shapes.hint(n) for n in of] for of in (value.shape, value.stride(), (value.meta.offset,)))
    end = max(start[0] + shapes.reach(tuple(sizes), tuple(strides)), value.storage.nbytes // value.dtype.itemsize)
    like = torch.empty(end, dtype=value.dtype).as_strided(sizes, strides, start[0])
    torch.vmap(lambda t: t.as_strided(size, stride, offset))(like if x.batched else like[None])


def _stand_in(tensor: Any) -> torch.Tensor:
    return torch.zeros([shapes.hint(size) for size in tensor.shape])


def _has_examples(tensor: Any) -> bool:
    return isinstance(tensor, BatchedTensor) and tensor.batched


def _first(given: Any) -> Any:
    """A number of each example."""
    found: list[torch.Tensor] = []
    mapped(given, lambda t: found.append(t.sum()))
    return sum(found)
