"""What nodes save for their backward: tensors as they were, checked for writes, and the nodes of records that hold them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from tinycompile.base.meta import TensorMeta, meta_of_sparse, meta_of_torch
from tinycompile.eager.tape import AutogradMeta, Edge, Node, serial, set_history
from tinycompile.eager.tensor import Tensor, same_memory, take_memory, version_of
from tinycompile.eager.torch_names import REGENERATED, name_of_record, node_name
from tinycompile.eager.torch_words import edited, function_name
from tinycompile.ops.record import Op, read_for

FREED = (
    "Trying to backward through the graph a second time (or directly access saved tensors after they have already been freed). "
    "Saved intermediate values of the graph are freed when you call .backward() or autograd.grad(). Specify "
    "retain_graph=True if you need to backward through the graph a second time or if you need to access saved tensors after "
    "calling backward."
)


DETACHED = (
    "Trying to use a saved tensor that has been detached in-place, i.e. with .detach_().This is not supported, please use "
    "out-of-place `.detach()` instead"
)

WRITTEN_BY_HOOK = (
    "A saved tensor pack hook is modifying its input in place. Tensors provided as input to pack hook cannot be modified by "
    "in-place operations as this can lead to unexpected side-effects. Please open an issue if you need to perform in-place "
    "operations on the input to a pack hook."
)


class _SavedHooks(threading.local):
    """Pairs (pack, unpack), the innermost last."""

    def __init__(self) -> None:
        self.stack: list[tuple[Callable[[Any], Any], Callable[[Any], Any]]] = []
        self.disabled: str | None = None


saved_hooks = _SavedHooks()


class SavedTensor:
    """One tensor that a formula reads, as it was: a later change in place is an error."""

    __slots__ = ("_index", "_packed", "_source", "_tensor", "_unpack", "_version")
    _source: Any  # the very object, in torch's tape too; None for the node's own result
    _tensor: Any

    def __init__(self, tensor: Any, index: int | None = None) -> None:
        """``index``: of a node's own result (the node must not hold itself through it)."""
        self._index = index
        self._unpack: Callable[[Any], Any] | None = None
        self._packed: Any = None
        self._version = version_of(tensor)
        if isinstance(tensor, torch.Tensor):
            self._source = self._tensor = tensor
        else:
            self._source, self._tensor = (tensor, same_memory(tensor, True)) if index is None else (None, same_memory(tensor))
        if saved_hooks.stack:
            pack, self._unpack = saved_hooks.stack[-1]
            with torch.no_grad():
                self._packed = pack(self._tensor)
            if version_of(self._tensor) != self._version:
                raise RuntimeError(WRITTEN_BY_HOOK)
            self._tensor = self._source = None

    def unpack(self, node: Node, create_graph: bool) -> Any:
        """The tensor. Raises RuntimeError when it was changed."""
        if self._unpack is not None:
            tensor = self._unpack(self._packed)
            if not isinstance(tensor, (Tensor, torch.Tensor)):
                raise TypeError(
                    f"Output of saved tensor unpack_hook expected to be a Tensor but got result of type {type(tensor).__name__}"
                )
            return tensor if not create_graph else self._with_history(node, tensor)
        tensor = self._tensor
        if version_of(tensor) != self._version:
            self._complain(node, tensor)
        if isinstance(tensor, torch.Tensor):
            return tensor
        if self._source is not None:
            if _was_computed(tensor) and not _was_computed(self._source):
                raise RuntimeError(DETACHED)
            if type(tensor) is Tensor:
                take_memory(tensor, self._source)
        return self._with_history(node, tensor) if create_graph else same_memory(tensor)

    def _with_history(self, node: Node, tensor: Any) -> Any:
        if self._index is None:
            return tensor
        return set_history(same_memory(tensor), node, self._index)

    def _complain(self, node: Node, tensor: Any) -> None:
        of = tensor.dtype, tensor.device.type
        named: tuple[str, int] | None
        if not (tensor.dtype.is_floating_point or tensor.dtype.is_complex):
            named = None  # no node makes integers
        elif self._index is not None:
            named = function_name(torchs_name(node)), self._index
        else:
            named = _made_by(self._source, self._tensor._autograd if isinstance(tensor, Tensor) else None)
        raise RuntimeError(edited(of, tensor.shape, version_of(tensor), self._version, named))


def _was_computed(tensor: Tensor) -> bool:
    return tensor._autograd is not None and tensor._autograd.grad_fn is not None


class Given:
    """A tensor as it was given to a call that is differentiated later. (It has to be the very object, as in torch's tape.)
    ``stand_in``: the leaf of torch's tape that stands for it."""

    __slots__ = ("_handle", "_version", "_was", "source", "stand_in")

    def __init__(self, tensor: Any, stand_in: torch.Tensor | None = None) -> None:
        self.source, self._version, self.stand_in = tensor, version_of(tensor), stand_in
        ours = isinstance(tensor, Tensor)
        self._was: AutogradMeta | None = tensor._autograd if ours else None
        self._handle: torch.Tensor | None = tensor._handle if ours else None

    def follow(self) -> None:
        """After ``tensor.data = other`` torch's formulas read the other data."""
        if self.stand_in is not None and self.source._handle is not self._handle:
            self._handle = self.stand_in.data = self.source.raw()

    def check(self) -> None:
        """Raise torch's RuntimeError if it was edited since."""
        if version_of(self.source) != self._version:
            raise RuntimeError(self.told()[1])

    def told(self) -> tuple[str, str]:
        """What torch says when it was edited: without and with the node that made it."""
        source = self.source
        of, now = (source.dtype, source.device.type), version_of(source)
        sizes = list(map(int, source.shape))
        unnamed = edited(of, sizes, now, self._version)
        return unnamed, edited(of, sizes, now, self._version, self.made_by())

    def made_by(self) -> tuple[str, int] | None:
        """What made it, and which result it was."""
        return _made_by(self.source, self._was)


def _made_by(source: Any, was: AutogradMeta | None) -> tuple[str, int] | None:
    """What made a tensor as it is now, and which result it was when it was saved. ``was``: what the tape knew of it then."""
    with torch.enable_grad():
        maker = source.grad_fn
    if maker is None:
        return None
    if isinstance(source, torch.Tensor):
        return function_name(maker.name()), source.output_nr
    name = torchs_name(maker, written=was is None or was.grad_fn is not maker)
    return function_name(name), 0 if was is None else was.index


def torchs_name(node: Node, written: bool = False) -> str:
    """What torch calls such a node. ``written``: of the method that writes in place."""
    if not isinstance(node, OpNode) or node.freed or node.name() != node_name(node.op.name):
        return node.name()
    return name_of_record(node.op, _metas(node.args), written)


def _metas(value: Any) -> Any:
    if isinstance(value, SavedTensor):
        return metadata(value._tensor) if value._tensor is not None else None
    return type(value)(map(_metas, value)) if type(value) in (tuple, list) else value


# --- nodes of ops ------------------------------------------------------------------------------------------------------------


class Reads(NamedTuple):
    """What the formula of ``op`` reads when the gradients ``needs`` are needed: by name, and one flag an argument (or a tuple
    of them a list)."""

    op: Op
    needs: tuple[Any, ...]
    saves: frozenset[str]
    args: tuple[Any, ...]
    result: bool  # the first of the results


_READS: dict[tuple[Op, tuple[Any, ...]], Reads] = {}


def reads_of(op: Op, needs: tuple[Any, ...]) -> Reads:
    """Worked out once."""
    found = _READS.get((op, needs))
    if found is None:
        assert op.vjp is not None
        found = _READS[op, needs] = reads_for(op, needs, op.vjp.saves)
    return found


def reads_for(op: Op, needs: tuple[Any, ...], saves: Sequence[str]) -> Reads:
    """What is read when ``saves`` says what may be."""
    found = read_for(saves, op.schema, needs)
    args = tuple(
        _others(n) if f"{a.name}?others" in saves else a.name in found for a, n in zip(op.schema.args, needs, strict=True)
    )
    return Reads(op, needs, found, args, bool(found & {"result", "result0"}))


def _others(needs: Sequence[bool]) -> tuple[bool, ...]:
    """One flag a tensor of a list: whether another needs a gradient."""
    return tuple(any(needs[:i]) or any(needs[i + 1 :]) for i in range(len(needs)))


class OpNode(Node):
    """One call of a record. ``args`` and ``results`` hold SavedTensors for what the formula reads, metadata for the rest."""

    __slots__ = ("args", "freed", "reads", "results")

    def __init__(self, reads: Reads, args: Sequence[Any], edges: Sequence[Edge | None]) -> None:
        super().__init__(edges, ())
        self.reads, self.freed = reads, False
        self.args: tuple[Any, ...] = tuple([_saved(a, r) for a, r in zip(args, reads.args, strict=True)])
        self.results: tuple[Any, ...] = ()

    @classmethod
    def of_small_call(cls, reads: Reads, args: Sequence[Any], edges: Sequence[Edge | None], result: Tensor) -> OpNode:
        """The node of a call without lists, with one result, outside of anomaly mode: each step here is paid by every op."""
        node = _new(cls)
        node.edges, node.metas, node.serial = tuple(edges), (result._meta,), next(serial)  # whoever asks has read its meta
        node.stream, node.pre_hooks, node.post_hooks, node.location = 0, None, None, None
        node.reads, node.freed = reads, False
        if not reads.saves:
            node.args = tuple([a if type(a) is not Tensor else a._meta or a.meta for a in args])
            node.results = node.metas
            return node
        kept = zip(args, reads.args)  # noqa: B905  # as many
        node.args = tuple([a if type(a) is not Tensor else SavedTensor(a) if read else a.meta for a, read in kept])
        node.results = (SavedTensor(result, 0),) if reads.result else node.metas
        return node

    @classmethod
    def of_view(cls, reads: Reads, args: tuple[Any, ...], edge: Edge, meta: TensorMeta) -> OpNode:
        """The same of a view, whose formula reads metadata alone."""
        node = _new(cls)
        node.edges, node.metas, node.serial = (edge,), (meta,), next(serial)
        node.stream, node.pre_hooks, node.post_hooks, node.location = 0, None, None, None
        node.reads, node.freed = reads, False
        node.args, node.results = args, node.metas
        return node

    @property
    def op(self) -> Op:
        """The record."""
        return self.reads.op

    def close(self, results: Sequence[Any]) -> None:
        """The results are there: save what the formula reads of them."""
        self.metas = tuple([r.meta for r in results])
        saves = self.reads.saves
        every = "result" in saves
        self.results = tuple(
            [SavedTensor(r, i) if every or f"result{i}" in saves else m for i, (r, m) in enumerate(zip(results, self.metas))]  # noqa: B905
        )

    def name(self) -> str:
        """The op's name in torch's fashion."""
        return node_name(self.op.name)

    def run(self, grads: Sequence[Any], create_graph: bool, keep: bool) -> Sequence[Any]:
        """The record's formula."""
        if self.freed:
            raise RuntimeError(FREED)
        op, needs = self.reads.op, self.reads.needs
        assert op.vjp is not None
        args = tuple(unpacked(a, self, create_graph) for a in self.args)
        results = tuple(unpacked(r, self, create_graph) for r in self.results)
        if not keep:
            self.free()
        found = op.vjp.fn(grads, args, results, needs)
        return list(_flat_gradients(found, needs, self.args))

    def free(self) -> None:
        """Let go of what is saved. A node that saved nothing can run again."""
        if self.reads.saves:
            self.args = self.results = ()
            self.freed = True


class RegeneratedView(OpNode):
    """The last step to a view of what was written to. torch has one node for all of them."""

    __slots__ = ()

    def name(self) -> str:
        """torch's."""
        return REGENERATED


_new: Any = object.__new__


def _saved(value: Any, wanted: Any) -> Any:
    if type(value) is Tensor and not wanted:
        return value.meta
    if isinstance(value, (Tensor, torch.Tensor)):
        return SavedTensor(value) if wanted else metadata(value)
    if type(value) not in (tuple, list):
        return value
    each = wanted if isinstance(wanted, tuple) else (wanted,) * len(value)
    return type(value)(map(_saved, value, each))


def metadata(tensor: Any) -> TensorMeta:
    """Shape and dtype alone."""
    if isinstance(tensor, Tensor):
        return tensor.meta
    return meta_of_torch(tensor) if tensor.layout is torch.strided else meta_of_sparse(tensor)


def unpacked(value: Any, node: Node, create_graph: bool) -> Any:
    """What is saved in an argument, checked."""
    if isinstance(value, SavedTensor):
        return value.unpack(node, create_graph)
    return type(value)(unpacked(v, node, create_graph) for v in value) if type(value) in (tuple, list) else value


def _flat_gradients(found: Sequence[Any], needs: Sequence[Any], args: Sequence[Any]) -> Iterator[Any]:
    """One gradient an edge: tensors and lists of tensors have edges, other arguments don't."""
    for i, need in enumerate(needs):
        grad = found[i]
        if isinstance(need, tuple):
            yield from (grad[k] if grad is not None and n else None for k, n in enumerate(need))
        elif need is not None:
            yield grad if need else None
