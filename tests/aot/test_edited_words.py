"""Programs that edit what was saved for their backward: torch's error, word for word, on our tape and compiled."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import tinycompile

pytestmark = pytest.mark.cpu
Program = Callable[[Any, Any], Any]
PROGRAMS: dict[str, Program] = {}


def program(fn: Program) -> Program:
    """It takes a leaf and a tensor that was made of it, of four elements each."""
    PROGRAMS[fn.__name__] = fn
    return fn


@program
def saved_result(w: Any, x: Any) -> Any:
    y = w.exp()
    y.add_(1)
    return y.sum()


@program
def saved_result_used(w: Any, x: Any) -> Any:
    y = w.exp()
    z = y * 2
    y.add_(1)
    y.mul_(2)
    return z + y


@program
def both(w: Any, x: Any) -> Any:
    x = w.exp()
    y = x.sin()
    x.mul_(3)
    return y


@program
def view_saved(w: Any, x: Any) -> Any:
    x = w * 2
    v = x[1:]
    y = v.sin()
    x.add_(1)
    return y


@program
def leaf_no_grad(w: Any, x: Any) -> Any:
    y = w.sin()
    with torch.no_grad():
        w.add_(1)
    return y


@program
def const(w: Any, x: Any) -> Any:
    c = torch.ones(4)
    y = w * c
    c.add_(1)
    return y


@program
def under_no_grad(w: Any, x: Any) -> Any:
    x = w * 2
    y = x.sin()
    with torch.no_grad():
        x.add_(1)
    return y


@program
def detach(w: Any, x: Any) -> Any:
    x = w * 2
    y = x.sin()
    x.detach().add_(1)
    return y


@program
def softmax(w: Any, x: Any) -> Any:
    y = w.softmax(0)
    z = y * 1
    y.add_(1)
    return z


@program
def layer_norm(w: Any, x: Any) -> Any:
    x = w * 2
    y = F.layer_norm(x, (4,))
    x.add_(1)
    return y


@program
def mx(w: Any, x: Any) -> Any:
    x = w * 2
    v, i = x.max(0)
    y = v.sin()
    v.add_(1)
    return y


@program
def chain(w: Any, x: Any) -> Any:
    y = w.sigmoid().tanh()
    z = y + 1
    y *= 2
    return z


@program
def out(w: Any, x: Any) -> Any:
    c = torch.empty(4)
    torch.add(torch.ones(4), 1, out=c)
    y = w * c
    torch.add(c, 1, out=c)
    return y


@program
def given(w: Any, x: Any) -> Any:
    y = x.sin()
    x.add_(1)
    return y


@program
def given_mul(w: Any, x: Any) -> Any:
    y = x.exp() * x
    x.mul_(2)
    return y


@program
def given_no_grad(w: Any, x: Any) -> Any:
    y = x.sin()
    with torch.no_grad():
        x.add_(1)
    return y


@program
def given_part(w: Any, x: Any) -> Any:
    y = x.sin()
    x[0] = 1
    return y


@program
def two_spoiled(w: Any, x: Any) -> Any:
    a = x.exp()
    b = a.sin()
    c = b.tanh()
    a.add_(1)
    c.mul_(2)
    return c


@program
def mul_both(w: Any, x: Any) -> Any:
    a = x * 2
    b = w * 2
    c = a * b
    b.add_(1)
    a.add_(1)
    return c


@program
def half(w: Any, x: Any) -> Any:
    a = (x * 2).half()
    b = a.sin()
    a.add_(1)
    return b.float()


@program
def matmul(w: Any, x: Any) -> Any:
    a = x.reshape(2, 2) * 2
    b = a @ a
    a.add_(1)
    return b


@program
def mul_self(w: Any, x: Any) -> Any:
    a = x * 2
    a.mul_(a)
    return a


@program
def several_view(w: Any, x: Any) -> Any:
    z = x * 2
    a, b = z.split(2)
    y = a.view(2, 1).sin()
    z.add_(1)
    return y


@program
def bn(w: Any, x: Any) -> Any:
    a = (x * 2).reshape(1, 2, 2)
    m = F.batch_norm(a, None, None, w[:2], w[:2], True)
    a.add_(1)
    return m


@program
def a_view_of_one_of_several(w: Any, x: Any) -> Any:
    z = x * 2
    a, _ = z.split(2)
    y = a.view(2, 1).sin()
    z.add_(1)
    return y


@program
def one_of_several(w: Any, x: Any) -> Any:
    z = x * 2
    a, _ = z.reshape(2, 2).unbind(0)
    y = a.sin()
    z.add_(1)
    return y


@program
def one_of_several_used_later(w: Any, x: Any) -> Any:
    z = x * 2
    a, _ = z.chunk(2)
    z.add_(1)
    return a * 2


# What a program does to a tensor of four elements that a sine has saved; ``w`` is a leaf of as many.
WRITES: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda z, w: z.add_(1),
    "mul": lambda z, w: z.mul_(3),
    "sub": lambda z, w: operator.isub(z, w),
    "div": lambda z, w: z.div_(2),
    "pow": lambda z, w: z.pow_(2),
    "neg": lambda z, w: z.neg_(),
    "sigmoid": lambda z, w: z.sigmoid_(),
    "relu": lambda z, w: z.relu_(),
    "clamp": lambda z, w: z.clamp_(0, 1),
    "clamp_min": lambda z, w: z.clamp_min_(0),
    "lerp": lambda z, w: z.lerp_(w, 0.5),
    "addcmul": lambda z, w: z.addcmul_(w, w),
    "addcdiv": lambda z, w: z.addcdiv_(w, w + 1),
    "copy": lambda z, w: z.copy_(w),
    "copy_a_constant": lambda z, w: z.copy_(torch.zeros(4)),
    "copy_what_was_chosen": lambda z, w: z.copy_(torch.where(z > 1, z, w)),
    "zero": lambda z, w: z.zero_(),
    "fill": lambda z, w: z.fill_(3.0),
    "cumsum": lambda z, w: z.cumsum_(0),
    "scatter": lambda z, w: z.scatter_(0, torch.tensor([1]), w),
    "index_add": lambda z, w: z.index_add_(0, torch.tensor([0]), torch.ones(1)),
    "masked_fill": lambda z, w: z.masked_fill_(z > 0, 0),
    "a_mask": lambda z, w: operator.setitem(z, z > 0, 0),
    "places": lambda z, w: operator.setitem(z, torch.tensor([0, 1]), 0),
    "an_item": lambda z, w: operator.setitem(z, 0, 1),
    "a_view": lambda z, w: z[0].add_(1),
    "functional_relu": lambda z, w: F.relu(z, inplace=True),
    "leaky_relu": lambda z, w: F.leaky_relu(z, 0.1, True),
    "elu": lambda z, w: F.elu(z, 1.0, True),
    "silu": lambda z, w: F.silu(z, True),
}


def written(write: Callable[[Any, Any], Any]) -> Program:
    def fn(w: Any, x: Any) -> Any:
        z = x * 2
        y = z.sin()
        write(z, w)
        return y

    return fn


SPECIAL = list(PROGRAMS)
PROGRAMS |= {name: written(write) for name, write in WRITES.items()}


def leaf(ours: bool) -> Any:
    torch.manual_seed(0)
    values = torch.rand(4)
    return (tinycompile.from_torch(values) if ours else values).requires_grad_()


def said(fn: Program, ours: bool = False, written_before: bool = False) -> str:
    w = leaf(ours)
    x = w * 1
    if written_before:
        x.add_(0)
        x.mul_(1)
    with pytest.raises(RuntimeError) as told:
        fn(w, x).sum().backward()
    return str(told.value)


@pytest.mark.parametrize("name", PROGRAMS)
def test_on_our_tape(name: str) -> None:
    fn = PROGRAMS[name]
    assert said(fn, ours=True) == said(fn)


@pytest.mark.parametrize("ours", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_compiled(name: str, ours: bool) -> None:
    fn = PROGRAMS[name]
    assert said(tinycompile.compile(fn), ours) == said(fn)


@pytest.mark.parametrize("name", [n for n in PROGRAMS if n.startswith("given")])
def test_versions_from_before(name: str) -> None:
    fn = PROGRAMS[name]
    assert said(tinycompile.compile(fn), written_before=True) == said(fn, written_before=True)
    assert said(fn, ours=True, written_before=True) == said(fn, written_before=True)


@pytest.mark.parametrize("name", SPECIAL)
def test_op_by_op(name: str) -> None:
    fn = PROGRAMS[name]
    assert said(tinycompile.compile(fn, backend="eager")) == said(fn)


@pytest.mark.parametrize("name", SPECIAL)
def test_a_whole_step(name: str) -> None:
    def step(w: Any, x: Any) -> Any:
        PROGRAMS[name](w, x).sum().backward()
        return w

    with pytest.raises(RuntimeError) as told:
        w = leaf(False)
        tinycompile.compile(step)(w, w * 1)
    assert str(told.value) == said(PROGRAMS[name])


def edit_its_result(fn: Any, x: Any) -> Any:
    result = fn(x)
    result.mul_(2)
    return result


def edit_what_another_result_was_made_of(fn: Any, x: Any) -> Any:
    first, second = fn(x)
    first.mul_(2)
    return second, first


def edit_a_part(fn: Any, x: Any) -> Any:
    result = fn(x)
    result[0] = 1
    return result


def edit_what_was_given(fn: Any, x: Any) -> Any:
    result = fn(x)
    x.mul_(2)
    return result


def exp_and_its_sine(x: Any) -> Any:
    first = x.exp()
    return first, first.sin()


OUTSIDE = [
    (lambda x: x.exp(), edit_its_result), (lambda x: x.softmax(0), edit_its_result), (torch.tanh, edit_a_part),
    (exp_and_its_sine, edit_what_another_result_was_made_of), (torch.sin, edit_what_was_given), (lambda x: x * x.cos(), edit_what_was_given),
]  # fmt: skip


@pytest.mark.parametrize("backend", [None, "eager"])
@pytest.mark.parametrize(("fn", "edit"), OUTSIDE)
def test_edits_of_the_caller(fn: Any, edit: Any, backend: Any) -> None:
    def told(fn: Any) -> str:
        x = leaf(False) * 1
        result = edit(fn, x)
        with pytest.raises(RuntimeError) as caught:
            (result if isinstance(result, torch.Tensor) else result[0]).sum().backward()
        return str(caught.value)

    assert told(tinycompile.compile(fn, backend=backend)) == told(fn)
