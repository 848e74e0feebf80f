"""The Autograd key: what ops on tensors of the tape do, driven by the records.

A record with a formula runs below and leaves a node; one without runs as the ops through which it is differentiated; what
only torch can differentiate becomes a :class:`TorchCall`. Where torch tensors that require grad meet ours, the edge leads to
torch's tape.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from itertools import compress
from typing import Any

import torch

from tinycompile.base.meta import TensorMeta
from tinycompile.dispatch import dispatcher
from tinycompile.dispatch.keys import Key, KeySet
from tinycompile.eager.as_strided import note_view_among
from tinycompile.eager.backends import is_same, named_results
from tinycompile.eager.batched import call_each, gradients_of_each, level_of, lifted
from tinycompile.eager.engine import TorchTape
from tinycompile.eager.in_parts import in_parts
from tinycompile.eager.kept import keep
from tinycompile.eager.saved import FREED, Given, OpNode, Reads, RegeneratedView, metadata, reads_of, torchs_name
from tinycompile.eager.shortcut import Known, ShortView, on_tape, sibling
from tinycompile.eager.tape import (
    AUTOGRAD,
    Edge,
    Node,
    Nowhere,
    ViewInfo,
    accumulator,
    edges_of,
    generation_of,
    note_views,
    set_history,
    written_before,
)
from tinycompile.eager.tensor import Tensor, from_torch, unwrap, view_of, wrap
from tinycompile.eager.torch_names import node_name
from tinycompile.eager.torch_words import REFUSED_VIEWS, refused_view
from tinycompile.ops.gradients import CUT, FORMS, differentiable_form, may_refuse, refused
from tinycompile.ops.record import OPS, Decompose, Extern, Op

# --- edges -------------------------------------------------------------------------------------------------------------------


def edge_of(tensor: Any) -> Edge | None:
    """Where the tensor's gradient goes; None: it has none."""
    if isinstance(tensor, torch.Tensor):
        return Edge(TorchTape(tensor, metadata(tensor)), 0) if tensor.requires_grad else None
    if tensor._view is not None:
        refresh(tensor)
    meta = tensor._autograd
    if meta is not None and meta.borrowed:
        return Edge(Nowhere((), (tensor.meta,)), 0)
    if meta is not None:
        return Edge(meta.grad_fn, meta.index) if meta.grad_fn is not None else Edge(accumulator(tensor), 0)
    return Edge(TorchTape(tensor.raw(), tensor.meta), 0) if tensor.on_torchs_tape else None


def is_tracked(args: Sequence[Any]) -> bool:
    """Whether our tape follows one of the tensors (or the base of one that is a view)."""
    return any(isinstance(t, Tensor) and t.keys & AUTOGRAD for t in dispatcher.tensors_in(args))


class NestedNoGradError(NotImplementedError):
    """Within derivatives of derivatives, what is done without gradients counts for the outer ones: one tape can't tell."""


class _Functions(threading.local):
    nested = 0


functions = _Functions()
"""``nested``: how many functions are being called that ``func.py`` differentiates, each within the one before."""


def refuse_half(args: Sequence[Any]) -> None:
    """Called where gradients are off. ``no_grad`` in a function hides what is done from the innermost derivative alone."""
    if functions.nested > 1 and is_tracked(args):
        raise NestedNoGradError(
            "no_grad within a function of which a derivative is differentiated again: the outer derivative counts what is done "
            "there, the inner does not. Use detach() where neither is to count it, torch.func where they differ."
        )


OPAQUE = (
    "a write through as_strided can't be followed beyond the tensor's own elements, nor where these do not lie side by side in "
    "memory; and one to the parts of complex numbers can't be"
)


def refusal(view: Tensor, info: ViewInfo, now: bool) -> RuntimeError:
    """torch's error of a view that may not be written to, or (not ``now``) whose memory was."""
    meta = view._autograd
    made_by = None if meta is None or meta.grad_fn is None else (torchs_name(meta.grad_fn), meta.index)
    return RuntimeError(refused_view(info.origin, made_by, now))


def is_refused(view: Tensor) -> bool:
    """Whether a view may not be differentiated through, for its memory was written to."""
    info = view._view
    if info is None or info.origin not in REFUSED_VIEWS or not view.keys & AUTOGRAD:
        return False
    return generation_of(info.base) != info.generation or (info.version is not None and info.version != written_before(view))


def refresh(view: Tensor) -> None:
    """Give a view the history that its base has now, if the base was written to since."""
    info = view._view
    if info.origin in REFUSED_VIEWS:
        if is_refused(view):
            raise refusal(view, info, now=False)
        return
    now = generation_of(info.base)
    if now == info.generation:
        return
    if info.origin == "opaque":
        raise NotImplementedError(OPAQUE)
    if info.origin:
        return
    view._view = info._replace(generation=now)
    edge, meta = edge_of(info.base), info.base.meta
    if edge is None:
        return
    for i, (op_name, rest) in enumerate(info.chain):  # formulas of views read metadata alone
        op = OPS[op_name]
        kind = RegeneratedView if i == len(info.chain) - 1 else OpNode
        node = kind(reads_of(op, (True, *(None for _ in rest))), (meta, *rest), (edge,))
        found = op.meta(meta, *rest)
        assert isinstance(found, TensorMeta)
        meta = found
        node.metas = node.results = (meta,)
        edge = Edge(node, 0)
    set_history(view, *edge)


# --- the kernel --------------------------------------------------------------------------------------------------------------


def run_autograd(op_name: str, keyset: KeySet, args: tuple[Any, ...]) -> Any:
    """The Autograd key's fallback."""
    op = OPS.get(op_name)
    if keyset >> Key.BATCHED & 1:  # what is on a tape of a lower level is a constant to this one
        args = lifted(args, level_of(args))
    if not torch.is_grad_enabled() and op_name not in CUT:
        refuse_half(args)
    if op is None or op_name in CUT or not torch.is_grad_enabled():
        return dispatcher.redispatch(op_name, keyset.below(Key.AUTOGRAD), args)
    if is_same(op):
        return args[0]
    if is_tracked(refused(op, args)):  # torch says so
        return call_torch(op.eager, args, {}, op_name)
    if op.vjp is None:
        form = differentiable_form(op)
        result = NotImplemented if form is None else in_parts(op, form, args)
        if result is not NotImplemented:
            result = keep(op, args, result, edge_of)
            return named_results(op, result) if type(result) is tuple else result
        if not isinstance(op.lowering, (Extern, Decompose)):
            result = dispatcher.redispatch(op_name, keyset.below(Key.AUTOGRAD), args)
            if not has_floats(result):  # comparisons and the like: nothing to follow
                return result
        return call_torch(op.eager, args, {}, op_name)
    result = in_parts(op, FORMS[op_name], args) if op_name in FORMS else NotImplemented
    if result is not NotImplemented:
        return result
    result = dispatcher.redispatch(op_name, keyset.below(Key.AUTOGRAD), args)
    return keep(op, args, record(op, args, result), edge_of)


def has_floats(result: Any) -> bool:
    """Whether a gradient could flow through a result."""
    if isinstance(result, (tuple, list)):
        return any(map(has_floats, result))
    return bool(result.dtype.is_floating_point)


def record(op: Op, args: Sequence[Any], result: Any) -> Any:
    """Leave a node for a call that ran; gives the result back, on the tape."""
    moves = op.name == "to_device" and (args[0].lacks_handle or result.lacks_handle)  # torch can't, and values stay the same
    if _has_complex((args, result)) and is_tracked(args) and not moves:  # our formulas are of real numbers
        return call_torch(op.eager, args, {}, op.name)
    if not isinstance(result, tuple):
        return _record_one(op, args, result)
    if not any(r.dtype.is_floating_point for r in result) or any(r is a for r in result for a in args):
        return result
    needs, edges = edges_of(args, edge_of)
    if any(e is not None for e in edges):
        node = OpNode(reads_of(op, needs), args, edges)
        node.close(result)
        for i, r in enumerate(result):
            if r.dtype.is_floating_point:
                set_history(r, node, i)
    return result


def _has_complex(values: Any) -> bool:
    return any(t.dtype.is_complex for t in dispatcher.tensors_in(values))


def _record_one(op: Op, args: Sequence[Any], result: Any) -> Any:
    """The same for one result: the usual case, and what a small op costs."""
    if not (result.dtype.is_floating_point or result.dtype.is_complex):
        if op.moves or not is_tracked(args):
            return result
        # torch refuses integers of what has a derivative (``sum(dtype=torch.int32)``)
        return call_torch(op.eager, args, {}, op.name)
    needs, edges = edges_of(args, edge_of)
    if not any(edges) or any(result is a for a in args):
        return result
    node = OpNode(reads_of(op, needs), args, edges)
    node.close((result,))
    return set_history(result, node, 0)


# --- calls that torch differentiates -----------------------------------------------------------------------------------------


class TorchCall(Node):
    """One call of a torch function, recorded by torch's own autograd on stand-ins for its tensors. ``outputs``: its results;
    None for those that had their backward. ``again``: the call is another's backward, whose part of torch's graph is in this
    one's too, and is freed by the other. ``given``: what the stand-ins stand for, as it was."""

    __slots__ = ("again", "given", "label", "outputs", "stand_ins")

    def __init__(
        self,
        label: str,
        edges: Sequence[Edge | None],
        stand_ins: Sequence[torch.Tensor | None],
        outputs: Sequence[Any],
        given: Sequence[Given] = (),
        again: bool = False,
    ) -> None:
        super().__init__(edges, [metadata(o) for o in outputs])
        self.label, self.stand_ins, self.outputs, self.given, self.again = label, tuple(stand_ins), tuple(outputs), given, again

    def run(self, grads: Sequence[Any], create_graph: bool, keep: bool) -> Sequence[Any]:
        """torch.autograd.grad; where the result is to be differentiated, that is a torch function of the stand-ins and of the
        gradients. A vmap around the backward (``jacrev``) gives gradients of several examples: one pass each."""
        came = [g is not None for g in grads]
        if not all(o is not None for o in compress(self.outputs, came)):
            raise RuntimeError(FREED)
        if level_of(grads):
            results: Sequence[Any] = call_each(lambda some, _: self.run(some, create_graph, True), self.label, tuple(grads), {})
            return results
        edges = [edge_of(g) if create_graph and g is not None else None for g in grads]
        seeds = [_stand_in(g, e) if g is not None else None for g, e in zip(grads, edges, strict=True)]
        targets = [s for s in self.stand_ins if s is not None]
        outputs, given = list(compress(self.outputs, came)), list(compress(seeds, came))
        for stood in self.given:
            stood.follow()
        try:
            made = iter(torch.autograd.grad(outputs, targets, given, keep or self.again, create_graph, allow_unused=True))
        except RuntimeError as error:
            self._tell_of_edits(str(error))
            raise
        found = [None if s is None else next(made) for s in self.stand_ins]
        if not keep:
            self._let_go(came)
        if not create_graph:
            return [_ours(g) for g in found]
        more = [s if e is not None else None for s, e in zip(seeds, edges, strict=True)]
        followed = [g for g in found if g is not None and g.requires_grad]
        node = TorchCall(self.label, (*self.edges, *edges), (*self.stand_ins, *more), followed, self.given, True)
        return [_wrapped(g, (), node, torch.autograd.grad) for g in found]

    def _tell_of_edits(self, said: str) -> None:
        """torch's error of a stand-in that was edited knows no node that made it."""
        for stood in self.given:
            unnamed, named = stood.told()
            if said == unnamed:
                raise RuntimeError(named)

    def _let_go(self, came: Sequence[bool]) -> None:
        """These results have had their backward. Others may yet have theirs, where torch finds nothing in common."""
        edge = torch.autograd.graph.get_gradient_edge
        self.outputs = tuple(
            None if c or o is None else edge(o) if isinstance(o, torch.Tensor) else o
            for o, c in zip(self.outputs, came, strict=True)
        )
        if not any(self.outputs):
            self.stand_ins, self.given = (), ()


def _stand_in(tensor: Any, edge: Edge | None) -> torch.Tensor:
    """A torch tensor of the same memory, a leaf of torch's tape where our tape follows this one."""
    raw = tensor.raw() if isinstance(tensor, Tensor) else tensor
    return raw if edge is None else raw.detach().requires_grad_()


def _ours(grad: Any) -> Any:
    return from_torch(grad) if isinstance(grad, torch.Tensor) else grad


def _replaced(value: Any, fn: Callable[[Any], Any]) -> Any:
    """Nested arguments with every tensor (ours and torch's) replaced, in order; our other objects as torch's."""
    if isinstance(value, (Tensor, torch.Tensor)):
        return fn(value)
    if type(value) in (tuple, list):
        return type(value)(_replaced(v, fn) for v in value)
    if type(value) is dict:
        return {k: _replaced(v, fn) for k, v in value.items()}
    return unwrap(value)


def _torch_tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (tuple, list)):
        return [t for v in value for t in _torch_tensors(v)]
    return []


def call_torch(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], name: str = "") -> Any:
    """Call a torch function on stand-ins that require grad; its results are on our tape where torch says they require grad."""
    if level_of((*args, *kwargs.values())):
        return gradients_of_each[0](fn, args, kwargs)
    if Tensor.elsewhere is not None and Tensor.elsewhere.concerns(args, kwargs):
        return Tensor.elsewhere.moved(call_torch, fn, args, kwargs)
    edges: list[Edge | None] = []
    stand_ins: list[torch.Tensor | None] = []
    originals: list[tuple[Any, Any]] = []
    known: list[Given] = []
    bad: list[Tensor] = []

    def stand_in(tensor: Any) -> torch.Tensor:
        for raw, of in originals:  # the same object again, which torch asks for: ``add`` of a sparse tensor to itself
            if of is tensor:
                return raw
        if isinstance(tensor, Tensor) and is_refused(tensor):  # an error if there are gradients
            bad.append(tensor)
            return tensor.raw().detach().requires_grad_()
        edge = edge_of(tensor)
        raw = _stand_in(tensor, edge)
        edges.append(edge)
        stand_ins.append(raw if edge is not None else None)
        if edge is None and type(tensor) is Tensor and not raw.is_inference():
            raw = raw.detach()  # its data may be replaced before the backward, too
            known.append(Given(tensor, raw))
        elif edge is not None and isinstance(tensor, Tensor):
            known.append(Given(tensor, raw))
        originals.append((raw, tensor))
        return raw

    given = _replaced((tuple(args), dict(kwargs)), stand_in)
    with torch.enable_grad():
        result = fn(*given[0], **given[1])
    outputs = [o for o in _torch_tensors(result) if o.requires_grad and not any(o is raw for raw, _ in originals)]
    if bad and outputs:
        refresh(bad[0])  # raises
    node = TorchCall(node_name(name or getattr(fn, "__name__", "torch").strip("_")), edges, stand_ins, outputs, known)
    return _wrapped(result, originals, node, fn)


def _wrapped(value: Any, originals: Sequence[tuple[Any, Any]], node: TorchCall, fn: Callable[..., Any]) -> Any:
    if isinstance(value, torch.Tensor):
        for raw, tensor in originals:
            if value is raw:
                return tensor
        at = next((i for i, output in enumerate(node.outputs) if value is output), None)
        made = wrap(value) if at is None else set_history(from_torch(value.detach()), node, at)
        note_view_among(fn, made, value, originals)
        return made
    if isinstance(value, (tuple, list)) and not isinstance(value, torch.Size):
        items = [_wrapped(v, originals, node, fn) for v in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value


class GraphOnTape:
    """A compiled graph's function for tensors of ours: where our tape follows one of them, the call is a :class:`TorchCall`.
    ``ours``: which results are to be ours."""

    def __init__(self, run: Callable[..., tuple[Any, ...]], ours: Sequence[bool]) -> None:
        self.run, self.ours = run, ours

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        followed = torch.is_grad_enabled() and is_tracked(inputs) and not any(getattr(t, "lacks_handle", False) for t in inputs)
        made = call_torch(self.run, inputs, {}, "compiled_function") if followed else self.run(*map(_theirs, inputs))
        return tuple([_ours(r) if ours else _theirs(r) for r, ours in zip(made, self.ours, strict=True)])


def _theirs(value: Any) -> Any:
    """torch's tensor for ours; anything else as it is."""
    return value.torch() if isinstance(value, Tensor) else value


# --- small calls -------------------------------------------------------------------------------------------------------------


def call_on_tape(known: Known, fn: Callable[..., Any], args: Sequence[Any], raws: Sequence[Any]) -> Any:
    """:func:`run_autograd` for a call without lists and with one result, by the short way; None: not such a call."""
    if not known.has_node or _anomaly():
        return None
    needs: list[bool | None] = []
    edges: list[Edge | None] = []
    for arg, raw in zip(args, raws):  # noqa: B905  # as many; this runs for every op
        if arg is raw:  # no tensor
            needs.append(None)
            continue
        if arg._view is not None:
            refresh(arg)
        meta = arg._autograd
        if meta is not None:
            if raw.is_complex():
                return None
            made_by = meta.grad_fn
            edges.append(_new(Edge, (made_by, meta.index)) if made_by is not None else edge_of(arg))
            needs.append(True)
        elif raw.requires_grad:  # torch's tape meets ours
            return None
        else:
            edges.append(None)
            needs.append(False)
    reads = _reads(known, tuple(needs))
    if reads is None:
        return None
    made = sibling(fn(*raws), args, raws)
    if made is None or not made.meta.dtype.is_floating_point:
        return None if made is not None and made.meta.dtype.is_complex else made
    return set_history(made, OpNode.of_small_call(reads, (*args, *known.rest), edges, made), 0)


_new: Any = tuple.__new__  # past the Python function by which a NamedTuple is made
_anomaly = torch.is_anomaly_enabled


def _reads(known: Known, needs: tuple[Any, ...]) -> Reads | None:
    """None where torch may refuse the call."""
    found = known.reads.get(needs, _new)
    if found is _new:
        every = (*needs, *(None,) * len(known.rest))
        found = known.reads[needs] = None if may_refuse(known.op, every) else reads_of(known.op, every)
    return found


def view_on_tape(view: ShortView, base: Tensor, followed: int) -> Any:
    """A view by the short way; None where the tape has more to do."""
    edge = None
    if followed:
        if not torch.is_grad_enabled() or view.meta.dtype != base.dtype or base.dtype.is_complex or _anomaly():
            return None
        edge = edge_of(base) if view.chain[0][0] != "detach" else None
    elif base.on_torchs_tape:
        return None
    made = view_of(base, view.meta)
    if view.chain[0][0] == "detach":
        return made
    note_views(made, base, view.chain)
    if edge is not None:
        for step in view.steps:
            reads = reads_of(step.op, (True, *[None] * len(step.rest)))
            edge = _new(Edge, (OpNode.of_view(reads, (step.of, *step.rest), edge, step.made), 0))
        set_history(made, *edge)
    return made


on_tape += call_on_tape, view_on_tape
dispatcher.fallback(Key.AUTOGRAD, run_autograd, leaf=True)
