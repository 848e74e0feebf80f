"""Time on data in the cache: tensors whose pages are all one piece, functions that write into them, and what bounds a row."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch
from torch import Tensor

from benchmarks.cached import PIECE, cached_seconds, can_fold, folded, written_to
from benchmarks.contenders import INDUCTOR, OURS
from benchmarks.cpu_suite import CpuResults, CpuRow

pytestmark = pytest.mark.cpu
needs_mapping = pytest.mark.skipif(not can_fold(), reason="no memfd_create")


def folds() -> int:
    """How many pieces of this process's addresses are mapped to memory of ours; others of its mappings come and go."""
    return Path("/proc/self/maps").read_text().count("memfd:folded")


@needs_mapping
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (300, 1000)])
def test_all_pages_are_one_piece(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    x = torch.randint(0, 2, shape).to(dtype)
    with folded([x]) as (y,):
        assert folds() >= 1
        first = PIECE // x.itemsize
        assert y.shape == x.shape and y.dtype == dtype and torch.equal(y.flatten()[:first], x.flatten()[:first])
        if x.nbytes > PIECE:
            flat = y.view(-1)
            assert torch.equal(flat[first:], flat[:-first])
            flat[1] = 1 - flat[1].to(torch.int64)
            assert flat[first + 1] == flat[1]  # the same memory
        del y
    gc.collect()
    assert folds() == 0


def test_results_are_written_into_what_is_given() -> None:
    def both(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x + y, x * y

    x, y = torch.randn(4), torch.randn(4)
    one, two = torch.empty(4), torch.empty(4)
    written_to(both)([one, two], [x, y])
    assert torch.equal(one, x + y) and torch.equal(two, x * y)
    written_to(torch.exp)([one], [x])
    assert torch.equal(one, x.exp())
    assert written_to(both).__code__ is not written_to(both).__code__


@needs_mapping
def test_the_time_is_one_threads_over_all() -> None:
    threads, seen = torch.get_num_threads(), []

    def compile(fn: object) -> object:
        seen.append(torch.get_num_threads())
        return fn

    times = cached_seconds({"a": compile, "b": compile}, torch.exp, [torch.randn(300, 1000)], 0.0)
    assert set(times) == {"a", "b"} and all(t > 0 for t in times.values())
    assert seen == [1, 1] and torch.get_num_threads() == threads


def test_what_bounds_a_row_is_one_formula() -> None:
    """The better of the cached times against the copy's, whatever the note says."""
    row = CpuRow("a", "8 fp32", copy=1e-3, run={OURS: 1.1e-3}, bytes=1 << 20)
    assert not row.by_memory  # not measured
    for ours, theirs, by_memory in ((0.9e-3, 2e-3, True), (2e-3, 0.9e-3, True), (1e-3, 2e-3, False)):
        row.cached = {OURS: ours, INDUCTOR: theirs}
        for row.note in ("", "arithmetic"):
            assert row.by_memory == by_memory
    cached = {OURS: 0.5e-3, INDUCTOR: 0.6e-3}
    quick = CpuRow("b", "8 fp32", copy=1e-3, run={OURS: 2e-3}, bytes=1 << 20, share=0.5, cached=cached)
    small = CpuRow("c", "8 fp32", copy=1e-3, run={OURS: 2e-3}, bytes=(1 << 20) - 1, share=0.5, cached=cached)
    assert quick.by_memory and not small.by_memory
    text = CpuResults("cpu", "cpu", {}, [row, quick, small]).text()
    assert "at 85% of the bandwidth: 0 of 1 bound by memory; below: b 50%" in text
    assert "bound by arithmetic" in text and "a 1.00 (arithmetic)" in text
