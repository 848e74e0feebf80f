"""Writes in place, through views and by index: captured in one graph, with values, aliases, gradients and versions as in
eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tinycompile

pytestmark = pytest.mark.cpu
F = torch.nn.functional
CASES: list[Callable[..., Any]] = []


def case(fn: Callable[..., Any]) -> Callable[..., Any]:
    CASES.append(fn)
    return fn


@case
def column(x):
    x[:, 0] += 1
    return x * 2


@case
def masked(x):
    x[x > 0] = 0
    return x + 1


@case
def rows_by_mask(x):
    m = x[:, 0] > 0
    x[m] = 5.0
    return x + 1


@case
def values_by_mask(x):
    x[torch.tensor([True, False, True, False])] = torch.arange(8.0).view(2, 4)
    return x + 1


@case
def slice_scaled(x):
    x[1:3].mul_(2)
    return x.sum()


@case
def transposed(x):
    x.t().copy_(torch.arange(16.0).view(4, 4))
    return x * 1


@case
def flattened(x):
    x.view(-1)[::2].zero_()
    return x * 1


@case
def view_in_a_local(x):
    v = x[0]
    a = x.sum()
    v.add_(1)
    b = x.sum()
    v.mul_(3)
    return a, b, v * 1, x[0] * 1


@case
def two_views(x):
    v, w = x[0], x[:, 0]
    v.add_(1)
    w.mul_(2)
    return v + 0, w + 0


@case
def view_returned(x):
    v = x[0]
    v.add_(1)
    return v


@case
def views_of_views_returned(x):
    v = x.view(2, 8)
    w = v[1].view(2, 4)
    x.add_(1)
    return x, v, w.t()


@case
def of_an_intermediate(x):
    y = x * 2
    y[:, 0].add_(1)
    y[1] = 0
    z = y.t()
    z[0] = 7
    return y, z


@case
def view_of_an_intermediate_alive(x):
    y = x * 2
    v = y.view(-1)
    y.add_(1)
    return v, y


@case
def view_of_an_intermediate_returned_alone(x):
    y = x * 2
    v = y[1:3]
    v.mul_(2)
    return v


@case
def diagonal(x):
    x.diagonal().fill_(1)
    return x * 1


@case
def other_views(x):
    x.unsqueeze(0).transpose(1, 2).flatten().unflatten(0, (2, 8)).movedim(0, 1).squeeze().permute(1, 0).narrow(1, 2, 3).add_(1)
    x.T.select(1, -1).mul_(2)
    return x * 1


@case
def one_row_after_another(x):
    for i in range(3):
        x[i].add_(i)
    return x * 1


@case
def list_of_views(x):
    rows = [x[i] for i in range(3)]
    for r in rows:
        r += 1
    return torch.stack(rows)


@case
def without_gradients(x):
    with torch.no_grad():
        x[0].add_(1)
    return x * x


@case
def list_as_index(x):
    x[[0, 1]] = 3.0
    return x * 1


@case
def slice_and_tensor_as_index(x):
    x[:, torch.tensor([0, 2])] = 2.0
    x[1:, torch.tensor([1, 3])] = x[0, :2] * 2
    x[torch.tensor([3, 1]), 2] = 9.0
    return x * 1


@case
def swapped(x):
    x[0], x[1] = x[1].clone(), x[0].clone()
    return x * 1


@case
def parts_that_do_not_overlap(x):
    x[0] += x[1]
    x[:, :2] += x[:, 2:]
    return x * 1


@case
def detached(x):
    x.detach()[1].add_(1)
    return x * x


@case
def new_dim_and_ellipsis(x):
    x[None, 0] = 2.0
    x[..., 1] = x.sum(-1)
    x[:] = x * 2
    return x * 1


@case
def part_masked_fill(x):
    x[1:].masked_fill_(x[1:] > 0, 0.0)
    return x * 1


@case
def scattered(x):
    x.scatter_(1, torch.zeros(4, 1, dtype=torch.int64), 9.0)
    x[1:].scatter_add_(0, torch.zeros(1, 4, dtype=torch.int64), x[:1] * 2)
    return x * 1


@case
def index_put(x):
    x.index_put_((torch.tensor([0, 0]),), torch.tensor(1.0), accumulate=True)
    x[:, 1].index_put_((torch.tensor([3, 2]),), torch.tensor([5.0, 6.0]))
    return x * 1


@case
def index_functions(x):
    x.index_add_(0, torch.tensor([0, 0]), torch.ones(2, 4))
    x.index_fill_(1, torch.tensor([2]), 0.5)
    x[2:].index_copy_(1, torch.tensor([3, 0]), torch.ones(2, 2))
    return x * 1


@case
def activation(x):
    F.relu(x[0], inplace=True)
    return x * 1


@case
def reshaped(x):
    x.reshape(-1)[0] = 4.0
    return x * 1


@case
def values_of_the_part(x):
    return x[0].fill_(2).add_(x[1]), x


@case
def read_between(x):
    y = x * 2
    v = x[1]
    x[1] = y[0]
    z = v + 1
    x.mul_(2)
    return y, z, v


@case
def of_a_value_with_a_gradient(x):
    y = torch.zeros(4, 4)
    y[1:3, ::2] = x[:2, :2] * 3
    return y * y


@case
def input_as_value(x):
    y = torch.empty(4, 4)
    y[:] = x
    y[0, 0] = 5
    return x, y


def flat(result: Any) -> list[torch.Tensor]:
    return list(result) if isinstance(result, (tuple, list)) else [result]


def aliases(tensors: list[torch.Tensor]) -> list[tuple[int, ...]]:
    """Which share memory, and where in it they lie."""
    places = [t.untyped_storage().data_ptr() for t in tensors]
    return [(places.index(p), t.storage_offset(), *t.stride()) for p, t in zip(places, tensors, strict=True)]


def outcome(fn: Callable[..., Any], with_gradient: bool) -> tuple[Any, ...]:
    torch.manual_seed(0)
    leaf = torch.randn(4, 4, requires_grad=with_gradient)
    x = leaf * 1 if with_gradient else leaf
    results = flat(fn(x))
    if with_gradient:
        sum((t * t).sum() for t in [*results, x] if t.requires_grad).backward()
    return [x, *results], leaf.grad, x._version > 0


@pytest.mark.parametrize("backend", ["cpp", "aot_eager"])
@pytest.mark.parametrize("with_gradient", [False, True], ids=["plain", "gradient"])
@pytest.mark.parametrize("fn", CASES, ids=lambda f: f.__name__)
def test_same_as_eager(fn: Callable[..., Any], with_gradient: bool, backend: str) -> None:
    compiled = tinycompile.compile(fn, fullgraph=True, backend=backend)
    for _ in range(2):
        (mine, grad, written), (theirs, wanted, expected) = outcome(compiled, with_gradient), outcome(fn, with_gradient)
        for a, b in zip(mine, theirs, strict=True):
            torch.testing.assert_close(a, b)
            assert a.requires_grad == b.requires_grad
        assert aliases(mine) == aliases(theirs)
        assert written == expected
        if with_gradient:
            torch.testing.assert_close(grad, wanted)
    assert compiled.cache_info()["entries"] == 1


class Buffers(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(3, 4))
        self.weight = torch.nn.Parameter(torch.ones(4))

    def forward(self, x, at: int):
        self.seen[at] = x.detach().mean(0)
        self.seen[:, 1:3].mul_(0.5)
        with torch.no_grad():
            self.weight[1:].clamp_(max=0.5)
        return x * self.weight + self.seen.sum(0)


def test_buffers_and_parameters() -> None:
    mine, theirs = Buffers(), Buffers()
    compiled = tinycompile.compile(mine, fullgraph=True)
    for at in (0, 1, 2):
        x = torch.randn(5, 4)
        got, want = compiled(x, at), theirs(x, at)
        torch.testing.assert_close(got, want)
        got.square().sum().backward()
        want.square().sum().backward()
        torch.testing.assert_close(mine.state_dict(), theirs.state_dict())
        torch.testing.assert_close(mine.weight.grad, theirs.weight.grad)


def test_a_constant_that_takes_a_gradient_over() -> None:
    """A plain tensor from outside gets a history."""

    def f(buffer, w):
        buffer[1:3] = w * 2
        return buffer.sum()

    found = []
    for fn in (tinycompile.compile(f, fullgraph=True), f):
        w, buffer = torch.ones(2, requires_grad=True), torch.zeros(4)
        total = fn(buffer, w)
        (total + (buffer * 3).sum()).backward()
        found.append((buffer.detach(), w.grad, buffer.requires_grad))
    torch.testing.assert_close(*found)


def test_inputs_in_one_memory() -> None:
    """Parts of one storage that don't overlap are captured, and guarded; those that do are eager's."""

    def f(a, b):
        a.mul_(2)
        b[1:].add_(a[0])
        return a + b

    compiled = tinycompile.compile(f)
    shapes = {
        "rows": lambda t: (t[0], t[1]),
        "columns": lambda t: (t[:, 0], t[:, 1]),
        "overlap": lambda t: (t.view(-1)[:4], t.view(-1)[2:6]),
        "one": lambda t: (t[0], t[0]),
        "apart": lambda t: (t[0], torch.ones(4)),
    }
    for take in (*shapes.values(), *shapes.values()):
        mine, theirs = torch.arange(16.0).view(4, 4), torch.arange(16.0).view(4, 4)
        torch.testing.assert_close(compiled(*take(mine)), f(*take(theirs)))
        torch.testing.assert_close(mine, theirs)
    graph_for = tinycompile.compile(f, fullgraph=True)
    mine = torch.arange(16.0).view(4, 4)
    graph_for(mine[0], mine[1])


def test_a_saved_input_is_copied_before_it_is_written() -> None:
    """The backward computes again from what the input held: from a copy of it, for it is overwritten when the call ends."""

    def f(x, w):
        y = w * x.exp()
        x[0] = w[0] * 2
        return y.sum() + x.sum()

    found = []
    for fn in (tinycompile.compile(f, fullgraph=True), f):
        leaf, w = torch.full((4,), 0.5, requires_grad=True), torch.ones(4, requires_grad=True)
        x = leaf * 1
        fn(x, w).backward()
        found.append((x.detach(), leaf.grad, w.grad))
    torch.testing.assert_close(*found)

    def buffer(x, w):
        y = w * x.exp()
        x.mul_(0.5)
        return y.sum()

    found = []
    for fn in (tinycompile.compile(buffer, fullgraph=True), buffer):
        x, w = torch.full((4,), 0.5), torch.ones(4, requires_grad=True)
        fn(x, w).backward()
        found.append((x, w.grad))
    torch.testing.assert_close(*found)


def test_errors_are_torchs() -> None:
    def overlap(x):
        x += x[0]
        return x

    def several(x):
        a, b = x.chunk(2)
        a.add_(1)
        return b

    leaf = torch.ones(4, 4, requires_grad=True)
    for fn, x in ((overlap, torch.ones(4, 4)), (several, leaf * 1), (lambda x: x[0].add_(1), leaf)):
        said = []
        for run in (tinycompile.compile(fn), fn):
            with pytest.raises(RuntimeError) as error:
                run(x)
            said.append(str(error.value))
        assert said[0] == said[1]


def test_sizes_that_change() -> None:
    def f(x, at: int):
        x[at:, 1] = x.shape[0]
        v = x[:at]
        v += 1
        return v, x.t()

    compiled = tinycompile.compile(f, fullgraph=True)
    for n, at in ((5, 2), (7, 3), (9, 4), (12, 7)):
        mine, theirs = torch.ones(n, 3), torch.ones(n, 3)
        torch.testing.assert_close(compiled(mine, at), f(theirs, at))
        torch.testing.assert_close(mine, theirs)
    assert compiled.cache_info()["entries"] <= 2


def test_a_break_behind_a_write() -> None:
    def f(x):
        v = x[1]
        v.mul_(2)
        w = v.view(2, 2)
        tinycompile.graph_break()
        w.add_(1)
        return v, w, x

    compiled = tinycompile.compile(f)
    mine, theirs = torch.ones(4, 4), torch.ones(4, 4)
    for _ in range(2):
        got, want = compiled(mine), f(theirs)
        torch.testing.assert_close(list(got), list(want))
        assert aliases(list(got)) == aliases(list(want))
