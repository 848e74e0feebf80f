"""Streams of a registered device. Its queues are as late as they may be: work is done when somebody waits for it and not before,
and memory that is let go of is handed out again at once, so whoever forgets to wait reads what was there before."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import tinycompile
from tests.eager.numpy_device import NAME, array
from tinycompile import cuda
from tinycompile.base.errors import FallbackWarning
from tinycompile.eager.custom_device import forget_device
from tinycompile.eager.device_queues import POOL

pytestmark = pytest.mark.cpu
ran: list[str] = []


class Late:
    """A queue that does nothing by itself."""

    def __init__(self, index: int) -> None:
        self.index, self.todo, self.done, self.given = index, [], 0, 0

    def submit(self, work: Callable[[], None]) -> None:
        self.todo.append(work)
        self.given += 1

    def until(self, count: int) -> None:
        while self.done < count:
            self.done += 1
            self.todo.pop(0)()

    def record_event(self) -> LateMark:
        return LateMark(self, self.given)

    def wait_event(self, event: Any) -> None:
        self.submit(event.synchronize)

    def synchronize(self) -> None:
        self.until(self.given)

    def query(self) -> bool:
        return self.done == self.given


class LateMark:
    def __init__(self, queue: Late, count: int) -> None:
        self.queue, self.count = queue, count

    def synchronize(self) -> None:
        self.queue.until(self.count)

    def query(self) -> bool:
        return self.queue.done >= self.count

    def elapsed_time(self, end: LateMark) -> float:
        return float(end.count - self.count)


class Chunk:
    """Memory whose bytes are free as soon as nobody holds it: work in a queue doesn't."""

    free: dict[int, list[np.ndarray]] = {}

    def __init__(self, nbytes: int, index: int) -> None:
        pool = self.free.setdefault(nbytes, [])
        self.bytes = pool.pop() if pool else np.zeros(nbytes, np.uint8)
        weakref.finalize(self, pool.append, self.bytes).atexit = False


def copy(to: Any, of: Any) -> None:
    target, source = (m.bytes if isinstance(m, Chunk) else m.numpy() for m in (to, of))
    target[:] = source


def late(name: str, fn: Callable[..., Any]) -> Callable[..., None]:
    def run(out: tinycompile.Tensor, *args: Any) -> None:
        to, given = array(out), [array(a) if isinstance(a, tinycompile.Tensor) else a for a in args]

        def work() -> None:
            ran.append(name)
            to[...] = fn(*given)

        cuda.current_stream(out.device).raw.submit(work)

    return run


KERNELS = {"add": lambda a, b, alpha: a + alpha * b, "mul": np.multiply, "relu": lambda a: np.maximum(a, 0)}


@pytest.fixture(autouse=True)
def device() -> Iterator[None]:
    ran.clear(), Chunk.free.clear()
    tinycompile.register_device(NAME, Chunk, copy, {n: late(n, fn) for n, fn in KERNELS.items()}, streams=Late)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        yield
    forget_device()


def there(*values: float) -> tinycompile.Tensor:
    return tinycompile.tensor(list(values), device=NAME)


def test_work_is_queued_and_reading_waits_for_it() -> None:
    x = there(1.0, -2.0)
    y = torch.relu(x * 3)
    assert ran == [] and not cuda.current_stream(NAME).query()
    assert y.tolist() == [3.0, 0.0] and ran == ["mul", "relu"] and cuda.current_stream(NAME).query()


def test_each_stream_and_each_index_has_its_own_queue() -> None:
    side, other = cuda.Stream(NAME), cuda.Stream(f"{NAME}:1")
    assert str(side) == f"Stream(device={NAME}:0)" and other.device.index == 1 == other.raw.index
    assert side != cuda.default_stream(NAME) == cuda.current_stream(NAME) != cuda.default_stream(f"{NAME}:1")
    with side:
        assert cuda.current_stream(NAME) == side and cuda.current_stream(f"{NAME}:1") != other
        with cuda.stream(other), cuda.stream(cuda.default_stream(NAME)):
            assert cuda.current_stream(NAME) == cuda.default_stream(NAME) and cuda.current_stream(f"{NAME}:1") == other
        assert cuda.current_stream(NAME) == side
    assert cuda.current_stream(NAME) == cuda.default_stream(NAME) and cuda.current_stream("cpu").raw is None
    made = [cuda.Stream(NAME) for _ in range(POOL + 3)]
    assert len({id(s.raw) for s in made}) == POOL, "further ones share"


def produced(side: cuda.Stream, x: tinycompile.Tensor) -> tinycompile.Tensor:
    with cuda.stream(side):
        return x * 2


@pytest.mark.parametrize("wait", ["stream", "event", "synchronize", "host", "nothing"])
def test_who_waits_sees_what_was_produced(wait: str) -> None:
    side, x = cuda.Stream(NAME), there(1.0, 2.0)
    y = produced(side, x)
    now = cuda.current_stream(NAME)
    if wait == "stream":
        now.wait_stream(side)
    elif wait == "event":
        side.record_event().wait()
    elif wait == "synchronize":
        cuda.synchronize(NAME)
    elif wait == "host":
        side.synchronize()
    assert (y + 1).tolist() == ([1.0, 1.0] if wait == "nothing" else [3.0, 5.0])


@pytest.mark.parametrize("other", ["cpu", f"{NAME}:1"])
def test_streams_of_other_devices_wait_too(other: str) -> None:
    side = cuda.Stream(NAME)
    y = produced(side, there(2.0))
    waiting = cuda.Stream(other)
    waiting.wait_stream(side)
    waiting.synchronize()
    assert side.query() is (other != "cpu"), "a CPU's stream is never behind: nothing waits on it"
    del y


def test_events_have_marks_and_times() -> None:
    start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
    now = cuda.current_stream(NAME)
    start.record(now)
    x = there(1.0) * 2 + 1
    now.record_event(end)
    assert start.query() and not end.query()
    end.synchronize()
    assert end.query() and start.elapsed_time(end) == 2.0 and x.tolist() == [3.0]
    start.record()
    assert start._where is None, "recorded again elsewhere"


@pytest.mark.parametrize("recorded", [True, False])
def test_recorded_memory_is_not_used_again_too_early(recorded: bool) -> None:
    side, x = cuda.Stream(NAME), there(5.0, 6.0)
    cuda.synchronize(NAME)
    with side:
        y = x + 1
    if recorded:
        x.record_stream(side)
    del x
    z = there(-1.0, -1.0)  # the bytes of x, were they not recorded
    side.synchronize()
    assert y.tolist() == ([6.0, 7.0] if recorded else [0.0, 0.0]) and z.tolist() == [-1.0, -1.0]
    there(0.0)
    assert len(Chunk.free[8]) == recorded, "given back once the stream was through"


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_backwards_run_on_their_forwards_stream(compiled: bool) -> None:
    def f(x: Any) -> Any:
        return torch.relu(x * 3) * x

    side, x = cuda.Stream(NAME), there(2.0, -1.0).requires_grad_()
    cuda.current_stream(NAME).synchronize()
    with side:
        y = (tinycompile.compile(f) if compiled else f)(x)
    assert y.grad_fn.stream is side.raw
    cuda.current_stream(NAME).wait_stream(side)
    y.backward(there(1.0, 1.0))
    assert x.grad.tolist() == [12.0, 0.0]


def test_compiled_code_launches_on_the_current_stream() -> None:
    side, f = cuda.Stream(NAME), tinycompile.compile(lambda x: torch.relu(x * 3) + x)
    x = there(1.0, -1.0)
    f(x)
    cuda.synchronize(NAME)
    ran.clear()
    with side:
        y = f(x)
    cuda.default_stream(NAME).synchronize()
    assert ran == [] and not side.query()
    side.synchronize()
    assert ran and y.tolist() == [4.0, -1.0]


def test_without_streams_the_same_calls_do_nothing() -> None:
    forget_device()
    tinycompile.register_device(NAME, Chunk, copy, {})
    side, x = cuda.Stream(NAME), tinycompile.ones(2, device=NAME)
    with side, cuda.stream(side):
        y = x * 2
    side.wait_stream(cuda.current_stream(NAME)), x.record_stream(side), cuda.synchronize(NAME)
    assert side.raw is None and side.query() and side.device.type == NAME and y.tolist() == [2.0, 2.0]


def test_what_makes_streams_is_a_function() -> None:
    with pytest.raises(TypeError, match="streams is a function, not 3"):
        tinycompile.register_device(NAME, Chunk, copy, {}, streams=3)
