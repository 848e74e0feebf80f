"""The cyclic collector rests while we compile, and is afterwards as it was."""

from __future__ import annotations

import gc
import os
import threading

import pytest
import torch

import tinycompile
from tinycompile.base.collector import without_collections


@without_collections
def _is_on() -> bool:
    return gc.isenabled()


@pytest.mark.pure
def test_off_within_and_on_again() -> None:
    assert gc.isenabled() and not _is_on() and gc.isenabled()


@pytest.mark.pure
def test_what_the_program_switched_off_stays_off() -> None:
    gc.disable()
    try:
        assert not _is_on() and not gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.pure
def test_on_again_after_an_error() -> None:
    @without_collections
    def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        fail()
    assert gc.isenabled()


@pytest.mark.pure
def test_the_last_of_several_threads_switches_on() -> None:
    inside, leave = threading.Event(), threading.Event()

    @without_collections
    def wait() -> None:
        inside.set()
        leave.wait(10)

    other = threading.Thread(target=wait)
    other.start()
    assert inside.wait(10) and not _is_on()
    assert not gc.isenabled()
    leave.set()
    other.join()
    assert gc.isenabled()


@pytest.mark.pure
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of forks beside threads
def test_a_forked_child_collects() -> None:
    @without_collections
    def fork() -> int:
        pid = os.fork()
        if pid == 0:
            os._exit(0 if gc.isenabled() else 1)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    assert fork() == 0


@pytest.mark.pure
@pytest.mark.parametrize("training", [False, True])
def test_a_compile_rests_and_the_code_does_not(training: bool) -> None:
    seen: list[bool] = []

    def backend(graph: object, inputs: object) -> object:
        seen.append(gc.isenabled())
        return graph

    tinycompile.compile(lambda x: x + 1, backend=backend)(torch.ones(2, requires_grad=training))
    assert seen == [False] and gc.isenabled()
