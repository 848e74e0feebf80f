"""The issue's functions through the whole pipe on the CPU: right, in few kernels, and explained."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tinycompile
from tests.end_to_end.judge import assert_as_good_as_eager
from tests.end_to_end.workloads import WORKLOADS, Workload

pytestmark = pytest.mark.cpu

each = pytest.mark.parametrize("workload", WORKLOADS, ids=lambda w: w.name)


def _flat(value: Any) -> list[torch.Tensor]:
    return [value] if isinstance(value, torch.Tensor) else [t for v in value for t in _flat(v)]


@each
def test_cpp_is_as_good_as_eager(workload: Workload) -> None:
    inputs = workload.inputs()
    f = tinycompile.compile(workload.fn, fullgraph=True)
    assert_as_good_as_eager(f, workload.fn, inputs)
    assert f.cache_info()["entries"] == 1


@each
def test_kernel_count(workload: Workload) -> None:
    f = tinycompile.compile(workload.fn, fullgraph=True)
    report = f.explain(*workload.inputs())
    assert len(report.kernels) <= workload.kernels, str(report)
    assert len(report.externs) <= workload.externs
    for kernel in report.kernels:
        assert "tl." in kernel.triton


@each
def test_triton_in_the_interpreter(workload: Workload) -> None:
    f = tinycompile.compile(workload.fn, fullgraph=True, backend="triton")
    assert_as_good_as_eager(f, workload.fn, workload.inputs())


@each
@pytest.mark.parametrize("backend", ["cpp", "triton"])
def test_symbolic_sizes(workload: Workload, backend: str) -> None:
    f = tinycompile.compile(workload.fn, fullgraph=True, dynamic=True, backend=backend)
    assert_as_good_as_eager(f, workload.fn, workload.inputs())


@each
def test_kernels_compile_for_hopper_without_spills(workload: Workload) -> None:
    f = tinycompile.compile(workload.fn, fullgraph=True)
    for kernel in f.explain(*workload.inputs()).kernels:
        assert kernel.spills == 0
        assert kernel.registers > 0
        assert ".target sm_90" in kernel.ptx
