"""Triton's interpreter in a process of its own, so that kernels run on CPU tensors without a GPU.

Interpreting patches ``triton.language`` for the whole process, breaks later compiles there, and is not thread-safe. So one
single-threaded child (TRITON_INTERPRET=1 from its start) runs kernels on shared memory: the parent copies the tensors' bytes
in, sends one line of JSON, waits for one line back, and copies changed bytes out. A child that died is started again on the
next call; it ends when the parent does, for its input then closes.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import json
import mmap
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import IO, Any

import torch

from tinycompile.base import expr as ex
from tinycompile.base.errors import BackendError, KernelError
from tinycompile.ir.source import Config, KernelArg, KernelSource

_ALIGN = 64
_CHILD = "tinycompile.runtime.interpreter_child"


@dataclass(frozen=True, slots=True)
class Span:
    """The bytes that a tensor covers: from its first element to its last in memory."""

    address: int
    size: int
    offset: int  # in the shared block

    @classmethod
    def of(cls, tensor: torch.Tensor, offset: int) -> Span:
        """The span of a CPU tensor."""
        steps = [(n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)]
        count = 0 if tensor.numel() == 0 else 1 + sum(steps)
        return cls(tensor.data_ptr(), count * tensor.element_size(), offset)


class InterpreterWorker:
    """The parent's end. Calls are serialised by a lock; any thread may call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child: subprocess.Popen[str] | None = None
        self._owner = 0
        self._memory: mmap.mmap | None = None
        self._file: IO[bytes] | None = None
        self._errors: IO[str] | None = None
        self._known: set[str] = set()

    def run(self, source: KernelSource, args: Sequence[Any], config: Config | None = None) -> None:
        """Run ``source`` on CPU tensors and sizes (in the order of its arguments), writing its results into them.

        Raises BackendError with the kernel's traceback when it fails, or when the child dies."""
        config = config or source.configs[0]
        grid = _grid(source, args, config)
        if any(g == 0 for g in grid):
            return
        with self._lock:
            self._ensure_child()
            spans, described = self._describe(args)
            memory = self._share(spans)
            for span in spans:
                ctypes.memmove(memory + span.offset, span.address, span.size)
            request = {
                "name": source.name,
                "args": described,
                "constants": dict(config.constants),
                "grid": grid,
                "text": source.text,
            }
            self._exchange(request, source.name)
            for span in spans:
                if ctypes.string_at(span.address, span.size) != ctypes.string_at(memory + span.offset, span.size):
                    ctypes.memmove(span.address, memory + span.offset, span.size)

    def close(self) -> None:
        """End the child."""
        child, self._child = self._child, None
        if child is not None and self._owner == os.getpid():
            with contextlib.suppress(OSError):
                child.stdin.close()  # type: ignore[union-attr]
            child.kill()
            child.wait()

    # the child ------------------------------------------------------------------------------------------------------------

    def _ensure_child(self) -> None:
        if self._child is not None and self._owner == os.getpid() and self._child.poll() is None:
            return
        self._file = tempfile.TemporaryFile(dir="/dev/shm" if os.path.isdir("/dev/shm") else None)  # noqa: SIM115
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - both live as long as the child
        self._memory = None
        environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        self._child = subprocess.Popen(
            [sys.executable, "-m", _CHILD, str(self._file.fileno())], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=self._errors, text=True, env=environment, pass_fds=(self._file.fileno(),),
        )  # fmt: skip
        self._owner = os.getpid()
        atexit.register(self.close)

    def _exchange(self, request: dict[str, Any], name: str) -> None:
        assert self._child is not None and self._child.stdin is not None and self._child.stdout is not None
        try:
            self._child.stdin.write(json.dumps(request) + "\n")
            self._child.stdin.flush()
            answer = self._child.stdout.readline()
        except OSError:
            answer = ""
        if not answer:
            code = self._child.wait()
            self._child = None
            raise BackendError(f"Triton's interpreter died (exit status {code}) in kernel {name}:\n{self._last_words()}")
        reply = json.loads(answer)
        if "index out of range" in reply.get("error", ""):
            raise KernelError(f"kernel {name}: an index is out of range")
        if "error" in reply:
            raise BackendError(f"Triton's interpreter failed in kernel {name}:\n{reply['error']}")

    def _last_words(self) -> str:
        assert self._errors is not None
        self._errors.seek(0)
        return self._errors.read()[-2000:]

    # memory ---------------------------------------------------------------------------------------------------------------

    def _describe(self, args: Sequence[Any]) -> tuple[list[Span], list[dict[str, Any]]]:
        """Tensors that overlap in memory must overlap in the shared block too, so spans are merged by address."""
        tensors = [a for a in args if isinstance(a, torch.Tensor)]
        merged = _merge([Span.of(t, 0) for t in tensors])
        described: list[dict[str, Any]] = []
        for arg in args:
            if not isinstance(arg, torch.Tensor):
                described.append({"size": int(arg)})
                continue
            home = next((s for s in merged if s.address <= arg.data_ptr() < s.address + s.size), None)
            offset = 0 if home is None else home.offset + arg.data_ptr() - home.address
            described.append(
                {
                    "dtype": str(arg.dtype).removeprefix("torch."),
                    "offset": offset,
                    "shape": list(arg.shape),
                    "strides": list(arg.stride()),
                }
            )
        return merged, described

    def _share(self, spans: list[Span]) -> int:
        """The address of a shared block that is large enough."""
        assert self._file is not None
        need = max((s.offset + s.size for s in spans), default=0) + _ALIGN
        if self._memory is None or len(self._memory) < need:
            size = max(1 << 20, 1 << (need - 1).bit_length())
            os.ftruncate(self._file.fileno(), size)
            self._memory = mmap.mmap(self._file.fileno(), size)
        return ctypes.addressof(ctypes.c_char.from_buffer(self._memory))


def _merge(spans: list[Span]) -> list[Span]:
    """Disjoint spans, each with its place in the block; the low bits of addresses are kept, so alignment is."""
    merged: list[Span] = []
    offset = 0
    for span in sorted((s for s in spans if s.size), key=lambda s: s.address):
        if merged and span.address < merged[-1].address + merged[-1].size:
            last = merged.pop()
            size = max(last.size, span.address + span.size - last.address)
            merged.append(Span(last.address, size, last.offset))
        else:
            merged.append(Span(span.address, span.size, offset + span.address % _ALIGN))
        offset = -(-(merged[-1].offset + merged[-1].size) // _ALIGN) * _ALIGN
    return merged


def _grid(source: KernelSource, args: Sequence[Any], config: Config) -> list[int]:
    sizes = {a.name: v for a, v in zip(source.args, args, strict=True) if a.kind == "size"}
    return [ex.evaluate(g, {**sizes, **dict(config.constants)}) for g in source.grid]


@functools.cache
def worker() -> InterpreterWorker:
    """The worker of this process."""
    return InterpreterWorker()


def interpreted(source: KernelSource) -> Callable[..., None]:
    """A launcher ``launch(stream_ignored, *tensors_and_sizes)`` that runs ``source`` in the worker. Counters are made here."""

    def launch(stream: int, *args: Any) -> None:
        sizes = {a.name: v for a, v in zip(source.args, args, strict=True) if a.kind == "size"}
        worker().run(source, [_counted(a, v, sizes) for a, v in zip(source.args, args, strict=True)])

    return launch


def _counted(arg: KernelArg, given: Any, sizes: dict[str, int]) -> Any:
    """An argument; zeros for counters."""
    if arg.kind not in ("counters", "spare"):
        return given
    return torch.zeros(ex.evaluate(arg.value or 0, sizes), dtype=torch.int32)
