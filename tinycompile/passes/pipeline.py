"""The passes, in order. Each is a pure function from Graph to Graph and is verified when ``config.verify_ir``."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet

from tinycompile.base.config import config
from tinycompile.base.errors import VerifyError
from tinycompile.ir.graph import Graph
from tinycompile.ir.verify_graph import verify_graph
from tinycompile.passes.attention_masks import plain_masks
from tinycompile.passes.constants import fold_constants
from tinycompile.passes.cse import merge_equal
from tinycompile.passes.dce import drop_dead
from tinycompile.passes.decompose import decompose
from tinycompile.passes.fold import fold
from tinycompile.passes.in_place import write_in_place
from tinycompile.passes.literals import spell_literals
from tinycompile.passes.patterns_attention import recognise_attention
from tinycompile.passes.patterns_losses import chunk_losses, fuse_losses
from tinycompile.passes.patterns_matmul import activate_products

Pass = Callable[[Graph], Graph]

PASSES: tuple[tuple[str, Pass], ...] = (
    ("literals", spell_literals),
    ("in_place", write_in_place),
    ("attention", recognise_attention),
    ("masks", plain_masks),
    ("losses", fuse_losses),
    ("epilogues", activate_products),
    ("chunks", chunk_losses),
    ("decompose", decompose),
    ("fold", fold),
    ("constants", fold_constants),
    ("cse", merge_equal),
    ("dce", drop_dead),
)


def optimize(
    graph: Graph,
    observe: Callable[[int, str, Graph], None] | None = None,
    *,
    joint: bool = False,
    apart: AbstractSet[str] = frozenset(),
) -> Graph:
    """Run every pass; ``observe(position, name, graph)`` sees each result. ``joint``: it will be split in a forward and a
    backward, so writes stay at its end, and what the halves would share is not written out. ``apart``: as
    :func:`~tinycompile.passes.fold.fold` takes it. Raises VerifyError, naming the pass at fault."""
    verified: Graph | None = None
    for position, (name, run) in enumerate(PASSES):
        if joint and run in (write_in_place, chunk_losses):
            continue
        graph = fold(graph, apart) if run is fold else run(graph)
        if config.verify_ir:
            _verify(name, graph, verified)
            verified = graph
        if observe is not None:
            observe(position, name, graph)
    return graph


def _verify(name: str, graph: Graph, verified: Graph | None) -> None:
    try:
        verify_graph(graph, verified)
    except VerifyError as error:
        raise VerifyError(f"after the pass {name!r}: {error}") from error
