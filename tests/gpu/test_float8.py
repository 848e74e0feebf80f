"""Casts to and from float8 on a real card: eager's bits, for every value and every float16."""

from __future__ import annotations

import pytest
import torch

import tinycompile
from tests.end_to_end.test_float8 import KINDS, every, hard_floats, same

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_casts_are_eagers(kind: torch.dtype) -> None:
    x, y = every(kind).cuda(), hard_floats().cuda()
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
        widened = tinycompile.compile(lambda x, dtype=dtype: x.to(dtype), fullgraph=True)
        same(widened(x).cpu(), x.to(dtype).cpu())
        rounded = tinycompile.compile(lambda y: y.to(kind), fullgraph=True)
        same(rounded(y.to(dtype)).cpu(), y.to(dtype).to(kind).cpu())


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_scaling_and_rounding_is_one_kernel(kind: torch.dtype) -> None:
    quantise = tinycompile.compile(lambda x: ((x * 32).clamp(-448, 448).to(kind), x.abs().amax(-1)), fullgraph=True)
    x = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    small, most = quantise(x)
    same(small.cpu(), (x.float() * 32).to(torch.bfloat16).clamp(-448, 448).to(kind).cpu())
    assert torch.equal(most, x.abs().amax(-1)) and len(quantise.kernels) == 1
