"""``BatchedTensor``: what a function under ``vmap`` sees of a tensor: one example's shape, while the ops run on all at once.

The examples are along dim 0 of ``value``, a tensor of the level below: ours, a fake, or a BatchedTensor of an outer vmap. A
wrapper with ``batched`` False is the same for every example; it marks a tensor as one of this level, so that a gradient that is
asked for inside the function is one of each example's own.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch

from tinycompile.base.logs import warn_once
from tinycompile.base.meta import TensorMeta
from tinycompile.base.shapes import reach
from tinycompile.dispatch import dispatcher, local_keys
from tinycompile.dispatch.keys import BACKENDS, Key
from tinycompile.eager.autocast import outside
from tinycompile.eager.tensor import Tensor, from_torch
from tinycompile.eager.torch_words import said_of_examples
from tinycompile.ops.calls import ops
from tinycompile.ops.in_place import first_by_position, name_of, writes_first
from tinycompile.ops.meta_rules import type_name
from tinycompile.ops.randomness import MAY_DRAW, RECURRENT
from tinycompile.ops.record import BoundCall

_BATCHED = Key.BATCHED.bit
_AUTOGRAD = Key.AUTOGRAD.bit
# Functions whose result's size depends on each example's values.
_OF_ANY_LENGTH = {fn.__name__: fn for fn in (torch.nonzero, torch.Tensor.unique, torch.Tensor.unique_consecutive)}
_NO_POINTER = "Cannot access data pointer of Tensor that doesn't have storage"


@dataclass(frozen=True, slots=True)
class Level:
    """One vmap that is running: how many examples, what random ops do (``error``, ``different``, ``same``), and within how many
    functions it runs that are differentiated."""

    number: int
    size: Any
    randomness: str
    nested: int = 0


class _Active(threading.local):
    levels: tuple[Level, ...] = ()


active = _Active()


class BatchedTensor(Tensor):
    """One tensor an example. ``level``: which vmap it belongs to, the innermost the highest."""

    __slots__ = ("batched", "level", "value")

    def __init__(self, value: Tensor, level: int, batched: bool = True) -> None:
        meta = value.meta
        if batched:
            meta = TensorMeta(meta.shape[1:], meta.strides[1:], meta.dtype, meta.device, meta.offset)
        self._device, self.keys = value.device, _BATCHED | value.keys & BACKENDS
        self._meta, self._storage, self._handle, self._viewed = meta, None, None, None
        self._autograd = self._view = self._views = None
        self.value, self.level, self.batched = value, level, batched

    @property
    def shape(self) -> Any:
        """One example's sizes."""
        return self.value.shape[1:] if self.batched else self.value.shape

    @property
    def ref(self) -> Any:
        """The recorder's name for all examples together, where they are fakes."""
        return self.value.ref  # type: ignore[attr-defined]

    @property
    def storage(self) -> Any:
        """That of all examples."""
        return self.value.storage

    @property
    def on_torchs_tape(self) -> bool:
        """Never: torch's tape is of a level below."""
        return False

    def raw(self) -> torch.Tensor:
        """There is no tensor of one example: raises RuntimeError."""
        raise RuntimeError(f"a tensor under vmap has no memory of its own: {self.meta}, of level {self.level}")

    def item(self) -> Any:
        """Every example has its own: raises RuntimeError."""
        raise RuntimeError(said_of_examples(torch.Tensor.item))

    tolist = item

    def readable(self) -> Any:
        """What Python's numbers are made of: raises torch's error, as every example has its own."""
        if self.numel() != 1:
            raise ValueError("only one element tensors can be converted to Python scalars")
        raise RuntimeError(said_of_examples(torch.Tensor.item))

    def __index__(self) -> int:
        if self.numel() != 1 or self.dtype.is_floating_point or self.dtype.is_complex:
            raise TypeError("only integer tensors of a single element can be converted to an index")
        raise RuntimeError(said_of_examples(torch.Tensor.item))

    def __dlpack__(self, **options: Any) -> Any:
        """There is no memory of one example: raises RuntimeError."""
        raise RuntimeError(_NO_POINTER)

    __dlpack_device__ = __dlpack__

    @property
    def data(self) -> Any:
        """As torch's, refused but in a function within that under vmap which is differentiated."""
        if active.levels and self.tape.nested() == active.levels[-1].nested:
            raise RuntimeError(said_of_examples(_data))
        return self.tape.data(self)

    @data.setter
    def data(self, value: Any) -> None:
        raise RuntimeError(said_of_examples(_set_data))

    def data_ptr(self) -> int:
        """As ``__dlpack__``."""
        raise RuntimeError(_NO_POINTER)

    @property
    def lacks_handle(self) -> bool:
        """There is no tensor of one example."""
        return True

    def __bool__(self) -> bool:
        raise RuntimeError(said_of_examples(bool))

    def _version_now(self) -> int:
        return self.value._version_now()

    def _copied(self, memo: dict[int, Any]) -> Any:
        return self.detach().clone()

    def _same_memory(self, keep_history: bool) -> BatchedTensor:
        made = BatchedTensor(self.value, self.level, self.batched)
        if keep_history:
            made.keys, made._autograd = self.keys, self._autograd
        return made

    def copied(self) -> BatchedTensor:
        """Its value and history as they are now, on memory of its own."""
        made = self._same_memory(keep_history=True)
        made.value = ops.clone(made.value)
        return made

    def _read(self, name: str) -> Any:
        return getattr(torch.empty(0, dtype=self.dtype, device="meta"), name)

    @classmethod
    def _extern(cls, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """A torch function without a record: one call an example."""
        args, kwargs = first_by_position(args, kwargs)
        own = EXTERN_RULES.get(fn) or cls.tape.functions.get(fn)
        if own is not None and (made := own(*args, **kwargs)) is not NotImplemented:
            return made
        name = name_of(fn) or "a function"
        if (name in MAY_DRAW or name in RECURRENT) and active.levels:
            return draw_by_level[0](fn, args, kwargs)
        if kwargs.get("out") is not None:
            raise RuntimeError(f"vmap: {name}(out=...) can't be batched: call it without out")
        if writes_first(fn, args, kwargs):
            return write_each[0](fn, args, kwargs)
        if name in _OF_ANY_LENGTH:
            raise RuntimeError(said_of_examples(_OF_ANY_LENGTH[name]))
        if cls.tape.follows(args, kwargs):
            return gradients_of_each[0](fn, args, kwargs)
        return call_each(lambda args, kwargs: Tensor._extern(fn, args, kwargs), name, args, kwargs)

    @classmethod
    def _write(cls, bound: BoundCall, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """In place: the value that the op gives is copied into the memory of all examples."""
        name = getattr(fn, "__name__", bound.op.name)
        if bound.out is not None:
            raise RuntimeError(f"vmap: {name}(out=...) can't be batched: call it without out")
        if cls.tape.follows(args, kwargs):
            return cls.tape.write(bound, fn, args, kwargs)
        if (written := write_below[0](bound, fn, args, kwargs)) is not NotImplemented:
            return written
        given = bound.args
        if (
            torch.is_grad_enabled()
            and isinstance(given[0], BatchedTensor)
            and any(map(is_followed, dispatcher.tensors_in(given)))
        ):
            given = (given[0].copied(), *given[1:])  # a tape below may save what the write destroys
        with local_keys.exclude(Key.AUTOCAST):
            result = dispatcher.call_bound(bound.op.name, given)
        return overwrite(bound.args[0], result, name)

    def __setitem__(self, index: Any, value: Any) -> None:
        """Write in place, each example into its own."""
        write_item[0](self, index, value)

    def __repr__(self) -> str:
        batch = f"{self.value.shape[0]} examples" if self.batched else "one for all examples"
        return f"BatchedTensor({self.meta}; {batch}, level {self.level})"


def _data(x: torch.Tensor) -> torch.Tensor:
    return x.data


def _set_data(x: torch.Tensor) -> torch.Tensor:
    x.data = x * 1
    return x


def is_followed(tensor: Any) -> bool:
    """Whether a tape follows it, at any level."""
    while isinstance(tensor, BatchedTensor) and not tensor.requires_grad:
        tensor = tensor.value
    return bool(tensor.requires_grad)


def example_of(tensor: Any, level: int, i: int) -> Any:
    """One example of a tensor of the level; any other tensor as it is."""
    if not isinstance(tensor, BatchedTensor) or tensor.level != level:
        return tensor
    return ops.select(tensor.value, 0, i) if tensor.batched else tensor.value


EXTERN_RULES: dict[Any, Callable[..., Any]] = {}
"""What functions of torch's without a record do under vmap. NotImplemented: they are called once an example."""

gradients_of_each: list[Callable[..., Any]] = []
"""``gradients_of_each[0](fn, args, kwargs)``: such a function on the tape; set by ``example_gradients.py``, which stands above
this file."""

draw_by_level: list[Callable[..., Any]] = []
"""``draw_by_level[0](fn, args, kwargs)``: one that may draw random numbers; set by ``batched_random.py``, which stands above
this file."""

placed: list[Callable[..., Any]] = []
"""``placed[0](tensor, first)``: the view of every example that ``first`` is of the first one; set by ``batched_views.py``,
which stands above this file."""

write_each: list[Callable[..., Any]] = []
"""``write_each[0](fn, args, kwargs)``: a function that writes to its first argument; set by ``batched_writes.py``, which stands
above this file."""

write_below: list[Callable[..., Any]] = []
"""``write_below[0](bound, fn, args, kwargs)``: an op that writes where its examples are, or NotImplemented; set by
``batched_in_place.py``, which stands above this file."""

write_item: list[Callable[[Any, Any, Any], None]] = []
"""``write_item[0](target, index, value)``; set by ``batched_indexing.py``, which stands above this file."""


# --- writing -----------------------------------------------------------------------------------------------------------------


def overwrite(target: Any, result: Any, name: str) -> Any:
    """Copy ``result`` into ``target``, with torch's checks."""
    if result.dtype != target.dtype and not torch.can_cast(result.dtype, target.dtype):
        raise RuntimeError(
            f"result type {type_name(result.dtype)} can't be cast to the desired output type {type_name(target.dtype)}"
        )
    if tuple(result.shape) != tuple(target.shape):
        raise RuntimeError(f"output with shape {list(target.shape)} doesn't match the broadcast shape {list(result.shape)}")
    level = max(t.level for t in (target, result) if isinstance(t, BatchedTensor))
    has = isinstance(target, BatchedTensor) and target.level == level and target.batched
    if not has and result.batched:
        refuse_shared(name)
    value = result.value if isinstance(result, BatchedTensor) and result.level == level else result
    into: Any = target.value if isinstance(target, BatchedTensor) and target.level == level else target
    if has and not (isinstance(result, BatchedTensor) and result.batched):
        value = ops.unsqueeze(value, 0)
    into.copy_(value)
    return target


def refuse_shared(name: str) -> NoReturn:
    """torch's error of a write of each example's own values to what all examples share."""
    raise RuntimeError(
        f"vmap: {name}(self, *extra_args) is not possible because there exists a Tensor `other` in extra_args that has "
        "more elements than `self`. This happened due to `other` being vmapped over but `self` not being vmapped over in a "
        "vmap. Please try to use out-of-place operators instead. If said operator is being called inside the PyTorch "
        "framework, please file a bug report instead."
    )


def write_view(view: Any, value: Any) -> None:
    """Copy a tensor into a view, but for dims of size 1 that it has in front; or fill the view with a number."""
    if isinstance(value, (Tensor, torch.Tensor)):
        while len(value.shape) > len(view.shape) and value.shape[0] == 1:
            value = value[0]
        view.copy_(value.expand(tuple(view.shape)) if tuple(value.shape) != tuple(view.shape) else value)
    else:
        view.fill_(value)


# --- between levels ----------------------------------------------------------------------------------------------------------


def level_of(args: Sequence[Any]) -> int:
    """The highest level among the tensors; 0 where none is batched."""
    return max((t.level for t in dispatcher.tensors_in(args) if isinstance(t, BatchedTensor)), default=0)


def mapped(value: Any, fn: Callable[[Any], Any]) -> Any:
    """Nested arguments with every tensor (ours and torch's) replaced."""
    if isinstance(value, (Tensor, torch.Tensor)):
        return fn(value)
    kind = type(value)
    if kind in (tuple, list):
        return kind(mapped(v, fn) for v in value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return kind(*(mapped(v, fn) for v in value))
    if hasattr(value, "n_sequence_fields"):  # torch.return_types
        return kind([mapped(v, fn) for v in value])
    return {k: mapped(v, fn) for k, v in value.items()} if kind is dict else value


def lifted(value: Any, level: int) -> Any:
    """Nested arguments in which whatever is on a tape below ``level`` is a constant of this level."""

    def lift(tensor: Any) -> Any:
        if isinstance(tensor, BatchedTensor) and tensor.level == level:
            return tensor
        tensor = from_torch(tensor) if isinstance(tensor, torch.Tensor) else tensor
        return BatchedTensor(tensor, level, batched=False) if tensor.requires_grad else tensor

    return mapped(value, lift)


def call_each(fn: Callable[[Any, Any], Any], name: str, args: Any, kwargs: Any) -> Any:
    """``fn(args, kwargs)`` once an example of the highest level, and the results stacked; of views, the view of all."""
    given = dispatcher.tensors_in((args, tuple(kwargs.values())))
    level = level_of(given)
    batched = [t for t in given if isinstance(t, BatchedTensor) and t.level == level and t.batched]
    if not batched:
        alone = fn(*mapped((args, dict(kwargs)), functools.partial(example_of, level=level, i=0)))
        return mapped(alone, functools.partial(BatchedTensor, level=level, batched=False))
    size: Any = batched[0].value.shape[0]
    warn_once(f"vmap calls {name} once for each example: it has no batching rule")
    found = []
    for i in range(size):
        found.append(mapped(fn(*mapped((args, dict(kwargs)), functools.partial(example_of, level=level, i=i))), _ours))
    return stacked(found, level, list(map(_ours, given)))


def _ours(tensor: Any) -> Any:
    return from_torch(tensor) if isinstance(tensor, torch.Tensor) else tensor


def stacked(found: Sequence[Any], level: int, given: Sequence[Any] = ()) -> Any:
    """The results of one call an example as one of all; as a view of what was ``given`` where each is one of an example's.
    Raises RuntimeError for what is no tensor, unless it is the same for each example."""
    first = found[0]
    if isinstance(first, Tensor):
        for tensor in given:
            if _has_in_place(tensor, level, found):
                return placed[0](tensor, first)
        if any(tuple(other.shape) != tuple(first.shape) for other in found[1:]):
            raise RuntimeError("vmap: the size of a result depends on the values of each example, so no tensor can hold all")
        with outside():  # of regions of autocast, which cast what is stacked
            return BatchedTensor(ops.stack(tuple(found), 0), level)
    if isinstance(first, (tuple, list)) and not isinstance(first, torch.Size):
        items = [stacked(column, level, given) for column in zip(*found, strict=True)]
        return type(first)(*items) if hasattr(first, "_fields") else type(first)(items)
    if type(first) not in _PLAIN or any(type(other) is not type(first) or other != first for other in found[1:]):
        raise RuntimeError(
            f"vmap: a function returns a {type(first).__name__} of its own for each example, which only tensors can be"
        )
    return first


def _has_in_place(tensor: Any, level: int, found: Sequence[Tensor]) -> bool:
    """Whether each of ``found`` is a view of an example of the tensor, in the same place."""
    first = found[0]
    if not (isinstance(tensor, Tensor) and has_memory(tensor) and has_memory(first) and tensor.dtype == first.dtype):
        return False
    mine = isinstance(tensor, BatchedTensor) and tensor.level == level and tensor.batched
    step = tensor.value.stride(0) if mine else 0  # type: ignore[attr-defined]
    same = first.meta.shape, first.meta.strides
    inside: Any = first.meta.offset - tensor.meta.offset
    if inside < 0 or _end(first.meta) > _end(tensor.meta):
        return False  # another part of the same memory
    return all(
        each.storage is tensor.storage
        and (each.meta.shape, each.meta.strides, each.meta.offset) == (*same, first.meta.offset + i * step)
        for i, each in enumerate(found)
    )


def _end(meta: TensorMeta) -> Any:
    return meta.offset + reach(meta.shape, meta.strides)  # no symbols: those are FakeTensor's


def has_memory(tensor: Tensor) -> bool:
    return not tensor.keys & Key.TRACING.bit and tensor.layout is torch.strided


_PLAIN = frozenset((bool, int, float, complex, str, type(None), torch.Size, torch.dtype, torch.device))
