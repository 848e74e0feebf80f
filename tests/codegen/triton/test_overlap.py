"""Kernels that begin while the one before them ends: they touch no memory before they have waited, and are right without."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.codegen.triton.products import product_of
from tinycompile.base.target import A100, H100
from tinycompile.ir.source import KernelSource
from tinycompile.runtime.triton_build import compile_offline

pytestmark = pytest.mark.cpu

OVERLAPS = replace(H100, overlaps=True)
BF16 = torch.bfloat16
TOUCHES = re.compile(r"\btl\.(load|store|atomic_\w+)\(|\b(clear|meet|is_last)\(|\.load\(|make_tensor_descriptor")


def sgd(a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, ...]:
    return tuple(x * 0.5 + 1 for x in (a, b, c))


def qkv(x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    return tuple(F.linear(x, w) for w in (q, k, v))


def few_long_rows(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


def of(*shape: int, dtype: torch.dtype = BF16) -> Tensor:
    return torch.randn(shape).mul_(0.3).to(dtype)


CASES: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "pointwise": (lambda x, y: torch.tanh(x) + y, (of(33, 70), of(70))),
    "branches": (lambda x, y: x * 2 + y, (of(4097, 7), of(4097, 7))),
    "turned": (lambda x, y: x.t() + y, (of(64, 96), of(96, 64))),
    "rows": (lambda x: F.layer_norm(x, (300,)), (of(5, 300),)),
    "column sums": (lambda x: (x * 2).sum(0), (of(700, 40, dtype=torch.float32),)),
    "programs that share rows": (few_long_rows, (of(2, 40000, dtype=torch.float32),)),
    "alike": (sgd, (of(50), of(70), of(90))),
    "gather": (lambda table, i: table[i] * 2, (of(30, 40), torch.tensor([3, 29, 3]))),
    "product": (lambda x, w, b, r: F.silu(F.linear(x, w, b)) + r, (of(8, 100), of(52, 100), of(52), of(8, 52))),
    "parted product": (lambda x, w, b: F.linear(x, w, b), (of(8, 3000), of(96, 3000), of(96))),
    "several products": (qkv, (of(4, 64), of(48, 64), of(48, 64), of(48, 64))),
}


@pytest.fixture(scope="module", params=list(CASES))
def made(request: pytest.FixtureRequest) -> Any:
    fn, args = CASES[request.param]
    return product_of(fn, *args, target=OVERLAPS, contests=False), args


def functions(kernel: KernelSource) -> list[str]:
    """The bodies of the module's functions, their docstrings left out."""
    return [re.sub(r'""".*?"""', "", body, flags=re.S) for body in re.split(r"^def ", kernel.text, flags=re.M)[1:]]


def test_no_memory_is_touched_before_the_wait(made: Any) -> None:
    for kernel in made[0].source.kernels:
        assert kernel.overlaps
        (body,) = (b for b in functions(kernel) if "launch_next()" in b)  # of alike nests, the common function
        early, _, late = body.partition("wait_for_previous()")
        assert late and "wait_for_previous()" not in late
        assert not TOUCHES.search(early), kernel.text
        assert all(not TOUCHES.search(b) for b in functions(kernel) if b != body), kernel.text


def test_what_is_fetched_early_are_inputs(made: Any) -> None:
    inputs = {f"{name}_ptr" for name in made[0].plan.inputs}
    for kernel in made[0].source.kernels:
        assert set(re.findall(r"prefetch\((?:tl\.broadcast_to\()?(\w+)", kernel.text)) <= inputs


def test_right_in_the_interpreter(made: Any) -> None:
    product, args = made
    found, _ = product.run(args, None)
    expected = product.fn(*(a.double() if a.is_floating_point() else a for a in args))
    for f, e in zip(found, expected if isinstance(expected, tuple) else (expected,), strict=True):
        torch.testing.assert_close(f.double(), e.double(), atol=2e-2, rtol=2e-2)


def test_compiles_with_the_instructions(made: Any) -> None:
    for kernel in made[0].source.kernels:
        built = compile_offline(kernel, 90)
        assert built.spills == 0
        assert built.ptx.count("griddepcontrol.launch_dependents") == 1
        assert built.ptx.count("griddepcontrol.wait") == 1
        assert ("prefetch.global.L2" in built.ptx) is ("prefetch(" in kernel.text)


def test_weights_are_fetched_early() -> None:
    fn, args = CASES["product"]
    (kernel,) = product_of(fn, *args, target=OVERLAPS, contests=False).source.kernels
    early = kernel.text.partition("wait_for_previous()\n")[0]
    assert all(f"prefetch({name}_ptr" in early for name in "xwbr")


@pytest.mark.parametrize("target", [H100, A100], ids=lambda t: t.arch)
def test_by_default_nothing_overlaps(target: Any) -> None:
    fn, args = CASES["product"]
    made = product_of(fn, *args, target=target, contests=False)
    assert not any(k.overlaps or "wait_for_previous" in k.text for k in made.source.kernels)


def early(fn: Callable[..., Any], *args: Tensor) -> list[bool]:
    """Which kernels overlap."""
    return [k.overlaps for k in product_of(fn, *args, target=OVERLAPS, contests=False).source.kernels]


def test_kernels_of_many_programs_do_not_overlap() -> None:
    """Each program waits: of several rounds of them that is more than one gap between kernels."""
    few, many = (torch.empty(n, 4096, device="meta") for n in (400, 8192))
    assert early(lambda x: x * 2 + 1, few[:64]) == [True] and early(lambda x: x * 2 + 1, many) == [False]
    assert early(lambda x: x.softmax(-1), few) == [True] and early(lambda x: x.softmax(-1), many) == [False]
    small, large = ([torch.empty(n, device="meta") for _ in range(3)] for n in (5000, 400_000))
    assert early(sgd, *small) == [True]
    assert early(lambda x: x * 0.5 + 1, large[0]) == [True]
    assert early(sgd, *large) == [False]  # alike, in one launch: all its programs count
