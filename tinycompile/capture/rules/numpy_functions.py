"""numpy's functions, computed while capturing, and torch's that make tensors of arrays."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tinycompile.capture import array_tensors, number_tensors, torch_calls
from tinycompile.capture.breaks import GraphBreak
from tinycompile.capture.provenance import natively
from tinycompile.capture.rules.registry import RULES, Args, rule
from tinycompile.capture.values import array as arrays
from tinycompile.capture.values.array import ArrayValue
from tinycompile.capture.values.base import Kwargs, Value
from tinycompile.capture.values.constant import NONE, Const
from tinycompile.capture.values.sequence import ListValue, SequenceValue, TupleValue

if TYPE_CHECKING:
    from tinycompile.capture.tracer import Tracer

# Functions of their arguments alone, that write to none of them. (``empty`` is one: what it holds is anything.)
_FUNCTIONS = """
abs absolute add all allclose amax amin angle any append arange arccos arccosh arcsin arcsinh arctan arctan2 arctanh argmax
argmin argpartition argsort argwhere around array array_equal array_split asarray ascontiguousarray asfortranarray atleast_1d
atleast_2d atleast_3d average bincount bitwise_and bitwise_or bitwise_xor broadcast_shapes broadcast_to can_cast cbrt ceil clip
column_stack compress concatenate conj conjugate convolve copy copysign corrcoef cos cosh count_nonzero cov cross cumprod cumsum
deg2rad degrees delete diag diagflat diagonal diff digitize divide divmod dot dsplit dstack ediff1d einsum empty empty_like
equal exp exp2 expand_dims expm1 eye fabs flip fliplr flipud float_power floor floor_divide fmax fmin fmod frexp full full_like
gcd geomspace gradient greater greater_equal hamming hanning heaviside histogram hsplit hstack hypot identity indices inner
insert interp intersect1d invert isclose isfinite isin isinf isnan isreal isscalar issubdtype ix_ kron lcm ldexp left_shift less
less_equal lexsort linspace log log10 log1p log2 logaddexp logical_and logical_not logical_or logical_xor logspace matmul max
maximum mean median meshgrid min min_scalar_type minimum mod modf moveaxis multiply nan_to_num nanmax nanmean nanmin nanstd
nansum ndim negative nextafter nonzero not_equal ones ones_like outer pad percentile polyfit polyval positive power prod
promote_types ptp quantile rad2deg radians ravel ravel_multi_index real reciprocal remainder repeat reshape result_type
right_shift rint roll rollaxis rot90 round searchsorted select setdiff1d shape sign signbit sin sinc sinh size sort split sqrt
square squeeze stack std subtract sum swapaxes take take_along_axis tan tanh tensordot tile trace transpose trapezoid tri tril
tril_indices triu triu_indices true_divide trunc union1d unique unravel_index unwrap vander var vdot vstack where zeros
zeros_like
linalg.cholesky linalg.det linalg.eigh linalg.eigvalsh linalg.inv linalg.lstsq linalg.matrix_power linalg.matrix_rank
linalg.norm linalg.pinv linalg.qr linalg.slogdet linalg.solve linalg.svd
fft.fft fft.ifft fft.rfft fft.irfft fft.fftfreq fft.rfftfreq fft.fftshift fft.ifftshift
bool_ int8 int16 int32 int64 intp uint8 uint16 uint32 uint64 float16 float32 float64 complex64 complex128 dtype finfo iinfo
"""
# How many arguments come before ``out``, where a signature does not tell.
_OUT_AT = {"dot": 2, "concatenate": 2, "take": 3, "arange": 4}


def _positions(fn: Any) -> int:
    """How many arguments may be given by position: none of these is ``out``."""
    if isinstance(fn, np.ufunc):
        return fn.nin
    try:
        names = list(inspect.signature(fn).parameters)
    except (TypeError, ValueError):
        return _OUT_AT.get(fn.__name__, 99)
    return names.index("out") if "out" in names else 99


def _fold(fn: Any, most: int, tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    """Call it now."""
    if len(args) > most:
        raise GraphBreak("unsupported-value", f"{fn.__name__}() with out=")
    return arrays.call(tr, fn, args, kwargs)


def _register() -> None:
    for path in _FUNCTIONS.split():
        fn: Any = np
        for name in path.split("."):
            fn = getattr(fn, name, None)
        if fn is not None:
            RULES[fn] = functools.partial(_fold, fn, _positions(fn))


_register()


# --- tensors of arrays --------------------------------------------------------------------------------------


@rule(torch.from_numpy)
def _from_numpy(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    if len(args) != 1 or kwargs or not isinstance(args[0], ArrayValue):
        raise GraphBreak("unsupported-op", "torch.from_numpy")
    return array_tensors.in_memory(tr, args[0])


@rule(torch.tensor)
def _tensor(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    if args and _has_numpy(tr, args[0]):
        plain = arrays.plain_one(tr, args[0])
        wanted = _wanted(tr, "tensor", args, kwargs)
        dtype = {"dtype": wanted.pop("dtype").constant(tr)} if "dtype" in wanted else {}
        held = natively(torch.tensor, plain, device="cpu", **dtype)
        return array_tensors.known(tr, held).call_method(tr, "to", [], wanted) if wanted else array_tensors.known(tr, held)
    if not args or not isinstance(args[0], ArrayValue):
        made = number_tensors.called(tr, [_as_list(tr, a) for a in args[:1]] + list(args[1:]), kwargs)
        if made is not None:
            return made
        return torch_calls.call_torch(tr, torch.tensor, [*(_as_list(tr, a) for a in args[:1]), *args[1:]], kwargs)
    wanted = _wanted(tr, "tensor", args, kwargs)
    made = array_tensors.copied(tr, args[0])
    return made.call_method(tr, "to", [], wanted) if wanted else made


def as_tensor(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    """``torch.as_tensor(array, dtype, device)``: in the array's memory, if it has the dtype and the device."""
    assert isinstance(args[0], ArrayValue)
    wanted = _wanted(tr, "as_tensor", args, kwargs)
    made = array_tensors.in_memory(tr, args[0])
    return made.call_method(tr, "to", [], wanted) if wanted else made


def _wanted(tr: Tracer, name: str, args: Args, kwargs: Kwargs) -> Kwargs:
    """The dtype and device that are asked for."""
    named = {**dict(zip(("dtype", "device"), args[1:], strict=False)), **kwargs}
    wanted = {k: v for k, v in named.items() if not tr.identical(v, NONE)}
    if wanted.keys() - {"dtype", "device"} or len(args) > 3:
        raise GraphBreak("unsupported-op", f"torch.{name} with {', '.join(wanted)}")
    if "device" not in wanted and torch.get_default_device().type != "cpu":
        wanted["device"] = Const(torch.get_default_device())
    return wanted


def _as_list(tr: Tracer, data: Value) -> Value:
    """A tensor's data, whose ranges and deques torch reads as any sequence, in lists."""
    if isinstance(data, Const) and isinstance(data.value, range):
        return ListValue(map(Const, data.value))
    if not isinstance(data, SequenceValue):
        return data
    members = [_as_list(tr, v) for v in data.values(tr)]
    return TupleValue(members) if isinstance(data, TupleValue) else ListValue(members)


def _has_numpy(tr: Tracer, data: Value) -> bool:
    """Whether numbers of numpy's, whose dtypes count, are a tensor's data, or among it. Of arrays in a list torch warns."""
    if isinstance(data, SequenceValue):
        return any(_has_numpy(tr, v) for v in data.values(tr))
    return isinstance(data, Const) and isinstance(data.value, np.generic)
