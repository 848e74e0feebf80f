"""How tensors print: as torch's, whatever is in them."""

from __future__ import annotations

import pytest
import torch

import tinycompile as tc

hypothesis = pytest.importorskip("hypothesis")
st = hypothesis.strategies

pytestmark = pytest.mark.pure

DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8,
    torch.bool, torch.complex64, torch.complex128,
]  # fmt: skip
ODD = [0.0, -0.0, 1.0, -1.5, float("nan"), float("inf"), -float("inf"), 1e-8, 1e30, 123456.0, 3.0, 0.1]


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    """Of any rank up to 5, empty or beyond the threshold of a summary, with odd values among ordinary ones, in any layout."""
    shape = draw(st.one_of(
        st.lists(st.integers(0, 4), max_size=5), st.sampled_from([[1001], [40, 30], [3, 400], [11, 11, 11], [2000, 0], [1000]]),
    ))  # fmt: skip
    dtype = draw(st.sampled_from(DTYPES))
    data = torch.randn(shape, generator=torch.Generator().manual_seed(draw(st.integers(0, 99))), dtype=torch.float64)
    data = data * draw(st.sampled_from([1.0, 1e-6, 1e5, 100.0]))
    flat = data.view(-1)
    for value in draw(st.lists(st.sampled_from(ODD), max_size=4)):
        if flat.numel():
            flat[draw(st.integers(0, flat.numel() - 1))] = value
    if not (dtype.is_floating_point or dtype.is_complex):
        data = data.nan_to_num(0.0, 100.0, -100.0).clamp(-100, 100).abs()
    made = data.to(dtype)
    return made.transpose(0, -1) if draw(st.booleans()) and made.ndim > 1 else made


@hypothesis.settings(max_examples=120, deadline=None)
@hypothesis.given(tensors(), st.booleans(), st.sampled_from([None, {"precision": 2}, {"threshold": 5}, {"sci_mode": True}]))
def test_printing(t: torch.Tensor, tracked: bool, options: dict | None) -> None:
    """``repr`` and ``str``, off a tape, as a leaf and as a result, with any print options."""
    tracked = tracked and t.is_floating_point()
    ours, theirs = tc.from_torch(t.clone()), t.clone()
    if tracked:
        ours.requires_grad_()
        theirs.requires_grad_()
    pairs = [(ours, theirs), (ours * 2, theirs * 2)] if tracked else [(ours, theirs)]
    torch.set_printoptions(profile="default", **options or {})
    try:
        for mine, other in pairs:
            assert repr(mine) == repr(other)
            assert str(mine) == str(other)
    finally:
        torch.set_printoptions(profile="default", sci_mode=None)


@pytest.mark.parametrize("digits", range(1, 9))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_where_a_field_begins_a_line(digits: int, dtype: torch.dtype) -> None:
    """Last lines of every length around the width, with a dtype on them or on their own."""
    for count in range(1, 9):
        for lead in (count, 1):
            theirs = torch.full((lead, count), 10.0**digits + 0.5, dtype=dtype).requires_grad_()
            ours = tc.from_torch(theirs.detach().clone()).requires_grad_()
            assert repr(ours) == repr(theirs) and repr(ours * 2) == repr(theirs * 2)
            for shape in ((1, 1, 1, count), (count, 1)):
                assert repr((ours[:1] * 1).view(*shape)).replace("View", "") == repr((theirs[:1] * 1).view(*shape)).replace(
                    "View", ""
                )


@hypothesis.settings(max_examples=40, deadline=None)
@hypothesis.given(st.lists(st.integers(0, 3), max_size=3), st.sampled_from(DTYPES))
def test_printing_of_meta_tensors(shape: list[int], dtype: torch.dtype) -> None:
    t = torch.empty(shape, dtype=dtype, device="meta")
    assert repr(tc.from_torch(t)) == repr(t)
