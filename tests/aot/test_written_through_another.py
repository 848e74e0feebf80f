"""Gradients of what was computed from inputs whose memory is written through another tensor: before the write, as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tinycompile

pytestmark = pytest.mark.cpu
BACKENDS = ("eager", "aot_eager", None)
Pair = tuple[torch.Tensor, torch.Tensor]


def numbers() -> torch.Tensor:
    return torch.arange(1.0, 13.0)


def square() -> torch.Tensor:
    return numbers()[:6].clone().view(2, 3)


def plain() -> Pair:
    return square(), torch.ones(2, 3)


def one_twice() -> Pair:
    b = square()
    return b, b


def data() -> Pair:
    b = square()
    return b, b.data


def detached() -> Pair:
    b = square()
    return b, b.detach()


def numpys() -> Pair:
    b = square()
    return b, torch.from_numpy(b.numpy())


def of_a_view() -> Pair:
    b = square()
    return b, b.view(6)[:3]


def of_its_base() -> Pair:
    b = square().view(6)
    return b.view(2, 3), b.view(6, 1)[:3].view(3)


def turned() -> Pair:
    b = square()
    return b.view(3, 2).t(), b


def partly() -> Pair:
    b = numbers()
    return b[:6].view(2, 3), b[2:8].view(2, 3)


def partly_before() -> Pair:
    b = numbers()
    return b[2:8].view(2, 3), b[:6].view(2, 3)


def beside() -> Pair:
    b = numbers()
    return b[:6].view(2, 3), b[6:].view(2, 3)


def between() -> Pair:
    b = numbers()
    return b[::2].view(2, 3), b[1::2].view(2, 3)


def of_bytes() -> Pair:
    b = square()
    return b, b.view(torch.int32).view(6)[:3]


def expanded() -> Pair:
    return numbers()[:2, None].expand(2, 3), torch.ones(2, 3)


def expanded_rows() -> Pair:
    b = numbers()
    return b[:3].expand(2, 3), b[:3]


def written_expanded() -> Pair:
    return torch.ones(2, 3), numbers()[:1].expand(6).view(2, 3)


def overlapping() -> Pair:
    return numbers().as_strided((2, 3), (1, 1)), torch.ones(2, 3)


def overlapping_written() -> Pair:
    b = numbers()
    return b.as_strided((2, 3), (1, 1)), b[:3]


def one_write(y: Any, t: Any, p: Any) -> Any:
    r = (y * 2) * p
    t.zero_()
    return r


def two_writes(y: Any, t: Any, p: Any) -> Any:
    r = (y * 2) * p
    t.fill_(1)
    y.zero_()
    return r


def of_a_sum(y: Any, t: Any, p: Any) -> Any:
    r = y.sum() * p
    t.fill_(1)
    y.zero_()
    return r


def chain(y: Any, t: Any, p: Any) -> Any:
    r = (y * 2).sin() * p.exp()
    y.fill_(1)
    t.fill_(2)
    return r, y.sum() * p


def through_views(y: Any, t: Any, p: Any) -> Any:
    r = (y.t().cos() @ p).sin(), y[0].unsqueeze(0).exp() * p, torch.stack([y, p]) * (p * 3)
    t.zero_()
    return r


def kept_itself(y: Any, t: Any, p: Any) -> Any:
    r = y * p
    t.zero_()
    return r


def kept_by_one(y: Any, t: Any, p: Any) -> Any:
    r = (y * 2) * p, y.t() @ p
    t.zero_()
    return r


def kept_as_a_view(y: Any, t: Any, p: Any) -> Any:
    r = y[:, :2] * p[:, :2] + (y[1] * 3) * p
    t.zero_()
    return r


def in_a_loop(y: Any, t: Any, p: Any) -> Any:
    r = p
    for _ in range(3):
        r = r * (y * 2)
        t.fill_(3)
    return r


def fill(t: Any) -> None:
    t.fill_(3)


def by_a_callee(y: Any, t: Any, p: Any) -> Any:
    r = (y * 2) * p
    fill(t)
    return r


def in_a_try_block(y: Any, t: Any, p: Any) -> Any:
    try:
        r = (y * 2) * p
        t.zero_()
    except ValueError:
        return p
    return r


def with_library_calls(y: Any, t: Any, p: Any) -> Any:
    r = torch.nn.functional.linear(y * 2, p) * torch.unbind(y, 1)[0][:, None] * y.split(1, 0)[0].sum()
    r = r * (y.view(6).unfold(0, 2, 2).sum() * torch.einsum("ij,kj->ik", y, p)).cumsum(0) if y.is_contiguous() else r
    t.zero_()
    return r


def with_complex_values(y: Any, t: Any, p: Any) -> Any:
    r = (torch.view_as_complex(torch.stack([y, y + 1], -1)) * p).abs()
    t.zero_()
    return r


INPUTS: tuple[Callable[[], Pair], ...] = (
    plain, one_twice, data, detached, numpys, of_a_view, of_its_base, turned, partly, partly_before, beside, between, of_bytes,
    expanded, expanded_rows, written_expanded, overlapping, overlapping_written,
)  # fmt: skip
FUNCTIONS = (
    one_write, two_writes, of_a_sum, chain, through_views, kept_itself, kept_by_one, kept_as_a_view, in_a_loop, by_a_callee,
    in_a_try_block, with_library_calls, with_complex_values,
)  # fmt: skip


def told(fn: Callable[..., Any], made: Callable[[], Pair], asked: slice = slice(None), again: bool = False) -> Any:
    """The gradient, the inputs and the results; or torch's error, in the forward or in the backward."""
    (y, t), p = made(), torch.full((2, 3), 0.5, requires_grad=True)
    try:
        results = fn(y, t, p)
    except RuntimeError as error:
        return "forward", str(error)
    results = results if isinstance(results, tuple) else (results,)
    try:
        (grad,) = torch.autograd.grad([(r * r).sum() for r in results[asked]], p, create_graph=again)
        if again:
            (grad,) = torch.autograd.grad(grad.square().sum(), p)
    except RuntimeError as error:
        return "backward", str(error)[:90]
    return grad, y, t, *(r.detach() for r in results)


def same(found: Any, expected: Any) -> None:
    assert isinstance(found[0], str) == isinstance(expected[0], str), (found, expected)
    if isinstance(expected[0], str):
        assert found == expected
    else:
        torch.testing.assert_close(found, expected)
        assert [t.stride() for t in found[1:]] == [t.stride() for t in expected[1:]]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fn", FUNCTIONS)
def test_gradients_are_of_what_was_there(fn, backend):
    for made in INPUTS:
        compiled = tinycompile.compile(fn, backend=backend)
        for _ in range(2):
            same(told(compiled, made), told(fn, made))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fn", FUNCTIONS)
def test_inputs_of_one_kind_come_after_others(fn, backend):
    """Which tensors share memory differs from call to call."""
    compiled = tinycompile.compile(fn, backend=backend)
    for made in (plain, between, data, plain, beside, one_twice, turned, between):
        same(told(compiled, made), told(fn, made))


def of_three(y: Any, z: Any, t: Any, p: Any) -> Any:
    r = (y * 2) * p + (z * 3).sin() * p
    t.zero_()
    return r


@pytest.mark.parametrize("backend", BACKENDS)
def test_another_input_shares_memory_later(backend):
    compiled = tinycompile.compile(of_three, backend=backend)
    for shared in (0, 1, 0, 2, 1):
        found = []
        for fn in (compiled, of_three):
            y, z, t = square(), square() + 1, square() + 2
            t = (y.data, z.data, t)[shared]
            found.append(told(lambda a, b, p, fn=fn, y=y, z=z, t=t: fn(y, z, t, p), lambda y=y, t=t: (y, t)))
        same(*found)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("made", [data, partly, between, expanded_rows, one_twice])
def test_second_gradients_and_those_of_some_results(made, backend):
    for fn in (one_write, chain, through_views, kept_itself):
        compiled = tinycompile.compile(fn, backend=backend)
        same(told(compiled, made, again=True), told(fn, made, again=True))
    for fn in (chain, through_views, kept_by_one):
        compiled = tinycompile.compile(fn, backend=backend)
        for asked in (slice(1), slice(1, 2)):
            same(told(compiled, made, asked), told(fn, made, asked))


def test_an_unlike_storage_is_no_reason_to_copy():
    """Where nothing is shared the backward reads the input itself."""
    compiled = tinycompile.compile(one_write, backend="aot_eager")
    same(told(compiled, plain), told(one_write, plain))
    assert "y_before" not in compiled.source("joint")
