"""Views are index maps: they never copy, outputs keep torch's aliasing, and copies are made only where strides force them."""

from __future__ import annotations

import pytest
import torch

import tinycompile.ops  # noqa: F401
from tests.lower.support import GraphMaker, assert_same_form, run_lowered
from tinycompile.ir.loops import ExternCall, Nest
from tinycompile.lower.lowering import lower

pytestmark = pytest.mark.pure


def same_memory(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


def test_view_of_an_input_is_an_alias() -> None:
    g, x = GraphMaker(), torch.randn(4, 6)
    a = g.input(x)
    v = g.call("slice", g.call("transpose", a, 0, 1), 0, 1, 5, 2)
    graph = g.graph(v)
    assert not lower(graph).steps
    (got,) = run_lowered(graph, g.inputs)
    want = x.t()[1:5:2]
    assert_same_form(got, want)
    assert same_memory(got, x) and got.storage_offset() == want.storage_offset() and torch.equal(got, want)


def test_offset_is_relative_to_the_tensor_given() -> None:
    g, x = GraphMaker(), torch.randn(10, 6)
    a = g.input(x[2:6])
    graph = g.graph(g.call("select", a, 0, 1))
    other = torch.randn(20, 6)
    (got,) = run_lowered(graph, [other[7:11]])
    assert torch.equal(got, other[8]) and same_memory(got, other)


def test_input_returned_is_the_input() -> None:
    g, x = GraphMaker(), torch.randn(4, 6)
    a = g.input(x)
    got = run_lowered(g.graph(a, a), g.inputs)
    assert got[0] is x and got[1] is x


def test_fresh_result_is_fresh() -> None:
    g, x = GraphMaker(), torch.randn(4, 6)
    a = g.input(x)
    results = [g.call("mul", a, 1), g.call("clone", a), g.call("pow_scalar", a, 1), g.call("sub", a, 0)]
    got = run_lowered(g.graph(*results), g.inputs)
    assert all(torch.equal(r, x) and not same_memory(r, x) for r in got)
    assert len({r.untyped_storage().data_ptr() for r in got}) == 4


def test_one_value_twice_is_one_buffer() -> None:
    g = GraphMaker()
    y = g.call("exp", g.input(torch.randn(3)))
    got = run_lowered(g.graph(y, g.call("view", y, (3, 1)), y), g.inputs)
    assert got[0] is got[2] and same_memory(got[0], got[1])


def test_equal_results_stay_two_tensors() -> None:
    g = GraphMaker()
    x = g.input(torch.randn(3))
    got = run_lowered(g.graph(g.call("exp", x), g.call("exp", x)), g.inputs)
    assert torch.equal(*got) and not same_memory(*got)


def test_reshape_that_must_copy_is_a_copy_as_output_only() -> None:
    g, x = GraphMaker(), torch.randn(4, 6)
    a = g.input(x)
    flat = g.call("reshape", g.call("transpose", a, 0, 1), (24,), name="flat")
    used = g.call("exp", flat)
    assert [s.name for s in lower(g.graph(used)).steps] == [used.name]  # read through the index map: no copy
    tail = g.call("slice", flat, 0, 20)
    got = run_lowered(g.graph(flat, tail), g.inputs)
    for r, want in zip(got, (x.t().reshape(24), x.t().reshape(24)[20:]), strict=True):
        assert_same_form(r, want)
        assert torch.equal(r, want) and not same_memory(r, x)
    assert same_memory(got[0], got[1])


def test_extern_takes_a_view_as_it_is_and_a_copy_where_it_must() -> None:
    g, x = GraphMaker(), torch.randn(4, 6)
    a = g.input(x)
    turned = g.call("transpose", a, 0, 1)
    flat = g.call("reshape", turned, (3, 8), name="flat")
    one = g.extern("torch.fft.fftshift", g.metas[turned.name], turned)
    two = g.extern("torch.fft.fftshift", g.metas[flat.name], flat)
    loops = lower(g.graph(one, two))
    assert [type(s) for s in loops.steps] == [ExternCall, Nest, ExternCall]
    got = run_lowered(g.graph(one, two), g.inputs)
    assert torch.equal(got[0], torch.fft.fftshift(x.t())) and torch.equal(got[1], torch.fft.fftshift(x.t().reshape(3, 8)))


def test_pending_copy_is_made_before_its_memory_is_written() -> None:
    g, x = GraphMaker(), torch.randn(4, 6)
    before = x.clone()
    a = g.input(x)
    flat = g.call("reshape", g.call("transpose", a, 0, 1), (24,))
    g.nodes.append(g.nodes[0].__class__("w", "extern", "torch.Tensor.zero_", (a,), (), g.metas[a.name]))
    (got,) = run_lowered(g.graph(flat), g.inputs)
    assert torch.equal(got, before.t().reshape(24)) and not x.any()


def _random_view(g: GraphMaker, v, draw):  # noqa: ANN001, ANN202
    """One random view of a random kind that fits the value's shape."""
    shape = g.metas[v.name].shape
    rank = len(shape)
    kind = draw(["reshape", "permute", "slice", "unsqueeze", "squeeze", "select", "expand", "flip", "flatten"])
    if kind == "reshape":
        total = 1
        for n in shape:
            total *= n
        sizes = []
        while total > 1 and len(sizes) < 3:
            sizes.append(draw([d for d in range(1, total + 1) if total % d == 0]))
            total //= sizes[-1]
        return g.call("reshape", v, (*sizes, total))
    if kind == "permute":
        order = list(range(rank))
        return g.call("permute", v, tuple(sorted(order, key=lambda _: draw([0, 1, 2]))))
    if kind == "slice" and rank:
        d = draw(list(range(rank)))
        return g.call("slice", v, d, draw([0, 1, 2]), draw([None, -1, 3, 100]), draw([1, 2, 3]))
    if kind == "unsqueeze" and rank < 5:
        return g.call("unsqueeze", v, draw(list(range(rank + 1))))
    if kind == "select" and rank and 0 not in shape:
        d = draw(list(range(rank)))
        return g.call("select", v, d, draw(list(range(-shape[d], shape[d]))))
    if kind == "expand" and rank < 5:
        return g.call("expand", v, tuple([draw([1, 2])] + [draw([2, 3]) if n == 1 else n for n in shape]))
    if kind == "flip" and rank and "flip" in tinycompile.ops.record.OPS:
        return g.call("flip", v, (draw(list(range(rank))),))
    if kind == "flatten":
        return g.call("flatten", v)
    return g.call("squeeze", v)


def test_views_of_views_of_views() -> None:
    """Random chains: the value, its strides, whether it shares memory, and its use in arithmetic are all torch's."""
    hypothesis = pytest.importorskip("hypothesis")
    st = hypothesis.strategies

    @hypothesis.settings(max_examples=150, deadline=None, database=None)
    @hypothesis.given(
        st.data(), st.sampled_from([(4, 6), (2, 3, 4), (12,), (), (1, 5, 1), (2, 2, 2, 3), (3, 0), (2, 1, 2, 3, 2)])
    )
    def check(data, shape) -> None:  # noqa: ANN001
        g = GraphMaker()
        x = torch.randn(shape)
        v = g.input(x)
        for _ in range(data.draw(st.integers(1, 5))):
            v = _random_view(g, v, lambda options: data.draw(st.sampled_from(options)))
        doubled = g.call("mul", v, 2.0)
        got = run_lowered(g.graph(v, doubled), g.inputs)
        want = g.values[v.name]
        assert_same_form(got[0], want)
        assert torch.equal(got[0], want) and torch.equal(got[1], want * 2)
        if want.numel():
            assert same_memory(got[0], x) == same_memory(want, x)

    check()
