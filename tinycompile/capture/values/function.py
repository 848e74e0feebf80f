"""Functions, bound methods, cells and partials."""

from __future__ import annotations

from collections.abc import Sequence
from types import CellType, CodeType, FunctionType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tinycompile.capture.breaks import GraphBreak
from tinycompile.capture.provenance import natively
from tinycompile.capture.sources import Attr, Item, Source
from tinycompile.capture.trust import BUILTIN_TYPES, trusts
from tinycompile.capture.values.base import Kwargs, Lazy, Value, no_attribute
from tinycompile.capture.values.constant import Const
from tinycompile.capture.values.sequence import TupleValue

if TYPE_CHECKING:
    from tinycompile.capture.tracer import Tracer


class Cell(Value):
    """A closure's variable. ``content`` None: unbound."""

    __slots__ = ("content",)

    def __init__(self, content: Value | Lazy | None = None, source: Source | None = None) -> None:
        super().__init__(source)
        self.content = content

    def get(self, tr: Tracer, name: str) -> Value:
        """The variable's value."""
        if self.content is None:
            text = f"cannot access free variable '{name}' where it is not associated with a value in enclosing scope"
            raise NameError(text, name=name)
        if isinstance(self.content, Lazy):
            self.content = tr.force(self.content)
        return self.content

    def set(self, tr: Tracer, value: Value | None) -> None:
        """Assign, or delete with None."""
        old = self.content
        if self.source is not None and old is not None and not tr.effects.changes(self):
            tr.check_content(old, old.obj if isinstance(old, Lazy) else tr.object_of(old))
        tr.effects.touch(self)
        self.content = value


class CodeConstant(Value):
    """A code object: on the stack, just before MAKE_FUNCTION, or a function's ``__code__``."""

    __slots__ = ("code",)

    def __init__(self, code: CodeType) -> None:
        super().__init__()
        self.code = code

    def python_type(self, tr: Tracer) -> type:
        return CodeType

    def describe(self) -> str:
        return f"code object {self.code.co_name}"

    def get_attr(self, tr: Tracer, name: str) -> Value:
        if not name.startswith("co_"):
            raise GraphBreak("unsupported-value", f"attribute {name!r} of {self.describe()}")
        return tr.from_python(natively(getattr, self.code, name))


_TEXTS = ("__name__", "__qualname__", "__module__", "__doc__")
_OUTSIDE_DICT = (*_TEXTS, "__type_params__")  # attributes that functools.wraps copies, and that don't lie in ``__dict__``


class FunctionValue(Value):
    """A Python function: one from outside (``fn`` is it; ``passed``, where only its code is guarded), or one that the program
    made. ``wrapper``: the compiled function that the program has of ``fn``."""

    __slots__ = (
        "annotations", "attributes", "closure", "code", "defaults", "fn", "globals", "kwdefaults", "name", "passed", "wrapper",
    )  # fmt: skip

    def __init__(
        self,
        code: CodeType,
        globals_: dict[str, Any],
        closure: Sequence[Cell] = (),
        fn: FunctionType | None = None,
        source: Source | None = None,
    ) -> None:
        super().__init__(source)
        self.code, self.globals, self.closure, self.fn = code, globals_, tuple(closure), fn
        self.defaults: Sequence[Value | Lazy] = ()
        self.kwdefaults: dict[str, Value | Lazy] = {}
        self.annotations: Value | None = None
        self.passed: FunctionType | None = None
        self.wrapper: Any = None
        self.attributes: dict[str, Value] = {}  # that the program gave one of its own
        self.name = code.co_qualname

    def python_type(self, tr: Tracer) -> type:
        return FunctionType if self.wrapper is None else type(self.wrapper)

    def describe(self) -> str:
        return f"function {self.name}"

    @property
    def outside(self) -> Any:
        """The object from outside, None for one that the program made."""
        return self.wrapper or self.fn or self.passed

    def key(self, tr: Tracer) -> Any:
        return tr.keyed(self) if self.fn is None else self.outside

    def truth(self, tr: Tracer) -> bool:
        return True

    def call(self, tr: Tracer, args: Sequence[Value], kwargs: Kwargs) -> Value:
        return tr.call_function(self, args, kwargs)

    def get_attr(self, tr: Tracer, name: str) -> Value:
        if name in self.attributes:
            return self.attributes[name]
        assigned = self._assigned(tr, name)
        if assigned is not None:
            return assigned
        if self.wrapper is not None:
            return self._of_wrapper(tr, name)
        if self.fn is None and self.source is None:
            return self._of_new(tr, name)
        if name in _TEXTS and self.fn is not None:
            return tr.text_of(self.fn, name)
        if self.passed is not None and self.source is not None:
            if name in _OUTSIDE_DICT and hasattr(self.passed, name):
                return tr.wrap(getattr(self.passed, name), Attr(self.source, name))
            if name in self.passed.__dict__:
                return tr.wrap(self.passed.__dict__[name], Item(Attr(self.source, "__dict__"), name))
        known = self.fn or self.passed
        if name == "__code__":
            if self.fn is not None:
                tr.guards.code(tr.guards.hold(self.fn, self.fn.__name__))
            return CodeConstant(self.code)
        if name == "__annotations__" and known is not None and self.source is not None:
            if trusts(known):
                return tr.from_python(dict(known.__annotations__))
            return tr.wrap(known.__annotations__, Attr(self.source, name))
        if name == "__type_params__" and self.source is not None and getattr(self.fn, name, None) == ():
            tr.guards.check(f"{self.source.text}.{name} == ()", f"{self.source.label} is not generic")
            return TupleValue([])
        if self.fn is not None and self.source is not None and name in self.fn.__dict__:
            return tr.dict_entry(self.fn.__dict__, name, f"{self.source.label}.{name}")
        if known is not None and not hasattr(known, name):
            if self.fn is not None and not trusts(self.fn):  # (of one that was passed all names are guarded)
                tr.lacks(self.fn, name)
            raise no_attribute(self, FunctionType, name)
        raise GraphBreak("unsupported-value", f"attribute {name!r} of {self.describe()}")

    def _assigned(self, tr: Tracer, name: str) -> Value | None:
        """What the program assigned to an attribute of one from outside. One that came with the call may be any."""
        if self.passed is not None and tr.effects.assigns():
            raise GraphBreak("side-effect", f"attribute {name!r} of {self.describe()} is read, and others' were set")
        return None if self.fn is None else tr.effects.assigned(self.outside, name)

    def _of_wrapper(self, tr: Tracer, name: str) -> Value:
        """What a compiled function has: what ``functools.wraps`` gave it, and the program."""
        if name in self.wrapper.__dict__:
            return tr.dict_entry(self.wrapper.__dict__, name, f"{self.name}.{name}")
        if hasattr(type(self.wrapper), name):
            raise GraphBreak("unsupported-value", f"attribute {name!r} of {self.describe()}, which is compiled")
        tr.lacks(self.wrapper, name)
        raise no_attribute(self, type(self.wrapper), name)

    def _of_new(self, tr: Tracer, name: str) -> Value:
        """What Python gives a function when it is made."""
        if name in _TEXTS:
            cells = tuple(CellType() for _ in self.code.co_freevars)
            return Const(getattr(FunctionType(self.code, self.globals, closure=cells), name))
        if name == "__defaults__":
            return TupleValue(self.defaults) if self.defaults else Const(None)
        if name == "__type_params__" and hasattr(FunctionType, name):  # (a generic one is made by an intrinsic that breaks)
            return TupleValue([])
        if name == "__annotations__":
            if self.annotations is None or isinstance(self.annotations, TupleValue):
                flat = [] if self.annotations is None else self.annotations.values(tr)
                self.annotations = tr.make_dict(list(zip(flat[::2], flat[1::2], strict=True)))
            return self.annotations
        if not hasattr(FunctionType, name):
            raise no_attribute(self, FunctionType, name)
        raise GraphBreak("unsupported-value", f"attribute {name!r} of {self.describe()}")

    def own_attributes(self, tr: Tracer) -> dict[str, Value]:
        """What lies in its ``__dict__``."""
        if self.wrapper is not None or tr.effects.assigns(self.outside):
            raise GraphBreak("unsupported-value", f"all attributes of {self.describe()}")
        known = self.fn or self.passed
        if self.fn is not None and not trusts(self.fn):  # (the names of what was passed are guarded)
            tr.guards.keys(tr.guards.hold(self.fn.__dict__, "attributes", f"{self.name}.__dict__"))
        if known is not None:
            return {name: self.get_attr(tr, name) for name in known.__dict__}
        return {n: v for n, v in self.attributes.items() if n not in _OUTSIDE_DICT}

    def set_attr(self, tr: Tracer, name: str, value: Value) -> None:
        if self.fn is not None and self._takes_data(name):
            tr.assign(tr.guards.hold(self.outside, self.fn.__name__), name, value)
            return
        if self.outside is not None or self.source is not None:
            super().set_attr(tr, name, value)
        if name == "__annotations__":
            self.annotations = value
        elif name in ("__code__", "__defaults__", "__kwdefaults__", "__closure__", "__dict__", "__globals__"):
            raise GraphBreak("side-effect", f"{name} of {self.describe()} was set")
        else:
            self.attributes[name] = value

    def _takes_data(self, name: str) -> bool:
        """Whether an attribute of one from outside is plain data: no part of it, nor of what is said about it."""
        own = name.startswith("_") or trusts(self.outside)
        return not own and not hasattr(type(self.outside), name)

    def del_attr(self, tr: Tracer, name: str) -> None:
        if self.attributes.pop(name, None) is None:
            super().del_attr(tr, name)

    def same_object(self, tr: Tracer, other: Value) -> bool:
        if not isinstance(other, FunctionValue):
            return False
        mine, theirs = self.outside, other.outside
        if self.source is not None and other.source is not None and (self.fn is None or other.fn is None):
            tr.guards.check(f"({self.source.text} is {other.source.text}) is {mine is theirs}", "which functions are one")
        return mine is not None and mine is theirs


class BoundFunction(Value):
    """A method: a function with its first argument."""

    __slots__ = ("fn", "receiver")

    def __init__(self, fn: Value, receiver: Value, source: Source | None = None) -> None:
        super().__init__(source)
        self.fn, self.receiver = fn, receiver

    def describe(self) -> str:
        return f"method {self.fn.describe()} of {self.receiver.describe()}"

    def call(self, tr: Tracer, args: Sequence[Value], kwargs: Kwargs) -> Value:
        return self.fn.call(tr, [self.receiver, *args], kwargs)

    def truth(self, tr: Tracer) -> bool:
        return True

    def get_attr(self, tr: Tracer, name: str) -> Value:
        if name == "__self__":
            return self.receiver
        return self.fn if name == "__func__" else self.fn.get_attr(tr, name)

    def key(self, tr: Tracer) -> Any:
        return self.fn.key(tr), self.receiver.identity_key(tr)


def of_instance(tr: Tracer, raw: Any, receiver: Value, name: str) -> Value:
    """What an instance gives for an attribute of its class. Which one the class has is guarded by the caller."""
    if isinstance(raw, property):
        return tr.from_python(raw.fget).call(tr, [receiver], {})
    if isinstance(raw, staticmethod):
        return tr.from_python(raw.__func__)
    if isinstance(raw, classmethod):
        return BoundFunction(tr.from_python(raw.__func__), tr.from_python(receiver.python_type(tr)))
    if isinstance(raw, (FunctionType, *BUILTIN_TYPES)):
        return BoundFunction(tr.from_python(raw), receiver)
    if hasattr(type(raw), "__get__"):
        raise GraphBreak("unsupported-value", f"descriptor {name!r} of {receiver.describe()}")
    return tr.from_python(raw)


class BuiltinValue(Value):
    """A function written in C, or a torch function: what it means is in a table, or in an op record."""

    __slots__ = ("fn",)

    def __init__(self, fn: Any, source: Source | None = None) -> None:
        super().__init__(source)
        self.fn = fn

    def python_type(self, tr: Tracer) -> type:
        return type(self.fn)

    def describe(self) -> str:
        return (
            f"function {getattr(self.fn, '__module__', None) or ''}.{getattr(self.fn, '__qualname__', repr(self.fn))}".replace(
                " .", " "
            )
        )

    def key(self, tr: Tracer) -> Any:
        return self.fn

    def truth(self, tr: Tracer) -> bool:
        return True

    def call(self, tr: Tracer, args: Sequence[Value], kwargs: Kwargs) -> Value:
        return tr.call_builtin(self.fn, args, kwargs)

    def get_attr(self, tr: Tracer, name: str) -> Value:
        if isinstance(self.fn, np.ufunc) and callable(getattr(np.ufunc, name, None)):  # numpy.add.reduce
            return BuiltinValue(getattr(self.fn, name))
        own = getattr(self.fn, "__dict__", None)
        if type(own) is dict and not trusts(self.fn):  # what functools.cache made
            if name in own:
                return tr.dict_entry(own, name, f"{own.get('__name__', 'function')}.{name}")
            tr.lacks(self.fn, name)
        found = natively(getattr, self.fn, name)
        if isinstance(found, torch._ops.OpOverload):  # torch.ops.aten.add.Tensor
            return BuiltinValue(found)
        return Const(found) if isinstance(found, (str, type(None))) else super().get_attr(tr, name)

    def same_object(self, tr: Tracer, other: Value) -> bool:
        return isinstance(other, BuiltinValue) and self.fn is other.fn
