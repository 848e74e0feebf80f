"""What a device can do: the numbers that occupancy, share of bandwidth and the roofline are measured against."""

from __future__ import annotations

import functools
import time
from dataclasses import dataclass

import torch

from tinycompile.base.device import Device

# Most resident blocks of a multiprocessor by compute capability (CUDA C++ Programming Guide, "Technical Specifications").
_BLOCKS = {(7, 0): 32, (7, 5): 16, (8, 0): 32, (8, 6): 16, (8, 7): 16, (8, 9): 24, (9, 0): 32, (10, 0): 32, (12, 0): 24}
# Dense bf16 operations of a multiprocessor's tensor cores in a cycle (NVIDIA's architecture white papers: 4096 on GH100).
_TENSOR = {7: 1024, 8: 2048, 9: 4096, 10: 8192, 12: 1024}
WARP, REGISTER_UNIT, SHARED_UNIT = 32, 256, 128
RESERVED_SHARED = 1024  # bytes of each block that the driver keeps, from compute capability 8.0


@dataclass(frozen=True)
class Card:
    """``warps``, ``blocks``, ``registers``, ``shared`` (bytes): most at once in one of the ``multiprocessors``.
    ``bandwidth``: bytes a second to memory. ``fp32``, ``tensor`` (bf16): operations a second, 0 where unknown."""

    name: str
    multiprocessors: int
    warps: int
    blocks: int
    registers: int
    shared: int
    bandwidth: float
    fp32: float = 0.0
    tensor: float = 0.0

    def occupancy(self, threads: int, registers: int, shared: int) -> float:
        """Resident warps over the most there can be. ``registers`` a thread; ``shared``: bytes a block.

        Registers are handed out to warps in units of 256, shared memory in units of 128 bytes (the CUDA occupancy calculator's
        rules). 0 when not even one block fits."""
        if not self.warps:
            return 0.0
        warps = -(-threads // WARP)
        by_warps = self.warps // warps
        unit = -(-registers * WARP // REGISTER_UNIT) * REGISTER_UNIT
        by_registers = self.registers // unit // warps if unit else by_warps
        held = -(-(shared + RESERVED_SHARED) // SHARED_UNIT) * SHARED_UNIT
        return min(by_warps, by_registers, self.shared // held, self.blocks) * warps / self.warps


# What kernels compiled without a GPU are shown for: an H100 SXM (data sheet).
H100 = Card("H100 (sm_90)", 132, 64, 32, 65536, 233472, 3.35e12, 66.9e12, 989e12)


def card_of(device: Device) -> Card:
    """The numbers of a device. A CPU's bandwidth is measured once, by a copy."""
    return _cuda(max(device.index, 0)) if device.type == "cuda" else _cpu()


@functools.cache
def _cuda(index: int) -> Card:
    p = torch.cuda.get_device_properties(index)
    capability = (p.major, p.minor)
    clock = getattr(p, "clock_rate", 0) * 1e3
    wires = getattr(p, "memory_bus_width", 0) / 8 * getattr(p, "memory_clock_rate", 0) * 1e3
    lanes = 64 if capability in ((7, 0), (7, 5), (8, 0)) else 128
    return Card(
        p.name,
        p.multi_processor_count,
        p.max_threads_per_multi_processor // WARP,
        _BLOCKS.get(capability, 32),
        getattr(p, "regs_per_multiprocessor", 65536),
        p.shared_memory_per_multiprocessor,
        2 * wires or measured_bandwidth(Device("cuda", index)),
        p.multi_processor_count * lanes * 2 * clock,
        p.multi_processor_count * _TENSOR.get(p.major, 0) * clock,
    )


@functools.cache
def _cpu() -> Card:
    return Card(f"CPU, {torch.get_num_threads()} threads", 0, 0, 0, 0, 0, measured_bandwidth(Device("cpu")))


@functools.cache
def measured_bandwidth(device: Device) -> float:
    """Bytes a second of a copy (read and written), the best of five."""
    a = torch.zeros((256 if device.type == "cuda" else 32) << 20, dtype=torch.uint8, device=device.torch())
    b = torch.ones_like(a)
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        b.copy_(a)
        if device.type == "cuda":
            torch.cuda.synchronize(device.torch())
        best = min(best, time.perf_counter() - start)
    return 2 * a.numel() / best
