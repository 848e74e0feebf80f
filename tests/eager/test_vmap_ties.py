"""Gradients through vmap where values tie, or are zero: those of each record, not those of what its batching rule is made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import tinycompile as tc
from tests.eager.test_vmap import examples, has_tensors, leaves, mapped
from tests.lower.support import bind_sample
from tinycompile.dispatch import dispatcher
from tinycompile.eager.tensor import from_torch
from tinycompile.ops.record import OPS

pytestmark = [pytest.mark.filterwarnings("ignore:vmap calls", "ignore:.*degrees of freedom", "ignore:reduction")]

# Random, not defined at such values, or ours alone (with_data).
LEFT_OUT = (
    "dropout", "native_dropout", "bernoulli", "rand_like", "randn_like", "attention_forward", "mvlgamma", "logit", "with_data",
)  # fmt: skip


def weighed(result: Any) -> Any:
    """A number that depends on each element of each result in its own way."""
    total: Any = 0.0
    for r in leaves(result):
        if r.dtype.is_floating_point:
            total = total + (r * torch.arange(1.0, r.numel() + 1, dtype=r.dtype).view(tuple(r.shape))).sum()
    return total


def tied(value: Any) -> Any:
    return mapped(value, lambda t: t.clamp(-1, 1).round() if t.is_floating_point() else t)


def gradients(fn: Callable[..., Any], given: list[torch.Tensor], at: list[int]) -> Any:
    """torch's own; None where it has none."""
    made = [g.clone().requires_grad_() if i in at else g for i, g in enumerate(given)]
    try:
        result = fn(*made)
        if not isinstance(result, torch.Tensor):
            return None
        return torch.autograd.grad(result, [made[i] for i in at], allow_unused=True, materialize_grads=True)
    except (RuntimeError, NotImplementedError):
        return None


@pytest.mark.pure
@pytest.mark.parametrize("name", sorted(OPS.keys() - set(LEFT_OUT)))
def test_every_record(name: str) -> None:
    op = OPS[name]
    for sample in list(op.samples())[:2]:
        args = bind_sample(op, sample)
        places = [i for i, a in enumerate(args) if isinstance(a, torch.Tensor)]
        if not places or any(has_tensors(a) for i, a in enumerate(args) if i not in places):
            continue
        given = [tied(args[i]) for i in places]
        at = [k for k, g in enumerate(given) if g.dtype in (torch.float32, torch.float64)]

        def call(run: Callable[..., Any], *some: Any) -> Any:
            full = list(args)  # noqa: B023
            for i, t in zip(places, some, strict=True):  # noqa: B023
                full[i] = t
            return weighed(run(*full))

        want = [gradients(lambda *some: call(op.eager, *some), [examples(g)[n] for g in given], at) for n in range(3)]  # noqa: B023
        if not at or any(w is None for w in want):
            continue

        def together(*some: Any) -> Any:
            return tc.vmap(lambda *one: call(lambda *full: dispatcher.call_bound(op.name, tuple(full)), *one))(*some).sum()

        try:
            got = tc.func.grad(together, argnums=tuple(at))(*(from_torch(examples(g)) for g in given))
        except (RuntimeError, NotImplementedError) as error:
            assert "not differentiable" in str(error) or "derivative" in str(error), error  # noqa: PT017
            continue
        for g, w in zip(got, zip(*want, strict=True), strict=True):
            torch.testing.assert_close(g.torch(), torch.stack(w), equal_nan=True, rtol=1e-4, atol=1e-4)


CALLS: dict[str, Callable[[Any], Any]] = {
    "max_pool1d": lambda a: F.max_pool1d(a[0], 3, 2),
    "max_pool2d": lambda a: F.max_pool2d(a, 3, 2),
    "adaptive_max_pool2d": lambda a: F.adaptive_max_pool2d(a, 2),
    "max": lambda a: a.max(),
    "amax": lambda a: a.amax(-1),
    "a norm at zero": lambda a: torch.linalg.vector_norm(a * 0),
    "multi_margin_loss": lambda a: F.multi_margin_loss(a[0, 0], torch.arange(6)),
    "clamp": lambda a: a.clamp(-1, 1),
    "maximum": lambda a: torch.maximum(a, a.flip(-1)),
    "normalize at zero": lambda a: F.normalize(a * 0),
}


@pytest.mark.cpu
@pytest.mark.parametrize("name", CALLS)
def test_compiled(name: str) -> None:
    x = torch.randint(-1, 2, (2, 1, 2, 6, 6), generator=torch.Generator().manual_seed(1)).float().requires_grad_()
    want = torch.autograd.grad(sum(weighed(CALLS[name](row)) for row in x), x)
    compiled = tc.compile(lambda x: tc.vmap(lambda a: weighed(CALLS[name](a)))(x).sum(), backend="aot_eager")
    torch.testing.assert_close(torch.autograd.grad(compiled(x), x), want)


@pytest.mark.pure
@pytest.mark.parametrize("dims", [(0, 0), (0, None), (None, 0)], ids=str)
@pytest.mark.parametrize("padding", [2, -2])
def test_rows_of_padding_have_no_gradient(padding: int, dims: tuple[int | None, int | None]) -> None:
    """torch's vmap forgets it for all tables but the first."""
    w, i = torch.arange(1.0, 9).view(2, 4, 1), torch.tensor([[0, 2], [2, 3]])

    def f(w: Any, i: Any) -> Any:
        return (F.embedding(i, w, padding_idx=padding) ** 2).sum()

    given = [t if d == 0 else t[0] for t, d in zip((w, i), dims, strict=True)]
    each = [torch.func.grad(f)(*(t if d is None else t[n] for t, d in zip(given, dims, strict=True))) for n in range(2)]
    want = torch.stack(each) if dims[0] == 0 else each[0] + each[1]
    torch.testing.assert_close(tc.func.grad(lambda w, i: tc.vmap(f, dims)(w, i).sum())(*map(from_torch, given)).torch(), want)
    torch.testing.assert_close(tc.vmap(tc.func.grad(f), dims)(*map(from_torch, given)).torch(), torch.stack(each))
