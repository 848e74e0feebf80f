"""Batching rules of library ops: matrix products, convolutions, attention, norms. Examples become rows, batches or groups."""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import Any

import torch

from tinycompile.eager.batched_random import draw
from tinycompile.eager.batching import Batch, call, rank_of, rule
from tinycompile.ops.calls import ops
from tinycompile.ops.record import Decompose

# --- products ----------------------------------------------------------------------------------------------------------------


@rule("mm", "bmm", "matmul")
def _matmul(batch: Batch, a: Any, b: Any) -> Any:
    """A vector is a matrix of one row or column; leading dims broadcast."""
    rank = max(len(a.shape), len(b.shape), 2)
    left = ops.unsqueeze(batch.below(a), -2) if len(a.shape) == 1 else batch.below(a)
    right = ops.unsqueeze(batch.below(b), -1) if len(b.shape) == 1 else batch.below(b)
    result = ops.matmul(_lead(batch, a, left, rank), _lead(batch, b, right, rank))
    gone = [d for d, x in ((-2, a), (-1, b)) if len(x.shape) == 1]
    return ops.squeeze(result, tuple(gone)) if gone else result


def _lead(batch: Batch, tensor: Any, value: Any, rank: int) -> Any:
    """Dims of 1 behind the examples' until there are ``rank`` more."""
    if batch.has(tensor):
        while len(value.shape) < rank + 1:
            value = ops.unsqueeze(value, 1)
    return value


@rule("linear")
def _linear(batch: Batch, x: Any, weight: Any, bias: Any = None) -> Any:
    if not batch.has(weight) and not batch.has(bias):
        return call(batch, batch.below(x), batch.below(weight), batch.below(bias))
    if len(weight.shape) != 2:
        return NotImplemented
    flipped = ops.transpose(weight, 0, 1)
    if bias is not None and len(x.shape) == 2:
        return batch.results(ops.addmm(bias, x, flipped))
    result = ops.matmul(x, flipped)
    return batch.results(result if bias is None else ops.add(result, bias))


@rule("addmm", "baddbmm")
def _addmm(batch: Batch, x: Any, a: Any, b: Any, beta: Any = 1, alpha: Any = 1) -> Any:
    if batch.op.name == "addmm":  # added in the precision in which the products are summed
        return ops.baddbmm(batch.aligned(x, 2), batch.full(a), batch.full(b), beta=beta, alpha=alpha)
    rows = [_fold(batch.full(v)) for v in (a, b)]
    shape = a.shape[0], a.shape[1], b.shape[2]
    added = _fold(ops.expand(batch.aligned(x, 3), (batch.size, *shape)))
    return ops.unflatten(call(batch, added, *rows, beta, alpha), 0, (batch.size, shape[0]))


@rule("einsum")
def _einsum(batch: Batch, equation: str, tensors: Sequence[Any]) -> Any:
    """A letter more, for the examples."""
    inputs, arrow, output = equation.replace(" ", "").partition("->")
    terms = inputs.split(",")
    letter = next(c for c in string.ascii_letters if c not in equation)
    if not arrow:
        named = inputs.replace("...", "").replace(",", "")
        output = "..." * ("..." in inputs) + "".join(sorted(c for c in set(named) if named.count(c) == 1))
    terms = [letter + term if batch.has(t) else term for term, t in zip(terms, tensors, strict=True)]
    return ops.einsum(f"{','.join(terms)}->{letter}{output}", batch.below(tuple(tensors)))


# --- convolutions ------------------------------------------------------------------------------------------------------------


def _fold(x: Any) -> Any:
    """Examples and batch as one batch."""
    return ops.flatten(x, 0, 1)


def _as_groups(x: Any) -> Any:
    """(examples, batch, channels, ...) as (batch, examples * channels, ...)."""
    return ops.flatten(ops.movedim(x, (0,), (1,)), 1, 2)


def _from_groups(x: Any, size: Any) -> Any:
    return ops.movedim(ops.unflatten(x, 1, (size, -1)), (1,), (0,))


@rule("conv1d", "conv2d", "conv3d")
def _convolution(batch: Batch, x: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, groups: int) -> Any:
    """Weights that all examples share see them as one batch; an example's own weights are a group each."""
    options = stride, padding, dilation
    single = len(x.shape) == len(weight.shape) - 1
    if not batch.has(weight) and not batch.has(bias):
        shared = batch.below(weight), batch.below(bias), *options, groups
        if single:
            return call(batch, batch.below(x), *shared)
        return ops.unflatten(call(batch, _fold(batch.full(x)), *shared), 0, (batch.size, x.shape[0]))
    images = batch.full(x.unsqueeze(0) if single else x)
    own = _fold(batch.full(weight)), None if bias is None else _fold(batch.full(bias))
    result = _from_groups(call(batch, _as_groups(images), *own, *options, groups * batch.size), batch.size)
    return ops.squeeze(result, (1,)) if single else result


@rule("convolution_backward")
def _convolution_backward(
    batch: Batch, grad: Any, x: Any, weight: Any, stride: Any, padding: Any, dilation: Any, groups: int, *needs: bool
) -> Any:
    """Every example a group: so each has the gradient of weights of its own."""
    grad_, x_, weight_ = _as_groups(batch.full(grad)), _as_groups(batch.full(x)), _fold(batch.full(weight))
    dx, dw = call(batch, grad_, x_, weight_, stride, padding, dilation, groups * batch.size, *needs)
    wants_x, wants_w = (*needs, True, True)[:2]
    return (
        _from_groups(dx, batch.size) if wants_x else batch.full(ops.full((0,), 0.0, dtype=x.dtype, device=x.device)),
        ops.unflatten(dw, 0, (batch.size, -1)) if wants_w else batch.full(ops.full((0,), 0.0, dtype=x.dtype, device=x.device)),
    )


# --- attention ---------------------------------------------------------------------------------------------------------------


@rule("scaled_dot_product_attention")
def _attention(
    batch: Batch, q: Any, k: Any, v: Any, mask: Any, dropout_p: float, is_causal: bool, scale: Any, enable_gqa: bool
) -> Any:
    if dropout_p:
        return draw(
            torch.nn.functional.scaled_dot_product_attention,
            (q, k, v, mask, dropout_p),
            {"is_causal": is_causal, "scale": scale, "enable_gqa": enable_gqa},
        )
    rank = rank_of(q, k, v)
    masked = None if mask is None else batch.aligned(mask, max(rank, len(mask.shape)))
    return call(batch, *(batch.spread(t, rank) for t in (q, k, v)), masked, dropout_p, is_causal, scale, enable_gqa)


@rule("attention_forward", "attention_backward")
def _attention_parts(batch: Batch, *args: Any) -> Any:
    """Examples are more of the batch."""
    tensors = [a for a in args if hasattr(a, "dtype")]
    if any(len(t.shape) < 3 for t in tensors) or any(len(t.shape) != len(args[0].shape) for t in tensors[:3]):
        return NotImplemented
    at = batch.op.schema.positions["mask"]
    mask, lead = args[at], args[0].shape[0]
    if mask is not None:
        mask = ops.expand(batch.aligned(mask, len(args[0].shape)), (batch.size, lead, -1, -1, -1))
    folded = [_fold(mask if i == at else batch.full(a)) if hasattr(a, "dtype") else a for i, a in enumerate(args)]
    return tuple(ops.unflatten(r, 0, (batch.size, lead)) for r in call(batch, *folded))


# --- norms and losses --------------------------------------------------------------------------------------------------------


@rule("layer_norm", "rms_norm")
def _norm(batch: Batch, x: Any, shape: Sequence[Any], *rest: Any) -> Any:
    """Over trailing dims: examples are more rows, unless each has weights of its own."""
    if not any(batch.has(w) for w in rest):
        return call(batch, batch.below(x), shape, *batch.below(rest))
    plain = dict.fromkeys(("weight", "bias"), None)
    given = dict(zip((a.name for a in batch.op.schema.args[2:]), rest, strict=True))
    result = getattr(ops, batch.op.name)(x, shape, **{**given, **{k: v for k, v in plain.items() if k in given}})
    if given["weight"] is not None:
        result = ops.mul(result, given["weight"])
    return batch.results(result if given.get("bias") is None else ops.add(result, given["bias"]))


@rule("group_norm")
def _group_norm(batch: Batch, x: Any, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    if batch.has(weight) or batch.has(bias):
        lowering = batch.op.lowering
        return batch.results(lowering.fn(x, groups, weight, bias, eps)) if isinstance(lowering, Decompose) else NotImplemented
    folded = call(batch, _fold(batch.below(x)), groups, batch.below(weight), batch.below(bias), eps)
    return ops.unflatten(folded, 0, (batch.size, x.shape[0]))


@rule(
    "binary_cross_entropy", "binary_cross_entropy_with_logits", "huber_loss", "kl_div", "l1_loss", "mse_loss",
    "poisson_nll_loss", "smooth_l1_loss", "soft_margin_loss",
)  # fmt: skip
def _pointwise_loss(batch: Batch, *args: Any) -> Any:
    """Elementwise first, then each example's own mean or sum."""
    at = batch.op.schema.positions["reduction"]
    reduction, rank = args[at], rank_of(*args)
    values = [batch.spread(a, rank) if hasattr(a, "dtype") else a for a in args]
    values[at] = "none"
    each = call(batch, *values)
    dims = tuple(range(1, len(each.shape)))
    if reduction == "none" or not dims:
        return each
    if reduction == "batchmean":
        return ops.div(ops.sum(each, dims), args[0].shape[0])
    return ops.mean(each, dims) if reduction == "mean" else ops.sum(each, dims)
