"""vmap inside compiled functions is followed; compiled functions run under vmap."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import tinycompile as tc
from tests.lower.support import leaves
from tinycompile.capture.frame import capture
from tinycompile.eager.tensor import Tensor, from_torch

pytestmark = pytest.mark.cpu


def rows(x: Any, w: Any) -> Any:
    return tc.vmap(lambda r: (r * w).softmax(0) + r.sum())(x)


def products(x: Any, w: Any) -> Any:
    return torch.vmap(lambda r: torch.tanh(r @ torch.outer(w, w)))(x)


def dims(x: Any, w: Any) -> Any:
    return tc.vmap(lambda c, v: c * v, in_dims=(1, 0), out_dims=1)(x, w)


def nested(x: Any, w: Any) -> Any:
    return tc.vmap(tc.vmap(lambda a, b: a * b + 1, (None, 0)), (0, None))(w, w)


def structures(x: Any, w: Any) -> Any:
    pair = tc.vmap(lambda p, s: {"sum": p[0] + p[1] * s, "first": p[0].max()}, in_dims=((0, None), None))((x, w), w[0])
    return pair["sum"], pair["first"]


def writes(x: Any, w: Any) -> Any:
    def one(r: Any) -> Any:
        y = r * 1
        y += w
        return y.mul_(2)

    return tc.vmap(one)(x)


def constants(x: Any, w: Any) -> Any:
    return tc.vmap(lambda r: (w * 2, r.argmax()))(x)


def around_a_break(x: Any, w: Any) -> Any:
    mapped = tc.vmap(lambda r: r * 2)
    y = mapped(x)
    tc.graph_break()
    return mapped(y) + w


def with_loss(x: Any, w: Any) -> Any:
    target = torch.zeros(x.shape[0], dtype=torch.int64)
    return tc.vmap(lambda r, t: F.cross_entropy((r * w)[None], t[None]))(x, target)


FUNCTIONS = (rows, products, dims, nested, structures, writes, constants, with_loss)


OF_TORCHS_VMAP = (products, with_loss)  # for torch's tensors
CASES = [(fn, ours) for fn in (*FUNCTIONS, around_a_break) for ours in (False, True) if not ours or fn not in OF_TORCHS_VMAP]


@pytest.mark.parametrize(("fn", "ours"), CASES, ids=[f"{fn.__name__}-{'ours' if ours else 'torch'}" for fn, ours in CASES])
def test_vmap_inside(fn: Callable[..., Any], ours: bool) -> None:
    x, w = torch.randn(5, 3), torch.randn(3)
    args = (from_torch(x), from_torch(w)) if ours else (x, w)
    compiled = tc.compile(fn)
    for _ in range(2):
        for g, e in zip(leaves(compiled(*args)), leaves(fn(*args)), strict=True):
            assert type(g) is (Tensor if ours else torch.Tensor)
            torch.testing.assert_close(*(t.torch() if ours else t for t in (g, e)))
    assert len(compiled.graphs) == (2 if fn is around_a_break else 1)


@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda fn: fn.__name__)
def test_one_graph(fn: Callable[..., Any]) -> None:
    captured = capture(fn, (torch.randn(5, 3), torch.randn(3)), {})
    assert captured.graph is not None and not captured.breaks


def test_gradients_through_vmap_in_compiled_code() -> None:
    x, w = torch.randn(5, 3), torch.randn(3)
    found = []
    for fn in (rows, tc.compile(rows)):
        leaf = w.clone().requires_grad_()
        (fn(x, leaf) ** 2).sum().backward()
        found.append(leaf.grad)
    torch.testing.assert_close(found[1], found[0])


def test_symbolic_sizes() -> None:
    compiled = tc.compile(rows, dynamic=True)
    for n in (5, 6, 9):
        x, w = torch.randn(n, 3), torch.randn(3)
        torch.testing.assert_close(compiled(x, w), rows(x, w))
    assert len(compiled.graphs) == 1


def test_under_autocast() -> None:
    x, w = torch.randn(5, 3), torch.randn(3)
    compiled = tc.compile(products)
    with torch.autocast("cpu"):
        got, want = compiled(x, w), products(x, w)
    assert got.dtype is want.dtype is torch.bfloat16
    torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)


def test_what_has_no_rule_breaks_and_is_right() -> None:
    def fn(x: Any) -> Any:
        return torch.vmap(lambda r: torch.kthvalue(r, 2).values)(x)

    x = torch.randn(4, 3)
    assert capture(fn, (x,), {}).graph is None
    assert torch.equal(tc.compile(fn)(x), fn(x))


def test_wrong_calls_raise_as_without() -> None:
    def fn(x: Any) -> Any:
        return tc.vmap(lambda a, b: a + b)(x, x[0])

    with pytest.raises(ValueError, match="same size in the mapped dimension"):
        tc.compile(fn)(torch.randn(4, 3))


def test_a_compiled_function_under_vmap() -> None:
    compiled = tc.compile(lambda x: (x * 2).softmax(0))
    x = torch.randn(4, 3)
    got = tc.vmap(compiled)(from_torch(x))
    torch.testing.assert_close(got.torch(), (x * 2).softmax(1))
    torch.testing.assert_close(compiled(x[0]), (x[0] * 2).softmax(0))


DRAWING: dict[str, Callable[[Any], Any]] = {
    "rand": lambda r: r + torch.rand(3),
    "normal": lambda r: r + torch.normal(0.0, 1.0, (3,)),
    "randperm": lambda r: r + torch.randperm(3),
    "attention": lambda r: torch.nn.functional.scaled_dot_product_attention(r[:, None], r[:, None], r[:, None], dropout_p=0.5),
    "dropout of what is the same for all": lambda r: r + torch.dropout(torch.ones(3), 0.5, True),
}


@pytest.mark.filterwarnings("ignore:vmap calls scaled_dot_product_attention once for each example")
@pytest.mark.parametrize("vmap", [tc.vmap, torch.vmap], ids=["ours", "torch"])
@pytest.mark.parametrize("name", DRAWING)
def test_random_numbers_by_the_randomness(name: str, vmap: Callable[..., Any]) -> None:
    x = torch.ones(8, 3)
    with pytest.raises(RuntimeError, match="randomness error mode"):
        tc.compile(lambda x: vmap(DRAWING[name])(x))(x)
    different = tc.compile(lambda x: vmap(DRAWING[name], randomness="different")(x))(x)
    assert len(different.reshape(8, -1).unique(dim=0)) > 1
    if name != "attention" or vmap is tc.vmap:  # torch's attention has no such rule on a CPU
        same = tc.compile(lambda x: vmap(DRAWING[name], randomness="same")(x))(x)
        assert len(same.reshape(8, -1).unique(dim=0)) == 1


def test_rand_under_vmap_is_one_draw_in_the_graph() -> None:
    compiled = tc.compile(lambda x: torch.vmap(lambda r: r + torch.rand(3), randomness="different")(x), fullgraph=True)
    assert len(compiled(torch.ones(8, 3)).unique(dim=0)) == 8
