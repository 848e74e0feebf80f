"""Tuning: the first call times, later ones launch the winner, and another process reads the choice from disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tinycompile.ir.source import Config, KernelArg, KernelSource
from tinycompile.runtime.autotune import STEM, Tuned, Tuner
from tinycompile.runtime.cache import DiskCache
from tinycompile.runtime.twins import canonical_text, twin_key

pytestmark = pytest.mark.pure

TEXT = '''"""{name}: pointwise."""

import triton
import triton.language as tl

from tinycompile.codegen.triton.library import tanh


@triton.jit
def {name}({x}_ptr, {y}_ptr, n, BLOCK: tl.constexpr):
    """Pointwise. From {file}."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    i_mask = i < n
    # {file}:12: y = tanh(x)
    {x} = tl.load({x}_ptr + i, mask=i_mask)
    {y} = tanh({x})
    tl.store({y}_ptr + i, {y}, mask=i_mask)
'''
CONFIGS = tuple(Config((("BLOCK", b),)) for b in (256, 512, 1024))


def kernel(name: str = "k", x: str = "x", y: str = "y", file: str = "a.py") -> KernelSource:
    text = TEXT.format(name=name, x=x, y=y, file=file)
    args = (KernelArg(x, "pointer", "float32"), KernelArg(y, "pointer", "float32"), KernelArg("n", "size", "int32"))
    return KernelSource(name, "triton", text, args, (1,), CONFIGS)


def test_twins_differ_in_names_alone() -> None:
    one, two = kernel(), kernel("other", "h", "out", "b.py")
    assert one.text != two.text and twin_key(one) == twin_key(two)


@pytest.mark.parametrize(
    "old,new",
    [
        ("tanh(x)", "tanh(-x)"),
        ("i < n", "i <= n"),
        ("tl.store(y_ptr", "tl.store(x_ptr"),
        ("library import tanh", "library import exp as tanh"),
    ],
)
def test_other_code_is_no_twin(old: str, new: str) -> None:
    one = kernel()
    assert old in one.text
    assert canonical_text(one) != canonical_text(replace(one, text=one.text.replace(old, new)))


@pytest.mark.parametrize(
    "line", ["tl.load(k_ptr, {0}={0})", 'tl.load(k_ptr, eviction_policy="{0}") + {0}', "tl.{0}({0})", "x.{0} + {0}"]
)
def test_variables_called_like_what_is_no_variable(line: str) -> None:
    """Names of arguments and attributes, and words in texts, are code."""

    def called(name: str) -> KernelSource:
        text = f"@triton.jit\ndef k(k_ptr):\n    {name} = 1\n    y = {line.format(name)}\n    tl.store(k_ptr, y)\n"
        return KernelSource("k", "triton", text, (KernelArg("k", "pointer", "float32"),), (1,))

    assert twin_key(called("mask")) != twin_key(called("other")) and twin_key(called("mask")) == twin_key(called("mask"))


def test_what_is_bound_in_other_ways_is_a_variable() -> None:
    text = (
        "def {0}({1}_ptr, N: tl.constexpr):\n    {1}, {2} = f({1}_ptr)\n    for {3} in range(0, N):\n        {1} += {2} * {3}\n"
    )
    one, two = (
        KernelSource(names[0], "triton", text.format(*names), ()) for names in (("k", "a", "b", "i"), ("z", "c", "d", "j"))
    )
    assert canonical_text(one) == canonical_text(two)
    assert canonical_text(one) != canonical_text(replace(two, text=two.text.replace("d * j", "j * d")))


def test_other_argument_types_are_no_twins() -> None:
    one = kernel()
    for changed in (replace(one.args[0], dtype="float16"), replace(one.args[0], aligned=False)):
        assert twin_key(one) != twin_key(replace(one, args=(changed, *one.args[1:])))


class Clock:
    """Candidates that count their launches, and a timer that says what they take."""

    def __init__(self, seconds: Sequence[float]) -> None:
        self.seconds, self.launched, self.timed = list(seconds), [0] * len(seconds), 0

    def candidates(self) -> list[Any]:
        def candidate(i: int) -> Any:
            def launch(stream: int, *args: Any) -> None:
                self.launched[i] += 1

            return launch

        return [candidate(i) for i in range(len(self.seconds))]

    def timer(self, candidates: Sequence[Any], stream: int, args: Sequence[Any]) -> list[float]:
        self.timed += 1
        return self.seconds


def test_the_first_call_times_and_the_winner_takes_over() -> None:
    clock, kept, settled = Clock([3.0, 1.0, 2.0]), [], []
    run = Tuned(kernel(), clock.candidates(), lambda best, seconds: kept.append((best, seconds)), clock.timer)
    run.settled = settled.append
    for _ in range(3):
        run(0, "x", "y", 5)
    assert clock.timed == 1 and clock.launched == [0, 3, 0]
    assert kept == [(1, [3.0, 1.0, 2.0])] and settled == [run.candidates[1]]


def test_choices_are_kept_on_disk_and_shared_by_twins(tmp_path: Path) -> None:
    about = {"tuned on": "card"}
    tuner = Tuner(DiskCache(tmp_path), about)
    assert tuner.recall(kernel()) is None
    tuner.keep(kernel(), 2, [3e-5, 2e-5, 1e-5], {f"{STEM}.cubin": b"code"})
    found = Tuner(DiskCache(tmp_path), about).recall(kernel("other", "h", "out"))
    assert found is not None and found.config == CONFIGS[2] and found.entry.files[f"{STEM}.cubin"] == b"code"


def test_another_card_or_other_candidates_tune_again(tmp_path: Path) -> None:
    tuner = Tuner(DiskCache(tmp_path), {"tuned on": "card"})
    tuner.keep(kernel(), 0, [1e-5] * 3, {})
    assert Tuner(DiskCache(tmp_path), {"tuned on": "other"}).recall(kernel()) is None
    assert tuner.recall(replace(kernel(), configs=CONFIGS[:2])) is None
    assert Tuner(None).recall(kernel()) is None
