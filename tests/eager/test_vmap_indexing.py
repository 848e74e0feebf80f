"""``x[index]`` and ``x[index] = value`` of each example, whatever the index is made of: as torch's vmap."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tinycompile as tc
from tinycompile.eager.tensor import from_torch

np = pytest.importorskip("numpy")
pytestmark = [pytest.mark.pure, pytest.mark.filterwarnings("ignore:vmap calls", "ignore:Using a non-tuple", "ignore:indexing")]

ALL, TRUE, FALSE = slice(None), torch.tensor(True), torch.tensor(False)
I, MASK = torch.tensor([0, 1]), torch.tensor([True, False])
INDICES: list[Any] = [
    True, False, (None, True), (ALL, True), (..., True), (..., False), (True, True), (True, 0), (0, True), (True, None, 0),
    TRUE, FALSE, (TRUE, 0), (TRUE, FALSE), (TRUE, I), (..., TRUE), (True, MASK), torch.tensor(1, dtype=torch.uint8),
    (True, I), (I, True), (True, ALL, I), (I, ALL, True), (False, 0), (None, 0), (None, MASK), (0, None), (0, 0, 0),
    MASK, [True, False], ([True, False], 0), torch.eye(2, dtype=torch.bool), torch.ones(2, 3, dtype=torch.bool),
    [], [0], [[0, 1]], [(0, 1)], [slice(0, 1)], [slice(0, 1), 0], ..., (), range(2), np.array([0, 1]), 1.5, 5,
    np.int64(1), torch.tensor(1), np.bool_(True), "0",
]  # fmt: skip
VALUES: dict[str, Callable[[Any], Any]] = {
    "a number": lambda a: 5.0,
    "a tensor of one number": lambda a: torch.tensor(5.0),
    "an example": lambda a: a * 0 + 7,
    "an example with a dim more": lambda a: (a * 0 + 7)[None],
}


def outcome(fn: Callable[[], Any]) -> Any:
    """The result; of an error its kind: torch's words are of all examples' sizes."""
    try:
        return fn().tolist()
    except (RuntimeError, IndexError, TypeError) as error:
        return type(error)


def written(lib: Any, x: Any, index: Any, value: Callable[[Any], Any]) -> Any:
    def write(a: Any) -> Any:
        a[index] = value(a)
        return a

    lib.vmap(write)(x)
    return x


def gradients(lib: Any, x: Any, index: Any, value: Callable[[Any], Any]) -> Any:
    def f(a: Any) -> Any:
        b = a * a
        b[index] = value(a)
        return b.sum()

    return lib.vmap(lib.func.grad(f))(x)


@pytest.mark.parametrize("shape", [(2, 2, 3), (2, 2), (2,)])
@pytest.mark.parametrize("index", INDICES, ids=str)
def test_as_torchs(index: Any, shape: tuple[int, ...]) -> None:
    x = torch.arange(float(torch.Size(shape).numel())).view(shape)
    assert outcome(lambda: tc.vmap(lambda a: a[index])(from_torch(x))) == outcome(lambda: torch.vmap(lambda a: a[index])(x))
    for name, value in VALUES.items():
        for way in (written, gradients):
            expected = outcome(lambda: way(torch, x.clone(), index, value))  # noqa: B023
            assert outcome(lambda: way(tc, from_torch(x.clone()), index, value)) == expected, (name, way)  # noqa: B023


def test_truths_of_each_example() -> None:
    """No size may depend on them; a write of one number has none that does."""
    x, m = torch.arange(6.0).view(2, 3), torch.tensor([True, False])
    with pytest.raises(RuntimeError, match="dynamic shape"):
        tc.vmap(lambda a, m: a[m])(x, m)

    def write(a: Any, m: Any) -> Any:
        a[m] = 5.0
        return a

    assert tc.vmap(write)(x, m).tolist() == [[5.0, 5.0, 5.0], [3.0, 4.0, 5.0]]
