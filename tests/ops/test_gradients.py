"""Every derivative formula on the samples of its record, in float64, against torch's autograd."""

from __future__ import annotations

import re
import warnings
from typing import Any

import pytest
import torch

import tinycompile.eager  # noqa: F401  fills the dispatcher
from tests.ops.materialize import arguments
from tinycompile.eager.backends import meta_of
from tinycompile.eager.tensor import Tensor, from_torch
from tinycompile.ops.record import OPS, Op, Sample, Vjp

pytestmark = pytest.mark.pure

_RANDOM = {"native_dropout"}  # values that random numbers decide


def doubles(value: Any) -> Any:
    """Floats as float64, so that differences of formulas are not lost in rounding."""
    if isinstance(value, torch.Tensor):
        return value.double() if value.is_floating_point() else value
    if isinstance(value, torch.dtype):
        return torch.float64 if value.is_floating_point else value
    return type(value)(doubles(v) for v in value) if isinstance(value, (tuple, list)) else value


def differentiable(value: Any) -> Any:
    """Leaves that require grad, in place of float tensors."""
    if isinstance(value, torch.Tensor):
        return (
            value.detach().clone(memory_format=torch.preserve_format).requires_grad_() if value.is_floating_point() else value
        )
    return tuple(differentiable(v) for v in value) if isinstance(value, (tuple, list)) else value


def ours(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return from_torch(value.detach())
    return tuple(ours(v) for v in value) if isinstance(value, (tuple, list)) else value


def flat(value: Any) -> list[Any]:
    return [x for v in value for x in flat(v)] if isinstance(value, (tuple, list)) else [value]


def needs_of(value: Any) -> Any:
    return (
        tuple(needs_of(v) for v in value)
        if isinstance(value, tuple)
        else isinstance(value, torch.Tensor) and value.requires_grad
    )


def bound(op: Op, sample: Sample) -> tuple[Any, ...]:
    """The sample's arguments in schema order; lists of ints as lists."""
    values = op.schema.bind(arguments(tuple(sample.args)), arguments(dict(sample.kwargs)))
    fixed = []
    for a, v in zip(op.schema.args, values, strict=True):
        wrap = a.is_list and a.base in ("int", "SymInt") and v is not None and not isinstance(v, (tuple, list))
        fixed.append((v,) if wrap else tuple(v) if isinstance(v, list) else v)
    return tuple(fixed)


def as_seen(
    op: Op, vjp: Vjp, needs: Any, args: tuple[Any, ...], results: tuple[Any, ...]
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """What a formula may look at: values of what it saves, metadata of the rest."""

    def metas(value: Any) -> Any:
        return meta_of(value) if isinstance(value, Tensor) else tuple(map(metas, value)) if isinstance(value, tuple) else value

    reads = vjp.reads(op.schema, needs)
    seen = [v if a.name in reads else metas(v) for a, v in zip(op.schema.args, args, strict=True)]
    names = ["result"] if len(results) == 1 else [f"result{i}" for i in range(len(results))]
    return tuple(seen), tuple(r if n in reads or "result" in reads else metas(r) for n, r in zip(names, results, strict=True))


def cases() -> list[Any]:
    """Samples that differ only in the float dtype are one in float64."""
    found = []
    for op in OPS.values():
        if op.vjp is not None and op.name not in _RANDOM:
            samples = {re.sub("b?float(16|32)", "float64", repr(s)): s for s in reversed(list(op.samples()))}
            found += [pytest.param(op, s, id=f"{op.name}-{i}") for i, s in enumerate(reversed(samples.values()))]
    return found


def assert_gradients_agree(mine: Any, theirs: torch.Tensor | None, like: torch.Tensor) -> None:
    if mine is None:
        assert theirs is None or not theirs.abs().sum()
        return
    assert (tuple(mine.shape), mine.dtype) == (tuple(like.shape), like.dtype)
    theirs = torch.zeros_like(like) if theirs is None else theirs
    torch.testing.assert_close(mine.torch(), theirs, rtol=1e-7, atol=1e-9, equal_nan=True)


@pytest.mark.parametrize("op, sample", cases())
def test_formula(op: Op, sample: Sample) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        args = differentiable(doubles(bound(op, sample)))
        try:
            results = op.eager(*args)
        except Exception:
            pytest.skip("the sample is an error")
        several = isinstance(results, tuple)
        results = results if several else (results,)
        leaves = [a for a in flat(args) if isinstance(a, torch.Tensor) and a.requires_grad]
        targets = [r for r in results if r.requires_grad]
        if not leaves or not targets:
            pytest.skip("nothing to differentiate")
        seeds = [torch.randn_like(r) if r.requires_grad else None for r in results]
        for given in alternatives(seeds):
            pairs = [(r, s) for r, s in zip(results, given, strict=True) if s is not None]
            try:
                outputs, tangents = zip(*pairs, strict=True)
                theirs = torch.autograd.grad(outputs, leaves, tangents, retain_graph=True, allow_unused=True)
            except RuntimeError as error:
                assert "invalid gradient" in str(error)
                pytest.skip("torch cannot differentiate the sample")
            grads = tuple(None if s is None else from_torch(s) for s in given)
            wanted = dict(zip(map(id, leaves), theirs, strict=True))
            for needs in combinations(needs_of(args)):
                check_formula(op, args, results, grads, needs, wanted)


def alternatives(seeds: list[torch.Tensor | None]) -> list[list[torch.Tensor | None]]:
    """A gradient for every result, and for each alone: those of the others are undefined then."""
    places = [i for i, s in enumerate(seeds) if s is not None]
    alone = [[s if i == at else None for i, s in enumerate(seeds)] for at in places]
    return [seeds, *alone] if len(places) > 1 else [seeds]


def combinations(needs: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """Every argument that wants a gradient, and each of them alone: what others save is not there then."""
    places = [i for i, n in enumerate(needs) if (any(n) if isinstance(n, tuple) else n)]
    none = tuple(tuple(False for _ in n) if isinstance(n, tuple) else False for n in needs)
    alone = [(*none[:i], needs[i], *none[i + 1 :]) for i in places]
    return [needs, *alone] if len(places) > 1 else [needs]


def check_formula(
    op: Op, args: tuple[Any, ...], results: tuple[Any, ...], grads: tuple[Any, ...], needs: tuple[Any, ...],
    wanted: dict[int, torch.Tensor | None],
) -> None:  # fmt: skip
    """The formula's gradients of the arguments that need one. ``wanted``: torch's, by id of the leaf."""
    assert op.vjp is not None
    args_seen, results_seen = as_seen(op, op.vjp, needs, ours(args), ours(results))
    mine = op.vjp.fn(grads, args_seen, results_seen, needs)
    assert len(mine) == len(args)
    for arg, grad, need in zip(args, mine, needs, strict=True):
        several = isinstance(arg, tuple)
        found = flat(grad) if several and grad is not None else [grad] * len(flat(arg))
        for a, g, n in zip(flat(arg), found, flat(need) if several else [need], strict=True):
            if n:
                assert_gradients_agree(g, wanted[id(a)], a)


@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
def test_dropout_formula(p: float) -> None:
    """By the mask that this call drew."""
    op, x = OPS["native_dropout"], torch.randn(5, 7, dtype=torch.float64, requires_grad=True)
    y, mask = op.eager(x, p, True)
    seed = torch.randn_like(y)
    wanted = dict(zip([id(x)], torch.autograd.grad(y, x, seed), strict=True))
    check_formula(op, (x, p, True), (y, mask), (from_torch(seed), None), (True, False, False), wanted)


INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize("dim", [None, 0, 1])
@pytest.mark.parametrize("row", [(NAN, 2, 3), (INF, 2, -3), (0, INF, 2), (0, 2, -3), (0, 0, -3), (-0.0, 0, NAN), (INF, NAN, 1)])
def test_products_of_what_is_no_plain_number(row: tuple[float, ...], dim: int | None) -> None:
    """NaN and the signs of zeros as torch's."""
    theirs = torch.tensor([row, (1.5, -2, 4)], requires_grad=True)
    mine = from_torch(theirs.detach().clone()).requires_grad_()
    for x in (theirs, mine):
        (x.prod() if dim is None else x.prod(dim)).sum().backward()
    torch.testing.assert_close(mine.grad.torch(), theirs.grad, equal_nan=True)
    zeros = theirs.grad == 0
    assert torch.equal(torch.signbit(mine.grad.torch()[zeros]), torch.signbit(theirs.grad[zeros]))


@pytest.mark.parametrize("weight", [0.0, -0.0, 0.5])
@pytest.mark.parametrize("seed", [1.0, -1.0])
def test_prelu_keeps_the_signs_of_zeros(weight: float, seed: float) -> None:
    found = []
    for wrap in (lambda t: t, from_torch):
        x = wrap(torch.tensor([-2.0, 0.0, -0.0, 3.0])).requires_grad_()
        w = wrap(torch.tensor(weight)).requires_grad_()
        torch.prelu(x, w).backward(wrap(torch.full((4,), seed)))
        found.append([torch.signbit(torch.as_tensor(t.grad)).tolist() for t in (x, w)])
    assert found[0] == found[1]


@pytest.mark.parametrize("order", [INF, -INF])
@pytest.mark.parametrize("row", [(NAN, 2, 3), (INF, 2, -INF), (0, 0, 0), (-3, 3, 1)])
def test_norms_of_an_extreme(row: tuple[float, ...], order: float) -> None:
    """Equal extremes share the gradient, and NaN is one."""
    theirs = torch.tensor([row, (1.5, -2, 4)], requires_grad=True)
    mine = from_torch(theirs.detach().clone()).requires_grad_()
    for x in (theirs, mine):
        torch.linalg.vector_norm(x, order, 1).sum().backward()
    torch.testing.assert_close(mine.grad.torch(), theirs.grad, equal_nan=True)


@pytest.mark.parametrize(
    "shapes", [((2, 3, 0), (0, 4)), ((2, 0, 3), (3, 0)), ((0, 2, 3), (3, 4)), ((0,), (0, 4)), ((2, 3, 0), (0,))]
)
def test_products_of_nothing(shapes: tuple[tuple[int, ...], ...]) -> None:
    theirs = [torch.randn(s, requires_grad=True) for s in shapes]
    mine = [from_torch(t.detach().clone()).requires_grad_() for t in theirs]
    for a, b in (theirs, mine):
        (a @ b).sum().backward()
    for m, t in zip(mine, theirs, strict=True):
        torch.testing.assert_close(m.grad.torch(), t.grad)


@pytest.mark.parametrize("shape", [(4, 5), (3, 5, 2), (5,)], ids=str)
@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_cross_entropy_with_soft_targets_has_a_gradient_of_the_weights(
    shape: tuple[int, ...], smoothing: float, reduction: str
) -> None:
    at = min(1, len(shape) - 1)
    plain = [torch.randn(shape), torch.softmax(torch.randn(shape), at), torch.rand(5) + 0.5]
    found = []
    for wrap in (lambda t: t, from_torch):
        inputs = [wrap(t.double()).requires_grad_() for t in plain]
        loss = torch.nn.functional.cross_entropy(*inputs, label_smoothing=smoothing, reduction=reduction)
        loss.sum().backward()
        found.append([torch.as_tensor(t.grad) for t in inputs])
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_ignored_rows_have_a_plain_zero(reduction: str) -> None:
    found = []
    for wrap in (lambda t: t, from_torch):
        x = wrap(torch.zeros(2, 3)).requires_grad_()
        torch.nn.functional.nll_loss(x, wrap(torch.tensor([0, 1])), ignore_index=0, reduction=reduction).sum().backward()
        found.append(torch.signbit(torch.as_tensor(x.grad)).tolist())
    assert found[0] == found[1]


def test_the_gradient_of_tanh_gelu_does_not_cancel() -> None:
    x = torch.linspace(2, 9, 500)
    mine, wide = from_torch(x.clone()).requires_grad_(), x.double().requires_grad_()
    for t in (mine, wide):
        torch.nn.functional.gelu(t, approximate="tanh").sum().backward()
    assert (mine.grad.torch().double() - wide.grad).abs().max() < 2e-7


@pytest.mark.parametrize("exponent", ["int8", "uint8", "int32", "int64", "float16", "float32"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_ldexps_powers_are_of_the_exponents_dtype(exponent: str, dtype: str) -> None:
    """As torch's formula has them: 0 below 0 and beyond the width of integers, infinite beyond half's range."""
    found = []
    for wrap in (lambda t: t, from_torch):
        x = wrap((torch.arange(1.0, 13.0).reshape(2, 6) / 7).to(getattr(torch, dtype))).requires_grad_()
        n = wrap(torch.tensor([-2, 0, 1, 7, 31, 70]).to(getattr(torch, exponent)))
        leaves = (x, n.requires_grad_()) if n.is_floating_point() else (x,)
        y = torch.ldexp(x, n)
        firsts = torch.autograd.grad((y * y).sum(), leaves, create_graph=True)
        again = torch.autograd.grad(firsts[0].sum(), leaves) if len(leaves) == 2 else ()
        found.append([torch.as_tensor(t.detach().tolist()) for t in (*firsts, *again)])
    rough = dtype == "bfloat16" or exponent == "float16"
    torch.testing.assert_close(found[1], found[0], rtol=1e-2 if rough else 1e-6, atol=0, equal_nan=True)


@pytest.mark.parametrize("fn", [torch.nansum, torch.nanmean])
@pytest.mark.parametrize("seed", [2.0, float("inf"), float("nan")])
@pytest.mark.parametrize("dim", [None, 1])
def test_nans_get_the_gradient_times_zero(fn: Any, seed: float, dim: int | None) -> None:
    found = []
    for wrap in (lambda t: t, from_torch):
        x = wrap(torch.tensor([[float("nan"), 1.0, float("inf")], [2.0, float("nan"), -1.0]])).requires_grad_()
        y = fn(x, dim)
        y.backward(wrap(torch.full(tuple(y.shape), seed)))
        found.append(torch.as_tensor(x.grad.tolist()))
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=1e-6, equal_nan=True)
