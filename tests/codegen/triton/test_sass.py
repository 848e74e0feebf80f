"""The benchmark table's kernels as machine code for sm_90: 16-byte loads and stores, no spills, at the sizes of the table."""

from __future__ import annotations

import os
import re

import pytest
import torch
from torch import Tensor

from benchmarks.workloads import WORKLOADS, Arg, Workload
from tests.codegen.triton.test_shared_rows import planned
from tinycompile.runtime.triton_build import compile_offline

pytestmark = pytest.mark.cpu

BIG = 1 << 22  # bytes that a kernel moves, from which on its loads must be wide
ROWS = [w for w in WORKLOADS if "kernels" in w.suites and w.name not in ("tiny", "gelu(linear)", "attention by hand, causal")]
FULL = os.environ.get("TINYCOMPILE_TESTS") == "full"
QUICK = ("gelu(x+b)*0.5+x", "softmax, long rows", "x.t()+2y")


def argument(arg: Arg) -> Tensor:
    """Memory that is never touched."""
    return torch.empty(arg.gpu, dtype=arg.dtype if arg.below is None else torch.int64)


@pytest.mark.parametrize("workload", [w for w in ROWS if FULL or w.name in QUICK], ids=lambda w: w.name)
def test_wide_accesses_and_no_spills(workload: Workload) -> None:
    _, source = planned(workload.fn, *map(argument, workload.args))
    assert source.kernels
    for kernel in source.kernels:
        built = compile_offline(kernel, 90)
        assert built.spills == 0, kernel.text
        if isinstance(kernel.bytes_moved, int) and kernel.bytes_moved >= BIG:
            wide = set(re.findall(r"\b(LDG|STG)\.E(?:\.\w+)*\.128", built.sass))
            assert "LDG" in wide, kernel.text
