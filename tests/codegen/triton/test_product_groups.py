"""Alike small products in one launch: which are put together, and that each is right."""

from __future__ import annotations

import pytest
from torch import Tensor
from torch.nn import functional as F

from tests.codegen.triton.products import product_of
from tests.codegen.triton.test_skinny import check, meta, of
from tinycompile.base.target import A100, H100
from tinycompile.runtime.triton_build import compile_offline

pytestmark = pytest.mark.cpu


def projections(x: Tensor, q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, ...]:
    return F.linear(x, q, a), F.linear(x, k, b), F.linear(x, v, c)


def test_projections_of_one_input() -> None:
    made = check(projections, of(5, 64), *(of(48, 64) for _ in range(3)), *(of(48) for _ in range(3)))
    (kernel,) = made.plan.kernels
    assert len(kernel.nests) == 3 and kernel.reads.count("x") == 1
    assert made.source.kernels[0].why.startswith("3 times a matrix product, a tile a program")
    assert [d.rule for d in made.plan.decisions if d.why.startswith("alike products")] == ["product"] * 2


def test_bytes_of_a_shared_input_count_once() -> None:
    args = [of(5, 64), *(of(48, 64) for _ in range(3)), *(of(48) for _ in range(3))]
    (kernel,) = product_of(projections, *args, contests=False).plan.kernels
    assert kernel.bytes_moved == 2 * (5 * 64 + 3 * (48 * 64 + 48 + 5 * 48)) and kernel.flops == 3 * 2 * 5 * 64 * 48


def test_experts_with_what_follows() -> None:
    def experts(x: Tensor, y: Tensor, v: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        return F.silu(x @ v), F.silu(y @ w)

    made = check(experts, of(3, 40), of(3, 40), of(40, 33), of(40, 33))
    assert [len(k.nests) for k in made.plan.kernels] == [2, 2]  # the products, and then what follows


def test_long_sums_in_parts() -> None:
    args = of(2, 3072), *(of(3072, 40) for _ in range(3))
    made = check(lambda x, q, k, v: (x @ q, x @ k, x @ v), *args)
    assert "PARTS" in made.source.kernels[0].text and len(made.plan.kernels) == 1


def test_other_shapes_and_layouts_have_launches_of_their_own() -> None:
    grouped = check(lambda x, q, k, v: (x @ q, x @ k, x @ v), of(4, 32), of(32, 64), of(32, 16), of(32, 16), products=2)
    assert sorted(len(k.nests) for k in grouped.plan.kernels) == [1, 2]
    check(lambda x, v, w: (x @ v, x @ w), of(4, 32), of(32, 16), of(16, 32).t(), products=2)


def test_the_same_buffers_the_other_way_round() -> None:
    made = check(lambda x, w: (x @ w, w @ x), of(16, 16), of(16, 16))
    assert len(made.plan.kernels) == 1


def test_what_needs_the_other_waits_for_it() -> None:
    x, v, w = of(16, 16), of(16, 16), of(16, 16)
    check(lambda x, v, w: (x @ v) @ w, x, v, w, products=2)
    later = check(lambda x, v, w: ((y := x @ v), F.softmax(y.float(), -1).to(y.dtype) @ w), x, v, w, products=2)
    assert all(len(k.nests) == 1 for k in later.plan.kernels)


def test_many_are_several_launches() -> None:
    made = check(lambda x, w: tuple(x @ w[8 - i] for i in range(9)), of(2, 16), of(9, 16, 16), products=2)
    assert [len(k.nests) for k in made.plan.kernels if k.product] == [8, 1]


@pytest.mark.parametrize("arch", [80, 90])
@pytest.mark.parametrize("m,n,k", [(1, 768, 768), (8, 768, 768), (1, 512, 4096)])
def test_compiled_offline_without_spills(m: int, n: int, k: int, arch: int) -> None:
    args = meta(m, k), *(meta(n, k) for _ in range(3)), *(meta(n) for _ in range(3))
    (kernel,) = product_of(projections, *args, target={80: A100, 90: H100}[arch], contests=False).source.kernels
    for config in kernel.configs:
        found = compile_offline(kernel, arch, config)
        assert found.spills == 0 and "cp.async.cg.shared.global" in found.ptx  # 16 bytes at once, whichever product it is
