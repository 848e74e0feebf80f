"""Launches that overlap, as the driver gets them; and what a recording gives kernels that count."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tinycompile.base.target import A100, H100
from tinycompile.runtime import overlap
from tinycompile.runtime.recording import ROOM, recorded, recording

pytestmark = pytest.mark.pure


class Driver:
    """Notes what it is asked to launch, and answers ``code``."""

    def __init__(self, code: int = 0) -> None:
        self.code = code
        self.seen: dict[str, Any] = {}

    def cuLaunchKernelEx(self, config: Any, function: Any, parameters: Any, extra: Any) -> int:  # noqa: N802  # the driver's name
        told = config._obj
        attribute = told.attributes.contents
        self.seen = {
            "sizes": (told.grid_x, told.grid_y, told.grid_z, told.block_x, told.block_y, told.block_z),
            "memory": told.shared, "stream": told.stream, "function": function.value, "extra": extra,
            "attribute": (told.count, attribute.id, attribute.allowed),
            "arguments": [parameters[i] for i in range(len(parameters))],
        }  # fmt: skip
        self.seen["values"] = [
            ctypes.cast(self.seen["arguments"][i], ctypes.POINTER(kind)).contents.value
            for i, kind in enumerate((ctypes.c_uint64, ctypes.c_int32, ctypes.c_int64, ctypes.c_uint64))
        ]
        return self.code


def test_structs_are_as_large_as_the_drivers() -> None:
    assert ctypes.sizeof(overlap._Attribute) == 72 and overlap._Attribute.allowed.offset == 8
    assert ctypes.sizeof(overlap._Config) == 56 and overlap._Config.stream.offset == 32


def test_what_the_driver_gets(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver()
    monkeypatch.setattr(overlap, "_driver", lambda: driver)
    overlap.launch(77, 5, 6, 7, 4, 1024, "OilO", (1 << 40, -3, 1 << 35, None), 99)
    assert driver.seen["sizes"] == (5, 6, 7, 128, 1, 1)
    assert (driver.seen["memory"], driver.seen["stream"], driver.seen["function"]) == (1024, 99, 77)
    assert driver.seen["attribute"] == (1, overlap.SERIALIZATION, 1) and driver.seen["extra"] is None
    assert driver.seen["values"] == [1 << 40, -3, 1 << 35, 0]


def test_a_refused_launch_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlap, "_driver", lambda: Driver(code=801))
    with pytest.raises(RuntimeError, match="801"):
        overlap.launch(77, 1, 1, 1, 4, 0, "OilO", (1, 2, 3, 4), 0)


def test_where_it_is_possible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlap, "_driver", lambda: None)
    assert not overlap.possible(H100)
    monkeypatch.setattr(overlap, "_driver", lambda: SimpleNamespace())
    assert overlap.possible(H100) and not overlap.possible(A100)


def test_counters_of_a_recording_share_few_tensors() -> None:
    cpu = torch.device("cpu")
    assert not recording.on
    with recorded():
        assert recording.on
        first, second = recording.counters(5, cpu), recording.counters(7, cpu)
        assert first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()
        assert (first.numel(), second.numel()) == (5, 7) and second.data_ptr() - first.data_ptr() == 5 * 4
        large = recording.counters(ROOM + 1, cpu)
        assert large.numel() == ROOM + 1 and not int(large.count_nonzero())
        assert len(recording.kept) == 2
    assert not recording.on and not recording.kept and recording.zeros is None
