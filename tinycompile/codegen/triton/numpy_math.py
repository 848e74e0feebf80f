"""NumPy in place of libdevice when kernels run in Triton's interpreter: the same names on the interpreter's tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime.interpreter import TensorHandle

from tinycompile.ops.scalar import power


def _lift(fn: Callable[..., Any]) -> Callable[..., tl.tensor]:
    """Run ``fn`` on the arrays behind interpreter tensors; Python numbers take the dtype of the tensors beside them."""

    def call(*args: Any) -> tl.tensor:
        kind = next(a for a in args if isinstance(a, tl.tensor))
        arrays = [a.handle.data if isinstance(a, tl.tensor) else np.asarray(a, kind.handle.data.dtype) for a in args]
        with np.errstate(all="ignore"):
            result = np.asarray(fn(*arrays)).astype(kind.handle.data.dtype)
        shape = list(result.shape)
        block = (
            tl.block_type(kind.dtype, shape)
            if any(isinstance(a, tl.tensor) and a.type.is_block() for a in args)
            else kind.dtype
        )
        return tl.tensor(TensorHandle(result, kind.dtype.scalar), block)

    return call


def _torch(fn: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Any], Any]:
    return lambda x: fn(torch.from_numpy(np.ascontiguousarray(x))).numpy().reshape(np.shape(x))


pow = _lift(power)
fmod = _lift(np.fmod)
tan = _lift(np.tan)
asin = _lift(np.arcsin)
acos = _lift(np.arccos)
atan = _lift(np.arctan)
atan2 = _lift(np.arctan2)
sinh = _lift(np.sinh)
cosh = _lift(np.cosh)
asinh = _lift(np.arcsinh)
acosh = _lift(np.arccosh)
atanh = _lift(np.arctanh)
log10 = _lift(np.log10)
erfc = _lift(_torch(torch.erfc))
lgamma = _lift(_torch(torch.lgamma))
tanh = _lift(np.tanh)
log1p = _lift(np.log1p)
expm1 = _lift(np.expm1)
