"""Exceptions that the program makes, raises and catches under capture."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tinycompile.base.raised import is_a, is_chained, read, trace_of, write
from tinycompile.capture.breaks import GraphBreak
from tinycompile.capture.provenance import natively
from tinycompile.capture.trust import is_of
from tinycompile.capture.values.base import Kwargs, MethodOf, Value
from tinycompile.capture.values.classes import built_in_base, class_lookup, defines
from tinycompile.capture.values.constant import NONE, Const, boolean, is_constant_object
from tinycompile.capture.values.object import NewObject
from tinycompile.capture.values.sequence import ListValue, TupleValue

if TYPE_CHECKING:
    from tinycompile.capture.tracer import Tracer


class ExceptionValue(NewObject):
    """An exception object. ``error`` is a real one of its class, which our own frames raise and catch; ``given`` are its
    arguments, which ``error`` has only where they are constants. One that was raised can't be carried over a break: it knows
    where it was raised."""

    __slots__ = ("by_program", "error", "given", "notes")

    def __init__(self, error: BaseException, given: Sequence[Value] | None = None) -> None:
        Value.__init__(self)
        self.obj = self.error = error
        self.shadow = {}
        self.given = given
        self.by_program = given is not None  # else Python raised it, or we in its place
        self.notes: ListValue | None = None

    def describe(self) -> str:
        return f"exception {type(self.error).__name__}"

    @property
    def is_chained(self) -> bool:
        """Whether it knows of another."""
        return is_chained(self.error)

    @property
    def was_raised(self) -> bool:
        """Whether it has a traceback."""
        return trace_of(self.error) is not None

    def arguments(self, tr: Tracer) -> Sequence[Value]:
        """``error.args``."""
        if self.given is None:
            args = read(self.error, "args")
            if not all(map(is_constant_object, args)):
                raise GraphBreak("unsupported-value", f"{self.describe()} of objects")
            self.given = [Const(a) for a in args]
        return self.given

    def constant(self, tr: Tracer) -> Any:
        """The object as a string conversion sees it."""
        args = self.arguments(tr)
        if self.special(tr, "__str__") is None:
            write(self.error, "args", tuple(_as_text(tr, a) for a in args))
            return self.error
        raise GraphBreak("unsupported-value", f"{self.describe()} as text")

    # --- attributes ---

    def _data_descriptor(self, tr: Tracer, name: str, owner: type, raw: Any) -> Value:
        if not is_of(owner, "builtins"):
            return super()._data_descriptor(tr, name, owner, raw)
        if name == "args":
            return TupleValue(self.arguments(tr))
        if name in ("__cause__", "__context__"):
            found = read(self.error, name)
            return NONE if found is None else tr.exception(found)
        if name == "__suppress_context__":
            return boolean(read(self.error, name))
        if name == "value" and is_a(self.error, StopIteration):
            args = self.arguments(tr)
            return args[0] if args else NONE
        if name in ("exceptions", "message") and is_a(self.error, BaseExceptionGroup):
            given = self.arguments(tr)
            return given[0] if name == "message" else TupleValue(given[1].iterate(tr))
        if name == "__traceback__":
            return Traceback() if self.was_raised else NONE
        if (
            name in ("name", "obj")
            and is_a(self.error, AttributeError)
            and not self.by_program
            and vars(AttributeError)["obj"].__get__(self.error) is None
        ):
            raise GraphBreak("unsupported-value", f"{name} of {self.describe()}, which Python raised")
        if name == "__dict__":
            raise GraphBreak("unsupported-value", f"{name} of {self.describe()}")
        return tr.from_python(natively(raw.__get__, self.error))

    def _class_member(self, tr: Tracer, name: str, owner: type, raw: Any) -> Value:
        if is_of(owner, "builtins"):
            return MethodOf(self, name) if callable(raw) else tr.from_python(raw)
        return super()._class_member(tr, name, owner, raw)

    def get_attr(self, tr: Tracer, name: str) -> Value:
        if name == "__notes__" and self.notes is not None and not defines(type(self.error), name):
            return self.notes
        return super().get_attr(tr, name)

    def store(self, tr: Tracer, name: str, value: Value) -> None:
        owner = (class_lookup(type(self.error), name) or (object,))[0]
        if not is_of(owner, "builtins"):
            super().store(tr, name, value)
        elif name == "args":
            self.given = list(value.iterate(tr))
        elif name == "__traceback__" and (isinstance(value, Traceback) or value is NONE):
            return  # nobody can look at it
        elif name in ("__cause__", "__context__") and (isinstance(value, ExceptionValue) or value is NONE):
            natively(write, self.error, name, value.error if isinstance(value, ExceptionValue) else None)
        elif name in ("__cause__", "__context__", "__suppress_context__", "__traceback__"):
            raise GraphBreak("side-effect", f"{name} of {self.describe()} was set")
        else:
            super().store(tr, name, value)

    # --- calls ---

    def call_method(self, tr: Tracer, name: str, args: Sequence[Value], kwargs: Kwargs) -> Value:
        if name == "__init__":
            self.given = list(args)
            known = [a.constant(tr) for a in args if a.is_constant]
            if len(known) == len(args):
                named = {k: v.constant(tr) for k, v in kwargs.items()}
                natively(built_in_base(type(self.error)).__init__, self.error, *known, **named)
            write(self.error, "args", tuple(known))
            return NONE
        if name == "add_note" and not defines(type(self.error), "__notes__"):
            self.notes = self.notes or ListValue()
            self.notes.append(tr, args)
            return NONE
        if name == "with_traceback" and not self.was_raised and args[0] is NONE:
            return self
        if name in ("__str__", "__repr__"):
            return Const(natively(getattr(built_in_base(type(self.error)), name), self.constant(tr)))
        raise GraphBreak("unsupported-value", f"method {name!r} of {self.describe()}")

    def special(self, tr: Tracer, name: str) -> Value | None:
        """A bound special method of the program's; those of the builtin classes do nothing that counts here."""
        owner = (class_lookup(type(self.error), name) or (object,))[0]
        return None if is_of(owner, "builtins") else super().special(tr, name)

    def truth(self, tr: Tracer) -> bool:
        return True


def _as_text(tr: Tracer, value: Value) -> Any:
    """An argument, for Python to make a text of: where the program says how, it is asked in each call."""
    return value.unasked(tr, "__str__", "__repr__") if isinstance(value, Const) else value.constant(tr)


class Traceback(Value):
    """What ``__exit__`` gets as its third argument: it can be passed on, not looked at. It grows as the exception goes up."""

    __slots__ = ()

    def python_type(self, tr: Tracer) -> type:
        return TracebackType

    def truth(self, tr: Tracer) -> bool:
        return True

    def same_object(self, tr: Tracer, other: Value) -> bool:
        if isinstance(other, Traceback):
            raise GraphBreak("unsupported-value", "which tracebacks are one")
        return False


def chain(error: BaseException, handled: BaseException | None) -> None:
    """Raised while ``handled`` is being handled: Python notes that as its context, and leaves no cycle."""
    if handled is None or error is handled:
        return
    seen: BaseException | None = handled
    while seen is not None:
        before = read(seen, "__context__")
        if before is error:
            write(seen, "__context__", None)
            break
        seen = before
    write(error, "__context__", handled)
