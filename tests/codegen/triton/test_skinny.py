"""Products of few rows of halves, which are generated in every mode: which they are, and that they are right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import tinycompile
from tests.codegen.triton.products import Made, flat, product_of
from tinycompile.base.target import A100, H100
from tinycompile.ir.loops import ExternCall
from tinycompile.runtime.triton_build import compile_offline

pytestmark = pytest.mark.cpu

BF16, F16 = torch.bfloat16, torch.float16
ULP = {BF16: 2.0**-8, F16: 2.0**-11}


def of(*shape: int, dtype: torch.dtype = BF16) -> Tensor:
    return torch.randn(shape).mul_(0.3).to(dtype)


def meta(*shape: int, dtype: torch.dtype = BF16) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def calls(made: Made) -> int:
    return sum(isinstance(s, ExternCall) for s in made.plan.steps)


def check(fn: Callable[..., Any], *args: Tensor, products: int = 1, libraries: int = 0) -> Made:
    """As near to float64 as eager is, by the contract: twice its error and an ulp, normwise."""
    made = product_of(fn, *args, contests=False)
    assert (sum(k.product for k in made.plan.kernels), calls(made)) == (products, libraries), made.source.wrapper
    found, _ = made.run(args, None)
    with torch.no_grad():
        exact = flat(fn(*(a.double() if a.is_floating_point() else a for a in args)))
        eager = flat(fn(*args))
    for f, e, x in zip(found, eager, exact, strict=True):
        assert (f.shape, f.stride(), f.dtype) == (e.shape, e.stride(), e.dtype)
        room = 2 * (e.double() - x).abs().max() + ULP[f.dtype] * x.abs().max()
        assert (f.double() - x).abs().max() <= room, made.source.kernels[0].text
    return made


@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
@pytest.mark.parametrize("m,n,k", [(1, 33, 64), (1, 3, 5), (3, 7, 5), (8, 96, 130), (31, 37, 41), (64, 65, 128), (2, 16, 4100)])
def test_shapes(m: int, n: int, k: int, dtype: torch.dtype) -> None:
    w, b = of(n, k, dtype=dtype), of(n, dtype=dtype)
    check(lambda x, w, b: F.linear(x, w, b), of(1, m, k, dtype=dtype), w, b)


def test_spellings_and_layouts() -> None:
    x, w, b = of(5, 48), of(48, 24), of(24)
    check(lambda x, w: x @ w, x, w)
    check(lambda x, w: x @ w, x, of(24, 48).t())
    check(lambda x, w: x @ w, of(48, 5).t(), w)
    check(lambda x, w: x[:, ::2] @ w[1:], x, of(25, 24))
    check(lambda b, x, w: torch.addmm(b, x, w, alpha=2, beta=0.5), b, x, w)
    check(lambda x, w: x.view(5, 1, 48) @ w, x, w)


def test_what_follows_is_in_the_kernel_where_it_can_be() -> None:
    x, w, b, r = of(5, 48), of(24, 48), of(24), of(5, 24)
    assert len(check(lambda x, w, b, r: F.gelu(F.linear(x, w, b)) + r, x, w, b, r).plan.kernels) == 1
    assert len(check(lambda x, w, b: F.linear(x, w, b).softmax(-1), x, w, b).plan.kernels) == 2  # a row is in many tiles
    both = check(lambda x, w, b: ((y := F.linear(x, w, b)), y.relu()), x, w, b)
    assert len(both.plan.kernels) == 1
    chain = check(lambda x, w, b, r: F.linear(F.silu(F.linear(x, w, b)) * r, w.t()), x, w, b, r, products=2)
    assert len(chain.plan.kernels) == 2


def test_swiglu_is_one_kernel() -> None:
    made = check(lambda x, w, v: F.silu(x @ w) * (x @ v), of(30, 40), of(40, 200), of(40, 200))
    assert len(made.plan.kernels) == 1


def test_one_row_whose_sum_is_shared() -> None:
    made = check(lambda x, w: F.linear(x, w), of(1, 3072), of(40, 3072))
    assert "PARTS" in made.source.kernels[0].text


REFUSED = {
    "many rows": lambda: (meta(65, 64), meta(64, 64)),
    "float32": lambda: (meta(8, 64, dtype=torch.float32), meta(64, 64, dtype=torch.float32)),
    "a batch": lambda: (meta(3, 8, 64), meta(3, 64, 64)),
    "much to read": lambda: (meta(8, 8192), meta(8192, 8192)),
}


@pytest.mark.parametrize("why", REFUSED)
def test_others_stay_the_librarys(why: str) -> None:
    made = product_of(lambda x, w: x @ w, *REFUSED[why](), contests=False)
    assert calls(made) == 1 and not made.plan.kernels


def test_sizes_that_change_stay_the_librarys() -> None:
    x = of(8, 16)
    tinycompile.mark_dynamic(x, 0)
    assert calls(product_of(lambda x, w: x @ w, x, of(16, 16), contests=False)) == 1


def test_the_librarys_where_the_card_has_no_instruction_for_it() -> None:
    made = product_of(lambda x, w: x @ w, meta(8, 64), meta(64, 64), target=replace(H100, arch="sm_75"), contests=False)
    assert calls(made) == 1


@pytest.mark.parametrize("arch", [80, 90])
@pytest.mark.parametrize("m,n,k", [(1, 768, 3072), (8, 2304, 768), (8, 768, 3072), (64, 4096, 3000), (1, 50, 64)])
def test_compiled_offline_without_spills(m: int, n: int, k: int, arch: int) -> None:
    args = meta(m, k), meta(n, k), meta(n)
    made = product_of(lambda x, w, b: F.linear(x, w, b), *args, target={80: A100, 90: H100}[arch], contests=False)
    (kernel,) = made.source.kernels
    for config in kernel.configs:
        assert compile_offline(kernel, arch, config).spills == 0, kernel.text
