"""Library functions at changing sizes: compiled once for all, where their results' sizes follow from their arguments'."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import tinycompile
from tinycompile.base.errors import FallbackWarning
from tinycompile.base.expr import evaluate, sym
from tinycompile.capture import extern_sizes
from tinycompile.capture.extern_sizes import _fit

pytestmark = pytest.mark.cpu

Tensor = torch.Tensor


def spd(x: Tensor) -> Tensor:
    return x @ x.t() + torch.eye(x.shape[0]) * 9


# Of a matrix; what is differentiable is differentiated too.
FOLLOW: dict[str, Callable[[Tensor], Any]] = {
    "sort": lambda x: torch.sort(x)[0] + 1,
    "sort, both": lambda x: torch.sort(x, dim=0, descending=True),
    "argsort": lambda x: x.argsort() + 1,
    "topk": lambda x: x.topk(2)[0] * 2,
    "kthvalue": lambda x: x.kthvalue(1)[0] - 1,
    "median": lambda x: x.median() + x,
    "mode": lambda x: x.mode()[0] + 1,
    "quantile": lambda x: torch.quantile(x, 0.5) * x,
    "quantiles": lambda x: torch.quantile(x, torch.tensor([0.25, 0.75]), dim=1) + 1,
    "logcumsumexp": lambda x: x.logcumsumexp(0) * 2,
    "cdist": lambda x: torch.cdist(x, x[:2]) + 1,
    "svd": lambda x: torch.linalg.svd(x, full_matrices=False)[1] * 2,
    "inv": lambda x: torch.linalg.inv(spd(x)) + 1,
    "cholesky": lambda x: torch.linalg.cholesky(spd(x)) + 1,
    "solve": lambda x: torch.linalg.solve(spd(x), x) + 1,
    "histc": lambda x: torch.histc(x, 5, -1.0, 1.0) + 1,
    "bucketize": lambda x: torch.bucketize(x, torch.arange(3.0)) + 1,
    "searchsorted": lambda x: torch.searchsorted(x.sort(-1)[0].contiguous(), x) + 1,
    "cartesian_prod": lambda x: torch.cartesian_prod(x[0], x[:, 0]) + 1,
    "block_diag": lambda x: torch.block_diag(x, x.t()) + 1,
    "sizes of it are used": lambda x: torch.sort(x)[0].reshape(-1) + x.sort(-1)[0].shape[0],
    "einsum with an ellipsis": lambda x: torch.einsum("...ij,...jk->...ik", x[None], x.t()[None]) + 1,
    "einsum with an ellipsis and no output": lambda x: torch.einsum("...ij,jk", x[None], x.t()) + 1,
    "einsum that turns": lambda x: torch.einsum("...ij->j...i", x[None]) + 1,
    "rfft": lambda x: torch.fft.rfft(x).abs() + 1,
    "irfft": lambda x: torch.fft.irfft(torch.fft.rfft(x)) + 1,
    "lp_pool1d": lambda x: F.lp_pool1d(x[None], 2.0, 2) + 1,
    "grid_sample": lambda x: F.grid_sample(x[None, None], x[None, :, :2, None] * x.new_ones(2), align_corners=False) + 1,
}
# Calls that are given sizes as numbers.
GIVEN: dict[str, Callable[[Tensor], Any]] = {
    "topk": lambda x: x.topk(x.shape[1] // 2)[0] * 2,
    "topk, both": lambda x: torch.topk(x, k=x.shape[0] - 1, dim=0, largest=False),
    "kthvalue": lambda x: x.kthvalue(x.shape[1] - 1)[0] + 1,
    "fft": lambda x: torch.fft.fft(x, n=x.shape[1] * 2).abs() + 1,
    "histc": lambda x: torch.histc(x.detach(), x.shape[0], -1.0, 1.0) + 1,
    "interpolate": lambda x: F.interpolate(x[None, None], (x.shape[0] * 2, x.shape[1] // 2 + 1), mode="bilinear"),
    "interpolate, smoothed": lambda x: F.interpolate(x[None, None], (x.shape[0] * 2, 3), mode="bicubic", antialias=True),
    "interpolate by a factor": lambda x: F.interpolate(x[None, None], scale_factor=2.0),
    "interpolate to half": lambda x: F.interpolate(x[None, None], scale_factor=0.5, mode="bicubic", align_corners=True),
}
# Their sizes follow in ways that nobody looks for, so each is compiled for itself.
OWN: dict[str, Callable[[Tensor], Any]] = {
    "max_pool with indices": lambda x: F.max_pool1d_with_indices(x[None], 3)[0] + 1,
}
HALVED = ("lp_pool1d",)  # a result's size is 1 where one of x is 2 or 3: that is compiled apart
SIZES = [(3, 4), (4, 6), (9, 5), (5, 9), (17, 2), (2, 31), (8, 8), (6, 4)]


def results(fn: Callable[[Tensor], Any], size: tuple[int, int], grad: bool) -> list[Tensor]:
    x = torch.randn(size, generator=torch.Generator().manual_seed(sum(size))).requires_grad_(grad)
    made = fn(x)
    made = [made] if isinstance(made, Tensor) else list(made)
    through = [t for t in made if t.requires_grad]
    if through:
        torch.autograd.backward([(t * t).sum() for t in through])
    return made if x.grad is None else [*made, x.grad]


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", FOLLOW)
def test_compiled_twice_for_all_sizes(name: str, grad: bool) -> None:
    compiled = tinycompile.compile(FOLLOW[name])
    for size in SIZES:
        got, want = results(compiled, size, grad), results(FOLLOW[name], size, grad)
        assert [(t.shape, t.stride(), t.dtype) for t in got] == [(t.shape, t.stride(), t.dtype) for t in want]
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)
    assert len(compiled._entries) == 2 + (name in HALVED) and not compiled.breaks


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", GIVEN)
def test_sizes_as_numbers(name: str, grad: bool) -> None:
    compiled = tinycompile.compile(GIVEN[name])
    for size in [(4, 6), (5, 7), (6, 9), (7, 12), (9, 15), (30, 4)]:
        got, want = results(compiled, size, grad), results(GIVEN[name], size, grad)
        assert [(t.shape, t.stride(), t.dtype) for t in got] == [(t.shape, t.stride(), t.dtype) for t in want]
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)
    assert len(compiled._entries) == 2 and not compiled.breaks, compiled.recompiles


def test_numbers_that_a_call_refuses() -> None:
    """At other sizes than those of the compiled calls, in torch's words, and where the program hears it."""
    plain: Callable[[Tensor], Any] = lambda x: x.topk(x.shape[1] // 2, 0)[0] + 1
    compiled = tinycompile.compile(plain)

    @tinycompile.compile
    def catching(x: Tensor) -> Tensor:
        try:
            return plain(x)
        except RuntimeError:
            return x - 1

    for size in ((6, 4), (7, 6), (9, 8), (15, 12)):
        for run in (compiled, catching):
            torch.testing.assert_close(run(torch.ones(size)), plain(torch.ones(size)))
    assert len(compiled._entries) == 2
    with pytest.raises(RuntimeError, match="selected index k out of range"):
        compiled(torch.ones(3, 14))
    assert torch.equal(catching(torch.ones(3, 14)), torch.zeros(3, 14))


@pytest.mark.parametrize("name", OWN)
def test_what_does_not_follow_is_compiled_for_its_sizes(name: str) -> None:
    compiled = tinycompile.compile(OWN[name])
    for size in SIZES[:4]:
        torch.testing.assert_close(results(compiled, size, False), results(OWN[name], size, False))
    assert len(compiled._entries) == 4


def test_a_wrong_guess_is_left_to_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if sizes beyond those that were tried went another way."""
    monkeypatch.setattr(extern_sizes, "_TRIALS", (lambda hint, at, top: hint,) * 4)
    monkeypatch.setattr(extern_sizes, "_fit", lambda values, sizes, terms: terms[0] * 0 + values[0])
    compiled = tinycompile.compile(lambda x: torch.cumprod(x.sort(-1)[0], 0) + 1, dynamic=True)
    with tinycompile.config.patch(on_error="eager"):
        compiled(torch.ones(3, 4))
        with pytest.warns(FallbackWarning, match="shape"):
            got = compiled(torch.full((4, 5), 2.0))
    torch.testing.assert_close(got, torch.full((4, 5), 2.0).cumprod(0) + 1)


FORMULAS: dict[str, Callable[[int, int], int]] = {
    "a number": lambda s, t: 4,
    "a size": lambda s, t: t,
    "a multiple and a number": lambda s, t: 2 * s - 1,
    "the lesser": min,
    "the greater": max,
    "a sum": lambda s, t: s + t,
    "a product": lambda s, t: s * t,
    "a half": lambda s, t: t // 2 + 1,
    "a half, rounded up": lambda s, t: (s + 1) // 2,
}


@pytest.mark.parametrize("name", FORMULAS)
def test_expressions(name: str) -> None:
    seen = [{"s": 3, "t": 7}, {"s": 5, "t": 6}, {"s": 10, "t": 4}, {"s": 12, "t": 12}]
    terms = [sym(n, 2) for n in "st"]
    found = _fit([FORMULAS[name](at["s"], at["t"]) for at in seen], seen, terms)
    assert found is not None
    for s, t in ((100, 3), (8, 90)):
        assert evaluate(found, {"s": s, "t": t}) == FORMULAS[name](s, t)
    assert _fit([at["s"] // 3 for at in seen], seen, terms) is None
