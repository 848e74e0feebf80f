"""Numbers beside half types: which ops round them to the half type and which take them in float32, as eager does.

Judged by the contract: the largest and the RMS error at most twice eager's plus an ulp."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import tinycompile
from benchmarks.opinfo_backends import LoopsBackend

pytestmark = pytest.mark.cpu

OPS: dict[str, Callable[[Tensor, Tensor, float], Tensor]] = {
    "lerp": torch.lerp,
    "lerp_": lambda x, y, c: x.clone().lerp_(y, c),
    "foreach lerp": lambda x, y, c: torch._foreach_lerp([x], [y], c)[0],
    "add": lambda x, y, c: x + c,
    "rsub": lambda x, y, c: c - x,
    "mul": lambda x, y, c: x * c,
    "div": lambda x, y, c: x / c,
    "rdiv": lambda x, y, c: c / x,
    "floor_divide": lambda x, y, c: x // c,
    "remainder": lambda x, y, c: x % c,
    "fmod": lambda x, y, c: torch.fmod(x, c),
    "pow": lambda x, y, c: x.abs() ** c,
    "rpow": lambda x, y, c: c**x,
    "addcmul": lambda x, y, c: torch.addcmul(x, x, y, value=c),
    "foreach addcmul": lambda x, y, c: torch._foreach_addcmul([x], [x], [y], c)[0],
    "addcdiv": lambda x, y, c: torch.addcdiv(x, x, y, value=c),
    "add with alpha": lambda x, y, c: torch.add(x, y, alpha=c),
    "sub with alpha": lambda x, y, c: torch.sub(x, y, alpha=c),
    "where": lambda x, y, c: torch.where(x > 0, x, c),
    "clamp": lambda x, y, c: x.clamp(c, c + 1),
    "xlogy": lambda x, y, c: torch.xlogy(x, c),
    "xlog1py": lambda x, y, c: torch.special.xlog1py(x, c),
    "masked_fill": lambda x, y, c: x.masked_fill(x > 0, c),
    "threshold": lambda x, y, c: F.threshold(x, c, c),
    "leaky_relu": lambda x, y, c: F.leaky_relu(x, c),
    "elu": lambda x, y, c: F.elu(x, c),
    "celu": lambda x, y, c: F.celu(x, c),
    "softplus": lambda x, y, c: F.softplus(x, c),
    "hardshrink": lambda x, y, c: F.hardshrink(x, c),
    "softshrink": lambda x, y, c: F.softshrink(x, c),
    "huber_loss": lambda x, y, c: F.huber_loss(x, y, delta=c, reduction="none"),
    "smooth_l1_loss": lambda x, y, c: F.smooth_l1_loss(x, y, beta=c, reduction="none"),
    "renorm": lambda x, y, c: torch.renorm(x.view(8, -1), 2, 0, c),
}


def judge(found: Tensor, eager: Tensor, exact: Tensor) -> None:
    """The contract, normwise."""
    assert found.dtype == eager.dtype and torch.equal(found.isfinite(), eager.isfinite())
    finite = eager.isfinite()
    ours, theirs = ((r.double() - exact)[finite] for r in (found, eager))
    ulp = torch.finfo(eager.dtype).eps * exact[finite].abs().max()
    for norm in (lambda e: e.abs().max(), lambda e: e.square().mean().sqrt()):
        assert norm(ours) <= 2 * norm(theirs) + ulp, (norm(ours), norm(theirs), ulp)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", OPS)
def test_as_exact_as_eager(name: str, dtype: torch.dtype) -> None:
    fn, g = OPS[name], torch.Generator().manual_seed(0)
    x, y = (torch.randn(256, generator=g).mul(3).to(dtype) for _ in range(2))
    for c in (0.3, 1e-3):
        compiled = tinycompile.compile(lambda x, y, c=c: fn(x, y, c), backend=LoopsBackend())
        judge(compiled(x, y), fn(x, y, c), fn(x.double(), y.double(), c))


@pytest.mark.parametrize("name", ["lerp", "lerp_", "foreach lerp", "mul", "add with alpha", "addcmul", "leaky_relu"])
def test_numbers_that_change(name: str) -> None:
    """By then the number is an input of the compiled code."""
    fn, g = OPS[name], torch.Generator().manual_seed(0)
    x, y = (torch.randn(256, generator=g).mul(3).to(torch.bfloat16) for _ in range(2))
    compiled = tinycompile.compile(fn, backend=LoopsBackend())
    for c in (0.25, 0.3, 0.31, 0.7, 0.013):
        judge(compiled(x, y, c), fn(x, y, c), fn(x.double(), y.double(), c))


def test_a_weight_is_not_rounded() -> None:
    """Half way between two numbers of the half type, so that a rounded weight shows."""
    x, y = torch.full((4,), -5.0, dtype=torch.bfloat16), torch.full((4,), 10.0, dtype=torch.bfloat16)
    assert tinycompile.compile(lambda x, y: torch.lerp(x, y, 0.3))(x, y).tolist() == [-0.5] * 4
    rounded = tinycompile.compile(lambda x, y, w: torch.lerp(x, y, w))(x, y, torch.tensor(0.3))
    assert torch.equal(rounded, torch.lerp(x, y, torch.tensor(0.3)))
