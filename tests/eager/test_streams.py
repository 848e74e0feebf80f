"""Streams and events without a GPU: everything is there, and does nothing. With one: see tests/gpu/test_streams.py."""

from __future__ import annotations

import time

import pytest
import torch

import tinycompile
from tinycompile import cuda

pytestmark = pytest.mark.pure
cpu_only = pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without CUDA")


def test_a_cpu_has_one_empty_queue() -> None:
    s = cuda.Stream("cpu")
    assert s == cuda.current_stream("cpu") == cuda.default_stream("cpu") and s.raw is None and s.query()
    assert hash(s) == hash(cuda.current_stream("cpu")) and str(s) == "Stream(device=cpu)"
    other = cuda.Stream("cpu")
    other.wait_stream(s)
    with s, cuda.stream(other), cuda.stream(None):
        x = tinycompile.ones(3) + 1
    x.record_stream(s)
    s.synchronize()
    cuda.synchronize("cpu")
    assert x.tolist() == [2, 2, 2]


def test_tensors_of_either_kind_are_recorded_on_a_stream() -> None:
    s = cuda.Stream("cpu", priority=-1)
    for x in (tinycompile.ones(2), torch.ones(2)):
        cuda.record_stream(x, s)
    assert s.priority == cuda.current_stream("cpu").priority == 0, "a CPU has none"


@pytest.mark.cpu
def test_in_compiled_functions_too() -> None:
    def f(x):
        y = x + 1
        cuda.record_stream(y, cuda.current_stream("cpu"))
        return y * 2

    for x in (tinycompile.ones(2), torch.ones(2)):
        assert tinycompile.compile(f)(x).tolist() == [4, 4]


def test_events_take_torchs_arguments() -> None:
    e = cuda.Event(enable_timing=False, blocking=True, interprocess=True)
    e.record(), e.synchronize()
    assert e.query()


@cpu_only
def test_events_time_the_host() -> None:
    start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
    with pytest.raises(RuntimeError, match="recorded"):
        start.elapsed_time(end)
    start.record()
    time.sleep(0.01)
    cuda.Stream().record_event(end)
    cuda.Stream().wait_event(end)
    end.wait(), end.synchronize()
    assert end.query() and 9 < start.elapsed_time(end) < 2000
    with pytest.raises(RuntimeError, match="enable_timing"):
        cuda.Event().elapsed_time(end)


@cpu_only
def test_pinned_memory_and_non_blocking_copies_change_nothing() -> None:
    x = tinycompile.zeros(2, 3, pin_memory=True)
    assert x.pin_memory() is x and x.shape == (2, 3)
    y = x.to("cpu", non_blocking=True).to(torch.float64, non_blocking=True)
    assert y.dtype is torch.float64 and y.tolist() == x.tolist()


@pytest.mark.cpu
def test_streams_in_compiled_functions() -> None:
    side = cuda.Stream("cpu")

    @tinycompile
    def f(x):
        y = x + 1
        with cuda.stream(side):
            z = y * 2
        cuda.current_stream("cpu").wait_stream(side)
        return z - y

    x = torch.randn(5)
    torch.testing.assert_close(f(x), x + 1)
