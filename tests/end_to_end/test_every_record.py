"""Every op record through code generation: C++ and Triton's interpreter against torch; kernels compiled offline without spills.

One C++ build serves all samples of a record. ``TINYCOMPILE_TESTS=full`` takes every sample and architecture; by default a
record's first two samples run, a sixth of those that are only other records put together, and a third of all compile offline.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests.codegen.triton.harness import library_frame
from tests.lower.support import assert_contract, bind_sample, graph_of_call, run_eager
from tests.lower.test_every_record import UNDEFINED, judged
from tinycompile.base.artifacts import Artifacts
from tinycompile.base.device import Device
from tinycompile.base.errors import KernelError
from tinycompile.base.target import A100, H100, Target
from tinycompile.compiler import generate
from tinycompile.ir.effects import is_random
from tinycompile.ir.graph import Graph
from tinycompile.ir.source import KernelSource, Source
from tinycompile.ops.outline import Outlined
from tinycompile.ops.record import OPS, Op
from tinycompile.runtime.build import build
from tinycompile.runtime.cpp_build import cpu_target
from tinycompile.runtime.triton_build import compile_offline

pytestmark = [pytest.mark.cpu, pytest.mark.filterwarnings("ignore:.*degrees of freedom")]

FULL = os.environ.get("TINYCOMPILE_TESTS") == "full"
CPU = Device("cpu")
records = pytest.mark.parametrize("name", sorted(OPS))


def _cases(op: Op) -> Iterator[tuple[tuple[Any, ...], Graph, list[Any], list[Any]]]:
    """Arguments, graph, graph inputs and torch's answer of the samples that torch accepts and whose answer is defined."""
    taken = 0
    for sample in op.samples():
        torch.manual_seed(0)
        args = bind_sample(op, sample)
        try:
            want = run_eager(op.eager, args)
        except (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError):
            continue
        graph, inputs = graph_of_call(op, args)
        if any(is_random(n) for n in graph.nodes) or op.name in UNDEFINED:
            return
        yield args, graph, inputs, want
        taken += 1
        if taken == 2 and not FULL:
            return


def _source(graph: Graph, target: Target) -> Source:
    return generate(graph, target, Artifacts(), {})[1]


def _check(op: Op, target: Target) -> None:
    for args, graph, inputs, want in _cases(op):
        source = _source(graph, target)
        call, _ = build(source, target, CPU)
        try:
            got = call(*inputs)
        except KernelError:
            continue  # refused before any effect; the API redoes such a call eagerly
        for g, w, e in zip(got, want, judged(op, args, want), strict=True):
            assert_contract(g, w, e, op.ulp)


def _skip_parts(name: str) -> None:
    """A record without formula or shape rule of its own is made of records that are tested here."""
    if not FULL and isinstance(OPS[name].meta, Outlined) and zlib.crc32(name.encode()) % 6:
        pytest.skip("a sixth of the composite records by default; TINYCOMPILE_TESTS=full takes all")


@records
def test_cpp(name: str) -> None:
    _skip_parts(name)
    _check(OPS[name], cpu_target())


@records
def test_triton_interpreter(name: str) -> None:
    _skip_parts(name)
    _check(OPS[name], H100)


@records
def test_compiles_offline(name: str) -> None:
    _skip_parts(name)
    if not FULL and zlib.crc32(name.encode()) % 3:
        pytest.skip("a third of the records by default; TINYCOMPILE_TESTS=full takes all")
    for target in (A100, H100):
        arch, seen = int(target.arch.removeprefix("sm_")), set[object]()
        for _, graph, _, _ in _cases(OPS[name]):
            for kernel in _source(graph, target).kernels:
                what = (kernel.text, kernel.args, kernel.configs[0])
                if what in seen:
                    continue
                seen.add(what)
                made = compile_offline(kernel, arch)
                assert made.spills == 0 or _tables(kernel, arch), (kernel.name, made.spills)
            if not FULL:
                break


def _tables(kernel: KernelSource, arch: int) -> bool:
    """Circular functions in float64, and with some Tritons in float32, keep libdevice's reduction table on the stack: no spill,
    but counted as one."""
    called = any(f"libdevice.{f}(" in kernel.text or f"tl.{f}(" in kernel.text for f in ("sin", "cos", "tan"))
    doubles = "float64" in kernel.text or any(a.dtype in ("fp64", "float64") for a in kernel.args)
    return called and (doubles or library_frame("tan", torch.float32, arch) > 0)
