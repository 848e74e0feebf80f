"""What stands for an object in a dict or a set where the program's class has a hash of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tinycompile.capture.breaks import GraphBreak

if TYPE_CHECKING:
    from tinycompile.capture.tracer import Tracer
    from tinycompile.capture.values.object import ObjectValue


class ObjectKey:
    """An object as a key, where the program says what its hash is and which others it equals. Python asks in its own time, and
    again where the rebuilt code makes the dict or the set: so that code must do nothing but answer."""

    __slots__ = ("_hash", "_tr", "value")

    def __init__(self, tr: Tracer, value: ObjectValue) -> None:
        self._tr, self.value = tr, value
        self._hash: int = self._asked(lambda: tr.from_python(hash).call(tr, [value], {}).constant(tr))

    def _asked(self, ask: Callable[[], Any]) -> Any:
        changes, nodes = self._tr.effects.count, len(self._tr.builder.nodes)
        answer = ask()
        if (self._tr.effects.count, len(self._tr.builder.nodes)) != (changes, nodes):
            raise GraphBreak("unsupported-value", f"the hash of {self.value.describe()}, which does more than answer")
        return answer

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ObjectKey):
            raise GraphBreak("unsupported-value", f"the hash of {self.value.describe()}, which is that of another key")
        if self.value is other.value:
            return True
        return bool(self._asked(lambda: self._tr.equal(self.value, other.value)))
