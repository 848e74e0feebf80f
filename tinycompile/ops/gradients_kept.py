"""What torch keeps for the gradients of ops that are differentiated through others, as ``derivatives.yaml`` has it, and for
which calls nobody but torch tells."""

from __future__ import annotations

from typing import Any

import torch

from tinycompile.base import shapes
from tinycompile.base.meta import TensorMeta
from tinycompile.ops import meta_rules as rules
from tinycompile.ops.attention import is_fused
from tinycompile.ops.gradients import VARIES, keeps


def _averages_windows(x: Any, output_size: Any) -> bool:
    """Whether it is a pool: torch takes that of one window for a mean, which keeps nothing (in one dim, for that of a row)."""
    return any(size != 1 for size in output_size)


def _reads_within(x: Any, pad: Any, mode: str = "constant", value: Any = None) -> bool:
    return mode in ("reflect", "replicate")


for _n in (1, 2, 3):
    keeps(f"avg_pool{_n}d", "self")
    keeps(f"adaptive_avg_pool{_n}d", "self", when=_averages_windows)
    for _name in (f"max_pool{_n}d", f"adaptive_max_pool{_n}d"):
        keeps(_name, "self", more=True)
        keeps(f"{_name}_with_indices", "self", "result1")
for _name in ("glu", "mvlgamma", "nan_to_num"):
    keeps(_name, "self")
for _name in ("cummax", "cummin"):
    keeps(_name, "self", "result1")
keeps("pad", "self", when=_reads_within)
keeps("aminmax", "self", "result")
keeps("renorm", "self")
for _name in ("linalg_cross", "dot", "vdot"):
    _second = "other" if _name == "linalg_cross" else "tensor"
    keeps(_name, f"self?{_second}", f"{_second}?self")
keeps("addr", "vec1?vec2", "vec2?vec1")

keeps("take", "self", "index")
keeps("index_fill", "index")
keeps("masked_scatter", "mask")
keeps("put", "index", "source?source")
keeps("scatter_reduce", "self", "index", "src", "result")

keeps("batch_norm", "self", "running_mean", "running_var", "weight", more=True)
keeps("binary_cross_entropy_with_logits", "self", "target", "weight", "pos_weight")
keeps("soft_margin_loss", "input", "target")


def _of_bools(query: Any, key: Any, value: Any, mask: Any = None, *rest: Any) -> bool:
    """Whether the mask is made one of numbers first."""
    return mask is not None and mask.dtype is torch.bool


keeps("scaled_dot_product_attention", "query", "key", "value", "result", when=_of_bools)
keeps("scaled_dot_product_attention", "query", "key", "value", "attn_mask", "result")


def _fold(x: TensorMeta, dims: int) -> bool:
    """Whether the first dims can be one without a copy."""
    return all(shapes.same(x.strides[d], x.strides[d + 1] * x.shape[d + 1]) for d in range(dims - 1))


def _copies_batches(x: TensorMeta, other: TensorMeta) -> bool:
    if x.rank <= 2 and other.rank <= 2:
        return False
    alike = x.rank == other.rank and shapes.same_shape(x.shape[:-2], other.shape[:-2])
    return not (alike and _fold(x, x.rank - 2) and _fold(other, x.rank - 2))


VARIES.update(
    div=lambda x, other: False if isinstance(x, TensorMeta) else (),  # a number over it: the reciprocal, times that
    view_copy=lambda *args: (),
    cross_entropy=lambda *args: True,  # torch differentiates its parts
    linear=lambda x, *rest: x.rank > 2 and not _fold(x, x.rank - 1),
    matmul=_copies_batches,
    rms_norm=lambda x, *rest: x.device.type == "cpu" and x.dtype in rules.HALVES,
    scaled_dot_product_attention=lambda *args: not is_fused(*args),
)
