"""What a call's arithmetic takes: its time on tensors that lie in the cache, whatever their size.

All pages of such a tensor are the same few of memory, mapped again and again. So the compiled code is that of the real sizes,
and nothing comes from memory. Results go into tensors given, of the same kind. One thread runs it, for two would write the same
lines, and its own time is taken; cores share arithmetic, so that is divided by the number of threads.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import statistics
import time
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from benchmarks.workloads import tensors

PIECE = 1 << 16  # bytes of memory behind a tensor: those of a call fit into a core's L2
_READ_WRITE, _PRIVATE_ANONYMOUS, _SHARED_FIXED = 0x3, 0x22, 0x11  # of mmap, on Linux


def can_fold() -> bool:
    """Whether the system maps one piece of memory several times for us."""
    return hasattr(os, "memfd_create")


@contextlib.contextmanager
def folded(like: Sequence[Tensor], piece: int = PIECE) -> Iterator[list[Tensor]]:
    """Contiguous tensors of the shapes of ``like``, in whose memory the first ``piece`` bytes of those come again and again.
    They must not be used afterwards."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
    libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    with contextlib.ExitStack() as stack:
        made = []
        for t in like:
            size = -(-max(t.nbytes, 1) // piece) * piece
            start = libc.mmap(None, size, _READ_WRITE, _PRIVATE_ANONYMOUS, -1, 0)
            stack.callback(libc.munmap, start, size)
            _map_again(libc, start, size, piece)
            flat = torch.frombuffer((ctypes.c_char * size).from_address(start), dtype=t.dtype, count=max(t.numel(), 1))
            first = piece // t.itemsize
            flat[: min(first, t.numel())] = t.detach().reshape(-1)[:first]
            made.append(flat[: t.numel()].view(t.shape))
        yield made


def _map_again(libc: ctypes.CDLL, start: int, size: int, piece: int) -> None:
    """Put one piece of memory behind all of an address range."""
    file = os.memfd_create("folded")
    try:
        os.ftruncate(file, piece)
        for at in range(start, start + size, piece):
            if libc.mmap(at, piece, _READ_WRITE, _SHARED_FIXED, file, 0) != at:
                raise OSError(ctypes.get_errno(), "mmap")
    finally:
        os.close(file)


def written_to(fn: Callable[..., Any]) -> Callable[..., None]:
    """``fn`` with its results written into tensors given first. Each has its own code object, which compilers tell apart."""

    def into(results: Sequence[Tensor], inputs: Sequence[Any]) -> None:
        made = fn(*inputs)
        made = (made,) if isinstance(made, Tensor) else made
        for i in range(len(results)):
            results[i].copy_(made[i])

    return types.FunctionType(into.__code__.replace(), into.__globals__, "into", None, into.__closure__)


def cached_seconds(
    compilers: Mapping[str, Callable[[Any], Any]], fn: Callable[..., Any], inputs: Sequence[Tensor], seconds: float
) -> dict[str, float]:
    """The median time of ``fn``, compiled by each, on folded copies of ``inputs``, over the number of threads; in turns."""
    threads = torch.get_num_threads()
    times: dict[str, list[float]] = {who: [] for who in compilers}
    with folded(tensors(fn(*inputs))) as results, folded(inputs) as arguments:
        torch.set_num_threads(1)
        try:
            calls = {who: compile(written_to(fn)) for who, compile in compilers.items()}
            for call in calls.values():
                call(results, arguments)
            start, rounds = time.perf_counter(), 0
            while rounds < 5 or time.perf_counter() - start < seconds:
                for who, call in calls.items():
                    before = time.thread_time()
                    call(results, arguments)
                    times[who].append(time.thread_time() - before)
                rounds += 1
        finally:
            torch.set_num_threads(threads)
    return {who: statistics.median(taken) / threads for who, taken in times.items()}
