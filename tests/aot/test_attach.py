"""The compiled function as one node of torch's autograd: what is undefined, kept, edited, repeated, aliased."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

import tinycompile

pytestmark = pytest.mark.cpu


def test_only_some_outputs_are_used() -> None:
    def fn(x, y, z):
        return x * y, torch.exp(z), y + z

    f = tinycompile.compile(fn)
    for used in ((0,), (1,), (0, 2)):
        got, want = [], []
        for side, g in ((got, f), (want, fn)):
            torch.manual_seed(1)
            leaves = [torch.randn(3, requires_grad=True) for _ in range(3)]
            outs = g(*leaves)
            sum(outs[i].sum() for i in used).backward()
            side += [p.grad for p in leaves]
        for a, b in zip(got, want, strict=True):
            assert (a is None) == (b is None)
            if b is not None:
                torch.testing.assert_close(a, b)


def test_retain_graph() -> None:
    f = tinycompile.compile(lambda x: (torch.exp(x) * x).sum())
    x = torch.randn(4, requires_grad=True)
    y = f(x)
    y.backward(retain_graph=True)
    first = x.grad.clone()
    y.backward()
    torch.testing.assert_close(x.grad, 2 * first)
    with pytest.raises(RuntimeError, match="Trying to backward through the graph a second time"):
        y.backward()


def test_an_edited_saved_tensor_is_noticed() -> None:
    def fn(x, w):
        return torch.tanh(x @ w)

    f = tinycompile.compile(fn)
    for g in (f, fn):
        x, w = torch.randn(3, 4, requires_grad=True), torch.randn(4, 4)
        y = g(x, w)
        w.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()
        x, w = torch.randn(3, 4, requires_grad=True), torch.randn(4, 4)
        y = g(x, w)
        y.detach().mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


def test_an_edited_input_is_noticed_by_the_second_derivative() -> None:
    f = tinycompile.compile(lambda x, c: (torch.exp(x) + c).sum())
    x, c = torch.randn(3, requires_grad=True), torch.randn(3)
    y = f(x, c)
    c.add_(1)  # no gradient reads it
    torch.autograd.grad(y, x, create_graph=True)


def test_expanded_and_strided_tangents() -> None:
    def fn(x):
        return torch.sin(x) * 2

    f = tinycompile.compile(fn)
    x = torch.randn(4, 6, requires_grad=True)
    for seed in (
        torch.ones(()).expand(4, 6),
        torch.randn(6, 4).t(),
        torch.randn(4, 12)[:, 1::2],
        torch.randn(25)[1:].view(4, 6),
    ):
        (got,) = torch.autograd.grad(f(x), x, seed)
        (want,) = torch.autograd.grad(fn(x), x, seed)
        torch.testing.assert_close(got, want)


def test_outputs_that_alias_inputs_and_each_other() -> None:
    def fn(x):
        h = x * 2
        return x.t(), h, h.view(-1), h

    f = tinycompile.compile(fn)
    for g in (f, fn):
        x = torch.randn(2, 3, requires_grad=True)
        a, h, flat, again = g(x)
        assert a._is_view()
        assert again is h
        assert flat.data_ptr() == h.data_ptr()
        (got,) = torch.autograd.grad((a.sum() + (h * h).sum() + flat.sum() + again.sum()), x)
        torch.testing.assert_close(got, 1 + 8 * x.detach() + 2 + 2)


def test_what_the_backward_needs_is_freed_with_the_graph() -> None:
    f = tinycompile.compile(lambda x: torch.exp(torch.sin(x)))
    source = torch.randn(5, requires_grad=True)
    f(source * 1)
    x = source * 1
    ref = weakref.ref(x)
    y = f(x)
    del x
    y.sum().backward()
    del y
    gc.collect()
    assert ref() is None


def test_gradient_of_the_wrong_shape_is_torchs_error() -> None:
    f = tinycompile.compile(lambda x: x * 2)
    x = torch.randn(3, requires_grad=True)
    with pytest.raises(RuntimeError, match="Mismatch in shape"):
        f(x).backward(torch.ones(4))
    with pytest.raises(RuntimeError, match="grad can be implicitly created only for scalar outputs"):
        f(x).backward()


def test_a_backend_that_takes_the_captured_graph_replays() -> None:
    seen = []

    def backend(graph_module, example_inputs):
        seen.append(graph_module.graph)
        return graph_module

    f = tinycompile.compile(lambda x: torch.sin(x).sum(), backend=backend)
    x = torch.randn(3, requires_grad=True)
    f(x).backward()
    torch.testing.assert_close(x.grad, torch.cos(x.detach()))
    assert len(seen) == 1


def test_options() -> None:
    with pytest.raises(ValueError, match="activation_memory_budget must be between 0 and 1"):
        tinycompile.compile(lambda x: x, options={"activation_memory_budget": 2})
    with pytest.raises(ValueError, match="unknown options"):
        tinycompile.compile(lambda x: x, options={"nothing": 2})
