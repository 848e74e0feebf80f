"""Launching compiled Triton kernels with little host time.

``kernel[grid](...)`` binds, specialises and looks up on every call (17 us). Here the kernel is compiled for one signature, so a
launch is one call of Triton's C launcher with packed metadata and raw pointers. The launcher's calling convention differs by
Triton version; each one known has an entry in ``ADAPTERS``. Where none fits, ``CompiledKernel.run`` is used, and if even that
fails on the first call, Triton's own ``kernel[grid]``; both with a logged reason.
"""

from __future__ import annotations

import contextvars
import functools
import hashlib
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tinycompile.base import expr as ex
from tinycompile.base import torch_private
from tinycompile.base.errors import BackendError
from tinycompile.base.expr import Dim
from tinycompile.base.logs import log
from tinycompile.ir.source import Config, KernelSource
from tinycompile.runtime import overlap
from tinycompile.runtime.inlined import Launch
from tinycompile.runtime.recording import recording

Launcher = Callable[..., Any]


def _run_prefix(kernel: Any) -> tuple[Callable[..., Any], str, dict[str, Any]]:
    """``CompiledKernel.run``: stable from 3.2 to 3.9, in Python for a part of the way."""
    return kernel.run, "stream, function, metadata, None, None, None", {}


def _direct_36(kernel: Any) -> tuple[Callable[..., Any], str, dict[str, Any]]:
    """3.5 to 3.6: the C function takes all arguments flat."""
    launcher = kernel.run
    names = {"cooperative": launcher.launch_cooperative_grid, "pdl": launcher.launch_pdl}
    return launcher.launch, "stream, function, cooperative, pdl, None, None, metadata, None, None, None", names


def _direct_39(kernel: Any) -> tuple[Callable[..., Any], str, dict[str, Any]]:
    """3.9: one C function for all kernels; annotations and a packed signature say how to read the tuple of arguments."""
    launcher = kernel.run
    names = {
        "cooperative": launcher.launch_cooperative_grid,
        "pdl": launcher.launch_pdl,
        "annotations": launcher.arg_annotations,
        "signature": launcher.kernel_signature,
    }
    prefix = "stream, function, cooperative, pdl, metadata, None, None, None, None, None, annotations, signature"
    return launcher.launch, prefix, names


# By (major, minor): how to call, and whether the kernel's arguments go as one tuple.
ADAPTERS: dict[tuple[int, int], tuple[Callable[[Any], tuple[Callable[..., Any], str, dict[str, Any]]], bool]] = {
    (3, 5): (_direct_36, False),
    (3, 6): (_direct_36, False),
    (3, 9): (_direct_39, True),
}


def grid_text(grid: tuple[Dim, ...], constants: dict[str, int]) -> list[str]:
    """The three grid sizes as Python over size arguments."""
    sizes = [str(ex.substitute(g, constants)) for g in grid]
    return sizes + ["1"] * (3 - len(sizes))


def make_launcher(source: KernelSource, config: Config, kernel: Any) -> Launcher:
    """A launcher of one compiled configuration, called as ``launcher(stream, *tensors_and_sizes)``.

    Loads the binary on the current device. Tensors must be on it; a grid of size 0 is not launched."""
    static = static_launcher(source, config, kernel)
    if static is not None:
        return static
    kernel._init_handles()
    fast = _adapted(source, config, kernel)
    if fast is None:
        fast = _generate(source, config, kernel, *_run_prefix(kernel), packed=False)
    launcher = _Guarded(source, config, kernel, fast).first
    return _allocating(launcher, kernel) if getattr(kernel.metadata, "global_scratch_size", 0) else launcher


def _allocating(launcher: Launcher, kernel: Any) -> Launcher:
    """Through Triton's launcher, for a kernel that needs memory of its own (tensor descriptors lie there): Triton asks the
    allocator of the context, so that is a copy of the caller's, whose own allocator stays."""
    import triton

    def allocate(size: int, alignment: int, stream: int | None) -> torch.Tensor:
        return torch_private.empty_strided_cuda((size,), (1,), torch.uint8)

    def launch(stream: int, *args: Any) -> None:
        context = contextvars.copy_context()
        context.run(triton.set_allocator, allocate)
        context.run(launcher, stream, *args)

    launch.kernel = kernel  # type: ignore[attr-defined]  # keeps the binary's files findable for the disk cache
    return launch


# How torch's launcher reads an argument, by Triton's signature type.
_STATIC_TYPES = {"int32": "i", "int64": "l"}


def static_launcher(source: KernelSource, config: Config, kernel: Any) -> Launcher | None:
    """Through torch's own launcher of cubins, where this build has it: Triton's needs a C compiler run for each new
    signature."""
    torch_launcher = torch_private.static_launcher
    metadata = kernel.metadata
    profiled, room = (getattr(metadata, f"{kind}_scratch_size", 0) for kind in ("profile", "global"))
    if torch_launcher is None or profiled or getattr(metadata, "num_ctas", 1) != 1 or getattr(metadata, "launch_pdl", False):
        return None
    cubin = next(path for name, path in kernel.metadata_group.items() if name.endswith(".cubin"))
    try:
        function = _loaded(torch_launcher._load_kernel, kernel, str(cubin))
    except (RuntimeError, TypeError) as error:
        log("kernels", f"{source.name}: torch's launcher does not load it ({error}); Triton's is used")
        return None
    scratch = sum(hasattr(metadata, f"{kind}_scratch_size") for kind in ("global", "profile"))
    types = "".join("O" if a.is_tensor else _STATIC_TYPES[a.dtype] for a in source.args) + "O" * scratch
    names = {"run": torch_launcher._launch_kernel, "function": function, "types": types}
    run = "run"
    if source.overlaps:
        names |= {"overlap": overlap.launch, "recording": recording}
        run = "(overlap if recording.on else run)"
    numbers = f"{metadata.num_warps}, {metadata.shared}"
    memory = ["memory.data_ptr(), " if room else "None, ", "None, "][:scratch]  # of Triton's own, then of its profiler
    call = f"{run}(function, {{x}}, {{y}}, {{z}}, {numbers}, types, ({{args}}{''.join(memory)}), stream)"
    launch = _write(source, config, call, names, room)
    launch.kernel = kernel  # type: ignore[attr-defined]  # keeps the binary's files findable for the disk cache
    return launch


_functions: dict[tuple[Any, ...], int] = {}  # for good: torch never unloads what it has loaded


def _loaded(load: Callable[..., tuple[Any, ...]], kernel: Any, cubin: str) -> int:
    """The kernel's function on the current device. Kernels that differ in names alone share it: of a model's 292 kernels 29."""
    metadata, device = kernel.metadata, torch.cuda.current_device()
    code = hashlib.sha256(kernel.asm["cubin"]).digest()
    key = load, code, metadata.name, metadata.shared, device
    if key not in _functions:
        _functions[key] = load(cubin, metadata.name, metadata.shared, device)[-3]
    return _functions[key]


def _adapted(source: KernelSource, config: Config, kernel: Any) -> Launcher | None:
    """The direct launcher for this Triton version, or None with a logged reason."""
    import triton

    version = tuple(int(p) for p in re.findall(r"\d+", triton.__version__)[:2])
    if version not in ADAPTERS:
        log("kernels", f"{source.name}: no direct launcher for Triton {triton.__version__}; CompiledKernel.run is used")
        return None
    build, packed = ADAPTERS[version]
    metadata = kernel.metadata
    scratch = getattr(metadata, "global_scratch_size", 0) or getattr(metadata, "profile_scratch_size", 0)
    if scratch or getattr(metadata, "num_ctas", 1) != 1:
        log("kernels", f"{source.name}: needs scratch memory or clusters; CompiledKernel.run is used")
        return None
    try:
        return _generate(source, config, kernel, *build(kernel), packed=packed)
    except AttributeError as error:
        log("kernels", f"{source.name}: Triton {triton.__version__} is not as expected ({error}); CompiledKernel.run is used")
        return None


def _generate(
    source: KernelSource, config: Config, kernel: Any, run: Callable[..., Any], prefix: str, names: dict[str, Any], packed: bool
) -> Launcher:
    """A launching function that goes through Triton's launcher."""
    constants = "".join(f"{value}, " for _, value in config.constants)
    arguments = f"({{args}}{constants})" if packed else f"{{args}}{constants}"
    names = {"run": run, "function": kernel.function, "metadata": kernel.packed_metadata, **names}
    return _write(source, config, f"run({{x}}, {{y}}, {{z}}, {prefix}, {arguments})", names)


def _write(source: KernelSource, config: Config, call: str, names: dict[str, Any], room: int = 0) -> Launcher:
    """Write and compile a launching function: everything constant is a literal. ``call`` has places for ``x``, ``y``,
    ``z`` and ``args``. ``room``: bytes of memory for each program, which ``call`` names ``memory``."""
    parameters = [f"a{i}" for i in range(len(source.args))]
    symbols = {a.name: p for a, p in zip(source.args, parameters, strict=True) if a.kind == "size"}
    holder = next((p for a, p in zip(source.args, parameters, strict=True) if a.kind == "counters"), "")
    held = {"counters": "ready.data_ptr()", "spare": "spare.data_ptr()", "size": "{}"}
    values = [held.get(a.kind, "{}.data_ptr()").format(p) for a, p in zip(source.args, parameters, strict=True)]
    x, y, z = (_rename(text, symbols) for text in _grid_over_args(source, dict(config.constants)))
    guard = "" if x.isdigit() and int(x) > 0 else "    if x <= 0: return\n"
    launched = functools.partial(call.format, y=y, z=z, args="".join(f"{v}, " for v in values))
    call = launched(x="x")
    if holder:  # the set that one launch clears is the next one's: no other launch comes between asking and launching
        count = next(_rename(str(a.value), symbols) for a in source.args if a.kind == "counters")
        guarded = f"        try: {call}\n        except BaseException:\n            {holder}.held.clear()\n            raise"
        call = f"with {holder}.lock:\n        ready, spare = {holder}({count})\n{guarded}"
    if room:
        call = f"memory = empty((x * {y} * {z} * {room},), (1,), byte)\n    {call}"
    text = f"def launch(stream, {', '.join(parameters)}):\n    x = {x}\n{guard}    {call}\n"
    namespace = {"min": min, "max": max, "empty": torch_private.empty_strided_cuda, "byte": torch.uint8, **names}
    exec(compile(text, f"<launch {source.name}>", "exec"), namespace)
    launch = namespace["launch"]
    if not (guard or holder or room):
        launch.inlined = Launch(launched(x=x), tuple(parameters), namespace)
    return launch


def _grid_over_args(source: KernelSource, constants: dict[str, int]) -> list[str]:
    known = {a.name for a in source.args if a.kind == "size"}
    free = {s.name for g in source.grid for s in ex.symbols(g)} - known - set(constants)
    if free:
        raise BackendError(f"kernel {source.name}: its grid needs {sorted(free)}, which are not among its size arguments")
    return grid_text(source.grid, constants)


def _rename(text: str, names: dict[str, str]) -> str:
    return re.sub(r"[A-Za-z_]\w*", lambda m: names.get(m.group(), m.group()), text)


class _Guarded:
    """The first launch is checked: a calling convention that is not as expected fails before anything runs on the device."""

    def __init__(self, source: KernelSource, config: Config, kernel: Any, fast: Launcher) -> None:
        self.source, self.config, self.kernel, self.run = source, config, kernel, fast
        self.checked = False

    def first(self, stream: int, *args: Any) -> None:
        """Launch; after one success this is the fast path itself with one test in front."""
        if self.checked:
            self.run(stream, *args)
            return
        try:
            self.run(stream, *args)
        except (TypeError, SystemError, AttributeError) as error:
            log("kernels", f"{self.source.name}: direct launch failed ({error}); kernel[grid] is used")
            self.run = self.slow
            self.run(stream, *args)
        self.checked = True

    def slow(self, stream: int, *args: Any) -> None:
        """Triton's public way."""
        constants = dict(self.config.constants)
        sizes = {a.name: v for a, v in zip(self.source.args, args, strict=True) if a.kind == "size"}
        grid = tuple(ex.evaluate(g, {**sizes, **constants}) for g in self.source.grid)
        if all(g > 0 for g in grid):
            self._public((*grid, 1, 1)[:3], args, sizes, stream)

    def _public(self, grid: tuple[int, ...], args: Sequence[Any], sizes: dict[str, int], stream: int) -> None:
        launch = functools.partial(self.kernel[grid], stream=stream)
        constants = [value for _, value in self.config.constants]
        places = {a.kind: i for i, a in enumerate(self.source.args)}
        if "counters" not in places:
            launch(*args, *constants)
            return
        counters, given = args[places["counters"]], list(args)
        with counters.lock:
            count = ex.evaluate(self.source.args[places["counters"]].value or 0, sizes)
            given[places["counters"]], given[places["spare"]] = counters(count)
            try:
                launch(*given, *constants)
            except BaseException:  # nothing cleared the spare set
                counters.held.clear()
                raise
