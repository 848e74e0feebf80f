"""How the program's views hang together: each knows the steps from what it views, and how a write goes back along them.

A write to a view makes the view's new value, then the new value of what it views (a scatter of the part into it), up to the
tensor that owns the memory. All other views of that memory take their values anew when they are next asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from tinycompile.base import shapes
from tinycompile.base.expr import Dim
from tinycompile.base.meta import TensorMeta
from tinycompile.dispatch import dispatcher
from tinycompile.eager.fake import FakeTensor
from tinycompile.ir.builder import refs_in
from tinycompile.ir.graph import Node, Ref
from tinycompile.ir.interpreter import torch_function
from tinycompile.ops.meta_rules import is_non_overlapping_and_dense
from tinycompile.ops.record import OPS

if TYPE_CHECKING:
    from tinycompile.capture.values.tensor import TensorValue
    from tinycompile.ir.builder import GraphBuilder


class Step(NamedTuple):
    """One view op: its name, its arguments behind the tensor, and which of several results (None: there is one). ``call``: the
    node of a function of torch's that has no record, which can be called again, and nothing else is known of it."""

    op: str
    args: tuple[Any, ...]
    item: int | None = None
    call: Node | None = None

    @property
    def fn(self) -> Callable[..., Any]:
        """torch's function."""
        return OPS[self.op].eager if self.call is None else torch_function(self.op)

    @property
    def kwargs(self) -> tuple[tuple[str, Any], ...]:
        """Arguments by name."""
        return () if self.call is None else self.call.kwargs

    def apply(self, whole: FakeTensor) -> FakeTensor:
        """Record the op."""
        if self.call is None:
            made = dispatcher.call_bound(self.op, (whole, *self.args))
        else:
            made = whole.recorder.extern(self.op, (whole, *self.args), dict(self.kwargs), self.call.meta)
        return made if self.item is None else made[self.item]

    def meta(self, whole: TensorMeta) -> TensorMeta:
        """The result's metadata."""
        made = OPS[self.op].meta(whole, *self.args)
        found = made if self.item is None else made[self.item]  # type: ignore[index]
        assert isinstance(found, TensorMeta)
        return found


@dataclass(frozen=True)
class ViewOf:
    """What a tensor views, and how. ``cut``: it has no part in the history of what it views, as after ``detach``.

    ``origin``: how torch made it, where that matters to writes: ``"no_grad"``, ``"several"`` (an op that returns several
    views), ``"data"`` (``x.data``, whose writes are not counted); else empty. ``born``: how often torch had counted writes."""

    base: TensorValue
    steps: tuple[Step, ...]
    cut: bool
    origin: str
    born: int = 0


@dataclass(frozen=True)
class UnknownPlace:
    """``base[parts]`` where lone numbers in tensors name the place: torch reads them, and gives a view. Capture reads the
    values; where ``value`` leaves the graph, torch makes the view. ``parts``: a tensor or None (all of it) a dim; ``written``:
    how often each had been written to."""

    value: TensorValue
    base: TensorValue
    parts: tuple[TensorValue | None, ...]
    written: tuple[int, ...]

    def is_named_still(self) -> bool:
        """Whether the tensors still hold the numbers that they held."""
        return self.written == writes_to(self.parts)


def writes_to(parts: Sequence[TensorValue | None]) -> tuple[int, ...]:
    """How often each tensor was written to."""
    return tuple(p.memory.writes for p in parts if p is not None)


def line_of(target: TensorValue) -> Iterator[TensorValue]:
    """The tensor, what it views, and so on to the owner of the memory."""
    yield target
    while target.view is not None:
        target = target.view.base
        yield target


def shows_a_part(t: TensorValue) -> bool:
    """Whether a write to a tensor leaves other elements of its memory as they are: the new value of all reads the old."""
    steps = (step for v in line_of(t) if v.view is not None for step in v.view.steps)
    return any(_BACK.get(step.op) in (_select, _slice, _narrow, _diagonal, _piece) for step in steps)


def is_data(t: TensorValue) -> bool:
    """Whether a tensor is ``x.data``, or a view of it: torch counts writes to it apart from those to ``x``."""
    return any(v.view is not None and v.view.origin == "data" for v in line_of(t))


def is_refused_by_now(t: TensorValue) -> bool:
    """Whether torch refuses to differentiate through a view, for it is one of several, or was made without gradients, and what
    it views was written to."""
    refused = [v.view for v in line_of(t) if v.view is not None and v.view.origin in ("several", "no_grad")]
    return any(view.born != t.memory.version for view in refused)


def placed(t: TensorValue) -> TensorMeta:
    """Where a tensor lies in the memory of its owner: the offset counts from there. Its views must be known."""
    *above, root = line_of(t)
    meta = TensorMeta(root.meta.shape, root.meta.strides, root.meta.dtype, root.meta.device)
    for view in (other.view for other in reversed(above)):
        for step in () if view is None else view.steps:
            meta = step.meta(meta)
    return meta


def requires_grad_alone(t: TensorValue) -> bool:
    """Whether a tensor is to torch a leaf that requires grad since it is a view, made under ``no_grad``, of one that does."""
    view = t.view
    while view is not None and (not view.cut or view.origin == "no_grad"):
        if view.origin == "no_grad" and view.base.requires_grad:
            return True
        view = view.base.view
    return False


def steps_between(builder: GraphBuilder, base: Any, view: Any) -> tuple[Step, ...] | None:
    """The ops that lead from one fake to a view of it, by the graph's nodes; None where they are not known as views."""
    if type(base) is not FakeTensor or type(view) is not FakeTensor:
        return None
    found: list[Step] = []
    name, item = view.ref.name, None
    while name != base.ref.name:
        node = builder.nodes[name]
        if node.kind == "item":
            name, item = node.args[0].name, node.args[1]
            continue
        known = node.kind == "extern" or (node.kind == "call" and node.target in _BACK)
        if not known or not isinstance(node.args[0], Ref) or any(refs_in((node.args[1:], node.kwargs))):
            return None
        found.append(Step(node.target, node.args[1:], item, node if node.kind == "extern" else None))
        name, item = node.args[0].name, None
    return tuple(reversed(found))


def put_back(steps: Sequence[Step], whole: FakeTensor, part: FakeTensor) -> FakeTensor:
    """``whole`` with the part to which the steps lead replaced."""
    wholes = [whole]
    for step in steps[:-1]:
        wholes.append(step.apply(wholes[-1]))
    for step, of in zip(reversed(steps), reversed(wholes), strict=True):
        if not is_non_overlapping_and_dense(of.meta):  # its values are wanted, not the gaps between them
            of = dispatcher.call("clone", of)
        part = _BACK[step.op](of, part, step)
    return part


def are_known(steps: Sequence[Step]) -> bool:
    """Whether it is known which elements a view has: of the views of functions without a record it is not."""
    return all(s.call is None for s in steps)


def overlaps_itself(steps: Sequence[Step]) -> bool:
    """Whether several elements of a view may be one in memory."""
    return any(s.op in ("expand", "unfold") for s in steps)


# --- the way back of each view op --------------------------------------------------------------------------------------


def _select(whole: FakeTensor, part: FakeTensor, step: Step) -> FakeTensor:
    return dispatcher.call("select_scatter", whole, part, *step.args)


def _slice(whole: FakeTensor, part: FakeTensor, step: Step) -> FakeTensor:
    return dispatcher.call("slice_scatter", whole, part, *step.args)


def _narrow(whole: FakeTensor, part: FakeTensor, step: Step) -> FakeTensor:
    dim, start, length = step.args
    first = start if shapes.at_least(start, 0) else start + whole.shape[dim]
    return dispatcher.call("slice_scatter", whole, part, dim, first, first + length)


def _diagonal(whole: FakeTensor, part: FakeTensor, step: Step) -> FakeTensor:
    return dispatcher.call("diagonal_scatter", whole, part, *step.args)


def _permute(whole: FakeTensor, part: FakeTensor, step: Step) -> FakeTensor:
    dims = [shapes.normalize_dim(d, part.meta.rank) for d in step.args[0]]
    return dispatcher.call("permute", part, tuple(dims.index(d) for d in range(len(dims))))


def _again(whole: FakeTensor, part: FakeTensor, step: Step) -> FakeTensor:
    return step.apply(part)


def _movedim(whole: FakeTensor, part: FakeTensor, step: Step) -> FakeTensor:
    source, destination = step.args
    return dispatcher.call("movedim", part, destination, source)


def _reshape(whole: FakeTensor, part: FakeTensor, step: Step) -> FakeTensor:
    return dispatcher.call("reshape", part, tuple(whole.shape))


def _itself(whole: FakeTensor, part: FakeTensor, step: Step) -> FakeTensor:
    return part


def _piece(whole: FakeTensor, part: FakeTensor, step: Step) -> FakeTensor:
    """One of the pieces that ``split`` and its kin make along a dim."""
    assert step.item is not None
    given = OPS[step.op].schema.bind((whole, *step.args), {})
    dim = shapes.normalize_dim(given[-1], whole.meta.rank)
    if step.op == "unbind":
        return dispatcher.call("select_scatter", whole, part, dim, step.item)
    metas = OPS[step.op].meta(whole.meta, *step.args)
    assert isinstance(metas, tuple)
    start: Dim = 0
    for piece in metas[: step.item]:
        start = start + piece.shape[dim]
    return dispatcher.call("slice_scatter", whole, part, dim, start, start + part.shape[dim])


def _unknown(whole: FakeTensor, part: FakeTensor, step: Step) -> FakeTensor:
    raise AssertionError(f"nobody writes through {step.op}")


# Views by record: how a new part goes back into what is viewed.
_BACK: dict[str, Callable[[FakeTensor, FakeTensor, Step], FakeTensor]] = {
    "select": _select,
    "slice": _slice,
    "narrow": _narrow,
    "diagonal": _diagonal,
    "permute": _permute,
    "transpose": _again,
    "t": _again,
    "movedim": _movedim,
    **dict.fromkeys(("view", "unflatten", "squeeze", "unsqueeze", "row_3d"), _reshape),
    **dict.fromkeys(("detach", "alias", "identity"), _itself),
    **dict.fromkeys(("split", "split_with_sizes", "chunk", "unbind"), _piece),
    **dict.fromkeys(("expand", "unfold"), _unknown),
}
