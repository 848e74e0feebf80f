"""``out=`` of every record on a registered device is what torch makes of it on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import tinycompile
from tests.eager import numpy_device
from tests.eager.device_support import registered
from tests.eager.numpy_device import NAME, copy
from tests.eager.test_spellings import mapped, of_torch, outcome
from tests.lower.support import leaves
from tinycompile.ops.record import OPS

pytestmark = pytest.mark.cpu


@pytest.fixture(autouse=True)
def device() -> Iterator[None]:
    with registered(None):
        yield


OUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "alike": lambda r: torch.zeros_like(r),
    "empty": lambda r: r.new_empty(0),
    "too small": lambda r: r[..., :1].clone() if r.dim() else r.clone(),
    "turned": lambda r: torch.zeros(tuple(r.shape)[::-1], dtype=r.dtype).permute(tuple(reversed(range(r.dim())))),
    "a wider dtype": lambda r: r.to(torch.float64 if r.is_floating_point() else torch.int32),
    "another dtype": lambda r: r.to(torch.int64),
}
# Whose steps torch counts as writes of their own; which it writes to other places, or refuses, where ``out`` is not contiguous.
LEFT_OUT = {"kron", "nanmean", "avg_pool3d", "narrow_copy", "matmul"}
LAID_OUT_ANEW = {"slice_scatter"}  # an ``out`` that is resized: its strides are not the result's


def written_to(out: Any) -> Any:
    return out.tolist(), out.stride(), out.dtype, tuple(out.shape), out._version


def _tensors(args: Any) -> list[torch.Tensor]:
    return [t for t in leaves(args) if isinstance(t, torch.Tensor)]


@pytest.mark.parametrize(
    "name", sorted(name for name, op in OPS.items() if not name.startswith("special_") or name == "special_i1")
)
@pytest.mark.parametrize("kernels", [{}, numpy_device.KERNELS], ids=["none", "some"])
def test_out_of_every_record(name: str, kernels: dict[str, Any]) -> None:
    """What torch makes of ``out`` on the CPU: it casts or refuses to, resizes, keeps or changes the strides."""
    tinycompile.register_device(NAME, numpy_device.Chunk, copy, kernels)
    for fn, dotted, args in of_torch(OPS[name]):
        parts = dotted.split(".")
        if "Tensor" in parts or name in LEFT_OUT or not str(fn).startswith("<built-in"):
            continue
        if kernels and any(t.dtype is torch.bfloat16 for t in _tensors(args)):  # numpy has no such dtype
            continue
        result = outcome(lambda: fn(*mapped(args, torch.clone)))  # noqa: B023
        if not isinstance(result, torch.Tensor) or isinstance(
            outcome(lambda: fn(*args, out=torch.zeros_like(result))), Exception
        ):  # noqa: B023
            continue
        for shape, make in OUTS.items():
            found = []
            for lay in (torch.clone, lambda t: tinycompile.from_torch(t).to(NAME)):
                bare = make(result)
                out = bare if lay is torch.clone else tinycompile.from_torch(bare).to(NAME)
                given = mapped(args, lay)
                made = outcome(lambda: fn(*given, out=out))  # noqa: B023
                found.append((str(made),) if isinstance(made, Exception) else written_to(out))
            assert len(found[0]) == len(found[1]), (dotted, shape, found)
            if len(found[0]) == 1:
                continue
            rtol = max(1e-3, torch.finfo(result.dtype).eps) if result.is_floating_point() else 0
            torch.testing.assert_close(
                torch.tensor(found[1][0]), torch.tensor(found[0][0]), equal_nan=True, rtol=rtol, atol=1e-4
            )
            first = 2 if name in LAID_OUT_ANEW else 1
            assert found[0][first:] == found[1][first:], (dotted, shape)
