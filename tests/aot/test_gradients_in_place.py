"""Gradients of every method that writes in place: torch's, or its error, and whether the result requires grad."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import tinycompile
from tinycompile.ops.in_place import OWN_GRADIENT, names_a_write

pytestmark = pytest.mark.cpu

ARGUMENTS: tuple[Callable[[], tuple[Any, ...]], ...] = (
    tuple,
    lambda: (torch.tensor([[0.5, 0.6], [0.7, 0.8]]),),
    lambda: (0.5,),
    lambda: (0.2, 0.9),
)
# Random, of other dtypes, or not about values.
_LEFT_OUT = {
    *("bernoulli_", "cauchy_", "exponential_", "geometric_", "log_normal_", "normal_", "random_", "uniform_", "float_power_"),
    *("apply_", "detach_", "map2_", "map_", "rename_", "requires_grad_", "resize_", "resize_as_", "resize_as_sparse_"),
    *("share_memory_", "sparse_resize_", "sparse_resize_and_clear_"),
}
NAMES = [n for n in dir(torch.Tensor) if names_a_write(n) and n[0] != "_" and n not in _LEFT_OUT]


def outcome(name: str, args: tuple[Any, ...], fn: Callable[..., Any], wrap: Callable[[Any], Any] = lambda t: t) -> list[Any]:
    x = wrap(torch.tensor([[0.3, 0.4], [0.5, 0.6]])).requires_grad_()
    try:
        made = fn(x, *(wrap(a) if isinstance(a, torch.Tensor) else a for a in args))
        if not made.requires_grad:
            return ["constant", made.tolist()]
        made.sum().backward()
    except (RuntimeError, NotImplementedError) as error:
        return [str(error)]
    return [made.tolist(), (x.grad + 0).tolist()]  # of a sign it is zeros without memory


def test_there_are_many() -> None:
    assert {f"{name}_" for name in OWN_GRADIENT} <= set(NAMES)
    assert len(NAMES) > 100


@pytest.mark.parametrize("name", NAMES)
def test_as_torch(name: str) -> None:
    def fn(x: Any, *args: Any) -> Any:
        y = x * 1
        getattr(y, name)(*args)
        return y

    for given in ARGUMENTS:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                expected = outcome(name, given(), fn)
            except TypeError:
                continue  # takes others
            found = [outcome(name, given(), tinycompile.compile(fn, backend="aot_eager"))]
            if name.removesuffix("_") in OWN_GRADIENT:
                found.append(outcome(name, given(), fn, tinycompile.from_torch))
        for f in found:
            if isinstance(expected[-1], str):
                assert f == expected
            else:
                assert len(f) == len(expected)
                for a, b in zip(f, expected, strict=True):
                    assert a == b == "constant" or torch.allclose(torch.tensor(a), torch.tensor(b), equal_nan=True)
