"""Writes into parts of inputs: done in place where nothing else sees the old content, and right where something does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tinycompile

pytestmark = pytest.mark.cpu


def cache() -> torch.Tensor:
    return torch.randn(3, 8, 4)


def new(*shape: int) -> torch.Tensor:
    return torch.randn(*shape)


def one_slice(c, x):
    c[:, 2:4] = x * 2
    return c[:, :4].sum()


def first_part(c, x):
    c[:, :2] = 0.0
    return c.sum(-1)


def one_row(c, x):
    c[:, 3] = x[:, 0] + 1
    return c.exp()


def last_row(c, x):
    c[:, -1] = x[:, 0]
    return c * 2


def nested(c, x):
    c[:2, 4:6] = x[:2]
    return c[:2, :6] @ x[0].t()


def row_of_a_part(c, x):
    c[1:, 4] = x[1:, 0]
    return c.sum()


def stepped(c, x):
    c[:, 0:4:2] = x
    return c.sum()


def twice(c, x):
    c[:, 2:4] = x
    c[:, 3:5] = x * 3
    return c.sum(1)


def by_index(c, x):
    c[:, torch.tensor([6, 1])] = x
    return c.sum(0)


def index_copy(c, x):
    c.index_copy_(1, torch.tensor([6, 1]), x)
    return c.sum(0)


def through_a_view(c, x):
    c.transpose(0, 1)[2:4].copy_(x.transpose(0, 1))
    return c.sum()


def without_a_reader(c, x):
    c[:, 2:4] = x * 2
    return x.sum()


def added_to(c, x):
    c[:, 3] += x[:, 0]
    return x.sum()


IN_PLACE = [
    one_slice, first_part, one_row, last_row, nested, row_of_a_part, stepped, twice, without_a_reader, added_to,
]  # fmt: skip


def reads_old(c, x):
    before = c.sum()
    c[:, 2:4] = x
    return before, c.sum()


def reads_between(c, x):
    c[:, 2:4] = x
    between = c.sum(1)
    c[:, 3:5] = x * 3
    return between, c.sum(1)


def reads_old_in_the_value(c, x):
    c[:, 2:4] = c[:, 4:6] * 2
    return c.sum()


def adds_in_place(c, x):
    c[:, 2:4] += x
    return c.sum(1)


def returns_a_view(c, x):
    c[:, 2:4] = x
    return c[:, :4]


def returns_it(c, x):
    c[:, 2:4] = x
    return c


def accumulates(c, x):
    c.index_put_((torch.arange(3)[:, None], torch.tensor([1, 1])), x, accumulate=True)
    return c.sum()


def expanded(c, x):
    c[:, 2:4] = x[:, :1]
    return c.sum(1)


EVERYTHING = [
    *IN_PLACE, by_index, index_copy, through_a_view, reads_old, reads_between, reads_old_in_the_value, adds_in_place, returns_a_view, returns_it,
    accumulates, expanded,
]  # fmt: skip


def tensors(result: Any) -> tuple[torch.Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


@pytest.mark.parametrize("backend", ["cpp", "aot_eager"])
@pytest.mark.parametrize("fn", EVERYTHING, ids=lambda f: f.__name__)
def test_same_as_eager(fn: Callable[..., Any], backend: str) -> None:
    compiled = tinycompile.compile(fn, backend=backend)
    for layout in (lambda t: t, lambda t: t.transpose(0, 2).contiguous().transpose(0, 2)):
        mine, x = layout(cache()), new(3, 2, 4)
        theirs = torch.empty_strided(mine.shape, mine.stride()).copy_(mine)
        got, want = compiled(mine, x), fn(theirs, x)
        torch.testing.assert_close(mine, theirs)
        for a, b in zip(tensors(got), tensors(want), strict=True):
            torch.testing.assert_close(a, b)
            assert (a is mine) == (b is theirs)
            assert (a.untyped_storage().data_ptr() == mine.untyped_storage().data_ptr()) == (
                b.untyped_storage().data_ptr() == theirs.untyped_storage().data_ptr()
            )


@pytest.mark.parametrize("fn", IN_PLACE, ids=lambda f: f.__name__)
def test_the_rest_is_not_copied(fn: Callable[..., Any]) -> None:
    compiled = tinycompile.compile(fn, fullgraph=True)
    compiled(cache(), new(3, 2, 4))
    optimized = compiled.source("optimized")
    assert "_scatter(" not in optimized and "where" not in optimized, optimized
    assert "copy_(cache" not in optimized and "copy_(c," not in optimized, optimized


def test_a_call_that_fails_after_the_write_is_redone_right() -> None:
    """The index is found to be out of range after the cache was written; torch raises its own error, and the cache is as
    eager leaves it."""

    def f(c, x, table, at):
        c[:, 2:4] = x * 2
        return table[at] + c.sum()

    compiled = tinycompile.compile(f, fullgraph=True)
    mine, x, table = cache(), new(3, 2, 4), torch.randn(5)
    theirs = mine.clone()
    torch.testing.assert_close(compiled(mine, x, table, torch.tensor([1, 2])), f(theirs, x, table, torch.tensor([1, 2])))
    x = new(3, 2, 4)
    for fn, c in ((compiled, mine), (f, theirs)):
        with pytest.raises((IndexError, RuntimeError), match="out of"):
            fn(c, x, table, torch.tensor([1, 7]))
    assert torch.equal(mine, theirs)


def test_two_caches_written_in_a_loop_of_layers() -> None:
    def f(caches, x, at: int):
        for k, v in caches:
            k[:, at] = x + 1
            v[:, at] = x * 2
            x = x + torch.softmax((k[:, : at + 1] * x[:, None]).sum(-1), -1) @ v[0, : at + 1]
        return x

    compiled = tinycompile.compile(f, fullgraph=True)
    mine = [(cache(), cache()) for _ in range(3)]
    theirs = [(k.clone(), v.clone()) for k, v in mine]
    for at in range(2, 7):
        x = new(3, 4)
        torch.testing.assert_close(compiled(mine, x, at), f(theirs, x, at), rtol=1e-4, atol=1e-4)
        for pair, other in zip(mine, theirs, strict=True):
            for a, b in zip(pair, other, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    assert compiled.cache_info()["entries"] <= 2
    assert "copy_(k," not in compiled.source("optimized")


def test_with_gradients() -> None:
    """Under autograd the cache may be saved for the backward: it stays right."""

    def f(c, w, x):
        c[:, 2:4] = x
        return ((c.detach() * 2)[:, :2] * w).sum()

    mine, x = cache(), new(3, 2, 4)
    theirs, w = mine.clone(), new(3, 2, 4).requires_grad_()
    v = w.detach().clone().requires_grad_()
    tinycompile.compile(f, fullgraph=True)(mine, w, x).backward()
    f(theirs, v, x).backward()
    torch.testing.assert_close(mine, theirs)
    torch.testing.assert_close(w.grad, v.grad)
