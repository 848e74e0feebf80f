"""Every scalar op of the vocabulary on every dtype of its domain, at ordinary and special values."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable

import pytest
import torch

from tests.codegen.triton.harness import check, emitted, interpret, library_frame, offline_ok
from tests.codegen.triton.nests import Build, Case
from tinycompile.ops.scalar import SCALAR_OPS
from tinycompile.runtime.triton_build import compile_offline

pytestmark = pytest.mark.cpu

FLOATS = (torch.float32, torch.float64)
INTS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
SPECIAL = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    -0.5,
    1.5,
    2.5,
    -2.5,
    1e-30,
    -1e-8,
    1e-4,
    88.0,
    -88.0,
    1e30,
    float("inf"),
    float("-inf"),
    float("nan"),
]
POSITIVE_ONLY = {"sqrt", "rsqrt", "log", "log2", "log10", "lgamma"}
SHIFTS = {"shl", "shr"}
DIVISIONS = {"floordiv", "truncdiv", "mod", "fmod"}
# libdevice's float64 forms keep a table of 40 bytes on the stack for huge arguments, which is no spill.
FRAMED = ("sin", "cos", "tan")
# Relative tolerance in ulps of the dtype, where not 4.
ULPS = {
    "exp": 6,
    "expm1": 8,
    "log1p": 6,
    "sigmoid": 8,
    "tanh": 8,
    "pow": 16,
    "lgamma": 64,
    "erfc": 16,
    "sin": 8,
    "cos": 8,
    "tan": 16,
    "fma": 1e6,
    "reciprocal": 2,
    "log": 8,
    "erf": 8,
}


def unary_data(dtype: torch.dtype) -> torch.Tensor:
    if dtype == torch.bool:
        return torch.tensor([True, False, True, False, False])
    if dtype.is_floating_point:
        spread = torch.cat([torch.linspace(-6, 6, 97), torch.tensor([3e-7, -2e-5, 0.01, 0.3, 0.59, 0.61, 20.0, -30.0, 700.0])])
        return torch.cat([torch.tensor(SPECIAL), spread]).to(dtype)
    info = torch.iinfo(dtype)
    return torch.tensor([info.min, info.min + 1, info.max, info.max - 1, 0, 1, 2, 3, 7, 5, 100], dtype=dtype)


def pairs(dtype: torch.dtype, op: str) -> tuple[torch.Tensor, torch.Tensor]:
    x = unary_data(dtype)
    a, b = (t.contiguous() for t in torch.cartesian_prod(x, x).unbind(1))
    if op in SHIFTS:
        b = (b & (torch.iinfo(dtype).bits - 1)).to(dtype)
    if op in DIVISIONS and not dtype.is_floating_point:
        keep = (b != 0) & ~((b == -1) & (a == torch.iinfo(dtype).min))
        a, b = a[keep], b[keep]
    if op == "fmod":
        keep = (b.abs() > 1e-3) & (a.abs() < 1e6)
        a, b = a[keep], b[keep]
    return a.contiguous(), b.contiguous()


def op_case(op: str, dtype: torch.dtype) -> Case:
    spec = SCALAR_OPS[op]
    if spec.arity == 1:
        data = [unary_data(dtype) | (op == "checked")] if dtype == torch.bool else [unary_data(dtype)]
    elif spec.arity == 2:
        data = list(pairs(dtype, op))
    else:
        a, b = pairs(dtype, op)
        data = [a, b, a.flip(0)] if op != "where" else [a > b if dtype != torch.bool else a, a, b]
    if op in POSITIVE_ONLY:
        data = [d.abs() for d in data]
    n = len(data[0])
    b = Build(f"{op}_{str(dtype)[6:]}", i0=n)
    i = b.axis("i0")
    for k, d in enumerate(data):
        b.input(f"in{k}", d)
    value = b.op(op, *(b.load(f"in{k}", i) for k in range(len(data))))
    b.output("out", (n,), b.dtypes[value])
    b.store("out", value, i)
    return b.case()


def ops_of(domain: str) -> list[str]:
    return [name for name, spec in SCALAR_OPS.items() if domain in spec.domain and name != "cast"]


@pytest.mark.parametrize("dtype", [*FLOATS, *INTS, torch.bool], ids=lambda d: str(d)[6:])
def test_every_op(dtype: torch.dtype) -> None:
    domain = "b" if dtype == torch.bool else "f" if dtype.is_floating_point else "i"
    failures = []
    for op in ops_of(domain):
        eps = torch.finfo(dtype).eps if dtype.is_floating_point else 0.0
        atol = eps * 2 if op in ("sin", "cos", "tan", "lgamma", "fma") else torch.finfo(dtype).tiny if domain == "f" else 0.0
        try:
            check(op_case(op, dtype), rtol=ULPS.get(op, 4) * eps, atol=atol)
        except Exception as error:  # noqa: BLE001 - all ops of a dtype are tried, and all failures shown
            failures.append(f"{op}: {str(error)[:1500]}")
    assert not failures, "\n\n".join(failures)


ODD = ("neg", "round", "trunc", "tanh", "expm1", "log1p", "erf", "sin", "tan", "asin", "atan", "sinh", "asinh", "atanh")


def test_signs_of_zero_are_kept() -> None:
    x = torch.tensor([0.0, -0.0, -0.3, 0.3, -0.5, 0.5])
    for op in (*ODD, "ceil", "floor", "sqrt"):
        b = Build(f"zero_{op}", i0=6)
        b.input("x", x.abs() * 0 if op == "sqrt" else x)
        b.output("out", (6,), torch.bool)
        b.store("out", b.op("signbit", b.op(op, b.load("x", b.axis("i0")))), b.axis("i0"))
        check(b.case())


def in_half(op: Callable[[Build, str], str], values: torch.Tensor) -> torch.Tensor:
    """``op`` of half values in float32, rounded to half: the forms for half stores."""
    b = Build("half", i0=len(values))
    b.input("x", values)
    b.output("out", (len(values),), values.dtype)
    value = op(b, b.load("x", b.axis("i0")))
    b.store("out", b.op("cast", value, dtype=values.dtype), b.axis("i0"))
    case = b.case()
    return interpret(case, emitted(case))[0]


@pytest.mark.parametrize("bound", [0.5, 2.2, 1e4, None])
def test_forms_for_halves_and_for_small_arguments_keep_the_sign_of_zero(bound: float | None) -> None:
    x = torch.tensor([0.0, -0.0], dtype=torch.float16)

    def bounded(b: Build, v: str) -> str:
        return v if bound is None else b.op("mul", b.op("tanh", v), b.const(bound))

    for op in ODD:
        found = in_half(lambda b, v, op=op: b.op(op, bounded(b, v)), x)  # type: ignore[misc]
        assert torch.equal(torch.signbit(found), torch.signbit(-x if op == "neg" else x)), op


def half_ulps(got: torch.Tensor, want: torch.Tensor) -> torch.Tensor:
    """The error in units of the last place of the half type."""
    info = torch.finfo(got.dtype)
    size = 2.0 ** want.abs().clamp(min=info.tiny).log2().floor() * info.eps
    return ((got.double() - want) / size).abs()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=lambda d: str(d)[6:])
def test_every_half_value(dtype: torch.dtype) -> None:
    """All values that are normal in float32: erf and tanh within an ulp; gelu too where 1 + erf still has digits in float32, and nowhere worse than
    with an exact erf."""
    x = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16).view(dtype)
    x = x[(x.float().abs() > 1e-37) & (x.float().abs() < 1e30)]
    wide = x.double()

    def gelu(b: Build, v: str) -> str:
        erf = b.op("erf", b.op("mul", v, b.const(math.sqrt(0.5))))
        return b.op("mul", b.op("mul", v, b.const(0.5)), b.op("add", erf, b.const(1.0)))

    assert half_ulps(in_half(lambda b, v: b.op("erf", v), x), wide.erf()).max() < 1.0
    assert half_ulps(in_half(lambda b, v: b.op("tanh", v), x), wide.tanh()).max() < 1.0
    want = wide * 0.5 * torch.special.erfc(wide * -math.sqrt(0.5))
    error = half_ulps(in_half(gelu, x), want)
    exact = half_ulps((x.float() * 0.5 * (1 + (x.float() * math.sqrt(0.5)).erf())).to(dtype), want)
    assert error[wide > -4].max() < 1.0
    assert error.max() < 1.25 * exact.max()


def test_erf_in_float32() -> None:
    x = torch.cat([torch.logspace(-30, 2, 4096), torch.linspace(0, 4.5, 60001)])
    x = torch.cat([x, -x])
    b = Build("erf_grid", i0=len(x))
    b.input("x", x)
    b.output("out", (len(x),), torch.float32)
    b.store("out", b.op("erf", b.load("x", b.axis("i0"))), b.axis("i0"))
    case = b.case()
    want = x.double().erf()
    ulp = 2.0 ** (want.abs().clamp(min=1e-30).log2().floor() - 23)
    assert ((interpret(case, emitted(case))[0].double() - want) / ulp).abs().max() < 3.0


def test_casts() -> None:
    kinds = [
        torch.bool,
        torch.uint8,
        torch.int8,
        torch.int32,
        torch.int64,
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
    ]
    for source, target in itertools.permutations(kinds, 2):
        x = torch.tensor([0, 1, 2, 3, 100, 127]) if source != torch.bool else torch.tensor([0, 1])
        data = (x - 3.7 if source.is_floating_point and target != torch.uint8 else x * 1.37).to(source)
        b = Build(f"cast_{str(source)[6:]}_{str(target)[6:]}", i0=len(data))
        b.input("x", data)
        b.output("out", (len(data),), target)
        b.store("out", b.op("cast", b.load("x", b.axis("i0"), up=False), dtype=target), b.axis("i0"))
        check(b.case(), rtol=0.0)


def test_constants_are_exact_in_their_dtype() -> None:
    for dtype, values in (
        (torch.float64, (0.1, 1e-300, float("inf"))),
        (torch.float32, (0.1, float("-inf"), float("nan"))),
        (torch.int8, (127, -128)),
        (torch.int64, (2**40 + 1, -(2**62))),
        (torch.uint8, (255,)),
        (torch.bool, (True, False)),
    ):
        for k, value in enumerate(values):
            b = Build(f"const_{str(dtype)[6:]}_{k}", i0=8)
            b.input("x", torch.arange(8) > 3)
            b.output("out", (8,), dtype)
            b.store("out", b.op("where", b.load("x", b.axis("i0")), b.const(value, dtype), b.const(0, dtype)), b.axis("i0"))
            check(b.case(), rtol=0.0)


def test_narrow_integers_wrap() -> None:
    b = Build("wrap", i0=256)
    b.input("x", torch.arange(256, dtype=torch.uint8))
    b.output("out", (256,), torch.uint8)
    x = b.load("x", b.axis("i0"))
    b.store("out", b.op("add", b.op("mul", x, b.const(7, torch.uint8)), b.const(200, torch.uint8)), b.axis("i0"))
    check(b.case())


@pytest.mark.parametrize("arch", [80, 90])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int32, torch.int8, torch.bool], ids=lambda d: str(d)[6:])
def test_every_op_compiles(dtype: torch.dtype, arch: int) -> None:
    domain = "b" if dtype == torch.bool else "f" if dtype.is_floating_point else "i"
    chosen = [op for op in ops_of(domain) if not (dtype == torch.float64 and op in FRAMED)]
    for part in range(0, len(chosen), 16):
        b = Build(f"ops_{str(dtype)[6:]}_{part}", i0=65536)
        i = b.axis("i0")
        b.input("c", torch.empty(65536, dtype=torch.bool))
        for name in "xyz":
            b.input(name, torch.empty(65536, dtype=dtype))
        loaded = [b.load(n, i) for n in "xyz"]
        for op in chosen[part : part + 16]:
            arity = SCALAR_OPS[op].arity
            value = b.op(op, *([b.load("c", i), *loaded[:2]] if op == "where" else loaded[:arity]))
            b.output(f"out_{op}", (65536,), b.dtypes[value])
            b.store(f"out_{op}", value, i)
        offline_ok(emitted(b.case()), arch)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=lambda d: str(d)[6:])
@pytest.mark.parametrize("op", ["exp", "exp2", "rsqrt", "sigmoid", "tanh", "erf", "expm1"])
def test_denormals_where_results_show_them(op: str, dtype: torch.dtype) -> None:
    """An approximation with denormals is four machine instructions; without, as in 1 + e**-x of sigmoid, it is one."""
    ptx = compile_offline(emitted(op_case(op, dtype)), 90).ptx
    found = set(re.findall(r"\b(?:ex2|rsqrt)\.approx[.\w]*", ptx))
    assert found
    assert all((".ftz" in instruction) is (op not in ("exp", "exp2", "rsqrt")) for instruction in found)


@pytest.mark.parametrize("op", FRAMED)
def test_float64_circular_functions_keep_a_table(op: str) -> None:
    assert compile_offline(emitted(op_case(op, torch.float64)), 90).spills == library_frame(op, torch.float64, 90) > 0


def test_a_sine_of_a_small_value_takes_no_multiple_of_pi_away() -> None:
    """|tanh| bounds what follows; at 2.2 and below the polynomial alone is within 5 ulp."""
    b = Build("small_sine", i0=1 << 14)
    i = b.axis("i0")
    b.input("x", torch.linspace(-3.0, 3.0, 1 << 14))
    bounded = b.op("mul", b.op("tanh", b.load("x", i)), b.const(2.2))
    for name, value in (("angle", bounded), ("sine", b.op("sin", bounded))):
        b.output(name, (1 << 14,), torch.float32)
        b.store(name, value, i)
    case = b.case()
    source = emitted(case)
    assert "= sin_near(" in source.text
    angle, sine = interpret(case, source)
    assert (sine / angle.double().sin() - 1).abs().max() < 5 * 2**-23
