"""The prelude's block transpose, for elements of each size and blocks that are cut short, on this machine's target and without
vector extensions."""

from __future__ import annotations

import ctypes
import re

import pytest
import torch

import tinycompile
from tests.codegen.cpp.harness import TARGETS, made_for
from tinycompile.codegen.cpp.emit import prelude
from tinycompile.codegen.cpp.scalars import MEMORY_TYPES
from tinycompile.runtime.cpp_build import compile_cpp, compiler, load

pytestmark = [pytest.mark.cpu, pytest.mark.skipif(compiler() is None, reason="no C++ compiler")]

DTYPES = (torch.uint8, torch.int16, torch.bfloat16, torch.int32, torch.float32, torch.float64)
STEP = 97  # from row to row, in elements


@pytest.fixture(scope="module", params=TARGETS)
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    lines = [
        f'extern "C" void t{i}({kind}* tile, const {kind}* from, int64_t rows, int64_t columns) '
        f"{{ tc::transpose<64, 64>(tile, from, from, {STEP}, rows, columns); }}"
        for i, kind in enumerate(MEMORY_TYPES[d] for d in DTYPES)
    ]
    target = TARGETS[request.param]
    text = "\n".join([prelude(target), *lines])
    return load(compile_cpp(text, target, tmp_path_factory.mktemp("transpose")))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_cut_of_a_block(library: ctypes.CDLL, dtype: torch.dtype) -> None:
    source = torch.randint(0, 120, (64 * STEP + 3,)).to(dtype)[3:]  # not aligned
    for rows in (1, 3, 4, 8, 9, 15, 64):
        for columns in (1, 4, 7, 8, 16, 63, 64):
            tile = torch.full((64, 64), 121).to(dtype)
            sizes = ctypes.c_int64(rows), ctypes.c_int64(columns)
            library[f"t{DTYPES.index(dtype)}"](ctypes.c_void_p(tile.data_ptr()), ctypes.c_void_p(source.data_ptr()), *sizes)
            block = source.as_strided((rows, columns), (STEP, 1))
            assert torch.equal(tile[:columns, :rows], block.t())
            tile[:columns, :rows] = 121
            assert (tile == 121).all()  # nothing beside it was written


@pytest.mark.parametrize("dtype", (torch.bool, torch.bfloat16, torch.float32, torch.float64), ids=str)
@pytest.mark.parametrize(("rows", "lanes"), [(600, 600), (1000, 33), (20, 700), (5, 16)])
def test_blocks_are_a_line_by_a_line(dtype: torch.dtype, rows: int, lanes: int) -> None:
    """Or all of an axis of less than two lines; and the numbers are right."""
    x, y = (torch.randint(0, 2, (rows, lanes)).to(dtype), torch.randint(0, 2, (lanes, rows)).to(dtype))
    add = torch.logical_or if dtype == torch.bool else torch.add
    fn = tinycompile.compile(lambda x, y: add(x, y.t()), backend="cpp")
    assert torch.equal(fn(x, y), add(x, y.t()))
    line = 64 // dtype.itemsize
    found = re.search(r"_tile\[(\d+)\];\n.*transpose<(\d+), (\d+)>", fn.kernels[0].source)
    if rows < 16:  # too few to be worth it
        assert found is None
        return
    assert found is not None
    height, width = (size if size < 2 * line else line for size in (rows, lanes))
    assert [int(n) for n in found.groups()] == [height * width, width, height]


@pytest.mark.parametrize(("rows", "lanes", "panels"), [(300, 40, True), (20, 700, False)])
def test_what_comes_next_is_asked_for(rows: int, lanes: int, panels: bool) -> None:
    """The lanes that follow in the same panel of rows, else the first ones of the next panel."""
    x, y = torch.randn(rows, lanes), torch.randn(lanes, rows)
    fn = tinycompile.compile(lambda x, y: x + y.t(), backend="cpp")
    assert torch.equal(fn(x, y), x + y.t())
    source = fn.kernels[0].source
    assert ("_panel_end = tc::least<int64_t>(i0_panel + 128, 300)" in source) == panels
    assert f"i0_ahead = i1_end < {lanes} ? 0 : {128 if panels else rows};" in source
    for call, array in (("fetch_near", "x"), ("claim_near", "add")):
        assert re.search(rf"tc::{call}<\d+>\({array} \+ \(i0 \+ i0_ahead\)\*{lanes} \+ i1_next", source)


@pytest.mark.parametrize(
    ("shape", "as_read"),
    [
        ((4, 512, 16, 64), True),
        ((2, 64, 128, 64), True),  # 128 pages are written in turns
        ((2, 64, 512, 64), False),  # more than the second cache holds
        ((4, 512, 16, 8), False),  # rows shorter than lines are long
        ((2, 16, 4, 1024), False),  # rows as long as pages are foreseen
    ],
)
def test_short_rows_are_read_in_order(shape: tuple[int, ...], as_read: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    made_for(monkeypatch, l2=1 << 20)
    x = torch.randn(shape)
    fn = tinycompile.compile(lambda x: (x.transpose(1, 2) * 2).contiguous(), backend="cpp")
    assert torch.equal(fn(x), (x.transpose(1, 2) * 2).contiguous())
    loops = re.findall(r"for \(int64_t (i\d) = 0; i\d < (\d+)", fn.kernels[0].source)
    sizes = [int(n) for _, n in loops[1:3]]
    assert sizes == ([shape[1], shape[2]] if as_read else [shape[2], shape[1]])
    assert ("two_pages_on" in fn.kernels[0].source) >= as_read
