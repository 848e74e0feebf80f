"""C++ kernels that differ in names alone are compiled once; several translation units make one library."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from tinycompile.base.errors import BackendError
from tinycompile.runtime.cpp_build import _foresees, compile_functions, compiler, cpu_target, load
from tinycompile.runtime.twins import canonical_cpp

pytestmark = pytest.mark.cpu
needs_compiler = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")

PRELUDE = "#include <stdint.h>\nnamespace tc { static inline float exp(float v) { return v; } }"


def function(name: str = "f", x: str = "x", y: str = "y", line: str = "a.py:3", call: str = "tc::exp") -> str:
    return f"""extern "C" int kernel_{name}(void** pointers, const int64_t* sizes, int threads) {{
    // {line}: {y} = exp({x})
    const float* __restrict {x} = (const float*)pointers[0];
    float* __restrict {y} = (float*)pointers[1];
    #pragma omp parallel for num_threads(threads)
    for (int64_t i = 0; i < sizes[0]; i++) {y}[i] = {call}({x}[i]);
    return 0;
}}"""


def test_names_and_comments_do_not_matter() -> None:
    assert canonical_cpp(function(), PRELUDE) == canonical_cpp(function("g", "hidden", "out", "b.py:9"), PRELUDE)


@pytest.mark.parametrize(
    "old,new",
    [
        ("const float*", "const double*"),
        ("tc::exp", "tc::stdint"),
        ("i < sizes", "i <= sizes"),
        ("exp(x[i])", "exp(y[i])"),
        ("parallel for", "simd"),
        ("i = 0", "i = 1"),
        ("exp(x[i])", "exp(x[i] * 2.0f)"),
        ("2.0f", "2.0e0f"),
    ],
)
def test_other_code_is_no_twin(old: str, new: str) -> None:
    text = function(call="2.0f * tc::exp")
    assert old in text
    assert canonical_cpp(text, PRELUDE) != canonical_cpp(text.replace(old, new), PRELUDE)


def test_a_variable_called_like_a_function_of_the_prelude() -> None:
    """Such a name stays: the functions that are called may differ."""
    prelude = PRELUDE + "namespace tc { static inline float log(float v) { return -v; } }"
    one, two = function(x="exp"), function(x="log", call="tc::log")
    assert canonical_cpp(one, prelude) != canonical_cpp(two, prelude)


@needs_compiler
def test_several_units_make_one_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tinycompile.runtime.cpp_build._UNIT_LENGTH", 100)
    monkeypatch.setattr("os.cpu_count", lambda: 3)
    library = load(compile_functions(PRELUDE, [function(f"f{i}") for i in range(7)], cpu_target(), tmp_path))
    assert len(list(tmp_path.glob("*.o"))) == 3
    data, out = (ctypes.c_float * 4)(1, 2, 3, 4), (ctypes.c_float * 4)()
    pointers = (ctypes.c_void_p * 2)(ctypes.addressof(data), ctypes.addressof(out))
    for i in range(7):
        out[:] = [0] * 4
        assert library[f"kernel_f{i}"](pointers, (ctypes.c_int64 * 1)(4), 2) == 0
        assert list(out) == [1, 2, 3, 4]


@needs_compiler
def test_an_error_in_one_unit_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tinycompile.runtime.cpp_build._UNIT_LENGTH", 100)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    with pytest.raises(BackendError, match="nonsense"):
        compile_functions(PRELUDE, [function(), function("g", call="nonsense")], cpu_target(), tmp_path)


@pytest.mark.parametrize(
    "vendor,family,foresees",
    [
        ("GenuineIntel", "6", False),
        ("AuthenticAMD", "25", True),
        ("AuthenticAMD", "26", False),
        ("AuthenticAMD", "unknown", True),
        ("HygonGenuine", "24", True),
        ("", "", True),
    ],
)
def test_which_processors_are_asked_for_each_line(vendor: str, family: str, foresees: bool) -> None:
    text = (
        f"processor\t: 0\nvendor_id\t: {vendor}\ncpu family\t: {family}\nflags\t\t: fpu vme\n\nprocessor\t: 1\n"
        if vendor
        else ""
    )
    assert _foresees(text) is foresees
