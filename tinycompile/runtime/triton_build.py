"""Compiling Triton kernels: for the GPU at hand (``compile_kernel``), and for any without one (``compile_offline``).

A process that has run Triton's interpreter must not compile (interpreting patches ``triton.language`` for good): kernels are
interpreted in a process of their own, see ``interpreter_worker``.
"""

from __future__ import annotations

import concurrent.futures
import functools
import os
import re
import subprocess
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tinycompile.base.errors import BackendError
from tinycompile.ir.source import Config, KernelSource
from tinycompile.runtime import triton_key
from tinycompile.runtime.ahead import Ahead
from tinycompile.runtime.launch import make_launcher
from tinycompile.runtime.modules import load_module
from tinycompile.runtime.twins import TwinKey, twin_key

# Triton's signature types by the name of torch's dtype.
SIGNATURE = {
    "bool": "i1", "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64",
    "uint8": "u8", "uint16": "u16", "uint32": "u32", "uint64": "u64",
    "float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float64": "fp64",
    "float8_e4m3fn": "u8", "float8_e5m2": "u8",
}  # fmt: skip

Launcher = Callable[..., Any]
_hashing, _keeping = threading.Lock(), threading.Lock()
MOST_KEPT = 512  # compiled kernels that a process keeps for twins to come
_compiled: dict[tuple[TwinKey, Config, int], Any] = {}


@dataclass(frozen=True)
class Offline:
    """A kernel compiled without a device. ``registers`` and ``spills`` (bytes of stack; libdevice's float64 sin, cos and tan
    keep a table of 40 there) are per thread, ``shared`` is bytes per block."""

    ptx: str
    cubin: bytes
    registers: int
    spills: int
    shared: int
    num_warps: int

    @functools.cached_property
    def sass(self) -> str:
        """The machine code as text."""
        return _tool("nvdisasm", self.cubin, "-c", "-plr")

    @functools.cached_property
    def listing(self) -> str:
        """The machine code with the source lines that it comes from."""
        return _tool("nvdisasm", self.cubin, "-c", "-gi")


def compile_kernel(source: KernelSource, device_index: int) -> Launcher:
    """Compile the first configuration for a CUDA device and load it. The launcher is called as
    ``launcher(stream, *tensors_and_sizes)``. Raises BackendError."""
    return compile_kernels([source], device_index)[0]


def compile_kernels(sources: Sequence[KernelSource], device_index: int, ahead: Ahead | None = None) -> list[Launcher]:
    """Compile several kernels, the first configuration of each. ``ahead``: some may be under way. Raises BackendError."""
    return [launchers[0] for launchers in compile_candidates([(s, s.configs[:1]) for s in sources], device_index, ahead)]


def begin(source: KernelSource, device_index: int, ahead: Ahead) -> None:
    """Start to compile the first configuration of a kernel, unless that of a twin is there or under way."""
    config, arch = source.configs[0], _arch(device_index)
    key = (twin_key(source), config, arch)
    if key not in ahead.kernels and key not in _compiled:
        ahead.kernels[key] = ahead.submit(_compile, source, config, arch)


def compile_candidates(
    wanted: Sequence[tuple[KernelSource, Sequence[Config]]], device_index: int, ahead: Ahead | None = None
) -> list[list[Launcher]]:
    """A launcher for each configuration wanted of each kernel. Raises BackendError.

    Compiling goes on threads (Triton leaves the interpreter lock while LLVM and ptxas work), once for kernels that differ in
    names alone. ``ahead``: those that were begun are waited for."""
    arch = _arch(device_index)
    flat = [(source, config) for source, configs in wanted for config in configs]
    keys = [(twin_key(source), config, arch) for source, config in flat]
    with _keeping:
        found = {key: _compiled[key] for key in keys if key in _compiled}
    missing = {key: one for key, one in zip(keys, flat, strict=True) if key not in found}
    begun = {} if ahead is None else {key: ahead.kernels[key] for key in missing if key in ahead.kernels}
    found.update((key, job.result()) for key, job in begun.items())
    missing = {key: one for key, one in missing.items() if key not in begun}
    made = parallel(lambda one: _compile(one[0], one[1], arch), list(missing.values()))
    found.update(zip(missing, made, strict=True))
    with _keeping:
        _compiled.update((key, found[key]) for key in (*begun, *missing))
        while len(_compiled) > MOST_KEPT:
            del _compiled[next(iter(_compiled))]
    with torch.cuda.device(device_index):
        return [[make_launcher(s, c, found[twin_key(s), c, arch]) for c in configs] for s, configs in wanted]


@functools.cache
def _arch(device_index: int) -> int:
    major, minor = torch.cuda.get_device_capability(device_index)
    return major * 10 + minor


@functools.lru_cache(maxsize=256)
def compile_offline(source: KernelSource, arch: int, config: Config | None = None) -> Offline:
    """Compile for ``arch`` (80, 90, ...) with no driver. The last 256 are kept, for pages and people ask again. Raises
    BackendError."""
    kernel = _compile(source, config or source.configs[0], arch)
    cubin = kernel.asm["cubin"]
    usage = _tool("cuobjdump", cubin, "-res-usage")
    registers, stack, local = (_number(usage, key) for key in ("REG", "STACK", "LOCAL"))
    return Offline(kernel.asm["ptx"], cubin, registers, max(stack, local), kernel.metadata.shared, kernel.metadata.num_warps)


def parallel(fn: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
    """``fn`` of each, on threads: for what waits for compilers and other processes."""
    if len(items) <= 1:
        return [fn(i) for i in items]
    with concurrent.futures.ThreadPoolExecutor(min(len(items), os.cpu_count() or 1)) as pool:
        return list(pool.map(fn, items))


def ast_source(source: KernelSource, config: Config) -> Any:
    """Triton's description of what to compile: function, signature, constants, divisibility."""
    triton = _triton()
    function = getattr(load_module(source.text, source.name), source.name)
    with _hashing:  # Triton hashes a function and the library functions that it calls when first asked, not thread-safely
        function.cache_key  # noqa: B018
    names = function.arg_names
    constants = dict(config.constants)
    signature = dict.fromkeys(names, "constexpr")
    attributes: dict[tuple[int, ...], list[list[Any]]] = {}
    for position, (name, arg) in enumerate(zip(names, source.args, strict=False)):
        signature[name] = ("*" if arg.is_tensor else "") + SIGNATURE[arg.dtype]
        if arg.aligned:
            attributes[(position,)] = [["tt.divisibility", 16]]
    unknown = [n for n in names[len(source.args) :] if n not in constants]
    if unknown:
        raise BackendError(f"kernel {source.name} has parameters without an argument or constant: {unknown}")
    return triton.compiler.ASTSource(function, signature, constants, attributes)


def compiled_kernel(source: KernelSource, config: Config, files: dict[str, str]) -> Any:
    """Triton's CompiledKernel from its metadata and cubin on disk; nothing is compiled."""
    return _triton().compiler.CompiledKernel(ast_source(source, config), files, source.name)


def _compile(source: KernelSource, config: Config, arch: int) -> Any:
    triton = _triton()
    described = ast_source(source, config)
    target = triton.backends.compiler.GPUTarget("cuda", arch, 32)
    options = {"num_warps": config.num_warps, "num_stages": config.num_stages, "enable_fp_fusion": False}
    if config.max_registers:
        options["maxnreg"] = config.max_registers
    if "tl.device_assert" in source.text:  # assertions exist in debug builds only; integer overflow stays as in C
        options |= {"debug": True, "sanitize_overflow": False}
    try:
        return triton.compile(described, target=target, options=options)
    except Exception as error:  # Triton, LLVM and ptxas raise whatever they like: one kind of ours, with the cause
        raise BackendError(f"Triton could not compile {source.name} for sm_{arch}: {error}") from error


@functools.cache
def _triton() -> Any:
    """Triton, in compiling mode."""
    try:
        import triton
        import triton.backends.compiler
        import triton.compiler
        import triton.runtime.cache
    except ImportError as error:
        raise BackendError(f"Triton is not installed: {error}") from error
    if os.environ.get("TRITON_INTERPRET") == "1":
        raise BackendError("TRITON_INTERPRET=1 is set: this process interprets Triton kernels and cannot compile them")
    triton_key.install(triton)
    return triton


def _tool(name: str, cubin: bytes, *flags: str) -> str:
    """Run one of the CUDA binary tools that Triton ships."""
    folder = os.path.join(os.path.dirname(_triton().__file__), "backends", "nvidia", "bin")
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run([os.path.join(folder, name), *flags, file.name], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BackendError(f"{name} failed: {done.stderr.strip()}")
    return done.stdout


def _number(text: str, key: str) -> int:
    found = re.search(rf"\b{key}:(\d+)", text)
    if found is None:
        raise BackendError(f"cuobjdump did not report {key}")
    return int(found.group(1))
