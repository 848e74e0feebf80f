"""Autocast and compiled functions: regions around a call and inside it, over breaks, with gradients; every record's samples."""

from __future__ import annotations

import contextlib
import copy
import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import tinycompile as tc
from tests.eager.test_autocast import TORCH_REFUSES, UNDEFINED, lowered, outcome
from tests.lower.support import bind_sample, leaves
from tinycompile.base.device import Device
from tinycompile.capture.frame import capture
from tinycompile.ops.record import OPS

pytestmark = [pytest.mark.cpu, pytest.mark.filterwarnings("ignore:.*degrees of freedom", "ignore:reduction")]

FULL = os.environ.get("TINYCOMPILE_TESTS") == "full"
RANDOM = {"dropout", "native_dropout", "rand_like", "randn_like", "bernoulli", "multinomial"}


def region(**options: Any) -> Any:
    return torch.autocast("cpu", **{"dtype": torch.bfloat16, **options})


def nothing() -> Any:
    return contextlib.nullcontext()


@pytest.mark.parametrize("name", sorted(OPS.keys() - UNDEFINED - TORCH_REFUSES - RANDOM))
def test_every_record_compiled_in_a_region(name: str) -> None:
    op = OPS[name]
    for i, sample in enumerate(op.samples()):
        if i >= 1 and not FULL:
            return
        torch.manual_seed(0)
        args = tuple(a.torch() if isinstance(a, Device) else a for a in bind_sample(op, sample))
        for given in (args, lowered(args), (*lowered(args[:1]), *args[1:])):
            compiled = tc.compile(lambda *args: op.eager(*args), backend="eager")  # noqa: B023  # called here and now
            with region():
                want, got = outcome(lambda: op.eager(*given)), outcome(lambda: compiled(*given))  # noqa: B023
            assert_same(got, want)


def assert_same(got: Any, want: Any) -> None:
    if isinstance(want, Exception):
        assert isinstance(got, type(want)), got
        return
    assert not isinstance(got, Exception), got
    for g, w in zip(got, want, strict=True):
        assert (g.dtype, g.shape) == (w.dtype, w.shape)
        torch.testing.assert_close(g, w, equal_nan=True)


def around(x: Any, w: Any) -> Any:
    return torch.relu(x @ w) + 1


def inside(x: Any, w: Any) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x @ w
        with torch.autocast("cpu", enabled=False):
            z = y.float() @ w
        y = y @ w
    return y + z + (x @ w)


def with_a_break(x: Any, w: Any) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x @ w
        tc.graph_break()
        z = y @ w
    return z + x @ w


@torch.autocast("cpu", dtype=torch.bfloat16)
def decorated(x: Any, w: Any) -> Any:
    return x @ w


def calls_decorated(x: Any, w: Any) -> Any:
    return decorated(x, w) * 2


def asks(x: Any, w: Any) -> Any:
    if torch.is_autocast_enabled("cpu"):
        return x.to(torch.get_autocast_dtype("cpu")) + 1
    return x @ w


def without_a_record(x: Any, w: Any) -> Any:
    return F.conv_transpose2d(x[None, None], w[None, None]), torch.inner(x, w), torch.linalg.inv(x)


def in_place(x: Any, w: Any) -> Any:
    y = x * 1
    y.addmm_(x, w)
    return y


held = torch.autocast("cpu", dtype=torch.bfloat16)


def object_from_outside(x: Any, w: Any) -> Any:
    with held:
        y = x @ w
        print(end="")
        y = y @ w
    return y, x @ w


def raises_inside(x: Any, w: Any) -> Any:
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = x @ w
            raise ValueError
    except ValueError:
        return y, x @ w


FUNCTIONS: tuple[Callable[..., Any], ...] = (
    around, inside, with_a_break, decorated, calls_decorated, asks, without_a_record, in_place, object_from_outside,
    raises_inside,
)  # fmt: skip


def by_other_names(x: Any, w: Any) -> Any:
    """On a CPU there is a policy for matmul, none for mv, addmv, dot and inner products of vectors."""
    v = w[0]
    return (
        torch.mv(x, v),
        x.mv(v),
        torch.addmv(v, x, v),
        torch.dot(v, v),
        torch.matmul(x, v),
        torch.inner(v, v),
        x @ v,
        torch.outer(v, v),
    )


FUNCTIONS = (*FUNCTIONS, by_other_names)


@pytest.mark.parametrize("outer", [nothing, region, lambda: region(enabled=False)], ids=["none", "on", "off"])
@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda fn: fn.__name__)
def test_regions(fn: Callable[..., Any], outer: Callable[[], Any]) -> None:
    x, w = torch.randn(8, 8), torch.randn(8, 8)
    compiled = tc.compile(fn)
    for _ in range(3):
        with outer():
            want, got = fn(x, w), compiled(x, w)
            assert torch.is_autocast_enabled("cpu") == (outer is region)
        for g, w_ in zip(got if isinstance(got, tuple) else (got,), want if isinstance(want, tuple) else (want,), strict=True):
            assert g.dtype is w_.dtype
            torch.testing.assert_close(g, w_, rtol=2e-2, atol=2e-2)
        assert not torch.is_autocast_enabled("cpu")
    assert not compiled.recompiles or fn is with_a_break


def test_the_casts_are_in_the_graph_and_the_region_in_the_guards() -> None:
    x, w = torch.randn(4, 4), torch.randn(4, 4)
    with region():
        captured = capture(around, (x, w), {})
        assert captured.graph is not None and captured.guard(x, w)
        assert [n.target for n in captured.graph.nodes if n.kind == "call"] == ["to", "to", "matmul", "relu", "add"]
    assert not captured.guard(x, w)
    with region(dtype=torch.float16):
        assert not captured.guard(x, w)
    with region(enabled=False):
        assert not captured.guard(x, w)
        plain = capture(around, (x, w), {})
    assert plain.guard(x, w)


def test_one_entry_a_region() -> None:
    x, w = torch.randn(4, 4), torch.randn(4, 4)
    f = tc.compile(around, backend="eager")
    for _ in range(2):
        for options in ({}, {"dtype": torch.float16}, {"enabled": False}):
            with region(**options):
                assert torch.equal(f(x, w), around(x, w))
    assert len(f.graphs) == 3


def test_what_torch_composes_is_left_to_torch() -> None:
    with region():
        captured = capture(lambda x: torch.inner(x, x), (torch.randn(3, 3),), {})
    assert captured.graph is None and captured.breaks[0].id == "mode"


def test_a_region_left_open_stays_open() -> None:
    def opens(x: Any) -> Any:
        mode = torch.autocast("cpu", dtype=torch.bfloat16)
        mode.__enter__()
        return x @ x, mode

    for fn in (opens, tc.compile(opens)):
        y, mode = fn(torch.randn(3, 3))
        assert y.dtype is torch.bfloat16 and torch.is_autocast_enabled("cpu")
        mode.__exit__(None, None, None)
        assert not torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize("where", ["around", "inside"])
def test_training(where: str) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.LayerNorm(16), torch.nn.GELU(), torch.nn.Linear(16, 16), torch.nn.Linear(16, 4)
    )
    twin, exact = copy.deepcopy(model), copy.deepcopy(model).double()
    x, target = torch.randn(32, 8), torch.arange(32) % 4

    def loss(m: Any, x: Any) -> Any:
        with region() if where == "inside" else nothing():
            return F.cross_entropy(m(x), target)

    compiled = tc.compile(loss)
    for _ in range(2):
        for run, m in ((loss, model), (compiled, twin)):
            with region() if where == "around" else nothing():
                out = run(m, x)
            assert out.dtype is torch.float32
            out.backward()
        F.cross_entropy(exact(x.double()), target).backward()
    assert len(compiled.graphs) == 1
    for p, q, e in zip(model.parameters(), twin.parameters(), exact.parameters(), strict=True):
        assert q.grad.dtype is torch.float32
        mine, theirs = (q.grad - e.grad).norm(), (p.grad - e.grad).norm()
        assert mine <= 2 * theirs + 1e-6


@pytest.mark.parametrize(
    "equation",
    ["ij,jk->ik", "ij, jk", "ij,ij->ij", "ij,ij", "i,j->ij", "i,j->j", "ij,k->k", "k,ij->k", "ii,jj->ij", "ij,jk->ijk", "ij,jk->",
     "...i,...i", "...i,...j->...ij", "...,...->...", "i,i,j->j", "ij,jk,kl->il", "ij->ji", "ii->i"],
)  # fmt: skip
def test_an_einsum_is_a_product_where_it_sums_over_what_both_have(equation: str) -> None:
    terms = equation.partition("->")[0].replace(" ", "").split(",")
    tensors = [torch.randn([3] * len(term.replace("...", "b"))) for term in terms]

    def product(*tensors: torch.Tensor) -> torch.Tensor:
        return torch.einsum(equation, *tensors)

    with region():
        got, want = tc.compile(product, backend="eager")(*tensors), product(*tensors)
    assert got.dtype == want.dtype
    torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)


ROWS = torch.linspace(-1, 1, 24).reshape(1, 4, 6)
LOW = ROWS.bfloat16()
COMPOSED: dict[
    str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]
] = {  # what torch composes of ops with a policy, or refuses
    "grid_sample": (lambda x: F.grid_sample(x[None], x.new_zeros(1, 2, 2, 2), align_corners=False), (LOW,)),
    "affine_grid": (lambda x: F.affine_grid(x[:, :2, :3], [1, 1, 2, 2], align_corners=False), (ROWS,)),
    "pinv": (torch.linalg.pinv, (ROWS,)),
    "max_unpool1d": (lambda x: F.max_unpool1d(x, torch.arange(6).expand(1, 4, 6), 1), (LOW,)),
    "interpolate": (lambda x: F.interpolate(x.reshape(1, 2, 3, 2, 2), scale_factor=2, mode="area"), (LOW,)),
    "pad": (lambda x: F.pad(x, (1, 1), mode="reflect"), (LOW,)),
    "layer_norm": (lambda x, y: F.layer_norm(x, (6,), y[0, 0], y[0, 0]), (ROWS, LOW)),
    "cross": (lambda x, y: torch.cross(x[0, :, :3], y[0, :, :3], dim=1), (ROWS, LOW)),
    "index_copy_": (lambda x, y: x.clone().index_copy_(1, torch.tensor([0]), y[:, :1]), (ROWS, LOW)),
    "hstack": (lambda x: torch.hstack([x, x]), (ROWS.half(),)),
}


@pytest.mark.parametrize("name", COMPOSED)
def test_what_torch_composes_has_its_casts(name: str) -> None:
    fn, args = COMPOSED[name]
    with region():
        want = outcome(lambda: fn(*args))
        assert_same(outcome(lambda: tc.compile(fn)(*args)), want)
        assert_same(outcome(lambda: [t.torch() for t in leaves(fn(*map(tc.from_torch, args)))]), want)
