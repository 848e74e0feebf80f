"""How derivative formulas are stated: they are attached to the records by name, family by family, in ``gradients_*.py``.

A formula is written with ``ops`` and with tensors' operators (which are ops too), so that it runs eagerly, is traced on fakes
with symbolic sizes, and can be differentiated again. What it does not save it sees as metadata alone (anything with
``shape``, ``dtype`` and ``device``). Half types are widened where a formula takes several steps, and rounded once at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from tinycompile.base.meta import TensorMeta
from tinycompile.ops import families  # noqa: F401  formulas attach to its records
from tinycompile.ops import meta_rules as rules
from tinycompile.ops.calls import cast, ops, positions, widen  # noqa: F401  positions: for the formulas
from tinycompile.ops.record import CUSTOM, OPS, Decompose, Op, Vjp, read_for

Gradients = Sequence[Any]
VjpFn = Callable[[Sequence[Any], Sequence[Any], Sequence[Any], Sequence[Any]], Gradients]

_POLYNOMIALS = (
    *(f"{shifted}chebyshev_polynomial_{kind}" for shifted in ("", "shifted_") for kind in "tuvw"),
    *("hermite_polynomial_h", "hermite_polynomial_he", "laguerre_polynomial_l", "legendre_polynomial_p"),
)
_BESSEL = (
    *(f"{scaled}modified_bessel_{kind}" for scaled in ("", "scaled_") for kind in ("k0", "k1")),
    *("modified_bessel_i0", "modified_bessel_i1", "bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1"),
    *("spherical_bessel_j0", "airy_ai"),
)
CUT = frozenset(
    (
        *("detach", "zeros_like", "ones_like", "full_like", "new_full", "empty_like", "rand_like", "randn_like"),
        *(f"special_{name}" for name in _BESSEL),
        *(f"torch.special.{name}" for name in _POLYNOMIALS),
        *("torch.histc", "torch.Tensor.histc"),
    )
)
"""Ops, and torch's functions by path, whose results never require grad, whatever their inputs: they read shapes only, cut the
tape, or are taken by torch for functions without a derivative."""

_COMPARED = {
    "hinge_embedding_loss": 1,
    "torch.hinge_embedding_loss": 1,
    "cosine_embedding_loss": 2,
    "torch.cosine_embedding_loss": 2,
}


def compared(name: str, args: Sequence[Any]) -> Any:
    """The tensor among the arguments of an op, or of torch's function of this path, whose values are compared and no more: no
    gradient leads to it."""
    at = _COMPARED.get(name)
    return None if at is None or at >= len(args) else args[at]


_REFUSED: dict[str, tuple[str, ...]] = {
    "batch_norm": ("running_mean", "running_var"),
    "binary_cross_entropy": ("weight",),
    "binary_cross_entropy_with_logits": ("weight", "pos_weight"),
    "cross_entropy": ("weight",),
    "multi_margin_loss": ("weight",),
    "nll_loss": ("weight",),
    "soft_margin_loss": ("target",),
}


def refused(op: Op, args: Sequence[Any]) -> tuple[Any, ...]:
    """The tensors among the arguments that torch refuses to differentiate: it raises an error where one requires grad. (Of a
    target that gives probabilities, cross entropy is arithmetic, and so differentiable in the weight.)"""
    if op.name not in _REFUSED or (op.name == "cross_entropy" and args[1].dtype.is_floating_point):
        return ()
    found = (args[op.schema.positions[name]] for name in _REFUSED[op.name])
    return tuple(a for a in found if a is not None)


def may_refuse(op: Op, needs: Sequence[Any]) -> bool:
    """Whether one of those that need a gradient may be such a tensor. ``needs``: by argument."""
    return any(needs[op.schema.positions[name]] for name in _REFUSED.get(op.name, ()))


FORMS: dict[str, Callable[..., Any]] = {}
"""Ops that are differentiated through other ops than themselves: ``dropout`` through ``native_dropout``, which also gives the
mask. Called with the op's arguments; the results are the op's. An op that has a formula too is differentiated by that in
compiled code: it keeps other values than torch does, which our tape is not to do."""


def vjp(name: str, *saves: str) -> Callable[[VjpFn], VjpFn]:
    """Attach a formula to a record; ``saves`` as in :class:`~tinycompile.ops.record.Vjp`."""

    def attach(fn: VjpFn) -> VjpFn:
        op = OPS[name]
        known = {*(a.name for a in op.schema.args), "others", "result", *(f"result{i}" for i in range(len(op.schema.returns)))}
        if op.vjp is not None or not known.issuperset(part for s in saves for part in s.split("?")):
            raise ValueError(f"{name}: a second formula, or it saves what the op does not have: {saves}")
        OPS[name] = replace(op, vjp=Vjp(fn, saves))
        return fn

    return attach


class Kept(NamedTuple):
    """What torch's node of an op keeps, in the words of ``Vjp.saves``, in the calls for which ``when(*args)`` holds. ``more``:
    and what its forward computed beside, as which elements were the largest."""

    saves: tuple[str, ...]
    when: Callable[..., bool]
    more: bool


KEPT: dict[str, tuple[Kept, ...]] = {}
"""Ops that are differentiated through others, or keep something in some calls alone: an edit of what torch keeps is its error
whether or not anything here reads it."""


def keeps(name: str, *saves: str, when: Callable[..., bool] = lambda *args: True, more: bool = False) -> None:
    """State what torch keeps for the gradient of an op: fields of :class:`Kept`. What is stated first goes."""
    KEPT[name] = (*KEPT.get(name, ()), Kept(saves, when, more))


def kept_for(op: Op, args: Sequence[Any]) -> Kept | None:
    """What is stated of a call; None where that is nothing."""
    return next((kept for kept in KEPT.get(op.name, ()) if kept.when(*args)), None)


VARIES: dict[str, Callable[..., tuple[str, ...] | bool]] = {}
"""Of ops that have a formula, or something stated above: what torch keeps in some calls instead. True: nobody knows but torch,
as it copies some arguments by their layout."""


def stated(op: Op, args: Sequence[Any], needs: Sequence[Any]) -> frozenset[str] | None:
    """What torch keeps for these gradients of a call, in the words of ``Vjp.saves``; None where no record tells. ``args``: with
    metadata for tensors."""
    varied = VARIES[op.name](*args) if op.name in VARIES else op.name in CUSTOM
    if isinstance(varied, tuple):
        return read_for(varied, op.schema, needs)
    if varied:
        return None
    if op.name in KEPT:
        known = kept_for(op, args)
        return frozenset() if known is None else read_for(known.saves, op.schema, needs)
    return None if op.vjp is None else op.vjp.reads(op.schema, needs)


def keeps_arguments_alone(op: Op, args: Sequence[Any]) -> bool:
    """Whether torch keeps nothing for the gradient of a call that is differentiated through others but arguments of its own."""
    known = kept_for(op, args)
    return known is not None and not known.more and not any(name.startswith("result") for name in known.saves)


def has_plain_formula(op: Op) -> bool:
    """Whether our tape follows the op by its formula, and has no more to do."""
    return op.vjp is not None and not (op.name in CUT or op.name in KEPT or op.name in FORMS)


def form(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """State through which ops a record is differentiated."""

    def attach(fn: Callable[..., Any]) -> Callable[..., Any]:
        FORMS[name] = fn
        return fn

    return attach


def differentiable_form(op: Op) -> Callable[..., Any] | None:
    """What to run in the op's place when gradients are wanted: None for an op with a formula, and for one that has no gradient.
    The function may return NotImplemented: then only torch can differentiate the call."""
    if op.vjp is not None:
        return None
    return FORMS.get(op.name) or (op.lowering.fn if isinstance(op.lowering, Decompose) else None)


def one_input(name: str, saved: str, slope: Callable[..., Any], *kept: str) -> None:
    """Formula of a pointwise op of one tensor: ``slope(g, v, *attrs)`` in opmath dtypes, where ``v`` is the input or the result
    (``saved``: "self", "result", or "" for neither) and ``attrs`` are the call's other arguments. ``kept``: what torch's
    formula reads beside."""

    def fn(grads: Sequence[Any], args: Sequence[Any], results: Sequence[Any], needs: Sequence[Any]) -> Gradients:
        values = () if not saved else (widen(results[0] if saved == "result" else args[0]),)
        return (cast(slope(widen(grads[0]), *values, *args[1:]), args[0].dtype), *(None for _ in args[1:]))

    vjp(name, *([saved] if saved else []), *kept)(fn)


def several_inputs(name: str, saves: Sequence[str], *slopes: Callable[..., Any]) -> None:
    """Formula of a pointwise op of several tensors or numbers: one ``slope(g, *args)`` an input, all in opmath dtypes."""

    def fn(grads: Sequence[Any], args: Sequence[Any], results: Sequence[Any], needs: Sequence[Any]) -> Gradients:
        g = widen(grads[0])
        values = [wide(a) for a in args]
        found = [
            sum_to(slope(g, *values), a) if need else None
            for slope, a, need in zip(slopes, args[: len(slopes)], needs[: len(slopes)], strict=True)
        ]
        return (*found, *(None for _ in args[len(slopes) :]))

    vjp(name, *saves)(fn)


def as_it_was(x: Any) -> Any:
    """A value as it was when the forward ran: for what torch's forward keeps beside arguments and results. (What is computed of
    arguments is, in compiled code, of what they are by then: the program may have written to them.)"""
    ask = getattr(type(x), "as_it_was", None)
    return x if ask is None else ask(x)


def wide(x: Any) -> Any:
    """``widen`` that lets numbers be, and tensors of which the metadata alone is known."""
    return widen(x) if hasattr(x, "dtype") and not isinstance(x, TensorMeta) else x


def stored(v: Any, dtype: Any) -> Any:
    """Rounded to ``dtype``, as ATen keeps a step of a formula in a tensor, in which half types overflow."""
    return cast(cast(v, dtype), v.dtype)


def sum_to(grad: Any, like: Any, factor: Any = 1) -> Any:
    """Undo broadcasting and promotion: ``grad`` summed to the shape, and cast to the dtype, of ``like``. The number ``factor``
    comes after the sum, whose terms it would only round (and whose zero it would give a sign)."""
    lead = len(grad.shape) - len(like.shape)
    grown = [lead + d for d, size in enumerate(like.shape) if rules.is_one(size) and not rules.is_one(grad.shape[lead + d])]
    if not lead and not grown:
        return cast(times(grad, factor), like.dtype)
    grad = ops.sum(grad if is_one(factor) else widen(grad), (*range(lead), *grown), True)
    if not is_one(factor):
        grad = ops.add(ops.mul(grad, factor), 0.0)
    return cast(ops.reshape(grad, tuple(like.shape)) if lead else grad, like.dtype)


def is_one(factor: Any) -> bool:
    """Whether a factor is the number 1."""
    return isinstance(factor, (int, float)) and factor == 1


def times(g: Any, factor: Any) -> Any:
    """``g`` times a number: itself for 1."""
    return g if is_one(factor) else ops.mul(g, factor)


def zeros(like: Any) -> Any:
    """Zeros in the shape and dtype of ``like``."""
    return ops.full(tuple(like.shape), 0.0 if like.dtype.is_floating_point else 0, dtype=like.dtype, device=like.device)


def constant_op(name: str, *kept: str) -> None:
    """An op whose slope is zero wherever it is defined (``floor``): its gradient is zeros, as in torch, not undefined.
    ``kept``: what torch reads for these zeros."""

    def fn(grads: Sequence[Any], args: Sequence[Any], results: Sequence[Any], needs: Sequence[Any]) -> Gradients:
        return tuple(zeros(a) if need is True else None for a, need in zip(args, needs, strict=True))

    vjp(name, *kept)(fn)


def dims_of(dim: Any, rank: int) -> tuple[int, ...]:
    """The dims that a reduction goes over."""
    return tuple(rules.shapes.normalize_dims(dim, rank))


def kept(reduced: Any, x: Any, dim: Any, keepdim: bool) -> Any:
    """A reduction's result (or its gradient) with the reduced dims of ``x`` as size 1."""
    if keepdim or not len(x.shape):
        return reduced
    dims = dims_of(dim, len(x.shape))
    return ops.reshape(reduced, tuple(1 if d in dims else s for d, s in enumerate(x.shape)))


def count_of(x: Any, dims: Sequence[int]) -> Any:
    """How many elements of ``x`` a reduction over ``dims`` takes together."""
    return rules.shapes.numel(tuple(x.shape[d] for d in dims))
