"""What calls give, take and refuse on a registered device, as torch's do on its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import tinycompile
from tests.eager import numpy_device
from tests.eager.device_support import registered
from tests.eager.numpy_device import NAME, array, copy

pytestmark = pytest.mark.cpu
GIVEN: list[Any] = []  # what the kernel of add was called with


@pytest.fixture(autouse=True)
def device() -> Iterator[None]:
    with registered(None):
        yield


def with_kernels(kernels: dict[str, Callable[..., None]]) -> None:
    """The device again, with these alone."""
    tinycompile.register_device(NAME, numpy_device.Chunk, copy, kernels)


def add(out: Any, *args: Any) -> None:
    """As on the page of the documentation: every operand is a tensor."""
    GIVEN[:] = args
    a, b, alpha = args
    array(out)[...] = array(a) + alpha * array(b)


SEVERAL = {
    "max": lambda a: a.max(1),
    "min": lambda a: torch.min(a, 0, keepdim=True),
    "aminmax": lambda a: torch.aminmax(a),
    "cummax": lambda a: a.cummax(1),
    "cummin": lambda a: torch.cummin(a, 0),
    "sort": lambda a: a.sort(descending=True),
    "topk": lambda a: a.topk(2),
    "median": lambda a: a.median(1),
    "mode": lambda a: a.mode(1),
    "kthvalue": lambda a: a.kthvalue(2),
    "var_mean": lambda a: torch.var_mean(a, 1),
    "qr": lambda a: torch.linalg.qr(a),
}


@pytest.mark.parametrize("followed", [False, True], ids=["plain", "tape"])
@pytest.mark.parametrize("name", SEVERAL)
def test_several_results_have_torchs_names(name: str, followed: bool) -> None:
    a = torch.tensor([[1.0, 3.0, 2.0], [5.0, 4.0, 6.0]])
    x = tinycompile.from_torch(a).to(NAME).requires_grad_(followed)
    made, expected = SEVERAL[name](x), SEVERAL[name](a)
    assert type(made) is type(expected) and len(made) == len(expected)
    for mine, theirs in zip(made, expected, strict=True):
        assert mine.device.type == NAME
        torch.testing.assert_close(mine.detach().cpu().torch(), theirs)
    if name == "max":
        assert made.values is made[0] and made.indices is made[1]


X, OTHER, HERE = f"{NAME}:0", f"{NAME}:1", "cpu"
MIXED: dict[str, tuple[Callable[[Any, Any], Any], str, str]] = {
    "indices": (lambda x, at: x[at], X, OTHER),
    "indices into the cpu's": (lambda x, at: x[at], HERE, X),
    "written to indices": (lambda x, at: x.__setitem__(at, 1.0), X, OTHER),
    "written to the cpu's": (lambda x, at: x.__setitem__(at, 1.0), HERE, X),
}


@pytest.mark.parametrize("case", MIXED)
def test_indices_on_another_device_are_refused(case: str) -> None:
    fn, there, where = MIXED[case]
    x, at = tinycompile.ones(2, 3, device=there), tinycompile.tensor([0]).to(where)
    with pytest.raises(RuntimeError, match=rf"indices should be either on cpu or on the same device .* \({there}\)"):
        fn(x, at)
    assert x.sum().item() == 6
    assert x[tinycompile.tensor([0])].shape == (1, 3), "the CPU's are taken"


@pytest.mark.parametrize("other", [HERE, OTHER])
@pytest.mark.parametrize(
    "fn",
    [torch.equal, torch.allclose, torch.isclose, torch.kron, torch.cdist, lambda a, b: a.add_(b), lambda a, b: a.lerp_(b, 0.5)],
    ids=["equal", "allclose", "isclose", "kron", "cdist", "add_", "lerp_"],
)
@pytest.mark.parametrize("followed", [False, True], ids=["plain", "tape"])
def test_tensors_on_another_device_are_refused(fn: Callable[..., Any], other: str, followed: bool) -> None:
    x = tinycompile.ones(2, 2, device=X).requires_grad_(followed) * 1
    with pytest.raises(RuntimeError, match=f"same device, but found at least two devices, {X} and {other}!"):
        fn(x, tinycompile.ones(2, 2, device=other))


def test_what_may_lie_anywhere_may() -> None:
    x, y = tinycompile.ones(2, 2, device=X), tinycompile.zeros(2, 2, dtype=torch.float64)
    assert torch.equal(x, x.clone()) and x.copy_(y).sum().item() == 0
    assert x.view_as(y).device == x.device and x.expand_as(y).shape == (2, 2) and x.is_same_size(y)
    assert (x * tinycompile.tensor(3.0)).device == x.device


def test_its_index_is_told() -> None:
    x = tinycompile.ones(2, device=OTHER)
    assert x.get_device() == torch.get_device(x) == 1 and tinycompile.ones(2, device=NAME).get_device() == 0
    assert tinycompile.ones(2).get_device() == tinycompile.ones(2, device="meta").get_device() == -1


@pytest.mark.parametrize("randomness", ["different", "same"])
def test_numbers_drawn_under_vmap_lie_there(randomness: str) -> None:
    x = tinycompile.zeros(2, 3, device=NAME)
    draw = [lambda a: a + tinycompile.rand(3, device=NAME), lambda a: a + torch.rand_like(a)]
    for fn in draw:
        made = tinycompile.vmap(fn, randomness=randomness)(x)
        assert made.device == x.device and torch.equal(made[0], made[1]) is (randomness == "same")
        assert 0 < made.sum().item() < 6


# --- kernels -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.bool])
@pytest.mark.parametrize("number", [2, 1.5, True, -0.0], ids=str)
@pytest.mark.parametrize("first", [False, True], ids=["tensor first", "number first"])
def test_numbers_come_as_tensors_where_the_schema_says_so(dtype: torch.dtype, number: Any, first: bool) -> None:
    with_kernels({"add": add})
    a = torch.tensor([0, 1, 1]).to(dtype)
    x = tinycompile.from_torch(a).to(NAME)
    made, expected = (number + x, number + a) if first else (x + number, a + number)
    assert made.dtype == expected.dtype and torch.equal(made.cpu().torch(), expected)
    assert all(isinstance(v, tinycompile.Tensor) and v.device == x.device for v in GIVEN[:2]) and GIVEN[2] == 1


@pytest.mark.parametrize("error", [TypeError, ValueError, AttributeError])
def test_a_kernels_own_error_is_shown(error: type[Exception]) -> None:
    def fails(out: Any, *args: Any) -> None:
        raise error("the kernel's own words")

    with_kernels({"add": fails})
    x = tinycompile.ones(2, device=NAME)
    for call in (lambda: x + 1, lambda: 1 + x, lambda: x + x, lambda: torch.add(x, 1), lambda: x.add(x), lambda: x.add_(1)):
        with pytest.raises(error, match="the kernel's own words"):
            call()
    with pytest.raises(TypeError, match="unsupported operand"):
        x + object()


def test_it_has_no_sparse_tensors() -> None:
    with pytest.raises(NotImplementedError, match="no tensors of layout"):
        tinycompile.eye(2).to(NAME).to_sparse()
