"""The contract of the design: float64 judges, eager sets the bar."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch


def assert_as_good_as_eager(compiled: Callable[..., Any], eager: Callable[..., Any], inputs: Sequence[Any]) -> None:
    """Same structure and metadata; exact where the dtype is exact; else error against float64 at most twice eager's plus an ulp."""
    got, want = compiled(*inputs), eager(*inputs)
    exact = eager(*(_wide(x) for x in inputs))
    _compare(got, want, exact)


def _wide(x: Any) -> Any:
    return x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x


def _compare(got: Any, want: Any, exact: Any) -> None:
    if not isinstance(want, torch.Tensor):
        assert type(got) is type(want)
        if isinstance(want, dict):
            assert list(got) == list(want)
            for key in want:
                _compare(got[key], want[key], exact[key])
        elif isinstance(want, (tuple, list)):
            assert len(got) == len(want)
            for g, w, e in zip(got, want, exact, strict=True):
                _compare(g, w, e)
        else:
            assert got == want
        return
    assert (got.shape, got.dtype, got.device, got.stride()) == (want.shape, want.dtype, want.device, want.stride())
    assert got.requires_grad == want.requires_grad
    if not want.is_floating_point():
        assert torch.equal(got, want)
        return
    close_enough(got.detach(), want.detach(), exact.detach())


def close_enough(got: torch.Tensor, want: torch.Tensor, exact: torch.Tensor) -> None:
    """Normwise: maximum and RMS of the error over the tensor."""
    assert torch.equal(got.isnan(), want.isnan())
    g, w, e = got.double(), want.double(), exact.double()
    finite = e.isfinite() & w.isfinite()
    assert torch.equal(g[~w.isfinite()].nan_to_num(), w[~w.isfinite()].nan_to_num())
    if not finite.any():
        return
    g, w, e = g[finite], w[finite], e[finite]
    ulp = torch.finfo(want.dtype).eps * e.abs().max().clamp_min(torch.finfo(want.dtype).tiny)
    for norm in (lambda t: t.abs().max(), lambda t: t.square().mean().sqrt()):
        assert norm(g - e) <= 2 * norm(w - e) + ulp, (norm(g - e).item(), norm(w - e).item(), ulp.item())
