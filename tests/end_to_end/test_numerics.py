"""Families of numeric corner cases, generated over many ops: each through the C++ backend, or Loops in numpy, against eager.

A family's programs are captured one by one, built as one translation unit, then run and judged as the op database's samples
are (values by float64, metadata, aliasing, writes to arguments). ``TINYCOMPILE_TESTS=full`` takes every program on C++; by
default C++ takes each ``_SHARE``-th, from another start in each family.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import tinycompile
from benchmarks.opinfo_backends import BACKENDS
from benchmarks.opinfo_judge import Call, DifferenceError, Judge, compare, run

pytestmark = [pytest.mark.cpu, pytest.mark.filterwarnings("ignore")]

FULL = os.environ.get("TINYCOMPILE_TESTS") == "full"
_SHARE = 6
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
Program = tuple[str, Callable[..., Any], tuple[Any, ...]]
Family = Callable[[], Iterator[Program]]

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
    for dtype, n in itertools.product(FLOATS[:1] + FLOATS[2:], (1000, 70_001)):
        x = (torch.rand(n, generator=torch.Generator().manual_seed(n)) + (1000 if dtype == torch.float32 else 1)).to(dtype)
        for name in ("sum", "mean", "var", "std", "norm"):
            yield f"{name} of {n} {dtype}", lambda x, name=name: getattr(torch, name)(x), (x,)


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


# --------------------------------------------------------------------------------------------------------- shapes and memory


_SHAPED: dict[str, Callable[[Tensor], Any]] = {
    "add": lambda x: x + 1,
    "relu": torch.relu,
    "gelu": F.gelu,
    "sum": torch.sum,
    "sum 0": lambda x: x.sum(0),
    "mean -1": lambda x: x.mean(-1),
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(0),
    "cumsum": lambda x: x.cumsum(-1),
    "any": torch.any,
    "norm": torch.linalg.vector_norm,
    "var": lambda x: x.var(-1, correction=0),
    "cat": lambda x: torch.cat([x.reshape(-1), x.reshape(-1)]),
    "stack": lambda x: torch.stack([x, x], -1),
    "flip": lambda x: x.flip(0) if x.dim() else x.flip(()),
    "reshape": lambda x: x.reshape(-1) * 2,
    "clamp": lambda x: x.clamp(-1, 1),
    "to": lambda x: x.to(torch.int32),
    "where": lambda x: torch.where(x > 0, x, -x),
    "prod": torch.prod,
    "logsumexp": lambda x: x.logsumexp(-1),
}


def empty_and_scalar_tensors() -> Iterator[Program]:
    for (name, fn), shape in itertools.product(_SHAPED.items(), ((), (0,), (3, 0), (0, 3), (1,), (1, 1, 1))):
        yield f"{name} of {shape}", lambda x, f=fn: f(x), (torch.randn(shape, generator=torch.Generator().manual_seed(0)),)
    for dtype in (torch.int64, torch.bool):
        yield f"softmax of empty {dtype}", lambda x: torch.softmax(x, 0), (torch.zeros(0, dtype=dtype),)
        yield f"softmax of {dtype}", lambda x: torch.softmax(x, 0), (torch.zeros(3, dtype=dtype),)
        yield f"mean of empty {dtype}", lambda x: torch.mean(x), (torch.zeros(0, dtype=dtype),)


def _laid_out() -> dict[str, Tensor]:
    """One 4-d tensor of each kind of memory."""
    data = torch.randn(2, 3, 4, 6, generator=torch.Generator().manual_seed(1))
    wide = torch.randn(4000, generator=torch.Generator().manual_seed(2))
    return {
        "channels_last": data.contiguous(memory_format=torch.channels_last),
        "transposed": data.transpose(1, 3).contiguous().transpose(1, 3),
        "expanded": data[:, :, :1].expand(2, 3, 4, 6),
        "all one element": data[:1, :1, :1, :1].expand(2, 3, 4, 6),
        "every second": torch.randn(2, 3, 4, 12, generator=torch.Generator().manual_seed(3))[..., ::2],
        "unaligned": wide[1 : 1 + data.numel()].view(data.shape),
        "odd offset": wide[7 : 7 + 2 * data.numel() : 2].view(data.shape),
        "overlapping": wide.as_strided(data.shape, (5, 3, 2, 1)),
        "size one dims": data[:, :1].as_strided((2, 1, 4, 6), (72, 7, 6, 1)),
    }


_OF_IMAGES: dict[str, Callable[[Tensor], Any]] = _SHAPED | {
    "sum of channels": lambda x: x.sum(1, keepdim=True) + x,
    "mean of space": lambda x: x.mean((2, 3)),
    "max": lambda x: x.max(1),
    "batch statistics": lambda x: (x - x.mean((0, 2, 3), keepdim=True)) * (x.var((0, 2, 3), keepdim=True) + 1).rsqrt(),
    "layer norm": lambda x: F.layer_norm(x, (6,)),
    "pad": lambda x: F.pad(x, (1, 2, 0, 1)),
    "pool": lambda x: F.max_pool2d(x, 2),
    "average": lambda x: F.avg_pool2d(x, 2, 1, 1),
    "interpolate": lambda x: F.interpolate(x, scale_factor=2.0),
    "roll": lambda x: x.roll((1, -1), (2, 3)),
    "permute": lambda x: x.permute(0, 2, 3, 1).contiguous() + 1,
    "slices": lambda x: x[:, :, 1:] - x[:, :, :-1],
    "with channels_last": lambda x: x + x.contiguous(memory_format=torch.channels_last),
}


def every_kind_of_memory() -> Iterator[Program]:
    for (layout, x), (name, fn) in itertools.product(_laid_out().items(), _OF_IMAGES.items()):
        yield f"{name} of {layout}", lambda x, f=fn: f(x), (x,)
    for dtype in (torch.float16, torch.bfloat16, torch.int8, torch.bool):
        x = (torch.arange(500) % 7 - 3).to(dtype)[3:403].view(4, 100)
        yield f"unaligned {dtype}", lambda x: (x.float() * 2, x.sum(1)), (x,)


def _written(write: Callable[[Tensor], Any]) -> Callable[[Tensor], Any]:
    def program(x: Tensor) -> Any:
        write(x)
        return x * 2

    return program


def writes_that_read_elsewhere() -> Iterator[Program]:
    """The new value of a place depends on others of the same tensor: nothing may be read after it was overwritten."""
    writes: dict[str, Callable[[Tensor], Any]] = {
        "shifted": lambda x: x.copy_(x.roll(1, 0)),
        "shifted back": lambda x: x.copy_(x.roll(-1, 1) + 1),
        "mirrored": lambda x: x.mul_(x.flip(0)),
        "mirrored twice": lambda x: x.add_(x.flip((0, 1))),
        "transposed": lambda x: x.add_(x.t().contiguous()),
        "transposed copy": lambda x: x.copy_(x.t().clone()),
        "sum of rows": lambda x: x.sub_(x.sum(0)),
        "distance to the greatest": lambda x: x.copy_(x.amax(0) - x),
        "cumsum": lambda x: x.copy_(x.cumsum(1)),
        "gathered": lambda x: x.copy_(x[:, [3, 2, 1, 0, 5, 4]]),
        "twice": lambda x: x.add_(1).mul_(x),
        "from a clone": lambda x: x.copy_(x.clone().t() * 2),
    }
    for name, write in writes.items():
        yield name, _written(write), (torch.arange(36.0).reshape(6, 6),)
        yield f"{name}, from fresh", lambda x, w=_written(write): w(x + 1), (torch.arange(36.0).reshape(6, 6),)


def scatter_then_gather() -> Iterator[Program]:
    index = torch.tensor([3, 0, 3, 1])
    x, src = torch.arange(12.0).reshape(4, 3), torch.arange(12.0).reshape(4, 3) * 10
    programs: dict[str, Callable[..., Any]] = {
        "index_add": lambda x, i, s: x.index_add(0, i, s)[i] * 2,
        "scatter_add": lambda x, i, s: x.scatter_add(0, i[:, None].expand(4, 3), s).gather(0, i[:, None].expand(4, 3)),
        "index_copy": lambda x, i, s: x.index_copy(0, i[1:], s[1:]).index_select(0, i),
        "index_put": lambda x, i, s: x.index_put((i,), s, accumulate=True)[i] + 1,
        "index_fill": lambda x, i, s: x.index_fill(0, i, 7.0)[i],
        "masked_scatter": lambda x, i, s: x.masked_scatter(x > 4, s)[i],
        "select_scatter": lambda x, i, s: x.select_scatter(s[0], 0, 2)[i],
        "put": lambda x, i, s: (x + 1).put(i, s[:, 0]).take(i),
    }
    for name, fn in programs.items():
        yield name, fn, (x, index, src)


FAMILIES: tuple[Family, ...] = (
    half_types_round_where_eager_stores, narrow_integers_wrap_at_every_op, floats_become_integers_as_torchs_do,
    every_reduction_meets_nan_and_infinity, positions_of_equal_extremes, long_sums_keep_their_digits, scans_beside_reductions,
    zeros_keep_their_sign,
    subnormal_numbers_are_numbers, powers, integer_division_of_negatives, shifts_of_any_count, dtypes_promote,
    empty_and_scalar_tensors, every_kind_of_memory, writes_that_read_elsewhere, scatter_then_gather,
)  # fmt: skip


def _check(programs: list[Program], backend: str) -> list[str]:
    """What differs from eager, one line a program; all are built at once."""
    the_backend = BACKENDS[backend]()
    waiting = []
    wrong: list[str] = []
    for name, fn, args in programs:
        call = Call(args, {})
        want = run(fn, theirs := call.copy(), 0)
        compiled = tinycompile.compile(fn, backend=the_backend, fullgraph=True, dynamic=False)
        try:
            compiled.explain(*call.copy().args)
        except Exception as error:
            if type(error) is not type(want):
                wrong.append(f"{name}: {type(error).__name__}: {error}")
                continue
        waiting.append((name, fn, call, want, theirs, compiled))
    the_backend.finish()
    for name, fn, call, want, theirs, compiled in waiting:
        got = run(compiled, mine := call.copy(), 0)
        try:
            compare(got, want, mine, theirs, Judge(fn, call, 0))
        except DifferenceError as difference:
            wrong.append(f"{name}: {difference}")
    return wrong


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.__name__)
def test_loops(family: Family) -> None:
    programs = list(family())
    wrong = _check(programs if FULL else programs[::2], "loops")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.__name__)
def test_cpp(family: Family) -> None:
    programs = list(family())
    wrong = _check(programs if FULL else programs[len(family.__name__) % _SHARE :: _SHARE], "cpp")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("dtype", INTS, ids=str)
@pytest.mark.parametrize("fn", [torch.floor_divide, torch.remainder, torch.fmod])
def test_division_by_zero_is_torchs_error(fn: Callable[..., Any], dtype: torch.dtype) -> None:
    x, y = torch.tensor([1, 2, 3], dtype=dtype), torch.tensor([1, 0, 2], dtype=dtype)
    with pytest.raises(RuntimeError) as want:
        fn(x, y)
    with pytest.raises(RuntimeError) as got:
        tinycompile.compile(lambda x, y: fn(x, y))(x, y)
    assert str(got.value) == str(want.value)
