"""Families of numeric corner cases, generated over many ops: each through the C++ backend, or Loops in numpy, against eager.

A family's programs are captured one by one, built as one translation unit, then run and judged as the op database's samples
are (values by float64, metadata, aliasing, writes to arguments). ``TINYCOMPILE_TESTS=full`` takes every program on C++; by
default C++ takes each ``_SHARE``-th, from another start in each family.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import tinycompile
from benchmarks.opinfo_backends import BACKENDS
from benchmarks.opinfo_judge import Call, DifferenceError, Judge, compare, run
from tests.end_to_end import families_memory, families_values
from tests.end_to_end.families_values import INTS, Program

pytestmark = [pytest.mark.cpu, pytest.mark.filterwarnings("ignore")]

FULL = os.environ.get("TINYCOMPILE_TESTS") == "full"
_SHARE = 6
Family = Callable[[], Iterator[Program]]
FAMILIES: tuple[Family, ...] = (
    families_values.half_types_round_where_eager_stores,
    families_values.narrow_integers_wrap_at_every_op,
    families_values.floats_become_integers_as_torchs_do,
    families_values.every_reduction_meets_nan_and_infinity,
    families_values.positions_of_equal_extremes,
    families_values.long_sums_keep_their_digits,
    families_values.scans_beside_reductions,
    families_values.zeros_keep_their_sign,
    families_values.sums_start_from_zero,
    families_values.subnormal_numbers_are_numbers,
    families_values.powers,
    families_values.integer_division_of_negatives,
    families_values.shifts_of_any_count,
    families_values.dtypes_promote,
    families_values.numbers_keep_their_digits,
    families_memory.empty_and_scalar_tensors,
    families_memory.every_kind_of_memory,
    families_memory.writes_that_read_elsewhere,
    families_memory.scatter_then_gather,
    families_memory.paddings_of_every_layout,
    families_memory.products_with_sizes_of_one_and_none,
)


def _check(programs: list[Program], backend: str) -> list[str]:
    """What differs from eager, one line a program; all are built at once."""
    the_backend = BACKENDS[backend]()
    waiting = []
    wrong: list[str] = []
    for name, fn, args in programs:
        call = Call(args, {})
        want = run(fn, theirs := call.copy(), 0)
        compiled = tinycompile.compile(fn, backend=the_backend, fullgraph=True, dynamic=False)
        try:
            compiled.explain(*call.copy().args)
        except Exception as error:
            if type(error) is not type(want):
                wrong.append(f"{name}: {type(error).__name__}: {error}")
                continue
        waiting.append((name, fn, call, want, theirs, compiled))
    the_backend.finish()
    for name, fn, call, want, theirs, compiled in waiting:
        got = run(compiled, mine := call.copy(), 0)
        try:
            compare(got, want, mine, theirs, Judge(fn, call, 0))
        except DifferenceError as difference:
            wrong.append(f"{name}: {difference}")
    return wrong


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.__name__)
def test_loops(family: Family) -> None:
    programs = list(family())
    wrong = _check(programs if FULL else programs[::2], "loops")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.__name__)
def test_cpp(family: Family) -> None:
    programs = list(family())
    wrong = _check(programs if FULL else programs[len(family.__name__) % _SHARE :: _SHARE], "cpp")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("dtype", INTS, ids=str)
@pytest.mark.parametrize("fn", [torch.floor_divide, torch.remainder, torch.fmod])
def test_division_by_zero_is_torchs_error(fn: Callable[..., Any], dtype: torch.dtype) -> None:
    x, y = torch.tensor([1, 2, 3], dtype=dtype), torch.tensor([1, 0, 2], dtype=dtype)
    with pytest.raises(RuntimeError) as want:
        fn(x, y)
    with pytest.raises(RuntimeError) as got:
        tinycompile.compile(lambda x, y: fn(x, y))(x, y)
    assert str(got.value) == str(want.value)
