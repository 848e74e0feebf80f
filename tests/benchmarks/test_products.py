"""The benchmark of products: its rows are offered as kernels, and its table reads what a contest found."""

from __future__ import annotations

import pytest
import torch

from benchmarks.products import ROWS, Row, float8, int8, main, winner
from tests.codegen.triton.products import product_of

pytestmark = pytest.mark.cpu


@pytest.mark.parametrize("row", ROWS, ids=lambda r: r.name)
def test_every_row_is_offered_as_a_kernel(row: Row) -> None:
    args = row.arguments("meta")
    product = product_of(row.fn, *args)
    (choice,) = product.plan.choices
    assert choice.product.flops >= row.flops
    skinny = row.shapes[0][0] <= 64
    assert ({"parted", "streamed"} & product.ways() if skinny else {"boxed"}) <= product.ways()


def test_rows_of_other_dtypes_say_the_same_in_float64() -> None:
    for row in (float8(16, 32, 48), int8(24, 32, 48)):
        args = row.arguments("cpu")
        assert row.exact is not None
        torch.testing.assert_close(row.fn(*args).double(), row.exact(*(a.double() for a in args)), rtol=1e-2, atol=1e-2)


def test_names_are_unique() -> None:
    assert len({r.name for r in ROWS}) == len(ROWS)


def test_what_a_contest_said() -> None:
    told = "Matrix product, a tile a program. offered: gelu_boxed ROWS=128 COLS=256 warps=8 is used, as timed at the first call: a 1 us"
    assert winner(told) == "gelu_boxed ROWS=128 COLS=256 warps=8"
    assert winner("Why: the library is used, as an earlier contest found") == "the library"
    assert winner("not offered") == "not offered"


def test_without_a_gpu_nothing_is_measured(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main([]) == 2 and "no CUDA device" in capsys.readouterr().err
