"""``grad(..., is_grads_batched=True)``: one pass backward for several gradients of each output, by ``vmap``."""

from __future__ import annotations

from typing import Any

from tinycompile.eager import autograd
from tinycompile.eager.vmap import vmap


def grad_of_several(outputs: Any, inputs: Any, grad_outputs: Any, **options: Any) -> tuple[Any, ...]:
    """As :func:`~tinycompile.eager.autograd.grad`, mapped over the first dim of ``grad_outputs``."""
    seeds = tuple(grad_outputs) if isinstance(grad_outputs, (tuple, list)) else (grad_outputs,)
    found: list[bool] = []

    def one(*given: Any) -> tuple[Any, ...]:
        made = autograd.grad(outputs, inputs, given, **options)
        found[:] = [g is not None for g in made]
        return (given[0], *(g for g in made if g is not None))  # results are tensors

    _, *made = vmap(one)(*seeds)
    every = iter(made)
    return tuple([next(every) if is_there else None for is_there in found])


autograd.of_several.append(grad_of_several)
