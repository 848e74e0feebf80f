"""The generated text: names, comments, and the integer expressions in it."""

from __future__ import annotations

import ast

import pytest
import torch

from tests.codegen.triton.harness import emitted
from tests.codegen.triton.nests import F32, Build
from tinycompile.base import expr as ex
from tinycompile.base.atoms import Sym
from tinycompile.base.expr import sym
from tinycompile.codegen.triton.imports import helpers, import_lines
from tinycompile.codegen.triton.indexing import Names, at_least_zero, dim_text
from tinycompile.ir.graph import Location

pytestmark = pytest.mark.pure


def name(s: Sym) -> str:
    return s.name


def test_kernel_reads_like_the_users_code() -> None:
    with open(__file__) as f:
        line = next(i for i, text in enumerate(f, 1) if "THE LINE" in text)  # THE LINE
    b = Build("fused_add_tanh", i0=64, i1=256)
    b.input("x", torch.empty(64, 256, device="meta"))
    b.input("bias", torch.empty(256, device="meta"))
    b.output("out", (64, 256), F32)
    i, j = b.axis("i0"), b.axis("i1")
    b.origin = "hidden"
    h = b.op("add", b.load("x", i, j), b.load("bias", j))
    b.origin = "y"
    b.store("out", b.op("mul", b.op("tanh", h), b.const(0.5)), i, j)
    source = emitted(b.case({"hidden": Location(__file__, line), "y": Location("/nowhere/model.py", 7)}))
    ast.parse(source.text)
    for part in (
        "x = tl.load(x_ptr + ",
        "hidden = x + bias",
        "* 0.5",
        f"# test_text.py:{line}: line = next(",
        "# model.py:7\n",
    ):
        assert part in source.text, source.text
    assert source.lines == (f"{__file__}:{line}", "/nowhere/model.py:7")
    assert "from tinycompile.codegen.triton.library import tanh\n" in source.text


def test_mask_conditions_are_strict_bounds() -> None:
    d = sym("d", 0, 128)
    assert at_least_zero(63 - d, name) == "d < 64"
    assert at_least_zero(d - 64, name) == "d >= 64"
    assert at_least_zero(sym("i", 0, 9) - d, name) == "d < i + 1"


def test_expressions() -> None:
    i, n = sym("i", 0, 100), sym("n", 2)
    assert dim_text(i * 4 - 3, name) == "i*4 - 3"
    assert dim_text(ex.floordiv(i, 7) + ex.mod(i, n), name) == "(i % n) + (i // 7)"
    assert dim_text(ex.floordiv(i - n, 7), name) == "floor_divide(i - n, 7)"
    assert dim_text(ex.minimum(i, n), name) == "tl.minimum(i, n)"


def test_names_are_valid_and_unique() -> None:
    names = Names(frozenset({"x"}))
    assert [names.fresh(n) for n in ("x", "x", "lambda", "1st", "a.b", "tl")] == [
        "x_2",
        "x_3",
        "v_lambda",
        "v_1st",
        "a_b",
        "tl_2",
    ]


def test_imports_are_what_the_body_mentions() -> None:
    assert {"tanh", "reduce_max", "libdevice"} <= helpers().keys()
    lines, body = import_lines("y = tanh(libdevice.pow(x, tl.exp(x)))", "kernel")
    assert lines == ["from tinycompile.codegen.triton.library import libdevice, tanh"]
    lines, body = import_lines("y = tanh(x)", "tanh")
    assert lines == ["from tinycompile.codegen.triton import library"] and body == "y = library.tanh(x)"
