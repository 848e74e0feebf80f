"""Which record a torch callable means: ``bind(torch.add, (x, 2), {})`` gives the record and its arguments in schema order.

Most callables name their record (``Op.functions``) and are bound by its schema. :mod:`~tinycompile.ops.spellings` and
:mod:`~tinycompile.ops.spellings_tensors` hold the rest: callables with other parameters than the schema, and families in which
the arguments choose the record.
"""

from __future__ import annotations

import builtins
import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tinycompile.base.dtypes import FLOAT8
from tinycompile.base.expr import Expr
from tinycompile.base.meta import TensorMeta
from tinycompile.dispatch.schema import Argument, Schema
from tinycompile.ops.meta_rules import SUPPORTED
from tinycompile.ops.outline import Outlined
from tinycompile.ops.randomness import DRAWS_IN_PLACE
from tinycompile.ops.record import OPS, BoundCall, Op

Args = tuple[Any, ...]
Kwargs = Mapping[str, Any]
Binder = Callable[[Args, dict[str, Any]], "BoundCall | None"]

ROOTS: dict[str, Any] = {"torch": torch, "operator": operator, "builtins": builtins}
_PYTHON_DTYPES = {float: torch.float64, int: torch.int64, bool: torch.bool}
KEYWORDS = {"input": "self", "axis": "dim"}  # torch's other names for arguments, everywhere
_KEYWORDS = {"input": "self", "axis": "dim", "keepdims": "keepdim", "x": "self"}  # ... and in most places
_FACTORY = {
    "layout": (None, torch.strided),
    "pin_memory": (None, False),
    "requires_grad": (None, False),
}  # the values that change nothing
INPLACE_OPERATORS = frozenset(
    f"i{n}" for n in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift")
)

_BINDERS: dict[Any, Binder] = {}
_NAMES: dict[Any, list[str]] = {}  # dotted, of each callable
_METHODS: dict[str, Any] = {}  # torch.Tensor's attributes, by name
_OF_TENSORS: set[Any] = set()  # functions that are methods: their first argument can't be a number


# ---------------------------------------------------------------------------------------------------------------- public


def bind(fn: Any, args: Sequence[Any], kwargs: Kwargs | None = None) -> BoundCall | None:
    """The record that a call of ``fn`` means, or None: then the call stays torch's own.

    Tensors may be torch's, ours, fakes or TensorMetas."""
    try:
        binder = _BINDERS.get(fn)
    except TypeError:  # an unhashable callable is none of torch's
        return None
    if binder is None:
        return None
    known = _understood(args) and not (kwargs and not _understood(kwargs.values()))
    if not known and not _understood((*args, *(kwargs or {}).values()), _MOVED):
        return None
    if fn in _OF_TENSORS and not (args and is_tensor(args[0])):
        return None
    found = binder(tuple(args), dict(kwargs) if kwargs else {})
    return found if known or found is None or _only_moves(found) else None


def _only_moves(call: BoundCall) -> bool:
    """Whether a call takes float8, which is not computed with."""
    return call.op.moves and not call.inplace and call.out is None and not call.unsafe


def bind_method(name: str, args: Sequence[Any], kwargs: Kwargs | None = None) -> BoundCall | None:
    """``bind`` for ``torch.Tensor.<name>``; ``args[0]`` is the tensor."""
    fn = _METHODS.get(name)
    if fn is None:
        fn = _METHODS[name] = getattr(torch.Tensor, name, None)
    return None if fn is None else bind(fn, args, kwargs)


def bind_attribute(name: str, x: Any = None) -> Any:
    """The record call that reading ``x.<name>`` means (T, mT, H, mH); without ``x``: whether it is one (its binder or None)."""
    binder = _ATTRIBUTES.get(name)
    if x is None or binder is None:
        return binder
    return binder((x,), {}) if _understood((x,)) else None


def function(name: str) -> Any:
    """torch's public function of that name that has a record (``softmax``, ``gelu``, ``vector_norm``), or is called as one is
    (``polygamma``); or None."""
    for where in (torch, torch.nn.functional, torch.special, torch.linalg):
        found = getattr(where, name, None)
        if found is not None and (known(found) or name in OPS):
            return found
    return None


def binder_of(name: str) -> Binder:
    """How ``torch.<name>``, or where there is none ``torch.Tensor.<name>``, is bound."""
    return _BINDERS[getattr(torch, name, None) or getattr(torch.Tensor, name)]


def functions_of(name: str) -> tuple[str, ...]:
    """Dotted names of the callables of which some call means the record."""
    return tuple(dict.fromkeys(dotted for fn, names in _NAMES.items() if name in records_of(fn) for dotted in names))


def records_of(fn: Any) -> set[str]:
    """The records that calls of ``fn`` may mean, as far as its binder tells: by its own name, and what it is made with."""
    parts = [dotted.split(".") for dotted in _NAMES.get(fn, ())]
    own = {(p[3] if p[:2] == ["torch", "ops"] and len(p) > 3 else p[-1]).strip("_") for p in parts} & OPS.keys()
    return own | _made_with(_BINDERS[fn]) if fn in _BINDERS else set()


def _made_with(value: Any) -> set[str]:
    if isinstance(value, SchemaBinder):
        return {value.op.name}
    if isinstance(value, str):
        return {value} & OPS.keys()
    if isinstance(value, (tuple, dict)):
        return {name for v in (value.values() if isinstance(value, dict) else value) for name in _made_with(v)}
    inner = [value.bind] if hasattr(value, "bind") else [c.cell_contents for c in getattr(value, "__closure__", None) or ()]
    return {name for v in inner for name in _made_with(v)}


def names_one_op(fn: Any) -> bool:
    """Whether every call of ``fn`` that has a record has the same one."""
    return type(_BINDERS.get(fn)) is SchemaBinder


def known(fn: Any) -> bool:
    """Whether some call of ``fn`` has a record."""
    try:
        return fn in _BINDERS
    except TypeError:
        return False


def resolve(dotted: str) -> Any:
    """The object that a dotted name names, or None where this torch has none."""
    parts = dotted.split(".")
    found = ROOTS[parts[0]]
    for part in parts[1:]:
        found = getattr(found, part, None)
        if found is None:
            return None
    return found


# --------------------------------------------------------------------------------------------------------- one record


def is_tensor(value: Any) -> bool:
    """A tensor of any kind: what has torch's dtype and a shape (an array of numpy's has its own dtype)."""
    found = _ARE_TENSORS.get(type(value))
    if found is None:
        found = isinstance(value, (torch.Tensor, TensorMeta)) or (
            isinstance(getattr(value, "dtype", None), torch.dtype) and hasattr(value, "shape") and hasattr(value, "device")
        )
        _ARE_TENSORS[type(value)] = found
    return found


_ARE_TENSORS: dict[type, bool] = {}  # what was found out about each class


_STRIDED = torch.strided
_MOVED = SUPPORTED | FLOAT8
_SIMPLE = frozenset((int, float, bool, str, type(None), torch.dtype, slice))


def _understood(values: Any, dtypes: frozenset[torch.dtype] = SUPPORTED) -> bool:
    """Whether every tensor is a strided one of a dtype that records know; complex, quantised and sparse ones are torch's."""
    for value in values:
        kind = type(value)
        if kind in _SIMPLE:
            continue
        if kind in (tuple, list):
            if not _understood(value, dtypes):
                return False
        elif kind is complex:
            return False
        else:
            dtype = getattr(value, "dtype", None)
            if dtype is not None and (dtype not in dtypes or getattr(value, "layout", _STRIDED) is not _STRIDED):
                return False
    return True


class OpObject:
    """A callable object that is an op, bound like torch's functions: base of the program's own ops."""


class SchemaBinder:
    """Binds a call by the record's schema: renames keywords, makes tuples of lists, sets aside ``out`` and ``inplace``."""

    __slots__ = ("fixes", "inplace", "needs_tensor", "numbers", "op", "outlined", "takes", "varargs")

    def __init__(self, op: Op, inplace: bool = False, varargs: bool = False) -> None:
        self.op, self.inplace = op, inplace
        self.varargs = _first_list(op.schema) if varargs else None
        self.fixes = tuple((i, _FIXES[kind]) for i, a in enumerate(op.schema.args) if (kind := _kind(a)) in _FIXES)
        self.numbers = tuple(i for i, a in enumerate(op.schema.args) if a.base in _NUMBERS and not a.is_list)
        self.takes = tuple(_taken(a) for a in op.schema.args)
        self.needs_tensor = op.schema.args[0].base == "Tensor"
        self.outlined = op.rule if isinstance(op.rule, Outlined) else None

    def __call__(self, args: Args, kwargs: dict[str, Any]) -> BoundCall | None:
        if self.varargs is not None and len(args) > self.varargs and not isinstance(args[self.varargs], (tuple, list)):
            args = (*args[: self.varargs], args[self.varargs :])
        out = None
        inplace = self.inplace
        if kwargs:
            out = kwargs.pop("out", None)
            inplace = bool(kwargs.pop("inplace", False)) or inplace
            kwargs = self._renamed(kwargs)
        try:
            values = self.op.schema.bind(args, kwargs)
        except TypeError:  # another overload, or a wrong call: torch's own to judge
            return None
        if self.fixes:
            fixed = list(values)
            for i, fix in self.fixes:
                fixed[i] = fix(fixed[i])
            values = tuple(fixed)
        for value, taken in zip(values, self.takes, strict=True):
            if type(value) not in taken.types and not taken.has(value):  # of another kind: torch's own to judge
                return None
        for i in self.numbers:
            if type(values[i]) not in _SIMPLE and is_tensor(values[i]):  # a number that is only known at run time
                return None
        if self.needs_tensor and not _has_tensor(values):
            return None
        if inplace and not is_tensor(values[0]):
            inplace = False
        if self.outlined is not None and not self.outlined.covers(values):  # a wrong call, or a case left to torch
            return None
        return BoundCall(self.op, values, inplace, out)

    def _renamed(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        positions = self.op.schema.positions
        renamed: dict[str, Any] = {}
        for name, value in kwargs.items():
            if name not in positions:
                if name in _FACTORY and value in _FACTORY[name]:
                    continue
                name = _KEYWORDS.get(name, name)
            renamed[name] = value
        return renamed


_Types = frozenset[type]
_NONE: _Types = frozenset()

# Types of values with which records are called, by the schema's type; tensors and symbolic numbers besides.
_TAKEN: dict[str, _Types] = {
    "Tensor": frozenset((int, float, bool, complex)),
    "Scalar": frozenset((int, float, bool, complex)),
    "int": frozenset((int,)),
    "SymInt": frozenset((int,)),
    "float": frozenset((int, float)),
    "bool": frozenset((bool,)),
    "str": frozenset((str,)),
    "ScalarType": frozenset((torch.dtype,)),
}


@dataclass(frozen=True, slots=True)
class _Taken:
    """What an argument takes. ``types``: of values that are right as they are. ``inner``: of the elements of a list, None for
    what is no list. ``tensors``: whether tensors are meant; for a number of the schema one is never right."""

    types: _Types
    inner: _Types | None
    tensors: bool
    anything: bool

    def has(self, value: Any) -> bool:
        if self.anything or isinstance(value, Expr) or (self.tensors and is_tensor(value)):
            return True
        if self.inner is None or type(value) is not tuple:
            return _is_number(value, self.types)
        return all(type(v) in self.inner or _is_number(v, self.inner) or (self.tensors and is_tensor(v)) for v in value)


def _is_number(value: Any, types: _Types) -> bool:
    """A symbolic number, or one of a class that derives from a number's (an IntEnum)."""
    return isinstance(value, Expr) or (type(value) is not bool and any(t in types for t in type(value).__mro__[1:]))


def _taken(arg: Argument) -> _Taken:
    types, tensors = _TAKEN.get(arg.base, _NONE), arg.base == "Tensor"
    other = {type(None)} if arg.optional or arg.default is None else set()
    if arg.is_list:
        return _Taken(frozenset(other), types | {type(None)} if tensors else types, tensors, not types)
    return _Taken(types | other, None, tensors, not types)


_NUMBERS = frozenset(("Scalar", "float", "int", "SymInt", "bool"))


def _has_tensor(values: Args) -> bool:
    for value in values:
        if type(value) is tuple:
            if _has_tensor(value):
                return True
        elif type(value) not in _SIMPLE and is_tensor(value):
            return True
    return False


def _first_list(schema: Schema) -> int | None:
    return next((i for i, a in enumerate(schema.args) if a.is_list and a.base in ("int", "SymInt")), None)


def _kind(arg: Argument) -> str:
    if arg.is_list:
        return "tensors" if arg.base == "Tensor" else "sizes" if "SymInt[]" in arg.type else "numbers"
    return arg.base


def _numbers(value: Any) -> Any:
    """One number stands for a list of them."""
    return value if value is None else tuple(value) if isinstance(value, (tuple, list)) else (value,)


def _sizes(value: Any) -> Any:
    """A list of any length is always a list, as in torch."""
    return tuple(value) if isinstance(value, (tuple, list)) else value


def _tensors(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _dtype(value: Any) -> Any:
    return _PYTHON_DTYPES.get(value, value) if isinstance(value, type) else value


_FIXES: dict[str, Callable[[Any], Any]] = {
    "numbers": _numbers, "sizes": _sizes, "tensors": _tensors, "ScalarType": _dtype
}  # fmt: skip


def call_of(name: str, *args: Any, **kwargs: Any) -> BoundCall | None:
    """Bind straight to a record by its name."""
    return _by_schema(name)(args, kwargs)


@functools.cache
def _by_schema(name: str) -> SchemaBinder:
    return SchemaBinder(OPS[name])


# --------------------------------------------------------------------------------------------------------- building it

# Records whose list of sizes or dims may be given as separate arguments to a method; functions, but for ``empty``, take a list.
VARARGS = frozenset(("view", "reshape", "permute", "expand", "repeat", "tile", "flip", "empty"))
_ATTRIBUTES: dict[str, Binder] = {}


def add(fn: Any, binder: Binder) -> None:
    """Make ``bind`` use ``binder`` for a callable (a dotted name, or the object); the last one wins."""
    found = resolve(fn) if isinstance(fn, str) else fn
    if found is not None:
        _BINDERS[found] = binder
        _NAMES.setdefault(found, []).append(fn if isinstance(fn, str) else f"torch.ops.{fn}")
        if isinstance(fn, str) and fn.startswith("torch.Tensor."):
            _OF_TENSORS.add(found)


def add_attribute(name: str, binder: Binder) -> None:
    """Make reading ``tensor.<name>`` an op."""
    _ATTRIBUTES[name] = binder


def add_record(op: Op) -> None:
    """Every spelling in ``op.functions``, with the in-place twin of each (a trailing underscore).

    A view has none: ``t_()`` and its like change a tensor's metadata, not its data. Nor has ``bernoulli``: its twin does not
    look at what it overwrites."""
    writes = f"{op.name}_" not in DRAWS_IN_PLACE and not any(r.alias for r in op.schema.returns)
    for dotted in op.functions:
        last = dotted.rsplit(".", 1)[1]
        inplace = last.strip("_") in INPLACE_OPERATORS
        add(dotted, _binder(op, inplace, dotted))
        if writes and not last.endswith("_") and not dotted.startswith(("operator.", "builtins.")):
            add(f"{dotted}_", _binder(op, True, dotted))


def _binder(op: Op, inplace: bool, dotted: str) -> Binder:
    if op.name not in VARARGS:
        return SchemaBinder(op, inplace)
    if op.name == "empty" or ".Tensor." in dotted:
        return SchemaBinder(op, inplace, varargs=True)
    return in_one_list(SchemaBinder(op, inplace), _first_list(op.schema) or 0)


def in_one_list(bind: Binder, at: int) -> Binder:
    """Where the argument ``at`` is given by position, it is a list."""
    return lambda args, kwargs: bind(args, kwargs) if len(args) <= at or isinstance(args[at], (tuple, list)) else None
