"""What is asked for ahead: lines that the next pass over a row writes, rows that an index names, rows that elements are picked from.
Where it pays, where it must not be, and that the numbers are right at every edge."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import tinycompile
from tests.codegen.cpp.harness import made_for
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


def chain(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x * 2 + x.flip(0)) - 1


def offsets(x: torch.Tensor) -> torch.Tensor:
    return x - x.amax(0) + x[..., :1]


STRETCHES: dict[str, Callable[[torch.Tensor], object]] = {
    "chain": chain,
    "sum": lambda x: (x * 2).sum(-1),
    "moments": lambda x: (x.mean(-1), x.std(-1)),
    "softmax": lambda x: torch.softmax(x, -1),
    "norm": norm,
    "statistics": lambda x: (x - x.mean((0, -1), keepdim=True)) * torch.rsqrt(x.var((0, -1), keepdim=True) + 1e-5),
    "columns": offsets,
    "all": lambda x: x.square().sum(),
    "transposed": lambda x: x.transpose(-1, -2) + x.transpose(-1, -2).contiguous(),
}


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.float64), ids=str)
@pytest.mark.parametrize("shape", [(5, 4000), (3, 70, 1030), (2, 3, 64, 129), (1, 1 << 17)], ids=str)
@pytest.mark.parametrize("name", STRETCHES)
def test_what_is_asked_for_changes_no_number(
    name: str, shape: tuple[int, ...], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    x, results, texts = torch.randn(shape).to(dtype), [], []
    for foresees, cache in ((True, 1 << 40), (True, 1 << 14), (False, 1 << 14)):
        made_for(monkeypatch, foresees=foresees, l2=cache)
        fn = tinycompile.compile(STRETCHES[name], backend="cpp", dynamic=False)  # type: ignore[call-overload]
        results.append(fn(x))
        texts.append("".join(k.source for k in fn.kernels))
    for result in results[1:]:
        torch.testing.assert_close(result, results[0], rtol=0, atol=0, equal_nan=True)
    held, foreseen, waiting = (re.search(r"tc::(two_pages_on|fetch_near)<", text) for text in texts)
    assert held is None or name == "transposed"
    assert foreseen is None or name != "chain"
    assert foreseen is not None or name not in ("sum", "moments") or shape[-1] < 1000
    assert waiting is not None or name in ("columns", "statistics") or shape[-1] < 1000


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=str)
@pytest.mark.parametrize("vector", [16, 32, 64])
@pytest.mark.parametrize(("name", "readers"), [("norm", 3), ("softmax", 2)])  # the last pass reads what the second kept
def test_each_pass_over_a_row_asks_for_its_share_of_a_later_one(
    name: str, readers: int, vector: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Together all lines, each once, where a group has that many."""
    made_for(monkeypatch, foresees=False, l2=1 << 16, vector=vector)
    text = source_of(STRETCHES[name], torch.randn(64, 1024).to(dtype))  # type: ignore[arg-type]
    asked = re.findall(r"tc::fetch_near<(\d+)>\(x \+ i0\*1024 \+ (\w+) \+ (\d+), (\d+)\)", text)
    assert "tc::next_page<" not in text
    line, lines = 64 // dtype.itemsize, list[int]()
    for count, place, start, step in asked:  # of 64 elements, which a pass takes by groups or as a piece
        for at in range(0, 64, vector if "_first" in place else 64):
            lines += [int(start) % 1024 + at + int(step) * n for n in range(int(count))]
    if line <= vector:  # elements of a group
        assert sorted(lines) == list(range(0, 64, line))
    else:  # each line by two groups
        assert sorted({n // line * line for n in lines}) == list(range(0, 64, line))
    assert len({place for _, place, _, _ in asked}) <= readers


def test_what_the_cache_holds_is_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    made_for(monkeypatch, foresees=False, l2=1 << 20)
    assert "two_pages_on" not in source_of(chain, torch.randn(1 << 16))
    assert "two_pages_on" in source_of(chain, torch.randn(1 << 19))
