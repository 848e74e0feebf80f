"""Device functions of matrix products."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def grouped_tile(tile, row_tiles, col_tiles, GROUP: tl.constexpr):
    """The row and the column of tile number ``tile``: down groups of ``GROUP`` rows of tiles, column by column, so that the
    programs that run at one time read few rows and few columns, which stay in the L2."""
    group = tile // (GROUP * col_tiles)
    first = group * GROUP
    height = tl.minimum(row_tiles - first, GROUP)
    within = tile % (GROUP * col_tiles)
    return first + within % height, within // height


@triton.jit
def is_last(counter_ptr, parts):
    """Whether all other parts of a tile have arrived; what they stored before can then be read."""
    tl.debug_barrier()  # every thread of the program has stored its share
    return tl.atomic_add(counter_ptr, 1, sem="acq_rel") == parts - 1
