"""What fails in compiled code behind a break (a backend, tinycompile itself, an interrupt) is raised in the program's frame:
blocks that it has entered are left, once, and its handlers see it."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import tinycompile.pieces
from tinycompile.api import CompiledFunction
from tinycompile.base.config import config
from tinycompile.base.errors import BackendError, TinycompileWarning
from tinycompile.capture.bytecode import decode
from tinycompile.options import Options

pytestmark = pytest.mark.pure
Log = list[Any]


class Block:
    def __init__(self, log: Log) -> None:
        self.log = log

    def __enter__(self) -> None:
        self.log.append("enter")

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self.log.append(("exit", kind))


@contextlib.contextmanager
def managed(log: Log) -> Iterator[None]:
    log.append("enter")
    try:
        yield
    except BaseException as error:
        log.append(("exit", type(error)))
        raise
    log.append(("exit", None))


Make = Callable[[Log], Any]
BLOCKS: dict[str, Make] = {
    "class": Block,
    "generator": managed,
    "no_grad": lambda log: torch.no_grad(),
    "autocast": lambda log: torch.autocast("cpu"),
    "device": lambda log: torch.device("meta"),
    "stack": lambda log: contextlib.ExitStack(),
}


def torch_state() -> Any:
    return torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), torch.get_default_device()


@pytest.fixture(autouse=True)
def state_is_kept() -> Iterator[None]:
    before = torch_state()
    yield
    after = torch_state()
    torch.set_grad_enabled(before[0])
    torch.set_autocast_enabled("cpu", before[1])
    torch.set_default_device(None)
    assert after == before


def at_compile(kind: type[BaseException]) -> Any:
    def backend(graph: Any, inputs: Any) -> Any:
        raise kind("at compile")

    return backend


def at_run(kind: type[BaseException]) -> Any:
    def run(*inputs: Any) -> Any:
        raise kind("at run")

    return lambda graph, inputs: run


def misfit(graph: Any, inputs: Any) -> Any:
    return lambda *inputs: 5


FAILURES: dict[str, tuple[Any, type[BaseException]]] = {
    "compile": (at_compile(RuntimeError), BackendError),
    "compile interrupted": (at_compile(KeyboardInterrupt), KeyboardInterrupt),
    "run": (at_run(RuntimeError), RuntimeError),
    "run interrupted": (at_run(KeyboardInterrupt), KeyboardInterrupt),
    "misfit": (misfit, BackendError),
}


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("name", BLOCKS)
def test_blocks_are_left(name: str, failure: str) -> None:
    make, (backend, kind) = BLOCKS[name], FAILURES[failure]

    def program(x: torch.Tensor, log: Log) -> torch.Tensor:
        with make(log):
            print(end="")
            return x.sin() + 1

    log: Log = []
    before = torch_state()
    with pytest.raises(kind):
        CompiledFunction(program, Options(backend=backend))(torch.ones(2), log)
    assert torch_state() == before
    assert log in ([], ["enter", ("exit", kind)])


def inner(x: torch.Tensor, log: Log) -> torch.Tensor:
    with managed(log):
        print(end="")
        return x.sin()


def outer(x: torch.Tensor, log: Log) -> torch.Tensor:
    with Block(log):
        return inner(x, log) + 1


def test_blocks_of_callers_are_left() -> None:
    log: Log = []
    with pytest.raises(BackendError):
        CompiledFunction(outer, Options(backend=at_compile(RuntimeError)))(torch.ones(2), log)
    assert log == ["enter", "enter", ("exit", BackendError), ("exit", BackendError)]


def program(x: torch.Tensor, log: Log, box: Any) -> Any:
    with Block(log):
        for k in range(2):
            with managed(log):
                box["value"] = x * k
                if k:
                    break
        with Block(log), managed(log):
            box["value"] = x.sin()
        with Block(log):
            return box["value"] + x


@pytest.mark.parametrize("at", range(len(decode(program.__code__))))
def test_wherever_it_breaks(at: int) -> None:
    """With a break before each instruction, and each compile in turn failing."""
    code = program.__code__
    for failing in range(1, 100):
        count = 0

        def backend(graph: Any, inputs: Any, failing: int = failing) -> Any:
            nonlocal count
            count += 1
            if count == failing:
                raise RuntimeError("at compile")
            return lambda *given: graph(*given)

        log: Log = []
        compiled = CompiledFunction(program, Options(backend=backend, force=lambda c, i: c is code and i == at))
        try:
            compiled(torch.ones(2), log, {})
        except BackendError:
            pass
        else:
            assert count < failing
            break
        entered = 0
        for what in log:
            entered += 1 if what == "enter" else -1
            assert entered >= 0, (at, failing, log)
        assert not entered, (at, failing, log)


def test_handlers_see_it() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        with contextlib.suppress(IndexError):
            print(end="")
            return x.sin()
        return x + 1

    def backend(graph: Any, inputs: Any) -> Any:
        return at_run(IndexError)(graph, inputs)

    assert torch.equal(CompiledFunction(program, Options(backend=backend))(torch.ones(2)), torch.full((2,), 2.0))


@pytest.mark.parametrize("name", ["class", "generator", "no_grad", "autocast"])
def test_our_own_faults(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eager's answer, one warning each, and the blocks are left as eager leaves them; with ``on_error="raise"`` too."""
    make = BLOCKS[name]

    def program(x: torch.Tensor, log: Log) -> torch.Tensor:
        with make(log):
            print(end="")
            y = x.sin() + 1
        return y

    def fault(*args: Any) -> Any:
        raise ZeroDivisionError("a fault of ours")

    monkeypatch.setattr(tinycompile.pieces, "capture_from", _behind_the_first(tinycompile.pieces.capture_from, fault))
    log, expected = Log(), Log()
    with config.patch(on_error="eager"), pytest.warns(TinycompileWarning, match="ZeroDivisionError"):
        got = CompiledFunction(program, Options(backend="eager"))(torch.ones(2), log)
    assert torch.equal(got, program(torch.ones(2), expected))
    assert log == expected

    log = []
    before = torch_state()
    with config.patch(on_error="raise"), pytest.raises(ZeroDivisionError):
        CompiledFunction(program, Options(backend="eager"))(torch.ones(2), log)
    assert torch_state() == before
    assert log in ([], ["enter", ("exit", ZeroDivisionError)])


def _behind_the_first(capture: Any, fault: Any) -> Any:
    return lambda start, *args: (fault if start.resumed else capture)(start, *args)


def test_nothing_is_kept() -> None:
    """The error's traceback leads to no frame that holds the error: what the frames held goes with it, without the collector."""

    class Held(list[Any]):
        pass

    def program(x: torch.Tensor, held: Any) -> torch.Tensor:
        with contextlib.nullcontext():
            print(end="")
            return x.sin()

    compiled = CompiledFunction(program, Options(backend=at_run(RuntimeError)))
    gc.disable()
    try:
        held = Held()
        watched = weakref.ref(held)
        try:
            compiled(torch.ones(2), held)
        except RuntimeError:
            pass
        del held
        assert watched() is None
    finally:
        gc.enable()
