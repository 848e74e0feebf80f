"""Whether torch's own tape follows a call by itself: a backend may run torch's ops. Its results need no node of ours then."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


def carry_gradients(outputs: Sequence[Any], differentiable: Sequence[bool]) -> bool:
    """Whether those outputs require grad that do in eager, and no others."""
    for out, expected in zip(outputs, differentiable, strict=True):
        if isinstance(out, torch.Tensor) and out.requires_grad is not expected:
            return False
    return True


def reach(outputs: Sequence[Any], inputs: Sequence[torch.Tensor]) -> bool:
    """Whether a backward from the outputs comes to each of the inputs, which require grad."""
    leaves = {id(x) for x in inputs if x.is_leaf}
    nodes = {x.grad_fn for x in inputs if not x.is_leaf}
    left = [o.grad_fn for o in outputs if isinstance(o, torch.Tensor) and o.grad_fn is not None]
    leaves -= {id(o) for o in outputs}  # an input that is returned
    seen = set(left)
    while left:
        node = left.pop()
        leaves.discard(id(getattr(node, "variable", None)))
        if node in nodes:  # what lies behind is not the call's
            nodes.discard(node)
            continue
        more = {n for n, _ in node.next_functions if n is not None} - seen
        seen |= more
        left += more
    return not leaves and not nodes
