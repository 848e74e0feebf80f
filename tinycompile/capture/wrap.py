"""From Python objects to Values. One with a source gets the guards that its Value needs; one without is trusted to stay."""

from __future__ import annotations

import enum
import functools
from collections import OrderedDict
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    FunctionType,
    MethodDescriptorType,
    MethodType,
    MethodWrapperType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import TYPE_CHECKING, Any

import torch

from tinycompile.base.device import Device
from tinycompile.capture import signature
from tinycompile.capture.breaks import GraphBreak
from tinycompile.capture.guards import is_aligned
from tinycompile.capture.sources import Attr, Held, HeldItem, Item, Local, Source
from tinycompile.capture.values.base import Lazy, MethodOf, Value
from tinycompile.capture.values.constant import LITERALS, Const, is_constant_object
from tinycompile.capture.values.context import GradMode
from tinycompile.capture.values.function import BoundFunction, BuiltinValue, Cell, CodeConstant, FunctionValue, PartialValue
from tinycompile.capture.values.mapping import DictValue
from tinycompile.capture.values.module import ModuleValue
from tinycompile.capture.values.object import ClassValue, ObjectValue, PyModuleValue
from tinycompile.capture.values.opaque import Opaque
from tinycompile.capture.values.sequence import ListValue, SetValue, SliceValue, TupleValue
from tinycompile.capture.values.symbolic import SymInt
from tinycompile.eager.tensor import Tensor as OurTensor

if TYPE_CHECKING:
    from tinycompile.capture.tracer import Tracer

BUILTIN_TYPES = (
    BuiltinFunctionType,
    MethodDescriptorType,
    WrapperDescriptorType,
    MethodWrapperType,
    torch._ops.OpOverloadPacket,
    torch._ops.OpOverload,
)
# Packages whose attributes are taken not to change.
_TRUSTED = frozenset(
    {
        "torch",
        "builtins",
        "math",
        "operator",
        "functools",
        "itertools",
        "collections",
        "typing",
        "numbers",
        "enum",
        "types",
        "abc",
        "contextlib",
        "inspect",
        "warnings",
        "copy",
        "tinycompile",
        "dataclasses",
    }
)


def is_trusted(module_name: str | None) -> bool:
    """Whether a module is the standard library's or torch's: not guarded inside."""
    return (module_name or "").partition(".")[0] in _TRUSTED


# --- with a source ------------------------------------------------------------------------------------------


def wrap(tr: Tracer, obj: Any, source: Source) -> Value:
    """The Value of an object from outside, guarded. Where breaks can be resumed, one that can't be modelled is Opaque."""
    if not tr.options.resume:
        return _wrap(tr, obj, source)
    try:
        return _wrap(tr, obj, source)
    except GraphBreak as why:
        return Opaque(source, why)


def _wrap(tr: Tracer, obj: Any, source: Source) -> Value:
    if is_constant_object(obj):
        return _constant(tr, obj, source)
    if isinstance(obj, (torch.Tensor, OurTensor)):
        return _tensor(tr, obj, source)
    rule = _RULES.get(type(obj))
    if rule is not None:
        return rule(tr, obj, source)
    if isinstance(obj, (torch.nn.Module, ModuleType)):
        return pinned(tr, obj, source)
    if isinstance(obj, tuple) and (hasattr(obj, "_fields") or type(obj).__module__ == "torch.return_types"):
        return _tuple(tr, obj, source)
    if isinstance(obj, (type, *BUILTIN_TYPES)) or type(obj).__module__ == "tinycompile.api":
        return pinned(tr, obj, source)
    if isinstance(obj, (list, tuple, dict, set, torch.Generator, BaseException)):
        raise GraphBreak("unsupported-value", f"{source.label} is a {type(obj).__module__}.{type(obj).__qualname__}")
    return _object(tr, obj, source)


def has_identity(obj: Any) -> bool:
    """Whether it matters that two names are one object: it can change, and Values are not shared in another way."""
    kind = type(obj)
    return kind in _CONTAINERS or not (
        is_constant_object(obj)
        or kind in _RULES
        or isinstance(obj, (torch.Tensor, OurTensor, torch.nn.Module, ModuleType, tuple, type, *BUILTIN_TYPES))
    )


_CONTAINERS = (list, dict, set, OrderedDict)


def pin(tr: Tracer, obj: Any, source: Source, hint: str | None = None) -> Held:
    """Guard that the source still gives this very object, and hold it."""
    if isinstance(source, Held):
        return source
    held = tr.guards.hold(obj, hint or source.label, source.label)
    if isinstance(source, HeldItem):
        tr.guards.item(source, obj, equal=False)
    else:
        tr.guards.check(f"{source.text} is {held.name}", f"{source.label} is {held.shown}")
    return held


def pinned(tr: Tracer, obj: Any, source: Source) -> Value:
    """The Value of an object whose identity is guarded; one Value an object."""
    held = pin(tr, obj, source)
    found = tr.pinned.get(id(obj))
    if found is None:
        found = tr.pinned[id(obj)] = from_callable(tr, obj, held)
    return found


def from_callable(tr: Tracer, obj: Any, source: Held | None = None) -> Value:
    """Functions, classes, modules, methods: objects whose identity is known already."""
    if isinstance(obj, FunctionType):
        return _function(tr, obj, source)
    if isinstance(obj, type):
        return ClassValue(obj, source)
    if isinstance(obj, ModuleType):
        return PyModuleValue(obj, source)
    if isinstance(obj, MethodType):
        owner = tr.guards.hold(obj.__self__, "self")
        return BoundFunction(from_callable(tr, obj.__func__), tr.wrap(obj.__self__, owner), source)
    if isinstance(obj, torch.nn.Module):
        return ModuleValue(obj, source or tr.guards.hold(obj, "module"))
    if type(obj).__module__ == "tinycompile.api" and hasattr(
        obj, "original"
    ):  # a compiled function inside another: its original
        return from_callable(tr, obj.original)
    if isinstance(obj, functools.partial):
        return PartialValue(
            from_callable(tr, obj.func),
            [from_python(tr, a) for a in obj.args],
            {k: from_python(tr, v) for k, v in obj.keywords.items()},
            source,
        )
    return BuiltinValue(obj, source)


def _constant(tr: Tracer, obj: Any, source: Source) -> Value:
    if tr.resumed and not isinstance(source, (Held, HeldItem)) and tr.options.unstable(source.text, obj):
        tr.constants_seen[source.text] = obj
        raise GraphBreak("data-dependent", f"{source.label} is a value that differs from call to call")
    plain = isinstance(source, (Local, Item, Attr)) or (isinstance(source, HeldItem) and not source.pinned)
    if type(obj) is int and plain and tr.is_dynamic_int(source.text, obj):
        return _symbolic_int(tr, obj, source)
    if isinstance(source, Held):
        return Const(obj, source)
    if isinstance(source, HeldItem) and source.pinned:  # a parameter that is None
        tr.guards.item(source, obj, equal=False)
        return Const(obj, source)
    if isinstance(obj, (enum.Enum, torch.dtype)):
        pin(tr, obj, source, "constant")
    elif isinstance(source, HeldItem) and type(obj) in LITERALS:
        has_twin = isinstance(obj, float) and (
            obj == 0 or obj != obj
        )  # -0.0 == 0.0, and NaN differs from itself: go by identity
        tr.guards.item(source, obj, equal=not has_twin)
    else:
        tr.guards.check(tr.guards.equals(source.text, obj), f"{source.label} == {obj!r}")
    tr.constants_seen[source.text] = obj
    return Const(obj, source)


def _symbolic_int(tr: Tracer, obj: int, source: Source) -> Value:
    dim = tr.new_size(obj)
    tr.guards.check(
        f"_type({source.text}) is {tr.guards.hold(int, 'int_').name} and ({dim} := {source.text}) >= 2",
        f"{source.label} is a size, {dim}",
    )
    tr.add_number(source, str(dim), obj)
    tr.constants_seen[source.text] = obj
    return SymInt(dim, source)  # type: ignore[arg-type]


# --- tensors ------------------------------------------------------------------------------------------------


def _tensor(tr: Tracer, obj: Any, source: Source) -> Value:
    if isinstance(obj, OurTensor):
        if type(obj) is not OurTensor:
            raise GraphBreak("tensor-kind", f"{source.label} is a {type(obj).__qualname__}")
        signature.check_plain(obj.torch(), source.label)
        signature.guard_ours(tr, obj, source)
        meta = signature.symbolic_meta(tr, obj.torch(), ())
        return tr.add_tensor(source, obj, meta, is_aligned(obj.torch()))
    signature.check_plain(obj, source.label)
    if isinstance(source, Held) or (isinstance(source, HeldItem) and source.pinned):
        return _pinned_tensor(tr, obj, source)
    dynamic = tr.dynamic_dims(source.text, obj)
    meta = signature.symbolic_meta(tr, obj, dynamic)
    if dynamic:
        signature.guard_symbolic(tr, obj, meta, source)
    else:
        signature.guard_static(tr, obj, source)
    return tr.add_tensor(source, obj, meta, is_aligned(obj))


def _pinned_tensor(tr: Tracer, obj: torch.Tensor, source: Source) -> Value:
    """A module's tensor: identity and signature are guarded in bulk, and the rebuilt code holds the object itself."""
    held = pin(tr, obj, source)
    found = tr.pinned.get(id(obj))
    if found is None:
        tr.guards.held_tensor(held)
        meta = signature.symbolic_meta(tr, obj, ())
        found = tr.pinned[id(obj)] = tr.add_tensor(held, obj, meta, is_aligned(obj))
    return found


# --- containers ---------------------------------------------------------------------------------------------


def _guard_type(tr: Tracer, obj: Any, source: Source, more: str = "", label: str = "") -> Source:
    """Guard the class (and ``more``, with ``{}`` for the expression); what is held already is known by identity."""
    if isinstance(source, (Held, HeldItem)):
        source = pin(tr, obj, source)
        if more:
            tr.guards.check(more.format(source.text), f"{source.label}: {label}")
        return source
    cls = tr.guards.hold(type(obj), type(obj).__name__ + "_")
    text = f"_type({source.text}) is {cls.name}" + (f" and {more.format(source.text)}" if more else "")
    tr.guards.check(text, f"{source.label} is a {type(obj).__name__}" + (f", {label}" if label else ""))
    return source


def _tuple(tr: Tracer, obj: tuple[Any, ...], source: Source) -> Value:
    if isinstance(source, (Held, HeldItem)):
        source = pin(tr, obj, source)
        return TupleValue(
            [Const(o) if is_constant_object(o) else Lazy(o, Item(source, i)) for i, o in enumerate(obj)], source, type(obj)
        )
    source = _guard_type(tr, obj, source, f"_len({{}}) == {len(obj)}", f"{len(obj)} items")
    return TupleValue([Lazy(o, Item(source, i)) for i, o in enumerate(obj)], source, type(obj))


def _check_length(tr: Tracer, obj: Any, source: Source) -> None:
    """A container that had other lengths in several captures grows from call to call: it is not looked into any more."""
    at = f"len({source.text})"
    if tr.options.resume and tr.options.grows(at, len(obj)):
        tr.constants_seen[at] = len(obj)
        raise GraphBreak("side-effect", f"the length of {source.label} differs from call to call")
    tr.constants_seen[at] = len(obj)


def _list(tr: Tracer, obj: list[Any], source: Source) -> Value:
    _check_length(tr, obj, source)
    source = _guard_type(tr, obj, source, f"_len({{}}) == {len(obj)}", f"{len(obj)} items")
    return ListValue([Lazy(o, Item(source, i)) for i, o in enumerate(obj)], source)


def _dict(tr: Tracer, obj: dict[Any, Any], source: Source) -> Value:
    _check_length(tr, obj, source)
    for key in obj:
        if not isinstance(key, (str, int, float, bool, bytes, type(None))):
            raise GraphBreak("unsupported-value", f"{source.label} has a key of type {type(key).__name__}")
    keys = tr.guards.hold(tuple(obj), "keys")
    source = _guard_type(tr, obj, source, f"_tuple({{}}) == {keys.name}", f"keys {list(obj)!r}")
    return DictValue(tr, [(Const(k), Lazy(o, Item(source, k))) for k, o in obj.items()], type(obj), source)


def _set(tr: Tracer, obj: Any, source: Source) -> Value:
    if not all(is_constant_object(o) for o in obj):
        raise GraphBreak("unsupported-value", f"{source.label} is a set of objects")
    copy = tr.guards.hold(type(obj)(obj), "members")
    source = _guard_type(tr, obj, source, f"{{}} == {copy.name}", f"{obj!r}")
    return SetValue(tr, map(Const, obj), type(obj), source)


def _slice(tr: Tracer, obj: slice, source: Source) -> Value:
    source = _guard_type(tr, obj, source)
    return SliceValue((tr.wrap(getattr(obj, n), Attr(source, n)) for n in ("start", "stop", "step")), source)


# --- functions and objects ----------------------------------------------------------------------------------


def _function(tr: Tracer, fn: FunctionType, source: Held | None) -> FunctionValue:
    held = source or tr.guards.hold(fn, fn.__name__)
    cells = [_cell(tr, cell, name) for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True)]
    made = FunctionValue(fn.__code__, fn.__globals__, cells, fn, held)
    made.name = fn.__qualname__
    trusted = is_trusted(fn.__module__)
    if fn.__defaults__:
        listed = Attr(held, "__defaults__")
        if not trusted:
            defaults = tr.guards.hold(fn.__defaults__, "defaults")
            tr.guards.check(f"{listed.text} is {defaults.name}", f"the defaults of {fn.__qualname__}")
        made.defaults = [_default(tr, o, Item(listed, i), trusted) for i, o in enumerate(fn.__defaults__)]
    if fn.__kwdefaults__:
        named = Attr(held, "__kwdefaults__")
        made.kwdefaults = {k: _default(tr, o, Item(named, k), trusted) for k, o in fn.__kwdefaults__.items()}
    return made


def _default(tr: Tracer, obj: Any, source: Source, trusted: bool) -> Value | Lazy:
    return from_python(tr, obj) if trusted and is_constant_object(obj) else Lazy(obj, source)


def _cell(tr: Tracer, cell: CellType, name: str) -> Cell:
    """One Cell a closure cell, so that functions share it."""
    return tr.cells.get(id(cell)) or cell_from(tr, cell, tr.guards.hold(cell, f"cell_{name}", name))


def cell_from(tr: Tracer, cell: CellType, where: Source) -> Cell:
    """The Cell of a cell that is found at ``where``."""
    found = tr.cells.get(id(cell))
    if found is not None:
        guard_one_object(tr, found, where)
        return found
    try:
        content: Lazy | None = Lazy(cell.cell_contents, Attr(where, "cell_contents"))
    except ValueError:
        content = None
        tr.guards.check(f"_is_empty({where.text})", f"{where.label} is not bound")
    found = tr.cells[id(cell)] = Cell(content, where)
    return found


def guard_one_object(tr: Tracer, found: Value, where: Source) -> None:
    """Two ways lead to one object."""
    if found.source is not None and found.source != where:
        tr.guards.check(f"{where.text} is {found.source.text}", f"{where.label} is {found.source.label}")


def _passed_function(tr: Tracer, fn: FunctionType, source: Source) -> Value:
    """A function that comes with the call: what counts is its code and its variables, for it may be made anew each time."""
    if isinstance(source, (Held, HeldItem)) or is_trusted(fn.__module__) or fn.__dict__:
        return pinned(tr, fn, source)
    found = tr.functions.get(id(fn))
    if found is not None:
        guard_one_object(tr, found, source)
        return found
    text, hold = source.text, tr.guards.hold
    tr.guards.check(
        f"_type({text}) is {hold(FunctionType, 'function_').name} and {text}.__code__ is {hold(fn.__code__, 'code').name}"
        f" and {text}.__globals__ is {hold(fn.__globals__, 'globals').name} and not {text}.__dict__",
        f"{source.label} is a function with the code of {fn.__qualname__}",
    )
    made = tr.functions[id(fn)] = FunctionValue(fn.__code__, fn.__globals__, (), None, source)
    made.name, made.passed = fn.__qualname__, fn
    made.closure = tuple(
        cell_from(tr, cell, Item(Attr(source, "__closure__"), i)) for i, cell in enumerate(fn.__closure__ or ())
    )
    _passed_defaults(tr, made, fn, source)
    return made


def _passed_partial(tr: Tracer, obj: functools.partial[Any], source: Source) -> Value:
    """A partial that comes with the call: what counts is what it is made of."""
    if isinstance(source, (Held, HeldItem)):
        return pinned(tr, obj, source)
    source = _guard_type(tr, obj, source, f"_tuple({{}}.keywords) == {tuple(obj.keywords)!r}", "the same keywords")
    fn, args = tr.wrap(obj.func, Attr(source, "func")), tr.wrap(obj.args, Attr(source, "args"))
    assert isinstance(args, TupleValue)
    named = Attr(source, "keywords")
    return PartialValue(fn, args.values(tr), {k: tr.wrap(v, Item(named, k)) for k, v in obj.keywords.items()}, source)


def _code(tr: Tracer, code: CodeType, source: Source) -> Value:
    """A constant of the function's own, on its way to MAKE_FUNCTION."""
    pin(tr, code, source, "code")
    return CodeConstant(code)


def _builtin(tr: Tracer, fn: Any, source: Source) -> Value:
    """A function in C, or a method of a built-in object: made anew whenever somebody asks for it."""
    receiver = fn.__self__
    if receiver is None or isinstance(receiver, (ModuleType, type)) or is_torch_object(receiver):
        return pinned(tr, fn, source)
    if isinstance(source, (Held, HeldItem)):
        source = pin(tr, fn, source)
    else:
        kind = tr.guards.hold(BuiltinFunctionType, "builtin_").name
        tr.guards.check(
            f"_type({source.text}) is {kind} and {source.text}.__name__ == {fn.__name__!r}",
            f"{source.label} is a method {fn.__name__!r}",
        )
    return MethodOf(tr.wrap(receiver, Attr(source, "__self__")), fn.__name__)


def is_torch_object(obj: Any) -> bool:
    """Whether an object is one of torch's internals (its functions in C are methods of these)."""
    return type(obj).__module__.startswith("torch") and not isinstance(obj, (torch.Tensor, torch.Size))


def _passed_defaults(tr: Tracer, made: FunctionValue, fn: FunctionType, source: Source) -> None:
    listed, named = Attr(source, "__defaults__"), Attr(source, "__kwdefaults__")
    count, keys = len(fn.__defaults__ or ()), tuple(fn.__kwdefaults__ or ())
    tr.guards.check(f"_len({listed.text} or ()) == {count}", f"{source.label} has {count} defaults")
    tr.guards.check(f"_tuple({named.text} or ()) == {keys!r}", f"{source.label} has keyword defaults {keys!r}")
    made.defaults = [Lazy(o, Item(listed, i)) for i, o in enumerate(fn.__defaults__ or ())]
    made.kwdefaults = {k: Lazy(o, Item(named, k)) for k, o in (fn.__kwdefaults__ or {}).items()}


def _bound_method(tr: Tracer, obj: MethodType, source: Source) -> Value:
    if isinstance(source, (Held, HeldItem)):
        return pinned(tr, obj, source)
    tr.guards.check(f"_type({source.text}) is {tr.guards.hold(MethodType, 'method_').name}", f"{source.label} is a method")
    return BoundFunction(
        tr.wrap(obj.__func__, Attr(source, "__func__")), tr.wrap(obj.__self__, Attr(source, "__self__")), source
    )


def _object(tr: Tracer, obj: Any, source: Source) -> Value:
    if isinstance(obj, (torch.no_grad, torch.enable_grad)):
        _guard_type(tr, obj, source)
        return GradMode(isinstance(obj, torch.enable_grad), now=False, before=tr.grad_enabled)
    source = _guard_type(tr, obj, source)
    if isinstance(source, Held):
        found = tr.pinned.get(id(obj))
        if found is None:
            found = tr.pinned[id(obj)] = ObjectValue(obj, source)
        return found
    return ObjectValue(obj, source)


def _our_device(tr: Tracer, obj: Device, source: Source) -> Value:
    _guard_type(tr, obj, source, f"{{}} == {tr.guards.hold(obj, 'device_').name}", str(obj))
    return Const(obj.torch())


_RULES: dict[type, Any] = {
    tuple: _tuple,
    torch.Size: _tuple,
    list: _list,
    dict: _dict,
    OrderedDict: _dict,
    set: _set,
    frozenset: _set,
    slice: _slice,
    FunctionType: _passed_function,
    BuiltinFunctionType: _builtin,
    CellType: cell_from,
    CodeType: _code,
    ModuleType: pinned,
    functools.partial: _passed_partial,
    MethodType: _bound_method,
    Device: _our_device,
}


# --- without a source ---------------------------------------------------------------------------------------


def from_python(tr: Tracer, obj: Any) -> Value:
    """The Value of an object that capture itself made, or that is trusted not to change."""
    if is_constant_object(obj):
        return Const(obj)
    kind = type(obj)
    if kind is list:
        return ListValue([from_python(tr, o) for o in obj])
    if kind in (tuple, torch.Size) or (isinstance(obj, tuple) and hasattr(obj, "_fields")):
        return TupleValue([from_python(tr, o) for o in obj], cls=kind)
    if kind in (dict, OrderedDict):
        return DictValue(tr, [(from_python(tr, k), from_python(tr, v)) for k, v in obj.items()], kind)
    if kind in (set, frozenset):
        return SetValue(tr, map(Const, obj), kind)
    if kind is slice:
        return SliceValue(from_python(tr, p) for p in (obj.start, obj.stop, obj.step))
    if isinstance(obj, (FunctionType, type, ModuleType, MethodType, functools.partial, *BUILTIN_TYPES)):
        return from_callable(tr, obj)
    if callable(obj) and is_trusted(getattr(obj, "__module__", None)):
        return from_callable(tr, obj)
    if isinstance(obj, torch.Tensor):
        return tr.wrap(obj, tr.guards.hold(obj, "tensor"))
    return tr.wrap(obj, tr.guards.hold(obj, kind.__name__.lower()))
