"""``python -m tinycompile doctor``: what was found on this machine, what it means, and which backend will run."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import torch

from tinycompile.base import torch_private
from tinycompile.base.config import config
from tinycompile.capture.bytecode import SUPPORTED
from tinycompile.runtime import cpp_build
from tinycompile.runtime.cache import DiskCache
from tinycompile.terminal import columns, size, title

TRITON_TESTED = ((3, 6), (3, 9))


@dataclass(frozen=True)
class Finding:
    """``state``: ``ok``, ``missing`` (something is worked around), ``wrong`` (tinycompile can't work)."""

    what: str
    found: str
    state: str
    means: str


def run() -> int:
    """Print all findings and what follows from them; 0 unless something is wrong."""
    findings = list(look())
    print(title("tinycompile doctor") + "\n")
    print(columns([(f.what, f.state, f.found) for f in findings], ("what", "state", "found")))
    print("\n" + title("what it means", "-"))
    print("\n".join(f"* {f.what}: {f.means}" for f in findings))
    print("\n" + title("so", "-"))
    print("\n".join(conclusions(findings)))
    return 1 if any(f.state == "wrong" for f in findings) else 0


def look() -> Iterator[Finding]:
    """Every check, in the order in which things depend on each other."""
    yield _python()
    yield Finding("torch", torch.__version__, "ok", "storage, library kernels, and eager mode")
    yield _fast_paths()
    yield _triton()
    yield _cuda()
    yield _cpp_compiler()
    yield _c_compiler()
    yield _python_h()
    yield _cache()
    yield _settings()


def conclusions(findings: list[Finding]) -> list[str]:
    """Which backend runs what."""
    state = {f.what: f.state for f in findings}
    if state["Python"] == "wrong":
        return ["Functions run eagerly: this Python's bytecode is not known to tinycompile."]
    launcher = state["C compiler"] == state["Python.h"] == "ok"
    if state["CUDA device"] == "ok" and state["Triton"] == "ok":
        cuda = "Triton kernels." if launcher else "Triton kernels, where Triton gets by without a C compiler and Python.h."
    elif state["CUDA device"] == "ok":
        cuda = "op by op, for want of Triton."
    else:
        cuda = "none here; Triton kernels are generated all the same, and can be read (`f.source('triton')`)."
    cpp = "C++ kernels." if state["C++ compiler"] == "ok" else "op by op, for want of a C++ compiler; the answers are the same."
    return [f"CUDA tensors: {cuda}", f"CPU tensors:  {cpp}"]


def _python() -> Finding:
    known = sys.version_info[:2] in SUPPORTED and platform.python_implementation() == "CPython"
    versions = ", ".join(f"{major}.{minor}" for major, minor in SUPPORTED)
    means = "functions are captured from its bytecode" if known else f"capture knows the bytecode of CPython {versions} only"
    return Finding(
        "Python", f"{platform.python_implementation()} {platform.python_version()}", "ok" if known else "wrong", means
    )


def _fast_paths() -> Finding:
    ways = torch_private.in_use()
    absent = ", ".join(name for name, there in ways.items() if not there)
    found = f"{sum(ways.values())} of {len(ways)}" + (f", without {absent}" if absent else "")
    return Finding(
        "fast paths", found, "ok", "private ways into this build of torch; where one is absent, the public one is taken"
    )


def _triton() -> Finding:
    try:
        version = metadata.version("triton")
    except metadata.PackageNotFoundError:
        return Finding("Triton", "not installed", "missing", "no kernels on a GPU, no PTX; `pip install triton` (Linux only)")
    pair = tuple(int(part) for part in version.split(".")[:2])
    if not TRITON_TESTED[0] <= pair <= TRITON_TESTED[1]:
        return Finding("Triton", version, "ok", "not a tested version (3.6 to 3.9): launches take Triton's own, slower way")
    return Finding("Triton", version, "ok", "compiles GPU kernels; without a GPU it still makes PTX and machine code to read")


def _cuda() -> Finding:
    if not torch.cuda.is_available():
        built = f"torch is built for CUDA {torch.version.cuda}" if torch.version.cuda else "torch is built without CUDA"
        return Finding("CUDA device", "none", "missing", f"{built} and sees no device: there is nothing to run GPU kernels on")
    p = torch.cuda.get_device_properties(0)
    found = (
        f"{torch.cuda.device_count()} x {p.name}, sm_{p.major}{p.minor}, {p.multi_processor_count} SMs, {size(p.total_memory)}"
    )
    return Finding("CUDA device", found, "ok", "CUDA tensors get Triton kernels")


def _cpp_compiler() -> Finding:
    path = cpp_build.compiler()
    if path is None:
        return Finding(
            "C++ compiler", "none", "missing", "no g++ or clang++ on the PATH: functions on CPU tensors run op by op"
        )
    target = cpp_build.cpu_target()
    means = f"CPU tensors get C++ kernels for {target.arch} on {target.units} threads"
    return Finding("C++ compiler", f"{path}: {_version_line(path)}", "ok", means)


def _c_compiler() -> Finding:
    path = os.environ.get("CC") or next((found for name in ("gcc", "clang", "cc") if (found := shutil.which(name))), None)
    means = "Triton builds small helpers with it the first time that it meets a GPU"
    return Finding("C compiler", "none", "missing", means) if path is None else Finding("C compiler", path, "ok", means)


def _python_h() -> Finding:
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if header.exists():
        return Finding("Python.h", str(header), "ok", "those helpers include it")
    return Finding("Python.h", "not found", "missing", "those helpers include it; Debian calls its package python3-dev")


def _cache() -> Finding:
    cache = DiskCache(config.cache_dir)
    if not config.disk_cache:
        return Finding("cache folder", "switched off", "ok", "config.disk_cache is False: every process compiles anew")
    if problem := cache.problem():
        means = f"every process compiles anew ({problem}); TINYCOMPILE_CACHE_DIR names another folder"
        return Finding("cache folder", str(cache.root), "missing", means)
    entries = cache.ls()
    found = f"{cache.root}: {len(entries)} entries, {size(sum(entry.size for entry in entries))}"
    return Finding("cache folder", found, "ok", "compiled code is kept there; `python -m tinycompile cache clear` empties it")


def _settings() -> Finding:
    names = sorted(name for name in os.environ if name.startswith("TINYCOMPILE_"))
    found = ", ".join(f"{name}={os.environ[name]}" for name in names) or "none"
    return Finding(
        "settings", found, "ok", "environment variables that tinycompile reads; `tinycompile.config` shows the result"
    )


def _version_line(path: str) -> str:
    try:
        answer = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return f"does not run ({error})"
    return answer.stdout.splitlines()[0]
