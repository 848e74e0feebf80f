"""What can't be captured breaks with its registry id at the user's line, and nothing is lost. PYTEST_DONT_REWRITE"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tinycompile.capture.breaks import KINDS
from tinycompile.capture.frame import capture

pytestmark = pytest.mark.pure
CASES: list[tuple[str, Callable[..., Any], Callable[[], tuple[Any, ...]]]] = []
GLOBAL = 0


def breaks(kind: str, args: Callable[[], tuple[Any, ...]] = lambda: (torch.ones(4),)) -> Callable[..., Any]:
    def register(fn: Callable[..., Any]) -> Callable[..., Any]:
        CASES.append((kind, fn, args))
        return fn

    return register


@breaks("data-dependent")
def branch_on_tensor(x):
    if x.sum() > 0:
        return x
    return -x


@breaks("data-dependent")
def item(x):
    return x.sum().item() + 1


@breaks("data-dependent")
def python_float(x):
    return float(x.sum())


@breaks("data-dependent")
def boolean_mask(x):
    return x[x > 0]


@breaks("data-dependent")
def formatted_tensor(x):
    return f"{x.sum()}"


@breaks("data-dependent")
def nonzero(x):
    return torch.nonzero(x)


@breaks("print")
def printing(x):
    print("hello")
    return x


@breaks("input-mutation", lambda: (torch.ones(4, requires_grad=True),))
def leaf_with_a_gradient_in_place(x):
    x += 1
    return x


@breaks("input-mutation", lambda: (lambda t: (t, t[1:]))(torch.ones(4)))
def overlapping_inputs(x, y):
    x.mul_(2)
    return y + 1


@breaks("input-mutation", lambda: (torch.ones(1).expand(4),))
def expanded_input(x):
    x.mul_(2)
    return x


@breaks("input-mutation")
def written_with_what_overlaps_it(x):
    x[1:] += x[:-1]
    return x


@breaks("input-mutation", lambda: (torch.ones(4, requires_grad=True).clone(),))
def one_of_several_views_in_place(x):
    x.chunk(2)[0].add_(1)
    return x


@breaks("input-mutation", lambda: (torch.ones(4, requires_grad=True).clone(),))
def view_made_without_gradients_in_place(x):
    with torch.no_grad():
        v = x[:2]
    v.mul_(2)
    return x


@breaks("input-mutation")
def base_of_an_unknown_view(x):
    y = x * 2
    v = y.as_strided((2,), (2,))
    y.add_(1)
    return y, v


@breaks("input-mutation")
def out_argument_of_another_shape(x):
    y = torch.empty(3)
    return torch.add(x, 1, out=y)


@breaks("side-effect")
def deleted_global(x):
    global GLOBAL
    GLOBAL = 1
    del GLOBAL
    return x


@breaks("side-effect")
def attribute_of_a_tensor(x):
    x.note = None
    return x


class Counted:
    def __del__(self):
        pass


@breaks("random")
def random_state(x):
    return x + torch.get_rng_state()[0]


@breaks("try-block")
def tensor_op_in_try(x):
    try:
        y = x + 1
    except RuntimeError:
        y = x
    return y


@breaks("try-block")
def tensor_op_in_finally(x):
    try:
        return x + 1
    finally:
        len("a")


@breaks("user-exception")
def raises(x):
    raise ValueError("mine")


@breaks("user-exception")
def failing_assert(x):
    assert x.shape[0] == 5
    return x


@breaks("user-exception")
def shape_error(x):
    return x + torch.ones(3)


@breaks("user-exception")
def python_error(x):
    return x + [1, 2][x.ndim + 5]


@breaks("user-exception")
def missing_attribute(x):
    return x.nonsense


@breaks("user-exception")
def wrong_call(x):
    return (lambda a: a)(x, x)


@breaks("generator")
def generator(x):
    yield x


@breaks("generator")
async def coroutine(x):
    return x


@breaks("unknown-function")
def unknown_function(x):
    import time

    return x + time.perf_counter()


@breaks("reconstruct")
def returns_iterator(x):
    return iter([x])


@breaks("tensor-kind", lambda: (torch.ones(3).to_sparse(),))
def sparse(x):
    return x + x


class Sub(torch.Tensor):
    pass


@breaks("tensor-kind", lambda: (torch.ones(3).as_subclass(Sub),))
def subclass(x):
    return x + 1


@breaks("tensor-kind", lambda: (torch.ones(3, dtype=torch.complex64).conj(),))
def conjugate(x):
    return x + 1


def _hooked():
    m = nn.Linear(4, 4)
    m.register_full_backward_hook(lambda *a: None)
    return m


@breaks("hooks", lambda: (_hooked(), torch.ones(4)))
def hooks(m, x):
    return m(x)


@breaks("input-mutation", lambda: (nn.InstanceNorm1d(4, track_running_stats=True), torch.ones(3, 4, 5)))
def instance_norm_in_training(m, x):
    return m(x)


@breaks("mode")
def inference_mode_inside(x):
    with torch.inference_mode():
        return x @ x


@breaks("unsupported-value")
def object_with_a_finalizer(x):
    Counted()
    return x


@pytest.mark.parametrize(("kind", "fn", "args"), CASES, ids=[fn.__name__ for _, fn, _ in CASES])
def test_break(kind, fn, args):
    captured = capture(fn, args(), {})
    assert captured.graph is None
    (b,) = captured.breaks
    assert b.id == kind, str(b)
    assert b.file == __file__ and b.line >= fn.__code__.co_firstlineno
    assert b.hint and kind in str(b) and "test_breaks.py" in str(b)
    assert captured.user_exception == (kind == "user-exception")
    assert isinstance(captured.guard_source, str)


def test_the_line_is_where_it_happened():
    def inner(x):
        return x.sum().item()

    def outer(x):
        y = x + 1
        return inner(y)

    (b,) = capture(outer, (torch.ones(2),), {}).breaks
    assert b.line == inner.__code__.co_firstlineno + 1 and b.location.function == "inner"


def test_function_modes_around_the_call_break():
    from torch.overrides import TorchFunctionMode

    x = torch.ones(2)
    plain = capture(lambda x: x + 1, (x,), {})
    with TorchFunctionMode():
        captured = capture(lambda x: x + 1, (x,), {})
        assert not plain.guard(x)
    assert captured.breaks[0].id == "mode"
    assert plain.guard(x)


def test_vmap_breaks_inside():
    seen = []

    def f(x):
        captured = capture(lambda x: x + 1, (x,), {})
        seen.append(captured.breaks[0].id)
        return x

    torch.vmap(f)(torch.ones(2, 3))
    assert seen == ["tensor-kind"]


def test_every_kind_is_whole():
    for kind in KINDS.values():
        assert kind.what and kind.why and kind.hint


def test_only_python_functions():
    with pytest.raises(TypeError, match="only Python functions"):
        capture(functools.partial(len), ([],), {})
