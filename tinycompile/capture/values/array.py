"""numpy arrays: computed while capturing. One that the function makes is the array itself; of one from outside the layout is
guarded, and its contents when they are first looked into. Tensors made of arrays: ``rules/numpy_functions.py``."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tinycompile.capture.breaks import GraphBreak
from tinycompile.capture.provenance import natively
from tinycompile.capture.sources import Source, is_argument
from tinycompile.capture.values.base import Kwargs, MethodOf, Value
from tinycompile.capture.values.classes import ClassValue
from tinycompile.capture.values.constant import NONE, Const
from tinycompile.capture.values.function import BuiltinValue
from tinycompile.capture.values.sequence import ListValue, SequenceValue, SliceValue, TupleValue
from tinycompile.capture.values.tensor import TensorValue

if TYPE_CHECKING:
    from tinycompile.capture.tracer import Tracer

_LARGEST = 1 << 16  # bytes of an array from outside that each call compares
_LAYOUT = frozenset({"shape", "strides", "ndim", "size", "itemsize", "nbytes", "dtype"})
_VIEWS = frozenset({"T", "mT", "real", "imag"})
# Methods that only read, and how many arguments come before ``out``.
_READING = {
    "all": 1, "any": 1, "argmax": 1, "argmin": 1, "argpartition": 4, "argsort": 4, "astype": 5, "choose": 1, "clip": 2,
    "compress": 2, "conj": 0, "conjugate": 0, "copy": 1, "cumprod": 2, "cumsum": 2, "diagonal": 3, "dot": 1, "flatten": 1,
    "item": 9, "max": 1, "mean": 2, "min": 1, "nonzero": 0, "prod": 2, "ravel": 1, "repeat": 2, "reshape": 9, "round": 1,
    "searchsorted": 3, "squeeze": 1, "std": 2, "sum": 2, "swapaxes": 2, "take": 2, "tobytes": 1, "tolist": 0, "trace": 4,
    "transpose": 9, "var": 2, "view": 1,
}  # fmt: skip
_WRITING = frozenset({"fill", "put", "sort", "partition"})
_OPERATORS = {
    "__len__": len, "__getitem__": operator.getitem, "__contains__": operator.contains, "__float__": float, "__int__": int,
    "__bool__": bool, "__abs__": abs, "__index__": operator.index,
}  # fmt: skip


def owner(array: np.ndarray) -> np.ndarray:
    """The array whose memory this one shows."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


@dataclass
class Arrays:
    """What a capture knows of arrays, by id of the array; of memory, by id of the array that owns it."""

    values: dict[int, ArrayValue] = field(default_factory=dict)
    outside: dict[int, ArrayValue] = field(default_factory=dict)  # arrays from outside, by what was copied of them
    tensors: dict[int, tuple[TensorValue, np.ndarray]] = field(default_factory=dict)  # on the memory of such an array

    def clear(self) -> None:
        """Forget all."""
        for known in (self.values, self.outside, self.tensors):
            known.clear()


class Contents:
    """The guard: an array of known dtype and shape holds these bytes."""

    def __init__(self, array: np.ndarray) -> None:
        self.data = array.tobytes()

    def holds(self, array: np.ndarray) -> bool:
        """Whether it still does."""
        return array.tobytes() == self.data


class ArrayValue(Value):
    """A ``numpy.ndarray``. ``obj``: one from outside; ``array``: what is computed with, None before anybody looked."""

    __slots__ = ("array", "obj")

    def __init__(self, array: np.ndarray | None, source: Source | None = None, obj: np.ndarray | None = None) -> None:
        super().__init__(source)
        self.array, self.obj = array, obj

    def python_type(self, tr: Tracer) -> type:
        return np.ndarray

    def describe(self) -> str:
        return "a numpy array" if self.source is None else f"numpy array {self.source.label}"

    def key(self, tr: Tracer) -> Any:
        raise TypeError("unhashable type: 'numpy.ndarray'")

    @property
    def layout(self) -> np.ndarray:
        """An array of its dtype, shape and strides; what it holds is not to be read."""
        found = self.array if self.obj is None else self.obj
        assert found is not None
        return found

    def contents(self, tr: Tracer) -> np.ndarray:
        """The array, to read."""
        array = self.array
        if array is None:
            array = self.array = self._look(tr)
        shared = tr.arrays.tensors.get(id(owner(array)))
        if shared is not None and shared[0].memory.writes:
            raise GraphBreak("side-effect", f"{self.describe()} is read after a tensor in its memory was written")
        return array

    def _look(self, tr: Tracer) -> np.ndarray:
        """A copy of one from outside, whose contents are guarded from here on."""
        assert self.obj is not None and self.source is not None
        if self.obj.nbytes > _LARGEST:
            raise GraphBreak("unsupported-value", f"{self.describe()} is too large to be compared in each call")
        if tr.resumed and is_argument(self.source):
            raise GraphBreak("data-dependent", f"{self.describe()} is read, which may hold something else in each call")
        found, at = Contents(self.obj), f"contents({self.source.text})"
        tr.constants_seen[at] = found.data
        if any(e.constants_seen.get(at, found.data) != found.data for e in tr.options.earlier):
            raise GraphBreak("data-dependent", f"{self.describe()} holds something else from call to call")
        held = tr.guards.hold(found, "contents").name
        tr.guards.check(f"{held}.holds({self.source.text})", f"what {self.source.label} holds")
        copy = self.obj.copy(order="K")
        copy.setflags(write=self.obj.flags.writeable)
        tr.arrays.values[id(copy)] = tr.arrays.outside[id(copy)] = self
        return copy

    def writable(self, tr: Tracer) -> np.ndarray:
        """The array, to write to."""
        if self.source is not None or id(owner(self.contents(tr))) in tr.arrays.outside:
            raise GraphBreak("side-effect", f"{self.describe()} was written")
        array = self.contents(tr)
        if id(owner(array)) in tr.arrays.tensors:
            raise GraphBreak("side-effect", f"{self.describe()} was written, whose memory a tensor shares")
        return array

    # --- attributes ---

    def get_attr(self, tr: Tracer, name: str) -> Value:
        if name in _LAYOUT:
            return tr.from_python(getattr(self.layout, name))
        if name in _VIEWS:
            return result(tr, natively(getattr, self.contents(tr), name))
        if not hasattr(np.ndarray, name):
            natively(getattr, self.layout, name)  # Python's own complaint
        if name in _READING or name in _WRITING or name in _OPERATORS:
            return MethodOf(self, name)
        return tr.from_python(np.ndarray) if name == "__class__" else super().get_attr(tr, name)

    def call_method(self, tr: Tracer, name: str, args: Sequence[Value], kwargs: Kwargs) -> Value:
        if name in _OPERATORS:
            return call(tr, _OPERATORS[name], [self, *args], kwargs)
        writes = name in _WRITING
        if not writes and (len(args) > _READING.get(name, -1) or not kwargs.keys().isdisjoint(("out", "where"))):
            raise GraphBreak("unsupported-value", f"{name}() of {self.describe()} with these arguments")
        array = self.writable(tr) if writes else self.contents(tr)
        given, named = plain(tr, args), {k: plain_one(tr, v) for k, v in kwargs.items()}
        return result(tr, quietly(getattr(array, name), *given, **named), array)

    # --- operations ---

    def truth(self, tr: Tracer) -> bool:
        return bool(natively(bool, self.contents(tr)))

    def length(self, tr: Tracer) -> Value:
        return Const(natively(len, self.layout))

    def get_item(self, tr: Tracer, key: Value) -> Value:
        return call(tr, operator.getitem, [self, key], {})

    def set_item(self, tr: Tracer, key: Value, value: Value) -> None:
        at, given = plain_one(tr, key), plain_one(tr, value)
        quietly(operator.setitem, self.writable(tr), at, given)

    def iterate(self, tr: Tracer) -> Iterator[Value]:
        natively(iter, self.layout)
        return (self.get_item(tr, Const(i)) for i in range(len(self.layout)))

    def contains(self, tr: Tracer, item: Value) -> bool:
        return bool(natively(operator.contains, self.contents(tr), plain_one(tr, item)))


# --- computing ----------------------------------------------------------------------------------------------


def plain_one(tr: Tracer, value: Value) -> Any:
    """What numpy is given for a Value."""
    if isinstance(value, ArrayValue):
        return value.contents(tr)
    if isinstance(value, SequenceValue):
        return value.rebuild([plain_one(tr, v) for v in value.values(tr)])
    if isinstance(value, SliceValue):
        return slice(*(plain_one(tr, p) for p in value.parts))
    if isinstance(value, ClassValue):
        return value.cls
    if isinstance(value, BuiltinValue) and isinstance(value.fn, np.ufunc):
        return value.fn
    return value.constant(tr)


def plain(tr: Tracer, values: Sequence[Value]) -> list[Any]:
    """The same for several."""
    return [plain_one(tr, v) for v in values]


def quietly(fn: Any, *args: Any, **kwargs: Any) -> Any:
    """A call of numpy's, whose errors are the program's. What warns would have to warn in each call."""
    with np.errstate(divide="raise", over="raise", invalid="raise"):
        try:
            return natively(fn, *args, **kwargs)
        except FloatingPointError as error:
            raise GraphBreak("warns", str(error)) from None


def call(tr: Tracer, fn: Any, args: Sequence[Value], kwargs: Kwargs) -> Value:
    """A call of a function that only reads its arguments."""
    if not kwargs.keys().isdisjoint(("out", "where", "like")):
        raise GraphBreak("unsupported-value", f"{fn.__name__}() with out=, where= or like=")
    given, named = plain(tr, args), {k: plain_one(tr, v) for k, v in kwargs.items()}
    return result(tr, quietly(fn, *given, **named), *given, *named.values())


def concerns(*operands: Value) -> bool:
    """Whether numpy decides what an operator between these means."""
    of_numpy = any(isinstance(v, Const) and isinstance(v.value, (np.generic, np.dtype)) for v in operands)
    converted = any(isinstance(v, (ListValue, TupleValue, ClassValue)) for v in operands)
    return any(isinstance(v, ArrayValue) for v in operands) or (of_numpy and converted)


def binary(tr: Tracer, fn: Any, a: Value, b: Value, inplace: bool) -> Value:
    """An operator; ``inplace``: one that writes to its first operand, if that is an array."""
    if not inplace or not isinstance(a, ArrayValue):
        return call(tr, fn, [a, b], {})
    target, given = a.writable(tr), plain_one(tr, b)
    return result(tr, quietly(fn, target, given), target, given)


def result(tr: Tracer, found: Any, *given: Any) -> Value:
    """The Value of what numpy returned. ``given``: the arguments, in whose memory it may lie."""
    if isinstance(found, np.ndarray):
        return _array(tr, found, given)
    if isinstance(found, list):
        return ListValue([result(tr, f, *given) for f in found])
    if isinstance(found, tuple):
        return TupleValue([result(tr, f, *given) for f in found], cls=type(found))
    if found is None:
        return NONE
    made = tr.from_python(found) if any(found is g for g in given) else tr.computed(found)
    if not made.is_constant:
        raise GraphBreak("unsupported-value", f"numpy gives a {type(found).__name__}")
    return made


def _array(tr: Tracer, found: np.ndarray, given: Sequence[Any]) -> Value:
    known = tr.arrays.values.get(id(found))
    if known is not None:
        return known
    root = owner(found)
    foreign = root.base is not None and any(isinstance(g, np.ndarray) and np.may_share_memory(found, g) for g in given)
    if type(found) is not np.ndarray or found.dtype.hasobject or foreign:
        raise GraphBreak("unsupported-value", f"a numpy array of class {type(found).__name__} and dtype {found.dtype}")
    made = tr.arrays.values[id(found)] = ArrayValue(found)
    return made


# --- made again ---------------------------------------------------------------------------------------------


def shown_in(memory: np.ndarray, layout: tuple[Any, ...], offset: int, writable: bool) -> np.ndarray:
    """An array in another's memory: ``layout`` is its shape, dtype and strides; ``offset`` in bytes."""
    shape, dtype, strides = layout
    made: np.ndarray = np.ndarray(shape, dtype, memory.ravel(order="K"), offset, strides)
    if not writable:
        made.setflags(write=False)
    return made


def address(array: np.ndarray) -> int:
    """Where its first element lies."""
    return int(array.__array_interface__["data"][0])
