"""Build, load and call generated C++: a compiler found once, one shared library per plan, one launcher per kernel."""

from __future__ import annotations

import concurrent.futures
import ctypes
import functools
import hashlib
import os
import platform
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from tinycompile.base.errors import BackendError, KernelError
from tinycompile.base.known_tensors import method_of_torchs
from tinycompile.base.target import Target
from tinycompile.ir.source import KernelSource

Launcher = Callable[..., None]

# -ffp-contract=off: a*b + c has two roundings, as in eager. errno and floating-point traps are not looked at, which lets
# comparisons and square roots vectorise; signed zeros, NaNs and infinities keep their meaning. -fno-thread-jumps: GCC 13 gives
# the sides of a choice (`x < 0 ? a : b`) a copy each of what follows, a sum too, and reads totals that so became conditional
# from beyond the array that "omp simd reduction" keeps them in.
_FLAGS = (
    "-O3",
    "-std=c++17",
    "-fPIC",
    "-shared",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fno-strict-aliasing",
    "-fno-thread-jumps",
    "-w",
)

# Flags by name and not -march=native: a cached library must run on every machine that has the same target.
_ARCH_FLAGS = {
    "avx2": ("-mavx2", "-mfma", "-mf16c", "-mbmi2", "-mtune=native"),
    "avx512": (
        *("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx2", "-mfma", "-mf16c", "-mbmi2"),
        *("-mprefer-vector-width=512", "-mtune=native"),
    ),
    "neon": (),
    "generic": (),
}  # fmt: skip
_VECTOR_BYTES = {"avx2": 32, "avx512": 64, "neon": 16, "generic": 16}


@functools.cache
def compiler() -> str | None:
    """The path of a C++ compiler (``$CXX``, else g++, clang++ or c++), or None."""
    candidates = (os.environ.get("CXX"), "g++", "clang++", "c++")
    return next((found for c in candidates if c and (found := shutil.which(c))), None)


@functools.cache
def compiler_version() -> str:
    """The first line of ``--version``: part of the cache key. Empty without a compiler."""
    path = compiler()
    if path is None:
        return ""
    done = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    return done.stdout.partition("\n")[0]


@functools.cache
def cpu_target() -> Target:
    """This machine's CPU. The vector extension is the one that torch's own kernels use (so ``ATEN_CPU_CAPABILITY`` counts)."""
    capability = torch.backends.cpu.get_cpu_capability()
    if capability in ("AVX2", "AVX512"):
        arch = capability.lower()
    else:
        arch = "neon" if platform.machine().lower() in ("arm64", "aarch64") else "generic"
    vector, foresees = _VECTOR_BYTES[arch], _foresees(_text("/proc/cpuinfo"))
    return Target("cpp", arch, torch.get_num_threads(), _l2_bytes(), vector=vector, foresees=foresees)


def _foresees(cpuinfo: str) -> bool:
    """Whether the CPU described so reads long stretches ahead itself: taken for granted but for Intel's, and AMD's
    from family 26 on (Zen 5), where asking for each line was measured to pay."""
    fields = (line.partition(":")[::2] for line in cpuinfo.splitlines())
    about = {key.strip(): value.strip() for key, value in fields}
    vendor, family = about.get("vendor_id", ""), about.get("cpu family", "")
    return vendor != "GenuineIntel" and not (vendor == "AuthenticAMD" and family.isdigit() and int(family) >= 26)


def _l2_bytes() -> int:
    text = _text("/sys/devices/system/cpu/cpu0/cache/index2/size").strip()
    return int(text[:-1]) << (20 if text.endswith("M") else 10) if text else 1 << 20


def _text(path: str) -> str:
    """What the system says of itself in a file; empty where it does not."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError:
        return ""


def compile_cpp(text: str, target: Target, folder: str | Path | None = None) -> Path:
    """Compile a translation unit to a shared library in ``folder`` (default: a private temporary one) and return its path.

    Raises BackendError with the compiler's own words when there is no compiler or it fails."""
    return _made(_folder(folder), [text], target)


def compile_functions(prelude: str, functions: Sequence[str], target: Target, folder: str | Path | None = None) -> Path:
    """The same for functions behind a common prelude, in one library: several units are compiled at once where that pays.

    Raises BackendError as :func:`compile_cpp`."""
    units = _shares(functions, min(os.cpu_count() or 1, sum(map(len, functions)) // _UNIT_LENGTH))
    return _made(_folder(folder), ["\n\n".join([prelude, *unit]) for unit in units], target)


_UNIT_LENGTH = 6000  # characters of kernels in a translation unit, at least: they compile in about the time that one more costs


def _shares(functions: Sequence[str], count: int) -> list[list[str]]:
    """Split into ``count`` parts of about the same length; at least one."""
    shares: list[list[str]] = [[] for _ in range(max(count, 1))]
    for function in sorted(functions, key=len, reverse=True):
        min(shares, key=lambda share: sum(map(len, share))).append(function)
    return shares


def _folder(folder: str | Path | None) -> Path:
    return Path(folder) if folder is not None else Path(tempfile.mkdtemp(prefix="tinycompile-"))


def _made(folder: Path, units: Sequence[str], target: Target) -> Path:
    """The library of some translation units."""
    path = compiler()
    if path is None:
        raise BackendError("no C++ compiler: install g++ or clang++, or set CXX")
    try:
        return _built(path, folder, units, target)
    except OSError as error:
        raise BackendError(f"no library can be made in {folder}: {error}. TMPDIR names another folder") from error


def _built(path: str, folder: Path, units: Sequence[str], target: Target) -> Path:
    stems = [folder / hashlib.sha256(f"{target}\0{unit}".encode()).hexdigest()[:16] for unit in units]
    for stem, unit in zip(stems, units, strict=True):
        stem.with_suffix(".cpp").write_text(unit, encoding="utf-8")
    built = stems[0].with_suffix(".so")
    unfinished = folder / f"{built.stem}.{os.getpid()}.tmp"
    flags = (path, *_FLAGS, *_ARCH_FLAGS[target.arch])
    words = ""
    for threads in _openmp_choices():
        words = _compiled((*flags, threads), stems, unfinished)
        if not words:
            _works.add(threads)
            os.replace(unfinished, built)
            return built
    raise BackendError(f"{path} failed on {stems[0]}.cpp:\n{words[-4000:]}")


def _compiled(command: Sequence[str], stems: Sequence[Path], library: Path) -> str:
    """Run the compiler: on one unit, or on each at once and then to link them. What it said when it failed, else nothing."""
    if len(stems) == 1:
        return _run((*command, f"{stems[0]}.cpp", "-o", str(library)))
    parts = [(*command, "-c", f"{stem}.cpp", "-o", f"{stem}.o") for stem in stems]
    with concurrent.futures.ThreadPoolExecutor(len(stems)) as pool:
        words = next(filter(None, pool.map(_run, parts)), "")
    return words or _run((*command, *(f"{stem}.o" for stem in stems), "-o", str(library)))


def _run(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stderr or f"exit status {done.returncode}"


_works: set[str] = set()  # which way of asking for OpenMP has worked with this compiler


def _openmp_choices() -> tuple[str, ...]:
    """With threads, else (no OpenMP runtime, as with Apple's clang) vectorised loops only."""
    return tuple(_works) or ("-fopenmp", "-fopenmp-simd")


def load(path: str | Path) -> ctypes.CDLL:
    """Load a library that :func:`compile_cpp` made. OpenMP's runtime is the one that torch has loaded already (same soname)."""
    try:
        return ctypes.CDLL(str(path))
    except OSError as e:
        raise BackendError(f"{path} does not load: {e}") from e


def launcher(source: KernelSource, library: ctypes.CDLL, name: str | None = None) -> Launcher:
    """``launch(stream, *tensors_and_sizes)``, in the order of ``source.args``; the stream is not used on the CPU. ``name``: of
    the kernel in the library, where a twin stands for ``source``.

    Raises KernelError when the kernel refuses its input. Holds no state: threads may call it at once (the GIL is released).
    """
    function = library[f"kernel_{name or source.name}"]
    function.restype = ctypes.c_int
    function.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)
    pointers = [f"a{i}" for i, a in enumerate(source.args) if a.kind == "pointer"]
    sizes = [f"a{i}" for i, a in enumerate(source.args) if a.kind == "size"]
    arguments = ", ".join(["stream", *(f"a{i}" for i in range(len(source.args)))])
    packed = f"pack_pointers({', '.join(f'data_ptr({p})' for p in pointers)})"
    numbers = f"pack_sizes({', '.join(sizes)})" if sizes else "None"
    text = f"""def {source.name}({arguments}):
    code = function({packed}, {numbers}, get_num_threads())
    if code:
        refuse(name, code)
"""
    namespace: dict[str, Any] = {
        "function": function,
        "data_ptr": method_of_torchs("data_ptr"),
        "pack_pointers": struct.Struct(f"{len(pointers)}P").pack,
        "pack_sizes": struct.Struct(f"{len(sizes)}q").pack,
        "get_num_threads": torch.get_num_threads,
        "refuse": _refuse,
        "name": source.name,
    }
    exec(compile(text, f"<tinycompile launcher of {source.name}>", "exec"), namespace)
    return namespace[source.name]


# The bits of a kernel's result (see prelude/base.h).
_REASONS = {1: "an index is out of range", 2: "an integer is divided by zero", 4: "an angle is too large"}


def _refuse(name: str, code: int) -> None:
    reasons = [text for bit, text in _REASONS.items() if code & bit]
    raise KernelError(f"kernel {name}: {' and '.join(reasons)}")
