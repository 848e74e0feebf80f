"""``Tensor``: our metadata over shared ``Storage``, beside a torch handle that is made when somebody needs one.

It is no subclass of ``torch.Tensor``. A view is made by stride arithmetic alone: it keeps the torch tensor that it views
(``_viewed``) and makes its own handle from it on demand, so the version counter of everything on one storage is torch's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, ClassVar

import torch

from tinycompile.base.device import Device
from tinycompile.base.holdings import is_allocation_failure, tell_holdings
from tinycompile.base.meta import TensorMeta, meta_of_torch
from tinycompile.base.shapes import reach
from tinycompile.dispatch import dispatcher
from tinycompile.dispatch.keys import BACKENDS, Key, backend_key
from tinycompile.eager import copies
from tinycompile.eager.copies import CopyMethods
from tinycompile.eager.differentiable import DifferentiableMethods
from tinycompile.eager.indexing import basic_view, is_basic, plain_index, plain_number
from tinycompile.eager.metadata import MetadataMethods
from tinycompile.eager.methods import TensorMethods
from tinycompile.eager.no_trace import leaving_no_trace
from tinycompile.eager.shortcut import VIEWS, learn_index, short_index
from tinycompile.eager.storage import Storage, Writes
from tinycompile.eager.values import ValueMethods
from tinycompile.ops import table
from tinycompile.ops.in_place import name_of
from tinycompile.ops.record import BoundCall

_AUTOGRAD = Key.AUTOGRAD.bit
_PRIVATE = Key.PRIVATEUSE1.bit  # tensors of registered devices have no torch handle
_NO_HANDLE = Key.META.bit | _PRIVATE
_DEVICES: dict[torch.device, tuple[Device, int]] = {}


def device_and_keys(device: torch.device) -> tuple[Device, int]:
    """Ours, and the key set of a tensor there."""
    known = _DEVICES.get(device)
    if known is None:
        ours = Device.of(device)
        known = _DEVICES[device] = ours, 1 << backend_key(ours.type)
    return known


class Tensor(CopyMethods, DifferentiableMethods, MetadataMethods, ValueMethods, TensorMethods):
    """A strided view of a :class:`Storage`. Make one with a factory, :func:`from_torch` or an op."""

    __slots__ = (
        "__dict__",  # the user's attributes, as torch lets anybody set them
        "__weakref__",
        "_autograd",
        "_device",
        "_handle",
        "_left",
        "_meta",
        "_storage",
        "_view",
        "_viewed",
        "_views",
        "_writes",
        "keys",
    )

    _device: Device
    device = property(attrgetter("_device"), doc="Where it lies.")
    keys: int
    _left: Any  # AutogradMeta of a leaf that left the tape; unset for any other
    _writes: Writes  # of what was split off by ``.data`` on a registered device; unset for any other: they are its storage's
    tape: ClassVar[Any] = None
    """What is done where our tape follows a tensor; set by ``autograd.py``, which stands above this file."""
    elsewhere: ClassVar[Any] = None
    """What is done with tensors of a registered device; set by ``custom_device.py``, which stands above this file."""

    def __init__(self, storage: Storage, meta: TensorMeta) -> None:
        """A tensor of ``meta`` on ``storage``. Raises RuntimeError when it would reach beyond the end."""
        end = extent(meta) * meta.dtype.itemsize
        if end > storage.nbytes:
            raise RuntimeError(f"a tensor {meta} needs {end} bytes of storage, but there are {storage.nbytes}")
        self._device, self.keys = storage.device, 1 << backend_key(storage.device.type)
        self._meta: TensorMeta | None = meta
        self._storage: Storage | None = storage
        self._handle: torch.Tensor | None = None
        self._viewed: torch.Tensor | None = None
        self._autograd: Any = None  # AutogradMeta (tape.py) where our tape follows the tensor
        self._view: Any = None  # ViewInfo (tape.py) of a view
        self._views: Any = None  # views of this tensor, for in-place writes under the tape

    # --- metadata

    @property
    def meta(self) -> TensorMeta:
        """Shape, strides, dtype, device and offset, as one frozen value."""
        if self._meta is None:
            handle = self._handle
            assert handle is not None
            self._meta = meta_of_torch(handle, self.device)
        return self._meta

    @property
    def storage(self) -> Storage:
        """The bytes; one object for all tensors that share them."""
        if self._storage is None:
            owner = self._handle if self._handle is not None else self._viewed
            assert owner is not None
            self._storage = Storage.of(owner.untyped_storage())
        return self._storage

    @property
    def _base(self) -> Tensor | None:
        """The tensor that it is a view of, as torch's."""
        return None if self._view is None or not (self._view.chain or self._view.origin != "leaf") else self._view.base

    def _is_view(self) -> bool:
        return self._base is not None

    @property
    def on_torchs_tape(self) -> bool:
        """Whether torch's own autograd follows it: it was made of a torch tensor that requires grad."""
        owner = self._handle if self._handle is not None else self._viewed
        return owner is not None and owner.requires_grad

    def record_stream(self, stream: Any) -> None:
        """The memory is in use on ``stream`` (ours or torch's) until what that was given so far is done: it is not given to
        another tensor before. Nothing to do on a CPU."""
        on = getattr(stream, "raw", stream)
        if self.is_cuda and on is not None:
            self.raw().record_stream(on)
        elif self.lacks_handle:
            self.elsewhere.used_on(self, on)

    def pin_memory(self) -> Tensor:
        """A copy in page-locked memory of the host, from which copies to a card run beside everything else; itself where it is
        pinned already, or where there is no card to copy to."""
        if not torch.cuda.is_available() or self.raw().is_pinned():
            return self
        return self._extern(torch.Tensor.pin_memory, (self,), {})

    # --- torch

    @property
    def lacks_handle(self) -> bool:
        """Whether it is on a registered device, where torch has no tensors."""
        return bool(self.keys & _PRIVATE) and self._handle is None and self._viewed is None

    def torch(self) -> torch.Tensor:
        """A torch tensor on the same memory: always the same object, unless our tape follows this tensor. Then it is a new one
        on torch's tape, through which torch's backward reaches ours. On a registered device, where torch has no tensors, it is
        this tensor itself."""
        if self.lacks_handle:
            return self  # type: ignore[return-value]
        return self.raw() if not self.keys & _AUTOGRAD else self._bridged()

    def _bridged(self) -> Any:
        return self.tape.bridge(self)

    def raw(self) -> Any:
        """The torch tensor on the same memory, always the same object. Our tape doesn't see what is done with it."""
        if self._handle is None:
            meta = self.meta
            base = self._viewed if self._viewed is not None else _raw(self.storage, meta)
            placed: Any = meta.shape, meta.strides, meta.offset  # no symbols: those are FakeTensor's
            self._handle = base.as_strided(*placed)
        return self._handle

    def _sibling(self, handle: Any) -> Tensor:
        """A new tensor with this handle, on this tensor's device and on no tape."""
        made = Tensor.__new__(Tensor)
        made._device, made.keys = self._device, self.keys & BACKENDS
        made._handle = handle
        made._meta = made._storage = made._viewed = made._autograd = made._view = made._views = None
        return made

    def _version_now(self) -> int:
        if self.is_meta or self.lacks_handle:
            return writes_of(self).count
        handle = self._handle if self._handle is not None else self._viewed
        return _version_of_handle(self.raw() if handle is None else handle)

    def _same_memory(self, keep_history: bool) -> Tensor:
        return _same_memory(self, keep_history)

    def _read(self, name: str) -> Any:
        if self.lacks_handle:  # torch has no tensor there: what one without data says, off every tape
            sizes: Any = self.meta.shape
            return getattr(torch.empty_strided(sizes, self.stride(), dtype=self.dtype, device="meta"), name)
        return wrap(getattr(self.raw(), name), (self,))

    @classmethod
    def _extern(cls, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run a torch function on handles; a subclass among the arguments is asked first."""
        for other in dispatcher.tensors_in((args, tuple(kwargs.values()))):
            if isinstance(other, Tensor) and type(other)._extern.__func__ is not cls._extern.__func__:  # type: ignore[attr-defined]
                return type(other)._extern(fn, args, kwargs)
        own = None if cls.tape is None else cls.tape.functions.get(fn)
        if own is not None and (made := own(*args, **kwargs)) is not NotImplemented:
            return made
        if getattr(fn, "__name__", "") in VIEWS | _RESHAPES and (view := _view_by_numbers(fn, args, kwargs)) is not None:
            return view
        if cls.tape is not None and cls.tape.follows(args, kwargs):
            return cls.tape.call(fn, args, kwargs)
        if cls.elsewhere is not None and cls.elsewhere.concerns(args, kwargs):
            return cls.elsewhere.call(fn, args, kwargs)
        made = run_on_handles(fn, args, kwargs)
        if cls.tape is not None:
            cls.tape.note_views_among(fn, made, dispatcher.tensors_in((args, tuple(kwargs.values()))))
        return made

    @classmethod
    def _taken(cls, fn: Callable[..., Any], data: Any, options: Mapping[str, Any]) -> Tensor:
        """What a function of torch's makes of data that are no tensors of ours."""
        return from_torch(fn(data, **options))

    @classmethod
    def _write(cls, bound: BoundCall, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """``add_`` and ``out=``: torch's own function writes, with torch's checks. A subclass is asked first."""
        for other in dispatcher.tensors_in((args, tuple(kwargs.values()))):
            if isinstance(other, Tensor) and type(other)._write.__func__ is not cls._write.__func__:  # type: ignore[attr-defined]
                return type(other)._write(bound, fn, args, kwargs)
        if cls.tape is not None and cls.tape.follows(args, kwargs, bound.out):
            return cls.tape.write(bound, fn, args, kwargs)
        if cls.elsewhere is not None and cls.elsewhere.concerns(bound.args, {}, bound.out):
            return cls.elsewhere.write(bound, fn, args, kwargs)
        return cls._extern(fn, args, kwargs)

    @classmethod
    def _reworded(cls, error: Exception, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """What torch says of the same call on plain tensors of the same values. Memory that ran out is not asked for again."""
        tensors = dispatcher.tensors_in((args, tuple(kwargs.values())))
        if any(getattr(t, "keys", 0) & Key.BATCHED.bit for t in tensors) and not is_allocation_failure(error):
            reword_batched[0](fn, args, kwargs)
        if is_allocation_failure(error) or any(isinstance(t, TensorMethods) and type(t) is not Tensor for t in tensors):
            return
        plain = unwrap if cls.elsewhere is None else cls.elsewhere.hosted
        given, named = plain((args, dict(kwargs)))
        followed = {id(t.raw()) for t in tensors if isinstance(t, Tensor) and t.keys & _AUTOGRAD and not t.lacks_handle}
        try:
            with leaving_no_trace():
                fn(*_leaves(given, followed), **_leaves(named, followed))
        except Exception as torchs:  # noqa: BLE001  # whatever it is, the caller gets it
            raise torchs.with_traceback(None) from None

    # --- indexing

    def __getitem__(self, index: Any) -> Any:
        """A view for a basic index; a copy for masks and index tensors."""
        if type(self) is Tensor and (short := short_index(self, index)) is not None:
            return short
        if not is_basic(index):
            index = plain_index(index)
            if not is_basic(index):
                return self._extern(torch.Tensor.__getitem__, (self, index), {})
        made = basic_view(self, index)
        if type(made) is Tensor is type(self):
            learn_index(self, index, made)
        return made

    def __setitem__(self, index: Any, value: Any) -> None:
        """Write in place, as torch does."""
        if self.tape is not None and self.tape.follows((self, value), {}):
            self.tape.write_item(self, index, value)
            return
        self._extern(torch.Tensor.__setitem__, (self, index, value), {})


def extent(meta: TensorMeta) -> Any:
    """Elements of storage that it reaches into."""
    if any(size == 0 for size in meta.shape):
        return 0
    return meta.offset + reach(meta.shape, meta.strides)


def _raw(storage: Storage, meta: TensorMeta) -> torch.Tensor:
    """A flat torch tensor of the dtype over a whole storage."""
    count = storage.nbytes // meta.dtype.itemsize
    if storage.device.type == "meta":
        return torch.empty(count, dtype=meta.dtype, device="meta")
    return torch.empty(0, dtype=meta.dtype, device=storage.device.torch()).set_(storage.untyped, 0, (count,), (1,))


def from_torch(handle: torch.Tensor) -> Tensor:
    """A Tensor on the same memory; ``.torch()`` gives ``handle`` back. One that is not strided is a SparseTensor.

    Raises TypeError for what is no torch tensor."""
    if isinstance(handle, Tensor) and handle.lacks_handle:
        return handle
    if not isinstance(handle, torch.Tensor):
        raise TypeError(f"from_torch() takes a torch.Tensor, not {type(handle).__name__}")
    if handle.layout is not torch.strided:
        return other_layouts[0](handle)
    made = Tensor.__new__(Tensor)
    made._device, made.keys = device_and_keys(handle.device)
    made._handle, made._meta, made._storage, made._viewed = handle, None, None, None
    made._autograd = made._view = made._views = None
    return made


copies.make.append(from_torch)

reword_batched: list[Callable[..., None]] = []
"""``reword_batched[0](fn, args, kwargs)`` raises what torch's vmap raises for a call that failed; set by ``vmap_words.py``,
which stands above this file."""

other_layouts: list[Callable[[torch.Tensor], Tensor]] = []
"""``other_layouts[0](handle)`` makes a tensor that is not strided; set by ``sparse.py``, which stands above this file."""


def from_meta(meta: TensorMeta) -> Tensor:
    """A fresh tensor without data on the meta device."""
    device = Device("meta")
    placed = TensorMeta(meta.shape, meta.strides, meta.dtype, device, 0)
    return Tensor(Storage(extent(placed) * meta.dtype.itemsize, device), placed)


def view_of(base: Tensor, meta: TensorMeta) -> Tensor:
    """A view with other strides on the same storage. The caller vouches that it stays inside."""
    made = Tensor.__new__(Tensor)
    made._device, made.keys = base._device, base.keys & ~_AUTOGRAD
    made._handle, made._meta, made._storage = None, meta, base._storage
    made._viewed = made._autograd = made._view = made._views = None
    if not base.keys & _NO_HANDLE or base._storage is None:
        handle = base._viewed if base._handle is None else base._handle
        made._viewed = base.raw() if handle is None or handle.dtype != meta.dtype else handle
        if made._viewed.dtype != meta.dtype:
            made._viewed, made._handle = None, base.raw().view(meta.dtype)
    elif hasattr(base, "_writes"):
        made._writes = base._writes
    return made


def same_memory(tensor: Tensor, keep_history: bool = False) -> Tensor:
    """Another object on the same memory, on no tape of ours unless it keeps the history."""
    return _same_memory(tensor, keep_history) if type(tensor) is Tensor else tensor._same_memory(keep_history)


def _same_memory(tensor: Tensor, keep_history: bool) -> Tensor:
    made = Tensor.__new__(Tensor)
    made._device, made.keys = tensor._device, tensor.keys if keep_history else tensor.keys & ~_AUTOGRAD
    made._handle, made._meta, made._storage, made._viewed = tensor._handle, tensor._meta, tensor._storage, tensor._viewed
    made._autograd = tensor._autograd if keep_history else None
    made._view = made._views = None
    if hasattr(tensor, "_writes"):
        made._writes = tensor._writes
    return made


def apart(tensor: Tensor, keep_history: bool = False) -> Tensor:
    """The same of a tensor of a registered device, that counts its writes itself."""
    made = _same_memory(tensor, keep_history)
    made._writes = Writes()
    return made


def take_memory(tensor: Tensor, of: Tensor) -> None:
    """``tensor`` is on the memory of ``of`` from now on, and laid out as it."""
    tensor._handle, tensor._meta, tensor._storage, tensor._viewed = of._handle, of._meta, of._storage, of._viewed
    tensor._device, tensor.keys = of._device, of.keys & BACKENDS | tensor.keys & ~BACKENDS


def put_on_memory(tensor: Tensor, of: Tensor) -> None:
    """``tensor.data = of`` from or to a registered device. It goes on counting; views go on viewing what was there."""
    writes = writes_of(tensor) if tensor.lacks_handle else Writes(_version_of_handle(tensor.raw()))
    take_memory(tensor, of)
    tensor._view = None
    if of.lacks_handle:
        tensor._writes = writes
    else:
        tensor._handle, tensor._viewed = of.raw().data, None
        torch.autograd.graph.increment_version([tensor._handle] * writes.count)


def writes_of(tensor: Tensor) -> Writes:
    """What counts the writes to a tensor without a handle."""
    found: Writes = getattr(tensor, "_writes", tensor.storage.writes)
    return found


def version_of(tensor: Any) -> int:
    """How often the memory was written to in place, as torch counts it; 0 where nobody counts."""
    if type(tensor) is Tensor and not tensor.keys & _NO_HANDLE and tensor._handle is not None:
        return _version_of_handle(tensor._handle)
    return tensor._version_now() if isinstance(tensor, Tensor) else _version_of_handle(tensor)


def _version_of_handle(handle: torch.Tensor) -> int:
    try:
        return handle._version
    except RuntimeError:
        if not handle.is_inference():
            raise
        raise RuntimeError(
            "Inference tensors cannot be saved for backward. Please do not use Tensors created in inference mode in "
            "computation tracked by autograd. To work around this, you can make a clone to get a normal tensor and use it in "
            "autograd, or use `torch.no_grad()` instead of `torch.inference_mode()`."
        ) from None


# --- between handles and tensors ---------------------------------------------------------------------------------------------


def unwrap(value: Any) -> Any:
    """torch's objects for ours, also in tuples, lists, dicts and slices."""
    if isinstance(value, Tensor):
        return value.raw()
    kind = type(value)
    if kind is Device:
        return value.torch()
    if kind is tuple or kind is list:
        return kind(unwrap(v) for v in value)
    if kind is dict:
        return {k: unwrap(v) for k, v in value.items()}
    if kind is slice:
        return slice(unwrap(value.start), unwrap(value.stop), unwrap(value.step))
    if kind not in _ATOMS and isinstance(value, (tuple, list)):  # named ones, and the program's own
        return (tuple if isinstance(value, tuple) else list)(unwrap(v) for v in value)
    return value


_ATOMS = frozenset((bool, int, float, complex, str, type(None), torch.Size, torch.dtype, torch.device))


def _leaves(value: Any, followed: set[int]) -> Any:
    """Nested arguments off every tape, with leaves of torch's own in place of handles that our tape follows."""
    if isinstance(value, torch.Tensor):
        return value.detach().requires_grad_(id(value) in followed)
    if type(value) is dict:
        return {k: _leaves(v, followed) for k, v in value.items()}
    return type(value)(_leaves(v, followed) for v in value) if type(value) in (tuple, list) else value


def wrap(value: Any, inputs: Sequence[Any] = ()) -> Any:
    """Ours for torch's tensors, also in containers. A tensor that is an input's handle is that input again."""
    if isinstance(value, torch.Tensor):
        for tensor in inputs:
            if value is (tensor._handle if isinstance(tensor, Tensor) else tensor):
                return tensor
        return from_torch(value)
    if isinstance(value, (tuple, list)) and not isinstance(value, torch.Size):
        items = [wrap(v, inputs) for v in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value


_RESHAPES = frozenset(("reshape", "flatten"))  # views where the strides allow it


def _view_by_numbers(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """A view that was asked for with numpy's integers, or with tensors of one integer: by Python's, so that it knows its base.
    None for any other call."""
    given = [tuple(map(plain_number, a)) if type(a) in (tuple, list) else plain_number(a) for a in args[1:]]
    named = {k: plain_number(v) for k, v in kwargs.items()}
    bound = table.bind(fn, (args[0], *given), named)
    if bound is None or bound.op.name not in VIEWS or bound.args[0] is not args[0]:
        return None
    run_on_handles(fn, args, kwargs)  # what torch refuses it refuses here
    return dispatcher.call_bound(bound.op.name, bound.args)


def run_on_handles(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call a torch function on handles and wrap what it returns."""
    inputs = dispatcher.tensors_in((*args, *kwargs.values()))
    try:
        result = fn(*unwrap(tuple(args)), **unwrap(dict(kwargs)))
    except RuntimeError as error:
        tell_holdings(error)
        raise
    finally:
        if "out" in kwargs or name_of(fn).endswith("_"):
            for tensor in inputs:
                if isinstance(tensor, Tensor) and tensor._handle is not None:
                    tensor._meta = tensor._storage = None  # a resize, set_ or t_ changes them, also before an error
    return wrap(result, inputs)
