"""The prelude's elementary functions against float64, over the whole range of float32 (and what they do with special values)."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from tests.codegen.cpp.harness import TARGETS
from tinycompile.base.target import Target
from tinycompile.codegen.cpp.emit import prelude
from tinycompile.runtime.cpp_build import compile_cpp, compiler, load

pytestmark = [pytest.mark.cpu, pytest.mark.skipif(compiler() is None, reason="no C++ compiler")]

# name: the bound in ulp that the prelude states.
FLOAT32 = {
    "exp": 1, "exp2": 1, "expm1": 2, "log": 1, "log2": 2, "log10": 2, "log1p": 2, "sigmoid": 3, "tanh": 3, "sinh": 3, "cosh": 3,
    "asinh": 3, "acosh": 3, "atanh": 3, "sin": 2, "cos": 2, "tan": 4, "atan": 2, "asin": 3, "acos": 2, "erf": 4, "erfc": 6,
    "sqrt": 1, "floor": 0.5, "ceil": 0.5, "trunc": 0.5, "round": 0.5, "lgamma": 8,
}  # fmt: skip
FLOAT64 = {"exp": 1, "expm1": 2, "log": 1, "tanh": 3, "sigmoid": 3}
ANGLES = ("sin", "cos", "tan")
_SPECIAL = [
    0.0,
    -0.0,
    float("inf"),
    float("-inf"),
    float("nan"),
    1.0,
    -1.0,
    0.5,
    -0.5,
    1e-45,
    -1e-45,
    1.1754944e-38,
    3.4028235e38,
]


def _source(target: Target) -> str:
    lines = [prelude(target)]
    for kind, names in (("float", FLOAT32), ("double", FLOAT64)):
        for name in names:
            fault = ", fault" if name in ANGLES else ""
            lines.append(
                f'extern "C" int {name}_{kind}(const {kind}* x, {kind}* y, int64_t n) {{ int fault = 0;\n'
                f"#pragma omp simd reduction(|: fault)\nfor (int64_t i = 0; i < n; ++i) y[i] = tc::{name}(x[i]{fault}); return fault; }}"
            )
    for name in ("pow", "atan2", "fmod", "maximum", "minimum", "fmax", "fmin"):
        lines.append(
            f'extern "C" int {name}_float(const float* x, const float* y, float* z, int64_t n) {{\n'
            f"#pragma omp simd\nfor (int64_t i = 0; i < n; ++i) z[i] = tc::{name}(x[i], y[i]); return 0; }}"
        )
    for name, source, target in (
        ("to_bfloat16", "float", "uint16_t"),
        ("to_float16", "float", "uint16_t"),
        ("from_bfloat16", "uint16_t", "float"),
        ("from_float16", "uint16_t", "float"),
    ):
        lines.append(
            f'extern "C" int {name}(const {source}* x, {target}* y, int64_t n) {{\n'
            f"#pragma omp simd\nfor (int64_t i = 0; i < n; ++i) y[i] = tc::{name}(x[i]); return 0; }}"
        )
    return "\n".join(lines)


@dataclass
class Functions:
    library: ctypes.CDLL

    def __call__(self, name: str, *inputs: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Apply a function elementwise; asserts that it does not ask for eager."""
        result, fault = self.with_fault(name, *inputs, dtype=dtype)
        assert fault == 0
        return result

    def with_fault(self, name: str, *inputs: torch.Tensor, dtype: torch.dtype | None = None) -> tuple[torch.Tensor, int]:
        out = torch.empty(inputs[0].shape, dtype=dtype or inputs[0].dtype)
        pointers = [ctypes.c_void_p(t.data_ptr()) for t in (*inputs, out)]
        return out, self.library[name](*pointers, ctypes.c_int64(out.numel()))


@pytest.fixture(scope="module", params=TARGETS)
def functions(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Functions:
    target = TARGETS[request.param]
    return Functions(load(compile_cpp(_source(target), target, tmp_path_factory.mktemp("math"))))


def every_float(step: int = 3989) -> torch.Tensor:
    """Float32 of every exponent and both signs: each ``step``-th bit pattern, and special values."""
    bits = np.arange(0, 2**32, step, dtype=np.uint64).astype(np.uint32)
    return torch.from_numpy(np.concatenate([bits.view(np.float32), np.asarray(_SPECIAL, np.float32)]))


def reference(name: str) -> Callable[[torch.Tensor], torch.Tensor]:
    return {"log1p": torch.log1p, "sigmoid": lambda x: 1 / (1 + torch.exp(-x))}.get(name) or getattr(torch, name)


def ulps(got: torch.Tensor, exact: torch.Tensor, digits: int, lowest: int) -> torch.Tensor:
    """Errors in units in the last place of ``exact`` rounded to a float of ``digits`` bits; NaN and inf must agree."""
    nan = torch.isnan(exact)
    assert torch.equal(torch.isnan(got), nan), f"NaN differs at {torch.nonzero(torch.isnan(got) != nan)[:5]}"
    exponent = torch.frexp(exact)[1].clamp(min=lowest + 1)
    unit = torch.ldexp(torch.ones_like(exact), exponent - digits)
    error = (got.to(exact.dtype) - exact).abs() / unit
    return torch.where(nan | (got == exact), torch.zeros_like(error), error)


@pytest.mark.parametrize("name", FLOAT32)
def test_float32_within_bound(functions: Functions, name: str) -> None:
    x = every_float()
    if name in ANGLES:
        x = x[~((x.abs() > 2.8e14) & x.isfinite())]
    if name == "sigmoid":
        x = x[~(x < -87)]
    got = functions(f"{name}_float", x).double()
    exact = reference(name)(x.double())
    rounded = exact.float()
    beyond = rounded.isinf() | (exact.abs() > 3.4e38)
    assert torch.equal(got.isinf() & ~rounded.isinf(), torch.zeros_like(beyond)) or name in ("sinh", "cosh")
    assert (got[rounded.isinf()] == rounded[rounded.isinf()]).all()
    error = ulps(got[~beyond], exact[~beyond], 24, -126)
    worst = int(error.argmax())
    assert error[worst] <= FLOAT32[name], f"{name}({x[~beyond][worst].item()!r}) is off by {error[worst].item():.3f} ulp"
    zero = exact == 0
    assert torch.equal(torch.signbit(got[zero]), torch.signbit(exact[zero])) or name in ("lgamma", "acos", "log")


def test_tanh_reaches_one_where_float32_does(functions: Functions) -> None:
    """Programs compare it with 1, and divide what is left: beyond 0.6 it is rounded about as well as can be."""
    whole, x = torch.arange(-12.0, 13.0), torch.linspace(0.7, 12, 100_000)
    assert torch.equal(functions("tanh_float", whole), torch.tanh(whole.double()).float())
    assert (functions("tanh_float", x).double() - torch.tanh(x.double())).abs().max() <= 2**-24 * 1.35


@pytest.mark.parametrize("name", FLOAT64)
def test_float64_within_bound(functions: Functions, name: str) -> None:
    mpmath = pytest.importorskip("mpmath")
    spread = torch.cat([torch.randn(500, dtype=torch.float64) * s for s in (1e-9, 1e-3, 0.1, 1, 10, 100, 300)])
    x = torch.cat([spread, torch.tensor(_SPECIAL, dtype=torch.float64), torch.tensor([709.7, -745.0, -708.0, 5e-324, 1e300])])
    x = x.abs() if name == "log" else x
    got = functions(f"{name}_double", x)
    with mpmath.workdps(60):
        formula = {"sigmoid": lambda v: 1 / (1 + mpmath.exp(-v))}.get(name) or getattr(mpmath, name)
        for value, have in zip(x.tolist(), got.tolist()):
            if value != value or abs(value) == float("inf") or value == 0:
                torch.testing.assert_close(
                    have, reference(name)(torch.tensor(value).double()).item(), equal_nan=True, rtol=0, atol=0
                )
                continue
            exact = formula(mpmath.mpf(value))
            if abs(exact) > 1.7e308:
                assert abs(have) == float("inf")
            elif not (name == "sigmoid" and value < -700):
                unit = max(float(np.spacing(abs(float(exact)))), 5e-324)
                assert abs(mpmath.mpf(have) - exact) / unit <= FLOAT64[name], f"{name}({value!r}) = {have!r}, not {exact}"


def test_power(functions: Functions) -> None:
    special = torch.tensor(_SPECIAL + [2.0, -2.0, 3.0, -3.0, 2.5, -2.5, 16777217.0, -7.0, 1e-20, 0.999])
    grid = torch.cartesian_prod(special, special)
    x = torch.cat([grid[:, 0], torch.rand(200_000) * 4, torch.randn(200_000) * 10, torch.exp(torch.randn(200_000) * 20)])
    y = torch.cat([grid[:, 1], torch.randn(200_000) * 20, torch.randint(-12, 12, (200_000,)).float(), torch.randn(200_000)])
    got, exact = functions("pow_float", x, y).double(), torch.pow(x.double(), y.double())
    finite = ~(exact.float().isinf() | (exact.abs() > 3.4e38))
    assert torch.equal(got[~finite].float(), exact[~finite].float())
    assert ulps(got[finite], exact[finite], 24, -126).max() <= 1
    assert torch.equal(torch.signbit(got[exact == 0]), torch.signbit(exact[exact == 0]))


def test_two_argument_arctangent(functions: Functions) -> None:
    special = torch.tensor(_SPECIAL)
    grid = torch.cartesian_prod(special, special)
    y = torch.cat([grid[:, 0], torch.randn(300_000) * torch.exp(torch.randn(300_000) * 10)])
    x = torch.cat([grid[:, 1], torch.randn(300_000)])
    got, exact = functions("atan2_float", y, x).double(), torch.atan2(y.double(), x.double())
    assert ulps(got, exact, 24, -126).max() <= 3
    assert torch.equal(torch.signbit(got), torch.signbit(exact)) or torch.isnan(exact).any()


@pytest.mark.parametrize("name", ["fmod", "maximum", "minimum", "fmax", "fmin"])
def test_exact_with_two_arguments(functions: Functions, name: str) -> None:
    grid = torch.cartesian_prod(torch.tensor(_SPECIAL + [5.5, -5.5, 3.0]), torch.tensor(_SPECIAL + [5.5, -5.5, 3.0]))
    x, y = grid[:, 0].contiguous(), grid[:, 1].contiguous()
    with np.errstate(invalid="ignore"):  # numpy's: torch's own fmod gives NaN where the quotient is beyond 2^24
        exact = torch.from_numpy(getattr(np, name)(x.numpy(), y.numpy()))
    torch.testing.assert_close(functions(f"{name}_float", x, y), exact, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", ANGLES)
def test_absurd_angles_are_left_to_eager(functions: Functions, name: str) -> None:
    assert functions.with_fault(f"{name}_float", torch.tensor([1.0, 1e30, 2.0]))[1] == 4
    assert functions.with_fault(f"{name}_float", torch.tensor([1.0, float("inf"), float("nan")]))[1] == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
def test_half_conversions_are_torchs(functions: Functions, dtype: torch.dtype) -> None:
    name = str(dtype).removeprefix("torch.")
    halves = torch.arange(2**16, dtype=torch.int32).to(torch.int16)
    wide = functions(f"from_{name}", halves, dtype=torch.float32)
    torch.testing.assert_close(wide, halves.view(dtype).float(), rtol=0, atol=0, equal_nan=True)
    x = every_float(397)
    ties = torch.nextafter(wide, torch.tensor(float("inf"))), (wide[:-1] + wide[1:]) / 2
    for data in (x, wide, *ties):
        narrow = functions(f"to_{name}", data.contiguous(), dtype=torch.int16).view(dtype)
        torch.testing.assert_close(narrow.float(), data.to(dtype).float(), rtol=0, atol=0, equal_nan=True)
