"""What people see of generated matrix products: kernels, Triton source, explain; and that a CPU never runs one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import tinycompile

pytestmark = pytest.mark.cpu


def block(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.silu(F.linear(x, w, b))


def test_max_autotune_shows_them_and_the_default_does_not() -> None:
    args = torch.randn(16, 32), torch.randn(24, 32), torch.randn(24)
    fn = tinycompile.compile(block, mode="max-autotune")
    torch.testing.assert_close(fn(*args), block(*args))
    own, *offered = fn.kernels
    assert not own.offered and own.language == "cpp" and [k.name for k in offered] == ["silu_kernel_product"]
    assert offered[0].offered and "tl.dot(" in offered[0].triton and "on a GPU it is timed" in offered[0].why
    assert "tl.dot(" in fn.source("triton")
    report = fn.explain(*args)
    assert report.bytes_moved == own.bytes_moved and "1 offered beside the library" in str(report)
    plain = tinycompile.compile(block)
    plain(*args)
    assert len(plain.kernels) == 1 and "tl.dot(" not in plain.source("triton")


def test_tritons_interpreter_takes_the_librarys_way() -> None:
    args = torch.randn(16, 32), torch.randn(24, 32), torch.randn(24)
    fn = tinycompile.compile(block, mode="max-autotune", backend="triton")
    torch.testing.assert_close(fn(*args), block(*args))
    assert [k.offered for k in fn.kernels] == [False]
