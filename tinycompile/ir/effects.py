"""What a graph node does besides computing: write to its inputs, or draw random numbers. Passes and lowering both ask."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from tinycompile.ir.graph import Graph, Node, Ref
from tinycompile.ops.in_place import names_a_write
from tinycompile.ops.randomness import DRAWS, PROBABILITY
from tinycompile.ops.ranges import out_of_range
from tinycompile.ops.record import OPS, View

COPY = "torch.Tensor.copy_"  # how a graph writes to its inputs: nodes of this target, after all others


class EditedValue(NamedTuple):
    """A value that a write replaced in its memory: ``content`` names its node, ``by`` the nodes that computed what came after.
    ``version``, ``now``: how often torch counted writes to the memory before that, and in the end; ``backwards``: how many
    backwards the graph had asked for. ``is_view``: it is the value of a view. ``owner``: the graph's input that the memory is
    of, if it is of one. ``writers``: the nodes that computed what the last write with a history put there, None if there was
    none; ``through_view``: it was a write to a view of the owner. ``checkpoint``: the nodes of the innermost checkpointed call
    in which it was made; ``rest``: those that the call recorded after the write, also in calls within it."""

    content: str
    by: frozenset[str]
    version: int
    backwards: int
    is_view: bool
    owner: str = ""
    now: int = 0
    writers: frozenset[str] | None = None
    through_view: bool = False
    checkpoint: frozenset[str] = frozenset()
    rest: frozenset[str] = frozenset()


def written(node: Node) -> tuple[Ref, ...]:
    """The tensors that a node changes in place: marked in a record's schema, or by the trailing underscore of torch's names."""
    if node.kind == "call":
        schema = OPS[node.target].schema
        if not schema.mutates:
            return ()
        return tuple(v for a, v in zip(schema.args, node.args, strict=True) if "!" in a.alias and isinstance(v, Ref))
    if node.kind != "extern":
        return ()
    first = node.args[:1] if names_a_write(node.target) else ()
    return tuple(a for a in (*first, *(v for k, v in node.kwargs if k == "out")) if isinstance(a, Ref))


def may_alias(node: Node) -> bool:
    """Whether a result can share memory with an argument."""
    if node.kind == "call":
        op = OPS[node.target]
        return isinstance(op.lowering, View) or op.schema.mutates or any(r.alias for r in op.schema.returns)
    return node.kind in ("item", "extern")


def writes_in_between(graph: Graph) -> bool:
    """Whether something is computed after a write. Captured graphs write last."""
    seen = False
    for node in graph.nodes[:-1]:
        if written(node):
            seen = True
        elif seen:
            return True
    return False


def without_writes(graph: Graph) -> Graph:
    """The graph without the copies into inputs at its end."""
    kept = tuple(n for n in graph.nodes if not (n.kind == "extern" and n.target == COPY))
    return graph if len(kept) == len(graph.nodes) else replace(graph, nodes=kept)


# Library calls that take any values. Of others it is not known that they do: a matrix may be singular, an index out of range.
_TAKE_ANY = frozenset((
    "mm", "bmm", "addmm", "baddbmm", "matmul", "linear", "convolution", "convolution_backward", "attention_forward",
    "attention_backward", "scaled_dot_product_attention", "native_dropout", "random_seeds", "rand", "randn", "randint",
    "randperm", "sort", "topk", "cumsum", "cumprod", "copy_",
))  # fmt: skip


def may_refuse(target: str) -> bool:
    """Whether a library call may raise an error for the values that it is given."""
    return target.rpartition(".")[2] not in _TAKE_ANY


# Records that refuse some values: places out of range, integers divided by zero, probabilities that are none.
_REFUSE_SOME = frozenset((
    "embedding", "gather", "index_select", "index", "checked_index", "take", "take_along_dim", "scatter", "scatter_add",
    "scatter_reduce", "index_add", "index_copy", "index_put", "index_fill", "masked_scatter", "nll_loss", "cross_entropy",
    "cross_entropy_of_linear", "multi_margin_loss", "binary_cross_entropy", "bernoulli", "floor_divide", "div_floor",
    "div_trunc", "remainder", "fmod", "pow_integers",
))  # fmt: skip


def refuses_some_values(node: Node) -> bool:
    """Whether a node may raise an error for the values that it is given, or for a number that its dtype can't hold: then it is
    part of what the program does, whether or not anything of it is read."""
    if node.kind != "call":
        return node.kind == "extern" and may_refuse(node.target)
    return node.target in _REFUSE_SOME or out_of_range(OPS[node.target], node.args, node.meta)


def is_random(node: Node) -> bool:
    """Whether a call draws random numbers; of torch's functions: whether it can."""
    if node.kind != "call":
        return node.kind == "extern" and _function_is_random(node)
    probability = PROBABILITY.get(node.target)
    if probability is None:
        return node.target in DRAWS
    schema = OPS[node.target].schema
    position = schema.positions.get(probability)
    drawn = position is None or node.args[position] != 0.0
    train = schema.positions.get("training", schema.positions.get("train"))
    return drawn and (train is None or node.args[train] is not False)


def _function_is_random(node: Node) -> bool:
    name = node.target.rpartition(".")[2]
    if name == "scaled_dot_product_attention":  # (query, key, value, attn_mask, dropout_p, ...)
        return bool(dict(node.kwargs).get("dropout_p", node.args[4] if len(node.args) > 4 else 0.0))
    return name in DRAWS


def is_pure(node: Node) -> bool:
    """Whether a node may be dropped when unused and computed once when equal. What torch's other functions do is not known."""
    return node.kind == "item" or (node.kind == "call" and not written(node) and not is_random(node))
