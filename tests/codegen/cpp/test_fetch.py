"""What is asked for ahead: lines that the next pass over a row writes, rows that an index names, rows that elements are picked from.
Where it pays, where it must not be, and that the numbers are right at every edge."""

from __future__ import annotations

import re

import pytest
import torch
import torch.nn.functional as F

import tinycompile
from tinycompile.codegen.cpp.fetch import CLAIMED
from tinycompile.runtime.cpp_build import compiler

pytestmark = [pytest.mark.cpu, pytest.mark.skipif(compiler() is None, reason="no C++ compiler")]


def norm(x: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, x.shape[1:])


def rms(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)


def source_of(fn: object, *args: torch.Tensor) -> str:
    """The kernel's text; its results are right."""
    compiled = tinycompile.compile(fn, backend="cpp")  # type: ignore[call-overload]
    torch.testing.assert_close(compiled(*args), fn(*args))  # type: ignore[operator]
    return compiled.kernels[0].source


@pytest.mark.parametrize("shape", [(3, 1024), (5, 1100), (4, 3, 1030)])
def test_a_pass_asks_for_what_the_next_one_writes(shape: tuple[int, ...]) -> None:
    text = source_of(norm, torch.randn(shape))
    first, second = (m.start() for m in re.finditer(r"int64_t \w+_whole", text))
    assert text.count("tc::claim<") == 1 and text.index("tc::claim<") > second > first  # the first one waits for memory


def test_only_a_pass_that_does_not_wait_for_memory_asks() -> None:
    assert "tc::claim<" not in source_of(rms, torch.randn(3, 2048))


@pytest.mark.parametrize("over", [0, 64])
def test_only_what_stays_near_is_asked_for(over: int) -> None:
    asks = "tc::claim<" in source_of(norm, torch.randn(2, CLAIMED + over))
    assert asks == (over == 0)


@pytest.mark.parametrize("index_dtype", [torch.int64, torch.int32])
@pytest.mark.parametrize("width", [64, 70, 512])
def test_the_row_that_the_next_index_names(width: int, index_dtype: torch.dtype) -> None:
    table, index = torch.randn(50, width), torch.randint(0, 50, (33,)).to(index_dtype)
    index[-1] = 49  # nothing comes after it
    text = source_of(lambda i, t: F.embedding(i, t) * 2, index, table)
    assert "_ahead" in text and f"tc::fetch<{min(-(-width // 16), 8)}>" in text


def test_an_index_out_of_range_is_still_found() -> None:
    """The row asked for ahead is not checked, the one read is."""
    compiled = tinycompile.compile(lambda i, t: F.embedding(i, t) * 2, backend="cpp")
    table, index = torch.randn(50, 64), torch.randint(0, 50, (33,))
    compiled(index, table)
    index[7] = 1 << 40
    with pytest.raises(IndexError):
        compiled(index, table)


@pytest.mark.parametrize("picked", [100, 128, 200, 512])
def test_rows_that_elements_are_picked_from_come_in_parts(picked: int) -> None:
    x, index = torch.randn(9, 1024), torch.randint(0, 1024, (9, picked))
    text = source_of(lambda x, i: x.gather(1, i) * 2, x, index)
    parts = [int(n) for n in re.findall(r"tc::fetch<(\d+)>", text)]
    if picked * 64 // 2 < 4096:
        assert not parts
    else:
        assert len(parts) == 1 and 64 <= parts[0] * -(-picked // 64) < 64 + -(-picked // 64)


def test_a_sum_beside_moments_is_made_once() -> None:
    text = source_of(lambda x: (x.mean(-1), x.std(-1)), torch.randn(4, 2048))
    assert len(re.findall(r"double \w+_group\[", text)) == 2  # the sum, the squares
