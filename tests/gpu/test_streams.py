"""Streams on a real card: order, overlap of producers and consumers, memory that crosses over, backwards on their stream."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import tinycompile
from benchmarks.contenders import Settings
from benchmarks.streams_suite import run_streams
from tinycompile import cuda

pytestmark = pytest.mark.gpu
TIMES = 1000
SIZE = 1 << 20


@tinycompile
def consume(x: torch.Tensor) -> torch.Tensor:
    return F.relu(x * 2 + 1) - 1


def slow(w: torch.Tensor, rounds: int = 4) -> torch.Tensor:
    """Work that takes a while: whoever doesn't wait for what follows sees old values."""
    for _ in range(rounds):
        w = w @ w * 1e-3
    return w


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_a_side_stream_produces_and_compiled_code_consumes(mode: str) -> None:
    compiled = tinycompile.compile(consume.original, mode=mode)
    side, w = cuda.Stream(), torch.eye(1024, device="cuda")
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    x = torch.zeros(SIZE, device="cuda")
    for i in range(TIMES):
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):
            slow(w)
            x.fill_(i)
        cuda.current_stream().wait_stream(side)
        wrong += (compiled(x) != 2 * i).sum()
    assert wrong.item() == 0


def test_who_does_not_wait_sees_old_values() -> None:
    """The race of the test above is real: without its one line the consumer is first."""
    side, w = cuda.Stream(), torch.eye(1024, device="cuda")
    x = torch.zeros(SIZE, device="cuda")
    consume(x)
    early = 0
    for i in range(1, 11):
        cuda.synchronize()
        with cuda.stream(side):
            slow(w, 50)
            x.fill_(i)
        early += bool((consume(x) != 2 * i).any())
    cuda.synchronize()
    assert early > 0


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_a_side_stream_produces_and_a_compiled_training_step_consumes(mode: str) -> None:
    """Forward and backward, each on the stream that is current when it is called."""
    compiled = tinycompile.compile(consume.original, mode=mode)
    side, w = cuda.Stream(), torch.eye(1024, device="cuda")
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    x = torch.zeros(SIZE, device="cuda")
    for i in range(1, TIMES // 4 + 1):
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):
            slow(w)
            x.fill_(i)
        cuda.current_stream().wait_stream(side)
        leaf = x.clone().requires_grad_()
        out = compiled(leaf)
        (out * i).sum().backward()
        wrong += (out != 2 * i).sum() + (leaf.grad != 2 * i).sum()
    assert wrong.item() == 0


def test_copies_and_compute_overlap() -> None:
    """As the suite measures it: on two streams the shorter part is hidden to a good share, and the values are the same."""
    found = run_streams([], Settings(device="cuda"))
    times = {what: ms for what, ms, _ in found.rows}
    copy, compute = times["copies alone, pinned"], times["compute alone"]
    serial, at_once = times["in turns, pinned memory"], times["at once: copies on a stream of their own"]
    assert found.right and serial - at_once > 0.3 * min(copy, compute), found.text()
    assert times["one call, synchronised"] > times["one call, the clock stopped when it returns"], found.text()


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compiled_code_runs_on_the_current_stream(mode: str) -> None:
    compiled = tinycompile.compile(consume.original, mode=mode)
    side, w = cuda.Stream(), torch.eye(1024, device="cuda")
    x = torch.zeros(SIZE, device="cuda")
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    cuda.synchronize()
    for i in range(TIMES // 4):
        with cuda.stream(side):  # nothing waits in here: only the order of the stream itself
            slow(w)
            x.fill_(i)
            wrong += (compiled(x) != 2 * i).sum()
    side.synchronize()
    assert wrong.item() == 0


def test_events_order_streams() -> None:
    first, second, w = cuda.Stream(), cuda.Stream(), torch.eye(1024, device="cuda")
    x = torch.zeros(SIZE, device="cuda")
    cuda.synchronize()
    for i in range(TIMES // 4):
        with first:
            slow(w)
            x.fill_(i)
            done = first.record_event()
        second.wait_event(done)
        with second:
            y = consume(x)
            first.wait_event(second.record_event())
        with second:
            assert not (y != 2 * i).any().item()


def test_recorded_memory_is_not_used_again_too_early() -> None:
    side, w = cuda.Stream(), torch.eye(1024, device="cuda")
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    cuda.synchronize()
    for i in range(TIMES // 4):
        with cuda.stream(side):
            x = tinycompile.full((SIZE,), float(i), device="cuda")
        cuda.current_stream().wait_stream(side)
        slow(w)
        x.record_stream(cuda.current_stream())
        wrong += (x.torch() != i).sum()
        del x
        with cuda.stream(side):  # the allocator would hand out the same block, were it not recorded
            tinycompile.full((SIZE,), -1.0, device="cuda")
    cuda.synchronize()
    assert wrong.item() == 0


def test_our_backward_runs_on_its_forwards_stream() -> None:
    side, slower = cuda.Stream(), torch.eye(1024, device="cuda")
    cuda.synchronize()
    for _ in range(50):
        x = tinycompile.ones(SIZE, device="cuda", requires_grad=True)
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):
            slow(slower)
            y = (x * 3).relu().sum()
        assert y.grad_fn.stream == side.raw.cuda_stream
        cuda.current_stream().wait_stream(side)
        y.backward()
        assert x.grad.raw().eq(3).all().item()


def test_torchs_backward_of_compiled_code_runs_on_its_forwards_stream() -> None:
    side, w = cuda.Stream(), torch.eye(1024, device="cuda")
    cuda.synchronize()
    for _ in range(50):
        x = torch.ones(SIZE, device="cuda", requires_grad=True)
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):
            slow(w)
            y = consume(x).sum()
        cuda.current_stream().wait_stream(side)
        y.backward()
        assert x.grad.eq(2).all().item()


def test_pinned_copies_do_not_block() -> None:
    x = tinycompile.zeros(SIZE * 16, pin_memory=True)
    assert x.is_pinned() and x.pin_memory() is x
    start, copied = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
    start.record()
    y = x.to("cuda", non_blocking=True)
    copied.record()
    cuda.synchronize()
    assert y.is_cuda and start.elapsed_time(copied) > 0 and not y.torch().any().item()


def test_memory_of_a_card() -> None:
    cuda.reset_peak_memory_stats()
    before = cuda.memory()
    with tinycompile.trace_storages():
        x = tinycompile.zeros(SIZE * 4, device="cuda")
        y = x + 1
        del y
    after = cuda.memory()
    assert after.allocated - before.allocated == 16 * SIZE and after.peak >= before.allocated + 32 * SIZE
    assert after.reserved >= after.allocated == cuda.memory_allocated()
    assert any(i.nbytes == 16 * SIZE and "test_streams.py" in i.made for i in tinycompile.storages("cuda")) and x.numel()


def test_running_out_of_memory_says_what_we_hold() -> None:
    compiled = tinycompile.compile(consume.original, mode="reduce-overhead")
    x = torch.ones(SIZE, device="cuda")
    for _ in range(3):
        compiled(x)
    with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory") as caught:
        tinycompile.empty(1 << 50, device="cuda")
    (note,) = caught.value.__notes__
    assert "recorded graphs with" in note


def test_a_stream_entered_in_a_compiled_function() -> None:
    side = cuda.Stream()

    @tinycompile
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):
            z = y * 2
        cuda.current_stream().wait_stream(side)
        return z - y

    x = torch.randn(SIZE, device="cuda")
    for _ in range(20):
        torch.testing.assert_close(f(x), x + 1)
