"""``torch.tensor`` and its kin of numbers that are not the same in every call: compiled twice, and torch's own tensors."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
import torch

import tinycompile
from tests.capture.corpus import r

pytestmark = pytest.mark.pure

Tensor = torch.Tensor
INTS = (20, 17, 13, 11, 8, 3)
NEGATIVES = (-20, -1, -3, -17, -2, -8)
FLOATS = (0.1, 7.25, -0.5, 3e-8, 2.0, 1e4)
MADE: dict[str, Callable[[Tensor, Any], Any]] = {
    "in a list": lambda x, t: x + torch.tensor([t], dtype=torch.float32),
    "beside constants": lambda x, t: torch.tensor([t, t + 1, 0]),
    "constants of several types": lambda x, t: torch.tensor([True, t, 1.5, math.inf, -0.0]),
    "in rows": lambda x, t: torch.tensor([[t / 2, 1.0, 2.0], [t, t, t]]),
    "in tuples": lambda x, t: torch.tensor(((t, 1), (2, t))),
    "in a deque": lambda x, t: torch.tensor(deque([t, 1])),
    "of a row": lambda x, t: torch.tensor([t] * 3, dtype=torch.float64),
    "in half": lambda x, t: torch.tensor([t, t * 3], dtype=torch.bfloat16),
    "as ints": lambda x, t: torch.tensor([t, t * 3], dtype=torch.int64),
    "as an int": lambda x, t: torch.tensor(t, dtype=torch.int32),
    "as bools": lambda x, t: torch.tensor([t, t - t, 1], dtype=torch.bool),
    "as a complex number": lambda x, t: torch.tensor(t, dtype=torch.complex64),
    "alone": lambda x, t: (x + torch.tensor(t), torch.tensor(t)),
    "where": lambda x, t: torch.tensor([t], device="cpu", dtype=None),
    "with sizes": lambda x, t: torch.tensor([t, x.shape[0]]),
    "as_tensor": lambda x, t: x + torch.as_tensor(t),
    "as_tensor, of a dtype": lambda x, t: torch.as_tensor(t, dtype=torch.float64),
    "as_tensor, in a list": lambda x, t: torch.as_tensor([t, 1.5], dtype=torch.float16),
    "new_tensor": lambda x, t: x.new_tensor(t),
    "new_tensor, in a list": lambda x, t: x.half().new_tensor([t, 1]),
    "new_tensor, of a dtype": lambda x, t: x.new_tensor([[t]], dtype=torch.int16),
    "new_full": lambda x, t: x.new_full((3,), t),
    "new_full, of a dtype": lambda x, t: x.new_full([2], fill_value=t, dtype=torch.float64),
    "full, of no dtype": lambda x, t: torch.full((2,), t, dtype=None),
    "scalar_tensor": lambda x, t: torch.scalar_tensor(t) + x,
    "scalar_tensor, of no dtype": lambda x, t: torch.scalar_tensor(t, dtype=None, device=None),
    "scalar_tensor, of a dtype": lambda x, t: torch.scalar_tensor(t, dtype=torch.float64),
    "returned twice": lambda x, t: [torch.tensor([t, 1])] * 2,
    "written": lambda x, t: torch.tensor([t, 1.0]).mul_(x[:2]).add_(1),
    "written by place": lambda x, t: _placed(torch.tensor([t, 1.0, t])),
    "made twice": lambda x, t: (torch.tensor([t, 1.0]).add_(1), torch.tensor([t, 1.0])),
    "viewed": lambda x, t: torch.tensor([[t, 1.0], [2, t]]).T[0],
}  # fmt: skip


def _placed(made: Tensor) -> Tensor:
    made[0] = made[2] + 1
    return made


def alike(got: Any, want: Any) -> None:
    pairs = [(got, want)] if isinstance(want, Tensor) else list(zip(got, want, strict=True))
    for a, b in pairs:
        assert (a.dtype, a.shape, a.stride(), a.requires_grad) == (b.dtype, b.shape, b.stride(), b.requires_grad)
        assert torch.equal(a, b)


@pytest.mark.cpu
@pytest.mark.parametrize("backend", ["eager", "cpp"])
@pytest.mark.parametrize("numbers", [INTS, NEGATIVES, FLOATS], ids=["ints", "negatives", "floats"])
@pytest.mark.parametrize("name", MADE)
def test_made_of_numbers(name: str, numbers: tuple[Any, ...], backend: str) -> None:
    compiled = tinycompile.compile(MADE[name], backend=backend)
    for t in numbers:
        alike(compiled(r(4), t), MADE[name](r(4), t))
    assert compiled.cache_info()["entries"] == 2 and not compiled.breaks, compiled.recompiles


def test_each_is_a_new_tensor() -> None:
    compiled = tinycompile.compile(lambda t: [torch.tensor([t, 1]), torch.tensor([t, 1])], backend="eager")
    for t in INTS:
        first, second = compiled(t)
        first.zero_()
        assert second.tolist() == [t, 1]
        assert compiled(t)[0].tolist() == [t, 1]


SIZED: dict[str, Callable[[Tensor], Any]] = {
    "a size": lambda x: torch.tensor(x.shape[0]),
    "all sizes": lambda x: torch.tensor(x.shape),
    "a list of sizes": lambda x: x.new_tensor([x.shape[0] * 2, x.shape[1] // 2, x.shape[0] / x.shape[1]]),
    "a size as a byte": lambda x: torch.tensor([x.shape[0]], dtype=torch.uint8),
    "a size as one of its kin": lambda x: torch.as_tensor(x.shape[1], dtype=torch.float16) + x,
    "the greater": lambda x: torch.tensor([max(x.shape), min(x.shape)]),
}


@pytest.mark.parametrize("name", SIZED)
def test_made_of_sizes(name: str) -> None:
    compiled = tinycompile.compile(SIZED[name], backend="eager")
    for size in ((4, 6), (5, 7), (6, 9), (7, 12), (9, 15), (30, 40)):
        alike(compiled(r(*size)), SIZED[name](r(*size)))
    assert compiled.cache_info()["entries"] == 2 and not compiled.breaks, compiled.recompiles


def test_as_an_index() -> None:
    f = lambda x, t: (x[[t, 0]], x[[t, -1], [0, t]], x[:, [t]], x[[t - 20]])
    compiled = tinycompile.compile(f, backend="eager")
    for t in INTS:
        alike(compiled(r(21, 21), t), f(r(21, 21), t))
    assert compiled.cache_info()["entries"] == 2, compiled.recompiles
    with pytest.raises(IndexError, match="out of bounds|out of range"):
        compiled(r(21, 21), 30)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_gradients_past_them(backend: str) -> None:
    f = lambda x, t: (x * torch.tensor([t, 2.0]) * x.new_tensor([t])).sum()
    compiled = tinycompile.compile(f, backend=backend)
    for t in FLOATS:
        x, y = r(2).requires_grad_(), r(2).requires_grad_()
        compiled(x, t).backward()
        f(y, t).backward()
        alike(x.grad, y.grad)
    assert compiled.cache_info()["entries"] == 2


def test_a_break_between() -> None:
    def f(x: Tensor, t: float) -> Tensor:
        made = torch.tensor([t, t * 2])
        tinycompile.graph_break()
        return made + torch.tensor([t]) * x

    compiled = tinycompile.compile(f, backend="eager")
    for t in FLOATS:
        alike(compiled(r(2), t), f(r(2), t))
    assert compiled.cache_info()["entries"] <= 4, compiled.recompiles


def test_under_vmap() -> None:
    f = lambda x, t: torch.vmap(lambda row: row * torch.tensor([t, 1.0, 2.0]) + row.new_tensor([t]))(x)
    compiled = tinycompile.compile(f, backend="eager")
    for t in FLOATS:
        alike(compiled(r(4, 3), t), f(r(4, 3), t))
    assert compiled.cache_info()["entries"] <= 2, compiled.recompiles


REFUSED: dict[str, Callable[[Any], Any]] = {
    "int64": lambda t: torch.tensor([t, 0]),
    "uint8": lambda t: torch.tensor([t], dtype=torch.uint8),
    "int32": lambda t: torch.tensor([t, 1], dtype=torch.int32),
    "half": lambda t: torch.tensor([[t]], dtype=torch.float16),
    "float32": lambda t: torch.tensor([t, 1], dtype=torch.float32),
    "float64": lambda t: torch.tensor([t, 1], dtype=torch.float64),
    "bool": lambda t: torch.tensor([t, 1], dtype=torch.bool),
    "lone bool": lambda t: torch.tensor(t, dtype=torch.bool),
    "complex": lambda t: torch.tensor([t], dtype=torch.complex64),
    "lone byte": lambda t: torch.tensor(t, dtype=torch.uint8),
    "new_tensor": lambda t: torch.ones(2).new_tensor([t]),
    "new_full": lambda t: torch.ones(2).new_full((2,), t),
    "scalar_tensor": lambda t: torch.scalar_tensor(t),
    "a quotient": lambda t: torch.tensor([1 / t, 2]),
    "ragged": lambda t: torch.tensor([[t], [t, 1]]),
    "a list beside a number": lambda t: torch.tensor([t, [1]]),
    "with a word": lambda t: torch.tensor([t, "a"]),
    "a leaf": lambda t: torch.tensor([t, 1.0], requires_grad=True),
    "without signs": lambda t: torch.tensor([t], dtype=torch.uint64),
    "without signs, alone": lambda t: torch.as_tensor(-t, dtype=torch.uint64),
}  # fmt: skip
ODD = {
    "ints": (300, 5, 200, 0, 1, -1, 2**31, 2**40, 2**63 - 1, 2**63, -(2**63), 2**64, 7),
    "floats": (0.5, 300.5, 1e5, math.inf, -math.inf, math.nan, -0.5, 0.0, -0.0, 1e39, 1e300, 255.5, 1.5),
    "several types": (3, 4, 2.5, True, 7, False, 0.25),
}


@pytest.mark.parametrize("numbers", ODD.values(), ids=list(ODD))
@pytest.mark.parametrize("name", REFUSED)
def test_numbers_that_a_dtype_does_not_hold(name: str, numbers: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    def told(run: Callable[[Any], Any], t: Any) -> str:
        try:
            made = run(t)
            return repr((made, made.dtype, made.requires_grad))
        except (OverflowError, RuntimeError, ValueError, TypeError, ZeroDivisionError) as error:
            return f"{type(error).__name__}: {error}"

    monkeypatch.setattr(tinycompile.config, "on_error", "eager")  # which would warn, and that fails the test
    monkeypatch.setattr(tinycompile.config, "recompile_limit", 20)
    compiled = tinycompile.compile(REFUSED[name], backend="eager")
    for t in numbers:
        assert told(compiled, t) == told(REFUSED[name], t), t


def test_the_default_dtype() -> None:
    f = lambda t: (torch.tensor([t, 1.5]), torch.scalar_tensor(t), torch.as_tensor([t / 2]))
    compiled = tinycompile.compile(f, backend="eager")
    for dtype in (torch.float32, torch.float64, torch.float16):
        torch.set_default_dtype(dtype)
        try:
            for t in (3, 4, 5):
                alike(compiled(t), f(t))
        finally:
            torch.set_default_dtype(torch.float32)
