"""Rows shared by programs: which reductions several programs of one GPU kernel can do together, a part of the row each.

Each program reduces its part, publishes the result, waits for the others of its row, and combines all of them. The plan counts
on it (so a few long rows need not be split over kernels), and Triton codegen does it; both ask here.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from tinycompile.base.device import Device
from tinycompile.ir.loops import Reduce, Scan, Statement

KINDS = frozenset(("sum", "max", "min", "welford", "online_softmax"))
DTYPES = (torch.float32, torch.float64)
MOST_PARTS = 64  # of a row: all of them must be on the card at once; cards with fewer multiprocessors don't share
MOST_ELEMENTS = 1 << 21  # of a row: it is read again from the L2


def shareable(statements: Iterable[Statement], device: Device) -> bool:
    """Whether several programs can do all reductions of a nest together. Triton's interpreter runs programs one by one, so
    they can't wait for each other on a CPU."""
    reduces = [s for s in statements if isinstance(s, (Reduce, Scan))]
    dtypes = {d for s in reduces for d in s.dtypes}
    plain = all(isinstance(s, Reduce) and s.kind in KINDS for s in reduces)
    return device.type == "cuda" and plain and len(dtypes) == 1 and dtypes <= set(DTYPES)
