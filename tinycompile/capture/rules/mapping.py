"""``tinycompile.vmap`` and ``torch.vmap`` inside a compiled function: followed, with fakes that hide one dim.

The ops that the function calls go through the Batched key, so the graph has those that run on all examples at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from tinycompile.capture import torch_calls
from tinycompile.capture.breaks import GraphBreak
from tinycompile.capture.rules.registry import Args, rule
from tinycompile.capture.values.base import Kwargs, Value
from tinycompile.capture.values.constant import Const
from tinycompile.capture.values.mapping import DictValue
from tinycompile.capture.values.sequence import ListValue, SequenceValue, TupleValue
from tinycompile.capture.values.tensor import TensorValue
from tinycompile.eager.batched import Level
from tinycompile.eager.tensor import Tensor as OurTensor
from tinycompile.eager.vmap import RANDOMNESS, batched, enter, is_dim, leave, level, vmap

if TYPE_CHECKING:
    from tinycompile.capture.tracer import Tracer


class MappedFunction(Value):
    """What ``vmap(fn)`` gives. ``options``: in_dims, out_dims, randomness. ``strict``: it returns nothing but tensors."""

    __slots__ = ("fn", "made_by", "options", "strict")

    def __init__(self, made_by: Any, fn: Value, options: tuple[Any, Any, str], strict: bool = True) -> None:
        super().__init__()
        self.made_by, self.fn, self.options, self.strict = made_by, fn, options, strict

    def truth(self, tr: Tracer) -> bool:
        return True

    def call(self, tr: Tracer, args: Sequence[Value], kwargs: Kwargs) -> Value:
        in_dims, out_dims, randomness = self.options
        if not isinstance(in_dims, (int, tuple)) or not _begins(tr, in_dims, TupleValue(list(args))):
            raise GraphBreak("unsupported-argument", "in_dims of vmap that do not fit the arguments")
        each = in_dims if isinstance(in_dims, tuple) else (in_dims,) * len(args)
        pairs = [p for a, d in zip(args, each, strict=True) for p in _leaves(tr, a, d)]
        sizes = [t.meta.shape[d] for t, d in pairs if is_dim(d) and -t.meta.rank <= d < t.meta.rank]
        if len(sizes) != sum(d is not None for _, d in pairs) or not sizes or any(s != sizes[0] for s in sizes):
            raise GraphBreak("unsupported-argument", "dims of vmap that do not fit the arguments")
        with level(sizes[0], randomness) as here:
            given = [_entered(tr, a, d, here) for a, d in zip(args, each, strict=True)]
            result = self.fn.call(tr, given, kwargs)
            alone = isinstance(result, TensorValue) and isinstance(out_dims, tuple) and len(out_dims) == 1
            if not alone and not _begins(tr, out_dims, result):
                raise GraphBreak("unsupported-argument", "out_dims of vmap that are not nested as the results are")
            ours = any(t.cls is OurTensor for v in (*args, *kwargs.values()) for t, _ in _leaves(tr, v, None))
            return _left(tr, result, out_dims, here, self.strict, OurTensor if ours else torch.Tensor)


def _leaves(tr: Tracer, value: Value, dims: Any) -> list[tuple[TensorValue, int | None]]:
    if isinstance(value, TensorValue):
        return [(value, dims)]
    if dims is not None and not isinstance(value, (SequenceValue, DictValue)):
        raise GraphBreak("unsupported-argument", "vmap over what is no tensor")
    parts, each = _parts(tr, value, dims)
    return [pair for v, d in zip(parts, each, strict=True) for pair in _leaves(tr, v, d)]


def _parts(tr: Tracer, value: Value, dims: Any) -> tuple[list[Value], list[Any]]:
    if isinstance(value, SequenceValue):
        parts = list(value.values(tr))
    elif isinstance(value, DictValue):
        parts = [v for _, v in value.pairs(tr)]
    else:
        return [], []
    if isinstance(dims, dict) and isinstance(value, DictValue):
        each = [dims.get(k.constant(tr)) if k.is_constant else None for k, _ in value.pairs(tr)]
    else:
        each = list(dims) if isinstance(dims, (tuple, list)) else [dims] * len(parts)
    if len(each) != len(parts):
        raise GraphBreak("unsupported-argument", "dims of vmap that do not fit a structure")
    return parts, each


def _begins(tr: Tracer, dims: Any, results: Value) -> bool:
    """Whether dims are nested as results are, down to some depth."""
    if isinstance(dims, dict):
        known = isinstance(results, DictValue) and all(k.is_constant for k, _ in results.pairs(tr))
        found = {k.constant(tr): v for k, v in results.pairs(tr)} if known else {}  # type: ignore[attr-defined]
        return list(dims) == list(found) and all(_begins(tr, d, found[k]) for k, d in dims.items())
    if isinstance(dims, (tuple, list)):
        parts = list(results.values(tr)) if isinstance(results, SequenceValue) and results.cls is type(dims) else []
        return len(parts) == len(dims) > 0 and all(_begins(tr, d, p) for d, p in zip(dims, parts, strict=True))
    return True


def _rebuilt(tr: Tracer, value: Value, dims: Any, fn: Callable[[Value, Any], Value]) -> Value:
    """The structure of ``value`` with ``fn`` applied to its parts."""
    parts, each = _parts(tr, value, dims)
    items = [fn(v, d) for v, d in zip(parts, each, strict=True)]
    if isinstance(value, DictValue):
        return DictValue(tr, [(k, v) for (k, _), v in zip(value.pairs(tr), items, strict=True)])
    if isinstance(value, ListValue):
        return ListValue(items)
    if isinstance(value, SequenceValue):
        return TupleValue(items, cls=value.cls)
    return value


def _entered(tr: Tracer, value: Value, dims: Any, here: Level) -> Value:
    if not isinstance(value, TensorValue):
        return _rebuilt(tr, value, dims, lambda v, d: _entered(tr, v, d, here))
    return value if dims is None else torch_calls.wrap_result(tr, enter(value.fake, dims, here), [value], value)


def _left(tr: Tracer, value: Value, dims: Any, here: Level, strict: bool, cls: type) -> Value:
    """Results have the class of what was mapped over, whatever the function met inside."""
    if not isinstance(value, TensorValue):
        if strict and not isinstance(value, (SequenceValue, DictValue)):
            raise GraphBreak("unsupported-value", "a function under vmap returns something other than tensors")
        return _rebuilt(tr, value, dims, lambda v, d: _left(tr, v, d, here, strict, cls))
    dim = dims[0] if isinstance(dims, (tuple, list)) else dims
    made = torch_calls.wrap_result(tr, leave(value.fake, dim, here), [value], value)
    assert isinstance(made, TensorValue)
    made.cls = cls
    return made


@rule(vmap)
def _vmap(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    return _mapped(vmap, tr, args, kwargs)


@rule(torch.vmap)
def _torch_vmap(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    return _mapped(torch.vmap, tr, args, kwargs)


@rule(batched)
def _batched(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    fn, in_dims, randomness = args
    return MappedFunction(batched, fn, (in_dims.constant(tr), 0, randomness.constant(tr)), strict=False)


_OPTIONS = ("in_dims", "out_dims", "randomness")


def _mapped(made_by: Any, tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    given: dict[str, Any] = {"in_dims": 0, "out_dims": 0, "randomness": "error"}
    named = {**dict(zip(("func", *_OPTIONS), args, strict=False)), **kwargs}
    fn = named.pop("func", named.pop("fn", None))
    chunks = named.pop("chunk_size", Const(None))
    if fn is None or named.keys() - given.keys() or chunks.constant(tr) is not None:
        raise GraphBreak("unsupported-argument", "vmap with other arguments than the function, its dims and randomness")
    given |= {k: v.constant(tr) for k, v in named.items()}
    if given["randomness"] not in RANDOMNESS:
        raise GraphBreak("unsupported-argument", f"randomness {given['randomness']!r} of vmap")
    return MappedFunction(made_by, fn, (given["in_dims"], given["out_dims"], given["randomness"]))
