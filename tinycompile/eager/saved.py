"""What nodes save for their backward: tensors as they were, checked for writes, and the nodes of records that hold them."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from tinycompile.base.meta import TensorMeta
from tinycompile.eager.tape import Edge, Node, set_history
from tinycompile.eager.tensor import Tensor, meta_of_torch, same_memory, version_of
from tinycompile.eager.torch_words import function_name
from tinycompile.ops import meta_rules as rules
from tinycompile.ops.record import Op

FREED = (
    "Trying to backward through the graph a second time (or directly access saved tensors after they have already been freed). "
    "Saved intermediate values of the graph are freed when you call .backward() or autograd.grad(). Specify "
    "retain_graph=True if you need to backward through the graph a second time or if you need to access saved tensors after "
    "calling backward."
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

    def __init__(self, tensor: Any, index: int | None = None) -> None:
        """``index``: of a node's own result (the node must not hold itself through it)."""
        self._index = index
        self._source = None if isinstance(tensor, torch.Tensor) else weakref.ref(tensor)
        self._unpack: Callable[[Any], Any] | None = None
        self._packed: Any = None
        self._version = version_of(tensor)
        self._tensor: Any = tensor if isinstance(tensor, torch.Tensor) else same_memory(tensor, keep_history=index is None)
        if saved_hooks.stack:
            pack, self._unpack = saved_hooks.stack[-1]
            with torch.no_grad():
                self._packed = pack(self._tensor)
            self._tensor = None

    def unpack(self, node: Node, create_graph: bool) -> Any:
        """The tensor. Raises RuntimeError when it was changed."""
        if self._unpack is not None:
            tensor = self._unpack(self._packed)
            return tensor if not create_graph else self._with_history(node, tensor)
        tensor = self._tensor
        if version_of(tensor) != self._version:
            self._complain(node, tensor)
        if isinstance(tensor, torch.Tensor):
            return tensor
        return self._with_history(node, tensor) if create_graph else same_memory(tensor)

    def _with_history(self, node: Node, tensor: Any) -> Any:
        if self._index is None:
            return tensor
        return set_history(same_memory(tensor), node, self._index)

    def _complain(self, node: Node, tensor: Any) -> None:
        source = None if self._source is None else self._source()
        made_by, index = (node, self._index) if self._index is not None else _maker(tensor if source is None else source)
        origin = "" if made_by is None else f", which is output {index} of {function_name(made_by.name())},"
        legacy = f"torch.{'cuda.' if tensor.device.type == 'cuda' else ''}{rules.type_name(tensor.dtype)}Tensor"
        hint = (
            "Hint: the backtrace further above shows the operation that failed to compute its gradient. The variable in "
            "question was changed in there or anywhere later. Good luck!"
            if torch.is_anomaly_enabled()
            else "Hint: enable anomaly detection to find the operation that failed to compute its gradient, with "
            "torch.autograd.set_detect_anomaly(True, check_nan=False)."
        )
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace operation: "
            f"[{legacy} {list(tensor.shape)}]{origin} is at version {version_of(tensor)}; expected version {self._version} "
            f"instead. {hint}"
        )


def _maker(tensor: Any) -> tuple[Node | None, int]:
    meta = getattr(tensor, "_autograd", None)
    return (None, 0) if meta is None else (meta.grad_fn, meta.index)


# --- nodes of ops ------------------------------------------------------------------------------------------------------------


class OpNode(Node):
    """One call of a record. ``args`` and ``results`` hold SavedTensors for what the formula reads, metadata for the rest."""

    __slots__ = ("args", "freed", "needs", "op", "results", "saves")

    def __init__(self, op: Op, args: Sequence[Any], needs: Sequence[Any], edges: Sequence[Edge | None]) -> None:
        assert op.vjp is not None
        super().__init__(edges, ())
        self.op, self.needs = op, tuple(needs)
        self.saves, read = _reads(op, self.needs)
        if self.saves:
            self.args = tuple([_saved(a, r) for a, r in zip(args, read, strict=True)])
        else:
            self.args = tuple([a.meta if type(a) is Tensor else _saved(a, False) for a in args])
        self.results: tuple[Any, ...] = ()
        self.freed = False

    def close(self, results: Sequence[Any]) -> None:
        """The results are there: save what the formula reads of them."""
        self.metas = tuple([r.meta for r in results])
        if not self.saves:
            self.results = self.metas
            return
        every = "result" in self.saves
        self.results = tuple(
            SavedTensor(r, i) if every or f"result{i}" in self.saves else r.meta for i, r in enumerate(results)
        )

    def name(self) -> str:
        """The op's name in torch's fashion."""
        return node_name(self.op.name)

    def run(self, grads: Sequence[Any], create_graph: bool, keep: bool) -> Sequence[Any]:
        """The record's formula."""
        if self.freed:
            raise RuntimeError(FREED)
        assert self.op.vjp is not None
        args = tuple(_unpacked(a, self, create_graph) for a in self.args)
        results = tuple(_unpacked(r, self, create_graph) for r in self.results)
        if not keep:
            self.free()
        found = self.op.vjp.fn(grads, args, results, self.needs)
        return list(_flat_gradients(found, self.needs, self.args))

    def free(self) -> None:
        """Let go of what is saved. A node that saved nothing can run again."""
        if self.saves:
            self.args = self.results = ()
            self.freed = True


_READS: dict[tuple[str, tuple[Any, ...]], tuple[frozenset[str], tuple[bool, ...]]] = {}


def _reads(op: Op, needs: tuple[Any, ...]) -> tuple[frozenset[str], tuple[bool, ...]]:
    """What the op's formula reads when these gradients are needed, by name, and by argument; worked out once."""
    found = _READS.get((op.name, needs))
    if found is None:
        assert op.vjp is not None
        saves = op.vjp.reads(op.schema, needs)
        found = _READS[op.name, needs] = saves, tuple(a.name in saves for a in op.schema.args)
    return found


def node_name(op_name: str) -> str:
    """``layer_norm`` is LayerNormBackward0."""
    return "".join(w[:1].upper() + w[1:] for w in op_name.split("_")) + "Backward0"


def _saved(value: Any, wanted: bool) -> Any:
    if type(value) is Tensor and not wanted:
        return value.meta
    if isinstance(value, (Tensor, torch.Tensor)):
        return SavedTensor(value) if wanted else metadata(value)
    return type(value)(_saved(v, wanted) for v in value) if type(value) in (tuple, list) else value


def metadata(tensor: Any) -> TensorMeta:
    """Shape and dtype alone."""
    if isinstance(tensor, Tensor):
        return tensor.meta
    return meta_of_torch(tensor)


def _unpacked(value: Any, node: Node, create_graph: bool) -> Any:
    if isinstance(value, SavedTensor):
        return value.unpack(node, create_graph)
    return type(value)(_unpacked(v, node, create_graph) for v in value) if type(value) in (tuple, list) else value


def _flat_gradients(found: Sequence[Any], needs: Sequence[Any], args: Sequence[Any]) -> Iterator[Any]:
    """One gradient an edge: tensors and lists of tensors have edges, other arguments don't."""
    for i, need in enumerate(needs):
        grad = found[i]
        if isinstance(need, tuple):
            yield from (grad[k] if grad is not None and n else None for k, n in enumerate(need))
        elif need is not None:
            yield grad if need else None
