"""Operators, methods and properties of tensors, all derived from the op records.

A method ``x.gelu(...)`` is resolved as ``torch.Tensor.gelu`` by the table of records and dispatched; one that has no record
goes to the class's ``_extern``, as does what writes to a tensor (``add_``, ``out=``) on eager tensors.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from types import CodeType
from typing import Any, ClassVar

import torch

from tinycompile.base.logs import warn
from tinycompile.dispatch import dispatcher
from tinycompile.dispatch import keys as dispatch_keys
from tinycompile.eager.shortcut import WRITES, Choices, Ends, by_value, learn, short_call, written_out
from tinycompile.ops import table
from tinycompile.ops.in_place import writes_first
from tinycompile.ops.record import CUSTOM, BoundCall

# Operators by Python name. Python's own names of the in-place ones exist on torch.Tensor too.
OPERATORS = (
    "add", "radd", "iadd", "sub", "rsub", "isub", "mul", "rmul", "imul", "truediv", "rtruediv", "itruediv", "div", "rdiv",
    "idiv", "floordiv", "rfloordiv", "ifloordiv", "mod", "rmod", "imod", "pow", "rpow", "ipow", "matmul", "rmatmul", "and",
    "rand", "iand", "or", "ror", "ior", "xor", "rxor", "ixor", "lshift", "rlshift", "ilshift", "rshift", "rrshift",
    "irshift", "neg", "pos", "abs", "invert", "eq", "ne", "lt", "le", "gt", "ge",
)  # fmt: skip


_VIEWED = dispatch_keys.Key.BATCHED.bit | dispatch_keys.Key.PRIVATEUSE1.bit
_ENDS: Ends = {}  # of torch's functions
Key = tuple[Any, ...]


class TensorMethods:
    """What ``Tensor`` and ``FakeTensor`` share. They say how to run what has no record, and how to write in place."""

    __slots__ = ()
    elsewhere: ClassVar[Any] = None

    @classmethod
    def _extern(cls, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        raise NotImplementedError

    @classmethod
    def _write(cls, bound: BoundCall, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        raise NotImplementedError

    def _read(self, name: str) -> Any:
        """An attribute of torch's that is no op and not one of ours (``is_nested``, ``grad``)."""
        raise NotImplementedError

    @classmethod
    def _run(cls, bound: BoundCall | None, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Dispatch a bound call; ``fn`` with the user's arguments is torch's spelling of it."""
        if bound is None:
            return cls._extern(fn, args, kwargs)
        if bound.inplace or bound.out is not None:
            return cls._write(bound, fn, args, kwargs)
        if bound.sliced:
            return _slices(*bound.args)
        if bound.unsafe:
            return cls._unsafe_pieces(bound, fn, args, kwargs)
        return dispatcher.call_bound(bound.op.name, bound.args)

    @classmethod
    def _unsafe_pieces(cls, bound: BoundCall, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Pieces that share memory and are no views."""
        keys = bound.args[0].keys
        if not keys & _VIEWED:
            return cls._extern(fn, args, kwargs)
        pieces = dispatcher.call_bound(bound.op.name, bound.args)
        if keys & dispatch_keys.Key.BATCHED.bit:
            return tuple(map(_apart, pieces))
        if keys & dispatch_keys.Key.TRACING.bit:
            return pieces
        return tuple([cls.elsewhere.apart(piece, keep_history=True) for piece in pieces])

    @classmethod
    def __torch_function__(
        cls, fn: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """torch's protocol: ``torch.relu(t)``, ``F.gelu(t)`` and modules come here."""
        if kwargs or not args:
            return cls._by_keywords(fn, args, kwargs or {})
        key = (fn, *map(type, args))
        made = short_call(_ENDS, key, fn, args)
        return cls._whole_way(_ENDS, key, fn, args, {}) if made is None else made

    @classmethod
    def _by_keywords(cls, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if not args or not isinstance(args[0], TensorMethods):
            return cls._whole_way(None, (), fn, args, kwargs)
        key = (fn, *map(type, args), *kwargs, *map(type, kwargs.values()))
        choices = _ENDS.get(key)
        if choices is WRITES:
            made = written_out(fn, args, kwargs["out"])
        else:
            made = None if type(choices) is not Choices else by_value(choices, fn, args, kwargs)
        return cls._whole_way(_ENDS, key, fn, args, kwargs) if made is None else made

    @classmethod
    def _whole_way(
        cls, ends: Ends | None, key: Key, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        """Find which record is meant, remember it in ``ends``, run it. What fails is said in torch's words."""
        bound: Any = _NOT_FOUND
        if fn in _OF_A_DIM and (args[1] if len(args) > 1 else kwargs.get("dim")) is None:
            warn(f"Implicit dimension choice for {fn.__name__} has been deprecated. {_NAME_IT}", UserWarning)
            ends = None  # each call
        if any(isinstance(a, (tuple, list)) and type(a) not in _SEQUENCES for a in (*args, *kwargs.values())):
            ends, args, kwargs = None, tuple(map(_plainly, args)), {k: _plainly(v) for k, v in kwargs.items()}
        try:
            bound = table.bind(fn, args, kwargs)
            if ends is not None:
                learn(ends, key, bound, fn, args, kwargs)
            return cls._run(bound, fn, args, kwargs)
        except Exception as error:
            if _is_torchs(bound, fn, args, kwargs):
                cls._reworded(error, fn, args, kwargs)
            raise

    @classmethod
    def _reworded(cls, error: Exception, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Raise what torch raises for a call that failed with ``error``; return where nobody can be asked."""


_SEQUENCES = frozenset((tuple, list, torch.Size))


def _plainly(value: Any) -> Any:
    """A tuple or list for one of another class: named results (``torch.stack(x.max(0))``), the program's own."""
    if type(value) in _SEQUENCES or not isinstance(value, (tuple, list)):
        return value
    return tuple(value) if isinstance(value, tuple) else list(value)


def _apart(piece: Any) -> Any:
    """A piece of a tensor that is on its memory, but no view of it to the tape; of examples at no level."""
    made = piece._same_memory(keep_history=True)
    if hasattr(piece, "level"):
        made.value = _apart(piece.value)
    return made


def _slices(whole: Any, lengths: Sequence[int], dim: int) -> tuple[Any, ...]:
    """What ``tensor_split`` and its kin return: views each on its own."""
    starts = itertools.accumulate(lengths, initial=0)
    ends = itertools.accumulate(lengths)
    return tuple([dispatcher.call("slice", whole, dim, *at) for at in zip(starts, ends, strict=False)])


_NOT_FOUND = object()


_OF_A_DIM = frozenset((torch.nn.functional.softmax, torch.nn.functional.log_softmax))
_NAME_IT = "Change the call to include dim=X as an argument."


def _is_torchs(bound: Any, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether torch may have other words for an error, and can be asked: not where it has said so itself, nor of the program's
    own op. Under vmap the words are ours; there the call is made again on copies, so that it may write."""
    if isinstance(bound, BoundCall) and bound.op.name in CUSTOM:
        return False
    given = dispatcher.tensors_in((args, tuple(kwargs.values())))
    if any(getattr(t, "keys", 0) & dispatch_keys.Key.BATCHED.bit for t in given):
        return True
    return bound is not None and not _writes(bound, fn, args, kwargs)


def _writes(bound: Any, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether the call changes an argument, so that it can't be made again."""
    if isinstance(bound, BoundCall):
        return bound.inplace or bound.out is not None
    return "out" in kwargs or writes_first(fn, args, kwargs)


def _method(name: str) -> Callable[..., Any]:
    fn = getattr(torch.Tensor, name)
    ends: Ends = {}

    def method(*args: Any, **kwargs: Any) -> Any:
        if kwargs:
            return args[0]._by_keywords(fn, args, kwargs)
        key = (*map(type, args),)
        made = short_call(ends, key, fn, args)
        return args[0]._whole_way(ends, key, fn, args, {}) if made is None else made

    method.__name__ = name
    method.__qualname__ = f"Tensor.{name}"
    method.__doc__ = f"As ``torch.Tensor.{name}``."
    return method


SHOWN: set[CodeType] = set()
"""Code that calls what the user wrote (a device's kernel): its errors are no word on the operands."""


def _is_shown(error: BaseException) -> bool:
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code not in SHOWN:
        trace = trace.tb_next
    return trace is not None


# Never an operand of a tensor: Python looks at the other side, then words the TypeError.
_FOREIGN = frozenset({str, bytes, type(None), dict, set, list, tuple})


def _operator(name: str) -> Callable[..., Any]:
    fn = getattr(torch.Tensor, name)
    ends: Ends = {}
    alone = name in ("__neg__", "__pos__", "__abs__", "__invert__")

    def operator(*args: Any) -> Any:
        key = (*map(type, args),)
        made = short_call(ends, key, fn, args)
        if made is None:
            if key[-1] in _FOREIGN:
                return NotImplemented
            try:
                return args[0]._whole_way(ends, key, fn, args, {})
            except TypeError as error:
                if alone or _is_shown(error):
                    raise
                return NotImplemented  # as torch: Python asks the other side, and words the error
        return made

    operator.__name__ = name
    operator.__qualname__ = f"Tensor.{name}"
    return operator


def _attribute(name: str) -> property:
    getter = getattr(torch.Tensor, name).__get__

    def read(self: Any) -> Any:
        if name == "T" and self.ndim != 2:
            torch.empty((0,) * self.ndim, device="meta").T  # noqa: B018  # torch warns
        return self._run(table.bind_attribute(name, self), getter, (self,), {})

    def write(self: Any, value: Any) -> None:
        if table.is_tensor(value):
            read(self).copy_(value)
        else:
            read(self)[...] = value

    return property(read, write if name in ("real", "imag") else None, doc=f"As ``torch.Tensor.{name}``.")


def _plain_attribute(name: str) -> property:
    def read(self: Any) -> Any:
        return self._read(name)

    return property(read, doc=f"As ``torch.Tensor.{name}``.")


def _install() -> None:
    """Give ``TensorMethods`` every operator, and every public method and property of torch's that it does not define itself."""
    for short in OPERATORS:
        setattr(TensorMethods, f"__{short}__", _operator(f"__{short}__"))
    for name in ATTRIBUTES:
        setattr(TensorMethods, name, _attribute(name))
    for name in (*dir(torch.Tensor), *OF_SPARSE):
        if (name in OF_SPARSE or not name.startswith("_")) and name not in TensorMethods.__dict__:
            found = getattr(torch.Tensor, name)
            setattr(TensorMethods, name, _method(name) if callable(found) else _plain_attribute(name))
    TensorMethods.__hash__ = object.__hash__  # type: ignore[method-assign]  # tensors hash by identity, though == is elementwise


OF_SPARSE = ("_indices", "_nnz", "_values")  # methods that are public but for their names
ATTRIBUTES = ("T", "mT", "H", "mH", "real", "imag")

_install()
