"""Functions, bound methods, cells and partials."""

from __future__ import annotations

from collections.abc import Sequence
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

import torch

from tinycompile.capture.breaks import GraphBreak
from tinycompile.capture.sources import Attr, Source
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
            raise NameError(f"cannot access free variable '{name}' where it is not associated with a value in enclosing scope")
        if isinstance(self.content, Lazy):
            self.content = tr.force(self.content)
        return self.content

    def set(self, tr: Tracer, value: Value | None) -> None:
        """Assign, or delete with None."""
        tr.effects.touch(self)
        self.content = value


class CodeConstant(Value):
    """A code object on the stack, just before MAKE_FUNCTION."""

    __slots__ = ("code",)

    def __init__(self, code: CodeType) -> None:
        super().__init__()
        self.code = code


_TEXTS = ("__name__", "__qualname__", "__module__", "__doc__")


class FunctionValue(Value):
    """A Python function: one from outside (``fn`` is it; ``passed``, where only its code is guarded), or one that the program
    made."""

    __slots__ = ("annotations", "closure", "code", "defaults", "fn", "globals", "kwdefaults", "name", "passed")

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
        self.name = code.co_qualname

    def python_type(self, tr: Tracer) -> type:
        return FunctionType

    def describe(self) -> str:
        return f"function {self.name}"

    def key(self, tr: Tracer) -> Any:
        return self if self.fn is None else self.fn

    def truth(self, tr: Tracer) -> bool:
        return True

    def call(self, tr: Tracer, args: Sequence[Value], kwargs: Kwargs) -> Value:
        return tr.call_function(self, args, kwargs)

    def get_attr(self, tr: Tracer, name: str) -> Value:
        if name in _TEXTS and self.fn is not None:
            return Const(getattr(self.fn, name))
        if name == "__name__" and self.source is None:
            return Const(self.code.co_name)
        if self.passed is not None and self.source is not None and name in _TEXTS:
            return tr.wrap(getattr(self.passed, name), Attr(self.source, name))
        if self.fn is None or self.source is None:
            raise GraphBreak("unsupported-value", f"attribute {name!r} of {self.describe()}")
        if name in self.fn.__dict__:
            return tr.dict_entry(self.fn.__dict__, name, f"{self.source.label}.{name}")
        if not hasattr(self.fn, name):
            raise no_attribute(self, FunctionType, name)
        raise GraphBreak("unsupported-value", f"attribute {name!r} of {self.describe()}")

    def same_object(self, tr: Tracer, other: Value) -> bool:
        return self.fn is not None and isinstance(other, FunctionValue) and self.fn is other.fn


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
        return self.fn.key(tr), self.receiver.key(tr)


class PartialValue(Value):
    """``functools.partial``."""

    __slots__ = ("args", "fn", "kwargs")

    def __init__(self, fn: Value, args: Sequence[Value], kwargs: Kwargs, source: Source | None = None) -> None:
        super().__init__(source)
        self.fn, self.args, self.kwargs = fn, list(args), dict(kwargs)

    def call(self, tr: Tracer, args: Sequence[Value], kwargs: Kwargs) -> Value:
        return self.fn.call(tr, [*self.args, *args], {**self.kwargs, **kwargs})

    def truth(self, tr: Tracer) -> bool:
        return True

    def get_attr(self, tr: Tracer, name: str) -> Value:
        if name == "func":
            return self.fn
        if name == "args":
            return TupleValue(self.args)
        if name == "keywords":
            return tr.make_dict([(Const(k), v) for k, v in self.kwargs.items()])
        return super().get_attr(tr, name)


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
        found = getattr(self.fn, name)
        if isinstance(found, torch._ops.OpOverload):  # torch.ops.aten.add.Tensor
            return BuiltinValue(found)
        return Const(found) if isinstance(found, (str, type(None))) else super().get_attr(tr, name)

    def same_object(self, tr: Tracer, other: Value) -> bool:
        return isinstance(other, BuiltinValue) and self.fn is other.fn
