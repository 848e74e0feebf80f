"""Functions that bear a mark of the user's: see ``capture/marks.py``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tinycompile.capture import torch_calls
from tinycompile.capture.breaks import GraphBreak
from tinycompile.capture.rules.registry import Args
from tinycompile.capture.values.base import Kwargs, Value
from tinycompile.capture.values.object import ObjectValue

if TYPE_CHECKING:
    from tinycompile.capture.tracer import Tracer


def call(tr: Tracer, fn: Any, mark: str, args: Args, kwargs: Kwargs) -> Value:
    """A call of a marked function."""
    if mark == "break":
        raise GraphBreak("user-break", "tinycompile.graph_break()")
    if mark == "disable":
        raise GraphBreak("disabled", fn.__qualname__)
    if mark == "constant":
        result = fn(*(_plain(tr, a) for a in args), **{k: _plain(tr, v) for k, v in kwargs.items()})
        return tr.wrap(result, tr.guards.hold(result, f"{fn.__name__}_result"))
    given = [a.argument(tr) for a in args]
    named = {k: v.argument(tr) for k, v in kwargs.items()}
    return torch_calls.extern(tr, fn._tinycompile_path, fn, given, named, [*args, *kwargs.values()])


def _plain(tr: Tracer, value: Value) -> Any:
    return value.obj if isinstance(value, ObjectValue) and value.source is not None else value.constant(tr)
