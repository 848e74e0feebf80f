"""The roofline of a profile: each step by its operations a byte and the operations a second that it reached.

Williams, Waterman, Patterson, "Roofline: an insightful visual performance model" (2009).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tinycompile.journey.card import Card
from tinycompile.journey.page import escape

WIDTH, HEIGHT, LEFT, TOP = 860, 380, 60, 14
SPAN_X, SPAN_Y = WIDTH - LEFT - 20, HEIGHT - TOP - 40


@dataclass(frozen=True)
class Point:
    """``intensity``: operations a byte; ``rate``: operations a second; ``number``: of the step."""

    name: str
    intensity: float
    rate: float
    number: int


def svg(card: Card, points: Sequence[Point]) -> str:
    """A picture with logarithmic axes; empty without points."""
    good = [p for p in points if p.intensity > 0 and p.rate > 0]
    if not good:
        return ""
    tops = [top for top in (card.fp32, card.tensor) if top]
    highest = max([*tops, *(p.rate for p in good), card.bandwidth])
    x = _Axis(min(0.1, *(p.intensity for p in good)), max(1000.0, *(p.intensity for p in good)), LEFT, LEFT + SPAN_X)
    y = _Axis(min(p.rate for p in good) / 3, highest * 2, TOP + SPAN_Y, TOP)
    parts = _grid(x, y)
    for top, name in ((card.fp32, "fp32"), (card.tensor, "bf16 tensor cores")) if tops else ((highest * 2, "memory"),):
        if top:
            knee = min(max(top / card.bandwidth, x.low), x.high)
            corners = [(x.low, x.low * card.bandwidth), (knee, knee * card.bandwidth), (x.high, top)]
            shape = " ".join(f"{x.at(a):.1f},{y.at(max(b, y.low)):.1f}" for a, b in corners)
            parts.append(f'<polyline points="{shape}" fill="none" stroke="currentColor" stroke-width="1.5"/>')
            parts.append(
                f'<text class="row" x="{x.at(x.high) - 4:.0f}" y="{y.at(top) + 12:.0f}" text-anchor="end">{name}</text>'
            )
    for p in good:
        told = f"{p.name}: {p.intensity:.2f} operations a byte, {p.rate / 1e9:.1f} G operations a second"
        parts.append(
            f'<a href="#step{p.number}"><circle cx="{x.at(p.intensity):.1f}" cy="{y.at(p.rate):.1f}" r="4" fill="#59a14f" '
            f'fill-opacity=".7"><title>{escape(told)}</title></circle></a>'
        )
    return f'<svg width="{WIDTH}" height="{HEIGHT}" role="img" aria-label="roofline">{"".join(parts)}</svg>'


@dataclass(frozen=True)
class _Axis:
    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        share = (math.log(value) - math.log(self.low)) / (math.log(self.high) - math.log(self.low))
        return self.start + share * (self.end - self.start)


def _grid(x: _Axis, y: _Axis) -> list[str]:
    """A line and a label for each power of ten."""
    parts = []
    for power in range(math.ceil(math.log10(x.low)), math.floor(math.log10(x.high)) + 1):
        at = x.at(10.0**power)
        parts.append(f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{TOP + SPAN_Y}" stroke="#8884"/>')
        parts.append(f'<text class="row" x="{at:.1f}" y="{TOP + SPAN_Y + 15}" text-anchor="middle">{10.0**power:g}</text>')
    for power in range(math.ceil(math.log10(y.low)), math.floor(math.log10(y.high)) + 1):
        at = y.at(10.0**power)
        parts.append(f'<line x1="{LEFT}" x2="{LEFT + SPAN_X}" y1="{at:.1f}" y2="{at:.1f}" stroke="#8884"/>')
        parts.append(f'<text class="row" x="{LEFT - 5}" y="{at + 4:.1f}" text-anchor="end">{10.0 ** (power - 9):g}</text>')
    parts.append(f'<text class="row" x="{LEFT}" y="{TOP + SPAN_Y + 32}">operations a byte; G operations a second</text>')
    return parts
