"""Fake tensors: metadata and a name, no data. Ops on them are recorded.

``FakeTensor`` bears the Tracing key; Tracing's fallback works out the result's metadata by the op's rule and tells the
recorder, which answers with the names of the results.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import BuiltinFunctionType
from typing import Any, NamedTuple, Protocol

import torch

from tinycompile.base import shapes
from tinycompile.base.device import Device
from tinycompile.base.errors import DataDependentError, InternalError
from tinycompile.base.expr import Expr
from tinycompile.base.meta import TensorMeta, meta_of_torch
from tinycompile.dispatch import dispatcher, local_keys
from tinycompile.dispatch.keys import Key, KeySet, backend_key
from tinycompile.eager.backends import is_same, meta_of, named_results
from tinycompile.eager.batched_random import RECORDS, draw_record, is_undecided
from tinycompile.eager.no_trace import leaving_no_trace
from tinycompile.eager.probe import is_unreliable, probe
from tinycompile.eager.tensor import Tensor
from tinycompile.ops.record import OPS, BoundCall, Metas, Op

_AUTOGRAD = Key.AUTOGRAD.bit


class Recorder(Protocol):
    """Who listens to ops on fake tensors. ``ir/builder.py`` implements it."""

    def record(self, op: Op, args: tuple[Any, ...], metas: Metas) -> Any:
        """Note one op; ``args`` hold FakeTensors. Returns one ref, or one a result when ``metas`` is a tuple."""

    def extern(self, path: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], metas: Any) -> Any:
        """Note a call of a torch function without a record. Returns FakeTensors in the structure of ``metas``."""


class FakeTensor(Tensor):
    """A tensor known by its ``meta`` alone. ``ref`` is the recorder's name for it."""

    __slots__ = ("recorder", "ref")

    def __init__(self, meta: TensorMeta, recorder: Recorder, ref: Any) -> None:
        self._device = meta.device
        self.keys = Key.TRACING.bit | 1 << backend_key(meta.device.type)
        self._meta, self._storage, self._handle, self._viewed = meta, None, None, None
        self._autograd = self._view = self._views = None
        self.recorder, self.ref = recorder, ref

    @property
    def shape(self) -> shapes.Shape:
        """Sizes: ints, or symbolic."""
        return self.meta.shape

    @property
    def storage(self) -> Any:
        """A fake tensor has none."""
        raise DataDependentError("a fake tensor has no storage")

    @property
    def requires_grad(self) -> bool:
        """Whether our tape follows it, or as the recorder says; most are outside every tape."""
        asked = getattr(self.recorder, "requires_grad", None)
        return bool(self.keys & _AUTOGRAD) or (asked is not None and asked(self.ref))

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        raise DataDependentError("requires_grad of a fake tensor is not for the traced program to set")

    def as_it_was(self) -> FakeTensor:
        """Its value when the forward ran, where the recorder tells that from the value that it has in the backward."""
        ask = getattr(self.recorder, "as_it_was", None)
        return self if ask is None else ask(self)

    def raw(self) -> torch.Tensor:
        """There is no data to share: raises DataDependentError."""
        raise DataDependentError(f"the value of {self.ref} ({self.meta}) is not known while tracing")

    def _version_now(self) -> int:
        return 0  # fakes never change

    def _same_memory(self, keep_history: bool) -> FakeTensor:
        made = FakeTensor(self.meta, self.recorder, self.ref)
        if keep_history:
            made.keys, made._autograd = self.keys, self._autograd
        return made

    def item(self) -> Any:
        """The value is not known: raises DataDependentError."""
        return self.raw()

    def __bool__(self) -> bool:
        return bool(self.raw())

    def _read(self, name: str) -> Any:
        """What torch says of a plain tensor without data: no layout of its own, no gradient."""
        found = getattr(torch.empty(0, dtype=self.dtype, device="meta"), name)
        if isinstance(found, torch.Tensor):
            raise DataDependentError(f"{name} of the fake tensor {self.ref} is not known while tracing")
        return found

    @classmethod
    def _extern(cls, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        recorder = _recorder((args, tuple(kwargs.values())))
        return recorder.extern(path_of(fn), args, kwargs, fake_extern_meta(fn, args, kwargs))

    @classmethod
    def _write(cls, bound: BoundCall, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Fakes never change: whoever traces turns writes into new values first."""
        raise InternalError(
            f"{path_of(fn)} writes to the fake tensor {args[0]!r}: a write must be made functional before tracing"
        )

    def __repr__(self) -> str:
        return f"FakeTensor({self.ref}: {self.meta})"


# --- recording ---------------------------------------------------------------------------------------------------------------


class _Active(threading.local):
    recorder: Recorder | None = None


_active = _Active()


@contextlib.contextmanager
def tracing(recorder: Recorder) -> Iterator[Recorder]:
    """Record ops of this thread, also those without a fake tensor among their inputs (``zeros``, ``arange``)."""
    before = _active.recorder
    _active.recorder = recorder
    try:
        with local_keys.include(Key.TRACING):
            yield recorder
    finally:
        _active.recorder = before


def _recorder(args: Sequence[Any]) -> Recorder:
    for tensor in dispatcher.tensors_in(args):
        if isinstance(tensor, FakeTensor):
            return tensor.recorder
    if _active.recorder is None:
        raise InternalError("an op is traced, but there is neither a fake tensor nor an active recorder")
    return _active.recorder


def trace(op_name: str, keyset: KeySet, args: tuple[Any, ...]) -> Any:
    """Tracing's fallback: metadata by the op's rule, a note to the recorder, fake results."""
    op = OPS[op_name]
    if is_same(op):
        return args[0]
    if op_name in RECORDS and is_undecided(args):
        return draw_record(op_name, args)
    recorder = _recorder(args)
    metas = op.meta(*(meta_of(a) for a in args))
    refs = recorder.record(op, args, metas)
    if isinstance(metas, TensorMeta):
        return FakeTensor(metas, recorder, refs)
    return named_results(op, [FakeTensor(m, recorder, ref) for m, ref in zip(metas, refs, strict=True)])


dispatcher.fallback(Key.TRACING, trace)


# --- functions without a record ----------------------------------------------------------------------------------------------


_NAMESPACES = (torch, torch.nn.functional, torch.Tensor, torch.linalg, torch.fft, torch.special)


@functools.cache
def _paths() -> dict[Any, str]:
    """Dotted name of each torch function; the first namespace that has it names it, a public name first."""
    found: dict[Any, str] = {}
    for owner in _NAMESPACES:
        prefix = "torch.Tensor" if owner is torch.Tensor else owner.__name__
        for name in sorted(dir(owner), key=lambda n: n.startswith("_")):
            fn = getattr(owner, name)
            if callable(fn) and (not name.startswith("_") or owner is torch.Tensor or isinstance(fn, BuiltinFunctionType)):
                with contextlib.suppress(TypeError):  # unhashable: no function
                    found.setdefault(fn, f"{prefix}.{name}")
    return found


def path_of(fn: Callable[..., Any]) -> str:
    """A dotted path by which a torch function can be found again: ``torch.fft.rfft``, ``torch.Tensor.sort``."""
    if isinstance(fn, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return f"torch.ops.{fn}"  # torch.ops.aten.topk, torch.ops.aten.topk.default
    known = _paths().get(fn)
    return known or f"{getattr(fn, '__module__', None) or 'torch'}.{getattr(fn, '__qualname__', fn)}"


class Extern(NamedTuple):
    """What is known of a torch function's results. ``metas``: TensorMeta for each tensor, in tuples (or named tuples) as the
    function returns them; other results are as they are. ``owners``: for each tensor the argument in whose memory it is, or
    None; the whole is None where that can't be told. ``same``: it returns an argument itself."""

    metas: Any
    owners: tuple[Any, ...] | None
    same: bool = False


def fake_extern_meta(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The metadata of :func:`fake_extern`."""
    return fake_extern(fn, args, kwargs).metas


def fake_extern(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Extern:
    """The results of a torch function that has no record, by running it on torch's meta tensors.

    Symbolic sizes count with their hints. Where torch's meta kernels are wrong in strides, or missing, ``fn`` itself runs on
    stand-ins for the arguments (see ``eager/probe.py``). Raises what ``fn`` raises, NotImplementedError if both ways fail."""
    device = _result_device(args, kwargs)
    try:
        with torch.no_grad(), torch.device("meta"), leaving_no_trace():  # some draw without a device
            given, named = [without_data(a) for a in args], keywords_without_data(kwargs)
            result = fn(*given, **named)
    except NotImplementedError:
        found = probe(fn, args, kwargs)
        if found is None:
            raise
        return Extern(_from_torch_meta(found, device), None)
    pairs = _tensor_pairs((given, list(named.values())), (args, list(kwargs.values())))
    made = [t for t in _leaves(result) if isinstance(t, torch.Tensor)] if isinstance(result, (tuple, list)) else [result]
    owners = tuple(next((a for g, a in pairs if _same_storage(g, r)), None) for r in made)
    same = any(r is g for r in made for g, _ in pairs)
    real = probe(fn, args, kwargs) if is_unreliable(path_of(fn)) else None
    return Extern(_from_torch_meta(result if real is None else real, device), owners, same)


def _tensor_pairs(given: Any, originals: Any) -> list[tuple[torch.Tensor, Any]]:
    """The meta tensors in nested arguments, each with what it stands for."""
    pairs = zip(_leaves(given), _leaves(originals), strict=True)
    return [(g, a) for g, a in pairs if isinstance(g, torch.Tensor)]


def _same_storage(a: torch.Tensor, b: Any) -> bool:
    strided = isinstance(b, torch.Tensor) and a.layout == b.layout == torch.strided
    return strided and a.untyped_storage() is b.untyped_storage()


def _result_device(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Device:
    if kwargs.get("device") is not None:
        return Device.of(kwargs["device"])
    tensors = [t for t in _leaves((*args, *kwargs.values())) if isinstance(t, (TensorMeta, Tensor, torch.Tensor))]
    wide = [t for t in tensors if len(t.shape)] or tensors
    return Device.of(wide[0].device if wide else torch.get_default_device())


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, (tuple, list)):
        for item in value:
            yield from _leaves(item)
    else:
        yield value


def keywords_without_data(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments as :func:`without_data` has them, with no other device."""
    return {k: "meta" if k == "device" and v is not None else without_data(v) for k, v in kwargs.items()}


def without_data(value: Any) -> Any:
    """An argument with torch's meta tensors in the places of tensors, of the sizes of this call."""
    if isinstance(value, (Tensor, torch.Tensor)):
        value = meta_of(value)
    if isinstance(value, TensorMeta):
        shape, strides = [shapes.hint(s) for s in value.shape], [shapes.hint(s) for s in value.strides]
        return torch.empty_strided(shape, strides, dtype=value.dtype, device="meta")
    if isinstance(value, Expr):
        return shapes.hint(value)
    if isinstance(value, Device):
        return torch.device("meta")
    if isinstance(value, (tuple, list)):
        return type(value)(without_data(v) for v in value)
    if isinstance(value, slice):
        return slice(*(without_data(v) for v in (value.start, value.stop, value.step)))
    return value


def _from_torch_meta(value: Any, device: Device) -> Any:
    if isinstance(value, torch.Tensor):
        return meta_of_torch(value, device)
    if isinstance(value, (tuple, list)) and not isinstance(value, torch.Size):
        items = [_from_torch_meta(v, device) for v in value]
        return type(value)(items) if type(value).__module__ == "torch.return_types" else tuple(items)
    return value
