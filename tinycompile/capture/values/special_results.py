"""What special methods may return: Python checks it, and complains, where it calls them on its own."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from tinycompile.base import shapes
from tinycompile.capture.breaks import GraphBreak
from tinycompile.capture.values.base import Value
from tinycompile.capture.values.constant import Const
from tinycompile.capture.values.symbolic import SymInt

if TYPE_CHECKING:
    from tinycompile.capture.tracer import Tracer

RESULTS: dict[str, type] = {
    "__bool__": bool, "__len__": int, "__hash__": int, "__index__": int, "__int__": int, "__float__": float, "__str__": str,
    "__repr__": str, "__format__": str, "__init__": type(None),
}  # fmt: skip


def checked(tr: Tracer, name: str, result: Value) -> Value:
    """The result of a special method; breaks where Python would refuse or convert it."""
    kind = result.python_type(tr)
    if kind is not RESULTS[name]:
        raise GraphBreak("user-exception", f"{name} returned a {kind.__name__}")
    return _length(tr, result) if name == "__len__" else result


def _length(tr: Tracer, result: Value) -> Value:
    if isinstance(result, SymInt) and shapes.at_least(result.dim, 0):
        return result
    length = tr.index(result, "len")
    if not 0 <= length <= sys.maxsize:
        raise GraphBreak("user-exception", f"__len__ returned {length}")
    return Const(length)
