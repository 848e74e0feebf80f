"""Views under vmap: what is written to one is written to every example, and gradients follow, whichever function made it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import tinycompile as tc
from tests.eager import numpy_device
from tinycompile.eager.custom_device import forget_device
from tinycompile.eager.tensor import from_torch

pytestmark = [pytest.mark.pure, pytest.mark.filterwarnings("ignore:vmap calls", "ignore:.*numpy.T", "ignore:Casting complex")]

# Of a (2, 2) example. Those without a record, those with one, and those whose dtype records do not know.
VIEWS: dict[str, Callable[[Any], Any]] = {
    "adjoint": lambda a: a.adjoint(),
    "mH": lambda a: a.mH,
    "H": lambda a: a.H,
    "T": lambda a: a.T,
    "transpose": lambda a: a.transpose(0, 1),
    "swapdims": lambda a: a.swapdims(0, 1),
    "view": lambda a: a.view(2, 2),
    "conj": lambda a: a.conj(),
    "real": lambda a: a.real,
    "bits of other integers": lambda a: a.view(torch.int32),
    "bits of one number": lambda a: a[0, 1].view(torch.int32) if a.dtype is torch.float32 else a[0, 1],
    "unfold": lambda a: a.unfold(0, 1, 1),
    "diagonal": lambda a: torch.linalg.diagonal(a),
    "atleast_3d": lambda a: torch.atleast_3d(a),
    "tensor_split": lambda a: a.tensor_split(2)[0],
    "hsplit": lambda a: a.hsplit(2)[1],
    "vsplit": lambda a: a.vsplit(2)[1],
    "unbind": lambda a: a.unbind()[1],
    "expand": lambda a: a.expand(1, 2, 2),
    "broadcast_tensors": lambda a: torch.broadcast_tensors(a, a)[0],
    "broadcast_to": lambda a: a.broadcast_to((1, 2, 2)),
    "meshgrid": lambda a: torch.meshgrid(a[0], a[1], indexing="ij")[0],
    "aten's t": lambda a: torch.ops.aten.t(a),
    "aten's alias": lambda a: torch.ops.aten.alias(a),
    "aten's select": lambda a: torch.ops.aten.select(a, 0, 0),
    "as_strided": lambda a: a.as_strided((2,), (1,)),
    "as_strided, from a place": lambda a: a.as_strided((2,), (1,), 1),
    "as_strided of a row": lambda a: a[1].as_strided((2,), (1,)),
    "as_strided of a row, from a place": lambda a: a[1].as_strided((2,), (1,), 2),
    "as_strided, from beyond": lambda a: a.as_strided((2,), (1,), 5),
    "aten's as_strided": lambda a: torch.ops.aten.as_strided(a, (2,), (1,), 1),
    "a copy": lambda a: torch.as_strided_copy(a, (2,), (1,), 1),
    "ravel": lambda a: a.ravel(),
    "squeeze": lambda a: a.squeeze(),
}


def outcome(fn: Callable[[], Any]) -> Any:
    try:
        found = fn()
    except RuntimeError as error:
        return str(error)
    return found.tolist()


def agree(ours: Callable[[], Any], torchs: Callable[[], Any]) -> None:
    """Unless this torch has no rule for it: of views by dtype 2.11 has none."""
    got, expected = outcome(ours), outcome(torchs)
    assert got == expected or "Batching rule not implemented" in expected


def written(vmap: Any, view: Callable[[Any], Any], x: Any, dim: int) -> Any:
    vmap(lambda a: view(a).zero_().abs().sum(), in_dims=dim)(x)
    return x


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
@pytest.mark.parametrize("name", VIEWS)
def test_writes_reach_every_example(name: str, dtype: torch.dtype, dim: int) -> None:
    x = torch.arange(1, 13).view(3, 2, 2).movedim(0, dim).to(dtype).contiguous()
    agree(
        lambda: written(tc.vmap, VIEWS[name], from_torch(x.clone()), dim),
        lambda: written(torch.vmap, VIEWS[name], x.clone(), dim),
    )
    agree(
        lambda: tc.vmap(lambda a: VIEWS[name](a) * 1, in_dims=dim)(from_torch(x)),
        lambda: torch.vmap(lambda a: VIEWS[name](a) * 1, in_dims=dim)(x),
    )


@pytest.mark.parametrize("name", VIEWS)
def test_writes_reach_every_example_of_every_level(name: str) -> None:
    x = torch.arange(24.0).view(3, 2, 2, 2)

    def nested(vmap: Any, x: Any) -> Any:
        vmap(vmap(lambda a: VIEWS[name](a).mul_(2).sum()), in_dims=1)(x)
        return x

    agree(lambda: nested(tc.vmap, from_torch(x.clone())), lambda: nested(torch.vmap, x.clone()))


@pytest.mark.parametrize("where", ["inside", "outside"])
@pytest.mark.parametrize("name", VIEWS)
def test_gradients_follow_writes(name: str, where: str) -> None:
    """Inside vmap each example has its own; outside the tape is below."""
    x = torch.arange(12.0).view(3, 2, 2)

    def f(x: Any) -> Any:
        a = x * x
        VIEWS[name](a).mul_(3)
        return a.sum()

    def found(lib: Any, func: Any, x: Any) -> Any:
        return lib.vmap(func.grad(f))(x) if where == "inside" else func.grad(lambda x: lib.vmap(f)(x).sum())(x)

    agree(lambda: found(tc, tc.func, from_torch(x)), lambda: found(torch, torch.func, x))


SOME: dict[str, Callable[[Any], Any]] = {
    "the middle": lambda y: y[6:12],
    "rows": lambda y: y.view(4, 6)[1:3],
    "every second": lambda y: y.view(4, 6)[:, ::2],
    "a column": lambda y: y.view(4, 6)[:, 1],
}
ACTS: dict[str, Callable[[Any, Any], Any]] = {
    "nothing": lambda b, v: None,
    "mul_": lambda b, v: v.mul_(3),
    "mul_ of what is viewed": lambda b, v: b.mul_(3),
    "copy_": lambda b, v: v.copy_(v * 0 + 7),
}


@pytest.mark.parametrize("where", ["inside", "outside", "no_grad"])
@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("some", SOME)
def test_as_strided_between_the_elements_of_a_view(some: str, act: str, where: str) -> None:
    """Gradients were lost without a word."""
    x = torch.arange(48.0).view(2, 24)
    for place in ((4,), (1,), 7), ((2, 2), (6, 1), 7), ((3,), (2,), None), ((2,), (1,), 6), ((2, 2), (2, 1), 8):

        def f(y: Any) -> Any:
            y = y * 1
            with torch.set_grad_enabled(where != "no_grad"):
                b = SOME[some](y)
                v = b.as_strided(*place)  # noqa: B023
                ACTS[act](b, v)
            return (v * v).sum() + (y * y * y).sum()

        def found(lib: Any, func: Any, x: Any) -> Any:
            if where == "outside":
                return func.grad(lambda x: lib.vmap(f)(x).sum())(x)  # noqa: B023
            return lib.vmap(func.grad(f))(x)  # noqa: B023

        agree(lambda: found(tc, tc.func, from_torch(x)), lambda: found(torch, torch.func, x))  # noqa: B023


@pytest.fixture
def npd() -> Iterator[str]:
    """A registered device, where torch has no tensors."""
    numpy_device.register()
    yield numpy_device.NAME
    forget_device()


@pytest.mark.filterwarnings("ignore:npd")
def test_writes_reach_every_example_on_a_registered_device(npd: str) -> None:
    x = torch.arange(12.0).view(3, 2, 2)
    for view in VIEWS.values():
        mine = from_torch(x).to(npd)
        agree(lambda: written(tc.vmap, view, mine, 0).cpu(), lambda: written(torch.vmap, view, x.clone(), 0))  # noqa: B023


@pytest.mark.parametrize("name", ["split", "chunk", "unbind"])
def test_views_that_came_in_groups_are_refused(name: str) -> None:
    def f(x: Any) -> Any:
        a = x * 1
        next(iter(getattr(a, name)(*[2] * (name != "unbind")))).mul_(3)
        return a.sum()

    x = torch.ones(3, 2, 2)
    expected = outcome(lambda: torch.vmap(torch.func.grad(f))(x))
    assert isinstance(expected, str) and outcome(lambda: tc.vmap(tc.func.grad(f))(from_torch(x))) == expected


def test_what_all_examples_share_is_written_once() -> None:
    x, w = torch.ones(3, 2), torch.ones(2)
    tc.vmap(lambda a: torch.broadcast_tensors(a, w)[1].zero_())(x)
    assert w.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize(
    "place", [((2,), (1,), None), ((3,), (2,), 0), ((2, 2), (1, 1), 1), ((), (), 9), ((2,), (-1,), 0)], ids=str
)
def test_as_strided_stays_within_an_example(place: Any, dim: int) -> None:
    """In torch's words."""
    x = torch.arange(12.0).view(3, 4)
    expected = outcome(lambda: torch.vmap(lambda a: a.as_strided(*place), in_dims=dim)(x))
    assert outcome(lambda: tc.vmap(lambda a: a.as_strided(*place), in_dims=dim)(from_torch(x))) == expected


def test_as_strided_scatter_is_refused() -> None:
    for vmap in (torch.vmap, tc.vmap):
        with pytest.raises(RuntimeError, match="as_strided_scatter requires special handling"):
            vmap(lambda a: torch.as_strided_scatter(a, a, (2,), (1,), 1))(torch.ones(3, 2))
