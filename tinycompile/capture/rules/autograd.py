"""``torch.autograd.Function``: ``forward`` is followed with a shadow of its context; where a gradient is asked for,
``backward`` is followed too, and the call becomes an op with a gradient of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from tinycompile.base import shapes
from tinycompile.capture.breaks import GraphBreak
from tinycompile.capture.custom_gradient import Recorded, check, make_op
from tinycompile.capture.rules.registry import Args, rule
from tinycompile.capture.torch_calls import run_op, tensors_in
from tinycompile.capture.trust import is_of
from tinycompile.capture.values.base import Kwargs, Value
from tinycompile.capture.values.classes import ClassValue, class_lookup
from tinycompile.capture.values.constant import FALSE, NONE, TRUE, Const
from tinycompile.capture.values.object import NewObject
from tinycompile.capture.values.sequence import SequenceValue, TupleValue
from tinycompile.capture.values.tensor import TensorValue
from tinycompile.dispatch import dispatcher
from tinycompile.eager.fake import FakeTensor
from tinycompile.ir.graph import Node, Ref
from tinycompile.ir.requires_grad import dense

if TYPE_CHECKING:
    from tinycompile.capture.tracer import Tracer


class ShadowContext:
    """Stands for ``ctx`` while a function is followed: what is saved is kept as an attribute."""

    kept_tensors: tuple[Any, ...] = ()

    def save_for_backward(self, *tensors: Any) -> None:
        """Keep tensors for ``backward``."""
        self.kept_tensors = tensors

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """What was kept. Where nobody asks, torch does not look at it: it frees nothing, and sees no edit."""
        self.asks = True
        return self.kept_tensors

    def save_for_forward(self, *tensors: Any) -> None:
        """Nothing is kept: there is no forward mode here."""

    def mark_non_differentiable(self, *tensors: Any) -> None:
        """These outputs have no gradient."""
        self.constants = tensors

    def set_materialize_grads(self, value: bool) -> None:
        """Whether gradients that are undefined come as zeros."""
        self.materialize = value

    def mark_dirty(self, *tensors: Any) -> None:
        """Inputs that are written in place: the whole call is left to torch."""


ShadowContext.mark_dirty._tinycompile_mark = "break"  # type: ignore[attr-defined]


@rule(torch.autograd.Function.apply.__func__)  # type: ignore[attr-defined]
def _apply(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    cls, *given = args
    if not isinstance(cls, ClassValue):
        raise GraphBreak("unsupported-value", f"apply of {cls.describe()}")
    tensors = list(tensors_in(tr, [*given, *kwargs.values()]))
    wants = tr.grad_enabled and any(t.requires_grad for t in tensors)
    context = NewObject(ShadowContext)
    needs = tuple(wants and isinstance(v, TensorValue) and v.requires_grad for v in given)
    context.shadow.update(needs_input_grad=tr.from_python(needs))
    if wants:
        if kwargs or not any(needs):
            raise GraphBreak("backward", f"{cls.cls.__qualname__}.apply with tensors in containers or keywords")
        return _differentiable(tr, cls, context, given)
    before = tr.grad_enabled
    if before:
        tr.set_grad(False)
    try:
        result = _forward(tr, cls, context, given, kwargs)
    finally:
        if before:
            tr.set_grad(True)
    if any(t is other for t in tensors_in(tr, [result]) for other in tensors):
        raise GraphBreak("unknown-function", f"{cls.cls.__qualname__}.apply returns an argument")
    return result


def _forward(tr: Tracer, cls: ClassValue, context: Value, given: Sequence[Value], kwargs: Kwargs) -> Value:
    found = class_lookup(cls.cls, "setup_context")
    splits = found is not None and not is_of(found[0], "torch.autograd.function")
    result = cls.get_attr(tr, "forward").call(tr, given if splits else [context, *given], kwargs)
    if splits:
        cls.get_attr(tr, "setup_context").call(tr, [context, TupleValue(given), result], {})
    return result


# --- with a gradient ---------------------------------------------------------------------------------------------------------


def _differentiable(tr: Tracer, cls: ClassValue, context: NewObject, given: Sequence[Value]) -> Value:
    """Follow both ways, cut out what they recorded, and call the op that it makes."""
    name, nodes = cls.cls.__name__, tr.builder.nodes
    changed, start = tr.effects.count, len(nodes)
    before = tr.grad_enabled, tr.root_grad_enabled, tr.in_formula
    tr.grad_enabled = tr.root_grad_enabled = False  # nothing is cut off: the formula may be differentiated again
    try:
        result = _forward(tr, cls, context, given, {})
        outputs = _outputs(tr, name, result, given)
        kept = _kept(tr, name, context)
        context.shadow["asks"] = FALSE
        middle = len(nodes)
        tangents = [tr.builder.placeholder("tangent", dense(t.meta)) for t in outputs]
        incoming = [TensorValue(t, torch.Tensor, False) for t in tangents]
        tr.in_formula = True
        returned = cls.get_attr(tr, "backward").call(tr, [context, *_incoming(tr, context, name, outputs, incoming)], {})
        gradients = _returned(tr, name, given, returned)
    finally:
        tr.grad_enabled, tr.root_grad_enabled, tr.in_formula = before
    if tr.effects.count != changed:
        raise GraphBreak("side-effect", f"{name}.apply changes something outside")
    ours = [v for v in given if isinstance(v, TensorValue)]
    given_refs, results = (tuple(t.fake.ref for t in values) for values in (ours, outputs))
    saved = tuple(t.fake.ref for t in kept) if context.shadow["asks"].truth(tr) else ()
    forward, backward = _taken_out(tr, name, start, middle)
    recorded = Recorded(name, forward, backward, given_refs, results, tuple(t.ref for t in tangents), tuple(gradients), saved)
    metas = {n.name: n.meta for n in (*nodes.values(), *forward, *backward)}
    metas |= {t.ref.name: t.meta for t in tangents}
    made = make_op(recorded, metas)
    called = run_op(tr, made.op, tuple(FakeTensor(metas[r.name], tr.builder, r) for r in made.args), ours)
    return _renewed(tr, result, outputs, called, context.shadow.get("constants"))


def _taken_out(tr: Tracer, name: str, start: int, middle: int) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
    """The nodes of both ways, which the graph has no longer; inputs that were met there stay."""
    nodes = tr.builder.nodes
    late = list(nodes.values())[start:]
    parts = (late[: middle - start], late[middle - start :])
    for node in late:
        if node.kind != "placeholder" or (node in parts[1] and tr.builder.wish(Ref(node.name)) == "tangent"):
            del nodes[node.name]
    forward, backward = (tuple(n for n in part if n.kind != "placeholder") for part in parts)
    check(name, [*forward, *backward])
    return forward, backward


def _renewed(tr: Tracer, result: Value, outputs: Sequence[TensorValue], called: Value, constants: Value | None) -> Value:
    """What the forward returned, with the op's results in it."""
    results = called.values(tr) if isinstance(called, TupleValue) else [called]
    fixed = list(constants.values(tr)) if isinstance(constants, SequenceValue) else []
    new: dict[int, Value] = {}
    for old, made in zip(outputs, results, strict=False):
        assert isinstance(made, TensorValue)
        new[id(old)] = tr.tensor_method(made, "detach", [], {}) if any(old is c for c in fixed) else made
    if isinstance(result, TensorValue):
        return new[id(result)]
    assert isinstance(result, SequenceValue)
    return TupleValue([new.get(id(v), v) for v in result.values(tr)])


def _outputs(tr: Tracer, name: str, result: Value, given: Sequence[Value]) -> list[TensorValue]:
    """The tensors that the forward returns: each once, and of its own."""
    listed = list(result.values(tr)) if isinstance(result, TupleValue) else [result]
    found = [v for v in listed if isinstance(v, TensorValue)]
    if not found or any(not isinstance(v, (TensorValue, Const)) for v in listed):
        raise GraphBreak("backward", f"{name}.forward returns {result.describe()}")
    memories = [v.memory for v in tensors_in(tr, given)]
    if any(t.memory in memories or t.is_input for t in found) or len({id(t.memory) for t in found}) != len(found):
        raise GraphBreak("backward", f"{name}.forward returns an argument, a view of one, or one tensor twice")
    return found


def _kept(tr: Tracer, name: str, context: NewObject) -> list[TensorValue]:
    """The tensors that the forward has saved. What torch refuses to save breaks."""
    found = context.shadow.get("kept_tensors")
    listed = [v for v in found.values(tr) if v is not NONE] if isinstance(found, SequenceValue) else []
    for value in listed:
        if not isinstance(value, TensorValue):
            raise GraphBreak("backward", f"{name} saves {value.describe()}, which is no tensor")
    return [v for v in listed if isinstance(v, TensorValue)]


def _incoming(
    tr: Tracer, context: NewObject, name: str, outputs: Sequence[TensorValue], tangents: Sequence[TensorValue]
) -> list[Value]:
    """What ``backward`` is called with: where gradients may be undefined, it must be known which are."""
    if not context.shadow.get("materialize", TRUE).truth(tr) and len(outputs) > 1:
        raise GraphBreak("backward", f"{name} takes undefined gradients as they are, for several outputs")
    return list(tangents)


def _returned(tr: Tracer, name: str, given: Sequence[Value], returned: Value) -> list[Ref | None]:
    """One gradient for each tensor given. What torch refuses breaks: it says so itself."""
    listed = list(returned.values(tr)) if isinstance(returned, SequenceValue) else [returned]
    if len(listed) != len(given):
        raise GraphBreak("backward", f"{name}.backward returns {len(listed)} gradients for {len(given)} arguments")
    made: list[Ref | None] = []
    for value, grad in zip(given, listed, strict=True):
        if not isinstance(value, TensorValue):
            if grad is not NONE:
                raise GraphBreak("backward", f"{name}.backward returns a gradient for what is no tensor")
            continue
        if not isinstance(grad, TensorValue):
            if grad is not NONE:
                raise GraphBreak("backward", f"{name}.backward returns {grad.describe()}")
            made.append(None)
            continue
        a, b = value.meta, grad.meta
        if not shapes.same_shape(a.shape, b.shape) or a.device != b.device:
            raise GraphBreak("backward", f"{name}.backward returns a gradient {b} for {a}")
        fake = grad.fake if a.dtype == b.dtype else dispatcher.call("to", grad.fake, a.dtype)
        made.append(fake.ref if value.requires_grad else None)
    return made
