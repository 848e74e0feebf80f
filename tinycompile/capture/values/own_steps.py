"""Steps over objects of the program's own classes, asked one by one: by their ``__next__``, or by their items."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tinycompile.base.errors import InternalError
from tinycompile.capture.provenance import is_the_programs
from tinycompile.capture.values.base import Value
from tinycompile.capture.values.constant import Const

if TYPE_CHECKING:
    from tinycompile.capture.tracer import Tracer
    from tinycompile.capture.values.object import ObjectValue


class OwnSteps(Iterator[Value]):
    """The steps of an iterator of the program's own class."""

    def __init__(self, of: ObjectValue, tr: Tracer) -> None:
        self.of, self.tr = of, tr

    def __next__(self) -> Value:
        try:
            return self.of.required(self.tr, "__next__").call(self.tr, [], {})
        except StopIteration as error:
            if is_the_programs(error):
                self.tr.exception(error)  # which whatever goes through this iterator hands on, and so the program gets
                raise
            raise InternalError("StopIteration came up in capture") from error


class ByIndex(Iterator[Value]):
    """The steps over an object with items and no ``__iter__``. Behind the end nothing is asked, behind an error the same."""

    def __init__(self, of: ObjectValue, tr: Tracer) -> None:
        self.of, self.tr, self.at = of, tr, 0

    def __next__(self) -> Value:
        if self.at < 0:
            raise StopIteration
        try:
            value = self.of.get_item(self.tr, Const(self.at))
        except (IndexError, StopIteration) as error:
            if not is_the_programs(error):
                raise InternalError(f"{type(error).__name__} came up in capture") from error
            self.at = -1
            raise StopIteration from None
        self.at += 1
        return value
