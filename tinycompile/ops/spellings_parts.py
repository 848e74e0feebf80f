"""Torch callables that return their argument, views of it, or take their tensors one by one; ``einsum`` is all of these."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tinycompile.base import shapes
from tinycompile.base.expr import Dim, Expr
from tinycompile.ops.calls import meta_of
from tinycompile.ops.linalg import explicit
from tinycompile.ops.record import BoundCall
from tinycompile.ops.spellings_tensors import identity, reshaped
from tinycompile.ops.table import KEYWORDS, Args, add, add_attribute, call_of, is_tensor

Kwargs = dict[str, Any]
Bound = BoundCall | None


def _only(args: Args, kwargs: Kwargs) -> Any:
    """The one tensor of a call, or None."""
    given = [*args, *kwargs.values()]
    return given[0] if len(given) == 1 and is_tensor(given[0]) else None


# -------------------------------------------------------------------------------------------------------- the argument


def _itself(args: Args, kwargs: Kwargs) -> Bound:
    x = _only(args, kwargs)
    return None if x is None else identity(x)


def _positive(args: Args, kwargs: Kwargs) -> Bound:
    x = _only(args, kwargs)
    return None if x is None or str(x.dtype) == "torch.bool" else identity(x)


def _at_least(rank: int) -> Callable[[Args, Kwargs], Bound]:
    """atleast_1d and its like of one tensor: a view with dims of size 1, or the tensor."""

    def binder(args: Args, kwargs: Kwargs) -> Bound:
        x = _only(args, kwargs)
        if x is None:
            return None
        have = len(x.shape)
        if have >= rank:
            return identity(x)
        if have == 0:
            return call_of("view", x, (1,) * rank)
        return call_of("unsqueeze", x, 0 if have == 1 and rank == 2 else -1) if have == rank - 1 else call_of("row_3d", x)

    return binder


def _sum_to_size(args: Args, kwargs: Kwargs) -> Bound:
    size = args[1] if len(args) == 2 and isinstance(args[1], (tuple, list)) else args[1:]
    if len(args) < 2 or kwargs or not all(isinstance(s, (int, Expr)) for s in size):
        return None
    x = args[0]
    same = bool(size) and shapes.same_shape(size, x.shape)
    return identity(x) if same else call_of("sum_to_size", x, tuple(size))


def _ravel(args: Args, kwargs: Kwargs) -> Bound:
    x = _only(args, kwargs)
    if x is None:
        return None
    return reshaped(x, (-1,)) if meta_of(x).is_contiguous() else call_of("ravel", x)


def _masked_prod(args: Args, kwargs: Kwargs) -> Bound:
    """Of one number it may be the argument."""
    found = call_of("masked_prod", *args, **kwargs)
    return None if found is not None and not len(found.args[0].shape) else found


def _wholes() -> None:
    for name in ("conj", "conj_physical", "resolve_conj", "resolve_neg"):
        add(f"torch.{name}", _itself)
        add(f"torch.Tensor.{name}", _itself)
    add("torch.real", _itself)
    add_attribute("real", lambda args, kwargs: identity(args[0]))
    for where in ("torch", "torch.Tensor"):
        add(f"{where}.positive", _positive)
        add(f"{where}.ravel", _ravel)
    add("torch.Tensor.__pos__", _positive)
    add("operator.pos", _positive)
    for rank in (1, 2, 3):
        add(f"torch.atleast_{rank}d", _at_least(rank))
    add("torch.Tensor.sum_to_size", _sum_to_size)
    add("torch.masked.prod", _masked_prod)


# --------------------------------------------------------------------------------------------------------------- parts


def _lengths(size: Dim, pieces: Any) -> list[Dim] | None:
    """Lengths of ``tensor_split``'s parts: almost equal ones, or those between indices (clipped as slices are)."""
    if isinstance(pieces, int):
        longer = shapes.pinned(size % pieces) if pieces > 0 else 0
        return None if pieces <= 0 else [size // pieces + (i < longer) for i in range(pieces)]
    starts = [_clipped(i, size) for i in pieces]
    ends = [*starts, size]
    if not all(map(shapes.at_least, ends, [0, *starts])):
        return None  # indices that go back overlap: torch's own
    return [end - start for start, end in zip([0, *starts], ends, strict=True)]


def _clipped(i: Dim, size: Dim) -> Dim:
    if shapes.at_least(i, 0):
        return i if shapes.at_least(size, i) else size
    return size + i if shapes.at_least(size + i, 0) else 0


def _tensor_split(args: Args, kwargs: Kwargs) -> Bound:
    given = dict(zip(("self", "pieces", "dim"), args, strict=False)) | {KEYWORDS.get(k, k): v for k, v in kwargs.items()}
    pieces = given.get("pieces", given.get("indices_or_sections", given.get("sections", given.get("indices"))))
    return _split_at(given["self"], pieces, given.get("dim", 0), False)


def _are_pieces(value: Any) -> bool:
    return type(value) is int or (isinstance(value, (tuple, list)) and all(type(v) in (int, Expr) for v in value))


def _split_at(x: Any, pieces: Any, dim: int, equal: bool) -> Bound:
    if not _are_pieces(pieces) or type(dim) is not int or not -len(x.shape) <= dim < len(x.shape):
        return None
    size = x.shape[dim]
    if equal and isinstance(pieces, int) and (pieces <= 0 or shapes.pinned(size % pieces)):
        return None
    lengths = _lengths(size, pieces)
    bound = None if lengths is None else call_of("split_with_sizes", x, tuple(lengths), dim)
    return None if bound is None else replace(bound, sliced=True)


def _split_along(dim: int, least: int) -> Callable[[Args, Kwargs], Bound]:
    def binder(args: Args, kwargs: Kwargs) -> Bound:
        if len(args) != 2 or kwargs or len(args[0].shape) < least:
            return None
        return _split_at(args[0], args[1], 0 if len(args[0].shape) == 1 else dim, True)

    return binder


def _unsafe_split(args: Args, kwargs: Kwargs) -> Bound:
    given = dict(zip(("self", "split_size", "dim"), args, strict=False)) | {KEYWORDS.get(k, k): v for k, v in kwargs.items()}
    return _unsafe(call_of("split", given["self"], given["split_size"], given.get("dim", 0)), "torch.unsafe_split")


def _unsafe_split_with_sizes(args: Args, kwargs: Kwargs) -> Bound:
    return _unsafe(call_of("split_with_sizes", *args, **kwargs), "torch.unsafe_split_with_sizes")


def _unsafe_chunk(args: Args, kwargs: Kwargs) -> Bound:
    return _unsafe(call_of("chunk", *args, **kwargs), "torch.unsafe_chunk")


def _unsafe(bound: Bound, path: str) -> Bound:
    return None if bound is None else replace(bound, unsafe=path)


def _several(name: str) -> Callable[[Args, Kwargs], Bound]:
    """Functions that take their tensors as separate arguments (and refuse a list)."""

    def binder(args: Args, kwargs: Kwargs) -> Bound:
        if kwargs or not args or not all(map(is_tensor, args)):
            return None
        alone = name == "cartesian_prod" and len(args) == 1 and len(args[0].shape) == 1
        return identity(args[0]) if alone else call_of(name, tuple(args))

    return binder


def _parts() -> None:
    for where in ("torch", "torch.Tensor"):
        add(f"{where}.tensor_split", _tensor_split)
        for name, dim, least in (("hsplit", 1, 1), ("vsplit", 0, 2), ("dsplit", 2, 3)):
            add(f"{where}.{name}", _split_along(dim, least))
        add(f"{where}.unsafe_split", _unsafe_split)
        add(f"{where}.unsafe_split_with_sizes", _unsafe_split_with_sizes)
        add(f"{where}.unsafe_chunk", _unsafe_chunk)
    add("torch.linalg.diagonal", _linalg_diagonal)
    for name in ("block_diag", "cartesian_prod"):
        add(f"torch.{name}", _several(name))
    add("torch.einsum", _einsum)


def _linalg_diagonal(args: Args, kwargs: Kwargs) -> Bound:
    given = {"offset": 0, "dim1": -2, "dim2": -1} | kwargs
    x = args[0] if args else given.pop("A", None)
    return None if x is None or len(args) > 1 else call_of("diagonal", x, given["offset"], given["dim1"], given["dim2"])


# -------------------------------------------------------------------------------------------------------------- einsum


def _einsum(args: Args, kwargs: Kwargs) -> Bound:
    if not args or not isinstance(args[0], str) or kwargs:
        return None
    operands = args[1] if len(args) == 2 and isinstance(args[1], (tuple, list)) else args[1:]
    if len(operands) == 1 and is_tensor(operands[0]):
        term, *_, output = explicit(args[0], [len(operands[0].shape)])
        if set(term) == set(output) and len(term) == len(operands[0].shape):
            return _with_dims_as(operands[0], term, output)
    return call_of("einsum", args[0], tuple(operands))


def _with_dims_as(x: Any, term: str, output: str) -> Bound:
    """Where nothing is summed torch gives a view: of turned dims, or of a diagonal. Any other view it makes itself."""
    if len(output) == len(term):
        return call_of("permute", x, tuple(map(term.index, output)))
    twice = next(letter for letter in term if term.count(letter) > 1)
    if len(term) == len(output) + 1 and output == term.replace(twice, "") + twice:
        return call_of("diagonal", x, 0, term.index(twice), term.rindex(twice))
    return None


GROUPS = (_wholes, _parts)
