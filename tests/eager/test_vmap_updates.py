"""Functions that update an argument on their way: each example its own, or torch's refusal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import tinycompile as tc
from tinycompile.eager.tensor import from_torch

pytestmark = [pytest.mark.pure, pytest.mark.filterwarnings("ignore:vmap calls")]

X, IMAGES = torch.arange(12.0).view(2, 2, 3), torch.arange(24.0).view(2, 1, 3, 4)
ONES, EACH = torch.ones(3), torch.ones(2, 3)
PLACES, ROWS = torch.tensor([[0, 1], [3, 1]]), torch.ones(4, 3)

# Name -> the function of (input, what is updated), the input, what is updated.
CALLS: dict[str, tuple[Callable[[Any, Any], Any], torch.Tensor, torch.Tensor]] = {
    "F.batch_norm": (lambda x, w: F.batch_norm(x, w, w.clone(), training=True), X, ONES),
    "F.batch_norm, its variance": (lambda x, w: F.batch_norm(x, w.clone(), w, None, None, True), X, ONES),
    "F.batch_norm in evaluation": (lambda x, w: F.batch_norm(x, w, w.clone()), X, ONES),
    "torch.batch_norm": (lambda x, w: torch.batch_norm(x, None, None, w, w.clone(), True, 0.1, 1e-5, False), X, ONES),
    "F.instance_norm": (lambda x, w: F.instance_norm(x, w, w.clone()), IMAGES, ONES),
    "torch.instance_norm": (
        lambda x, w: torch.instance_norm(x, None, None, w, w.clone(), True, 0.1, 1e-5, False),
        IMAGES,
        ONES,
    ),
    "F.embedding": (lambda x, w: F.embedding(x, w, max_norm=1.0), PLACES, ROWS),
    "F.embedding, without": (lambda x, w: F.embedding(x, w), PLACES, ROWS),
    "F.embedding_bag": (lambda x, w: F.embedding_bag(x[None], w, max_norm=1.0), PLACES, ROWS),
}


def outcome(lib: Any, fn: Callable[..., Any], dims: tuple[int | None, ...], *given: torch.Tensor) -> Any:
    mine = [t.clone() if lib is torch else from_torch(t.clone()) for t in given]
    try:
        result = lib.vmap(fn, in_dims=dims)(*mine)
    except RuntimeError as error:
        return str(error).replace("level 1", "vmap"), mine[1].tolist()
    raw = result if lib is torch else result.torch()
    return raw.round(decimals=2).tolist(), mine[1].tolist()


@pytest.mark.parametrize("name", CALLS)
def test_as_torchs(name: str) -> None:
    fn, x, w = CALLS[name]
    for dims in ((0, None), (0, 0), (None, 0)):
        given = (x if dims[0] == 0 else x[0], w if dims[1] is None else torch.stack([w, w * 2]))
        assert outcome(tc, fn, dims, *given) == outcome(torch, fn, dims, *given), dims


@pytest.mark.parametrize("module", [torch.nn.BatchNorm1d(3), torch.nn.InstanceNorm1d(3, track_running_stats=True)])
@pytest.mark.parametrize("way", ["eager", "compiled", "gradients"])
def test_modules_in_training(module: torch.nn.Module, way: str) -> None:
    """Nothing is updated."""
    call = tc.vmap(tc.func.grad(lambda x: module(x).sum()) if way == "gradients" else module)
    with pytest.raises(RuntimeError, match="were not batched"):
        (tc.compile(call) if way == "compiled" else call)(IMAGES)
    assert not module.running_mean.any()
    module.eval()
    tc.vmap(lambda x: module(x).detach())(IMAGES)
    module.train()
