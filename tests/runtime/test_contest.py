"""Contests: who wins, who is out, what the wrapper calls afterwards, and what another process is told."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from tests.codegen.triton.products import Made, product_of
from tinycompile.base.device import Device
from tinycompile.base.target import H100
from tinycompile.ir.source import ChoiceSource, Config, KernelSource
from tinycompile.ir.source_text import dump_source, load_source
from tinycompile.runtime.autotune import Tuner
from tinycompile.runtime.build import build
from tinycompile.runtime.cache import DiskCache
from tinycompile.runtime.contest import Contest, Entrant, Slot, agree
from tinycompile.runtime.triton_build import BackendError

pytestmark = pytest.mark.pure

CHOICE = ChoiceSource("f_or_library", "f_by_library", (("by_f", "f"),), (1,))
KERNEL = KernelSource("f", "triton", "", ())


class Ring:
    """A contest of the library (``x + 1``) and entrants that do what they are told, with a timer that says what each takes."""

    def __init__(self, entrants: Sequence[Callable[..., Any]], seconds: Sequence[float]) -> None:
        self.seconds, self.timed = seconds, list[int]()
        self.kept: list[Any] = []
        self.said: list[str] = []
        self.settled: list[Any] = []
        slot = Slot()
        made = [
            Entrant(KERNEL, Config((("ROWS", i),)), run, slot, lambda queue, *given: slot(queue, *given), (0, i))
            for i, run in enumerate(entrants)
        ]
        self.contest = Contest(
            CHOICE, library, made, lambda way, entrant: self.settled.append(entrant),
            lambda entrant, seconds: self.kept.append(entrant and entrant.place), self.said.append, self.timer,
        )  # fmt: skip

    def timer(self, candidates: Sequence[Any], stream: int, given: Sequence[Any]) -> list[float]:
        self.timed.append(len(candidates))
        return list(self.seconds[: len(candidates)])

    def __call__(self) -> torch.Tensor:
        out = torch.full((4,), 9.0)
        self.contest(0, torch.arange(4.0), out)
        return out


def library(queue: int, x: torch.Tensor, out: torch.Tensor) -> None:
    out.copy_(x + 1)


def exact(queue: int, x: torch.Tensor, out: torch.Tensor) -> None:
    out.copy_(1 + x)


def wrong(queue: int, x: torch.Tensor, out: torch.Tensor) -> None:
    out.copy_(x + 1.5)


def broken(queue: int, x: torch.Tensor, out: torch.Tensor) -> None:
    raise BackendError("out of resources")


EXPECTED = torch.arange(4.0) + 1


@pytest.mark.parametrize(
    "seconds,winner", [((2.0, 3.0, 1.0), (0, 1)), ((2.0, 1.0, 1.5), (0, 0)), ((1.0, 2.0, 3.0), None), ((1.0, 0.99, 1.5), None)]
)
def test_the_fastest_is_used_if_it_gains_more_than_noise(seconds: Sequence[float], winner: Any) -> None:
    ring = Ring([exact, exact], seconds)
    for _ in range(3):
        assert torch.equal(ring(), EXPECTED)
    assert ring.timed == [3] and ring.kept == [winner]
    assert ring.said[0].startswith("the library is used" if winner is None else f"f ROWS={winner[1]}")


@pytest.mark.parametrize("bad", [wrong, broken])
def test_who_is_wrong_or_does_not_run_is_out(bad: Callable[..., Any]) -> None:
    ring = Ring([bad, exact], [2.0, 1.0])
    assert torch.equal(ring(), EXPECTED) and ring.kept == [(0, 1)] and ring.timed == [2]
    alone = Ring([bad], [2.0])
    assert torch.equal(alone(), EXPECTED) and alone.kept == [None] and alone.timed == [1]


def test_what_agrees() -> None:
    x = torch.randn(1000, dtype=torch.float64)
    assert agree(x.bfloat16(), (x * 1.001).bfloat16()) and not agree(x.bfloat16(), (x * 1.1).bfloat16())
    nan, other = torch.tensor([1.0, float("nan")]), torch.tensor([float("nan"), 1.0])
    assert agree(nan, nan) and not agree(nan, other) and not agree(torch.tensor([float("inf")]), torch.tensor([1.0]))
    assert not agree(torch.tensor([1]), torch.tensor([2]))


# -- a whole wrapper, in Triton's interpreter ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def product() -> Made:
    return product_of(lambda x, w, b: F.silu(F.linear(x, w, b)), *inputs())


def inputs() -> list[torch.Tensor]:
    torch.manual_seed(1)
    return [torch.randn(20, 24), torch.randn(33, 24), torch.randn(33)]


@pytest.mark.cpu
@pytest.mark.parametrize("wins", [None, 0])
def test_the_wrapper_calls_the_winner(product: Made, wins: int | None) -> None:
    (found,), told = product.run(inputs(), wins)
    x, w, b = inputs()
    torch.testing.assert_close(found, F.silu(F.linear(x, w, b)))
    assert told.startswith("the library is used" if wins is None else "silu_kernel_product ROWS=")


@pytest.mark.cpu
@pytest.mark.parametrize("place", [None, (0, 0)])
def test_a_second_process_does_not_time_again(product: Made, place: Any, tmp_path: Path) -> None:
    def timer(candidates: Sequence[Any], stream: int, given: Sequence[Any]) -> list[float]:
        return [1.0, *(0.5 if place else 2.0 for _ in candidates[1:])]

    def never(candidates: Sequence[Any], stream: int, given: Sequence[Any]) -> list[float]:
        raise AssertionError("timed again")

    x = inputs()
    for tuner in (
        Tuner(DiskCache(tmp_path), {"on": "a card"}, timer=timer),
        Tuner(DiskCache(tmp_path), {"on": "a card"}, timer=never),
    ):
        call, _ = build(load_source(dump_source(product.source)), H100, Device("cpu"), None, tuner)
        (found,) = call(*(x[i] for i in product.order))
        torch.testing.assert_close(found, F.silu(F.linear(*x)))
    assert "as an earlier contest found" in str(tuner.told)
    (kept,) = tmp_path.rglob("choice.json")
    winner = "silu_kernel_product ROWS=" if place else "the library"
    assert json.loads(kept.read_text())["winner"].startswith(winner) and winner in str(tuner.told)
    assert json.loads(kept.read_text())["microseconds"]["the library"] == 1e6
    other = Tuner(DiskCache(tmp_path), {"on": "another card"}, timer=never)
    call, _ = build(product.source, H100, Device("cpu"), None, other)
    with pytest.raises(AssertionError, match="timed again"):
        call(*(x[i] for i in product.order))


@pytest.mark.cpu
def test_without_a_tuner_the_library_is_called(product: Made) -> None:
    call, _ = build(product.source, H100, Device("cpu"))
    x = inputs()
    (found,) = call(*(x[i] for i in product.order))
    torch.testing.assert_close(found, F.silu(F.linear(*x)))


@pytest.fixture
def other_precision() -> Iterator[None]:
    matmul = torch.backends.cuda.matmul
    before = matmul.allow_tf32
    matmul.allow_tf32 = not before
    yield
    matmul.allow_tf32 = before


@pytest.mark.cpu
def test_another_precision_than_at_capture_goes_to_the_library(product: Made, other_precision: None) -> None:
    _, told = product.run(inputs(), 0)
    assert told == ""
