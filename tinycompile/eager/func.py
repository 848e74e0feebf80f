"""Functions of functions over our tape: ``grad``, ``grad_and_value``, ``vjp``, ``jacrev``, ``hessian``. They nest.

As in ``torch.func``, an argument is differentiated as a new tensor on its memory, and what is asked for inside a vmap is each
example's own gradient.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from tinycompile.eager import autograd
from tinycompile.eager.batched import BatchedTensor, active, mapped
from tinycompile.eager.recording import edge_of
from tinycompile.eager.tape import AccumulateGrad, Node
from tinycompile.eager.tensor import Tensor, from_torch, same_memory
from tinycompile.eager.transforms import made_by, whole
from tinycompile.eager.vmap import vmap
from tinycompile.ops.calls import ops

__all__ = ["grad", "grad_and_value", "hessian", "jacrev", "vjp", "vmap"]


def grad(fn: Callable[..., Any], argnums: int | tuple[int, ...] = 0, has_aux: bool = False) -> Callable[..., Any]:
    """A function that gives the gradient of ``fn``'s scalar result for the argument (or arguments) ``argnums``, in their
    structure. ``has_aux``: ``fn`` returns (scalar, anything else), and so does the new function."""

    @functools.wraps(fn)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if (compiled := whole(grad, fn, argnums=argnums, has_aux=has_aux)) is not None:
            return mapped(compiled(*args, **kwargs), _ours)
        found, value = grad_and_value(fn, argnums, has_aux)(*args, **kwargs)
        return (found, value[1]) if has_aux else found

    return made_by(grad, fn, wrapped, argnums=argnums, has_aux=has_aux)


def grad_and_value(fn: Callable[..., Any], argnums: int | tuple[int, ...] = 0, has_aux: bool = False) -> Callable[..., Any]:
    """As :func:`grad`; the new function returns (gradient, what ``fn`` returns).

    Raises RuntimeError unless ``fn`` returns a scalar."""

    @functools.wraps(fn)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if (compiled := whole(grad_and_value, fn, argnums=argnums, has_aux=has_aux)) is not None:
            return mapped(compiled(*args, **kwargs), _ours)
        with torch.enable_grad():
            given, leaves = _with_leaves(args, argnums)
            result = fn(*given, **kwargs)
            scalar = result[0] if has_aux else result
            if len(scalar.shape):
                raise RuntimeError(
                    "Expected f(*args) to return a scalar tensor, got tensor with "
                    f"{len(scalar.shape)} dims. Maybe you wanted to use the vjp or jacrev APIs instead?"
                )
            keep = _is_differentiable_again(scalar, leaves)
            found = autograd.grad(scalar, leaves, create_graph=keep, allow_unused=True, materialize_grads=True)
        chosen = _chosen(given, argnums)
        return _rebuilt(chosen, iter(found)), result if keep else mapped(result, _off_the_tape)

    return made_by(grad_and_value, fn, wrapped, argnums=argnums, has_aux=has_aux)


def vjp(fn: Callable[..., Any], *primals: Any, has_aux: bool = False) -> Any:
    """(``fn(*primals)``, a function from cotangents of its result to a tuple of gradients, one a primal). With ``has_aux``,
    ``fn`` returns (result, aux), and aux comes third."""
    with torch.enable_grad():
        given, leaves = _with_leaves(primals, tuple(range(len(primals))))
        result = fn(*given)
    aux: tuple[Any, ...] = ()
    if has_aux:
        result, aux = result[0], (result[1],)
    outputs = list(_tensors(result))
    keep = any(_is_differentiable_again(o, leaves) for o in outputs)

    def pull_back(*cotangents: Any, retain_graph: bool = True, create_graph: bool | None = None) -> Any:
        seeds = list(_tensors(cotangents))
        again = keep if create_graph is None else create_graph
        tracked = [(o, s) for o, s in zip(outputs, seeds, strict=True) if edge_of(o) is not None]
        with torch.enable_grad():
            found = autograd.grad(
                [o for o, _ in tracked], leaves, [s for _, s in tracked], retain_graph, again, True, materialize_grads=True
            )
        return _rebuilt(given, iter(found))

    return (result if keep else mapped(result, _off_the_tape), pull_back, *aux)


def jacrev(fn: Callable[..., Any], argnums: int = 0) -> Callable[..., Any]:
    """A function that gives the Jacobian of ``fn``'s result (one tensor) for an argument: of shape result + argument."""

    @functools.wraps(fn)
    def wrapped(*args: Any) -> Any:
        if (compiled := whole(jacrev, fn, argnums=argnums)) is not None:
            return mapped(compiled(*args), _ours)

        def of_one(x: Any) -> Any:
            return fn(*args[:argnums], x, *args[argnums + 1 :])

        result, pull_back = vjp(of_one, args[argnums])
        rows = ops.reshape(ops.eye(result.numel(), dtype=result.dtype, device=result.device), (-1, *result.shape))
        found = vmap(lambda row: pull_back(row)[0])(rows)
        return ops.reshape(found, (*result.shape, *args[argnums].shape))

    return made_by(jacrev, fn, wrapped, argnums=argnums)


def hessian(fn: Callable[..., Any], argnums: int = 0) -> Callable[..., Any]:
    """A function that gives the second derivatives of ``fn``'s scalar result for an argument."""
    made: Callable[..., Any] = jacrev(jacrev(fn, argnums), argnums)
    return made


# --- leaves ------------------------------------------------------------------------------------------------------------------


def _with_leaves(args: Sequence[Any], argnums: int | tuple[int, ...]) -> tuple[tuple[Any, ...], list[Tensor]]:
    """The arguments with new tensors in place of those to differentiate for; those tensors, in the order of ``argnums``."""
    chosen = [n % len(args) for n in (argnums if isinstance(argnums, tuple) else (argnums,))]
    if len(set(chosen)) < len(chosen):
        raise RuntimeError(f"argnums elements must be unique, got {argnums}")
    leaves: list[Tensor] = []

    def leaf(value: Any) -> Tensor:
        leaves.append(_leaf(value))
        return leaves[-1]

    given = list(args)
    for n in chosen:
        given[n] = mapped(args[n], leaf)
    return tuple(given), leaves


def _leaf(value: Any) -> Tensor:
    """On the tape of the innermost level; connected to what ``value`` came from, if it is on that tape already."""
    tensor = from_torch(value) if isinstance(value, torch.Tensor) else value
    level = active.levels[-1].number if active.levels else 0
    if level and not (isinstance(tensor, BatchedTensor) and tensor.level == level):
        tensor = BatchedTensor(tensor, level, batched=False)
    made = ops.alias(tensor)
    return made if made.requires_grad else made.requires_grad_()


def _is_differentiable_again(output: Any, leaves: Sequence[Tensor]) -> bool:
    """Whether the result depends on anything on a tape but these leaves. Under vmap the tape of a level below may follow."""
    if active.levels:
        return True
    mine: set[Node | None] = {edge.node for leaf in leaves if (edge := edge_of(leaf)) is not None and not edge.node.edges}
    edge = edge_of(output)
    stack: list[Node] = [] if edge is None else [edge.node]
    seen: set[Node] = set(stack)
    while stack:
        node = stack.pop()
        if node not in mine and (isinstance(node, AccumulateGrad) or not node.edges):
            return True
        new = [e.node for e in node.edges if e is not None and e.node not in seen]
        seen.update(new)
        stack += new
    return False


def _ours(tensor: Any) -> Any:
    return from_torch(tensor) if isinstance(tensor, torch.Tensor) else tensor


def _off_the_tape(tensor: Any) -> Any:
    return same_memory(tensor) if isinstance(tensor, Tensor) else tensor


# --- structures --------------------------------------------------------------------------------------------------------------


def _chosen(args: Sequence[Any], argnums: int | tuple[int, ...]) -> Any:
    return tuple(args[n] for n in argnums) if isinstance(argnums, tuple) else args[argnums]


def _tensors(value: Any) -> Iterator[Any]:
    if isinstance(value, (Tensor, torch.Tensor)):
        yield value
    elif isinstance(value, (tuple, list)):
        for v in value:
            yield from _tensors(v)
    elif isinstance(value, dict):
        for v in value.values():
            yield from _tensors(v)


def _rebuilt(like: Any, leaves: Iterator[Any]) -> Any:
    return mapped(like, lambda _: next(leaves))
