"""What lists and tuples ask of an iterable before they are filled from it: how long it will be (``PyObject_LengthHint``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tinycompile.capture.provenance import is_the_programs
from tinycompile.capture.values.base import Value
from tinycompile.capture.values.constant import Const

if TYPE_CHECKING:
    from tinycompile.capture.tracer import Tracer
    from tinycompile.capture.values.object import ObjectValue


def ask_length(tr: Tracer, of: ObjectValue) -> None:
    """Call the program's ``__len__``, or where that has no answer ``__length_hint__``. A TypeError is no answer."""
    if _answer(tr, of, "__len__") is not None:
        return
    hint = _answer(tr, of, "__length_hint__")
    if hint is None or (isinstance(hint, Const) and hint.value is NotImplemented):
        return
    if not issubclass(hint.python_type(tr), int):
        raise TypeError(f"__length_hint__ must be an integer, not {hint.python_type(tr).__name__}")
    if tr.index(hint, "__length_hint__") < 0:
        raise ValueError("__length_hint__() should return >= 0")


def _answer(tr: Tracer, of: ObjectValue, name: str) -> Value | None:
    method = of.special(tr, name)
    if method is None:
        return None
    try:
        return of.length(tr) if name == "__len__" else method.call(tr, [], {})
    except TypeError as error:
        if not is_the_programs(error):
            raise
        return None
