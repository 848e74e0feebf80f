"""The text of one generated product, as a file: read it there, and when it changes on purpose write it anew.

``python -m tests.codegen.triton.test_product_text`` writes the file.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch

from tests.codegen.triton.nests import F32, Build, Case
from tinycompile.base.target import H100
from tinycompile.codegen.triton.products import emit_product
from tinycompile.ir.source import KernelSource

pytestmark = pytest.mark.pure

GOLDEN = Path(__file__).parents[2] / "golden" / "product_bias_silu.py.txt"
BF16 = torch.bfloat16


def bias_silu(rows: int = 200, columns: int = 300, inner: int = 1000) -> Case:
    """silu(x @ w.T + bias) in bfloat16."""
    b = Build("bias_silu", i0=rows, i1=columns, k=(inner, "reduction"))
    for name, shape in (("x", (rows, inner)), ("w", (columns, inner)), ("bias", (columns,))):
        b.input(name, torch.empty(shape, dtype=BF16, device="meta"))
    b.output("out", (rows, columns), BF16)
    i, j, k = (b.axis(a) for a in ("i0", "i1", "k"))
    total = b.reduce("sum", b.op("mul", b.load("x", i, k), b.load("w", j, k)), "k")
    y = b.op("cast", b.op("cast", b.op("add", total, b.load("bias", j)), dtype=BF16), dtype=F32)
    b.store("out", b.op("mul", y, b.op("sigmoid", y)), i, j)
    return b.case()


def emitted(case: Case) -> list[KernelSource]:
    return emit_product(case.plan.kernels[0], case.plan, H100, case.name)


def test_the_text_is_the_golden_one() -> None:
    assert emitted(bias_silu())[0].text == GOLDEN.read_text()


def test_every_way_parses_and_says_what_it_is() -> None:
    kernels = [k for case in (bias_silu(8192, 8192, 64), bias_silu(64, 64, 1 << 14)) for k in emitted(case)]
    assert {k.name for k in kernels} == {
        "bias_silu",
        *(f"bias_silu_{way}" for way in ("persistent", "boxed", "parted", "streamed")),
    }
    for kernel in kernels:
        ast.parse(kernel.text)
        assert kernel.why.startswith("matrix product, ")


def test_tiles_fit_the_shape() -> None:
    for rows, columns in ((17, 4096), (4096, 17), (4096, 4096)):
        for kernel in emitted(bias_silu(rows, columns, 64)):
            for config in kernel.configs:
                tile = dict(config.constants)
                assert tile["ROWS"] < 2 * max(rows, 16) and tile["COLS"] < 2 * max(columns, 16)


if __name__ == "__main__":
    GOLDEN.write_text(emitted(bias_silu())[0].text)
