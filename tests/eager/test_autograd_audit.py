"""The tape line by line beside torch's: what each feature does at its edges. The same program on torch's tensors and on ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.eager.test_autograd import Side, outcome, same
from tinycompile.eager.tensor import from_torch

pytestmark = pytest.mark.pure
PROGRAMS: list[Callable[[Side], Any]] = []


def program(fn: Callable[[Side], Any]) -> Callable[[Side], Any]:
    PROGRAMS.append(fn)
    return fn


# --- leaves, gradients, versions ---------------------------------------------------------------------------------------------


@program
def a_result_among_inputs(s: Side) -> Any:
    x = s.leaf(3)
    y = x * 2
    (y * y).sum().backward(inputs=[x, y])
    return x.grad, y.grad


@program
def the_same_input_and_output_twice(s: Side) -> Any:
    x = s.leaf(3)
    y = (x * x).sum()
    return s.autograd.grad((y, y), (x, x), retain_graph=True), s.autograd.grad(y, x)


@program
def an_output_that_is_an_input(s: Side) -> Any:
    x = s.leaf(3)
    return s.autograd.grad(x, x, s.leaf(3, seed=2, grad=False))


@program
def some_outputs_without_a_gradient_given(s: Side) -> Any:
    x = s.leaf(3)
    return s.autograd.grad((x.sum(), x * 2), x, (None, s.leaf(3, seed=2, grad=False)))


@program
def a_detached_write_is_noticed(s: Side) -> Any:
    x = s.leaf(3) * 1
    y = x.exp()
    y.detach().mul_(2)
    y.sum().backward()


@program
def data_is_not_watched(s: Side) -> Any:
    x = s.leaf(3)
    y = (x * x).sum()
    x.data.mul_(2)
    y.backward()
    return x.grad, x._version


@program
def a_grad_of_another_shape(s: Side) -> Any:
    s.leaf(3).grad = s.leaf(2, grad=False)


@program
def write_under_no_grad_to_a_leaf(s: Side) -> Any:
    x = s.leaf(3)
    with torch.no_grad():
        x.sub_(1)
    (x * x).sum().backward()
    return x.grad, x.is_leaf


@program
def nodes_have_names_and_edges(s: Side) -> Any:
    x, w = s.leaf(3), s.leaf(3, seed=1)
    y = (x * w).sum()
    (product, at), *_ = y.grad_fn.next_functions
    return y.grad_fn.name(), product.name(), at, tuple((n.name(), i) for n, i in product.next_functions)


@program
def retained_gradients_add_up(s: Side) -> Any:
    x = s.leaf(3)
    y = x * 2
    y.retain_grad()
    y.sum().backward(retain_graph=True)
    y.sum().backward()
    return y.grad, y.retains_grad, x.grad


@program
def numbers_of_a_grad(s: Side) -> Any:
    x = s.leaf(3)
    return s.autograd.grad((x.sum(), x.sum()), x, (s.leaf(grad=False),))


@program
def no_inputs_of_grad(s: Side) -> Any:
    return s.autograd.grad(s.leaf(3).sum(), ())


@program
def materialize_with_unused_refused(s: Side) -> Any:
    return s.autograd.grad(s.leaf(3).sum(), s.leaf(3), allow_unused=False, materialize_grads=True)


# --- modes -------------------------------------------------------------------------------------------------------------------


@program
def inference_results(s: Side) -> Any:
    x = s.leaf(3)
    with torch.inference_mode():
        y = x * 2
        z = x[1:]
        with torch.inference_mode(False):
            w = x * 2
    return y.requires_grad, y.is_inference(), z.is_inference(), w.requires_grad, x.is_inference()


@program
def an_inference_tensor_is_written_to_outside(s: Side) -> Any:
    with torch.inference_mode():
        x = s.leaf(3, grad=False) * 2
    x.add_(1)


@program
def an_inference_tensor_cannot_require_grad_outside(s: Side) -> Any:
    with torch.inference_mode():
        x = s.leaf(3, grad=False) * 2
    x.requires_grad_()


@program
def an_inference_tensor_without_being_saved(s: Side) -> Any:
    with torch.inference_mode():
        c = s.leaf(3, grad=False) * 2
    x = s.leaf(3)
    (x + c).sum().backward()
    return x.grad


@program
def a_leaf_is_written_to_in_inference_mode(s: Side) -> Any:
    x = s.leaf(3)
    with torch.inference_mode():
        x.add_(1)
    return x.is_leaf, x.requires_grad, (x * 1).requires_grad


@program
def modes_as_decorators(s: Side) -> Any:
    @torch.no_grad()
    def without(x: Any) -> Any:
        return x * 2

    @torch.enable_grad()
    def within(x: Any) -> Any:
        return x * 2

    x = s.leaf(3)
    with torch.no_grad():
        y = within(x)
    return without(x).requires_grad, y.requires_grad, without(x).is_leaf


# --- hooks -------------------------------------------------------------------------------------------------------------------


@program
def hooks_run_in_order_and_once(s: Side) -> Any:
    seen: list[str] = []
    x = s.leaf(3)
    y = x * 2
    y.retain_grad()
    y.register_hook(lambda g: seen.append("y1"))
    y.register_hook(lambda g: (seen.append("y2"), g * 3)[1])
    x.register_hook(lambda g: seen.append("x"))
    x.register_post_accumulate_grad_hook(lambda p: seen.append("after"))
    y.grad_fn.register_prehook(lambda grads: seen.append("before y's node"))
    y.grad_fn.register_hook(lambda inputs, outputs: seen.append("behind y's node"))
    (y.sum() + y.prod()).backward()
    return tuple(seen), x.grad, y.grad


@program
def a_prehook_replaces_gradients(s: Side) -> Any:
    x = s.leaf(3)
    y = x * 2
    handle = y.grad_fn.register_prehook(lambda grads: (grads[0] * 5,))
    y.sum().backward(retain_graph=True)
    handle.remove()
    y.sum().backward()
    return x.grad


@program
def a_hook_in_a_with_block(s: Side) -> Any:
    x = s.leaf(3)
    with x.register_hook(lambda g: g * 7):
        (x * 2).sum().backward()
    (x * 2).sum().backward()
    return x.grad


@program
def a_hook_of_another_shape(s: Side) -> Any:
    x = s.leaf(3)
    (x * 2).register_hook(lambda g: g)
    y = x * 2
    y.register_hook(lambda g: g[:2])
    y.sum().backward()
    return x.grad


@program
def a_hook_of_another_dtype(s: Side) -> Any:
    y = s.leaf(3) * 2
    y.register_hook(lambda g: g.float())
    y.sum().backward()


@program
def a_hook_that_returns_a_number(s: Side) -> Any:
    y = s.leaf(3) * 2
    y.register_hook(lambda g: 3)
    y.sum().backward()


@program
def a_node_hook_with_too_many_results(s: Side) -> Any:
    y = s.leaf(3) * 2
    y.grad_fn.register_prehook(lambda grads: (grads[0], grads[0]))
    y.sum().backward()


@program
def a_node_hook_without_a_tuple(s: Side) -> Any:
    y = s.leaf(3) * 2
    y.grad_fn.register_hook(lambda inputs, outputs: inputs[0])
    y.sum().backward()


@program
def a_hook_that_raises(s: Side) -> Any:
    x = s.leaf(3)

    def refuse(g: Any) -> None:
        raise ValueError("not this one")

    x.register_hook(refuse)
    x.sum().backward()


@program
def an_optimizer_in_the_backward(s: Side) -> Any:
    """The gradient is used and let go as soon as it is there."""
    x, w = s.leaf(3), s.leaf(3, seed=1)

    def step(p: Any) -> None:
        with torch.no_grad():
            p.sub_(p.grad, alpha=0.1)
        p.grad = None

    for p in (x, w):
        p.register_post_accumulate_grad_hook(step)
    for _ in range(2):
        (x * w).sin().sum().backward()
    return x.detach(), w.detach(), x.grad, w.grad


@program
def hooks_under_create_graph(s: Side) -> Any:
    x = s.leaf(3)
    y = x**2
    y.register_hook(lambda g: g * x)
    (first,) = s.autograd.grad(y.sum(), x, create_graph=True)
    return first, s.autograd.grad(first.sum(), x)


# --- saved tensors -----------------------------------------------------------------------------------------------------------


def hooks_of(s: Side) -> Any:
    return s.autograd.saved_tensors_hooks if s.ours else torch.autograd.graph.saved_tensors_hooks


@program
def the_innermost_hooks_pack(s: Side) -> Any:
    x = s.leaf(3)
    seen: list[str] = []
    with hooks_of(s)(lambda t: (seen.append("outer"), t)[1], lambda t: t):
        a = x.exp()
        with hooks_of(s)(lambda t: (seen.append("inner"), t.numpy(force=True))[1], lambda a: s_tensor(s, a)):
            b = a.exp()
        c = b.exp()
    c.sum().backward()
    return x.grad, tuple(seen)


def s_tensor(s: Side, array: Any) -> Any:
    made = torch.from_numpy(array)
    return from_torch(made) if s.ours else made


@program
def hooks_on_what_a_function_saves(s: Side) -> Any:
    x = s.leaf(3)

    class Square(s.Function):  # type: ignore[misc, name-defined]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return 2 * g * ctx.saved_tensors[0]

    with hooks_of(s)(lambda t: t + 1, lambda t: t - 1 + 10):
        y = Square.apply(x)
    y.sum().backward()
    return x.grad


@program
def a_second_backward_with_hooks(s: Side) -> Any:
    x = s.leaf(3)
    with hooks_of(s)(lambda t: t, lambda t: t):
        y = x.exp().sum()
    y.backward()
    y.backward()


# --- views made without gradients, hooks elsewhere, gradients that are given -------------------------------------------------


def _view_without_gradients(index: Any) -> Callable[[Side], Any]:
    def fn(s: Side) -> Any:
        x = s.leaf(3, 3)
        with torch.no_grad():
            v = x[index]
        (v * v).sum().backward()
        (v.exp() + x).sum().backward()
        return v.requires_grad, v.is_leaf, v.grad, x.grad, (v * 2).requires_grad

    fn.__name__ = f"gathers_no_gradient_at_{index}"
    return fn


PROGRAMS += [_view_without_gradients(i) for i in (0, (1, 1), (slice(None), 2), slice(1, 3), ...)]


@program
def a_view_without_gradients_is_in_no_graph(s: Side) -> Any:
    x = s.leaf(3)
    with torch.no_grad():
        v = x.view(-1)
    return s.autograd.grad(v.sum(), v)


@program
def a_backward_of_a_view_without_gradients(s: Side) -> Any:
    x = s.leaf(3)
    with torch.no_grad():
        v = x.view(-1)
    v.backward(s.leaf(3, grad=False))


@program
def a_view_without_gradients_that_is_made_a_leaf(s: Side) -> Any:
    x = s.leaf(3)
    with torch.no_grad():
        v = x.view(-1)
    v.requires_grad_()
    (v * v).sum().backward()
    first = v.grad
    v.requires_grad_(False)
    (v * v).sum().backward()
    return first, v.grad, x.grad, v.requires_grad


@program
def hooks_of_what_is_not_asked_for(s: Side) -> Any:
    x, w, seen = s.leaf(3), s.leaf(3, seed=2), []
    other = w * 2
    both = x * w
    for name, t in (("x", x), ("w", w), ("other", other), ("both", both)):
        t.register_hook(lambda g, name=name: seen.append(name))
    grads = s.autograd.grad((both + other).sum(), x)
    return grads, sorted(seen)


def _given(dtype: torch.dtype) -> Callable[[Side], Any]:
    def fn(s: Side) -> Any:
        x, given = s.leaf(3), s.leaf(3, seed=2, grad=False).to(dtype)
        x.backward(given)
        (x * 2).backward(given)
        return x.grad, s.autograd.grad(x, x, given)

    fn.__name__ = f"a_gradient_given_in_{dtype}"
    return fn


PROGRAMS += [_given(d) for d in (torch.float16, torch.float32, torch.float64, torch.int64)]


@program
def a_gradient_of_the_wrong_shape_for_what_requires_none(s: Side) -> Any:
    s.leaf(3, grad=False).backward(s.leaf(2, grad=False))


@program
def a_backward_to_what_requires_none(s: Side) -> Any:
    s.leaf(3).sum().backward(inputs=[s.leaf(3, grad=False)])


@program
def a_refused_backward_retains_nothing(s: Side) -> Any:
    y = s.leaf(3) * 2
    with pytest.raises(RuntimeError):
        s.leaf(3, grad=False).sum().backward(inputs=[y])
    return y.retains_grad


@program
def the_flag_of_a_result_can_not_be_set(s: Side) -> Any:
    y = s.leaf(3) * 2
    y.requires_grad_()
    y.requires_grad = True


@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda f: f.__name__)
def test_as_torch(fn: Callable[[Side], Any]) -> None:
    mine, theirs = outcome(fn, Side(True)), outcome(fn, Side(False))
    assert mine[1] == theirs[1]
    same(mine[0], theirs[0])
    assert mine[2] == theirs[2]
