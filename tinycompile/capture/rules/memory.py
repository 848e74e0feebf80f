"""Where a tensor's elements lie: ``_base``, ``_is_view()``, ``storage_offset()``, ``is_set_to()``. Addresses and versions are
only known when the program runs: asking for them breaks (``values/tensor.py``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tinycompile.capture.breaks import GraphBreak
from tinycompile.capture.rules.registry import Args
from tinycompile.capture.trust import module_of
from tinycompile.capture.values.base import Kwargs, Value
from tinycompile.capture.values.constant import FALSE, NONE, TRUE, boolean
from tinycompile.capture.values.symbolic import dim_value
from tinycompile.capture.values.tensor import ATTRIBUTES, METHODS, TensorValue
from tinycompile.capture.views import ViewOf, are_known, line_of, placed
from tinycompile.capture.writes import is_same_place
from tinycompile.ops.record import OPS, View

if TYPE_CHECKING:
    from tinycompile.capture.tracer import Tracer


def owns_memory(tr: Tracer, t: TensorValue) -> bool:
    """Whether a tensor that the graph made is the owner of its memory, and no view of another that capture knows nothing of."""
    node = tr.builder.nodes[t.fake.ref.name]
    return t.view is None and node.kind == "call" and not isinstance(OPS[node.target].lowering, View)


def _known_line(tr: Tracer, t: TensorValue, what: str) -> list[TensorValue]:
    """From a tensor to the owner of its memory. Breaks where the way is not known."""
    line = list(line_of(t))
    root, views = line[-1], [v.view for v in line if v.view is not None]
    owned = root.source is not None if root.is_input else owns_memory(tr, root)
    if module_of(t.cls).partition(".")[0] != "torch" or torch.is_inference_mode_enabled() or not owned:
        raise GraphBreak("unsupported-value", f"{what} of {t.describe()}")
    if not all(are_known(view.steps) for view in views):
        raise GraphBreak("unsupported-value", f"{what} of {t.describe()}, a view of a kind that is not known")
    return line


def _is_apart(view: ViewOf) -> bool:
    """Whether torch does not call it a view, though it shares memory: ``detach()``, ``.data``."""
    return view.cut and view.origin != "no_grad"


def _base(t: TensorValue, tr: Tracer) -> Value:
    found = t
    for owner in _known_line(tr, t, "_base")[1:]:
        if found.view is None or _is_apart(found.view):
            break
        found = owner
    if found.is_input and found.source is not None:
        if found.obj._base is not None:
            raise GraphBreak("unsupported-value", f"_base of {t.describe()}, which exists outside the graph")
        tr.guards.check(f"{found.source.text}._base is None", f"{found.source.label} is no view")
    return NONE if found is t else found


def _is_view(t: TensorValue, tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    if t.is_input and t.source is not None:
        known = t.obj._is_view()
        tr.guards.check(f"{t.source.text}._is_view() is {known}", f"{t.source.label} is a view: {known}")
        return boolean(known)
    _known_line(tr, t, "_is_view()")
    return boolean(t.view is not None and not _is_apart(t.view))


def _storage_offset(t: TensorValue, tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    root, begin = _known_line(tr, t, "storage_offset()")[-1], 0
    if root.is_input and root.source is not None:
        begin = root.obj.storage_offset()
        tr.guards.check(f"{root.source.text}.storage_offset() == {begin}", f"{root.source.label} begins at {begin}")
    return dim_value(placed(t).offset + begin)


def _is_set_to(t: TensorValue, tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    other = args[0]
    if not isinstance(other, TensorValue):
        raise GraphBreak("user-exception", f"is_set_to({other.describe()})")
    if other is t:
        return TRUE
    roots = [_known_line(tr, v, "is_set_to()")[-1] for v in (t, other)]
    if t.memory is other.memory:
        return boolean(is_same_place(t, other))
    if not all(root.is_input for root in roots):
        return FALSE
    if t is not roots[0] or other is not roots[1]:
        raise GraphBreak("unsupported-value", f"is_set_to() of views of {' and '.join(root.describe() for root in roots)}")
    known, texts = t.obj.is_set_to(other.obj), [v.source.text for v in (t, other) if v.source is not None]
    tr.guards.check(f"{texts[0]}.is_set_to({texts[1]}) is {known}", "which tensors are the same elements")
    return boolean(known)


ATTRIBUTES["_base"] = _base
METHODS.update({"_is_view": _is_view, "storage_offset": _storage_offset, "is_set_to": _is_set_to})
