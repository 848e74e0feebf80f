"""Launches of the program's own Triton kernels in a compiled function: one node each, fused around, and what they write followed.

The programs run in processes of their own, for Triton interprets only where it is told to before it is imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tinycompile.capture.kernel_writes import is_kernel, written_parameters

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")

ROOT = Path(__file__).parents[2]


@pytest.mark.cpu
def test_in_the_interpreter() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.capture.kernel_programs"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


@triton.jit
def _helper(ptr, at, value):  # type: ignore[no-untyped-def]
    tl.store(ptr + at, value)


@triton.jit
def _writes_one(x_ptr, out_ptr, n):  # type: ignore[no-untyped-def]
    tl.store(out_ptr, tl.load(x_ptr + n))


@triton.jit
def _through_names(x_ptr, out_ptr, n):  # type: ignore[no-untyped-def]
    where = out_ptr
    for i in range(n):
        tl.store(where, tl.load(x_ptr + i))
        where += 1


@triton.jit
def _through_a_function(x_ptr, out_ptr, n):  # type: ignore[no-untyped-def]
    _helper(out_ptr, n, tl.load(x_ptr))


@triton.jit
def _by_atomics(x_ptr, out_ptr, lock_ptr):  # type: ignore[no-untyped-def]
    tl.atomic_add(out_ptr, tl.load(x_ptr))
    tl.atomic_xchg(lock_ptr, 0)


@triton.jit
def _by_a_block(x_ptr, out_ptr, n):  # type: ignore[no-untyped-def]
    block = tl.make_block_ptr(out_ptr, (n,), (1,), (0,), (16,), (0,))
    tl.store(block, tl.load(x_ptr + tl.arange(0, 16)))


@triton.jit
def _by_a_descriptor(x_ptr, out_ptr, n):  # type: ignore[no-untyped-def]
    made = tl.make_tensor_descriptor(out_ptr, [n], [1], [16])
    made.store([0], tl.load(x_ptr + tl.arange(0, 16)))


@triton.jit
def _index_from_memory(x_ptr, index_ptr, out_ptr):  # type: ignore[no-untyped-def]
    tl.store(out_ptr + tl.load(index_ptr), tl.load(x_ptr))


@pytest.mark.pure
@pytest.mark.parametrize(("kernel", "written"), [
    (_writes_one, {"out_ptr"}), (_through_names, {"out_ptr"}), (_through_a_function, {"out_ptr"}),
    (_by_atomics, {"out_ptr", "lock_ptr"}), (_by_a_block, {"out_ptr"}), (_by_a_descriptor, {"out_ptr"}),
    (_index_from_memory, {"out_ptr"}),
])  # fmt: skip
def test_what_a_kernel_writes_is_read_off_its_source(kernel: object, written: set[str]) -> None:
    found = written_parameters(kernel)
    assert found is not None and {n for n in found if n.endswith("_ptr")} == written


@pytest.mark.pure
def test_what_has_no_source_may_write_to_all() -> None:
    made: dict[str, object] = {"tl": tl}
    exec("def kernel(x_ptr):\n    tl.store(x_ptr, 1)\n", made)  # a function without a file
    assert written_parameters(made["kernel"]) is None
    assert is_kernel(_helper) and not is_kernel(torch.sin) and not is_kernel(made["kernel"])
