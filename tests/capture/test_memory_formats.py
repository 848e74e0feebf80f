"""Memory formats of tensors with sizes of one and of nothing: which conversion gives the tensor itself, and the strides of what
is made. On fakes, and where the graph is lowered."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

import tinycompile

pytestmark = pytest.mark.cpu

FORMATS = (torch.channels_last, torch.channels_last_3d, torch.contiguous_format, torch.preserve_format)
CALLS: dict[str, Callable[[torch.Tensor, torch.memory_format], torch.Tensor]] = {
    "to": lambda x, f: x.to(memory_format=f),
    "to its dtype": lambda x, f: x.to(torch.float32, memory_format=f),
    "to another": lambda x, f: x.to(torch.float64, memory_format=f),
    "copied": lambda x, f: x.to(torch.float32, copy=True, memory_format=f),
    "float": lambda x, f: x.float(memory_format=f),
    "cpu": lambda x, f: x.cpu(memory_format=f),
    "contiguous": lambda x, f: x.contiguous(memory_format=f),
    "clone": lambda x, f: x.clone(memory_format=f),
    "zeros_like": lambda x, f: torch.zeros_like(x, memory_format=f),
}
SHAPES = (
    (2, 4, 1, 1), (1, 1, 1, 1), (2, 4, 3, 3), (1, 4, 3, 3), (2, 1, 3, 3), (2, 1, 1, 3), (0, 4, 2, 2), (2, 4, 1, 1, 1),
    (1, 1, 1, 1, 1), (2, 3, 4), (3, 4),
)  # fmt: skip
BACKENDS: tuple[dict[str, Any], ...] = ({"backend": "eager"}, {"backend": "eager", "dynamic": True}, {"backend": "aot_eager"})


def last(t: torch.Tensor) -> torch.Tensor:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return t.contiguous(memory_format=formats[t.ndim]) if t.ndim in formats else t[..., ::2]


LAYOUTS = {"rows": lambda t: t, "channels last": last, "turned": lambda t: t.transpose(0, -1)}


def told(call: Callable[[], torch.Tensor], x: torch.Tensor) -> Any:
    try:
        made = call()
    except RuntimeError as error:
        return type(error)
    return made is x, made.stride(), made.dtype


@pytest.mark.parametrize("options", BACKENDS, ids=["eager", "dynamic", "aot"])
@pytest.mark.parametrize("name", CALLS)
def test_the_same_tensor_or_the_same_strides(name: str, options: dict[str, Any]) -> None:
    for shape, layout, fmt in itertools.product(SHAPES, LAYOUTS, FORMATS):
        x = LAYOUTS[layout](torch.randn(shape))
        fn = tinycompile.compile(lambda x, fmt=fmt: CALLS[name](x, fmt), **options)
        assert told(lambda: fn(x), x) == told(lambda: CALLS[name](x, fmt), x), (shape, layout, fmt)  # noqa: B023


@pytest.mark.parametrize("backend", ["eager", "cpp"])
@pytest.mark.parametrize("shapes", [[(8, 1, 16), (4, 1, 9)], [(2, 3, 4), (3, 4, 5), (2, 0, 3)], [(1, 5, 1, 3), (1, 7, 1, 2)]])
@pytest.mark.parametrize("cut", [False, True])
def test_strides_that_are_equal_in_value_alone(cut: bool, shapes: list[tuple[int, ...]], backend: str) -> None:
    """A stride of a dim of one or of none is the next one's, whatever symbol it has."""

    def fn(x: torch.Tensor) -> list[torch.Tensor]:
        return [x + 1, x * 2 + x.relu(), torch.empty_like(x), x.clone(), x.transpose(0, 1) * 3]

    for dynamic in (None, True):
        compiled = tinycompile.compile(fn, backend=backend, dynamic=dynamic)  # type: ignore[call-overload]
        for shape in shapes:
            x = torch.randn(*shape[:-1], 2 * shape[-1])[..., : shape[-1]] if cut else torch.randn(shape)
            assert [t.stride() for t in compiled(x)] == [t.stride() for t in fn(x)], (shape, dynamic)
