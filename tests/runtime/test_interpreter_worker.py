"""The process in which Triton's interpreter runs."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import threading

import pytest
import torch

import tinycompile
from tinycompile.base.errors import BackendError
from tinycompile.base.expr import ceildiv, sym
from tinycompile.ir.source import Config, KernelArg, KernelSource
from tinycompile.runtime.interpreter_worker import InterpreterWorker

pytestmark = pytest.mark.cpu

TEXT = """
import triton
import triton.language as tl


@triton.jit
def double(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n)
    tl.store(out_ptr + i, x * 2, mask=i < n)
"""
ARGS = (
    KernelArg("x", "pointer", "float32"),
    KernelArg("out", "pointer", "float32"),
    KernelArg("n", "size", "int32", sym("n", 2), False),
)
GRID = (ceildiv(sym("n", 2), sym("BLOCK", 1)),)
DOUBLE = KernelSource("double", "triton", TEXT, ARGS, GRID, (Config((("BLOCK", 64),)),))


@pytest.fixture(scope="module")
def worker() -> InterpreterWorker:
    made = InterpreterWorker()
    yield made
    made.close()


def test_runs(worker: InterpreterWorker) -> None:
    x, out = torch.arange(100.0), torch.zeros(100)
    worker.run(DOUBLE, [x, out, 100])
    assert torch.equal(out, x * 2)


def test_inputs_keep_their_version(worker: InterpreterWorker) -> None:
    x, out = torch.arange(100.0), torch.zeros(100)
    before = x._version
    worker.run(DOUBLE, [x, out, 100])
    assert x._version == before


def test_overlapping_arguments_share_memory(worker: InterpreterWorker) -> None:
    base = torch.arange(128.0)
    worker.run(DOUBLE, [base[:64], base[64:], 64])
    assert torch.equal(base[64:], base[:64] * 2)
    worker.run(DOUBLE, [base, base, 128])
    assert torch.equal(base[:64], torch.arange(64.0) * 2)


def test_empty_grid(worker: InterpreterWorker) -> None:
    worker.run(DOUBLE, [torch.empty(0), torch.empty(0), 0])


def test_a_failing_kernel_raises_and_the_worker_goes_on(worker: InterpreterWorker) -> None:
    bad = KernelSource("double", "triton", TEXT.replace("x * 2", "nonsense"), ARGS, GRID, DOUBLE.configs)
    with pytest.raises(BackendError, match="nonsense"):
        worker.run(bad, [torch.zeros(4), torch.zeros(4), 4])
    test_runs(worker)


def test_a_killed_child_is_started_again(worker: InterpreterWorker) -> None:
    test_runs(worker)
    os.kill(worker._child.pid, signal.SIGKILL)
    worker._child.wait()
    test_runs(worker)


def test_death_in_a_call_is_reported(worker: InterpreterWorker) -> None:
    dying = KernelSource(
        "double", "triton", "import os\n" + TEXT.replace("    i = ", "    os._exit(3)\n    i = ", 1), ARGS, GRID, DOUBLE.configs
    )
    with pytest.raises(BackendError, match="died .exit status 3."):
        worker.run(dying, [torch.zeros(4), torch.zeros(4), 4])
    test_runs(worker)


def test_large_tensors_grow_the_shared_block(worker: InterpreterWorker) -> None:
    big = KernelSource("double", "triton", TEXT, ARGS, GRID, (Config((("BLOCK", 1 << 20),)),))
    x, out = torch.arange(float(1 << 20)), torch.zeros(1 << 20)
    worker.run(big, [x, out, 1 << 20])
    assert torch.equal(out, x * 2)


def test_threads_may_call(worker: InterpreterWorker) -> None:
    outs = [torch.zeros(64) for _ in range(8)]
    threads = [threading.Thread(target=worker.run, args=(DOUBLE, [torch.full((64,), float(k)), outs[k], 64])) for k in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert all(torch.equal(o, torch.full((64,), 2.0 * k)) for k, o in enumerate(outs))


def test_the_child_ends_with_its_parent() -> None:
    code = (
        "import sys, torch\nsys.path[:0] = %r\nfrom tests.runtime.test_interpreter_worker import *\n"
        "w = InterpreterWorker(); test_runs(w); print(w._child.pid)\n" % [p for p in sys.path if p] + "os._exit(0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    pid = int(done.stdout)
    for _ in range(100):
        try:
            with open(f"/proc/{pid}/stat") as f:
                if f.read().split()[2] == "Z":
                    return
        except FileNotFoundError:
            return
        threading.Event().wait(0.05)
    pytest.fail("the child outlived its parent")


SCALARS = """
import triton
import triton.language as tl


@triton.jit
def scalars(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n)
    below = tl.full([], 1.5, tl.float32) < tl.full([], 0.0, tl.float32)
    tl.store(out_ptr + i, tl.where(below ^ (x < 50.0), x, 0.0), mask=i < n)
"""


def test_a_scalar_comparison_is_a_bool(worker: InterpreterWorker) -> None:
    x, out = torch.arange(100.0), torch.ones(100)
    worker.run(dataclasses.replace(DOUBLE, name="scalars", text=SCALARS), [x, out, 100])
    assert torch.equal(out, torch.where(x < 50, x, 0.0))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_subnormal_halves_are_numbers(dtype: torch.dtype) -> None:
    tiny = torch.finfo(dtype).tiny
    x = torch.tensor([tiny / 2, -tiny / 4, tiny / 64, tiny, 0.0, -0.0, 1.0, torch.inf, -torch.inf, torch.nan]).to(dtype)
    fn = lambda x: (x.float(), x * 1, x == 0, x.float() * 1024)  # noqa: E731
    for got, want in zip(tinycompile.compile(fn, backend="triton")(x), fn(x), strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
