"""Rows that a product makes itself: its programs reduce them before they multiply (a norm, a softmax), as any walk over rows.

What is computed along the rows again, on the tiles of each step of the sum, is the left operand's own (``products.py``).
"""

from __future__ import annotations

from dataclasses import replace

from tinycompile.codegen.triton.passes import plan_passes
from tinycompile.codegen.triton.product_configs import NORM
from tinycompile.codegen.triton.tiles import TileDim, tile_dim
from tinycompile.codegen.triton.walks import Walks
from tinycompile.ir.products import Product
from tinycompile.ir.source import Config

NAMES = frozenset({"norm", "norm_mask", "norm_start", "norm_size", NORM})


class MadeRows(Walks):
    """What a writer of products needs for it. ``inner``: the dimension along the sum."""

    product: Product
    candidates: tuple[Config, ...]
    inner: TileDim

    def write_norm(self) -> None:
        """What the left operand's rows come to, block by block along the sum: as in any walk over rows."""
        plain, body, row = self.schedule, self.body, self.schedule.dims[0]
        loop = tile_dim("norm", self.inner.axes, self.analysis, "loop", NORM, self.candidates)
        self.schedule = replace(plain, dims=(row, replace(loop, wide=self.inner.wide)))
        self.body = replace(body, schedule=self.schedule, axes=dict(body.axes))
        self.body.variables, self.body.inline, self.body.dtypes = body.variables, body.inline, body.dtypes
        passes = plan_passes(self.analysis, self.product.norm)
        for number, step in enumerate(passes):
            self.write_between(step.before)
            if step.inside:
                self.write_walk(self.schedule.dims[-1], step, len(passes), number)
        self.schedule, self.body = plain, body
