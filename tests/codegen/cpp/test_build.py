"""Compiler, library and launcher: what fails says why, and a call is cheap."""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path

import pytest
import torch

from tests.codegen.cpp.harness import Compiled
from tests.codegen.cpp.test_indexing import CASES as INDEXING
from tests.codegen.cpp.test_indexing import numbers
from tests.codegen.cpp.test_reductions import layer_norm, softmax
from tests.codegen.triton.nests import Build, Case
from tinycompile.base.errors import BackendError
from tinycompile.codegen.cpp.emit import emit_kernel, prelude
from tinycompile.ir.graph import Location
from tinycompile.runtime import cpp_build
from tinycompile.runtime.cpp_build import compile_cpp, compiler, cpu_target, load

needs_compiler = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
pytestmark = [pytest.mark.cpu]


def add_one(name: str, n: int = 1024, lines: dict[str, Location] | None = None) -> Case:
    b = Build(name, i=n)
    b.origin = "y"
    b.input("x", numbers(1, n)[0])
    b.output("out", (n,), torch.float32)
    b.store("out", b.op("add", b.load("x", b.axis("i")), b.const(1.0)), b.axis("i"))
    return b.case(lines)


@needs_compiler
def test_compile_error_keeps_the_compilers_words(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match="expected"):
        compile_cpp("int broken(", cpu_target(), tmp_path)


def test_no_compiler_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cpp_build, "compiler", lambda: None)
    with pytest.raises(BackendError, match="no C\\+\\+ compiler"):
        compile_cpp("", cpu_target(), tmp_path)


def test_a_library_that_is_none_does_not_load(tmp_path: Path) -> None:
    path = tmp_path / "kernels.so"
    path.write_bytes(b"no library")
    with pytest.raises(BackendError, match="does not load"):
        load(path)


def test_target_is_of_this_machine() -> None:
    target = cpu_target()
    assert target.language == "cpp" and target.units == torch.get_num_threads() and target.vector in (16, 32, 64)


@needs_compiler
@pytest.mark.parametrize("arch", ["generic", "avx2", "avx512"])
def test_every_x86_target_compiles(arch: str, tmp_path: Path) -> None:
    """Compiled, not run: this machine may lack the instructions."""
    if cpu_target().arch not in ("avx2", "avx512"):
        pytest.skip("no x86")
    case = softmax("softmax", numbers(4, 1000), 1)
    target = cpu_target().__class__("cpp", arch, 2, 1 << 20, vector=16)
    source = emit_kernel(case.plan.kernels[0], case.plan, target, "softmax")
    assert compile_cpp(prelude(target) + source.text, target, tmp_path).stat().st_size > 0


@needs_compiler
def test_small_kernel_compiles_fast(tmp_path: Path) -> None:
    """A layer norm, the best of three: the machine may be busy."""
    case, target = layer_norm("norm", numbers(8, 512), numbers(8, 512)), cpu_target()
    text = prelude(target) + emit_kernel(case.plan.kernels[0], case.plan, target, "norm").text
    seconds = []
    for i in range(3):
        start = time.perf_counter()
        compile_cpp(f"{text}// {i}", target, tmp_path)
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 1.0


@needs_compiler
def test_launch_is_cheap(tmp_path: Path) -> None:
    kernels = Compiled([add_one("add_one")], tmp_path)
    x, out, launch = kernels.cases["add_one"].inputs[0], torch.empty(1024), kernels.launchers["add_one"]
    best = float("inf")
    for _ in range(50):
        start = time.perf_counter()
        for _ in range(100):
            launch(0, x, out)
        best = min(best, (time.perf_counter() - start) / 100)
    assert torch.equal(out, x + 1)
    assert best < 10e-6, f"{best * 1e6:.1f} microseconds a launch"


@needs_compiler
def test_many_python_threads_at_once(tmp_path: Path) -> None:
    kernels = Compiled([softmax("softmax", torch.randn(64, 1000), 1)], tmp_path)
    launch = kernels.launchers["softmax"]
    inputs = [torch.randn(64, 1000) for _ in range(8)]
    outputs = [torch.empty(64, 1000) for _ in range(8)]

    def work(i: int) -> None:
        for _ in range(20):
            launch(0, inputs[i], outputs[i])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for x, y in zip(inputs, outputs):
        torch.testing.assert_close(y, x.softmax(1))


@needs_compiler
@pytest.mark.parametrize("name", ["exp", "long", "main", "malloc", "new", "tc", "printf"])
def test_names_that_c_has_taken(name: str, tmp_path: Path) -> None:
    kernels = Compiled([add_one(name)], tmp_path)
    assert torch.equal(kernels.run(name)[0], kernels.cases[name].inputs[0] + 1)


def test_code_names_the_users_line(tmp_path: Path) -> None:
    """The user's source line stands above the statements that it became."""
    user = tmp_path / "model.py"
    user.write_text("def f(x):\n    y = x + 1\n    return y\n")
    case = add_one("add_one", lines={"y": Location(str(user), 2, "f")})
    source = emit_kernel(case.plan.kernels[0], case.plan, cpu_target(), "add_one")
    assert "// model.py:2  y = x + 1" in source.text
    assert source.lines == (f"{user}:2",)


def test_code_is_the_same_each_time() -> None:
    for case in [*INDEXING.values()][:20]:
        texts = {emit_kernel(case.plan.kernels[0], case.plan, cpu_target(), case.name).text for _ in range(2)}
        assert len(texts) == 1


@needs_compiler
def test_inner_loops_are_vectorised(tmp_path: Path) -> None:
    """GCC says of each loop under a pragma whether it became vector code: all of these must."""
    import subprocess

    if "clang" in str(compiler()) or cpu_target().arch not in ("avx2", "avx512"):
        pytest.skip("reads GCC's report on x86")
    cases = [
        layer_norm("norm", numbers(8, 512), numbers(8, 512)),
        softmax("rows", numbers(8, 512), 1),
        softmax("columns", numbers(64, 512), 0),
        *(INDEXING[n] for n in ("embedding", "padded", "transposed_129_257", "long")),
    ]
    target = cpu_target()
    for case in cases:
        text = prelude(target) + emit_kernel(case.plan.kernels[0], case.plan, target, case.name).text
        path = tmp_path / f"{case.name}.cpp"
        path.write_text(text)
        flags = [*cpp_build._FLAGS, *cpp_build._ARCH_FLAGS[target.arch], "-fopenmp", "-fopt-info-vec-optimized"]
        done = subprocess.run(
            [str(compiler()), *flags, str(path), "-o", "/dev/null"], capture_output=True, text=True, check=True
        )
        vectorised = {int(m) for m in re.findall(rf"{path.name}:(\d+):\d+: optimized: loop vectorized", done.stderr)}
        for first, last, loop in _vector_loops(text):
            if first <= prelude(target).count("\n"):
                continue  # a helper's, which not every kernel calls
            assert any(first <= n <= last for n in vectorised), f"{case.name}: not vectorised:\n{loop}"


def _vector_loops(text: str) -> list[tuple[int, int, str]]:
    """(first line, last line, text) of each loop under "omp simd"."""
    lines, found = text.split("\n"), []
    for i, line in enumerate(lines):
        if line.strip().startswith("#pragma omp simd"):
            indent = len(line) - len(line.lstrip())
            end = next(j for j in range(i + 2, len(lines)) if lines[j] == " " * indent + "}")
            if not (end == i + 3 and lines[i + 2].endswith("= 0.0f;")):  # that one becomes a call of memset
                found.append((i + 1, end + 1, "\n".join(lines[i : end + 1])))
    return found
