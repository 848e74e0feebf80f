"""A GPT trained on our documents gives eager's loss curve: a few steps by default, 300 in the full mode."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks.loss_curve import ALLOWED, apart, corpus, curve
from benchmarks.train_models import Sizes

pytestmark = pytest.mark.cpu
FULL = os.environ.get("TINYCOMPILE_TESTS") == "full"


def test_losses_are_eagers() -> None:
    tokens = corpus(Path(__file__).parents[2] / "docs")
    sizes = Sizes(layers=2, heads=4, width=64, vocabulary=256, batch=8, length=64) if FULL else Sizes(1, 2, 32, 256, 4, 32)
    steps = 300 if FULL else 25
    ours, eager = curve(True, steps, tokens, sizes), curve(False, steps, tokens, sizes)
    assert apart(ours, eager) <= ALLOWED
    assert ours[-1] < ours[0] - 0.1
