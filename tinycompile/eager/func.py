"""Functions of functions over our tape: ``grad``, ``grad_and_value``, ``vjp``, ``jacrev``, ``hessian``. They nest.

As in ``torch.func``, an argument is differentiated as a new tensor on its memory, and what is asked for inside a vmap is each
example's own gradient.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from tinycompile.eager import autograd, several_gradients  # noqa: F401  (is_grads_batched)
from tinycompile.eager.batched import BatchedTensor, active, mapped
from tinycompile.eager.engine import TorchTape, bridges_among, nodes_behind
from tinycompile.eager.recording import edge_of, functions
from tinycompile.eager.sparse import SparseTensor
from tinycompile.eager.tape import AccumulateGrad, Edge, Node, ViewInfo, generation_of
from tinycompile.eager.tensor import Tensor, from_torch, same_memory
from tinycompile.eager.transforms import made_by, whole
from tinycompile.eager.vmap import vmap
from tinycompile.ops.calls import ops
from tinycompile.ops.gradients import zeros

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
            result = _called(fn, given, kwargs)
            scalar = _scalar(result[0] if has_aux else result)
            keep = _is_differentiable_again(scalar, leaves)
            found = _gradients([scalar], leaves, [None], None, keep)
        chosen = _chosen(given, argnums)
        return _rebuilt(chosen, iter(found)), result if keep else _off_the_tape(result, leaves)

    return made_by(grad_and_value, fn, wrapped, argnums=argnums, has_aux=has_aux)


def _scalar(result: Any) -> Any:
    """What ``grad`` differentiates, checked in torch's words."""
    said = "grad_and_value(f)(*args): Expected f(*args) to return a"
    if not isinstance(result, (Tensor, torch.Tensor)):
        raise RuntimeError(f"{said} Tensor, got {type(result)}")
    if len(result.shape):
        raise RuntimeError(
            f"{said} scalar Tensor, got tensor with {len(result.shape)} dims. Maybe you wanted to use the vjp or jacrev APIs "
            "instead?"
        )
    return result


def vjp(fn: Callable[..., Any], *primals: Any, has_aux: bool = False) -> Any:
    """(``fn(*primals)``, a function from a cotangent of its result, or one of each part, to gradients of the primals).
    With ``has_aux``, ``fn`` returns (result, aux), and aux comes third. Raises RuntimeError where a result has no gradients."""
    linear = _Linearized(fn, primals, tuple(range(len(primals))), has_aux)

    def pull_back(*cotangents: Any, retain_graph: bool = True, create_graph: bool | None = None) -> Any:
        one_each = len(cotangents) != 1 or _shape_of(cotangents) == _shape_of(linear.result)
        given = cotangents if one_each else cotangents[0]
        if _shape_of(given) != _shape_of(linear.result):
            raise RuntimeError(
                "Expected pytree structure of cotangents to be the same as pytree structure of outputs to the function. "
                f"cotangents: {_shape_of(given)}, primal output: {_shape_of(linear.result)}"
            )
        return _rebuilt(linear.chosen, iter(linear.pull_back(list(_tensors(given)), retain_graph, create_graph)))

    return linear.left(), pull_back, *linear.aux


class _Linearized:
    """``fn`` at its arguments, and the way back through it. ``chosen``: the arguments named by ``argnums``; ``outputs``: the
    tensors of the ``result``; ``aux``: what else ``fn`` returns, if anything."""

    def __init__(self, fn: Callable[..., Any], args: Sequence[Any], argnums: int | tuple[int, ...], has_aux: bool) -> None:
        with torch.enable_grad():
            given, self.leaves = _with_leaves(args, argnums)
            result = _called(fn, given, {})
        self.chosen = _chosen(given, argnums)
        self.aux: tuple[Any, ...] = ()
        if has_aux:
            if not isinstance(result, tuple) or len(result) != 2:
                raise RuntimeError("vjp(f, *primals): output of function f should be a tuple: (output, aux) if has_aux is True")
            result, self.aux = result[0], (result[1],)
        self.result = result
        self.outputs = list(_leaves_in(result))
        if not self.outputs or self.outputs == [None]:
            raise RuntimeError(
                f"vjp(f, *primals): Expected f to be a function that has non-empty output (got output = {self.outputs})"
            )
        for output in self.outputs:
            if not isinstance(output, (Tensor, torch.Tensor)):
                raise RuntimeError(
                    f"vjp(f, *primals): expected f(*primals) to return only tensors, got unsupported type {type(output)}"
                )
            if not (output.dtype.is_floating_point or output.dtype.is_complex):
                raise RuntimeError(
                    "vjp(f, ...): All outputs of f must be floating-point or complex Tensors, got Tensor with dtype "
                    f"{output.dtype}"
                )
        self.again = any(_is_differentiable_again(o, self.leaves) for o in self.outputs)
        if not self.again:
            self.aux = _off_the_tape(self.aux, self.leaves)

    def pull_back(self, seeds: Sequence[Any], retain_graph: bool = True, create_graph: bool | None = None) -> list[Any]:
        """A gradient for each leaf, of one cotangent (or None) for each output."""
        pairs = [(o, s) for o, s in zip(self.outputs, seeds, strict=True) if s is not None]
        again = self.again if create_graph is None else create_graph
        with torch.enable_grad():
            return _gradients([o for o, _ in pairs], self.leaves, [s for _, s in pairs], retain_graph, again)

    def left(self) -> Any:
        """The result as the caller sees it: on a tape where there is another one."""
        return self.result if self.again else _off_the_tape(self.result, self.leaves)


def jacrev(
    fn: Callable[..., Any], argnums: int | tuple[int, ...] = 0, has_aux: bool = False, *, chunk_size: int | None = None
) -> Callable[..., Any]:
    """A function that gives the Jacobian of ``fn``'s result for an argument (or arguments), one row of the result at a time:
    a tensor of shape result + argument; where either is a structure of tensors, a structure of results of structures of
    arguments. ``has_aux``: as of :func:`grad`. ``chunk_size``: so many rows at once, to take less memory; None: all of them."""
    if not (chunk_size is None or chunk_size > 0):
        raise ValueError("jacrev: `chunk_size` should be greater than 0.")

    @functools.wraps(fn)
    def wrapped(*args: Any) -> Any:
        if (compiled := whole(jacrev, fn, argnums=argnums, has_aux=has_aux)) is not None:
            return mapped(compiled(*args), _ours)
        linear = _Linearized(fn, args, argnums, has_aux)
        for at, output in enumerate(linear.outputs):
            if output.dtype.is_complex:
                raise RuntimeError(
                    f"jacrev: Expected all outputs to be real but received complex tensor at flattened input idx: {at}"
                )
        blocks = iter([_rebuilt(linear.chosen, iter(_rows(linear, at, chunk_size))) for at in range(len(linear.outputs))])
        found = mapped(linear.result, lambda _: next(blocks))
        return (found, *linear.aux) if has_aux else found

    return made_by(jacrev, fn, wrapped, argnums=argnums, has_aux=has_aux)


def _rows(linear: _Linearized, at: int, chunk_size: int | None) -> list[Any]:
    """The derivatives of one output for each leaf, so many rows at once."""
    output, nothing = linear.outputs[at], [None] * len(linear.outputs)
    count = output.numel()
    rows = ops.reshape(ops.eye(count, dtype=output.dtype, device=output.device), (count, *output.shape))
    found = vmap(lambda row: linear.pull_back([*nothing[:at], row, *nothing[at + 1 :]]), chunk_size=chunk_size)(rows)
    return [ops.reshape(f, (*output.shape, *leaf.shape)) for f, leaf in zip(found, linear.leaves, strict=True)]


def hessian(fn: Callable[..., Any], argnums: int | tuple[int, ...] = 0) -> Callable[..., Any]:
    """A function that gives the second derivatives of ``fn``'s scalar result for an argument (or for each two of several)."""
    rows = jacrev(jacrev(fn, argnums), argnums)

    @functools.wraps(fn)
    def wrapped(*args: Any) -> Any:
        ranks = [len(t.shape) for t in _tensors(_chosen(args, argnums))]
        of_blocks = itertools.cycle(itertools.product(ranks, ranks))
        return mapped(rows(*args), lambda block: _columns_first(block, next(of_blocks)[0]))

    return wrapped


def _columns_first(block: Tensor, rank: int) -> Tensor:
    """Laid out as torch's: it goes forward over the second argument's elements, so that their dims, those after the first
    ``rank``, are the outer ones in memory."""
    rest = len(block.shape) - rank
    outer_first = ops.permute(block, (*range(rank, rank + rest), *range(rank)))
    return ops.permute(ops.clone(outer_first, memory_format=torch.contiguous_format), (*range(rest, rank + rest), *range(rest)))


def _called(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    functions.nested += 1
    try:
        return fn(*args, **kwargs)
    finally:
        functions.nested -= 1


def _gradients(
    outputs: Sequence[Any], leaves: Sequence[Tensor], seeds: Sequence[Any], retain_graph: bool | None, create_graph: bool
) -> list[Any]:
    """Of outputs for leaves; zeros for a leaf that none of them depends on."""
    pairs = [(o, s) for o, s in zip(outputs, seeds, strict=True) if edge_of(o) is not None]
    if not pairs:
        return [_zeros(leaf) for leaf in leaves]
    tracked, given = [o for o, _ in pairs], [s for _, s in pairs]
    found = autograd.grad(tracked, leaves, given, retain_graph, create_graph, allow_unused=True)
    return [_zeros(leaf) if grad is None else grad for grad, leaf in zip(found, leaves, strict=True)]


def _zeros(leaf: Tensor) -> Any:
    return from_torch(torch.zeros_like(leaf.raw().detach())) if isinstance(leaf, SparseTensor) else zeros(leaf)


# --- leaves ------------------------------------------------------------------------------------------------------------------


def _with_leaves(args: Sequence[Any], argnums: int | tuple[int, ...]) -> tuple[tuple[Any, ...], list[Tensor]]:
    """The arguments with new tensors in place of those to differentiate for; those tensors, in the order of ``argnums``."""
    chosen = _places(argnums, len(args))
    leaves: list[Tensor] = []

    def leaf(value: Any) -> Tensor:
        leaves.append(_leaf(value))
        return leaves[-1]

    given = list(args)
    for n in chosen:
        _check_tensors(args[n])
        given[n] = mapped(args[n], leaf)
    return tuple(given), leaves


def _places(argnums: int | tuple[int, ...], count: int) -> list[int]:
    """Which of ``count`` arguments are meant, checked in torch's words."""
    if not isinstance(argnums, (int, tuple)):
        raise RuntimeError(f"argnums must be int or Tuple[int, ...], got: {type(argnums)}")
    chosen = argnums if isinstance(argnums, tuple) else (argnums,)
    for n in chosen:
        if not isinstance(n, int):
            raise RuntimeError(f"argnum must be int, got: {type(n)}")
        if not -count <= n < count:
            raise RuntimeError(f"Got argnum={n}, but only {count} positional inputs")
    if not chosen and count:
        raise RuntimeError("argnums must be non-empty")
    if len(set(chosen)) < len(chosen):
        raise RuntimeError(f"argnums elements must be unique, got {argnums}")
    return [n % count for n in chosen]


def _leaf(value: Any) -> Tensor:
    """On the tape of the innermost level; connected to what ``value`` came from, if it is on that tape already."""
    tensor = from_torch(value) if isinstance(value, torch.Tensor) else value
    if isinstance(tensor, SparseTensor):  # torch's tape follows it
        raw = tensor.raw()
        return from_torch(raw.clone() if raw.requires_grad else raw.detach().requires_grad_())
    level = active.levels[-1].number if active.levels else 0
    if level and not (isinstance(tensor, BatchedTensor) and tensor.level == level):
        tensor = BatchedTensor(tensor, level, batched=False)
    made = ops.alias(tensor)
    made._view = ViewInfo(made, (), generation_of(made), "leaf")  # to what the function does with it, whatever it came from
    return made if made.requires_grad else made.requires_grad_()


def _is_differentiable_again(output: Any, leaves: Sequence[Tensor]) -> bool:
    """Whether the result depends on anything on a tape but these leaves. Under vmap the tape of a level below may follow."""
    if active.levels:
        return True
    mine: set[Node | None] = {edge.node for leaf in leaves if (edge := edge_of(leaf)) is not None and not edge.node.edges}
    torchs = _on_torchs_tape(leaves)
    edge = edge_of(output)
    stack: list[Node] = [] if edge is None else [edge.node]
    seen: set[Node] = set(stack)
    while stack:
        node = stack.pop()
        edges: Sequence[Edge | None]
        if isinstance(node, TorchTape):
            edges, known, others = _behind(node.tensor, torchs)
            ends = others or not (edges or known)
        else:
            edges = node.edges
            ends = node not in mine and (isinstance(node, AccumulateGrad) or not edges)
        if ends:
            return True
        new = [e.node for e in edges if e is not None and e.node not in seen]
        seen.update(new)
        stack += new
    return False


def _on_torchs_tape(leaves: Sequence[Tensor]) -> list[torch.Tensor]:
    return [leaf.raw() for leaf in leaves if isinstance(leaf, SparseTensor)]


def _behind(tensor: torch.Tensor, mine: Sequence[torch.Tensor]) -> tuple[tuple[Edge, ...], bool, bool]:
    """Where torch's tape behind a tensor leads back to ours; whether it leads to leaves of torch's that are ``mine``, and to
    others."""
    nodes = nodes_behind([tensor])
    bridges = bridges_among(nodes)
    anchors = [bridge.next_functions[0][0] for bridge in bridges]
    leaves = [n.variable for n in nodes if hasattr(n, "variable") and n not in anchors]
    known = [any(leaf is t for t in mine) for leaf in leaves]
    return tuple(bridge.edge for bridge in bridges), any(known), not all(known)


def _ours(tensor: Any) -> Any:
    return from_torch(tensor) if isinstance(tensor, torch.Tensor) else tensor


def _off_the_tape(value: Any, leaves: Sequence[Tensor]) -> Any:
    """Nested tensors off our tape, and off torch's where all that it leads to is ours, or one of the ``leaves``."""
    mine = _on_torchs_tape(leaves)

    def off(tensor: Any) -> Any:
        left = same_memory(tensor) if isinstance(tensor, Tensor) else tensor
        if not (left.on_torchs_tape if isinstance(left, Tensor) else left.requires_grad):
            return left
        edges, known, others = _behind(left.raw() if isinstance(left, Tensor) else left, mine)
        return left.detach() if (edges or known) and not others else left

    return mapped(value, off)


# --- structures --------------------------------------------------------------------------------------------------------------


def _chosen(args: Sequence[Any], argnums: int | tuple[int, ...]) -> Any:
    return tuple(args[n] for n in argnums) if isinstance(argnums, tuple) else args[argnums]


def _tensors(value: Any) -> Iterator[Any]:
    return (leaf for leaf in _leaves_in(value) if isinstance(leaf, (Tensor, torch.Tensor)))


def _leaves_in(value: Any) -> Iterator[Any]:
    """What is in a structure, tensors and all else."""
    if isinstance(value, (tuple, list, dict)):
        for v in value.values() if isinstance(value, dict) else value:
            yield from _leaves_in(v)
    else:
        yield value


def _shape_of(value: Any) -> str:
    """How tensors are nested, as torch writes it: ``(*, {'a': *})``."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k!r}: {_shape_of(v)}" for k, v in value.items()) + "}"
    if isinstance(value, (tuple, list)):
        inner = ", ".join(map(_shape_of, value))
        return f"[{inner}]" if isinstance(value, list) else f"({inner}{',' * (len(value) == 1)})"
    return "*"


def _check_tensors(value: Any) -> None:
    """What is differentiated for holds tensors alone."""
    if isinstance(value, (tuple, list, dict)):
        for v in value.values() if isinstance(value, dict) else value:
            _check_tensors(v)
    elif value is None or isinstance(value, (bool, int, float, complex, str)):
        raise ValueError(f"Thing passed to transform API must be Tensor, got {type(value)}")


def _rebuilt(like: Any, leaves: Iterator[Any]) -> Any:
    return mapped(like, lambda _: next(leaves))
