"""Random numbers in compiled functions: where they are drawn, what decides them, and what they cost."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import tinycompile

pytestmark = pytest.mark.cpu

DRAWING: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "dropout": lambda x: F.dropout(x * 2, 0.3) + 1,
    "rand_like": lambda x: x + torch.rand_like(x),
    "randn_like": lambda x: x + torch.randn_like(x),
    "rand": lambda x: x * torch.rand(x.shape[0], 1),
    "randn": lambda x: x * torch.randn(x.shape),
    "two": lambda x: F.dropout(F.gelu(F.dropout(x, 0.2)), 0.5),
    "half": lambda x: F.dropout(x.bfloat16(), 0.3),
    "double": lambda x: x.double() + torch.randn_like(x, dtype=torch.float64),
    "transposed": lambda x: F.dropout(x.t() * 1.5, 0.3),
    "softmax": lambda x: F.dropout(torch.softmax(x, -1), 0.1),
}


@pytest.mark.parametrize("name", DRAWING)
def test_one_kernel_and_the_seed_decides(name: str) -> None:
    f = tinycompile.compile(DRAWING[name], fullgraph=True)
    x = torch.randn(40, 33)
    torch.manual_seed(1)
    first, second = f(x), f(x)
    torch.manual_seed(1)
    assert torch.equal(f(x), first) and not torch.equal(first, second)
    assert torch.equal(f(x), second)
    assert len(f.kernels) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64], ids=str)
@pytest.mark.parametrize("bad", [5, -0.5, float("nan")])
def test_what_is_no_probability_is_refused(dtype: torch.dtype, bad: float) -> None:
    """As torch does, which draws; integers are none."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        return torch.bernoulli(x * 1) + 1

    f = tinycompile.compile(fn, fullgraph=True)
    good = torch.full((9,), 0.5).to(dtype)
    for x in (good, torch.where(torch.arange(9) == 4, bad, 0.5).to(dtype)):
        torch.manual_seed(1)
        try:
            want = fn(x)
        except RuntimeError as error:
            with pytest.raises(type(error), match=re.escape(str(error))):
                f(x)
            continue
        torch.manual_seed(1)
        assert torch.equal(f(x), want)


@pytest.mark.parametrize("name", ["dropout", "randn_like", "softmax", "double"])
def test_both_languages_draw_the_same(name: str) -> None:
    x = torch.randn(6, 9)
    found = []
    for backend in ("cpp", "triton"):
        f = tinycompile.compile(DRAWING[name], fullgraph=True, backend=backend)
        torch.manual_seed(2)
        found.append(f(x))
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("name", DRAWING)
def test_fallback_random_is_eagers_numbers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tinycompile.config, "fallback_random", True)
    f = tinycompile.compile(DRAWING[name], fullgraph=True)
    x = torch.randn(8, 5)
    torch.manual_seed(1)
    want = [DRAWING[name](x), torch.rand(3)]
    torch.manual_seed(1)
    torch.testing.assert_close([f(x), torch.rand(3)], want)


# Probabilities for which torch draws nothing, or all the same, beside others.
CERTAIN: dict[str, Callable[[torch.Tensor, float], torch.Tensor]] = {
    "dropout": lambda x, p: F.dropout(x, p),
    "in place": lambda x, p: F.dropout(x * 1, p, True, True),
    "not training": lambda x, p: F.dropout(x, p, False),
    "native_dropout": lambda x, p: torch.native_dropout(x, p, True)[0],
    "of channels": lambda x, p: F.dropout1d(x, p),
    "alpha_dropout": lambda x, p: F.alpha_dropout(x, p, True),
    "attention": lambda x, p: F.scaled_dot_product_attention(x, x, x, dropout_p=p),
}


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", CERTAIN)
def test_as_many_numbers_as_eager_draws(name: str, backend: str) -> None:
    """With a gradient and without, for each probability; and what is infinite stays as it does in eager."""

    def program(x: torch.Tensor, p: float) -> torch.Tensor:
        return CERTAIN[name](x, p)

    def found(run: Callable[..., torch.Tensor], p: float, grad: bool) -> list[torch.Tensor]:
        x = torch.linspace(-2, 2, 12).view(3, 4).clone()
        x[1, 1] = float("-inf")
        x.requires_grad_(grad)
        torch.manual_seed(1)
        made = run(x, p)
        after = torch.rand(3)
        if grad:
            made.sum().backward()
            assert x.grad is not None
        return [made.detach(), after, x.grad if x.grad is not None else after]

    for p in (0.0, 0.5, 1.0):
        for grad in (False, True):
            compiled = tinycompile.compile(program, fullgraph=True, backend=backend)
            torch.testing.assert_close(
                found(compiled, p, grad), found(program, p, grad), equal_nan=True, msg=lambda t, p=p, g=grad: f"{p}, {g}: {t}"
            )


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_backends_that_write_no_kernels_draw_as_eager(backend: str) -> None:
    f = tinycompile.compile(DRAWING["two"], fullgraph=True, backend=backend)
    x = torch.randn(8, 5)
    torch.manual_seed(1)
    want = DRAWING["two"](x)
    torch.manual_seed(1)
    torch.testing.assert_close(f(x), want)


def test_a_backward_keeps_seeds_and_not_the_noise() -> None:
    f = tinycompile.compile(lambda x: torch.sin(F.dropout(x, 0.5)), fullgraph=True)
    x = torch.randn(64, 64, requires_grad=True)
    y = f(x)
    y.sum().backward()
    assert x.grad is not None
    assert ((x.grad == 0) == (y == 0)).all()
    saved = f.source("forward").splitlines()[-1]
    assert "seeds" in saved and "bits" not in saved


def test_symbolic_sizes() -> None:
    """The counter runs over the sizes of the call, and one kernel serves them."""
    f = tinycompile.compile(lambda x: F.dropout(x, 0.5), fullgraph=True, dynamic=True)
    for rows in (5, 17, 40):
        y = f(torch.ones(rows, 64))
        assert 0.3 < (y == 0).float().mean() < 0.7
    assert len(f.recompiles) == 0


@pytest.mark.parametrize("draw", [lambda: torch.normal(0.0, 1.0, (3,)), lambda: torch.randperm(5)], ids=["normal", "randperm"])
def test_learning_what_a_call_returns_draws_nothing(draw: Callable[[], torch.Tensor]) -> None:
    torch.manual_seed(0)
    eager = draw()
    torch.manual_seed(0)
    assert torch.equal(tinycompile.compile(draw)(), eager)
