"""``vmap`` and ``tinycompile.func`` with compiled functions, either way round: as eager, from a captured graph, without a break."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import tinycompile as tc
from tests.eager.test_vmap import LEFT_OUT, check, has_tensors, outcome
from tests.lower.support import bind_sample
from tinycompile.ops.record import OPS

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.filterwarnings("ignore:vmap calls", "ignore:.*degrees of freedom", "ignore:reduction", "ignore:There is a"),
]

FULL = os.environ.get("TINYCOMPILE_TESTS") == "full"


# As a program spells it, where the record's eager function takes nothing but torch's tensors.
SPELLED: dict[str, Callable[..., Any]] = {
    "index": lambda x, indices: x[tuple(slice(None) if i is None else i for i in indices)]
}
# Of generated code.
INTERNAL = {"philox_bits", "cross_entropy_of_linear_backward"}


@pytest.mark.parametrize("name", sorted(OPS.keys() - LEFT_OUT - INTERNAL))
def test_every_record_compiled_under_vmap(name: str) -> None:
    op = OPS[name]
    for i, sample in enumerate(op.samples()):
        if i and not FULL:
            return
        torch.manual_seed(0)
        args = bind_sample(op, sample)
        at = tuple(k for k, a in enumerate(args) if has_tensors(a))
        if at:
            check(op, args, at, tc.compile(SPELLED.get(name) or (lambda *a: op.eager(*a)), backend="eager"))


def is_differentiable(args: tuple[Any, ...]) -> bool:
    return bool(args) and isinstance(args[0], torch.Tensor) and args[0].is_floating_point()


@pytest.mark.parametrize("name", sorted(n for n, op in OPS.items() if op.vjp and op.functions and n not in LEFT_OUT | INTERNAL))
def test_every_record_differentiated_under_vmap(name: str) -> None:
    """Each example's gradient through a compiled call, against the same call of the original."""
    op = OPS[name]
    for i, sample in enumerate(op.samples()):
        if i and not FULL:
            return
        torch.manual_seed(0)
        args = bind_sample(op, sample)
        if not is_differentiable(args):
            continue

        def one(*rest: Any) -> Any:
            return op.eager(*rest, *args[1:])  # noqa: B023  # called here and now

        def total(fn: Callable[..., Any]) -> Callable[[Any], Any]:
            return lambda x: sum(((r.cos() if r.is_floating_point() else r * 0.0).sum() for r in flat(fn(x))), x.sum() * 0)

        xs = torch.stack([args[0], args[0].flip(0) if args[0].ndim else args[0] + 1])
        want = outcome(lambda: tc.vmap(tc.func.grad(total(one)))(xs))  # noqa: B023
        got = outcome(lambda: tc.vmap(tc.func.grad(total(tc.compile(one, backend="eager"))))(xs))  # noqa: B023
        if isinstance(want, Exception):
            assert isinstance(got, type(want)), got
            continue
        assert not isinstance(got, Exception), got
        for g, w in zip(flat(got), flat(want), strict=True):
            torch.testing.assert_close(g, w, equal_nan=True)


# --- compiled functions under vmap -------------------------------------------------------------------------------------------


def flat(value: Any) -> list[Any]:
    return (
        [v for part in value.values() for v in flat(part)]
        if isinstance(value, dict)
        else ([v for part in value for v in flat(part)] if isinstance(value, (tuple, list)) else [value])
    )


def same(got: Any, want: Any) -> None:
    for g, w in zip(flat(got), flat(want), strict=True):
        torch.testing.assert_close(g.torch().detach() if isinstance(g, tc.Tensor) else g.detach(), w.detach())


def wave(x: Any) -> Any:
    return (torch.sin(x) * 2).sum()


def product(x: Any, y: Any) -> Any:
    return (x @ y).relu() + 1


def of_one(compiled: Any) -> Any:
    """The one function over all examples that was made."""
    assert not compiled.graphs
    (found,) = compiled.batched.values()
    return found


def graphs(compiled: Any) -> int:
    """How many graphs there are over all examples, at the innermost of nested vmaps; none of them broke."""
    found = of_one(compiled)
    assert not found.breaks
    return len(found.graphs) if found.graphs else graphs(found)


def test_compiled_functions_are_captured_with_all_examples() -> None:
    x, compiled = torch.randn(5, 4), tc.compile(wave)
    for _ in range(2):
        same(tc.vmap(compiled)(x), torch.vmap(wave)(x))
        assert graphs(compiled) == 1
    same(compiled(x[0]), wave(x[0]))
    assert len(compiled.graphs) == 1


def test_dims_and_structures() -> None:
    x, y, compiled = torch.randn(3, 2, 4), torch.randn(4, 6), tc.compile(product)
    same(tc.vmap(compiled, (0, None))(x, y), torch.vmap(product, (0, None))(x, y))
    same(tc.vmap(compiled, (1, None), 1)(x, y), torch.vmap(product, (1, None), 1)(x, y))
    assert graphs(compiled) == 2  # other strides
    pairs = tc.compile(lambda p, *, k: {"a": p[0] * k, "b": [p[1]["z"], 3, None]})
    got = tc.vmap(lambda x, y: pairs((x, {"z": y}), k=y)["b"][0] + pairs((x, {"z": y}), k=y)["a"])(x, x)
    same(got, x + x * x)
    assert graphs(pairs) == 1


def test_nested_vmaps() -> None:
    a, b, compiled = torch.randn(3, 4), torch.randn(5, 4), tc.compile(product)
    want = torch.vmap(torch.vmap(product, (0, None)), (None, 0))(a, b)
    same(tc.vmap(tc.vmap(compiled, (0, None)), (None, 0))(a, b), want)
    assert graphs(compiled) == 1


def test_what_a_compiled_function_closes_over() -> None:
    def outer(x: Any) -> Any:
        z = x * 2
        return tc.compile(lambda t: t + z)(x)

    x = torch.randn(5, 4)
    same(tc.vmap(outer)(x), x * 3)


def test_randomness() -> None:
    x, compiled = torch.ones(4, 64), tc.compile(lambda x: F.dropout(x, 0.5, True))
    with pytest.raises(RuntimeError, match="randomness error mode"):
        tc.vmap(compiled)(x)
    different = tc.vmap(compiled, randomness="different")(x)
    assert not torch.equal(different[0], different[1])
    equal = tc.vmap(compiled, randomness="same")(x)
    assert torch.equal(equal[0], equal[1])


def test_writes() -> None:
    x = torch.zeros(3, 2)
    tc.vmap(tc.compile(lambda x: x.add_(1)))(x)
    assert torch.equal(x, torch.ones(3, 2))


def test_gradients_from_outside_and_inside() -> None:
    x, compiled = torch.randn(5, 4), tc.compile(wave)
    mine = tc.from_torch(x.clone()).requires_grad_()
    tc.vmap(compiled)(mine).sum().backward()
    same(mine.grad, 2 * torch.cos(x))
    assert graphs(compiled) == 1
    same(tc.func.grad(lambda x: tc.vmap(compiled)(x).sum())(x), 2 * torch.cos(x))


def test_autocast() -> None:
    x, w = torch.randn(5, 4), torch.randn(4, 3)
    compiled = tc.compile(lambda x: x @ w)
    with torch.autocast("cpu"):
        got = tc.vmap(compiled)(x)
    assert got.dtype is torch.bfloat16 and graphs(compiled) == 1


def test_modules() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 2))
    compiled, x = tc.compile(module), torch.randn(5, 4)
    same(tc.vmap(lambda x: compiled(x))(x), module(x))
    assert graphs(compiled.compiled) == 1


# --- functions of functions inside compiled code -----------------------------------------------------------------------------


def vector(x: Any) -> Any:
    return (x.sin() * x.sum()).cumsum(0)[1:]


def scalar(x: Any) -> Any:
    return (x**3).sum() * x.prod() + x.exp().sum()


def loss(p: Any, x: Any, y: Any) -> Any:
    return F.cross_entropy(torch.tanh(x @ p[0] + p[1])[None], y[None])


def writes(x: Any) -> Any:
    y = x * 1
    y.mul_(x).add_(x)
    return (y * y).sum()


def writes_to_views(x: Any) -> Any:
    y = x * 1
    y[0] = y[1] * 3
    y[1:].mul_(x[0])
    return (y * y).sum()


def constant(x: Any) -> Any:
    with torch.no_grad():
        c = x * 2
    return (x * c + x.detach()).sum()


def aux(p: Any) -> Any:
    return (p["w"] * p["b"][0]).sum(), {"n": p["b"][1] + 1}


X = torch.randn(4, generator=torch.Generator().manual_seed(0)).double()
XS = torch.randn(3, 4, generator=torch.Generator().manual_seed(1)).double()
P = (torch.randn(4, 3), torch.randn(3))
Y = torch.arange(5) % 3

CASES: dict[str, tuple[Callable[[Any, Any], Any], tuple[Any, ...]]] = {
    "grad": (lambda f, v: f.grad(wave), (X,)),
    "grad_and_value": (lambda f, v: f.grad_and_value(scalar), (X,)),
    "argnums": (lambda f, v: f.grad(lambda a, b: (a * b).sum(), argnums=(1, 0)), (X, X + 1)),
    "argnums from the end": (lambda f, v: f.grad(lambda a, b: (a * b).sum(), argnums=-1), (X, X + 1)),
    "aux": (lambda f, v: f.grad(aux, has_aux=True), ({"w": X, "b": [X + 1, X]},)),
    "grad of grad": (lambda f, v: f.grad(lambda x: f.grad(scalar)(x).sum()), (X,)),
    "jacrev": (lambda f, v: f.jacrev(vector), (X,)),
    "hessian": (lambda f, v: f.jacrev(f.jacrev(scalar)), (X,)),
    "vjp": (lambda f, v: lambda x: f.vjp(vector, x)[1](torch.ones(3, dtype=torch.float64)), (X,)),
    "writes": (lambda f, v: f.grad(writes), (X,)),
    "no_grad": (lambda f, v: f.grad(constant), (X,)),
    "vmap": (lambda f, v: v(wave), (XS,)),
    "per example": (lambda f, v: v(f.grad(loss), (None, 0, 0)), (P, torch.randn(5, 4), Y)),
    "vmap of jacrev": (lambda f, v: v(f.jacrev(vector)), (XS,)),
    "grad of vmap": (lambda f, v: f.grad(lambda x: v(scalar)(x).sum()), (XS,)),
    "grad of vmap of grad": (lambda f, v: f.grad(lambda x: v(f.grad(scalar))(x).pow(2).sum()), (XS,)),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("theirs", [False, True], ids=["ours", "torchs"])
def test_functions_of_functions_inside(name: str, theirs: bool) -> None:
    """Made inside the compiled function, by either spelling: one graph, without a break."""
    make, args = CASES[name]
    f, v = (torch.func, torch.vmap) if theirs else (tc.func, tc.vmap)
    compiled = tc.compile(lambda *given: make(f, v)(*given))
    same(compiled(*args), make(torch.func, torch.vmap)(*args))
    assert len(compiled.graphs) == 1 and not compiled.breaks


@pytest.mark.parametrize("name", CASES)
def test_functions_of_functions_compiled(name: str) -> None:
    """Made outside: the result of ``grad(f)`` is what is compiled, or called by what is compiled."""
    make, args = CASES[name]
    made, want = make(tc.func, tc.vmap), make(torch.func, torch.vmap)(*args)
    for compiled in (tc.compile(made), tc.compile(lambda *given: made(*given))):
        same(compiled(*args), want)
        assert len(compiled.graphs) == 1 and not compiled.breaks


def test_writes_to_views() -> None:
    same(tc.compile(tc.func.grad(writes_to_views))(X), torch.func.grad(writes_to_views)(X))


def test_torchs_backward_goes_through() -> None:
    w, x = torch.randn(4, 3, dtype=torch.float64, requires_grad=True), torch.randn(5, 4, dtype=torch.float64)
    compiled = tc.compile(lambda w: tc.func.grad(lambda x: torch.tanh(x @ w).sum())(x).pow(2).sum())
    compiled(w).backward()
    mine, w.grad = w.grad, None
    torch.func.grad(lambda x: torch.tanh(x @ w).sum())(x).pow(2).sum().backward()
    torch.testing.assert_close(mine, w.grad)
    assert len(compiled.graphs) == 1 and not compiled.breaks


def test_what_torch_alone_differentiates_breaks_the_graph() -> None:
    x = torch.eye(3) + torch.arange(9).reshape(3, 3) / 10
    compiled = tc.compile(lambda x: tc.func.grad(torch.linalg.det)(x))
    same(compiled(x), torch.func.grad(torch.linalg.det)(x))
    assert any("torch alone can differentiate it" in str(b) for b in compiled.breaks)


def test_what_leaves_the_function_is_made_again() -> None:
    compiled = tc.compile(lambda x: (x * 2, tc.func.grad(wave), tc.vmap(wave)))
    _, gradient, rows = compiled(X)
    same(gradient(X), 2 * torch.cos(X))
    same(rows(XS), torch.vmap(wave)(XS))
