"""Families of programs about values: rounding, wrapping, casts, NaN and infinity, ties, zeros, promotion."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
Program = tuple[str, Callable[..., Any], tuple[Any, ...]]

NAN, INF = float("nan"), float("inf")


def _edges(dtype: torch.dtype) -> Tensor:
    """The integers at which a dtype wraps, and small ones."""
    info = torch.iinfo(dtype)
    values = [info.min, info.min + 1, -3, -1, 0, 1, 2, 7, info.max - 1, info.max]
    return torch.tensor([v for v in values if v >= info.min], dtype=dtype)


# ----------------------------------------------------------------------------------------------------- numbers that are stored


def half_types_round_where_eager_stores() -> Iterator[Program]:
    programs: dict[str, Callable[[Tensor], Any]] = {
        "cast down and up": lambda x: (x.to(torch.bfloat16).float() - x, x.half().float() - x),
        "stored and used": lambda x: (lambda y: (y, y.float() - x.float() * 3))((x * 3).to(x.dtype)),
        "cast in the middle": lambda x: torch.exp((x * 1.7).to(torch.float16).to(torch.float32)),
        "sum of rounded": lambda x: (x * 1.1).to(torch.bfloat16).sum(dtype=torch.float32),
        "int of rounded": lambda x: (x * 1000).to(torch.float16).to(torch.int32),
    }
    for (name, fn), dtype in itertools.product(programs.items(), FLOATS):
        yield f"{name} {dtype}", fn, (torch.linspace(-3, 3, 257).to(dtype),)


def narrow_integers_wrap_at_every_op() -> Iterator[Program]:
    programs: dict[str, Callable[[Tensor, Tensor], Any]] = {
        "add": lambda x, y: x + y,
        "sub": lambda x, y: x - y,
        "mul": lambda x, y: x * y,
        "mul add": lambda x, y: (x * y + x) // 2,
        "wrapped then wide": lambda x, y: (x + y).to(torch.int64) * 2,
        "compare wrapped": lambda x, y: (x + y) > x,
        "neg abs": lambda x, y: (-x, x.abs(), torch.square(y)),
        "sum and cumsum": lambda x, y: (x.sum(), y.cumsum(0), x.prod()),
        "number": lambda x, y: (x + 100, x * 3, 5 - y),
        "activations": lambda x, y: (F.softsign(x), F.tanhshrink(y)),
    }
    for (name, fn), dtype in itertools.product(programs.items(), INTS):
        x, y = torch.meshgrid(_edges(dtype), _edges(dtype), indexing="ij")
        yield f"{name} {dtype}", fn, (x.reshape(-1).clone(), y.reshape(-1).clone())


def floats_become_integers_as_torchs_do() -> Iterator[Program]:
    values = torch.tensor([NAN, 0.0, -0.0, 0.5, -0.9, 1.5, 127.9, -128.9, 255.5, 32767.5, 2.0e9, -2.0e9] * 3)
    for source, target in itertools.product(FLOATS, (*INTS, torch.bool)):
        x = values if target in (torch.int32, torch.int64, torch.bool) else values[(values.abs() < 120) & (values >= 0)]
        yield f"{source} to {target}", lambda x, t=target: x.to(t), (x.to(source),)
        yield f"{source} to {target} and back", lambda x, t=target: x.to(t).to(torch.float64), (x.to(source),)


# ---------------------------------------------------------------------------------------------------------------- reductions


REDUCTIONS: dict[str, Callable[..., Any]] = {
    "sum": torch.sum,
    "mean": torch.mean,
    "prod": lambda x, d: torch.prod(x, d[0] if isinstance(d, tuple) else d),
    "amax": torch.amax,
    "amin": torch.amin,
    "max": lambda x, d: torch.max(x, d[0] if isinstance(d, tuple) else d),
    "min": lambda x, d: torch.min(x, d[0] if isinstance(d, tuple) else d),
    "argmax": lambda x, d: torch.argmax(x, d[0] if isinstance(d, tuple) else d),
    "argmin": lambda x, d: torch.argmin(x, d[0] if isinstance(d, tuple) else d),
    "logsumexp": torch.logsumexp,
    "softmax": lambda x, d: torch.softmax(x, d[0] if isinstance(d, tuple) else d),
    "log_softmax": lambda x, d: torch.log_softmax(x, d[0] if isinstance(d, tuple) else d),
    "norm": lambda x, d: torch.linalg.vector_norm(x, 2, d),
    "norm inf": lambda x, d: torch.linalg.vector_norm(x, INF, d),
    "norm 0": lambda x, d: torch.linalg.vector_norm(x, 0, d),
    "any": lambda x, d: torch.any(x, d),
    "all": lambda x, d: torch.all(x, d),
    "nansum": torch.nansum,
    "count": torch.count_nonzero,
    "var": lambda x, d: torch.var(x, d),
    "std": lambda x, d: torch.std(x, d, correction=0),
    "cumsum": lambda x, d: torch.cumsum(x, d[0] if isinstance(d, tuple) else d),
    "cummax": lambda x, d: torch.cummax(x, d[0] if isinstance(d, tuple) else d),
}


def every_reduction_meets_nan_and_infinity() -> Iterator[Program]:
    for (name, fn), dims, value in itertools.product(REDUCTIONS.items(), ((0,), (1,), (0, 1)), (NAN, INF, -INF)):
        for at in (0, 21, 34):
            x = torch.linspace(-2, 2, 35).reshape(5, 7)
            x.view(-1)[at] = value
            if at == 34:
                x.view(-1)[3] = NAN if value == INF else -INF
            yield f"{name} over {dims} of {value} at {at}", lambda x, f=fn, d=dims: f(x, d), (x,)


def positions_of_equal_extremes() -> Iterator[Program]:
    for dtype in (*FLOATS, *INTS):
        x = torch.tensor([[1, 3, 3, 0, 3], [0, 0, 0, 0, 0], [2, 1, 2, 1, 2]]).to(dtype)
        for fn, d in itertools.product((torch.argmax, torch.argmin, torch.max, torch.min), (0, 1)):
            yield f"{fn.__name__} {d} {dtype}", lambda x, f=fn, d=d: f(x, d), (x,)
        yield f"whole {dtype}", lambda x: (torch.argmax(x), torch.argmin(x), torch.argmax(x.t())), (x,)


def long_sums_keep_their_digits() -> Iterator[Program]:
    for dtype, n in itertools.product(FLOATS, (1000, 70_001)):
        x = (torch.rand(n, generator=torch.Generator().manual_seed(n)) + (1000 if dtype == torch.float32 else 1)).to(dtype)
        # of doubles, torch's own variance and norm are hundreds of ulps off
        for name in ("sum", "mean", *(("var", "std", "norm") if dtype != torch.float64 else ())):
            yield f"{name} of {n} {dtype}", lambda x, name=name: getattr(torch, name)(x), (x,)
        picked: dict[str, Callable[[Tensor, Tensor], Any]] = {  # no vector loop: indices are checked one by one
            "sum": lambda x, i: x[i].sum(), "sum of rows": lambda x, i: (x[i].view(2, -1) * 2).sum(1),
            "layer norm": lambda x, i: F.layer_norm(x.gather(0, i), i.shape), "mean": lambda x, i: x.take(i).mean(),
        }  # fmt: skip
        rows: dict[str, Callable[[Tensor, Tensor], Any]] = {  # checked before the loop, which is one of vectors
            "sums": lambda x, i: x[i].sum(1), "whole": lambda x, i: (x[i] * 2).sum(), "one": lambda x, i: x[i[0]].sum(),
            "both": lambda x, i: (x[i].sum(1), x[i].abs().sum()),
        }  # fmt: skip
        for name, fn in rows.items() if n == 1000 else ():
            y = torch.stack([x, -x, x * 3]).repeat(1, 3)
            yield f"{name} of picked rows {dtype}", lambda x, i, f=fn: f(x, i), (y, torch.tensor([2, 0, 0]))
        steps = torch.arange(n, dtype=dtype).div(n // 9, rounding_mode="floor") / 9
        for name, fn in picked.items() if n == 1000 else [("sum", picked["sum"])]:
            for y in (x, torch.full_like(x, 1 / 3), steps):
                yield f"{name} of {n} picked {dtype}", lambda x, i, f=fn: f(x, i), (y, torch.arange(n // 2 * 2).flip(0))


def scans_beside_reductions() -> Iterator[Program]:
    """One loop for both: a sum that is added up in parts must not make a scan start anew."""
    both: dict[str, Callable[[Tensor, int], Any]] = {
        "cumsum and sum": lambda x, d: (x.cumsum(d), x.sum(d)),
        "cummax and std": lambda x, d: (torch.cummax(x, d)[0], x.std(d)),
        "sum of cumsum": lambda x, d: (x.cumsum(d) * 2).sum(d),
        "cummin and mean": lambda x, d: (torch.cummin(x, d), x.mean(d)),
        "share of the sum": lambda x, d: x.cumsum(d) - x.sum(d, keepdim=True),
    }
    for (name, fn), shape in itertools.product(both.items(), ((700,), (2, 700), (700, 3), (300, 40), (9000,))):
        x = torch.randint(-9, 10, shape, generator=torch.Generator().manual_seed(0)).float()
        for d in range(len(shape)):
            yield f"{name} {shape} {d}", lambda x, f=fn, d=d: f(x, d), (x,)


# ------------------------------------------------------------------------------------------------------------ special numbers


def zeros_keep_their_sign() -> Iterator[Program]:
    zeros = torch.tensor([0.0, -0.0, 0.0, -0.0, 1.0, -1.0, 5e-324, -1e-40])
    other = torch.tensor([0.0, 0.0, -0.0, -0.0, -0.0, 0.0, -1.0, 1.0])
    unary: dict[str, Callable[[Tensor], Any]] = {
        "neg": torch.neg, "abs": torch.abs, "sqrt": torch.sqrt, "relu": torch.relu, "round": lambda x: torch.round(x * 0.3),
        "trunc": lambda x: torch.trunc(x * 0.5), "ceil": lambda x: torch.ceil(x * 0.5), "sin": torch.sin, "tanh": torch.tanh,
        "expm1": torch.expm1, "log1p": torch.log1p, "reciprocal": torch.reciprocal, "sign": torch.sign, "cbrt": lambda x: x**3,
        "clamp": lambda x: x.clamp(0.0, 1.0), "hardtanh": F.hardtanh, "asinh": torch.asinh, "atan": torch.atan, "sum": torch.sum,
        "leaky": F.leaky_relu, "silu": F.silu, "times zero": lambda x: x * 0, "add zero": lambda x: x + 0.0,
        "sub": lambda x: 0.0 - x, "whole sum": lambda x: (x * 0).sum(0),
        "running sum": lambda x: ((x[1:] * 0).cumsum(0), x[1].cumsum(0)),
    }  # fmt: skip
    # not maximum and minimum: which of two zeros torch gives depends on the tensor's length
    binary = (torch.add, torch.sub, torch.mul, torch.div, torch.fmax, torch.fmin, torch.atan2)
    for dtype in (torch.float32, torch.float64):
        for name, fn in unary.items():
            yield f"{name} {dtype}", lambda x, f=fn: f(x), (zeros.to(dtype),)
        for fn in (*binary, torch.copysign, torch.fmod, torch.remainder):
            yield f"{fn.__name__} {dtype}", lambda x, y, f=fn: f(x, y), (zeros.to(dtype), other.to(dtype))


def sums_start_from_zero() -> Iterator[Program]:
    """A sum of -0 alone is 0, also of one; and so is what a normalisation makes of the mean, if it adds 0 for want of a bias."""
    sums: dict[str, Callable[[Tensor], Any]] = {
        "sums": lambda x: (x.sum(0), x.sum(-1), x.sum(), x.mean(0), x.mean(-1), x.nansum(0), x.sum((0, 1), keepdim=True)),
        "moments": lambda x: (*torch.var_mean(x, 0, correction=0), *torch.var_mean(x, -1, correction=0)),
        "pools": lambda x: (F.avg_pool1d(x[None], 1), F.adaptive_avg_pool1d(x[None], 2), F.avg_pool2d(x[None], 1)),
        "products": lambda x: (torch.dot(x[0, :1], x[0, :1] + 1), x[:1].trace()),
        "layer": lambda x: F.layer_norm(x, x.shape[-1:]),
        "scaled layer": lambda x: F.layer_norm(x, x.shape[-1:], -torch.ones_like(x[0])),
        "group": lambda x: F.group_norm(x[None], 1, -torch.ones_like(x[:, 0])),
        "batch": lambda x: F.batch_norm(x[None], None, None, training=True),
        "batch in use": lambda x: F.batch_norm(x[None], torch.zeros_like(x[:, 0]), torch.ones_like(x[:, 0])),
    }
    for dtype in (torch.float32, torch.bfloat16):
        for rows, columns in ((1, 4), (4, 1), (3, 4), (8, 8)):
            for name, fn in sums.items():
                yield f"{name} {rows} {columns} {dtype}", lambda x, f=fn: f(x), (-torch.zeros(rows, columns, dtype=dtype),)
        x = torch.tensor([[1.0, 2.0, 3.0, 2.0], [0.0, -1.0, 1.0, -0.0]], dtype=dtype)
        for name, fn in sums.items():
            yield f"{name} of numbers {dtype}", lambda x, f=fn: f(x), (x,)


def subnormal_numbers_are_numbers() -> Iterator[Program]:
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        tiny = torch.finfo(dtype).tiny
        x = torch.tensor([tiny / 2, -tiny / 4, tiny / 16, tiny, 0.0, tiny * 1.5], dtype=torch.float64).to(dtype)
        programs: dict[str, Callable[[Tensor], Any]] = {
            "sum": lambda x: x + x,
            "halve": lambda x: x * 0.5,
            "double": lambda x: x * 2,
            "compare": lambda x: (x > 0, x == 0, x != 0),
            "sqrt": lambda x: torch.sqrt(x.abs()),
            "divide": lambda x: x / 3,
            "total": lambda x: x.sum(),
            "greatest": lambda x: (x.amax(), x.argmin()),
            "nonzero": torch.count_nonzero,
            "cast": lambda x: x.double(),
        }
        for name, fn in programs.items():
            yield f"{name} {dtype}", lambda x, f=fn: f(x), (x,)


def powers() -> Iterator[Program]:
    base = torch.tensor([-INF, -3.0, -1.0, -0.5, -0.0, 0.0, 0.5, 1.0, 2.0, 7.0, INF, NAN])
    for dtype in FLOATS:
        for p in (0, 1, 2, 3, -1, -2, 0.5, -0.5, 1.5, 1e4, -1e4, 65504.0, INF):
            yield f"{dtype} ** {p}", lambda x, p=p: x**p, (base.to(dtype),)
        x, y = torch.meshgrid(base, torch.tensor([0.0, -0.0, 1.0, -1.0, 2.0, 0.5, 3.0, INF, -INF, NAN, 60000.0]), indexing="ij")
        yield f"{dtype} by tensor", lambda x, y: x**y, (x.reshape(-1).to(dtype), y.reshape(-1).to(dtype))
        yield f"{dtype} of two", lambda x: 2.0**x, (base.to(dtype),)
    for dtype, p in itertools.product(INTS, (0, 1, 2, 5, 9)):
        yield f"{dtype} ** {p}", lambda x, p=p: x**p, (_edges(dtype),)


# ------------------------------------------------------------------------------------------------------------------ integers


def integer_division_of_negatives() -> Iterator[Program]:
    for dtype in INTS:
        x, y = torch.meshgrid(_edges(dtype), _edges(dtype), indexing="ij")
        keep = (y != 0) & ~((y == -1) & (x == torch.iinfo(dtype).min))
        a, b = x[keep].clone(), y[keep].clone()
        for name, fn in (
            ("floor", torch.floor_divide),
            ("remainder", torch.remainder),
            ("fmod", torch.fmod),
            ("trunc", lambda x, y: torch.div(x, y, rounding_mode="trunc")),
            ("true", torch.div),
        ):
            yield f"{name} {dtype}", lambda x, y, f=fn: f(x, y), (a, b)
            yield f"{name} {dtype} by 3", lambda x, f=fn: f(x, 3), (a,)
    for dtype in FLOATS:
        x, y = torch.meshgrid(
            torch.tensor([-7.5, -1.0, -0.0, 0.0, 2.5, 7.0, INF, NAN]),
            torch.tensor([-2.0, -0.0, 0.0, 0.3, 3.0, INF]),
            indexing="ij",
        )
        for name, fn in (
            ("floor", torch.floor_divide),
            ("remainder", torch.remainder),
            ("fmod", torch.fmod),
            ("trunc", lambda x, y: torch.div(x, y, rounding_mode="trunc")),
        ):
            yield f"{name} {dtype}", lambda x, y, f=fn: f(x, y), (x.reshape(-1).to(dtype), y.reshape(-1).to(dtype))


def shifts_of_any_count() -> Iterator[Program]:
    for dtype in INTS:
        bits = torch.iinfo(dtype).bits
        counts = torch.tensor([0, 1, bits - 2, bits - 1], dtype=dtype)
        x, y = torch.meshgrid(_edges(dtype), counts, indexing="ij")
        yield f"left {dtype}", lambda x, y: x << y, (x.reshape(-1).clone(), y.reshape(-1).clone())
        yield f"right {dtype}", lambda x, y: x >> y, (x.reshape(-1).clone(), y.reshape(-1).clone())
        yield f"far {dtype}", lambda x: (x << 70, x >> 70) if x.dtype == torch.int64 else (x << 3, x >> 3), (_edges(dtype),)


def dtypes_promote() -> Iterator[Program]:
    every = (*FLOATS, *INTS, torch.bool)
    fns = (torch.add, torch.mul, torch.maximum, torch.lt, torch.where)
    for a, b in itertools.product(every, every):
        x, y = torch.tensor([1, 0, 3]).to(a), torch.tensor([2, 1, 1]).to(b)
        fn = fns[(every.index(a) * 3 + every.index(b)) % len(fns)]
        if fn is torch.where:
            yield f"where {a} {b}", lambda x, y: torch.where(x > y, x, y), (x, y)
            continue
        yield f"{fn.__name__} {a} {b}", lambda x, y, f=fn: f(x, y), (x, y)
        yield f"{fn.__name__} {a} 0-d {b}", lambda x, y, f=fn: f(x, y), (x, y[0].clone())
    for a, number in itertools.product(every, (2, -1, 2.5, True)):
        if a != torch.bool or number is not True:
            yield f"{a} * {number}", lambda x, n=number: x * n, (torch.tensor([1, 0, 3]).to(a),)


def numbers_keep_their_digits() -> Iterator[Program]:
    """A Python number is a double until it meets a dtype: neither float32 nor a half may come between."""
    n, big = 1.0507009873554805, 2**24 + 1
    programs: dict[str, Callable[[Tensor], Any]] = {
        "where": lambda x: (torch.where(x > 0, x, n), torch.where(x > 0, n, x), torch.where(x > 0, n, 0.1)),
        "where and on": lambda x: torch.where(x > 0, x, n) * x,
        "masked_fill": lambda x: x.masked_fill(x > 0, n),
        "add": lambda x: (x + n, n - x, x * n, n / (x + 10)),
        "alpha": lambda x: (torch.add(x, x, alpha=n), torch.addcmul(x, x, x, value=n), torch.lerp(x, x * 2, n)),
        "clamp": lambda x: (x.clamp(-0.1, n), x.clamp_min(n)),
        "fill": lambda x: (torch.full_like(x, n) + x, x.fill(n), x.new_full((3,), n), F.pad(x, (1, 1), value=n)),
        "threshold": lambda x: (F.threshold(x, 0.1, n), F.hardtanh(x, -n, n), F.leaky_relu(x, n), F.elu(x, n)),
        "remainder": lambda x: (torch.remainder(x, n), torch.fmod(x, n), torch.copysign(x, n), torch.pow(n, x)),
        "nan_to_num": lambda x: torch.nan_to_num(x / 0, n, n, -n),
        "scatter": lambda x: (x.index_fill(0, torch.tensor([1]), n), x.scatter(0, torch.tensor([1]), n)),
        "compare": lambda x: (x > n, x == n, torch.isclose(x, x + 1e-9, rtol=n * 1e-9)),
    }
    for (name, fn), dtype in itertools.product(programs.items(), FLOATS):
        yield f"{name} {dtype}", lambda x, f=fn: f(x), (torch.linspace(-5, 3, 17).to(dtype),)
    for dtype in (torch.int32, torch.int64):
        x = torch.arange(-3, 4).to(dtype)
        yield f"integers {dtype}", lambda x: (x.masked_fill(x > 0, float(big)), torch.where(x > 0, x, big), x + big), (x,)
        yield f"integers or floats {dtype}", lambda x: (torch.where(x > 0, x, n), x * n, x + float(big)), (x,)
