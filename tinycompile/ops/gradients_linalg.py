"""Derivatives of matrix products and einsum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tinycompile.base import shapes
from tinycompile.ops.calls import cast, ops
from tinycompile.ops.gradients import Gradients, sum_to, times, vjp
from tinycompile.ops.linalg import explicit

Args = Sequence[Any]


def _turned(x: Any) -> Any:
    """The last two dims swapped."""
    return ops.transpose(x, -2, -1)


def _is_by_columns(x: Any, turned: bool = False) -> bool:
    """Whether a matrix (``turned``: its transpose) lies in memory column by column. torch then gives it a gradient that does,
    too."""
    if len(x.shape) != 2:
        return False
    strides, (rows, cols) = x.stride() if isinstance(x, torch.Tensor) else x.strides, x.shape
    down, across, rows = (strides[1], strides[0], cols) if turned else (strides[0], strides[1], rows)
    return bool(down == 1 and across == rows)


def _of_left(product: Any, g: Any, a: Any, b: Any) -> Any:
    return _turned(product(b, _turned(g))) if _is_by_columns(a) else product(g, _turned(b))


def _of_right(product: Any, g: Any, a: Any, b: Any) -> Any:
    return _turned(product(_turned(g), a)) if _is_by_columns(b) else product(_turned(a), g)


@vjp("mm", "self?mat2", "mat2?self")
def _mm(grads: Args, args: Args, results: Args, needs: Args) -> Gradients:
    (g,), (a, b) = grads, args
    return _of_left(ops.mm, g, a, b) if needs[0] else None, _of_right(ops.mm, g, a, b) if needs[1] else None


@vjp("bmm", "self?mat2", "mat2?self")
def _bmm(grads: Args, args: Args, results: Args, needs: Args) -> Gradients:
    (g,), (a, b) = grads, args
    return ops.bmm(g, _turned(b)) if needs[0] else None, ops.bmm(_turned(a), g) if needs[1] else None


@vjp("matmul", "self?other", "other?self")
def _matmul(grads: Args, args: Args, results: Args, needs: Args) -> Gradients:
    """Vectors count as a row (left) or a column (right); broadcast batches are summed."""
    (g,), (x, y) = grads, args
    if len(x.shape) == 1:
        g = ops.unsqueeze(g, -1 if len(y.shape) == 1 else -2)
    if len(y.shape) == 1:
        g = ops.unsqueeze(g, -1)
    first = second = None
    matrices = len(x.shape) == len(y.shape) == 2
    if needs[0]:
        cols = ops.unsqueeze(y, 1) if len(y.shape) == 1 else y
        first = _of_left(ops.mm, g, x, y) if matrices else _matrix_sum(ops.matmul(g, _turned(cols)), x)
    if needs[1]:
        rows = ops.unsqueeze(x, 0) if len(x.shape) == 1 else x
        if len(y.shape) <= 2 and len(rows.shape) > 2:  # one product over all rows, not a batch of them to be summed
            second = ops.reshape(_of_right(ops.mm, _flat(g), _flat(rows), y), tuple(y.shape))
        elif matrices:
            second = _of_right(ops.mm, g, x, y)
        else:
            second = _matrix_sum(ops.matmul(_turned(rows), g), y)
    return first, second


def _matrix_sum(g: Any, like: Any) -> Any:
    """Broadcast batches summed, and a vector's dim of 1 taken away."""
    if len(like.shape) > 1:
        return sum_to(g, like)
    return ops.reshape(ops.sum(g, tuple(range(len(g.shape) - 2))) if len(g.shape) > 2 else g, tuple(like.shape))


def _flat(x: Any) -> Any:
    """All but the last dim as rows."""
    return x if len(x.shape) == 2 else ops.reshape(x, (shapes.numel(x.shape[:-1]), x.shape[-1]))


def _row(x: Any) -> Any:
    return ops.unsqueeze(x, 0)


@vjp("linear", "self?weight", "weight?self")
def _linear(grads: Args, args: Args, results: Args, needs: Args) -> Gradients:
    (g,), (x, weight, bias) = grads, args
    first = second = third = None
    vector = len(weight.shape) == 1
    if vector:
        g = ops.unsqueeze(g, -1)
    if needs[0]:
        turned = not vector and _is_by_columns(x)
        first = _turned(ops.mm(_turned(weight), _turned(g))) if turned else ops.matmul(g, _row(weight) if vector else weight)
    if needs[1]:
        lying = vector or _is_by_columns(weight, turned=True)  # torch multiplies by the transposed weight
        second = ops.mm(_turned(_flat(g)), _flat(x)) if lying else _turned(ops.mm(_turned(_flat(x)), _flat(g)))
        second = ops.reshape(second, (x.shape[-1],)) if vector else second
    if bias is not None and needs[2]:
        third = sum_to(ops.squeeze(g, (-1,)) if vector else g, bias)
    return first, second, third


def _product_of(product: Any, grads: Args, args: Args, needs: Args) -> Gradients:
    """addmm and baddbmm: beta x + alpha a b."""
    (g,), (x, a, b, beta, alpha) = grads, args
    first = sum_to(g, x, beta) if needs[0] else None
    left = times(_of_left(product, g, a, b), alpha) if needs[1] else None
    return first, left, times(_of_right(product, g, a, b), alpha) if needs[2] else None, None, None


@vjp("addmm", "mat1?mat2", "mat2?mat1")
def _addmm(grads: Args, args: Args, results: Args, needs: Args) -> Gradients:
    return _product_of(ops.mm, grads, args, needs)


@vjp("baddbmm", "batch1?batch2", "batch2?batch1")
def _baddbmm(grads: Args, args: Args, results: Args, needs: Args) -> Gradients:
    return _product_of(ops.bmm, grads, args, needs)


@vjp("outer", "self?vec2", "vec2?self")
def _outer(grads: Args, args: Args, results: Args, needs: Args) -> Gradients:
    (g,), (x, y) = grads, args
    first = cast(ops.sum(ops.mul(g, y), (1,)), x.dtype) if needs[0] else None
    return first, cast(ops.sum(ops.mul(g, ops.unsqueeze(x, 1)), (0,)), y.dtype) if needs[1] else None


# ---------------------------------------------------------------------------------------------------------------- einsum


@vjp("einsum", "tensors?others")
def _einsum(grads: Args, args: Args, results: Args, needs: Args) -> Gradients:
    """Each operand's gradient is an einsum of the result's with the other operands."""
    equation, tensors = args
    *terms, output = explicit(equation, [len(x.shape) for x in tensors])
    found = []
    for i, (term, x) in enumerate(zip(terms, tensors, strict=True)):
        others = [(t, y) for j, (t, y) in enumerate(zip(terms, tensors, strict=True)) if j != i]
        found.append(cast(_einsum_operand(grads[0], output, others, term, x), x.dtype) if needs[1][i] else None)
    return None, tuple(found)


def _einsum_operand(g: Any, output: str, others: Sequence[tuple[str, Any]], term: str, x: Any) -> Any:
    known = {c for t in (output, *(t for t, _ in others)) for c in t}
    sizes = dict(zip(term, x.shape, strict=True))
    once = "".join(dict.fromkeys(term))
    seen = "".join(c for c in once if c in known)
    # Where nothing is summed over torch multiplies, which takes dtypes that differ; here it may have to be a matrix product.
    if others:
        equation = f"{','.join((output, *(t for t, _ in others)))}->{seen}"
        found = ops.einsum(equation, (g, *(cast(y, g.dtype) for _, y in others)))
    else:
        found = ops.permute(g, tuple(map(output.index, seen)))
    for at, c in enumerate(once):  # letters that were summed away by themselves
        if c not in known:
            found = ops.unsqueeze(found, at)
    grown = [d if c in known else sizes[c] for c, d in zip(once, found.shape, strict=True)]
    found = ops.expand(found, tuple(grown))
    if len(once) == len(term):
        return sum_to(found, x)
    return sum_to(_on_diagonals(found, once, term), x)


def _on_diagonals(g: Any, once: str, term: str) -> Any:
    """From a dim a letter to the term as written: each repeat puts what is there on a diagonal."""
    letters = list(once)
    for at, c in enumerate(term):
        if at < len(letters) and letters[at] == c:
            continue
        first = letters.index(c)
        size = [*g.shape[:at], g.shape[first], *g.shape[at:]]
        rest = [d for d in range(len(letters)) if d != first]
        g = ops.diagonal_backward(ops.permute(g, (*rest, first)), tuple(size), 0, first, at)
        letters.insert(at, c)
    return g
