"""``functools.partial``: the objects that it is made of are its own, and its keywords may change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tinycompile.capture.breaks import GraphBreak
from tinycompile.capture.sources import Source
from tinycompile.capture.values.base import Kwargs, Value
from tinycompile.capture.values.constant import Const
from tinycompile.capture.values.mapping import DictValue
from tinycompile.capture.values.sequence import TupleValue

if TYPE_CHECKING:
    from tinycompile.capture.tracer import Tracer


class PartialValue(Value):
    """A partial: ``listed`` and ``keywords`` are its ``args`` and ``keywords``."""

    __slots__ = ("fn", "keywords", "listed")

    def __init__(self, fn: Value, listed: TupleValue, keywords: DictValue, source: Source | None = None) -> None:
        super().__init__(source)
        self.fn, self.listed, self.keywords = fn, listed, keywords

    @classmethod
    def made(cls, tr: Tracer, fn: Value, args: Sequence[Value], kwargs: Kwargs) -> PartialValue:
        """What ``partial(fn, *args, **kwargs)`` gives: of a partial, it is one partial."""
        if isinstance(fn, PartialValue):
            args, kwargs = [*fn.args(tr), *args], {**fn.kwargs(tr), **kwargs}
            fn = fn.fn
        made = cls(fn, TupleValue(args), DictValue(tr))
        made.keywords = KeywordsValue(tr, made, kwargs)
        return made

    def args(self, tr: Tracer) -> list[Value]:
        """The arguments that it puts first."""
        return self.listed.values(tr)

    def kwargs(self, tr: Tracer) -> Kwargs:
        """The keywords as they are now."""
        return {name.constant(tr): value for name, value in self.keywords.pairs(tr)}

    def call(self, tr: Tracer, args: Sequence[Value], kwargs: Kwargs) -> Value:
        return self.fn.call(tr, [*self.args(tr), *args], {**self.kwargs(tr), **kwargs})

    def truth(self, tr: Tracer) -> bool:
        return True

    def get_attr(self, tr: Tracer, name: str) -> Value:
        found: dict[str, Value] = {"func": self.fn, "args": self.listed, "keywords": self.keywords}
        return found[name] if name in found else super().get_attr(tr, name)


class KeywordsValue(DictValue):
    """The keywords of a partial that the program made."""

    __slots__ = ("owner",)

    def __init__(self, tr: Tracer, owner: PartialValue, kwargs: Kwargs) -> None:
        super().__init__(tr, [(Const(name), value) for name, value in kwargs.items()])
        self.owner = owner

    def set_item(self, tr: Tracer, key: Value, value: Value) -> None:
        if key.python_type(tr) is not str:
            raise GraphBreak("side-effect", f"the keywords of a partial are given {key.describe()}")
        super().set_item(tr, key, value)
