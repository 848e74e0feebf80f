"""The fuzzer: what it makes, and that it finds a wrong kernel and nothing else."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch

import tinycompile
from benchmarks.fuzz import check
from benchmarks.fuzz_excuses import excused
from benchmarks.fuzz_programs import Program, make
from benchmarks.fuzz_registers import Registers
from benchmarks.opinfo_judge import Call

pytestmark = pytest.mark.pure


def test_a_seed_is_a_program() -> None:
    first, again = make(7), make(7)
    assert first.source == again.source and all(map(torch.equal, first.inputs, again.inputs))
    assert make(8, random.Random(7)).source == first.source


def test_programs_are_of_every_dtype_and_layout() -> None:
    inputs = [x for seed in range(60) for x in make(seed).inputs]
    assert len({x.dtype for x in inputs}) == 10 and any(not x.is_contiguous() for x in inputs)
    assert any(0 in x.stride() for x in inputs) and any(x.storage_offset() for x in inputs)


def test_the_interpreter_agrees_with_eager() -> None:
    with tinycompile.config.patch(on_error="raise", disk_cache=False):
        assert check([make(s) for s in range(500, 520)], "loops")[0] == []


def _excused(source: str, got: torch.Tensor, *inputs: torch.Tensor) -> bool:
    program = Program(0, source, inputs)
    want = program.fn(*inputs)
    return excused(program.fn, Call(inputs, {}), (got,), (want,) if isinstance(want, torch.Tensor) else want)


def test_an_ulp_of_an_inexact_op_is_excused_and_a_wrong_value_is_not() -> None:
    x = torch.linspace(-2, 2, 40)
    y = torch.tanh(x)
    source = "def program(x):\n    return torch.tanh(x)\n"
    assert _excused(source, torch.nextafter(y, y + 1), x)
    assert not _excused(source, y + 1e-5, x)


def test_what_ieee_determines_is_never_excused() -> None:
    x = torch.linspace(-2, 2, 40)
    assert not _excused("def program(x):\n    return (x * 3 > 1).long()\n", (x * 3 > 1).long().flip(0), x)
    assert not _excused("def program(x):\n    return x * 3\n", torch.nextafter(x * 3, x + 9) + 1e-6, x)


def test_a_comparison_at_the_margin_is_excused_only_there() -> None:
    x = torch.tensor([0.3, 5.0])
    source = "def program(x):\n    return (torch.tanh(x) >= torch.tanh(x).clone()).long()\n"
    assert _excused(source, torch.tensor([0, 1]), x)
    assert not _excused("def program(x):\n    return (torch.tanh(x) > 0).long()\n", torch.tensor([0, 1]), x)


def test_a_comparison_with_a_very_number_is_excused_where_it_is_an_ulp_away() -> None:
    x = torch.tensor([16.0, 8.0])  # two ulps below 1; a sigmoid's bound is three
    source = "def program(x):\n    return (torch.sigmoid(x) == 1).long()\n"
    assert _excused(source, torch.tensor([1, 0]), x)
    assert not _excused(source, torch.tensor([1, 1]), x)


def test_a_small_result_of_a_function_is_judged_by_its_own_size() -> None:
    """19% off at 1e-7 is far less than an ulp of the largest result, but not of what is made of it."""
    x = torch.tensor([1e-7, 1.0])
    source = "def program(x):\n    return torch.tanh(x) / x\n"
    assert not _excused(source, torch.tanh(x) / x * torch.tensor([0.81, 1.0]), x)
    assert _excused(source, torch.nextafter(torch.tanh(x) / x, x + 9), x)


def test_a_subnormal_half_has_the_ulp_of_the_least_normal_one() -> None:
    """A product that is not rounded, and its sine that is stored: both right, the quotient is 1.5% off."""
    x = torch.tensor([2e-3, 1.95e-3], dtype=torch.float16)
    source = "def program(x):\n    y = x.prod()\n    return torch.atan2(y, y.sin())\n"
    exact = x.double().prod()
    got = torch.atan2(exact, exact.half().double()).half()
    assert got != torch.atan2(exact, exact).half() and _excused(source, got, x)
    assert not _excused(source, got + 0.05, x)


def test_the_sign_of_a_zero_is_free_only_where_both_signs_meet() -> None:
    source = "def program(x, y):\n    return torch.maximum(x, y)\n"
    zero, other = torch.zeros(3), -torch.zeros(3)
    assert _excused(source, other, zero, other)
    assert not _excused(source, other, zero, zero)
    assert _excused(source, other, torch.zeros(3, dtype=torch.bool), other)  # False becomes +0
    assert not _excused(source, zero, torch.ones(3, dtype=torch.bool), other)
    halves = "def program(x, y):\n    return torch.fmin(x, y) / (1 + x.abs())\n"
    assert _excused(halves, other.bfloat16(), other.bfloat16(), zero.bfloat16())


def test_zero_may_be_the_answer_everywhere_at_once() -> None:
    """A mean of equal elements may be an ulp off, or not."""
    source = "def program(x):\n    return (x - x.mean(-1, keepdim=True)).any(-1)\n"
    x = torch.full((2, 8), 0.1).sigmoid()
    for found in (False, True):
        assert _excused(source, torch.tensor([found, found]), x)
    assert not _excused(source, torch.tensor([False, False]), torch.randn(2, 8))


def test_what_is_discrete_stays_within_what_was_seen() -> None:
    source = "def program(x):\n    return torch.tanh(x).floor().long() + (torch.tanh(x) >= torch.tanh(x).clone()).long() * 3\n"
    x = torch.tensor([0.3, 5.0])
    assert not _excused(source, torch.tensor([7, 4]), x)


def test_a_square_is_determined() -> None:
    x = torch.linspace(0.1, 2, 40)
    assert not _excused("def program(x):\n    return (x.pow(2) >= x * x).long()\n", torch.zeros(40).long(), x)


def test_a_zero_has_the_sign_of_eagers_or_of_float64s() -> None:
    """The mean itself, normalised, is +0; eager's halves may have -1e-9, which is -0."""
    x = torch.tensor([0.75, 1.875, 0.75, 1.125], dtype=torch.float16)
    got = torch.nn.functional.layer_norm(x, (4,)).where(x != 1.125, 0.0)
    assert _excused("def program(x):\n    return torch.nn.functional.layer_norm(x, x.shape)\n", got, x)
    assert not _excused("def program(x):\n    return torch.tanh(x)\n", -torch.zeros(3), torch.zeros(3))


def test_doubles_may_be_as_far_off_as_singles_are() -> None:
    """Of a sum that cancels an ulp of the result is nothing; what is made of whole rows is off by more than an ulp."""
    x = torch.randn(1, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(2)).sigmoid()
    mean = (x - x.roll(1, 1)).mean(1)
    at_zero = "def program(x):\n    return (x - x.roll(1, 1)).mean(1) == 0\n"
    assert _excused(at_zero, mean != 0, x)
    assert not _excused(at_zero.replace("== 0", "> 1e-12"), mean > -1, x)
    rows = (torch.arange(70) * 31 % 70 < 33).double()
    norm, source = (
        torch.nn.functional.layer_norm(rows, (70,)),
        "def program(x):\n    return torch.nn.functional.layer_norm(x, (70,))\n",
    )
    assert _excused(source, norm * (1 + 6e-16), rows)
    assert not _excused(source, norm * (1 + 6e-15), rows)


def test_integers_made_floats_are_judged_by_float64() -> None:
    """Of equal elements eager's vector loop and what is left of it give two values an ulp apart."""
    source = "def program(x):\n    return torch.atan2(x, x).argmax()\n"
    x = torch.ones(70, dtype=torch.uint8)
    assert _excused(source, torch.tensor(0), x) and not _excused(source, torch.tensor(70), x)


def test_halves_in_place_are_rounded_or_not_like_others() -> None:
    """Differences of what was not rounded don't add up to zero once they are."""
    x = torch.linspace(1.7, 3.2, 70).bfloat16()
    unrounded = x.float() * 0.3
    source = "def program(x):\n    y = x * 0.3\n    y.sub_(y.roll(1, 0))\n    return y.float().sum()\n"
    got = (unrounded - unrounded.roll(1, 0)).bfloat16().float().sum()
    assert got != 0 and _excused(source, got, x)
    assert not _excused(source, got + 0.5, x)


def test_what_an_op_in_place_left_alone_is_not_moved() -> None:
    source = "def program(x, i):\n    y = x + 0\n    y.index_add_(0, i, x[:1].sigmoid())\n    return y == x\n"
    x = torch.linspace(1, 2, 5)
    assert not _excused(source, torch.tensor([False, True, False, True, True]), x, torch.tensor([0]))


def test_an_argmax_of_many_values_in_registers_is_excused() -> None:
    """In half steps of 2 the remainders are 0, 1 and 2."""
    x, y = torch.tensor(336), torch.linspace(0.3, 0.9, 40).bfloat16()
    source = "def program(x, y):\n    return ((x + x / (2 + y)) % 3).argmax()\n"
    got = ((336 + 336 / (2 + y.float())) % 3).argmax()
    assert got != ((x + x / (2 + y)) % 3).argmax() and _excused(source, got, x, y)


def test_registers_are_rounded_by_casts_and_stores_alone() -> None:
    one, little = torch.ones(3, dtype=torch.bfloat16), 2.0**-9

    def in_place(x: torch.Tensor) -> torch.Tensor:
        y = x + 0
        y[1:].add_(little)
        return y - x

    def run(fn: Callable[[torch.Tensor], torch.Tensor], stored: float) -> list[float]:
        with Registers(1, stored):
            return fn(one).tolist()

    assert run(lambda x: (x + little) - x, 0.0) == [little] * 3 and run(lambda x: (x + little) - x, 1.0) == [0.0] * 3
    assert run(in_place, 0.0) == [0.0, little, little] and run(in_place, 1.0) == [0.0] * 3
    assert run(lambda x: (x + little).float().bfloat16() - x, 0.0) == [0.0] * 3
    assert run(lambda x: (x + little).half() - x, 0.0) == [little] * 3  # a bfloat16 that was never stored
    assert run(lambda x: torch.zeros_like(x).copy_((x + little).double()) - x, 0.0) == [0.0] * 3
    assert run(lambda x: (x * 0 + torch.tensor([335])) - 334, 0.0) == [2.0] * 3  # an integer among halves is one
