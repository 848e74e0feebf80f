"""Occupancy by the CUDA occupancy calculator's rules; the roofline's axes."""

from __future__ import annotations

import dataclasses

import pytest

from tinycompile.journey.card import H100
from tinycompile.journey.roofline import Point, svg

pytestmark = pytest.mark.pure

CASES = {
    # threads, registers, shared -> resident warps of 64, worked out by hand
    "nothing limits": (256, 32, 0, 64),
    "registers: 64 a thread leave one block of 1024": (1024, 64, 0, 32),
    "registers are handed out by 256 a warp": (128, 255, 0, 8),
    "33 registers count as 40": (256, 33, 0, 48),
    "shared memory: two blocks of 100 KiB": (256, 32, 100 << 10, 16),
    "blocks: 32 of one warp": (32, 16, 0, 32),
    "a block that does not fit": (1024, 255, 0, 0),
}


@pytest.mark.parametrize("name", CASES)
def test_occupancy(name: str) -> None:
    threads, registers, shared, warps = CASES[name]
    assert H100.occupancy(threads, registers, shared) == warps / 64


def test_a_cpu_has_no_occupancy() -> None:
    cpu = dataclasses.replace(H100, warps=0)
    assert cpu.occupancy(256, 32, 0) == 0


def test_roofline_places_points_inside_and_leaves_out_what_has_no_rate() -> None:
    picture = svg(H100, [Point("a", 0.25, 1e11, 3), Point("b", 170.0, 3e14, 4), Point("c", 0.0, 0.0, 5)])
    assert picture.count("<circle") == 2 and 'href="#step3"' in picture and 'href="#step5"' not in picture
    assert svg(H100, []) == ""
