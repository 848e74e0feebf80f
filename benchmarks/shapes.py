"""The suite ``shapes``: what the table of ``workloads.py`` leaves out. Odd and prime sizes, one to five dims, every dtype,
strided and expanded arguments, rows of 1 to 2**20. No row is tuned for; they are there to find what the cost model missed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.workloads import BF16, F32, Arg, Workload

F16, F64, I32, I64, BOOL = torch.float16, torch.float64, torch.int32, torch.int64, torch.bool

# -- the functions ------------------------------------------------------------------------------------------------------


def scaled_shift(x: Tensor) -> Tensor:
    return x * 1.5 + 2


def gated(x: Tensor, y: Tensor) -> Tensor:
    return torch.sigmoid(x) * y + x


def integer_mix(x: Tensor, y: Tensor) -> Tensor:
    return (x * 3 + y) // 2 - (x & 255)


def masked_select_sum(x: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask, x, 0.0).sum(-1)


def count_true(x: Tensor) -> Tensor:
    return x.sum(-1)


def both_ways(x: Tensor, y: Tensor) -> Tensor:
    return (x & ~y) | (y ^ x)


def row_softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


def column_softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, 0)


def log_softmax(x: Tensor) -> Tensor:
    return torch.log_softmax(x, -1)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(x, (x.shape[-1],), weight, bias)


def rms(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5)


def mean_and_deviation(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.mean(-1), x.std(-1)


def middle_sum(x: Tensor) -> Tensor:
    return (x * x).sum(1)


def outer_two(x: Tensor) -> Tensor:
    return x.sum((0, 2))


def whole_mean(x: Tensor) -> Tensor:
    return x.abs().mean()


def largest(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.amax(-1), x.argmax(-1)


def normalise_channels(x: Tensor) -> Tensor:
    return (x - x.mean((0, 2, 3), keepdim=True)) / (x.std((0, 2, 3), keepdim=True) + 1e-5)


def swap_and_scale(x: Tensor) -> Tensor:
    return x.transpose(1, 2).contiguous() * 2


def permuted(x: Tensor) -> Tensor:
    return (x.permute(0, 3, 1, 2, 4) + 1).contiguous()


def add_column(x: Tensor, y: Tensor) -> Tensor:
    return torch.relu(x + y)


def halves(x: Tensor) -> Tensor:
    left, right = x.chunk(2, -1)
    return F.gelu(left) * right


def joined(x: Tensor, y: Tensor) -> Tensor:
    return torch.cat((x, y * 2), -1)


def running_total(x: Tensor) -> Tensor:
    return x.cumsum(-1)


def rows_of_table(x: Tensor, index: Tensor) -> Tensor:
    return x[index] * 2


def cast_chain(x: Tensor) -> Tensor:
    return (x.float() * 0.5).to(torch.float16)


def clipped_square(x: Tensor) -> Tensor:
    return x.clamp(-1, 1).square()


# What bounds a row on a GPU that stays under 90% of a copy's bandwidth, read off the kernels that are generated for it.
BOUNDS = {
    "gate, every second column": "every second element is read: the bytes between come along",
    "gate, transposed argument": "turned in shared memory; odd sizes forbid 16-byte accesses",
    "add a column": "odd rows begin at odd addresses: 2-byte accesses",
    "add a middle dim": "odd rows begin at odd addresses: 2-byte accesses",
    "gelu gate of halves": "odd halves of a row: 2-byte accesses",
    "swap of 3-D": "turned in shared memory; odd sizes forbid 16-byte accesses",
    "permuted 5-D": "odd inner size: 2-byte accesses, and index arithmetic",
    "softmax, rows of 3": "3 of 4 lanes have work",
    "softmax, rows of 37": "37 of 64 lanes have work, 2-byte accesses",
    "softmax, rows of 1021": "odd rows: 2-byte accesses",
    "softmax, rows of 20011": "read twice, a part of each row kept in registers; odd rows: 4-byte accesses",
    "softmax, rows of 65537": "read twice, a part of each row kept in registers; odd rows: 4-byte accesses",
    "log_softmax, rows of 2**20": "read twice: a row fits no multiprocessor",
    "softmax, 1 row of 2**20": "8 MB: the launch and the wait of its programs for each other weigh as much as the bytes",
    "softmax down columns": "read twice; odd rows: 4-byte accesses",
    "mean and deviation": "odd rows: 4-byte accesses; 2053 of 4096 lanes have work",
    "layer_norm, rows of 1023 fp16": "odd rows: 2-byte accesses",
    "layer_norm, rows of 12288": "12288 of 16384 lanes have work",
    "layer_norm, rows of 50000": "read twice, a part of each row kept in registers",
    "maximum and its place": "odd rows: 4-byte accesses; 4099 of 8192 lanes have work",
    "sum of outer dims": "odd rows: 4-byte accesses",
    "mean of all, prime": "uneven chunks: 4-byte accesses",
    "count of bools": "odd rows: 1-byte accesses",
    "masked sum": "odd rows: 2- and 1-byte accesses",
    "channels, 4-D odd": "read twice; odd rows: 4-byte accesses",
    "channels, channels last": "read twice",
}

# -- the table ----------------------------------------------------------------------------------------------------------


def _row(name: str, fn: Callable[..., Any], *args: Arg) -> Workload:
    return Workload(name, fn, args, suites=("shapes",), note=BOUNDS.get(name, ""))


def _norm(name: str, rows: int, width: int, dtype: torch.dtype) -> Workload:
    side = Arg((width,), dtype=dtype)
    return _row(name, layer_norm, Arg((rows, width), (max(rows // 64, 1), width), dtype), side, side)


def _one(name: str, fn: Callable[..., Any], *shape: int, dtype: torch.dtype = F32, layout: str = "") -> Workload:
    cpu = (max(shape[0] // 16, 1), *shape[1:]) if len(shape) > 1 else (max(shape[0] // 64, 1),)
    return _row(name, fn, Arg(shape, cpu, dtype, layout=layout))


def _two(name: str, fn: Callable[..., Any], *shape: int, dtype: torch.dtype = F32, layout: str = "") -> Workload:
    cpu = (max(shape[0] // 16, 1), *shape[1:]) if len(shape) > 1 else (max(shape[0] // 64, 1),)
    return _row(name, fn, Arg(shape, cpu, dtype, layout=layout), Arg(shape, cpu, dtype))


SHAPES: tuple[Workload, ...] = (
    # pointwise: odd and prime sizes, ranks, dtypes
    _one("scale, prime size", scaled_shift, 33554393),
    _one("scale, prime by prime", scaled_shift, 4099, 8191),
    _one("scale fp64", scaled_shift, 16777216, dtype=F64),
    _one("scale fp16 odd", scaled_shift, 50331653, dtype=F16),
    _one("scale i64", scaled_shift, 4096, 4096, dtype=I64),
    _two("gate, 3-D odd", gated, 127, 511, 513),
    _two("gate, 5-D fp16", gated, 7, 11, 13, 127, 129, dtype=F16),
    _two("gate, every second column", gated, 4096, 4096, layout="every second"),
    _two("gate, transposed argument", gated, 4099, 4097, dtype=BF16, layout="transposed"),
    _two("gate, expanded rows", gated, 8192, 4096, dtype=F16, layout="expanded"),
    _two("integers i32", integer_mix, 4097, 8191, dtype=I32),
    _two("integers i64", integer_mix, 8191, 2049, dtype=I64),
    _two("bools", both_ways, 8191, 16381, dtype=BOOL),
    _row("add a column", add_column, Arg((8191, 4093), (511, 4093)), Arg((8191, 1), (511, 1))),
    _row("add a middle dim", add_column, Arg((61, 509, 1021), (4, 509, 1021), F16), Arg((61, 1, 1021), (4, 1, 1021), F16)),
    _one("clamp, channels last", clipped_square, 64, 64, 112, 112, layout="channels_last"),
    _one("casts i32 to fp16", cast_chain, 8191, 4099, dtype=I32),
    _one("gelu gate of halves", halves, 8192, 6142, dtype=BF16),
    _row("cat", joined, Arg((8191, 1021), (511, 1021)), Arg((8191, 3067), (511, 3067))),
    # views
    _one("swap of 3-D", swap_and_scale, 61, 509, 1021),
    _one("permuted 5-D", permuted, 8, 33, 65, 17, 129, dtype=F16),
    _row("rows of a table", rows_of_table, Arg((50257, 768), (5025, 768), F16), Arg((16381,), (1023,), I64, below=0)),
    # rows of many lengths
    _one("softmax, rows of 1", row_softmax, 4194304, 1),
    _one("softmax, rows of 3", row_softmax, 4194304, 3),
    _one("softmax, rows of 37", row_softmax, 524287, 37, dtype=F16),
    _one("softmax, rows of 257", row_softmax, 131071, 257),
    _one("softmax, rows of 1021", row_softmax, 32749, 1021, dtype=BF16),
    _one("softmax, rows of 5003", row_softmax, 6553, 5003),
    _one("softmax, rows of 20011", row_softmax, 1637, 20011),
    _one("softmax, rows of 65537", row_softmax, 509, 65537),
    _one("log_softmax, rows of 2**20", log_softmax, 16, 1048576),
    _one("softmax, 1 row of 2**20", row_softmax, 1, 1048576),
    _one("softmax down columns", column_softmax, 2053, 8191),
    _norm("layer_norm, rows of 96", 262144, 96, F32),
    _norm("layer_norm, rows of 1023 fp16", 32768, 1023, F16),
    _norm("layer_norm, rows of 12288", 4096, 12288, BF16),
    _norm("layer_norm, rows of 50000", 512, 50000, F32),
    _one("rms fp64", rms, 4093, 2047, dtype=F64),
    _one("mean and deviation", mean_and_deviation, 16381, 2053),
    _one("mean and deviation, few rows", mean_and_deviation, 17, 1048573),
    _one("maximum and its place", largest, 8191, 4099),
    _one("cumsum", running_total, 8192, 4096),
    # sums over other dims
    _one("sum of a middle dim", middle_sum, 61, 509, 1021),
    _one("sum of outer dims", outer_two, 129, 257, 513),
    _one("mean of all, prime", whole_mean, 134217689),
    _one("sum i64", count_true, 8191, 4099, dtype=I64),
    _one("count of bools", count_true, 16381, 16381, dtype=BOOL),
    _row("masked sum", masked_select_sum, Arg((8191, 8191), (511, 8191)), Arg((8191, 8191), (511, 8191), BOOL)),
    _one("channels, 4-D odd", normalise_channels, 31, 67, 57, 55),
    _one("channels, channels last", normalise_channels, 32, 128, 56, 56, layout="channels_last"),
)
