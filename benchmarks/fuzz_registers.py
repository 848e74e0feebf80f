"""Noisy runs of a program whose half values stay in registers: float32 from op to op, rounded where the program casts to one.

A kernel rounds a half value or not, as it is stored or not. What floats decide downstream (a remainder, then an argmax) may
need many values at once that no half type has, and :mod:`benchmarks.fuzz_noise` gives halves alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import torch

from benchmarks.fuzz_noise import HALVES, Noise, is_half, is_view, single
from benchmarks.opinfo_judge import Call, leaves
from tinycompile.ops.record import OPS, Pointwise


class Registers(Noise):
    """Beside each storage of halves is one of float32. Ops read and write that one, and the halves are its values, rounded.

    ``stored``: the share of ops whose results are rounded beside, too, as those of a kernel that others read are."""

    def __init__(self, seed: int, stored: float) -> None:
        super().__init__(seed)
        self.stored = stored
        self.beside: dict[int, tuple[Any, torch.Tensor]] = {}  # by address; a storage that lives keeps its address

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None) -> Any:
        call, name = Call(tuple(args), kwargs or {}), func._schema.name.partition("::")[2]
        halves = any(map(is_half, leaves((call.args, call.kwargs))))
        if is_view(func) or not halves:
            return super().__torch_dispatch__(func, types, args, kwargs)
        wide = _promoted(call, name).mapped(self._wide)
        result = args[0] if func._schema.is_mutable else func(*call.args, **call.kwargs)
        found = super().__torch_dispatch__(func, types, wide.args, wide.kwargs)
        if not isinstance(result, torch.Tensor):
            return type(result)(self._kept(r, f) for r, f in zip(result, found, strict=True))
        return self._kept(result, found, cast=name == "_to_copy" or (name == "copy_" and args[1].dtype != args[0].dtype))

    def _wide(self, t: Any) -> Any:
        """The tensor beside a tensor of halves."""
        if not is_half(t):
            return single(t)
        storage = t.untyped_storage()
        if storage.data_ptr() not in self.beside:
            values = torch.empty(0, dtype=t.dtype).set_(storage, 0, (len(storage) // t.element_size(),), (1,))
            self.beside[storage.data_ptr()] = (storage, values.float())
        return self.beside[storage.data_ptr()][1].as_strided(t.shape, t.stride(), t.storage_offset())

    def _kept(self, result: torch.Tensor, found: torch.Tensor, cast: bool = False) -> torch.Tensor:
        if not is_half(result):
            return found
        beside = self._wide(result.copy_(found))
        rounded = cast or bool(torch.rand((), generator=self.draw) < self.stored)
        beside.copy_(result if rounded else found)
        return result


def _promoted(call: Call, name: str) -> Call:
    """Integers that meet halves, element by element, become halves first."""
    op = OPS.get(name.removesuffix("_"))
    floats = [t.dtype for t in leaves((call.args, call.kwargs)) if isinstance(t, torch.Tensor) and t.is_floating_point()]
    dtype = reduce(torch.promote_types, floats)
    if op is None or not isinstance(op.lowering, Pointwise) or dtype not in HALVES:
        return call
    integers = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
    return call.mapped(lambda t: t.to(dtype) if isinstance(t, torch.Tensor) and t.dtype in integers else t)
