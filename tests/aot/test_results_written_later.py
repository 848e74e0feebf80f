"""What a compiled function returns, written to by the caller before the backward: refused where torch has saved it, only there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tinycompile
from tests.eager.test_spellings import mapped
from tests.lower.support import bind_sample, leaves
from tinycompile.ops.record import OPS

pytestmark = [pytest.mark.cpu, pytest.mark.filterwarnings("ignore")]

Tensor = torch.Tensor


def _tensors(value: Any) -> list[Tensor]:
    return [t for t in leaves(value) if isinstance(t, Tensor)]


WRITES: dict[str, Callable[[Tensor], object]] = {"values": lambda y: y.mul_(2), "sizes": lambda y: y.unsqueeze_(0)}


def outcome(fn: Callable[..., Any], args: Any, write: Callable[[Tensor], object]) -> Any:
    given = mapped(args, lambda t: t.detach().clone().requires_grad_() if t.is_floating_point() else t.clone())
    try:
        made = [t for t in _tensors(fn(*given)) if t.requires_grad]
        if not made:
            return None
        write(made[0])
        made[0].sum().backward()
    except RuntimeError as error:
        return str(error)[:60]
    return [t.grad for t in _tensors(given) if t.grad is not None]


def check(fn: Callable[..., Any], args: Any, write: str, backend: str | None) -> None:
    want = outcome(fn, args, WRITES[write])
    got = outcome(tinycompile.compile(fn, backend=backend), args, WRITES[write])
    assert isinstance(got, str) == isinstance(want, str), (got, want)
    if not isinstance(want, str):
        torch.testing.assert_close(got, want, equal_nan=True, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("name", sorted(n for n, op in OPS.items() if op.functions and op.vjp is not None))
def test_results_of_every_record(name: str, write: str) -> None:
    op = OPS[name]
    torch.manual_seed(0)
    args = bind_sample(op, next(iter(op.samples())))
    check(lambda *given: op.eager(*given), args, write, "aot_eager")


def several(a: Tensor, b: Tensor) -> Any:
    y = a / b
    return y, (y * a).sum()


PROGRAMS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "a quotient": lambda a, b: a / b,
    "of a function": lambda a, b: a.exp() / b.sum(),
    "softmax by hand": lambda a, b: (
        (a - a.amax(-1, keepdim=True)).exp() / (a - a.amax(-1, keepdim=True)).exp().sum(-1, keepdim=True) + b * 0
    ),
    "one that is saved": lambda a, b: torch.tanh(a / b),
    "a view of one": lambda a, b: (a / b).t(),
    "two results": several,
    "normalised": lambda a, b: a / a.norm() * b,
    "softmax": lambda a, b: torch.softmax(a * b, -1),
    "log_softmax": lambda a, b: torch.log_softmax(a * b, -1),
    "sigmoid": lambda a, b: torch.sigmoid(a * b),
    "layer_norm": lambda a, b: torch.nn.functional.layer_norm(a * b, (4,)),
    "gelu": lambda a, b: torch.nn.functional.gelu(a * b),
    "normalize": lambda a, b: torch.nn.functional.normalize(a * b),
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_results_of_programs(name: str, write: str) -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.rand(4, 4, generator=generator) + 0.5 for _ in range(2))
    check(PROGRAMS[name], (a, b), write, None)
