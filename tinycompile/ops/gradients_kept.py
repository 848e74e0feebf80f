"""What torch keeps for the gradients of ops that are differentiated through others, as ``derivatives.yaml`` has it."""

from __future__ import annotations

from typing import Any

from tinycompile.ops.gradients import keeps


def _averages_windows(x: Any, output_size: Any) -> bool:
    """Whether it is a pool: torch takes that of one window for a mean, which keeps nothing (in one dim, for that of a row)."""
    return any(size != 1 for size in output_size)


def _reads_within(x: Any, pad: Any, mode: str = "constant", value: Any = None) -> bool:
    return mode in ("reflect", "replicate")


for _n in (1, 2, 3):
    keeps(f"avg_pool{_n}d", "self")
    keeps(f"adaptive_avg_pool{_n}d", "self", when=_averages_windows)
    for _name in (f"max_pool{_n}d", f"adaptive_max_pool{_n}d"):
        keeps(_name, "self")
        keeps(f"{_name}_with_indices", "self", "result1")
for _name in ("glu", "mvlgamma", "nan_to_num"):
    keeps(_name, "self")
for _name in ("cummax", "cummin"):
    keeps(_name, "self", "result1")
keeps("pad", "self", when=_reads_within)
keeps("aminmax", "self", "result")
keeps("renorm", "self")
keeps("dist", "self", "other", "result")
for _name in ("linalg_cross", "dot", "vdot"):
    _second = "other" if _name == "linalg_cross" else "tensor"
    keeps(_name, f"self?{_second}", f"{_second}?self")
keeps("addr", "vec1?vec2", "vec2?vec1")

keeps("take", "self", "index")
keeps("index_fill", "index")
keeps("put", "index", "source?source")
keeps("scatter_reduce", "self", "index", "src", "result")

keeps("batch_norm", "self", "running_mean", "running_var", "weight")
keeps("binary_cross_entropy_with_logits", "self", "target", "weight", "pos_weight")
keeps("soft_margin_loss", "input", "target")
