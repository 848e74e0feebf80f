"""Torch callables that change dtype, device or shape, or make tensors: which record their arguments mean."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tinycompile.base import shapes
from tinycompile.base.device import Device
from tinycompile.base.expr import Expr
from tinycompile.dispatch.keys import Key
from tinycompile.ops import meta_rules as rules
from tinycompile.ops.calls import meta_of
from tinycompile.ops.creation import device_of
from tinycompile.ops.record import OPS, BoundCall
from tinycompile.ops.table import KEYWORDS, Args, add, add_attribute, call_of, in_one_list, is_tensor
from tinycompile.ops.views import flattened_shape

Kwargs = dict[str, Any]
Bound = BoundCall | None


# ----------------------------------------------------------------------------------------------------------- casts, devices

_CASTS = {
    "float": torch.float32, "double": torch.float64, "half": torch.float16, "bfloat16": torch.bfloat16, "long": torch.int64,
    "int": torch.int32, "short": torch.int16, "char": torch.int8, "byte": torch.uint8, "bool": torch.bool,
}  # fmt: skip


def identity(x: Any) -> Bound:
    """A call that returns the very tensor it was given."""
    return BoundCall(OPS["identity"], (x,))


def converted(x: Any, dtype: Any = None, device: Any = None, copy: bool = False, memory_format: Any = None) -> Bound:
    """``x.to(...)`` with its forms told apart: the identity, a cast, or a move between devices."""
    chosen = x.dtype if dtype is None else dtype
    if device is not None and Device.of(device) != Device.of(x.device) and not _same_cuda(device, x.device):
        return call_of("to_device", x, _placed(device), chosen, copy, memory_format)
    preserved = memory_format in (None, torch.preserve_format) or rules.stays_in(meta_of(x), memory_format)
    if chosen == x.dtype and not copy and preserved:
        return identity(x)
    return call_of("to", x, chosen, copy, memory_format)


def _placed(device: Any) -> Any:
    """With the index that a bare name stands for, which tensors there have. A card that is not there is torch's error."""
    found = Device.of(device)
    absent = found.type == "cuda" and not torch.cuda.is_available()
    return device if found.index >= 0 or found.type in ("cpu", "meta") or absent else device_of(found)


def _same_cuda(device: Any, of: Any) -> bool:
    asked, have = Device.of(device), Device.of(of)
    return asked.type == have.type and asked.index < 0 and (asked.type != "cuda" or have.index == torch.cuda.current_device())


def strides_match(x: Any, memory_format: torch.memory_format) -> bool:
    """Whether a tensor of any kind is in the memory format already."""
    meta = meta_of(x)
    if memory_format == torch.contiguous_format:
        return rules.is_row_major(meta)
    return meta.rank == (4 if memory_format == torch.channels_last else 5) and rules.is_channels_last(meta)


def _to(args: Args, kwargs: Kwargs) -> Bound:
    """Tensor.to(dtype), .to(device, dtype), .to(other): then non_blocking, copy and memory_format. Nobody waits for what stays
    on its device."""
    hurried = kwargs.pop("non_blocking", False)
    if not args:
        return None
    x, rest = args[0], list(args[1:])
    dtype, device, other = kwargs.pop("dtype", None), kwargs.pop("device", None), kwargs.pop("tensor", None)
    if rest and is_tensor(rest[0]):
        other = rest.pop(0)
    if rest and isinstance(rest[0], (str, torch.device, Device, int)) and not isinstance(rest[0], bool):
        device = rest.pop(0)
    if rest and (isinstance(rest[0], torch.dtype) or (rest[0] is None and device is not None)):
        dtype = rest.pop(0)
    if other is not None:
        dtype, device = other.dtype, other.device
    if rest and device is dtype is other is None:
        return None
    hurried = rest.pop(0) if rest else hurried
    copy = rest.pop(0) if rest else kwargs.pop("copy", False)
    memory_format = kwargs.pop("memory_format", None)
    if rest or kwargs or not _are_options(hurried, copy, memory_format) or not _is_dtype_or_none(dtype):
        return None
    found = converted(x, dtype, device, copy, memory_format)
    return None if found is not None and hurried and found.op.name == "to_device" else found


def _are_options(hurried: Any, copy: Any, memory_format: Any) -> bool:
    return (
        type(hurried) is bool
        and type(copy) is bool
        and (memory_format is None or isinstance(memory_format, torch.memory_format))
    )


def _is_dtype_or_none(dtype: Any) -> bool:
    return dtype is None or isinstance(dtype, torch.dtype)


def _cast(dtype: torch.dtype) -> Callable[[Args, Kwargs], Bound]:
    def binder(args: Args, kwargs: Kwargs) -> Bound:
        return converted(args[0], dtype, memory_format=kwargs.get("memory_format")) if len(args) == 1 else None

    return binder


def _type(args: Args, kwargs: Kwargs) -> Bound:
    chosen = args[1] if len(args) > 1 else kwargs.get("dtype")
    return converted(args[0], chosen) if isinstance(chosen, torch.dtype) else None


def _type_as(args: Args, kwargs: Kwargs) -> Bound:
    other = _other(args, kwargs)
    return None if other is None else converted(args[0], other.dtype, other.device)


def _other(args: Args, kwargs: Kwargs) -> Any:
    """The second tensor of ``x.view_as(other)``; None: a wrong call, torch's own to judge."""
    given = (*args[1:], *(v for k, v in kwargs.items() if k == "other"))
    return given[0] if len(given) == len(args) - 1 + len(kwargs) == 1 and is_tensor(given[0]) else None


def _is_device_or_none(device: Any) -> bool:
    return device is None or isinstance(device, (str, torch.device, Device)) or type(device) is int


def _moved_to(kind: str) -> Callable[[Args, Kwargs], Bound]:
    def binder(args: Args, kwargs: Kwargs) -> Bound:
        device = kwargs.pop("device", args[1] if len(args) > 1 else None)
        if kwargs or len(args) > 2 or (kind == "cpu" and len(args) > 1) or not _is_device_or_none(device):
            return None
        return converted(args[0], device=kind if device is None else device)

    return binder


def _contiguous(args: Args, kwargs: Kwargs) -> Bound:
    x, memory_format = args[0], kwargs.pop("memory_format", torch.contiguous_format)
    if len(args) > 1 or kwargs or not isinstance(memory_format, torch.memory_format):
        return None
    if memory_format != torch.preserve_format and strides_match(x, memory_format):
        return identity(x)
    return call_of("contiguous", x, memory_format=memory_format)


def _casts() -> None:
    add("torch.Tensor.to", _to)
    for name, dtype in _CASTS.items():
        add(f"torch.Tensor.{name}", _cast(dtype))
    add("torch.Tensor.type", _type)
    add("torch.Tensor.type_as", _type_as)
    add("torch.Tensor.cpu", _moved_to("cpu"))
    add("torch.Tensor.cuda", _moved_to("cuda"))
    add("torch.Tensor.contiguous", _contiguous)


# ----------------------------------------------------------------------------------------------------------------- views


def reshaped(x: Any, shape: Any) -> Bound:
    """``view`` where strides permit (then the result aliases ``x``), else the copying ``reshape``."""
    meta = meta_of(x)
    full = shapes.infer_size(tuple(shape), meta.numel)
    if shapes.view_strides(meta.shape, meta.strides, full) is None:
        return call_of("reshape", x, full)
    return call_of("view", x, full)


def _sizes(rest: Args, kwargs: Kwargs, name: str) -> Any:
    """What ``x.view(2, 3)``, ``x.view((2, 3))`` and ``x.view(size=(2, 3))`` ask for; None for what is none of these."""
    if bool(rest) == bool(kwargs) or kwargs.keys() - {name}:
        return None
    sizes = kwargs[name] if kwargs else rest[0] if len(rest) == 1 and isinstance(rest[0], (tuple, list)) else rest
    good = isinstance(sizes, (tuple, list)) and all(type(s) is int or isinstance(s, Expr) for s in sizes)
    return tuple(sizes) if good else None


def _reshape(args: Args, kwargs: Kwargs) -> Bound:
    x, rest = (args[0], args[1:]) if args else (kwargs.pop("input", None), ())
    sizes = _sizes(rest, kwargs, "shape")
    return None if sizes is None or not is_tensor(x) else reshaped(x, sizes)


def _view(args: Args, kwargs: Kwargs) -> Bound:
    sizes = _sizes(args[1:], kwargs, "size")
    return None if sizes is None else call_of("view", args[0], sizes)


def _flatten(args: Args, kwargs: Kwargs) -> Bound:
    bound = call_of("flatten", *args, **{KEYWORDS.get(k, k): v for k, v in kwargs.items()})
    if bound is None:
        return None
    x, start, end = bound.args[0], *map(shapes.pinned, bound.args[1:])
    shape = tuple(x.shape)
    if shape and shapes.normalize_dim(start, len(shape)) == shapes.normalize_dim(end, len(shape)):
        return identity(x)
    return reshaped(x, flattened_shape(shape, start, end))


def _as_shape_of(record: str) -> Callable[[Args, Kwargs], Bound]:
    def binder(args: Args, kwargs: Kwargs) -> Bound:
        other = _other(args, kwargs)
        if other is None:
            return None
        shape = tuple(other.shape)
        return reshaped(args[0], shape) if record == "reshape" else call_of(record, args[0], shape)

    return binder


def _split(args: Args, kwargs: Kwargs) -> Bound:
    given = dict(zip(("tensor", "split_size_or_sections", "dim"), args, strict=False)) | kwargs
    x = given.get("tensor", given.get("self"))
    pieces = given.get("split_size_or_sections", given.get("split_size"))
    name = "split_with_sizes" if isinstance(pieces, (tuple, list)) else "split"
    return call_of(name, x, pieces, given.get("dim", 0))


def _transposed(args: Args, kwargs: Kwargs) -> Bound:
    """x.T: reverses all dims."""
    x = args[0]
    return call_of("permute", x, tuple(reversed(range(len(x.shape)))))


def _matrix_transposed(args: Args, kwargs: Kwargs) -> Bound:
    return call_of("transpose", args[0], -2, -1) if len(args[0].shape) >= 2 else None


def _adjoint(args: Args, kwargs: Kwargs) -> Bound:
    given = [*args, *kwargs.values()]
    return _matrix_transposed((given[0],), {}) if len(given) == 1 and is_tensor(given[0]) else None


def _of_one_matrix(args: Args, kwargs: Kwargs) -> Bound:
    return call_of("transpose", args[0], 0, 1) if len(args[0].shape) == 2 else None


def _views() -> None:
    add("torch.reshape", in_one_list(_reshape, 1))
    add("torch.Tensor.reshape", _reshape)
    add("torch.Tensor.view", _view)
    add("torch.flatten", _flatten)
    add("torch.Tensor.flatten", _flatten)
    for name, record in (("view_as", "view"), ("reshape_as", "reshape"), ("expand_as", "expand")):
        add(f"torch.Tensor.{name}", _as_shape_of(record))
    add("torch.split", _split)
    add("torch.Tensor.split", _split)
    for where in ("torch", "torch.Tensor"):
        add(f"{where}.adjoint", _adjoint)
    for name, binder in (("T", _transposed), ("H", _of_one_matrix), ("mT", _matrix_transposed), ("mH", _matrix_transposed)):
        add_attribute(name, binder)


# -------------------------------------------------------------------------------------------------------------- factories


def _no_effect(kwargs: Kwargs) -> bool:
    """Pops what a factory may be given without changing its result; False when something does change it."""
    plain = kwargs.pop("layout", None) in (None, torch.strided) and not kwargs.pop("pin_memory", None)
    return plain and not kwargs.pop("requires_grad", False)


def _size(args: Args, kwargs: Kwargs) -> Any:
    """Sizes as torch takes them: by name, as a list, or one by one; None where there is not even an empty list."""
    size = kwargs.pop("size", None)
    if size is not None or not args:
        return size
    return args[0] if len(args) == 1 and isinstance(args[0], (tuple, list)) else args


def _filled(value: Any, record: str = "full") -> Callable[[Args, Kwargs], Bound]:
    """zeros, ones, empty: sizes as a list or as separate numbers."""

    def binder(args: Args, kwargs: Kwargs) -> Bound:
        if not _no_effect(kwargs) or kwargs.pop("memory_format", torch.contiguous_format) != torch.contiguous_format:
            return None
        size = _size(args, kwargs)
        if size is None:
            return None
        if record == "empty":
            return call_of("empty", size, **kwargs)
        kwargs["dtype"] = kwargs.get("dtype") or torch.get_default_dtype()
        return call_of("full", size, value, **kwargs)

    return binder


def _drawn(record: str) -> Callable[[Args, Kwargs], Bound]:
    """rand, randn: sizes as a list or as separate numbers; from a generator of the program's own they are torch's call."""

    def binder(args: Args, kwargs: Kwargs) -> Bound:
        if not _no_effect(kwargs) or kwargs.pop("generator", None) is not None:
            return None
        size = _size(args, kwargs)
        if size is None:
            return None
        kwargs["dtype"] = kwargs.get("dtype") or torch.get_default_dtype()
        return call_of(record, size, **kwargs)

    return binder


def _filled_like(value: Any) -> Callable[[Args, Kwargs], Bound]:
    def binder(args: Args, kwargs: Kwargs) -> Bound:
        x = args[0] if args else kwargs.pop("input", None)
        if not _no_effect(kwargs) or len(args) > 1:
            return None
        return call_of("full_like", x, value, **kwargs)

    return binder


def _new(record: str, value: Any = None) -> Callable[[Args, Kwargs], Bound]:
    """x.new_zeros(size): the dtype and device of ``x`` unless given. Under vmap each example has a result of its own."""

    def binder(args: Args, kwargs: Kwargs) -> Bound:
        if not _no_effect(kwargs):
            return None
        x, rest = args[0], args[1:]
        if not rest and "size" not in kwargs:
            return None
        kwargs["dtype"] = kwargs.get("dtype") or x.dtype
        kwargs["device"] = kwargs.get("device") or Device.of(x.device)
        fill = value
        if value is None and record == "full":
            fill = kwargs.pop("fill_value", rest[-1] if len(rest) > 1 else None)
            if rest and not isinstance(rest[0], (tuple, list)):
                return None
            rest = rest[:1]
        size = kwargs.pop("size", rest[0] if len(rest) == 1 and isinstance(rest[0], (tuple, list)) else rest)
        if _is_under_vmap(x):
            return call_of("new_full", x, size, 0 if fill is None else fill, **kwargs)
        if record == "empty":
            return call_of("empty", size, **kwargs)
        return call_of("full", size, fill, **kwargs)

    return binder


def _new_strided(args: Args, kwargs: Kwargs) -> Bound:
    """x.new_empty_strided(size, stride): torch's own but under vmap."""
    given = dict(zip(("self", "size", "stride"), args, strict=False)) | kwargs
    if not _is_under_vmap(given["self"]) or not _no_effect(given):
        return None
    return call_of("new_full", fill_value=0, **given)


def _is_under_vmap(x: Any) -> bool:
    return bool(getattr(x, "keys", 0) & Key.BATCHED.bit)


def _arange(args: Args, kwargs: Kwargs) -> Bound:
    if not _no_effect(kwargs):
        return None
    names = ("end",) if len(args) == 1 and "end" not in kwargs else ("start", "end", "step")
    given = {"start": 0, "step": 1} | dict(zip(names, args, strict=False)) | kwargs
    if any(is_tensor(given.get(n)) for n in ("start", "end", "step")):
        return None
    return call_of("arange", given.pop("start"), given.pop("end", None), given.pop("step"), **given)


def _fill(args: Args, kwargs: Kwargs) -> Bound:
    bound = call_of("fill", *args, **kwargs)
    return None if bound is None else BoundCall(bound.op, bound.args, inplace=True)


def _zero(args: Args, kwargs: Kwargs) -> Bound:
    return BoundCall(OPS["fill"], (args[0], 0), inplace=True)


def _copy(args: Args, kwargs: Kwargs) -> Bound:
    kwargs.pop("non_blocking", False)  # nobody waits: both are on one device
    if len(args) > 2:
        return None
    source: Any = args[1] if len(args) > 1 else kwargs.get("src", kwargs.get("other"))
    if not is_tensor(source) or source.device != args[0].device:
        return None
    return BoundCall(OPS["copy"], (args[0], source), inplace=True)


def _factories() -> None:
    for name, value in (("zeros", 0), ("ones", 1)):
        add(f"torch.{name}", _filled(value))
        add(f"torch.{name}_like", _filled_like(value))
        add(f"torch.Tensor.new_{name}", _new("full", value))
    add("torch.Tensor.new_full", _new("full"))
    for name in ("rand", "randn"):
        add(f"torch.{name}", _drawn(name))
    add("torch.empty", _filled(None, "empty"))
    add("torch.Tensor.new_empty", _new("empty"))
    add("torch.Tensor.new_empty_strided", _new_strided)
    add("torch.arange", _arange)
    add("torch.Tensor.fill_", _fill)
    add("torch.Tensor.zero_", _zero)
    add("torch.Tensor.copy_", _copy)


GROUPS = (_casts, _views, _factories)
