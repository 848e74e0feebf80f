"""The prelude's block transpose, for elements of each size and blocks that are cut short, on this machine's target and without
vector extensions."""

from __future__ import annotations

import ctypes
import re

import pytest
import torch

import tinycompile
from tests.codegen.cpp.harness import TARGETS
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
        f"{{ tc::transpose<64, 64>(tile, from, {STEP}, rows, columns); }}"
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
@pytest.mark.parametrize(("rows", "lanes"), [(600, 600), (1000, 33), (20, 700)])
def test_blocks_hold_whole_cache_lines(dtype: torch.dtype, rows: int, lanes: int) -> None:
    """What is read across comes in a few lines a row, everything else too, or in long stretches where there are few rows; and the
    numbers are right."""
    x, y = (torch.randint(0, 2, (rows, lanes)).to(dtype), torch.randint(0, 2, (lanes, rows)).to(dtype))
    add = torch.logical_or if dtype == torch.bool else torch.add
    fn = tinycompile.compile(lambda x, y: add(x, y.t()), backend="cpp")
    assert torch.equal(fn(x, y), add(x, y.t()))
    tile = re.search(r"\w+_tile\[(\d+)\];\n.*transpose<(\d+), \d+>", fn.kernels[0].source)
    assert tile is not None
    points, width = int(tile[1]), int(tile[2])
    most = 256 // dtype.itemsize
    assert points // width == min(most, 1 << (rows - 1).bit_length())
    assert width == min(64 if rows > most else 256, 1 << (lanes - 1).bit_length())
