"""Programs that launch Triton kernels of their own; run by ``test_kernels_launched.py`` in a process where Triton interprets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl

import tinycompile


@triton.jit
def add(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    tl.store(out_ptr + i, tl.load(x_ptr + i, mask=inside) + tl.load(y_ptr + i, mask=inside), mask=inside)


@triton.jit
def write(ptr, i, value, inside):  # type: ignore[no-untyped-def]
    tl.store(ptr + i, value, mask=inside)


@triton.jit
def scale_in_place(x_ptr, n, factor, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    write(x_ptr, i, tl.load(x_ptr + i, mask=i < n) * factor, i < n)


@triton.jit
def both(x_ptr, twice_ptr, sum_ptr, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n, other=0.0)
    place = twice_ptr
    place += i
    tl.store(place, x * 2, mask=i < n)
    tl.atomic_add(sum_ptr, tl.sum(x, 0))


def one_run(fn: Callable[[], Any], quantiles: Any) -> list[float]:
    """Instead of a timer, which needs a GPU."""
    fn()
    return [1.0, 1.0, 1.0]


@triton.autotune([triton.Config({"BLOCK": b}, num_warps=1) for b in (32, 64)], key=["n"], do_bench=one_run)
@triton.jit
def tuned(x_ptr, out_ptr, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.load(x_ptr + i, mask=i < n) + 1, mask=i < n)


def into_fresh_memory(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    a = x * 2 + 1
    out = torch.empty_like(a)
    n = out.numel()
    add[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](a, y, out, n, BLOCK=64)
    return torch.relu(out) - 1


def in_place_between(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    a = x * y
    before = a + 1
    scale_in_place[(4,)](a, a.numel(), 0.5, BLOCK=64)
    return a * 3 + before


def an_input_is_written(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    scale_in_place[(4,)](x, x.numel(), factor=2.0, BLOCK=64)
    return x + y


def two_results(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    twice, total = torch.empty_like(x), torch.zeros(1)
    both[(triton.cdiv(x.numel(), 32),)](x, twice, total, x.numel(), BLOCK=32)
    return twice + y, total * 2


def the_same_launch_twice(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    first, second = torch.empty_like(x), torch.empty_like(x)
    for out in (first, second):
        add[(4,)](x, y, out, x.numel(), BLOCK=64)
    second += 1
    return first, second


def through_a_view(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    a = x + y
    scale_in_place[(1,)](a[2], a.shape[1], 10.0, BLOCK=64)
    return a


def with_an_autotuner(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    tuned[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x * 2, out, x.numel())
    return out * y


PROGRAMS: list[Callable[..., Any]] = [
    into_fresh_memory, in_place_between, an_input_is_written, two_results, the_same_launch_twice, through_a_view,
    with_an_autotuner,
]  # fmt: skip


def check(fn: Callable[..., Any], backend: str) -> None:
    x, y = torch.randn(10, 13), torch.randn(10, 13)
    ours, theirs = [x.clone(), y.clone()], [x.clone(), y.clone()]
    f = tinycompile.compile(fn, fullgraph=True, backend=backend)
    for _ in range(2):
        torch.testing.assert_close(f(*ours), fn(*theirs))
        torch.testing.assert_close(ours, theirs)
    assert all(a._version == b._version for a, b in zip(ours, theirs, strict=True)), "versions"
    if fn is the_same_launch_twice:
        first, second = f(*ours)
        assert first.data_ptr() != second.data_ptr()


def fused_around() -> None:
    """One kernel of ours before the launch and one after it; the memory for its result is made once."""
    f = tinycompile.compile(into_fresh_memory, fullgraph=True, backend="cpp")
    f(torch.randn(10, 13), torch.randn(10, 13))
    assert len(f.kernels) == 2, f.source("wrapper")
    assert "empty_like" not in f.source("wrapper")


def gradients() -> None:
    """None flows through a launch; a weight may be read, and what requires grad is not written in a graph."""
    weight = torch.randn(10, 13, requires_grad=True)
    x = torch.randn(10, 13)
    got, want = tinycompile.compile(into_fresh_memory, fullgraph=True)(weight, x), into_fresh_memory(weight, x)
    torch.testing.assert_close(got, want)
    assert not got.requires_grad and not want.requires_grad

    def beside(w: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (w * into_fresh_memory(w, y)).sum()

    grads = [torch.autograd.grad(fn(weight, x), weight)[0] for fn in (tinycompile.compile(beside, fullgraph=True), beside)]
    torch.testing.assert_close(*grads)
    f = tinycompile.compile(an_input_is_written)
    torch.testing.assert_close(f(weight, x), an_input_is_written(weight.detach().clone(), x) * 0 + weight + x)
    assert f.explain(weight, x).breaks


def main() -> None:
    tinycompile.config.on_error = "raise"
    tinycompile.config.disk_cache = False
    for fn in PROGRAMS:
        check(fn, "cpp")
        print("right:", fn.__name__)
    check(into_fresh_memory, "eager")
    fused_around()
    gradients()


if __name__ == "__main__":
    main()
