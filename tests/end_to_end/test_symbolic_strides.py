"""Strides that change: one compile serves all of them, as it does for sizes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import tinycompile
from tests.capture.test_corpus import same

pytestmark = pytest.mark.cpu
r = torch.randn

# A function, and its arguments by a number from 2 on.
CASES: dict[str, tuple[Any, Any]] = {
    "columns of a changing base": (lambda x: x * 2 + 1, lambda i: (r(4, 8 + i)[:, :4],)),
    "more columns of a changing base": (lambda x: x.sum(1), lambda i: (r(3 + i, 8 + 2 * i)[:, : 2 + i],)),
    "transposed": (lambda x: x + 1, lambda i: (r(5, i + 1).t(),)),
    "expanded": (lambda x: x + 1, lambda i: (r(1, i + 1).expand(i + 3, i + 1),)),
    "permuted": (lambda x: x.softmax(-1), lambda i: (r(2, i + 1, 3, 4).permute(0, 2, 1, 3),)),
    "every second row": (lambda x: x.relu().sum(), lambda i: (r(2 * i + 4, 6)[::2],)),
    "every second column": (lambda x: x * x, lambda i: (r(4, 2 * i + 4)[:, ::2],)),
    "every i-th column": (lambda x: x * x, lambda i: (r(4, 5 * i)[:, ::i],)),
    "one column": (lambda x: x.cos(), lambda i: (r(3, 4, i + 2)[..., 0],)),
    "a product": (lambda x, w: x @ w, lambda i: (r(i + 2, 16 + i)[:, :8], torch.ones(8, 3))),
    "a view": (lambda x: x.view(-1, 2, 4).sum(1), lambda i: (r(i + 2, 16 + i)[:, :8],)),
    "views of it returned": (lambda x: (x[1:], x.t(), x + 1), lambda i: (r(i + 3, 16 + i)[:, :8],)),
    "a copy in one row": (lambda x: x.reshape(-1) * 2, lambda i: (r(i + 2, 16 + i)[:, :8],)),
    "its strides returned": (lambda x: (x * 1, x.stride(), x.stride(0) + 1), lambda i: (r(5, i + 7)[:, :4],)),
    "two of them": (lambda x, y: x + y, lambda i: (r(5, i + 7)[:, :4], r(5, 2 * i + 9)[:, 1:5])),
    "one twice": (lambda x, y: x + y, lambda i: (x := r(5, i + 7)[:, :4], x)),
    "a scan": (lambda x: x.cumsum(1), lambda i: (r(5, i + 7)[:, :4],)),
    "joined": (lambda x: torch.cat([x, x], 1), lambda i: (r(i + 2, i + 7)[:, : i + 3],)),
    "a cache of keys": (lambda q, k: (q @ k.mT).softmax(-1), lambda i: (r(1, 2, 3, 8), r(1, 2, 70, 8)[:, :, : i + 1])),
    "written to": (lambda x: x.add_(1), lambda i: (r(5, i + 7)[:, :4],)),
    "windows": (lambda x: x.sum(-1), lambda i: (r(400).as_strided((3, 4), (i, 1)),)),
    "normed": (lambda x: F.layer_norm(x, (4,)), lambda i: (r(5, i + 7)[:, :4],)),
    "a branch on it": (lambda x: x + 1 if x.is_contiguous() else x - 1, lambda i: (r(5, i + 7)[:, :4],)),
}


def served(name: str, backend: str, count: int) -> None:
    fn, make = CASES[name]
    compiled = tinycompile.compile(fn, backend=backend)
    for i in range(2, 2 + count):
        torch.manual_seed(i)
        got = compiled(*make(i))
        torch.manual_seed(i)
        same(got, fn(*make(i)), f"{name}, {i}")
    assert compiled.cache_info()["entries"] == 2, compiled.recompiles


@pytest.mark.parametrize("name", list(CASES))
def test_one_compile_serves_fifty(name: str) -> None:
    served(name, "eager", 50)


@pytest.mark.parametrize(
    "name", ["more columns of a changing base", "every i-th column", "two of them", "written to", "a scan"]
)
def test_kernels_take_strides_at_run_time(name: str) -> None:
    served(name, "cpp", 12)


@pytest.mark.parametrize("name", ["more columns of a changing base", "two of them"])
def test_triton_kernels_do(name: str) -> None:
    served(name, "triton", 6)


def test_gradients() -> None:
    compiled = tinycompile.compile(lambda x, w: (x * w).sin().sum(1), backend="cpp")
    for i in range(2, 10):
        base, w = r(i + 2, 8 + i, requires_grad=True), r(4, requires_grad=True)
        found = torch.autograd.grad(compiled(base[:, :4], w).sum(), (base, w))
        wanted = torch.autograd.grad((base[:, :4] * w).sin().sum(1).sum(), (base, w))
        torch.testing.assert_close(found, wanted)
    assert compiled.cache_info()["entries"] == 2, compiled.recompiles


def test_zero_one_and_multiples_of_sixteen() -> None:
    """Strides and sizes of 0 and 1 stay constants; what is a multiple of 16 is served by the code for any."""
    compiled = tinycompile.compile(lambda x: x * 2 + 1, backend="cpp")
    for width in (20, 21, 32, 48, 64, 33):
        for n in (4, 5, 16, 32):
            x = r(width, width)[:n, :4]
            same(compiled(x), x * 2 + 1)
    before = compiled.cache_info()["entries"]
    assert before == 3, compiled.recompiles  # constants, then sizes that change, then strides, too
    for odd in (r(4, 4)[:0], r(1, 4), r(4, 1).expand(4, 4), r(4).expand(4, 4), r(0, 4), r(4, 4).t()[:, :1]):
        for _ in range(2):
            same(compiled(odd), odd * 2 + 1)


def test_a_model_over_slices() -> None:
    """Batch sizes and sequence lengths, each a slice of a longer buffer."""
    torch.manual_seed(0)
    project, norm = torch.nn.Linear(16, 48), torch.nn.LayerNorm(16)

    def block(x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.shape
        q, k, v = (y.view(b, t, 2, c // 2).transpose(1, 2) for y in project(norm(x)).split(c, -1))
        return x + F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, c)

    compiled = tinycompile.compile(block, backend="eager")
    with torch.no_grad():
        for i in range(2, 27):
            x = r(i + 1, 60 + i, 16)[:, : 2 * i]
            torch.testing.assert_close(compiled(x), block(x))
    assert compiled.cache_info()["entries"] == 2, compiled.recompiles


def test_static_where_asked() -> None:
    compiled = tinycompile.compile(lambda x: x + 1, backend="eager", dynamic=False)
    for width in (7, 8, 9):
        compiled(r(5, width)[:, :4])
    assert compiled.cache_info()["entries"] == 3
    every = tinycompile.compile(lambda x: x + 1, backend="eager", dynamic=True)
    for width in (7, 8, 9):
        every(r(5, width)[:, :4])
    assert every.cache_info()["entries"] == 1
