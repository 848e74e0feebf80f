"""Each example's own gradient through a compiled function: what ``vmap(grad(loss))`` asks for where ``loss`` calls one.

Inside the vmap our tape follows one example's tensors. A compiled function that is called with them runs over all examples
(``batched_calls.py``) and leaves one node (``eager/example_gradients.py``), whose backward is a function of one example too,
``vjp`` of the original, and compiled like any: over all examples, in one graph.

This holds for calls that only compute: one graph, no random numbers (they would not be drawn again), no writes to tensors or
objects, no result on an argument's memory. Any other runs op by op.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tinycompile.batched_calls import Spread, tensors_of
from tinycompile.eager.example_gradients import Way, follow, tensors_in_result
from tinycompile.eager.tensor import Tensor


def record(call: Spread, way_back: Callable[[Way], Any], given: Sequence[Any], names: tuple[str, ...]) -> Any:
    """The result of a call that only computes, with its node on the tape; NotImplemented where it has to run op by op.

    ``given``: the arguments of one example, those called ``names`` last. ``way_back(way)``: the compiled
    :func:`~tinycompile.eager.example_gradients.pull_back`."""
    if not call.only_computes():
        return NotImplemented
    result = call.run()
    memories = {id(t.storage) for t in tensors_of(given) if isinstance(t, Tensor)}
    if any(id(t.storage) in memories for t in tensors_in_result(result)):
        return NotImplemented
    return follow(result, way_back, given, names, call.level)
