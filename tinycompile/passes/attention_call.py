"""The fused call for attention that was found in a graph, or nothing where no fused kernel takes it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from tinycompile.base import expr as ex
from tinycompile.base import shapes
from tinycompile.base.expr import Dim
from tinycompile.base.meta import TensorMeta
from tinycompile.ir.graph import Node, Ref
from tinycompile.ops.calls import ops
from tinycompile.ops.record import OPS, View
from tinycompile.passes.attention_match import Attention, Finder, Mask
from tinycompile.passes.products import Operand
from tinycompile.passes.rewrite import Splicer

HALVES = (torch.bfloat16, torch.float16)
WIDEST_HEAD = 256  # of the flash kernels


class Writer:
    """Records the fused call of one match."""

    def __init__(self, splicer: Splicer, finder: Finder, match: Attention, training: bool) -> None:
        self.splicer, self.nodes, self.match, self.training = splicer, finder.nodes, match, training
        self.scale = match.scores.scale
        self.lead: tuple[Dim, ...] | None = None
        self.filled: Any = None  # rows with something in them, where those without must get gradients as by hand

    def write(self, meta: TensorMeta) -> Any:
        """The result as ``meta`` says, or None where no fused kernel takes it."""
        product, last = self.match.scores.product, self.match.last
        half = self.nodes[last.right.ref.name].meta.dtype in HALVES
        q, k, v = self.operand(product.left, half), self.key(product.right, half), self.operand(last.right, False)
        self.lead = self.match.scores.lead or next((tuple(x.shape[:2]) for x in (q, v) if len(x.shape) == 4), None)
        q, k, v = (self.four(x) for x in (q, k, v))
        if q is None or k is None or v is None or not self.taken(q, k, v, meta):
            return None
        causal, mask, rows = self.masks(q, k)
        if mask is False or not self.supported(q, v, mask):
            return None
        out = self.call(q, k, v, mask, causal)
        out = out if rows is None else ops.mul(out, rows)
        out = out if self.filled is None else _nan_through_values(out, self.filled, v)
        if meta.rank == 3:
            out = ops.reshape(out, (-1, *out.shape[2:]) if isinstance(self.lead, tuple) else tuple(out.shape[1:]))
        if last.out_order is not None:
            out = ops.permute(out, last.out_order)
        if out.meta != meta and meta.strides == shapes.contiguous_strides(meta.shape):
            out = ops.clone(out, memory_format=torch.contiguous_format)
        return out

    def four(self, x: Any) -> Any:
        """[batch, heads, length, dim]; None where the flat batch is not ``lead``'s."""
        if len(x.shape) == 4:
            return x
        if self.lead is not None and not shapes.same(shapes.numel(self.lead), x.shape[0]):
            return None
        return ops.unsqueeze(x, 0) if self.lead is None else ops.reshape(x, (*self.lead, *x.shape[1:]))

    def call(self, q: Any, k: Any, v: Any, mask: Any, causal: bool) -> Any:
        k, v = (x if shapes.same(x.meta.strides[-1], 1) else ops.contiguous(x) for x in (k, v))
        q = q if shapes.same(q.meta.strides[-1], 1) else ops.contiguous(q)
        few = self.grouped(k, v) if q.device.type == "cuda" and q.dtype in HALVES and mask is None else None
        k, v = few or (k, v)
        return ops.scaled_dot_product_attention(
            q, k, v, mask, self.match.dropout, causal, scale=self.scale, enable_gqa=few is not None
        )

    # --- operands ---

    def operand(self, x: Operand, narrow: bool) -> Any:
        """A factor of a product, without scales and (``narrow``) without a cast to float32, which the kernel does itself."""
        source, views, factor = self.bare(x.ref, narrow)
        made = self.splicer.fake(source)
        for view in views:
            made = getattr(ops, view.target)(made, *(self.given(a) for a in view.args[1:]))
        self.scale *= factor
        return made if x.order is None else ops.permute(made, x.order)

    def key(self, x: Operand, narrow: bool) -> Any:
        """The second factor of the scores, with its length before its dim again."""
        made = self.operand(x, narrow)
        turned = ops.transpose(made, -2, -1)
        node = self.nodes.get(made.ref.name)
        if node is not None and node.kind == "call" and isinstance(OPS[node.target].lowering, View):
            source = self.splicer.fake(node.args[0])
            if source.meta == turned.meta and OPS[node.target].schema.returns[0].alias:  # the same stretch of memory
                return source
        return turned

    def given(self, arg: Any) -> Any:
        return self.splicer.fake(arg) if isinstance(arg, Ref) else arg

    def bare(self, ref: Ref, narrow: bool) -> tuple[Ref, list[Node], float]:
        """What a factor is made from: below its scales and casts, with the views in between, innermost first."""
        views: list[Node] = []
        best: tuple[Ref, list[Node], float] = (ref, [], 1.0)
        factor = 1.0
        while True:
            node = self.nodes[ref.name]
            if node.kind != "call" or not node.args or not isinstance(node.args[0], Ref):
                return best
            source = node.args[0]
            below = self.nodes[source.name].meta
            if not isinstance(below, TensorMeta) or not isinstance(node.meta, TensorMeta):
                return best
            number = node.args[1] if node.target in ("mul", "div") else None
            if isinstance(number, (int, float)) and 0 < number < math.inf and _alike(node.meta, below):
                factor *= number if node.target == "mul" else 1 / number
            elif narrow and node.target == "to" and below.dtype in HALVES and _alike(node.meta, below, any_dtype=True):
                pass
            elif isinstance(OPS[node.target].lowering, View) and OPS[node.target].schema.returns[0].alias:
                views.insert(0, node)
                ref = source
                continue
            else:
                return best
            ref = source
            best = ref, list(views), factor

    def grouped(self, k: Any, v: Any) -> tuple[Any, Any] | None:
        """Keys and values before they were repeated for groups of queries."""
        found = [_before_repeat(x.ref, self.splicer) for x in (k, v)]
        if any(f is None for f in found):
            return None
        few = [self.splicer.fake(f) for f in found if f is not None]
        return (few[0], few[1]) if all(shapes.same(x.meta.strides[-1], 1) for x in few) else None

    # --- masks ---

    def masks(self, q: Any, k: Any) -> tuple[bool, Any, Any]:
        """``is_causal``, the mask (False: it can't be expressed), and a factor that makes emptied rows NaN."""
        masks = self.match.scores.masks
        if not masks:
            return False, None, None
        if all(m.proven and m.lower and m.diagonal == 0 for m in masks):
            return True, None, None
        rows, columns = q.shape[-2], k.shape[-2]
        if all(m.proven or not m.added for m in masks):
            keep = self.keep(masks)
            full = len(masks) == 1 and masks[0].proven and _no_row_empty(masks[0], rows, columns)
            if full or all(m.value == -math.inf for m in masks):
                return False, *((keep, None) if full else self.maybe_empty(masks, keep, q))
        if self.training and len({m.added for m in masks}) == 2:
            return False, False, None
        return False, *self.bias(masks, q)

    def maybe_empty(self, masks: tuple[Mask, ...], keep: Any, q: Any) -> tuple[Any, Any]:
        """A boolean mask some of whose rows may keep nothing: by hand these are NaN. No gradient passes what was filled, so in
        training the kernel is given such rows as if they kept everything, and the NaN comes through the values alone. What was
        masked by addition passes NaN on: both kinds at once are left as they are."""
        filled = ops.any(keep, -1, True)
        if not self.training:
            return keep, _nan_where_empty(filled, q)
        if any(m.added for m in masks):
            return False, None
        self.filled = filled
        return ops.logical_or(keep, ops.logical_not(filled)), None

    def keep(self, masks: tuple[Mask, ...]) -> Any:
        """A boolean mask of what stays."""
        kept = None
        for m in masks:
            here = self.mask(m)
            here = ops.eq(here, 0) if m.added else ops.logical_not(here) if m.marks else here
            kept = here if kept is None else ops.logical_and(kept, here)
        return kept

    def mask(self, m: Mask) -> Any:
        """A mask of rank 4."""
        made = self.splicer.fake(m.ref)
        if m.rank == len(made.shape) == 3 and self.lead is not None and not shapes.same(made.shape[0], 1):
            return ops.reshape(made, (*self.lead, *made.shape[1:]))
        while len(made.shape) < 4:
            made = ops.unsqueeze(made, 0)
        return made

    def bias(self, masks: tuple[Mask, ...], q: Any) -> tuple[Any, Any]:
        """An additive mask in the query's dtype. A row that is filled with a finite number throughout has equal weights, which
        holds here where the number swallows the scores."""
        made: Any = None
        for m in masks:
            here = self.mask(m)
            if m.added:
                if here.dtype != q.dtype:  # rounded, it would be another mask
                    return False, None
                made = here if made is None else ops.add(made, here)
                continue
            value = m.value
            if value != -math.inf:
                value = max(value, torch.finfo(q.dtype).min)
                if q.dtype is torch.float16 or value > -1e30:
                    return False, None
            zero = ops.full((), 0.0, dtype=q.dtype, device=q.device) if made is None else made
            other = ops.full((), value, dtype=q.dtype, device=q.device)
            made = ops.where(here, other, zero) if m.marks else ops.where(here, zero, other)
        if all(not m.added and m.value != -math.inf for m in masks):
            return made, None
        return made, _nan_where_empty(ops.gt(ops.amax(made, (-1,), True), -math.inf), q)

    # --- what the kernels take ---

    def taken(self, q: Any, k: Any, v: Any, meta: TensorMeta) -> bool:
        same = shapes.same
        if not (q.dtype == k.dtype == v.dtype == meta.dtype and q.device == k.device == v.device):
            return False
        if not all(same(a, b) and same(a, c) for a, b, c in zip(q.shape[:2], k.shape[:2], v.shape[:2], strict=True)):
            return False
        return not any(isinstance(n, int) and n == 0 for x in (q, k, v) for n in x.shape)

    def supported(self, q: Any, v: Any, mask: Any) -> bool:
        """Whether a fused kernel takes it."""
        width, dropout = q.shape[-1], self.match.dropout
        if q.device.type == "cpu":
            return shapes.same(width, v.shape[-1]) and not dropout
        if q.device.type != "cuda" or not isinstance(width, int) or not shapes.same(width, v.shape[-1]):
            return False
        if q.dtype in HALVES:
            return width % 8 == 0 and width <= WIDEST_HEAD
        # In float32 the kernel's gradients lose more digits than those by hand.
        return q.dtype is torch.float32 and width % 4 == 0 and not dropout and not self.training


def _alike(a: TensorMeta, b: TensorMeta, any_dtype: bool = False) -> bool:
    return a.shape == b.shape and a.strides == b.strides and (any_dtype or a.dtype == b.dtype)


def _no_row_empty(mask: Mask, rows: Dim, columns: Dim) -> bool:
    assert mask.diagonal is not None
    return ex.at_least(mask.diagonal, 0) if mask.lower else ex.at_least(columns - rows - mask.diagonal, 1)


def _nan_where_empty(filled: Any, q: Any) -> Any:
    """1 for rows with something in them, else NaN."""
    one, none = (ops.full((), x, dtype=q.dtype, device=q.device) for x in (1.0, math.nan))
    return ops.where(filled, one, none)


def _nan_through_values(out: Any, filled: Any, v: Any) -> Any:
    """NaN where a row has nothing in it, and so NaN in the gradients of all values: weights that are NaN reach them all."""
    zero, none = (ops.full((), x, dtype=v.dtype, device=v.device) for x in (0.0, math.nan))
    return ops.where(filled, out, ops.mul(ops.where(filled, zero, none), ops.sum(v, (-2,), True)))


def _before_repeat(ref: Ref, splicer: Splicer) -> Ref | None:
    """[batch, few, length, dim] below ``repeat_interleave(n, 1)``, or below its spelling with unsqueeze, expand and reshape."""
    known: Mapping[str, Node] = {n.name: n for n in splicer.nodes}
    node = known.get(ref.name)
    if node is None or node.kind != "call":
        return None
    if node.target == "repeat_interleave" and isinstance(node.args[1], int) and node.args[2] in (1, -3):
        return node.args[0]
    if node.target not in ("reshape", "view", "flatten"):
        return None
    wide = known.get(node.args[0].name)
    narrow = known.get(wide.args[0].name) if wide is not None and wide.target == "expand" else None
    if wide is None or narrow is None or narrow.target != "unsqueeze" or wide.meta.rank != 5 or node.meta.rank != 4:
        return None
    batch, few, many, *rest = wide.meta.shape
    fits = narrow.meta.shape == (batch, few, 1, *rest) and node.meta.shape == (batch, few * many, *rest)
    return narrow.args[0] if fits and narrow.args[1] in (2, -3) else None
