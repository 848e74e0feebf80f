"""Custom ops: on torch's tensors, on ours, captured, differentiated, lowered; and what is refused."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import tinycompile
from tinycompile.dispatch import dispatcher
from tinycompile.library import CustomOp, custom_op
from tinycompile.ops.record import CUSTOM, OPS, Pointwise

pytestmark = pytest.mark.cpu

_serial = itertools.count()


@pytest.fixture
def named() -> Iterator[Callable[[], str]]:
    """Fresh names; what was registered under them goes with the test."""
    before = set(OPS)
    yield lambda: f"test::op{next(_serial)}"
    for name in set(OPS) - before:
        dispatcher.undefine(name)
        del OPS[name], CUSTOM[name]


def scaled_sin(name: str) -> CustomOp:
    @custom_op(name)
    def op(x: Tensor, scale: float = 2.0) -> Tensor:
        """scale * sin(x)"""
        return torch.sin(x) * scale

    return op


def with_gradient(op: CustomOp) -> CustomOp:
    def setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0])
        ctx.scale = inputs[1]

    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return grad * torch.cos(x) * ctx.scale, None

    op.register_autograd(backward, setup_context=setup)
    return op


# --------------------------------------------------------------------------------------------------------------- calling


def test_called_on_any_tensor(named: Callable[[], str]) -> None:
    op = scaled_sin(named())
    x = torch.randn(3, 4)
    want = torch.sin(x) * 3
    assert torch.equal(op(x, 3.0), want) and torch.equal(op(x, scale=3.0), want)
    ours = op(tinycompile.from_torch(x), 3.0)
    assert isinstance(ours, tinycompile.Tensor) and torch.equal(ours.torch(), want)
    assert op.__doc__ == "scale * sin(x)" and "float scale=2.0" in repr(op)


def test_arguments_by_keyword_alone(named: Callable[[], str]) -> None:
    @custom_op(named())
    def op(x: Tensor, *, scale: float = 2.0) -> Tensor:
        return x * scale

    x = torch.randn(3)
    for lowered in (False, True):
        if lowered:
            op.register_lowering(lambda x, *, scale: x * scale)
        for call in (op, tinycompile.compile(lambda t, **k: op(t, **k))):
            for given in (x, tinycompile.from_torch(x)):
                for options in ({}, {"scale": 3.0}):
                    got = call(given, **options)
                    assert type(got) is type(given)
                    torch.testing.assert_close(torch.as_tensor(got.tolist()), x * options.get("scale", 2.0))


def test_one_node_of_a_graph(named: Callable[[], str]) -> None:
    op = scaled_sin(named())
    f = tinycompile.compile(lambda x: op(x * 2, 3.0) + 1, fullgraph=True)
    x = torch.randn(3, 4)
    torch.testing.assert_close(f(x), torch.sin(x * 2) * 3 + 1)
    assert f"ops.{op.record}(" in f.source("graph") and len(f.kernels) == 2  # before it and behind it


def test_wrong_calls_raise_as_eager_does(named: Callable[[], str]) -> None:
    op = scaled_sin(named())
    f = tinycompile.compile(lambda x: op(x, 1.0, 2.0))
    for call in (lambda: op(torch.ones(2), 1.0, 2.0), lambda: f(torch.ones(2))):
        with pytest.raises(TypeError):
            call()


def test_kernels_by_device_and_shape_rules(named: Callable[[], str]) -> None:
    seen = []

    @custom_op(named(), schema="(Tensor x) -> (Tensor, Tensor)")
    def halves(x):
        raise AssertionError("there is a kernel for the CPU")

    @halves.register_kernel("cpu")
    def _(x: Tensor) -> tuple[Tensor, Tensor]:
        seen.append("cpu")
        return x[: len(x) // 2].clone(), x[len(x) // 2 :].clone()

    @halves.register_fake
    def _(x: Tensor) -> tuple[Tensor, Tensor]:
        assert x.device.type == "meta"
        return x.new_empty(len(x) // 2), x.new_empty(len(x) - len(x) // 2)

    f = tinycompile.compile(lambda x: halves(x + 1)[0] * 2, fullgraph=True)
    x = torch.arange(5.0)
    torch.testing.assert_close(f(x), (x[:2] + 1) * 2)
    assert seen == ["cpu"]


def test_lists_of_tensors_and_of_numbers(named: Callable[[], str]) -> None:
    @custom_op(named())
    def weighted(xs: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
        return sum((x * w for x, w in zip(xs, weights, strict=True)), torch.zeros_like(xs[0]))

    xs = [torch.randn(3) for _ in range(3)]
    f = tinycompile.compile(lambda a, b, c: weighted([a, b.exp(), c], [1.0, 2.0, 3.0]) * 2, fullgraph=True)
    torch.testing.assert_close(f(*xs), (xs[0] + 2 * xs[1].exp() + 3 * xs[2]) * 2)


def test_a_size_that_changes_compiles_again(named: Callable[[], str]) -> None:
    """A shape rule in torch holds for the sizes it was asked for."""
    op = scaled_sin(named())
    f = tinycompile.compile(lambda x: op(x) + 1, fullgraph=True, dynamic=True)
    for n in (3, 5):
        assert f(torch.ones(n)).shape == (n,)


# --------------------------------------------------------------------------------------------------------------- gradients


def test_the_gradient_on_every_tape(named: Callable[[], str]) -> None:
    op = with_gradient(scaled_sin(named()))
    x = torch.randn(5)
    want = 3 * torch.cos(x)
    leaf = x.clone().requires_grad_()
    assert torch.allclose(torch.autograd.grad(op(leaf, 3.0).sum(), leaf)[0], want)
    ours = tinycompile.from_torch(x.clone()).requires_grad_()
    op(ours, 3.0).sum().backward()
    assert torch.allclose(ours.grad.torch(), want)
    f = tinycompile.compile(lambda x: op(x, 3.0) * 2, fullgraph=True)
    assert torch.allclose(torch.autograd.grad(f(leaf).sum(), leaf)[0], 2 * want)
    assert "ops.cos" in f.source("backward")
    (first,) = torch.autograd.grad(f(leaf).sum(), leaf, create_graph=True)
    assert torch.allclose(torch.autograd.grad(first.sum(), leaf)[0], -6 * torch.sin(x))
    assert torch.autograd.gradcheck(lambda x: op(x, 3.0), x.double().requires_grad_())


def test_several_results_and_what_is_needed(named: Callable[[], str]) -> None:
    @custom_op(named())
    def both(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x * y, x + y

    def setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        assert len(output) == 2
        ctx.save_for_backward(*inputs)

    def backward(ctx: Any, product: Any, total: Any) -> tuple[Any, Any]:
        x, y = ctx.saved_tensors
        return tuple(
            product * other + total if need else None for other, need in zip((y, x), ctx.needs_input_grad, strict=True)
        )

    both.register_autograd(backward, setup_context=setup)
    x, y = torch.randn(4, requires_grad=True), torch.randn(4)
    for fn in (both, tinycompile.compile(lambda x, y: both(x, y), fullgraph=True)):
        a, b = fn(x, y)
        (grad,) = torch.autograd.grad((a * 2 + b).sum(), x)
        torch.testing.assert_close(grad, 2 * y + 1)


def test_a_wrong_number_of_gradients(named: Callable[[], str]) -> None:
    op = scaled_sin(named())
    op.register_autograd(lambda ctx, grad: grad)
    x = torch.randn(3, requires_grad=True)
    with pytest.raises(RuntimeError, match="returned 1 gradients for 2 arguments"):
        op(x).sum().backward()


# ---------------------------------------------------------------------------------------------------------------- lowering


@pytest.mark.parametrize("backend", ["cpp", "triton"])
def test_a_decomposition_is_fused(backend: str, named: Callable[[], str]) -> None:
    op = scaled_sin(named())

    @op.register_lowering
    def _(x: Tensor, scale: float) -> Tensor:
        return torch.sin(x) * scale

    f = tinycompile.compile(lambda x: op(x * 2, 3.0) + 1, fullgraph=True, backend=backend)
    x = torch.randn(3, 4)
    torch.testing.assert_close(f(x), torch.sin(x * 2) * 3 + 1)
    assert len(f.kernels) == 1
    ours = op(tinycompile.from_torch(x), 3.0)
    torch.testing.assert_close(ours.torch(), torch.sin(x) * 3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_formula_is_fused(dtype: torch.dtype, named: Callable[[], str]) -> None:
    op = scaled_sin(named())
    op.register_lowering(Pointwise(lambda b, x, scale: b("sin", x) * scale))
    f = tinycompile.compile(lambda x: (op(x, 3.0) + 1).sum(1), fullgraph=True)
    x = torch.randn(6, 8).to(dtype)
    torch.testing.assert_close(f(x), (torch.sin(x.float()) * 3 + 1).sum(1).to(dtype), rtol=2e-2, atol=2e-2)
    assert len(f.kernels) == 1


def test_an_edited_op_is_compiled_again(named: Callable[[], str]) -> None:
    """The disk cache knows what an op was made of, not only its name."""
    op = scaled_sin(named())
    fn = lambda x: op(x, 3.0) + 1  # noqa: E731
    x = torch.randn(4)
    op.register_lowering(lambda x, scale: torch.sin(x) * scale)
    first = tinycompile.compile(fn, fullgraph=True)(x)
    op.register_lowering(lambda x, scale: torch.cos(x) * scale)
    second = tinycompile.compile(fn, fullgraph=True)(x)
    torch.testing.assert_close(first, torch.sin(x) * 3 + 1)
    torch.testing.assert_close(second, torch.cos(x) * 3 + 1)


# ----------------------------------------------------------------------------------------------------------------- refused


@pytest.mark.parametrize("name", ["noname", "a::b::c", "a::", "::b", "a b::c"])
def test_bad_names(name: str) -> None:
    with pytest.raises(ValueError, match="namespace::name"):
        scaled_sin(name)


def test_taken_names_and_writes(named: Callable[[], str]) -> None:
    name = named()
    scaled_sin(name)
    with pytest.raises(ValueError, match="registered already"):
        scaled_sin(name)
    with pytest.raises(ValueError, match="write to no argument"):
        custom_op(named(), lambda x: x, mutates_args=("x",))
    with pytest.raises(ValueError, match="write to no argument"):
        custom_op(named(), lambda x: x, schema="(Tensor(a!) x) -> Tensor")
    with pytest.raises(ValueError, match="must return"):
        custom_op(named(), lambda x: x, schema="(Tensor x) -> int")


def test_torchs_own_custom_ops_are_library_calls() -> None:
    @torch.library.custom_op("tinycompile_test::triple", mutates_args=())
    def triple(x: Tensor) -> Tensor:
        return x * 3

    triple.register_fake(torch.empty_like)
    for fn in (lambda x: triple(x + 1) * 2, lambda x: torch.ops.tinycompile_test.triple(x + 1) * 2):
        f = tinycompile.compile(fn, fullgraph=True)
        x = torch.randn(3)
        torch.testing.assert_close(f(x), (x + 1) * 6)
        assert len(f.kernels) == 2
