"""Functions, classes, modules and other objects from outside.

Those whose identity is guarded are *pinned*; functions that come with a call are guarded by what they are made of."""

from __future__ import annotations

import functools
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

import torch

from tinycompile.capture.kernel_writes import is_kernel
from tinycompile.capture.marks import mark_of
from tinycompile.capture.pins import guard_one_object, guard_type, pin
from tinycompile.capture.sources import Asked, Attr, Held, HeldItem, Item, Source
from tinycompile.capture.trust import is_torch_object, trusts
from tinycompile.capture.values.autocast import AutocastMode, settings_of
from tinycompile.capture.values.base import Lazy, MethodOf, Value
from tinycompile.capture.values.classes import ClassValue, PyModuleValue, built_in_base, is_compiled
from tinycompile.capture.values.constant import is_constant_object
from tinycompile.capture.values.context import GradMode
from tinycompile.capture.values.function import BoundFunction, BuiltinValue, Cell, CodeConstant, FunctionValue
from tinycompile.capture.values.generic import HINTS, Hint
from tinycompile.capture.values.kernel import KernelValue
from tinycompile.capture.values.mapping import DictValue
from tinycompile.capture.values.module import ModuleValue
from tinycompile.capture.values.object import ObjectValue
from tinycompile.capture.values.partial import PartialValue
from tinycompile.capture.values.sequence import TupleValue
from tinycompile.eager.transforms import Transform, transform_of

if TYPE_CHECKING:
    from tinycompile.capture.tracer import Tracer


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
        made = transform_of(obj)
        return _function(tr, obj, source) if made is None else _transformed(tr, made)
    if isinstance(obj, type):
        return ClassValue(obj, source)
    if isinstance(obj, ModuleType):
        return PyModuleValue(obj, source)
    if isinstance(obj, HINTS):
        return Hint(obj, source)
    if isinstance(obj, MethodType):
        owner = tr.guards.hold(obj.__self__, "self")
        return BoundFunction(from_callable(tr, obj.__func__), tr.wrap(obj.__self__, owner), source)
    if isinstance(obj, torch.nn.Module):
        held = source or tr.guards.hold(obj, "module")
        tr.guards.class_of(held)
        return ModuleValue(obj, held)
    if is_compiled(obj) and hasattr(obj, "original"):  # a compiled function inside another: its original is followed
        return _compiled(tr, obj, source or tr.guards.hold(obj, "compiled"))
    if is_kernel(obj):
        return KernelValue(obj, source)
    if isinstance(obj, (functools.partial, functools.partialmethod)):
        return _partial(tr, obj, source or tr.guards.hold(obj, "partial"))
    return BuiltinValue(obj, source)


def _partial(tr: Tracer, obj: functools.partial[Any] | functools.partialmethod[Any], held: Held) -> Value:
    """One that is known: its keywords may change, and so may what is inside of its arguments."""
    listed = Attr(held, "args")
    args = [tr.from_python(a) if is_constant_object(a) else tr.wrap(a, Item(listed, i)) for i, a in enumerate(obj.args)]
    return PartialValue(from_callable(tr, obj.func), TupleValue(args, source=listed), _keywords(tr, obj, held), held)


def _keywords(tr: Tracer, obj: functools.partial[Any] | functools.partialmethod[Any], source: Source) -> DictValue:
    keywords = tr.wrap(obj.keywords, Attr(source, "keywords"))
    assert isinstance(keywords, DictValue)
    return keywords


def _transformed(tr: Tracer, made: Transform) -> Value:
    """``vmap(f)`` or ``grad(f)`` that was made outside, as if it were made here. What it is made of never changes."""
    options = {k: tr.from_python(v) for k, v in made.options.items()}
    return BuiltinValue(made.made_by).call(tr, [tr.wrap(made.fn, tr.guards.hold(made.fn, "fn"))], options)


def _passed_transform(tr: Tracer, made: Transform, source: Source) -> Value:
    """``vmap(f)`` that comes with the call, perhaps made anew each time: what counts is what it is made of."""
    asked = Asked(tr.guards.hold(transform_of, "transform_of"), source)
    by, options = tr.guards.hold(made.made_by, "made_by"), tr.guards.hold(made.options, "options")
    tr.guards.check(
        f"{asked.text} is not None and {asked.text}.made_by is {by.name} and {asked.text}.options == {options.name}",
        f"{source.label} is {made.made_by.__name__}() of a function, with options {made.options}",
    )
    fn = tr.wrap(made.fn, Attr(asked, "fn"))
    value = BuiltinValue(made.made_by).call(tr, [fn], {k: tr.from_python(v) for k, v in made.options.items()})
    value.source = source
    return value


def _compiled(tr: Tracer, obj: Any, held: Held) -> Value:
    """A compiled function, which the program knows by its own identity and attributes."""
    made = from_callable(tr, obj.original)
    if isinstance(made, FunctionValue):
        made.wrapper, made.source = obj, held
    return made


def _function(tr: Tracer, fn: FunctionType, source: Held | None) -> FunctionValue:
    held = source or tr.guards.hold(fn, fn.__name__)
    cells = [_cell(tr, cell, name) for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True)]
    made = FunctionValue(fn.__code__, fn.__globals__, cells, fn, held)
    made.name = fn.__qualname__
    trusted = trusts(fn)
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
    return tr.from_python(obj) if trusted and is_constant_object(obj) else Lazy(obj, source)


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


def passed_function(tr: Tracer, fn: FunctionType, source: Source) -> Value:
    """A function that comes with the call: what counts is its code and its variables, for it may be made anew each time."""
    if isinstance(source, (Held, HeldItem)) or trusts(fn) or mark_of(fn) is not None:
        return pinned(tr, fn, source)
    if (transform := transform_of(fn)) is not None:
        return _passed_transform(tr, transform, source)
    found = tr.functions.get(id(fn))
    if found is not None:
        guard_one_object(tr, found, source)
        return found
    text, hold = source.text, tr.guards.hold
    tr.guards.check(
        f"_type({text}) is {hold(FunctionType, 'function_').name} and {text}.__code__ is {hold(fn.__code__, 'code').name}"
        f" and {text}.__globals__ is {hold(fn.__globals__, 'globals').name}"
        f" and _tuple({text}.__dict__) == {tuple(fn.__dict__)!r}",
        f"{source.label} is a function with the code of {fn.__qualname__}",
    )
    made = tr.functions[id(fn)] = FunctionValue(fn.__code__, fn.__globals__, (), None, source)
    made.name, made.passed = fn.__qualname__, fn
    made.closure = tuple(
        cell_from(tr, cell, Item(Attr(source, "__closure__"), i)) for i, cell in enumerate(fn.__closure__ or ())
    )
    _passed_defaults(tr, made, fn, source)
    return made


def passed_partial(tr: Tracer, obj: functools.partial[Any], source: Source) -> Value:
    """A partial that comes with the call: what counts is what it is made of."""
    if isinstance(source, (Held, HeldItem)):
        return pinned(tr, obj, source)
    source = guard_type(tr, obj, source)
    fn, args = tr.wrap(obj.func, Attr(source, "func")), tr.wrap(obj.args, Attr(source, "args"))
    assert isinstance(args, TupleValue)
    return PartialValue(fn, args, _keywords(tr, obj, source), source)


def _passed_defaults(tr: Tracer, made: FunctionValue, fn: FunctionType, source: Source) -> None:
    listed, named = Attr(source, "__defaults__"), Attr(source, "__kwdefaults__")
    count, keys = len(fn.__defaults__ or ()), tuple(fn.__kwdefaults__ or ())
    tr.guards.check(f"_len({listed.text} or ()) == {count}", f"{source.label} has {count} defaults")
    tr.guards.check(f"_tuple({named.text} or ()) == {keys!r}", f"{source.label} has keyword defaults {keys!r}")
    made.defaults = [Lazy(o, Item(listed, i)) for i, o in enumerate(fn.__defaults__ or ())]
    made.kwdefaults = {k: Lazy(o, Item(named, k)) for k, o in (fn.__kwdefaults__ or {}).items()}


def code(tr: Tracer, code: CodeType, source: Source) -> Value:
    """A constant of the function's own, on its way to MAKE_FUNCTION."""
    pin(tr, code, source, "code")
    return CodeConstant(code)


def builtin(tr: Tracer, fn: Any, source: Source) -> Value:
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


def bound_method(tr: Tracer, obj: MethodType, source: Source) -> Value:
    if isinstance(source, (Held, HeldItem)):
        return pinned(tr, obj, source)
    tr.guards.check(f"_type({source.text}) is {tr.guards.hold(MethodType, 'method_').name}", f"{source.label} is a method")
    return BoundFunction(
        tr.wrap(obj.__func__, Attr(source, "__func__")), tr.wrap(obj.__self__, Attr(source, "__self__")), source
    )


def plain_object(tr: Tracer, obj: Any, source: Source) -> Value:
    if isinstance(obj, (torch.no_grad, torch.enable_grad)):
        guard_type(tr, obj, source)
        return GradMode(isinstance(obj, torch.enable_grad), now=False, before=tr.grad_enabled)
    source = guard_type(tr, obj, source)
    if isinstance(obj, torch.autocast):
        settings, now = tr.guards.hold(settings_of(obj), "settings"), tr.guards.hold(settings_of, "settings_of")
        tr.guards.check(f"{now.name}({source.text}) == {settings.name}", f"{source.label} is {settings.value}")
        return AutocastMode(settings.value, obj, source)
    return object_at(tr, obj, source) if isinstance(source, Held) else ObjectValue(obj, source)


def object_at(tr: Tracer, obj: Any, held: Held) -> Value:
    """An object that is known by identity. It is not looked at."""
    found = tr.pinned.get(id(obj))
    if found is None:
        tr.guards.class_of(held)
        found = tr.pinned[id(obj)] = ObjectValue(obj, held)
    return found


def is_plain(cls: type) -> bool:
    """Whether instances are the program's own objects, of no kind that Values of other classes stand for."""
    return built_in_base(cls) is object and not any(trusts(c) for c in cls.__mro__[:-1])
