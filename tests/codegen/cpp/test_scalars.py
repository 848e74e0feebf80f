"""Every word of the scalar vocabulary on every dtype it takes, on special values, against its numpy definition; all casts against torch."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from tests.codegen.cpp.harness import Compiled
from tests.codegen.triton.nests import Build, Case
from tinycompile.base.errors import KernelError
from tinycompile.ops.scalar import SCALAR_OPS
from tinycompile.runtime.cpp_build import compiler

pytestmark = [pytest.mark.cpu, pytest.mark.skipif(compiler() is None, reason="no C++ compiler")]

FLOATS = [torch.float32, torch.float64]
HALVES = [torch.bfloat16, torch.float16]
INTS = [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8]
ALL = [*FLOATS, *HALVES, *INTS, torch.bool]
INF, NAN = float("inf"), float("nan")
_FLOAT_VALUES = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    -0.5,
    2.5,
    -2.5,
    3.0,
    -7.25,
    1e-45,
    -1e-42,
    1.2e-38,
    3e38,
    INF,
    -INF,
    NAN,
    1e-5,
    12.0,
    -20.0,
    100.0,
]

# Float ops whose numpy definition is exact or correctly rounded: equal to the last bit.
EXACT = frozenset(
    """add sub mul neg abs div minimum maximum fmin fmax sqrt reciprocal floor ceil trunc round eq ne lt le gt ge isnan isinf
    signbit where fmod and or xor not shl shr floordiv truncdiv mod""".split()
)
INT_DIVISIONS = ("floordiv", "truncdiv", "mod", "fmod")


def name_of(*parts: object) -> str:
    return "_".join(str(p).removeprefix("torch.") for p in parts)


def values(dtype: torch.dtype) -> torch.Tensor:
    if dtype is torch.bool:
        return torch.tensor([False, True])
    if dtype.is_floating_point:
        return torch.tensor(_FLOAT_VALUES, dtype=torch.float64).to(dtype)
    info = torch.iinfo(dtype)
    chosen = [0, 1, 2, 3, 7, 100, info.max, info.max - 1, info.min, info.min + 1] + ([-1, -2, -3, -7] if info.min < 0 else [])
    return torch.tensor(chosen, dtype=dtype)


def operands(op: str, dtype: torch.dtype) -> list[torch.Tensor]:
    """Every pair of special values (pairs beside a condition for ``where``), as contiguous vectors."""
    arity = SCALAR_OPS[op].arity
    v = values(dtype)
    if op == "checked":
        v = v[v]
    if op == "where":
        pairs = [g.reshape(-1).contiguous() for g in torch.meshgrid(v, v, indexing="ij")]
        return [torch.arange(pairs[0].numel()) % 3 == 0, *pairs]
    if op in ("shl", "shr"):
        counts = torch.arange(torch.iinfo(dtype).bits, dtype=dtype)
        return [g.reshape(-1).contiguous() for g in torch.meshgrid(v, counts, indexing="ij")]
    if op in ("sin", "cos", "tan"):  # beyond, eager is asked (see test_math.py)
        v = v[~(v.abs() > 1e14) | v.isinf()]
    grid = [g.reshape(-1).contiguous() for g in torch.meshgrid(*[v] * arity, indexing="ij")] if arity > 1 else [v]
    if op in INT_DIVISIONS and not dtype.is_floating_point:
        grid = [g[grid[1] != 0] for g in grid]
    return grid


def case(op: str, dtype: torch.dtype) -> Case:
    data = operands(op, dtype)
    b = Build(name_of("op", op, dtype), i=data[0].numel())
    args = []
    for j, x in enumerate(data):
        b.input(f"x{j}", x)
        args.append(b.load(f"x{j}", b.axis("i")))
    r = b.op(op, *args)
    b.output("out", data[0].shape, b.dtypes[r])
    b.store("out", r, b.axis("i"))
    return b.case()


def cast_case(source: torch.dtype, target: torch.dtype) -> Case:
    x = values(source)
    if source.is_floating_point and not target.is_floating_point and target is not torch.bool:
        info = torch.iinfo(target)  # beyond the range each machine does as it likes
        x = x[x.isfinite() & (x.double() >= info.min) & (x.double() <= min(info.max, 2**62))]
    b = Build(name_of("cast", source, "to", target), i=x.numel())
    b.input("x", x.contiguous())
    v = b.op("cast", b.load("x", b.axis("i"), up=False), dtype=target)
    b.output("out", x.shape, target)
    b.store("out", v, b.axis("i"))
    return b.case()


def op_dtypes() -> list[tuple[str, torch.dtype]]:
    found = []
    for op, spec in SCALAR_OPS.items():
        if op == "cast":
            continue
        families = {"f": FLOATS, "i": INTS, "b": [torch.bool]}
        found += [(op, d) for family in spec.domain for d in families[family]]
    return found


OPS = op_dtypes()
CASTS = [(s, t) for s, t in itertools.product(ALL, ALL) if s is not t]


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    cases = [*(case(op, d) for op, d in OPS), *(cast_case(s, t) for s, t in CASTS), *FUSED.values()]
    return Compiled(cases, tmp_path_factory.mktemp("scalars"))


@pytest.mark.parametrize("op, dtype", OPS, ids=[name_of(*o) for o in OPS])
def test_op_is_its_definition(kernels: Compiled, op: str, dtype: torch.dtype) -> None:
    name = name_of("op", op, dtype)
    (got,) = kernels.run(name)
    wide = torch.float64 if dtype is torch.float32 and op not in EXACT else dtype
    with np.errstate(all="ignore"):
        exact = SCALAR_OPS[op].numpy(
            *(x.to(wide).numpy() if x.dtype is dtype else x.numpy() for x in kernels.cases[name].inputs)
        )
    want = torch.from_numpy(np.asarray(exact)).to(got.dtype)
    if op in EXACT or not dtype.is_floating_point:
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
        return
    ulps = 10 if dtype is torch.float32 else 16
    torch.testing.assert_close(
        got, want, rtol=ulps * torch.finfo(dtype).eps, atol=2e-45 if dtype is torch.float32 else 5e-324, equal_nan=True
    )


@pytest.mark.parametrize("source, target", CASTS, ids=[name_of(s, "to", t) for s, t in CASTS])
def test_cast_is_torchs(kernels: Compiled, source: torch.dtype, target: torch.dtype) -> None:
    name = name_of("cast", source, "to", target)
    (got,) = kernels.run(name)
    torch.testing.assert_close(got, kernels.cases[name].inputs[0].to(target), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("op", INT_DIVISIONS)
@pytest.mark.parametrize("dtype", INTS, ids=name_of)
def test_division_by_zero_asks_for_eager(kernels: Compiled, op: str, dtype: torch.dtype) -> None:
    name = name_of("op", op, dtype)
    x, y = kernels.cases[name].inputs
    y = y.clone()
    y[y.numel() // 2] = 0
    with pytest.raises(KernelError, match="divided by zero"):
        kernels.run(name, [x, y])


def test_what_fails_a_check_asks_for_eager(kernels: Compiled) -> None:
    with pytest.raises(KernelError, match="index"):
        kernels.run(name_of("op", "checked", torch.bool), [torch.tensor([False])])


# --- chains, on tensors that are long, half, of prime length ---


def gelu_chain(dtype: torch.dtype, n: int) -> Case:
    """gelu(x + b)*0.5 + x with the erf form, computed in float32."""
    b = Build(name_of("gelu", dtype, n), i=n)
    g = torch.Generator().manual_seed(n)
    b.input("x", torch.randn(n, generator=g).to(dtype))
    b.input("bias", torch.randn(n, generator=g).to(dtype))
    x = b.load("x", b.axis("i"))
    s = b.op("add", x, b.load("bias", b.axis("i")))
    half = b.op("mul", s, b.const(0.5))
    y = b.op("mul", half, b.op("add", b.op("erf", b.op("mul", s, b.const(0.7071067811865476))), b.const(1.0)))
    b.output("out", (n,), dtype)
    b.store("out", b.op("add", b.op("mul", y, b.const(0.5)), x), b.axis("i"))
    return b.case()


FUSED = {c.name: c for c in (gelu_chain(d, n) for d in (torch.float32, *HALVES) for n in (1, 2, 31, 4096, 99991))}


@pytest.mark.parametrize("name", FUSED)
def test_chain(kernels: Compiled, name: str) -> None:
    kernels.check(name)
