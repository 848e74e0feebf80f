"""The compiled function as one node of torch's autograd: what is undefined, kept, edited, repeated, aliased."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

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


def test_complex_values_inside_are_replayed(capsys: pytest.CaptureFixture[str]) -> None:
    def fn(x):
        return torch.view_as_real(torch.fft.fft(x * 2)).square().sum()

    f = tinycompile.compile(fn)
    x = torch.randn(4, requires_grad=True)
    with tinycompile.config.patch(log={"graph"}):
        (got,) = torch.autograd.grad(f(x), x)
    (want,) = torch.autograd.grad(fn(x), x)
    torch.testing.assert_close(got, want)
    assert "the backward replays the graph, for" in capsys.readouterr().err or f.breaks


def dropped(x):
    return F.dropout(torch.sin(x), 0.4) * x


def test_dropout_draws_eagers_numbers_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tinycompile.config, "fallback_random", True)
    f = tinycompile.compile(dropped, fullgraph=True)
    x = torch.randn(40, requires_grad=True)
    found = []
    for g in (f, dropped):
        torch.manual_seed(5)
        y = g(x)
        (first,) = torch.autograd.grad(y, x, torch.ones_like(y), create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
        found.append((y.detach(), first.detach(), second, torch.rand(1)))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b)


def test_dropout_in_kernels_is_one_noise_in_all_derivatives() -> None:
    """y = noise * sin(x) * x: the noise that y shows is that of both gradients, and the seed decides it."""
    f = tinycompile.compile(dropped, fullgraph=True)
    x = torch.randn(40, requires_grad=True)
    torch.manual_seed(5)
    y = f(x)
    (first,) = torch.autograd.grad(y, x, torch.ones_like(y), create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    noise = (y / (torch.sin(x) * x)).detach()
    assert 5 < (noise == 0).sum() < 28
    torch.testing.assert_close(noise[noise != 0], torch.full_like(noise, 1 / 0.6)[noise != 0])
    torch.testing.assert_close(first, noise * (torch.cos(x) * x + torch.sin(x)))
    torch.testing.assert_close(second, noise * (2 * torch.cos(x) - torch.sin(x) * x))
    torch.manual_seed(5)
    assert torch.equal(f(x), y) and not torch.equal(f(x), y)


def random_mask(x):
    return torch.where(torch.rand_like(x) < 0.5, x * x, 0.0)


def test_random_numbers_are_not_drawn_again_by_the_backward() -> None:
    f = tinycompile.compile(random_mask, fullgraph=True)
    x = torch.randn(40, requires_grad=True)
    y = f(x)
    (first,) = torch.autograd.grad(y, x, torch.ones_like(y), create_graph=True)
    torch.testing.assert_close(first.detach(), torch.where(y == 0, 0.0, 2 * x).detach())
    (second,) = torch.autograd.grad(first.sum(), x)
    torch.testing.assert_close(second, torch.where(y == 0, 0.0, 2.0))


def test_budget_gives_the_same_gradients() -> None:
    def fn(x, w):
        for _ in range(4):
            x = torch.tanh(x @ w)
        return x

    x, w = torch.randn(5, 5, requires_grad=True), torch.randn(5, 5, requires_grad=True)
    want = torch.autograd.grad(fn(x, w).sum(), (x, w))
    for budget in (1.0, 0.5, 0.0):
        f = tinycompile.compile(fn, options={"activation_memory_budget": budget})
        got = torch.autograd.grad(f(x, w).sum(), (x, w))
        for g, e in zip(got, want, strict=True):
            torch.testing.assert_close(g, e)


def test_both_halves_come_from_disk(tmp_path: Path) -> None:
    with tinycompile.config.patch(cache_dir=str(tmp_path / "cache")):
        for from_disk in (0, 1):
            f = tinycompile.compile(lambda x: torch.softmax(x, -1).square().sum())
            x = torch.randn(3, 4, requires_grad=True)
            f(x).backward()
            assert f.cache_info()["from_disk"] == from_disk
            assert f.source("cpp") and f.source("plan")


def test_artifacts(tmp_path: Path) -> None:
    with tinycompile.config.patch(dump_dir=str(tmp_path)):
        f = tinycompile.compile(lambda x: torch.exp(x).sum())
        report = f.explain(torch.randn(3, requires_grad=True))
    names = {p.name for p in tmp_path.rglob("*.*")}
    assert {"2_joint.py", "2_forward.py", "2_backward.py", "5_plan.py", "5_plan_backward.py"} <= names
    assert "aot" in dict(report.times)
    assert len(report.kernels) == 2
    assert "tangent" in f.source("backward") and "tangent" not in f.source("forward")


def test_options() -> None:
    with pytest.raises(ValueError, match="activation_memory_budget must be between 0 and 1"):
        tinycompile.compile(lambda x: x, options={"activation_memory_budget": 2})
    with pytest.raises(ValueError, match="unknown options"):
        tinycompile.compile(lambda x: x, options={"nothing": 2})


DRAWS = [
    lambda x: F.dropout(x, 0.5),
    lambda x: F.rrelu(-x, 0.1, 0.9, training=True),
    lambda x: x * torch.randperm(len(x)),
    lambda x: x * torch.multinomial(torch.ones(len(x)), len(x)),
    lambda x: x * torch.normal(torch.zeros(len(x)), 1.0),
    lambda x: x * torch.bernoulli(x.detach() / 2) * torch.rand_like(x),
]


@pytest.mark.parametrize("fn", DRAWS)
@pytest.mark.parametrize("way", ("eager", "complex"))
def test_a_replay_draws_the_forwards_numbers(way: str, fn: Callable[..., torch.Tensor]) -> None:
    def in_complex(x: torch.Tensor) -> torch.Tensor:
        return fn(x) * torch.view_as_real(torch.complex(torch.ones(64), x.detach()))[:, 0]

    compiled = tinycompile.compile(fn if way == "eager" else in_complex, backend="eager" if way == "eager" else None)
    x = torch.ones(64, requires_grad=True)
    y = compiled(x)
    after = torch.get_rng_state()
    y.sum().backward(retain_graph=True)
    torch.testing.assert_close(x.grad, y.detach())
    assert torch.equal(torch.get_rng_state(), after)
    (again,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    torch.testing.assert_close(again.detach(), y.detach())


@pytest.mark.parametrize("backend", ("cpp", "eager"))
@pytest.mark.parametrize("fn", (lambda w: w.squeeze(), lambda w: w.expand(10, 4), lambda w: (w.exp(), w.permute(0, 1))[1]))
def test_a_view_that_leaves_takes_a_sparse_gradient(fn: Callable[[torch.Tensor], torch.Tensor], backend: str) -> None:
    grads = []
    for call in (tinycompile.compile(fn, backend=backend), fn):
        w = torch.arange(40.0).view(10, 4).requires_grad_()
        F.embedding(torch.tensor([[1, 2], [2, 3]]), call(w), sparse=True).sin().sum().backward()
        assert w.grad.layout is torch.sparse_coo
        grads.append(w.grad.to_dense())
    assert torch.equal(*grads)


@pytest.mark.parametrize("shape", [(1, 1), (3,), (2, 1), (5, 1, 1), (1, 2, 3)], ids=str)
@pytest.mark.parametrize("leaves", ["expand", "broadcast_tensors"])
def test_gradients_of_expanded_views_are_summed_in_eagers_order(leaves: str, shape: tuple[int, ...]) -> None:
    def views(x: torch.Tensor) -> torch.Tensor:
        return x.expand(5, 2, 3) if leaves == "expand" else torch.broadcast_tensors(x, torch.ones(5, 2, 3))[0]

    x, weights = torch.randn(shape, requires_grad=True), torch.cos(torch.arange(30.0)).reshape(5, 2, 3)
    eager, made = views(x), tinycompile.compile(views, fullgraph=True)(x)
    assert made.grad_fn.name() == eager.grad_fn.name()
    assert torch.equal(*(torch.autograd.grad(y, x, weights)[0] for y in (eager, made)))


@pytest.mark.parametrize("backend", ("cpp", "aot_eager", "eager"))
def test_a_graph_in_which_all_is_cut_off_gives_no_gradient(backend: str) -> None:
    def cut(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.no_grad():
            y = x.exp()
        return x.detach() * 2, y + 1

    compiled = tinycompile.compile(cut, fullgraph=True, backend=backend)
    for result in compiled(torch.ones(3, requires_grad=True)):
        assert not result.requires_grad
