"""The tape's behaviour: the same program on torch's tensors and on ours, with the same gradients, errors and warnings."""

from __future__ import annotations

import gc
import threading
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import tinycompile
from tinycompile.eager import autograd
from tinycompile.eager.checkpoint import checkpoint
from tinycompile.eager.factories import ones, tensor, zeros
from tinycompile.eager.tensor import Tensor, from_torch

pytestmark = pytest.mark.pure


class Side:
    """One of the two worlds: how it makes leaves and differentiates."""

    def __init__(self, ours: bool) -> None:
        self.ours = ours
        self.autograd: Any = autograd if ours else torch.autograd
        self.Function: Any = autograd.Function if ours else torch.autograd.Function

    def leaf(self, *shape: int, dtype: torch.dtype = torch.float64, seed: int = 0, grad: bool = True) -> Any:
        generator = torch.Generator().manual_seed(seed + 1)
        made = torch.randn(shape, dtype=dtype, generator=generator)
        return (from_torch(made) if self.ours else made).requires_grad_(grad)

    def plain(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return value.raw()
        if isinstance(value, torch.Tensor):
            return value.detach()
        return tuple(map(self.plain, value)) if isinstance(value, (tuple, list)) else value


def outcome(program: Callable[[Side], Any], side: Side) -> Any:
    """(results, error, warnings: those, too, that torch gives once in a process)."""
    with warnings.catch_warnings(record=True) as noted:
        warnings.simplefilter("always")
        torch.set_warn_always(True)
        try:
            result, error = side.plain(program(side)), None
        except Exception as caught:
            result, error = None, (type(caught), str(caught))
        finally:
            torch.set_warn_always(False)
    return result, error, [str(w.message).split(" (Triggered")[0] for w in noted if "grad" in str(w.message)]


def same(mine: Any, theirs: Any) -> None:
    if isinstance(theirs, torch.Tensor):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-12)
    elif isinstance(theirs, tuple):
        assert len(mine) == len(theirs)
        for m, t in zip(mine, theirs, strict=True):
            same(m, t)
    else:
        assert mine == theirs


PROGRAMS: list[Callable[[Side], Any]] = []


def program(fn: Callable[[Side], Any]) -> Callable[[Side], Any]:
    PROGRAMS.append(fn)
    return fn


# --- gradients ---------------------------------------------------------------------------------------------------------------


@program
def chain_of_ops(s: Side) -> Any:
    x, w = s.leaf(4, 3), s.leaf(3, 5, seed=1)
    y = torch.tanh(x @ w).sum(1)
    (y * y).mean().backward()
    return x.grad, w.grad, y.requires_grad, y.is_leaf, x.is_leaf, x.grad_fn


@program
def a_tensor_used_twice(s: Side) -> Any:
    x = s.leaf(3)
    y = x.exp()
    (y * y + y * x).sum().backward()
    return x.grad


@program
def accumulation(s: Side) -> Any:
    x = s.leaf(3)
    for _ in range(3):
        (x * x).sum().backward()
    first = x.grad.clone()
    x.grad = None
    x.sum().backward()
    return first, x.grad


@program
def broadcasting_and_promotion(s: Side) -> Any:
    x, y, z = s.leaf(4, 1), s.leaf(3, seed=1), s.leaf(1, dtype=torch.float32, seed=2)
    ((x + y) * z / 2).sum().backward()
    return x.grad, y.grad, z.grad


@program
def gradient_argument(s: Side) -> Any:
    x = s.leaf(2, 3)
    (x * 2).backward(s.leaf(2, 3, seed=4, grad=False))
    return x.grad


@program
def several_outputs_some_unused(s: Side) -> Any:
    x = s.leaf(4, 6)
    a, b, c = x.split(2, 1)
    values, _ = x.max(1)
    (a * c).sum().backward(retain_graph=True)
    first = x.grad.clone()
    values.sum().backward()
    return first, x.grad


@program
def grad_returns_and_leaves_grad_alone(s: Side) -> Any:
    x, y = s.leaf(3), s.leaf(3, seed=1)
    out = (x * y).sum()
    return s.autograd.grad(out, (x, y)), x.grad, y.grad


@program
def grad_of_intermediates(s: Side) -> Any:
    x = s.leaf(3)
    y = x.sin()
    return s.autograd.grad((y * y).sum(), (y, x))


@program
def unused_input(s: Side) -> Any:
    x, y = s.leaf(3), s.leaf(3, seed=1)
    return s.autograd.grad(x.sum(), (x, y))


@program
def unused_input_allowed(s: Side) -> Any:
    x, y = s.leaf(3), s.leaf(3, seed=1)
    return s.autograd.grad(x.sum(), (x, y), allow_unused=True), s.autograd.grad(x.sum(), (x, y), materialize_grads=True)


@program
def backward_for_some_inputs(s: Side) -> Any:
    x, y = s.leaf(3), s.leaf(3, seed=1)
    z = x * y
    (z * z).sum().backward(inputs=[x])
    return x.grad, y.grad


@program
def second_and_third_derivatives(s: Side) -> Any:
    x = s.leaf(4)
    y = (x**3).sin().sum()
    (first,) = s.autograd.grad(y, x, create_graph=True)
    (second,) = s.autograd.grad(first.sum(), x, create_graph=True)
    (third,) = s.autograd.grad(second.sum(), x)
    return first, second, third


@program
def gradient_penalty(s: Side) -> Any:
    x, w = s.leaf(4, 3), s.leaf(3, 1, seed=1)
    y = torch.sigmoid(x @ w)
    (g,) = s.autograd.grad(y.sum(), x, create_graph=True)
    ((g.norm(dim=1) - 1) ** 2).mean().backward()
    return w.grad, x.grad


@program
def create_graph_accumulates_a_graph(s: Side) -> Any:
    x = s.leaf(3)
    (x**3).sum().backward(create_graph=True)
    return x.grad, x.grad.requires_grad


@program
def functions_without_records(s: Side) -> Any:
    x = s.leaf(5)
    y = torch.sort(x)[0].cumsum(0)
    (torch.logcumsumexp(y, 0) * x).sum().backward()
    return x.grad


@program
def second_derivative_of_a_function_without_record(s: Side) -> Any:
    x = s.leaf(5)
    (first,) = s.autograd.grad((torch.logcumsumexp(x, 0) ** 2).sum(), x, create_graph=True)
    return first, s.autograd.grad((first**2).sum(), x)


@program
def binary_cross_entropy(s: Side) -> Any:
    x = torch.sigmoid(s.leaf(4, 5))
    y = torch.sigmoid(s.leaf(4, 5, seed=1))
    (first,) = s.autograd.grad(F.binary_cross_entropy(x, y), x, create_graph=True)
    return first, s.autograd.grad((first * first).sum(), (x, y))


@program
def losses(s: Side) -> Any:
    x, soft, weight = s.leaf(4, 5), torch.softmax(s.leaf(4, 5, seed=1, grad=False), 1), s.leaf(5, seed=2, grad=False).abs()
    index = torch.tensor([1, 0, 4, 1])
    total = F.cross_entropy(x, index, weight, label_smoothing=0.1) + F.cross_entropy(x, index, ignore_index=1)
    total = total + F.cross_entropy(x, soft, label_smoothing=0.2) + F.nll_loss(F.log_softmax(x, 1), index, weight)
    total = total + F.mse_loss(x, soft) + F.smooth_l1_loss(x, soft) + F.kl_div(F.log_softmax(x, 1), soft, reduction="sum")
    total.backward()
    return x.grad


@program
def embedding_with_padding(s: Side) -> Any:
    w = s.leaf(6, 3)
    F.embedding(torch.tensor([[1, 2], [2, 0]]), w, padding_idx=2).sum().backward()
    return w.grad


@program
def attention(s: Side) -> Any:
    q, k, v = (s.leaf(2, 2, 5, 8, seed=i) for i in range(3))
    (F.scaled_dot_product_attention(q, k, v, is_causal=True) ** 2).sum().backward()
    return q.grad, k.grad, v.grad


@program
def attention_with_a_mask_that_learns(s: Side) -> Any:
    q, k, v, mask = s.leaf(2, 2, 5, 8), s.leaf(2, 2, 6, 8, seed=1), s.leaf(2, 2, 6, 8, seed=2), s.leaf(5, 6, seed=3)
    (F.scaled_dot_product_attention(q, k, v, mask) ** 2).sum().backward()
    return q.grad, k.grad, v.grad, mask.grad


@program
def convolution_same_padding(s: Side) -> Any:
    x, w, b = s.leaf(2, 3, 8), s.leaf(4, 3, 4, seed=1), s.leaf(4, seed=2)
    (F.conv1d(x, w, b, padding="same") ** 2).sum().backward()
    return x.grad, w.grad, b.grad


# --- modes -------------------------------------------------------------------------------------------------------------------


@program
def no_grad(s: Side) -> Any:
    x = s.leaf(3)
    with torch.no_grad():
        y = x * 2
        with torch.enable_grad():
            z = x * 3
    with torch.set_grad_enabled(False):
        w = x[1:]
    return y.requires_grad, z.requires_grad, w.requires_grad, x.detach().requires_grad, x.data.requires_grad


@program
def inference_tensors_cannot_be_saved(s: Side) -> Any:
    with torch.inference_mode():
        x = s.leaf(3, grad=False) * 1
    return s.leaf(3) * x


@program
def requires_grad_of_integers(s: Side) -> Any:
    return s.leaf(3, grad=False).long().requires_grad_()


@program
def requires_grad_off_for_a_result(s: Side) -> Any:
    return (s.leaf(3) * 2).requires_grad_(False)


@program
def integer_results(s: Side) -> Any:
    x = s.leaf(3)
    return (x > 0).requires_grad, x.argmax().requires_grad, x.floor().requires_grad, torch.zeros_like(x).requires_grad


# --- errors ------------------------------------------------------------------------------------------------------------------


@program
def second_backward(s: Side) -> Any:
    y = s.leaf(3).exp().sum()
    y.backward()
    y.backward()


@program
def second_backward_of_what_saves_nothing(s: Side) -> Any:
    x = s.leaf(3)
    y = (x + 1).sum()
    y.backward()
    y.backward()
    return x.grad


@program
def backward_of_a_vector(s: Side) -> Any:
    (s.leaf(3) * 2).backward()


@program
def backward_of_what_has_no_history(s: Side) -> Any:
    s.leaf(3, grad=False).sum().backward()


@program
def gradient_of_another_shape(s: Side) -> Any:
    (s.leaf(3) * 2).backward(s.leaf(2, grad=False))


@program
def input_without_grad(s: Side) -> Any:
    return s.autograd.grad(s.leaf(3).sum(), s.leaf(3, grad=False))


@program
def saved_input_changed(s: Side) -> Any:
    x, y = s.leaf(3), s.leaf(3, seed=1)
    a = y * 1
    out = (x * a).sum()
    a.add_(1)
    out.backward()


@program
def saved_result_changed(s: Side) -> Any:
    y = s.leaf(2, 3).exp()
    y.mul_(2)
    y.sum().backward()


@program
def saved_leaf_changed_without_grad(s: Side) -> Any:
    x, w = s.leaf(3), s.leaf(3, seed=1)
    out = (x * w).sum()
    with torch.no_grad():
        w.add_(1)
    out.backward()


@program
def grad_of_a_result(s: Side) -> Any:
    return (s.leaf(3) * 2).grad


@program
def hook_without_grad(s: Side) -> Any:
    s.leaf(3, grad=False).register_hook(print)


@program
def post_accumulate_hook_on_a_result(s: Side) -> Any:
    (s.leaf(3) * 2).register_post_accumulate_grad_hook(print)


@program
def empty_inputs(s: Side) -> Any:
    s.leaf(3).sum().backward(inputs=[])


@program
def out_argument(s: Side) -> Any:
    x = s.leaf(3)
    torch.add(x, 1, out=s.leaf(3, grad=False))


@program
def numpy_of_a_leaf(s: Side) -> Any:
    return s.leaf(3).numpy()


# --- hooks -------------------------------------------------------------------------------------------------------------------


@program
def hooks(s: Side) -> Any:
    seen: list[Any] = []
    x = s.leaf(3)
    y = x * 2
    y.register_hook(lambda g: g * 10)
    y.register_hook(lambda g: seen.append(g.clone()))
    x.register_hook(lambda g: g + 1)
    gone = x.register_hook(lambda g: g * 1000)
    gone.remove()
    x.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))
    y.retain_grad()
    (y * y).sum().backward()
    return x.grad, y.grad, tuple(seen)


@program
def node_hooks(s: Side) -> Any:
    x = s.leaf(3)
    y = x * 2
    y.grad_fn.register_hook(lambda inputs, outputs: (inputs[0] * 3, *inputs[1:]))
    y.sum().backward()
    return x.grad, y.grad_fn.name()


@program
def saved_hooks(s: Side) -> Any:
    x = s.leaf(3)
    packed: list[Any] = []
    hooks = s.autograd.saved_tensors_hooks if s.ours else torch.autograd.graph.saved_tensors_hooks
    with hooks(lambda t: (packed.append(tuple(t.shape)), t * 2)[1], lambda t: t):
        y = x.exp()
    y.sum().backward()
    return x.grad, tuple(packed)


# --- writes in place ---------------------------------------------------------------------------------------------------------


@program
def write_to_a_leaf(s: Side) -> Any:
    s.leaf(3).add_(1)


@program
def write_to_a_view_of_a_leaf(s: Side) -> Any:
    s.leaf(3)[0].mul_(2)


@program
def write_to_one_of_several_views(s: Side) -> Any:
    a, _ = (s.leaf(4) * 1).split(2)
    a.mul_(2)


@program
def write_to_a_view_made_without_grad(s: Side) -> Any:
    x = s.leaf(3) * 1
    with torch.no_grad():
        v = x[1:]
    v.mul_(2)


@program
def chains_of_writes(s: Side) -> Any:
    x, w = s.leaf(3), s.leaf(3, seed=1)
    y = x * 1
    y.mul_(w).add_(x).sigmoid_()
    y.mul_(2)
    z = y * 1
    z += w
    z.sum().backward()
    return x.grad, w.grad


@program
def write_through_views(s: Side) -> Any:
    x, w = s.leaf(3, 4), s.leaf(4, seed=1)
    y = x * 2
    row, column = y[1], y[:, 2]
    row.mul_(w)
    column.add_(1)
    y[0, 0] = w[3]
    (y * y).sum().backward()
    return x.grad, w.grad


@program
def views_follow_their_base(s: Side) -> Any:
    x = s.leaf(3, 4)
    y = x * 2
    part = y.t()[1:]
    y.exp_()
    (part * part).sum().backward()
    return x.grad


@program
def a_buffer_becomes_differentiable(s: Side) -> Any:
    w = s.leaf(3)
    buffer = s.leaf(2, 3, grad=False)
    row = buffer[0]
    buffer[1] = w * 2
    buffer[0].copy_(w)
    assert row.grad_fn is not None  # torch only notices that the view's base changed when it is asked for this
    row.mul_(3)
    total = (buffer * buffer).sum() + (row * row).sum()
    total.backward()
    return w.grad, buffer.requires_grad, row.requires_grad


@program
def masks_and_index_writes(s: Side) -> Any:
    x, w = s.leaf(4), s.leaf(2, seed=1)
    y = x * 1
    y[torch.tensor([0, 2])] = w
    y.masked_fill_(torch.tensor([False, True, False, False]), 5.0)
    z = y[torch.tensor([0, 0, 3])]
    (z * z).sum().backward()
    return x.grad, w.grad


@program
def zero_and_fill(s: Side) -> Any:
    x = s.leaf(4)
    y = x * 2
    y[:2].zero_()
    (y + x).sum().backward()
    return x.grad


@program
def writes_of_functions_without_records(s: Side) -> Any:
    x = s.leaf(4)
    y = x * 2
    y.sinc_()
    y *= x
    y.sum().backward()
    return x.grad


@program
def second_derivative_through_a_write(s: Side) -> Any:
    x = s.leaf(4)
    y = x**2
    y[1:3].mul_(x[:2])
    (first,) = s.autograd.grad((y**2).sum(), x, create_graph=True)
    return first, s.autograd.grad(first.sum(), x)


@program
def detach_in_place(s: Side) -> Any:
    y = s.leaf(3) * 2
    y.detach_()
    return y.requires_grad, y.is_leaf


# --- Function ----------------------------------------------------------------------------------------------------------------


def cube_of(s: Side) -> Any:
    class Cube(s.Function):  # type: ignore[misc, name-defined]
        @staticmethod
        def forward(ctx: Any, x: Any, power: int) -> Any:
            ctx.save_for_backward(x)
            ctx.power = power
            return x**power

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            (x,) = ctx.saved_tensors
            return g * ctx.power * x ** (ctx.power - 1), None

    return Cube


@program
def custom_function(s: Side) -> Any:
    x = s.leaf(3)
    y = cube_of(s).apply(x, 3)
    (first,) = s.autograd.grad(y.sum(), x, create_graph=True)
    return first, s.autograd.grad(first.sum(), x), y.grad_fn.name()


@program
def function_with_setup_context(s: Side) -> Any:
    class Scaled(s.Function):  # type: ignore[misc, name-defined]
        @staticmethod
        def forward(x: Any, w: Any) -> Any:
            return x * w, (x > 0)

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.save_for_backward(*inputs)
            ctx.mark_non_differentiable(output[1])

        @staticmethod
        def backward(ctx: Any, g: Any, _: Any) -> Any:
            x, w = ctx.saved_tensors
            return g * w if ctx.needs_input_grad[0] else None, g * x if ctx.needs_input_grad[1] else None

    x, w = s.leaf(3), s.leaf(3, seed=1, grad=False)
    y, positive = Scaled.apply(x, w)
    y.sum().backward()
    return x.grad, positive.requires_grad


def function_returning(s: Side, gradients: Callable[[Any], Any]) -> Any:
    class Wrong(s.Function):  # type: ignore[misc, name-defined]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return gradients(g)

    x = s.leaf(3)
    Wrong.apply(x).sum().backward()
    return x.grad


@program
def function_with_a_wrong_shape(s: Side) -> Any:
    return function_returning(s, lambda g: g[:2])


@program
def function_with_too_few_gradients(s: Side) -> Any:
    return function_returning(s, lambda g: ())


@program
def function_with_a_gradient_that_is_summed(s: Side) -> Any:
    return function_returning(s, lambda g: torch.stack([g, g]))


@program
def function_that_writes(s: Side) -> Any:
    class Double(s.Function):  # type: ignore[misc, name-defined]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.mark_dirty(x)
            return x.mul_(2)

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * 2

    x = s.leaf(3)
    y = x * 1
    z = Double.apply(y)
    (z * z).sum().backward()
    return x.grad, z is y


@program
def saved_tensors_are_freed(s: Side) -> Any:
    y = cube_of(s).apply(s.leaf(3), 3).sum()
    y.backward()
    y.backward()


@program
def differentiated_once(s: Side) -> Any:
    once = s.autograd.once_differentiable if s.ours else torch.autograd.function.once_differentiable

    class Square(s.Function):  # type: ignore[misc, name-defined]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        @once
        def backward(ctx: Any, g: Any) -> Any:
            return g * 2 * ctx.saved_tensors[0]

    x = s.leaf(3)
    (first,) = s.autograd.grad(Square.apply(x), x, s.leaf(3), create_graph=True)
    first.sum().backward()


@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda f: f.__name__)
def test_as_torch(fn: Callable[[Side], Any]) -> None:
    mine, theirs = outcome(fn, Side(True)), outcome(fn, Side(False))
    assert mine[1] == theirs[1]
    same(mine[0], theirs[0])
    assert mine[2] == theirs[2]


# --- where our tape and torch's meet -----------------------------------------------------------------------------------------


def test_torch_parameters_get_their_gradients() -> None:
    layer, twin = (torch.nn.Linear(3, 2, dtype=torch.float64) for _ in range(2))
    twin.load_state_dict(layer.state_dict())
    x = Side(True).leaf(4, 3)
    tx = x.detach().raw().clone().requires_grad_()
    torch.tanh(layer(x)).sum().backward()
    torch.tanh(twin(tx)).sum().backward()
    same((x.grad.raw(), layer.weight.grad, layer.bias.grad), (tx.grad, twin.weight.grad, twin.bias.grad))
    weight, x2 = autograd.grad(layer(x).sin().sum(), (layer.weight, x))
    expected = torch.autograd.grad(twin(tx).sin().sum(), (twin.weight, tx))
    same((weight, x2.raw()), expected)


def test_torchs_backward_goes_on_in_ours() -> None:
    x = Side(True).leaf(3)
    y = x * 2
    t = y.torch()
    assert t.requires_grad
    (t.sin() * torch.ones(3, dtype=torch.float64)).sum().backward()
    same(x.grad.raw(), 2 * (2 * x.raw()).cos())


def test_second_derivatives_through_a_torch_function() -> None:
    x = Side(True).leaf(3)
    t = x.raw().clone().requires_grad_()
    (first,) = autograd.grad((torch.special.i0(x) ** 2).sum(), x, create_graph=True)
    (first_t,) = torch.autograd.grad((torch.special.i0(t) ** 2).sum(), t, create_graph=True)
    first.sum().backward()
    first_t.sum().backward()
    same(x.grad.raw(), t.grad)


# --- memory, threads, checkpoint, anomaly ------------------------------------------------------------------------------------


def test_a_graph_of_100_000_nodes() -> None:
    x = tensor(1.0, requires_grad=True)
    y = x
    gc.disable()  # it would walk the growing graph again and again
    try:
        for _ in range(100_000):
            y = y + 0.0
        y.backward()
        assert x.grad.item() == 1.0
        del y
    finally:
        gc.enable()


def test_saved_tensors_go_as_backward_goes() -> None:
    x = ones(10, requires_grad=True)
    alive: list[Any] = []
    hidden = [x]
    for _ in range(5):
        hidden.append(hidden[-1].exp() * 0.1)
    references = [weakref.ref(h.raw()) for h in hidden[1:-1]]
    hidden[1].register_hook(lambda g: alive.append(sum(r() is not None for r in references)))
    loss = hidden[-1].sum()
    del hidden
    loss.backward()
    gc.collect()
    assert alive == [0] or alive[0] <= 1
    assert all(r() is None for r in references)


def test_no_reference_cycles() -> None:
    """The graph goes by reference counting, with its memory, without the garbage collector."""
    gc.collect()
    gc.disable()
    try:
        x = ones(10, requires_grad=True)
        y = torch.softmax(x.exp().sigmoid(), 0)
        gone = weakref.ref(y), weakref.ref(y.grad_fn)
        del y
        assert gone[0]() is None and gone[1]() is None
    finally:
        gc.enable()


def test_threads() -> None:
    shared = ones(100, requires_grad=True)
    own = [ones(100, requires_grad=True) for _ in range(4)]

    def work(x: Any) -> None:
        for _ in range(20):
            (x * shared).sum().backward()

    threads = [threading.Thread(target=work, args=(x,)) for x in own]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert all((x.grad.raw() == 20).all() for x in own)
    assert (shared.grad.raw() == 80).all()


@pytest.mark.parametrize("create_graph", [False, True])
def test_checkpoint(create_graph: bool) -> None:
    calls = []

    def block(x: Any, w: Any) -> Any:
        calls.append(1)
        return torch.tanh(F.dropout(x @ w, 0.5)).exp()

    side = Side(True)
    results = []
    for run in (lambda f, *a: f(*a), checkpoint):
        x, w = side.leaf(4, 3), side.leaf(3, 3, seed=1)
        torch.manual_seed(3)
        y = run(block, run(block, x, w) if run is not checkpoint else checkpoint(block, x, w), w)
        grads = autograd.grad(y.sum(), (x, w), create_graph=create_graph)
        if create_graph:
            grads += autograd.grad((grads[0] * grads[1].sum()).sum(), (x, w))
        results.append(side.plain(grads))
    same(results[1], results[0])
    assert len(calls) >= 6


@pytest.mark.parametrize("saved", [True, False])
def test_checkpoint_of_an_argument_that_is_written_to(saved: bool) -> None:
    """An error, as torch's: the second run would see other values. Not where backward needs no second run."""
    x = ones(3, requires_grad=True)
    z, w = x * 1, torch.ones(3)
    y = checkpoint(lambda v, by: v * v * by if saved else v + by, z, w)
    w.add_(1)
    z.add_(1)
    if not saved:
        y.sum().backward()
        assert x.grad.tolist() == [1, 1, 1]
        return
    with pytest.raises(RuntimeError, match=r"modified by an inplace operation: .*output 0 of Add, is at version 1; expected"):
        y.sum().backward()
    with torch.no_grad():  # nothing is run again
        assert checkpoint(lambda v: v * v, z).tolist() == [4, 4, 4]


def test_anomaly_mode_names_the_forward_line() -> None:
    with autograd.detect_anomaly():
        x = tensor([-1.0], requires_grad=True)
        y = x.sqrt()  # here
        with (
            pytest.warns(UserWarning, match=r"(?s)Error detected in SqrtBackward0.*x\.sqrt\(\)  # here"),
            pytest.raises(RuntimeError, match="Function 'SqrtBackward0' returned nan values in its 0th output."),
        ):
            y.backward()


def test_complex_is_refused() -> None:
    with pytest.raises(NotImplementedError, match="complex"):
        from_torch(torch.zeros(2, dtype=torch.complex64)).requires_grad_()


def test_half_types_and_device_of_gradients() -> None:
    for dtype in (torch.float16, torch.bfloat16):
        x = Side(True).leaf(4, 8, dtype=dtype)
        tx = x.raw().clone().requires_grad_()
        (F.gelu(F.layer_norm(x, (8,))) * 3).sum().backward()
        (F.gelu(F.layer_norm(tx, (8,))) * 3).sum().backward()
        assert x.grad.dtype == dtype
        torch.testing.assert_close(x.grad.raw(), tx.grad, rtol=0.05, atol=0.05)


def test_gradients_have_the_layout_of_their_leaf() -> None:
    x = from_torch(torch.randn(4, 3).t()).requires_grad_()
    (x * ones(3, 4)).sum().backward()
    assert x.grad.strides == x.strides
    y = zeros(3, requires_grad=True)
    y.expand(4, 3).sum().backward()
    assert y.grad.strides == (1,)


def test_gradients_of_two_leaves_share_no_memory() -> None:
    x, y = ones(3, requires_grad=True), ones(3, requires_grad=True)
    (x + y).sum().backward()
    x.grad.zero_()
    assert y.grad.tolist() == [1.0, 1.0, 1.0]


def test_public_names() -> None:
    assert tinycompile.autograd.grad is autograd.grad and tinycompile.no_grad is torch.no_grad
    assert issubclass(tinycompile.autograd.Function, object) and tinycompile.checkpoint is checkpoint


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("adaptive", [False, True])
def test_the_first_of_equal_values_takes_a_pools_gradient(rank: int, adaptive: bool) -> None:
    torch.manual_seed(0)
    x = torch.randint(0, 2, (2, 3, *(6, 5, 4)[:rank])).double()
    pool = getattr(torch.nn.functional, f"{'adaptive_' * adaptive}max_pool{rank}d")
    mine, theirs = from_torch(x.clone()).requires_grad_(), x.clone().requires_grad_()
    found = []
    for leaf in (mine, theirs):
        result = pool(leaf, 2)
        (result * result * 0.5 + result * 3).sum().backward()
        found.append(leaf.grad)
    assert torch.equal(found[0].raw(), found[1])


IN_PLACE_VIEWS: dict[str, Callable[[Any], Any]] = {
    "t_": lambda x: x.t_(),
    "transpose_": lambda x: x.transpose_(0, 1),
    "swapaxes_": lambda x: x.swapaxes_(0, 1),
    "unsqueeze_": lambda x: x.unsqueeze_(1),
    "squeeze_": lambda x: x.unsqueeze_(1).squeeze_(),
    "as_strided_": lambda x: x.as_strided_((2, 3), (1, 3)),
    "one after the other": lambda x: x.t_().unsqueeze_(0).mul_(2),
}


@pytest.mark.parametrize("of", ["a result", "a view", "detached"])
@pytest.mark.parametrize("name", IN_PLACE_VIEWS)
def test_views_in_place_move_no_element(name: str, of: str) -> None:
    seen: list[Any] = []
    for wrap in (lambda t: t, from_torch):
        leaf = wrap(torch.arange(9.0).view(3, 3).clone()).requires_grad_()
        x = leaf.detach() if of == "detached" else leaf * 1
        x = x[:] if of == "a view" else x
        made = IN_PLACE_VIEWS[name](x)
        if of != "detached":
            (made * torch.arange(made.numel()).view(made.shape)).sum().backward()
        grad = None if leaf.grad is None else leaf.grad.tolist()
        seen.append((made is x, made.detach().tolist(), made.stride(), made._version, made.requires_grad, grad))
    assert seen[0] == seen[1]


def test_views_in_place_of_what_has_views_are_refused() -> None:
    x = from_torch(torch.ones(3, 3)).requires_grad_() * 1
    row = x[0]
    with pytest.raises(NotImplementedError, match="use t"):
        x.t_()
    del row
    x.t_()


def test_writes_of_what_is_run_in_parts_leave_what_the_parts_save() -> None:
    for wrap in (lambda t: t, from_torch):
        x = wrap(torch.tensor([1.0, float("nan"), 3.0])).requires_grad_()
        (x * 1).nan_to_num_().pow(2).sum().backward()
        assert x.grad.tolist() == [2.0, 0.0, 6.0]
