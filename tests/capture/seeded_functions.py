"""Random functions by seed, many of them: ``python -m tests.capture.seeded_functions --first 0 --count 5000``.

The functions are those of ``test_random_functions.py``, drawn by Python's own generator instead of hypothesis: a seed names one,
and hours can be cut into parts. Each is compiled with the ``eager`` backend, one in four also with more breaks, and called four
times beside plain Python. Prints each difference with its source, and a summary; the exit code is 1 if there was one."""

from __future__ import annotations

import argparse
import random
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

from tests.capture import test_random_functions as functions
from tinycompile.base.config import config

Draw = Callable[[random.Random], Any]


class Strategies:
    """What the generator asks of ``hypothesis.strategies``, drawn from ``random.Random``."""

    @staticmethod
    def sampled_from(choices: Sequence[Any]) -> Draw:
        return lambda rng: rng.choice(choices)

    @staticmethod
    def integers(low: int, high: int) -> Draw:
        return lambda rng: rng.randint(low, high)

    @staticmethod
    def booleans() -> Draw:
        return lambda rng: rng.random() < 0.5


def source_of(seed: int) -> str:
    """The function of a seed."""
    rng = random.Random(seed)
    with mock.patch.object(functions, "st", Strategies):
        return functions.Writer(lambda strategy: strategy(rng)).source()


def difference(seed: int) -> str:
    """How compiled code differs from plain Python for the function of a seed; empty if it doesn't."""
    source, every = source_of(seed), 2 + seed // 4 % 10
    try:
        functions.compare(source)
        if seed % 4 == 0:
            functions.compare(source, lambda code, at: code.co_name == "function" and at % every == 0)
    except Exception:  # noqa: BLE001  # whatever it is, it is the finding
        return f"seed {seed}\n{source}\n{traceback.format_exc(limit=-4)}"
    return ""


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=5000)
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    config.on_error = "raise"
    found, start = 0, time.perf_counter()
    for seed in range(asked.first, asked.first + asked.count):
        told = difference(seed)
        found += bool(told)
        if told:
            print(told, flush=True)
    seeds = f"seeds {asked.first} to {asked.first + asked.count - 1}"
    print(f"{asked.count} functions, {seeds}: {found} with a difference; {time.perf_counter() - start:.0f} s")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
