"""Metadata of torch functions by running them: for those whose meta kernels are missing, or wrong in strides.

The arguments are stand-ins of the real sizes, strides and dtypes: identity matrices, on which decompositions and solvers work,
ones for vectors and pivots, zeros for other integers. What looks at the values to decide its result's size can't be told
beforehand: refused.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tinycompile.base import shapes
from tinycompile.base.device import Device
from tinycompile.base.errors import DataDependentError
from tinycompile.base.expr import Expr
from tinycompile.base.meta import TensorMeta
from tinycompile.eager.backends import meta_of
from tinycompile.eager.no_trace import leaving_no_trace
from tinycompile.eager.tensor import Tensor

_UNRELIABLE = ("torch.fft.", "torch.linalg.")  # whole namespaces
_UNRELIABLE_NAMES = frozenset(
    (
        "sort",
        "msort",
        "svd",
        "qr",
        "lu",
        "geqrf",
        "cholesky",
        "triangular_solve",
        "lu_solve",
        "pinverse",
        "stft",
        "istft",
        "max_unpool1d",
        "max_unpool2d",
        "max_unpool3d",
        "nonzero_static",
        "conv1d",
        "conv2d",
        "conv3d",
        "svd_lowrank",
        "pca_lowrank",
    )
)
_FROM_VALUES = (torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output)


def is_unreliable(path: str) -> bool:
    """Whether torch's meta kernels for this function are known to give other strides than the real ones."""
    return path.startswith(_UNRELIABLE) or path.rpartition(".")[2] in _UNRELIABLE_NAMES


def probe(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The result of ``fn`` on stand-ins, or None when ``fn`` refuses them. Torch's generator is left as it was.

    Raises DataDependentError for a function whose result's size depends on values."""
    try:
        return _on_stand_ins(fn, args, kwargs)
    except DataDependentError:
        raise
    except Exception:  # noqa: BLE001  # stand-ins that a function can't take tell nothing about it
        return None


def refuses(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether ``fn`` raises on stand-ins, too, where its record or meta kernel raised an error: then the call is wrong, not the
    kernel missing. Records and meta kernels may raise other types, or in other words."""
    try:
        refuse(fn, args, kwargs)
    except Exception:  # noqa: BLE001  # whatever it is, torch raises it again when the frame runs
        return True
    return False


def refuse(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise what ``fn`` raises on stand-ins, in torch's own words and numbers; return if it takes them, or looks at values."""
    try:
        _on_stand_ins(fn, args, kwargs)
    except DataDependentError:
        return


def _on_stand_ins(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    with torch.no_grad(), leaving_no_trace(), _Watch():
        return fn(*(_stand_in(a) for a in args), **{k: _stand_in(v) for k, v in kwargs.items()})


def ops_of(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> frozenset[str]:
    """ATen's ops that ``fn`` comes to, as far as it gets on stand-ins, by name and overload."""
    given, named = _stand_in(tuple(args)), {k: _stand_in(v) for k, v in kwargs.items()}
    watch = _Ops()
    with torch.no_grad(), leaving_no_trace(), watch, contextlib.suppress(Exception):
        fn(*given, **named)
    return frozenset(watch.names)


class _Ops(TorchDispatchMode):
    """Keeps the names of what is called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(func.name().removeprefix("aten::"))
        return func(*args, **(kwargs or {}))


class _Watch(TorchDispatchMode):
    """Refuses ops whose results' sizes, or Python values, come from tensors' values."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(tag in func.tags for tag in _FROM_VALUES):
            raise DataDependentError(f"{func} looks at the values of a tensor")
        return func(*args, **(kwargs or {}))


def _stand_in(value: Any) -> Any:
    if isinstance(value, (Tensor, torch.Tensor)):
        value = meta_of(value)
    if isinstance(value, TensorMeta):
        return _tensor(value)
    if isinstance(value, Expr):
        return shapes.hint(value)
    if isinstance(value, Device):
        return value.torch()
    if isinstance(value, (tuple, list)):
        return type(value)(_stand_in(v) for v in value)
    if isinstance(value, slice):
        return slice(*(_stand_in(v) for v in (value.start, value.stop, value.step)))
    return value


def _tensor(meta: TensorMeta) -> torch.Tensor:
    shape, strides = [shapes.hint(s) for s in meta.shape], [shapes.hint(s) for s in meta.strides]
    flat = torch.zeros(shapes.reach(shape, strides), dtype=meta.dtype, device=meta.device.torch())
    made = flat.as_strided(shape, strides)
    if not (meta.dtype.is_floating_point or meta.dtype.is_complex):
        flat.fill_(1 if meta.dtype == torch.int32 else 0)  # pivots count from 1, and LAPACK believes them
    elif len(shape) < 2 or 0 in strides:  # (torch fills nothing in which elements share memory)
        flat.fill_(1)
    else:
        made.diagonal(dim1=-2, dim2=-1).fill_(1)
    return made
