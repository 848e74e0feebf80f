"""Functions, objects, exceptions and callables as source: what ``reconstruct`` makes of each kind."""

from __future__ import annotations

import contextlib
import functools
from collections import deque
from collections.abc import Callable, Collection, Mapping
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

import torch

from tinycompile.base.device import Device
from tinycompile.base.expr import Expr, symbols
from tinycompile.base.raised import is_a, read, write
from tinycompile.capture.breaks import NotRebuildable
from tinycompile.capture.inheritance import SuperValue
from tinycompile.capture.rebuilt_sets import set_text
from tinycompile.capture.rules.functions_of import FunctionOf
from tinycompile.capture.rules.mapping import MappedFunction
from tinycompile.capture.sources import is_name
from tinycompile.capture.values.array import ArrayValue, address, owner, shown_in
from tinycompile.capture.values.autocast import AutocastMode, rebuilt_autocast
from tinycompile.capture.values.base import MethodOf, Value
from tinycompile.capture.values.callable import Getter
from tinycompile.capture.values.classes import built_in_base, class_lookup
from tinycompile.capture.values.container import NewContainer
from tinycompile.capture.values.context import GradMode, NullContext, UnderGradMode, entered_grad_mode
from tinycompile.capture.values.descriptors import is_hidden
from tinycompile.capture.values.exception import ExceptionValue
from tinycompile.capture.values.function import BoundFunction, FunctionValue
from tinycompile.capture.values.mapping import DictValue
from tinycompile.capture.values.object import DELETED, NewObject
from tinycompile.capture.values.partial import PartialValue
from tinycompile.capture.values.queue import DequeValue
from tinycompile.capture.values.sequence import TupleValue
from tinycompile.capture.values.set_steps import program
from tinycompile.capture.values.sets import SetValue
from tinycompile.capture.values.tensor import TensorValue
from tinycompile.capture.views import UnknownPlace, are_known
from tinycompile.eager.tensor import Tensor as OurTensor
from tinycompile.ir.builder import dims_in, identifier
from tinycompile.ops.record import OPS, View

if TYPE_CHECKING:
    from tinycompile.capture.reconstruct import Rebuilder


def function(r: Rebuilder, value: FunctionValue) -> str:
    if value.fn is not None:
        return r.held(value.outside, "constant")
    name = r.names[id(value)] = r.tr.guards.names.take(identifier(value.code.co_name))
    closure = r.tuple_([r.expr(c) for c in value.closure]) if value.closure else "None"
    defaults = r.tuple_([r.expr(d) for d in value.defaults]) if value.defaults else "None"
    code, space = r.held(value.code, "code"), r.held(value.globals, "globals")
    made = f"{r.held(FunctionType, 'FunctionType')}({code}, {space}, {value.code.co_name!r}, {defaults}, {closure})"
    r.statements.append(f"{name} = {made}")
    if value.kwdefaults:
        pairs = ", ".join(f"{k!r}: {r.expr(v)}" for k, v in value.kwdefaults.items())
        r.statements.append(f"{name}.__kwdefaults__ = {{{pairs}}}")
    for at, v in value.attributes.items():
        r.statements.append(f"{r.held(setattr, 'setattr')}({name}, {at!r}, {r.expr(v)})")
    if value.annotations is not None:
        r.statements.append(f"{name}.__annotations__ = {annotations_of(r, value.annotations)}")
    return name


def annotations_of(r: Rebuilder, value: Value) -> str:
    """A dict, or (as code makes it) a tuple of names and values in turn."""
    if not isinstance(value, TupleValue):
        return r.expr(value)
    flat = [r.expr(v) for v in value.values(r.tr)]
    return f"{{{', '.join(f'{k}: {v}' for k, v in zip(flat[::2], flat[1::2], strict=True))}}}"


def _set_attributes(r: Rebuilder, name: str, cls: type, shadow: Mapping[str, Any]) -> None:
    """Past the class's own ``__setattr__``, which has been followed already, and past its descriptors."""
    base = r.held(object, "object") if shadow else ""
    for at, v in shadow.items():
        if v is not DELETED and is_hidden(cls, at):
            r.statements.append(f"{base}.__getattribute__({name}, '__dict__')[{at!r}] = {r.expr(v)}")
        elif v is not DELETED:
            r.statements.append(f"{base}.__setattr__({name}, {at!r}, {r.expr(v)})")


def new_object(r: Rebuilder, value: NewObject) -> str:
    cls = type(value.obj)
    name = r.names[id(value)] = r.tr.guards.names.take(identifier(cls.__name__.lower()))
    base = built_in_base(cls)
    r.statements.append(f"{name} = {r.held(base, base.__name__)}.__new__({r.held(cls, cls.__name__)})")
    _set_attributes(r, name, cls, value.shadow)
    return name


def exception(r: Rebuilder, value: ExceptionValue) -> str:
    """One that was never raised; its class's own ``__init__`` has been followed already."""
    if value.was_raised or value.is_chained:
        raise NotRebuildable(value, value.describe())
    cls, error = type(value.error), value.error
    name = r.names[id(value)] = r.tr.guards.names.take("error")
    args = r.tuple_([r.expr(a) for a in value.arguments(r.tr)])
    maker, _ = class_lookup(cls, "__new__") or (BaseException, None)
    r.statements.append(f"{name} = {r.held(maker, maker.__name__)}.__new__({r.held(cls, cls.__name__)}, *{args})")
    if not is_a(error, BaseExceptionGroup):
        _set_members(r, name, error, args)
    _set_attributes(r, name, cls, value.shadow)
    if value.notes is not None:
        r.statements.append(f"{r.held(read, 'read')}({name}, '__dict__')['__notes__'] = {r.expr(value.notes)}")
    return name


def _set_members(r: Rebuilder, name: str, error: BaseException, args: str) -> None:
    """What Python's own classes of exceptions know besides: of their arguments (``StopIteration.value``, ``SystemExit.code``),
    and by keyword."""
    base = built_in_base(type(error))
    if base.__init__ is not BaseException.__init__:
        r.statements.append(f"{r.held(base, base.__name__)}.__init__({name}, *{args})")
    r.statements.append(f"{r.held(write, 'write')}({name}, 'args', {args})")
    for member in ("name", "obj", "path"):
        field = getattr(base, member, None)
        if field is not None and (known := field.__get__(error)) is not None:
            r.statements.append(f"{r.held(field.__set__, f'set_{member}')}({name}, {r.held(known, member)})")


def partial_object(r: Rebuilder, value: PartialValue) -> str:
    args = [r.expr(a) for a in (value.fn, *value.args(r.tr))]
    named = {name: r.expr(v) for name, v in value.kwargs(r.tr).items()}
    if all(map(is_name, named)):
        args += [f"{name}={text}" for name, text in named.items()]
    else:
        args.append(f"**{{{', '.join(f'{name!r}: {text}' for name, text in named.items())}}}")
    return f"{r.held(functools.partial, 'partial')}({', '.join(args)})"


def bound(r: Rebuilder, value: BoundFunction) -> str:
    return f"{r.held(MethodType, 'MethodType')}({r.expr(value.fn)}, {r.expr(value.receiver)})"


def method_of(r: Rebuilder, value: MethodOf) -> str:
    return f"({r.expr(value.receiver)}).{value.name}"


def super_object(r: Rebuilder, value: SuperValue) -> str:
    return f"{r.held(super, 'super')}({r.expr(value.cls)}, {r.expr(value.receiver)})"


def grad_mode(r: Rebuilder, value: GradMode) -> str:
    return f"{r.held(entered_grad_mode, 'entered_grad_mode')}({value.mode}, {value.now}, {value.before})"


def mapped(r: Rebuilder, value: MappedFunction) -> str:
    in_dims, out_dims, randomness = (r.constant(o) for o in value.options)
    dims = f"{in_dims}, {out_dims}" if value.strict else in_dims
    return f"{r.held(value.made_by, value.made_by.__name__)}({r.expr(value.fn)}, {dims}, {randomness})"


def function_of(r: Rebuilder, value: FunctionOf) -> str:
    options = "".join(f", {k}={r.constant(v)}" for k, v in value.options.items())
    return f"{r.held(value.made_by, value.made_by.__name__)}({r.expr(value.fn)}{options})"


def autocast(r: Rebuilder, value: AutocastMode) -> str:
    settings, before = r.held(value.settings, "settings"), r.held(value.before, "before")
    return f"{r.held(rebuilt_autocast, 'rebuilt_autocast')}({settings}, {before})"


def under_grad_mode(r: Rebuilder, value: UnderGradMode) -> str:
    mode = torch.enable_grad if value.mode.mode else torch.no_grad
    return f"{r.held(mode, mode.__name__)}()({r.expr(value.fn)})"


def getter(r: Rebuilder, value: Getter) -> str:
    args = [r.expr(a) for a in value.args] + [f"{k}={r.expr(v)}" for k, v in value.kwargs.items()]
    return f"{r.held(value.cls, value.cls.__name__)}({', '.join(args)})"


def null_context(r: Rebuilder, value: NullContext) -> str:
    return f"{r.held(contextlib.nullcontext, 'nullcontext')}({r.expr(value.value)})"


def container(r: Rebuilder, value: NewContainer) -> str:
    """The object first, then its contents: they may refer to it. Immutable ones are made with them."""
    cls, base = type(value.obj), value.base
    kind, made = r.held(base.cls, base.cls.__name__), r.held(cls, cls.__name__)
    name = r.tr.guards.names.take(identifier(cls.__name__.lower()))
    if not isinstance(base, DictValue) and base.cls in (tuple, frozenset):
        contents = set_text(r, base) if isinstance(base, SetValue) else r.tuple_([r.expr(v) for v in base.values(r.tr)])
        r.statements.append(f"{name} = {kind}.__new__({made}, {contents})")
        r.names[id(value)] = name
    else:
        r.names[id(value)] = name
        r.statements.append(f"{name} = {kind}.__new__({made})")
        if isinstance(base, DictValue):
            for k, v in base.pairs(r.tr):
                r.statements.append(f"{kind}.__setitem__({name}, {r.expr(k)}, {r.expr(v)})")
        elif isinstance(base, SetValue):
            followed, given = program(r.tr, base, exact=True)
            r.statements.append(f"{r.held(followed.onto, 'fill')}({', '.join([name, *map(r.expr, given)])})")
        else:
            r.statements.append(f"{kind}.extend({name}, {r.tuple_([r.expr(v) for v in base.values(r.tr)])})")
    _set_attributes(r, name, type(value.obj), value.shadow)
    return name


def array(r: Rebuilder, value: ArrayValue) -> str:
    """One that the function made: a copy of what it holds at the end, or a view in the memory of another array or a tensor."""
    tr, found = r.tr, value.contents(r.tr)
    root, name = owner(found), r.tr.guards.names.take("array")
    shared, outside = tr.arrays.tensors.get(id(root)), tr.arrays.outside.get(id(root))
    whole = root.flags.c_contiguous or root.flags.f_contiguous
    if not whole or (outside is not None and outside.layout.strides != root.strides):
        raise NotRebuildable(value, f"{value.describe()} with gaps in its memory")
    if shared is not None:
        if shared[1].nbytes != root.nbytes:
            raise NotRebuildable(value, f"{value.describe()}, of whose memory a tensor has a part")
        memory = f"{r.expr(shared[0])}.detach().numpy()"
    elif outside is not None:
        memory = r.expr(outside)
    elif root is found:
        memory = ""
    else:
        known = tr.arrays.values.setdefault(id(root), ArrayValue(root))
        memory = r.expr(known)
    if memory:
        layout = r.held((found.shape, found.dtype, found.strides), "layout")
        offset = address(found) - address(root)
        text = f"{r.held(shown_in, 'shown_in')}({memory}, {layout}, {offset}, {found.flags.writeable})"
    else:
        text = f"{r.held(found, 'array')}.copy('K')"
    r.names[id(value)] = name
    r.statements.append(f"{name} = {text}")
    return name


def queue(r: Rebuilder, value: DequeValue) -> str:
    return f"{r.held(deque, 'deque')}({r.tuple_([r.expr(v) for v in value.values(r.tr)])}, {value.maxlen})"


def is_torchs_view(value: TensorValue, uses: Mapping[int, int], unknown: Collection[int]) -> bool:
    """Whether torch makes a view again, for it refuses writes to it where gradients are followed (as to one of several that an
    op returns, or to one made under ``no_grad``), or lets what else views the memory follow them: also what a write behind the
    graph brings to a view of a tensor that was cut off. ``uses``: how often each value occurs, by id; ``unknown``: values at
    places that tensors name, by id."""
    view = value.view
    shared = any(t is not value and uses[id(t)] for t in value.memory.members)
    if shared and view is not None and not view.cut and not value.memory.outside:
        return True
    if view is not None and value.cls is OurTensor and (shared or value.memory.outside):  # our tape makes its own views
        return True
    line = view
    while line is not None:
        if id(line.base) in unknown:
            return True
        line = line.base.view
    while view is not None and (not view.cut or view.origin == "no_grad"):
        if view.origin in ("no_grad", "several") or (not are_known(view.steps) and (shared or value.memory.outside)):
            return True
        view = view.base.view
    return view is not None and view is not value.view and shared


def view_again(rebuilder: Rebuilder, value: TensorValue) -> str:
    """A view that the rebuilt code makes of its base, behind the graph: of a tensor that is written there, say."""
    assert value.view is not None
    rebuilder.tr.effects.check_kind(value)
    rebuilder.remakes |= value.requires_grad
    text = rebuilder.expr(value.view.base)
    without_grad = rebuilder.held(run_without_grad, "without_grad") if value.view.origin == "no_grad" else ""
    for step in value.view.steps:
        rebuilder.symbols.update(s.name for d in dims_in(step.args) for s in symbols(d))
        args = "".join(f", {_argument(rebuilder, a)}" for a in step.args)
        args += "".join(f", {k}={_argument(rebuilder, a)}" for k, a in step.kwargs)
        name = step.op.rpartition(".")[2]
        ours = value.cls is OurTensor and step.op.startswith("torch.Tensor.")  # whose methods take torch's tensors only
        made = rebuilder.held(getattr(OurTensor, name) if ours else step.fn, name)
        made = f"{made}({text}{args})" if value.view.origin != "no_grad" else f"{without_grad}({made}, {text}{args})"
        text = made if step.item is None else f"{made}[{step.item}]"
    return text


def comes_as_view(rebuilder: Rebuilder, value: TensorValue) -> bool:
    """Whether the graph gives as a view what owns its memory to the program: where a write went to a view of it."""
    if value.view is not None or value.cls is not torch.Tensor or all(f is not value.fake for f in value.memory.contents):
        return False
    node = rebuilder.tr.builder.nodes[value.fake.ref.name]
    return node.kind == "call" and isinstance(OPS[node.target].lowering, View)


class _Owner(torch.autograd.Function):
    """The data and the history of a view."""

    @staticmethod
    def forward(ctx: Any, view: torch.Tensor) -> torch.Tensor:
        return view.detach()

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad


def as_owner(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor that is no view, in the same memory."""
    if not tensor._is_view():
        return tensor
    return _Owner.apply(tensor) if tensor.requires_grad else tensor.detach()


def taken_again(rebuilder: Rebuilder, place: UnknownPlace) -> str:
    """``base[parts]``, behind the graph."""
    base, value = place.base, place.value
    if not place.is_named_still() or base.requires_grad != value.requires_grad:
        raise NotRebuildable(value, f"{value.describe()}, at a place that a tensor named, leaves the graph")
    parts = [rebuilder.held(slice(None), "all") if p is None else rebuilder.expr(p) for p in place.parts]
    return f"{rebuilder.expr(base)}[{', '.join(parts)}]"


def run_without_grad(fn: Callable[..., Any], *args: Any) -> Any:
    """``fn(*args)`` under ``no_grad``."""
    with torch.no_grad():
        return fn(*args)


def _argument(rebuilder: Rebuilder, value: Any) -> str:
    """An argument of an op: a number, a size, a tuple of these."""
    if isinstance(value, tuple):
        return rebuilder.tuple_([_argument(rebuilder, v) for v in value])
    if isinstance(value, Expr):
        return str(value)
    return rebuilder.constant(value.torch() if isinstance(value, Device) else value)
