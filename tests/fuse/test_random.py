"""Random programs: the plan's answer is the unfused program's, whatever was fused, split, reused."""

from __future__ import annotations

import random

import pytest
import torch

from tests.fuse.random_programs import random_program
from tests.fuse.support import CPU_TARGET, check, rules
from tinycompile.base.target import H100
from tinycompile.fuse.cost import Limits

pytestmark = pytest.mark.pure

TINY = Limits(launch_bytes=64, flops_per_byte=4, lanes=2, enough=6, wanted=8, least_work=4, least_row=2, least_chunk=2)


@pytest.mark.parametrize("seed", range(60))
def test_seed(seed: int) -> None:
    source = random.Random(seed)
    check(random_program(source.randrange), target=CPU_TARGET if seed % 2 else H100)


def test_seeds_with_split_reductions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits so small that tiny reductions are split."""
    monkeypatch.setattr(Limits, "of", lambda target: TINY)
    split = 0
    for seed in range(1000, 1060):
        torch.manual_seed(seed)
        split += "split-reduction" in rules(check(random_program(random.Random(seed).randrange)), fused=False)
    assert split >= 5


def test_hypothesis() -> None:
    """The same, drawn by hypothesis, which shrinks what fails."""
    hypothesis = pytest.importorskip("hypothesis")
    st = hypothesis.strategies

    @hypothesis.settings(max_examples=60, deadline=None, suppress_health_check=list(hypothesis.HealthCheck))
    @hypothesis.given(st.data())
    def run(data: object) -> None:
        torch.manual_seed(0)
        check(random_program(lambda n: data.draw(st.integers(0, n - 1))))  # type: ignore[attr-defined]

    run()
