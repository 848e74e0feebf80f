"""Every op record behind a graph break: an edit of an argument by way of ``.data``, of which torch notices nothing, changes the
gradients just as it does in eager, which reads what it has saved as that is by then."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import tinycompile
from tests.lower.support import bind_sample, to_double
from tinycompile.ops.record import OPS, Op, Sample

pytestmark = [pytest.mark.cpu, pytest.mark.filterwarnings("ignore")]
SAMPLES = 3


def mapped(arg: Any, fn: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(arg, Tensor):
        return fn(arg)
    return tuple(mapped(a, fn) for a in arg) if isinstance(arg, tuple) else arg


def tensors_in(arg: Any) -> Iterator[Tensor]:
    if isinstance(arg, Tensor):
        yield arg
    elif isinstance(arg, tuple):
        for a in arg:
            yield from tensors_in(a)


def leaf(t: Tensor) -> Tensor:
    return t.detach().clone(memory_format=torch.preserve_format).requires_grad_(t.is_floating_point())


def halve(t: Tensor) -> None:
    """Half of what is in a domain is in it, too; a place or a class becomes the first."""
    if t.is_floating_point():
        t.mul_(0.5)
    else:
        t.logical_not_() if t.dtype == torch.bool else t.zero_()


def turn(t: Tensor) -> None:
    """The same values at other places."""
    t.copy_(t.detach().clone().reshape(-1).roll(1).reshape(t.shape))


def gradients(fn: Callable[..., Any], args: tuple[Any, ...], edited: int | None, edit: Callable[[Tensor], None]) -> Any:
    """The gradients of the arguments when one was edited before the backward; None where nothing has a gradient."""
    torch.manual_seed(0)
    given = mapped(args, leaf)
    tensors = list(tensors_in(given))
    made = fn(*given)
    results = [r for r in tensors_in(tuple(made) if isinstance(made, list) else made) if r.requires_grad]
    if not results:
        return None
    seeds = [torch.randn(r.shape, dtype=r.dtype) for r in results]
    if edited is not None:
        edit(tensors[edited].data)
    leaves = [t for t in tensors if t.requires_grad]
    found = torch.autograd.grad(results, leaves, seeds, allow_unused=True)
    return [torch.zeros_like(t) if g is None else g for t, g in zip(leaves, found, strict=True)]


def samples_of(op: Op) -> Iterator[tuple[Any, ...]]:
    """Arguments in float64, from samples that differ in more than the dtype of floats."""
    seen = set[str]()
    for sample in op.samples():
        key = re.sub("b?float(16|32)", "float64", repr(sample))
        args = None if key in seen or "special" in key else bound(op, sample)
        seen.add(key)
        if args is not None and len(seen) <= SAMPLES:
            yield args


def bound(op: Op, sample: Sample) -> Any:
    """None for what torch refuses or does not differentiate."""
    torch.manual_seed(0)
    args = to_double(bind_sample(op, sample))
    tensors = list(tensors_in(args))
    if any(t.is_complex() or not t.numel() for t in tensors) or not any(t.is_floating_point() for t in tensors):
        return None
    try:
        return None if gradients(op.eager, args, None, turn) is None else args
    except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError):
        return None


def behind_a_break(op: Op) -> Callable[..., Any]:
    def fn(*args: Any) -> Any:
        made = op.eager(*args)
        tinycompile.graph_break()
        return made

    return fn


@pytest.mark.parametrize("name", sorted(OPS))
def test_gradients_of_what_is_there_by_then(name: str) -> None:
    op = OPS[name]
    compiled = tinycompile.compile(behind_a_break(op), backend="aot_eager")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for args in samples_of(op):
            for at in range(len(list(tensors_in(args)))):
                for edit in (halve, turn):
                    found, expected = (gradients(fn, args, at, edit) for fn in (compiled, op.eager))
                    torch.testing.assert_close(
                        found, expected, rtol=1e-6, atol=1e-8, equal_nan=True, check_stride=False,
                        msg=lambda text, at=at, edit=edit, args=args: f"{edit.__name__} of argument {at} of {args}: {text}",
                    )  # fmt: skip


# One input that several ops read: each as torch keeps it.
TOGETHER: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "a_quotient_of_both": lambda x, w: x / w,
    "a_number_over": lambda x, w: 2 / x + w / x,
    "a_mean_beside_a_variance": lambda x, w: x.mean(-1) * w.mean(-1) + x.var(-1),
    "a_loss_beside_a_square": lambda x, w: torch.nn.functional.cross_entropy(x, x.argmax(-1)) + x * x * w,
    "of_what_was_computed": lambda x, w: (x * 2) / (w + 1) + x / w,
    "through_views": lambda x, w: x.t() / w.t() + torch.nn.functional.layer_norm(x.view(3, 2).t().contiguous(), (3,), w[0]).t(),
    "a_view_too": lambda x, w: torch.nn.functional.glu(x.t(), 1) * w[:1].t(),
    "halves": lambda x, w: x.bfloat16() / w.bfloat16(),
    "of_halves": lambda x, w: (torch.nn.functional.softsign(x) * w.sum()) / torch.nn.functional.softplus(w),
}


@pytest.mark.parametrize("backend", ["aot_eager", None])
@pytest.mark.parametrize("name", TOGETHER)
def test_several_read_one_input(name: str, backend: str | None) -> None:
    program = TOGETHER[name]

    def fn(x: Tensor, w: Tensor) -> Tensor:
        made = program(x, w)
        tinycompile.graph_break()
        return made

    args = torch.arange(1.0, 7).view(2, 3).double().div(3), torch.arange(2.0, 8).view(2, 3).double().div(5).flip(0)
    compiled = tinycompile.compile(fn, backend=backend)
    for at in (None, 0, 1):
        for edit in (halve, turn):
            found, expected = (gradients(f, args, at, edit) for f in (compiled, fn))
            torch.testing.assert_close(found, expected, rtol=2e-2 if name == "halves" else 1e-7, atol=1e-9)


@pytest.mark.parametrize("backend", ["aot_eager", None])
def test_a_number_over_an_input_keeps_the_reciprocal(backend: str | None) -> None:
    """So an edit of the input that torch counts is no error."""

    def fn(x: Tensor) -> Tensor:
        made = 3 / x
        tinycompile.graph_break()
        return made

    found = []
    for call in (fn, tinycompile.compile(fn, backend=backend)):
        x = torch.tensor([2.0, 4.0], requires_grad=True)
        made = call(x)
        with torch.no_grad():
            x.add_(1)
        found.append(torch.autograd.grad(made.sum(), x)[0])
    torch.testing.assert_close(found[1], found[0])
