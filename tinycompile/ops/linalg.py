"""Matrix products and einsum: library kernels, with metadata rules written by hand."""

from __future__ import annotations

import functools
import operator
import string
from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional as F

from tinycompile.base import shapes
from tinycompile.base.expr import Dim
from tinycompile.base.meta import TensorMeta, meta_of_torch
from tinycompile.base.shapes import Shape
from tinycompile.ops import meta_rules as rules
from tinycompile.ops.calls import ops
from tinycompile.ops.declare import declare, spelled
from tinycompile.ops.record import Decompose, Extern
from tinycompile.ops.samples import FLOATS, call, t


def _same_dtype(a: TensorMeta, b: TensorMeta) -> None:
    if a.dtype != b.dtype:
        first, second = (_c_name(x.dtype) for x in (a, b))
        raise RuntimeError(f"expected m1 and m2 to have the same dtype, but got: {first} != {second}")


def _c_name(dtype: torch.dtype) -> str:
    return {torch.int64: "long", torch.int32: "int"}.get(dtype, rules.c_type(dtype))


def _product(a: TensorMeta, b: TensorMeta, shape: Shape) -> TensorMeta:
    return rules.fresh(shape, a.dtype, rules.common_device([a, b]))


# ----------------------------------------------------------------------------------------------------------- products


def _mm_meta(x: TensorMeta, mat2: TensorMeta) -> TensorMeta:
    for name, m in (("self", x), ("mat2", mat2)):
        if m.rank != 2:
            raise RuntimeError(f"{name} must be a matrix")
    if not shapes.same(x.shape[1], mat2.shape[0]):
        raise RuntimeError(
            f"mat1 and mat2 shapes cannot be multiplied ({x.shape[0]}x{x.shape[1]} and {mat2.shape[0]}x{mat2.shape[1]})"
        )
    _same_dtype(x, mat2)
    return _product(x, mat2, (x.shape[0], mat2.shape[1]))


def _bmm_meta(x: TensorMeta, mat2: TensorMeta) -> TensorMeta:
    for name, m in (("batch1", x), ("batch2", mat2)):
        if m.rank != 3:
            raise RuntimeError(f"{name} must be a 3D tensor")
    if not shapes.same(x.shape[0], mat2.shape[0]) or not shapes.same(x.shape[2], mat2.shape[1]):
        raise RuntimeError(
            f"Expected size for first two dimensions of batch2 tensor to be: [{x.shape[0]}, {x.shape[2]}] but got: "
            f"[{mat2.shape[0]}, {mat2.shape[1]}]."
        )
    _same_dtype(x, mat2)
    return _product(x, mat2, (x.shape[0], x.shape[1], mat2.shape[2]))


def _matmul_meta(x: TensorMeta, other: TensorMeta) -> TensorMeta:
    if not x.rank or not other.rank:
        raise RuntimeError(f"both arguments to matmul need to be at least 1D, but they are {x.rank}D and {other.rank}D")
    inner, outer = x.shape[-1], other.shape[-2] if other.rank > 1 else other.shape[0]
    if not shapes.same(inner, outer):
        raise RuntimeError(_matmul_mismatch(x, other))
    _same_dtype(x, other)
    batch = shapes.broadcast_shapes(x.shape[:-2], other.shape[:-2])
    rows, cols = x.shape[-2:-1] if x.rank > 1 else (), other.shape[-1:] if other.rank > 1 else ()
    return _product(x, other, (*batch, *rows, *cols))


def _matmul_mismatch(x: TensorMeta, other: TensorMeta) -> str:
    if x.rank == 1 and other.rank == 1:
        return (
            f"inconsistent tensor size, expected tensor [{x.shape[0]}] and src [{other.shape[0]}] to have the same "
            "number of elements, but got "
            f"{x.shape[0]} and {other.shape[0]} elements respectively"
        )
    if x.rank == 2 and other.rank == 1:
        return f"size mismatch, got input ({x.shape[0]}), mat ({x.shape[0]}x{x.shape[1]}), vec ({other.shape[0]})"
    if x.rank > 2 and other.rank > 2:
        batch = shapes.numel(shapes.broadcast_shapes(x.shape[:-2], other.shape[:-2]))
        return (
            f"Expected size for first two dimensions of batch2 tensor to be: [{batch}, {x.shape[-1]}] but got: "
            f"[{batch}, {other.shape[-2]}]."
        )
    rows = shapes.numel(x.shape[:-1])
    cols = other.shape[-1] if other.rank > 1 else 1
    return (
        f"mat1 and mat2 shapes cannot be multiplied ({rows}x{x.shape[-1]} and "
        f"{other.shape[-2] if other.rank > 1 else other.shape[0]}x{cols})"
    )


def linear_meta(x: TensorMeta, weight: TensorMeta, bias: TensorMeta | None = None) -> TensorMeta:
    """The result of ``x @ weight.T + bias``; raises what torch raises."""
    if not x.rank or weight.rank not in (1, 2):
        raise RuntimeError(f"both arguments to linear need to be at least 1D, but they are {x.rank}D and {weight.rank}D")
    if not shapes.same(x.shape[-1], weight.shape[-1]):
        rows = shapes.numel(x.shape[:-1])
        raise RuntimeError(
            f"mat1 and mat2 shapes cannot be multiplied ({rows}x{x.shape[-1]} and {weight.shape[-1]}x{weight.shape[0]})"
        )
    if weight.dtype != x.dtype or (bias is not None and bias.dtype != x.dtype):
        raise RuntimeError(
            f"mat1 and mat2 must have the same dtype, but got {rules.type_name(x.dtype)} and {rules.type_name(weight.dtype)}"
        )
    shape = (*x.shape[:-1], *weight.shape[:-1])
    if bias is not None and weight.rank == 2:
        _check_bias(x, bias, shape)
    return _product(x, weight, shape)


def _check_bias(x: TensorMeta, bias: TensorMeta, shape: Shape) -> None:
    """That a bias can be added: torch expands it where it adds to the rows as it multiplies, and broadcasts it elsewhere."""
    if x.rank == 2 or (bias.rank < 2 and x.is_contiguous()):
        _check_expand(bias, (shapes.numel(shape[:-1]), shape[-1]))
        return
    more = max(bias.rank - len(shape), 0)
    if not all(map(rules.is_one, bias.shape[:more])):
        raise RuntimeError(f"output with shape {list(shape)} doesn't match the broadcast shape {list(bias.shape)}")
    for d, size in enumerate(bias.shape[more:], len(shape) - bias.rank + more):
        if not rules.is_one(size) and not shapes.same(size, shape[d]):
            raise RuntimeError(
                f"The size of tensor a ({shape[d]}) must match the size of tensor b ({size}) at non-singleton dimension {d}"
            )


def _addmm_meta(x: TensorMeta, mat1: TensorMeta, mat2: TensorMeta, beta: Any = 1, alpha: Any = 1) -> TensorMeta:
    result = _mm_meta(mat1, mat2)
    _check_expand(x, result.shape)
    return result


def _baddbmm_meta(x: TensorMeta, batch1: TensorMeta, batch2: TensorMeta, beta: Any = 1, alpha: Any = 1) -> TensorMeta:
    result = _bmm_meta(batch1, batch2)
    _check_expand(x, result.shape)
    return result


def _check_expand(x: TensorMeta, shape: Shape) -> None:
    lead = len(shape) - x.rank
    if lead < 0:
        raise RuntimeError(
            f"expand(torch.{rules.type_name(x.dtype)}Tensor{{{list(x.shape)}}}, size={list(shape)}): the number of sizes "
            f"provided ({len(shape)}) must be greater or equal to the number of dimensions in the tensor ({x.rank})"
        )
    for d, size in enumerate(x.shape):
        if not rules.is_one(size) and not shapes.same(size, shape[lead + d]):
            raise RuntimeError(
                f"The expanded size of the tensor ({shape[lead + d]}) must match the existing size ({size}) at non-singleton "
                f"dimension {lead + d}.  Target sizes: {list(shape)}.  Tensor sizes: {list(x.shape)}"
            )


def _outer_meta(x: TensorMeta, vec2: TensorMeta) -> TensorMeta:
    if x.rank != 1 or vec2.rank != 1:
        raise RuntimeError(
            f"outer: Expected 1-D argument {'self' if x.rank != 1 else 'vec2'}, but got "
            f"{x.rank if x.rank != 1 else vec2.rank}-D"
        )
    return rules.fresh((*x.shape, *vec2.shape), rules.result_type((x, vec2)), x.device)


declare(
    "mm(Tensor self, Tensor mat2) -> Tensor",
    _mm_meta,
    Extern(),
    torch.mm,
    spelled("mm"),
    lambda: [
        *(call(t(3, 4, dtype=d), t(4, 5, dtype=d)) for d in FLOATS),
        call(t(6, 4, layout="transposed"), t(4, 5, layout="transposed")),
        call(t(3, 4), t(3, 4)),
        call(t(0, 4), t(4, 5)),
        call(t(3), t(3)),
        call(t(3, 4, dtype="int64"), t(4, 2, dtype="int64")),
    ],
    ulp=8.0,
)
declare(
    "bmm(Tensor self, Tensor mat2) -> Tensor",
    _bmm_meta,
    Extern(),
    torch.bmm,
    spelled("bmm"),
    lambda: [
        *(call(t(2, 3, 4, dtype=d), t(2, 4, 5, dtype=d)) for d in FLOATS),
        call(t(2, 3, 4, layout="transposed"), t(2, 4, 5)),
        call(t(2, 3, 4), t(1, 4, 5)),
    ],
    ulp=8.0,
)
declare(
    "matmul(Tensor self, Tensor other) -> Tensor",
    _matmul_meta,
    Extern(),
    torch.matmul,
    spelled("matmul", "tml", "operator.matmul", "torch.Tensor.__matmul__"),
    lambda: [
        call(t(3, 4), t(4, 5)),
        call(t(4), t(4)),
        call(t(3, 4), t(4)),
        call(t(4), t(4, 5)),
        call(t(2, 3, 4), t(4, 5)),
        call(t(2, 3, 4), t(4)),
        call(t(4), t(2, 4, 5)),
        call(t(2, 1, 3, 4), t(5, 4, 6)),
        call(t(3, 4), t(2, 4, 5)),
        call(t(2, 3, 4, layout="transposed"), t(2, 4, 5, layout="transposed")),
        call(t(3, 4), t(3, 4)),
        call(t(), t(3)),
        call(t(3, 4), t(4, 5, dtype="float64")),
        call(t(2, 3, 4, layout="transposed"), t(4, 5)),
        *(call(t(3, 4, dtype=d), t(4, 5, dtype=d)) for d in FLOATS),
    ],
    ulp=8.0,
)
declare(
    "linear(Tensor self, Tensor weight, Tensor? bias=None) -> Tensor",
    linear_meta,
    Extern(),
    F.linear,
    spelled("linear", "f"),
    lambda: [
        *(call(t(3, 4, dtype=d), t(5, 4, dtype=d), t(5, dtype=d)) for d in FLOATS),
        call(t(2, 3, 4), t(5, 4)),
        call(t(2, 3, 4), t(5, 4), t(5)),
        call(t(4), t(5, 4), t(5)),
        call(t(2, 3, 4, layout="transposed"), t(5, 4), t(5)),
        call(t(3, 4), t(5, 6)),
        call(t(6, 4, layout="transposed"), t(5, 4), t(5)),
        *(call(t(3, 4), t(5, 4), t(*size)) for size in ((1,), (3, 5), (1, 5), (6,), (2, 5), (2, 3, 5))),
        *(call(t(2, 3, 4), t(5, 4), t(*size)) for size in ((1,), (3, 5), (6,), (2, 5))),
        call(t(2, 3, 4, layout="transposed"), t(5, 4), t(6)),
        call(t(4), t(5, 4), t(6)),
        call(t(4), t(5, 4), t(2, 5)),
    ],
    ulp=8.0,
)
declare(
    "addmm(Tensor self, Tensor mat1, Tensor mat2, *, Scalar beta=1, Scalar alpha=1) -> Tensor",
    _addmm_meta,
    Extern(),
    lambda x, a, b, beta=1, alpha=1: torch.addmm(x, a, b, beta=beta, alpha=alpha),
    spelled("addmm"),
    lambda: [
        *(call(t(5, dtype=d), t(3, 4, dtype=d), t(4, 5, dtype=d)) for d in FLOATS),
        call(t(3, 5), t(3, 4), t(4, 5), beta=0.5, alpha=2),
        call(t(7), t(3, 4), t(4, 5)),
    ],
    ulp=8.0,
)
declare(
    "baddbmm(Tensor self, Tensor batch1, Tensor batch2, *, Scalar beta=1, Scalar alpha=1) -> Tensor",
    _baddbmm_meta,
    Extern(),
    lambda x, a, b, beta=1, alpha=1: torch.baddbmm(x, a, b, beta=beta, alpha=alpha),
    spelled("baddbmm"),
    lambda: [call(t(2, 3, 5), t(2, 3, 4), t(2, 4, 5)), call(t(5), t(2, 3, 4), t(2, 4, 5), beta=0.5)],
    ulp=8.0,
)
declare(
    "outer(Tensor self, Tensor vec2) -> Tensor",
    _outer_meta,
    Decompose(lambda x, vec2: ops.mul(ops.unsqueeze(x, 1), vec2)),
    torch.outer,
    (*spelled("outer"), *spelled("ger")),
    lambda: [call(t(3), t(4)), call(t(3, dtype="int64"), t(4)), call(t(3, 1), t(4))],
)


# ------------------------------------------------------------------------------------------------------------------ einsum


def _einsum_meta(equation: str, tensors: Sequence[TensorMeta]) -> TensorMeta:
    """The shape by the equation. Strides follow from the permutations inside, which torch's own run on meta tensors tells."""
    device = rules.common_device(list(tensors))
    sizes = [([shapes.hint(n) for n in x.shape], [shapes.hint(n) for n in x.strides]) for x in tensors]
    found = torch.einsum(
        equation, *(torch.empty_strided(*s, dtype=x.dtype, device="meta") for s, x in zip(sizes, tensors, strict=True))
    )
    if all(isinstance(n, int) for x in tensors for n in (*x.shape, *x.strides)):
        return meta_of_torch(found, device)
    *terms, output = explicit(equation, [len(x.shape) for x in tensors])
    shape = _einsum_shape(terms, output, tensors)
    if len(tensors) == 1 and set(terms[0]) == set(output):  # a permutation or a diagonal: a view
        term, x = terms[0], tensors[0]
        along = [[s for letter, s in zip(term, x.strides, strict=True) if letter == o] for o in output]
        return TensorMeta(shape, tuple(functools.reduce(operator.add, s) for s in along), x.dtype, device, x.offset)
    fastest_first = sorted(range(len(shape)), key=lambda d: (found.stride(d), -d))
    return TensorMeta(shape, rules.strides_in_order(shape, fastest_first), found.dtype, device)


def explicit(equation: str, ranks: Sequence[int]) -> list[str]:
    """The terms and the output without ellipsis and with the output spelled out."""
    left, arrow, output = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    free = [c for c in string.ascii_letters if c not in left]
    hidden = [rank - len(term.replace("...", "")) if "..." in term else 0 for term, rank in zip(terms, ranks, strict=True)]
    shared = free[: max(hidden, default=0)]
    terms = [t.replace("...", "".join(shared[len(shared) - n :])) for t, n in zip(terms, hidden, strict=True)]
    if arrow:
        return [*terms, output.replace("...", "".join(shared))]
    letters = "".join(terms)
    return [*terms, "".join(shared) + "".join(sorted(c for c in set(letters) if letters.count(c) == 1 and c not in shared))]


def _einsum_shape(terms: Sequence[str], output: str, tensors: Sequence[TensorMeta]) -> Shape:
    sizes: dict[str, Dim] = {}
    for term, x in zip(terms, tensors, strict=True):
        for letter, size in zip(term, x.shape, strict=True):
            if letter not in sizes or rules.is_one(sizes[letter]):
                sizes[letter] = size
    return tuple(sizes[c] for c in output)


declare(
    "einsum(str equation, Tensor[] tensors) -> Tensor",
    _einsum_meta,
    Extern(),
    lambda eq, tensors: torch.einsum(eq, *tensors),
    (),
    lambda: [
        call("ij,jk->ik", (t(3, 4), t(4, 5))),
        call("bij,bjk->bik", (t(2, 3, 4), t(2, 4, 5))),
        call("ij->ji", (t(3, 4),)),
        call("ij->", (t(3, 4),)),
        call("bhqd,bhkd->bhqk", (t(2, 3, 4, 5), t(2, 3, 6, 5))),
        call("i,j->ij", (t(3), t(4))),
        call("ii->i", (t(3, 3),)),
    ],
    ulp=8.0,
)
