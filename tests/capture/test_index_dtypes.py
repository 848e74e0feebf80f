"""``x[key] = value`` over the dtypes of both: torch fills places of one mask with one value of any dtype, and refuses others."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tinycompile

pytestmark = pytest.mark.cpu

ROW, COLUMN = torch.tensor([True, False]), torch.tensor([True, False, True])
KEYS: dict[str, Any] = {
    "mask": ROW,
    "mask of all": torch.tensor([[True, False, False], [True, True, False]]),
    "index": torch.tensor([0]),
    "lone index": torch.tensor(1),
    "bytes": torch.tensor([1, 0], dtype=torch.uint8),
    "two masks": (ROW, COLUMN),
    "mask and index": (ROW, torch.tensor([0])),
    "mask and number": (ROW, 0),
    "mask behind": (slice(None), COLUMN),
    "index behind": (..., torch.tensor([0])),
    "list": [0, 1],
    "list of bools": [True, False],
}
SHAPES = [(), (1,), (1, 1), (3,)]
DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.bool]


def outcome(fn: Any, *args: Any) -> Any:
    try:
        return fn(*args)
    except (RuntimeError, IndexError) as error:
        return str(error)


@pytest.mark.filterwarnings("ignore:indexing with dtype torch.uint8")
@pytest.mark.parametrize("to", DTYPES)
@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS.keys())
def test_values_of_each_dtype(key: Any, to: torch.dtype) -> None:
    def put(x: torch.Tensor, value: Any) -> torch.Tensor:
        x[key] = value
        return x

    values = [torch.ones(shape, dtype=dtype) for shape in SHAPES for dtype in DTYPES]
    for value in [*values, 2.5 if to.is_floating_point else True]:
        x = torch.arange(6).reshape(2, 3).to(to)
        want = outcome(put, x.clone(), value)
        for got in (
            outcome(tinycompile.compile(put, backend="eager"), x.clone(), value),
            outcome(put, tinycompile.from_torch(x.clone()), value),
        ):
            assert type(want) is type(got) or isinstance(got, tinycompile.Tensor), (value, got)
            same = got == want if isinstance(want, str) else torch.equal(torch.as_tensor(got), want) and got.dtype == want.dtype
            assert same, (value, got, want)
