"""What tensors take as arguments, and what they refuse: methods and operators by odd values, each as torch's."""

from __future__ import annotations

import operator
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import tinycompile as tc

pytestmark = [pytest.mark.pure, pytest.mark.filterwarnings("ignore")]


class Index:
    def __index__(self) -> int:
        return 1


class Number:
    def __float__(self) -> float:
        return 1.5


def odd(tensor: Callable[[Any], Any]) -> dict[str, Any]:
    """Values that stand where a number, a dim, a size or a tensor is meant; ``tensor`` makes tensors of either kind."""
    return {
        "True": True, "1": 1, "-1": -1, "5": 5, "1.0": 1.0, "1.5": 1.5, "nan": float("nan"), "1j": 1j, "'1'": "1",
        "'cpu'": "cpu", "b'1'": b"1", "np.int64": np.int64(1), "np.uint8": np.uint8(1), "np.bool_": np.bool_(True),
        "np.float64": np.float64(1), "np.float32": np.float32(1), "array of 0 dims": np.array(1), "array": np.array([1]),
        "tensor of 0 dims": tensor(1), "float tensor of 0 dims": tensor(1.0), "bool tensor of 0 dims": tensor(True),
        "tensor of one": tensor([1]), "tensor of two": tensor([0, 1]), "index": Index(), "float": Number(),
        "object": object(), "[1]": [1], "(1,)": (1,), "(0, 0)": (0, 0), "()": (), "[np.int64]": [np.int64(1)],
        "[True]": [True], "(tensor,)": (tensor(1),), "(index,)": (Index(),), "(2.0, 3)": (2.0, 3), "[[1]]": [[1]],
        "Size": torch.Size([1]), "{}": {}, "{1}": {1}, "range": range(1, 2), "Fraction": Fraction(1), "dtype": torch.float64,
        "device": torch.device("cpu"), "slice": slice(0, 1), "...": ..., "type": float,
    }  # fmt: skip


def setitem(x: Any, index: Any, value: Any) -> Any:
    x = x.clone()
    x[index] = value
    return x


_METHODS = """
    sum mean argmax cumsum softmax all amax norm max min median var std argmin any unsqueeze unbind logsumexp cumprod sort
    log_softmax flip size stride nansum count_nonzero cummax add sub mul div pow remainder fmod eq lt maximum clamp fill_ add_ mul_
    atan2 copysign bitwise_and view reshape expand repeat permute to type new_zeros chunk split roll flatten tril triu diagonal
    new_ones tile hypot logical_and float_power copy_ div_ view_as expand_as type_as reshape_as round matmul bmm outer contiguous
    clone requires_grad_ broadcast_to tensor_split allclose equal topk repeat_interleave nan_to_num clamp_min ldexp numpy item
    __getitem__ __contains__ __eq__ __add__ __radd__ __and__ __rsub__ __pow__ __rpow__ __matmul__ __rmatmul__ __lshift__ __iadd__
    __truediv__ __floordiv__ __mod__ __rmod__ __lt__
""".split()

CALLS: dict[str, Callable[[Any, Any], Any]] = {
    **{f"x.{name}(v)": (lambda name: lambda x, v: getattr(x, name)(v))(name) for name in _METHODS},
    "x[v]": lambda x, v: x[v],
    "x[v:]": lambda x, v: x[v:],
    "x[:v]": lambda x, v: x[:v],
    "x[::v]": lambda x, v: x[::v],
    "x[0, v]": lambda x, v: x[0, v],
    "x[0, :v]": lambda x, v: x[0, :v],
    "x[..., v]": lambda x, v: x[..., v],
    "x[None, v]": lambda x, v: x[None, v],
    "x[v] = 0": lambda x, v: setitem(x, v, 0),
    "x[v:] = 0": lambda x, v: setitem(x, slice(v, None), 0),
    "x[0] = v": lambda x, v: setitem(x, 0, v),
    "x.view(v, -1)": lambda x, v: x.view(v, -1),
    "x.view((v, 6))": lambda x, v: x.view((v, 6)),
    "x.reshape(v, -1)": lambda x, v: x.reshape(v, -1),
    "x.expand(v, 2, 3)": lambda x, v: x.expand(v, 2, 3),
    "x.permute(v, 0)": lambda x, v: x.permute(v, 0),
    "x.transpose(0, v)": lambda x, v: x.transpose(0, v),
    "x.narrow(v, 0, 1)": lambda x, v: x.narrow(v, 0, 1),
    "x.narrow(0, v, 1)": lambda x, v: x.narrow(0, v, 1),
    "x.narrow(0, 0, v)": lambda x, v: x.narrow(0, 0, v),
    "x.select(0, v)": lambda x, v: x.select(0, v),
    "x.select(v, 0)": lambda x, v: x.select(v, 0),
    "x.unflatten(0, v)": lambda x, v: x.unflatten(0, v),
    "x.unfold(0, v, 1)": lambda x, v: x.unfold(0, v, 1),
    "x.sum(0, v)": lambda x, v: x.sum(0, v),
    "x.sum(0, keepdim=v)": lambda x, v: x.sum(0, keepdim=v),
    "x.sum(dim=v)": lambda x, v: x.sum(dim=v),
    "x.sum(dtype=v)": lambda x, v: x.sum(dtype=v),
    "x.std(0, v)": lambda x, v: x.std(0, v),
    "x.var(0, correction=v)": lambda x, v: x.var(0, correction=v),
    "x.clamp(v, 2)": lambda x, v: x.clamp(v, 2),
    "x.add(x, alpha=v)": lambda x, v: x.add(x, alpha=v),
    "x.masked_fill(x > 0, v)": lambda x, v: x.masked_fill(x > 0, v),
    "x.lerp(x, v)": lambda x, v: x.lerp(x, v),
    "x.new_full((2,), v)": lambda x, v: x.new_full((2,), v),
    "x.new_full(v, 1.0)": lambda x, v: x.new_full(v, 1.0),
    "x.split(1, v)": lambda x, v: x.split(1, v),
    "x.to(torch.float64, v)": lambda x, v: x.to(torch.float64, v),
    "x.to(dtype=v)": lambda x, v: x.to(dtype=v),
    "x.to(device=v)": lambda x, v: x.to(device=v),
    "x.to(copy=v)": lambda x, v: x.to(copy=v),
    "x.where(x > 0, v)": lambda x, v: x.where(x > 0, v),
    "x.gather(v, i)": lambda x, v: x.gather(v, (x > 9).long()),
    "x.backward(v)": lambda x, v: x.backward(v),
    "v + x": lambda x, v: v + x,
    "v - x": lambda x, v: v - x,
    "v * x": lambda x, v: v * x,
    "v / x": lambda x, v: v / x,
    "v // x": lambda x, v: v // x,
    "v % x": lambda x, v: v % x,
    "v ** x": lambda x, v: v**x,
    "v == x": lambda x, v: v == x,
    "v < x": lambda x, v: v < x,
    "v @ x": lambda x, v: v @ x,
    "v & x": lambda x, v: v & x,
    "x + v": lambda x, v: x + v,
    "x / v": lambda x, v: x / v,
    "x ** v": lambda x, v: x**v,
    "x == v": lambda x, v: x == v,
    "x != v": lambda x, v: x != v,
    "x < v": lambda x, v: x < v,
    "x @ v": lambda x, v: x @ v,
    "x & v": lambda x, v: x & v,
    "x += v": lambda x, v: operator.iadd(x.clone(), v),
    "v in x": lambda x, v: v in x,
    "torch.add(v, x)": lambda x, v: torch.add(v, x),
    "torch.sum(x, v)": lambda x, v: torch.sum(x, v),
    "torch.cat([x, x], v)": lambda x, v: torch.cat([x, x], v),
    "torch.stack([x, x], v)": lambda x, v: torch.stack([x, x], v),
    "torch.where(x > 0, x, v)": lambda x, v: torch.where(x > 0, x, v),
    "torch.full_like(x, v)": torch.full_like,
    "torch.zeros_like(x, dtype=v)": lambda x, v: torch.zeros_like(x, dtype=v),
    "F.softmax(x, v)": lambda x, v: F.softmax(x, v),
    "F.gelu(x, approximate=v)": lambda x, v: F.gelu(x, approximate=v),
    "F.layer_norm(x, v)": lambda x, v: F.layer_norm(x, v),
    "F.leaky_relu(x, v)": lambda x, v: F.leaky_relu(x, v),
    "F.pad(x, v)": lambda x, v: F.pad(x, v),
    "F.linear(x, v)": lambda x, v: F.linear(x, v),
    "F.mse_loss(x, v)": lambda x, v: F.mse_loss(x, v),
    "F.mse_loss(x, x, reduction=v)": lambda x, v: F.mse_loss(x, x, reduction=v),
}


def described(value: Any) -> Any:
    """What a caller can see of a result; values to six digits (5 / x is torch's reciprocal times 5, ours a quotient)."""
    if isinstance(value, (torch.Tensor, tc.Tensor)):
        raw = value.torch() if isinstance(value, tc.Tensor) else value
        return "tensor", tuple(raw.shape), raw.dtype, np.array2string(raw.detach().numpy(), precision=6, suppress_small=False)
    if isinstance(value, (tuple, list)):
        return [described(v) for v in value]
    return type(value).__name__, str(value)


def outcome(call: Callable[[Any, Any], Any], x: Any, v: Any) -> Any:
    try:
        return described(call(x, v))
    except Exception as error:  # noqa: BLE001  # which one is what is asked
        return type(error)


@pytest.mark.parametrize("name", CALLS)
def test_odd_arguments(name: str) -> None:
    """The result, or the type of the exception, is torch's for every value, on floats and on integers."""
    wrong = []
    for dtype in (torch.float32, torch.int64):
        data = torch.tensor([[1.5, -2.0, 3.0], [0.5, 4.0, -1.0]]).to(dtype)
        ours, theirs = odd(tc.tensor), odd(torch.tensor)
        for value, given in theirs.items():
            want = outcome(CALLS[name], data.clone(), given)
            got = outcome(CALLS[name], tc.from_torch(data.clone()), ours[value])
            if got != want:
                wrong.append((dtype, value, got, want))
    assert not wrong, "\n".join(map(str, wrong))


# --- views by other integers than Python's know their base -----------------------------------------------------------------------

VIEWS: dict[str, Callable[[Any, Any], Any]] = {
    "x[n]": lambda x, n: x[n],
    "x[n:]": lambda x, n: x[n:],
    "x[..., n]": lambda x, n: x[..., n],
    "view": lambda x, n: x.view(n, -1),
    "view of a list": lambda x, n: x.view([n, 6]),
    "reshape": lambda x, n: x.reshape(n, 6),
    "narrow": lambda x, n: x.narrow(0, n, 1),
    "select": lambda x, n: x.select(n, 0),
    "permute": lambda x, n: x.permute(n, 0),
    "transpose": lambda x, n: x.transpose(0, n),
    "unsqueeze": lambda x, n: x.unsqueeze(n),
    "expand": lambda x, n: x.expand(n, 2, 3),
    "movedim": lambda x, n: x.movedim(0, n),
    "diagonal": lambda x, n: x.diagonal(n),
    "flatten": lambda x, n: x.flatten(0, n),
    "squeeze": lambda x, n: x.squeeze(n),
    "unfold": lambda x, n: x.unfold(n, 2, 1),
}


@pytest.mark.parametrize("kind", ["numpy's", "a tensor's"])
@pytest.mark.parametrize("name", VIEWS)
def test_writes_through_views_by_other_integers(name: str, kind: str) -> None:
    """The base's gradient knows of them."""
    grads = []
    for own in (False, True):
        n = np.int64(1) if kind == "numpy's" else (tc.tensor if own else torch.tensor)(1)
        x = torch.arange(6.0).reshape(2, 3)
        x = (tc.from_torch(x) if own else x).requires_grad_()
        y = x * 2
        try:
            view = VIEWS[name](y, n)
        except TypeError:  # torch takes no tensor there
            grads.append(None)
            continue
        with_gaps = name == "unfold"  # windows overlap: torch refuses to write to them
        if not with_gaps:
            view.mul_(3)
        y.sum().backward()
        assert x.grad is not None
        grads.append(x.grad.torch() if own else x.grad)
    assert (grads[0] is None) == (grads[1] is None)
    torch.testing.assert_close(grads[1], grads[0])


# --- numpy on the other side -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ufunc", [np.sin, np.sqrt, np.add, np.multiply, np.greater])
def test_ufuncs_give_tensors(ufunc: Any) -> None:
    x = torch.tensor([1.0, 4.0])
    args = (x,) if ufunc.nin == 1 else (x, np.array([2.0, 3.0]))
    got, want = ufunc(*(tc.from_torch(a) if isinstance(a, torch.Tensor) else a for a in args)), ufunc(*args)
    assert isinstance(got, tc.Tensor) and isinstance(want, torch.Tensor)
    assert described(got) == described(want)
