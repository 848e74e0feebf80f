"""The short way of small calls, views and indices: the same answers as the whole way, however a call is repeated."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import tinycompile as tc
from tests.eager.test_tensor import assert_same
from tinycompile.eager import shortcut
from tinycompile.eager.tensor import Tensor, from_torch

pytestmark = pytest.mark.pure

CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "t": lambda x, y: x.t(),
    "transpose": lambda x, y: torch.transpose(x, 0, 1),
    "transpose by keywords": lambda x, y: x.transpose(dim1=0, dim0=1),
    "view": lambda x, y: x.view(2, 8),
    "view of a tuple": lambda x, y: x.view((8, 2)),
    "view of a list": lambda x, y: x.view([4, 4]),
    "view of another dtype": lambda x, y: x.detach().view(torch.int32),
    "reshape of a view": lambda x, y: x.t().reshape(16),
    "permute": lambda x, y: x.permute(1, 0),
    "expand": lambda x, y: x[:1].expand(3, -1),
    "squeeze": lambda x, y: x[None].squeeze(0),
    "narrow": lambda x, y: x.narrow(0, 1, 2).narrow(1, 0, 3),
    "detach": lambda x, y: x.detach(),
    "contiguous": lambda x, y: x.contiguous(),
    "contiguous of a view": lambda x, y: x.t().contiguous(),
    "contiguous of a part": lambda x, y: x[:, 1:].contiguous(),
    "a copy of a layout": lambda x, y: x.t().clone(memory_format=torch.contiguous_format),
    "a copy of a view": lambda x, y: x.t().clone(),
    "another dtype of a view": lambda x, y: x.t().to(torch.float64),
    "float": lambda x, y: x.float(),
    "an index": lambda x, y: x[1],
    "from the end": lambda x, y: x[-1],
    "a slice": lambda x, y: x[1:3],
    "True": lambda x, y: x[True],
    "several": lambda x, y: x[..., None, ::2],
    "one after the other": lambda x, y: x[1:][1][::2],
    "sum": lambda x, y: x.sum(1),
    "sum by keywords": lambda x, y: x.sum(dim=0, keepdim=True),
    "sum of a list": lambda x, y: x.sum([0, 1]),
    "alpha": lambda x, y: torch.add(x, y, alpha=2),
    "alpha of another value": lambda x, y: torch.add(x, y, alpha=3),
    "alpha of a float": lambda x, y: torch.add(x, y, alpha=0.5),
    "alpha of another float": lambda x, y: torch.add(x, y, alpha=1.5),
    "a negative zero": lambda x, y: torch.add(x * 0, y, alpha=-0.0).signbit(),
    "a zero": lambda x, y: torch.add(x * 0, y, alpha=0.0).signbit(),
    "clamp": lambda x, y: x.clamp(min=0),
    "clamp by a float": lambda x, y: x.clamp(min=0.5),
    "softmax": lambda x, y: F.softmax(x, dim=1),
    "softmax of other rows": lambda x, y: F.softmax(x, dim=0),
    "gelu": lambda x, y: F.gelu(x, approximate="tanh"),
    "gelu, exact": lambda x, y: F.gelu(x, approximate="none"),
    "two arguments": lambda x, y: torch.where(x > 0, x, y),
    "one argument twice": lambda x, y: torch.where(x > 0, x, x),
    "linear": lambda x, y: F.linear(x, weight=y),
    "linear of itself": lambda x, y: F.linear(x, weight=x),
    "layer_norm": lambda x, y: F.layer_norm(x, (4,), weight=y[0]),
    "layer_norm with a bias": lambda x, y: F.layer_norm(x, (4,), weight=y[0], bias=y[1]),
}


def values(dtype: torch.dtype, rows: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    made = torch.arange(8.0 * rows).sub(11).reshape(2, rows, 4)
    return made[0].to(dtype).clone(), made[1].flip(0).to(dtype).clone()


def outcome(fn: Callable[[Any, Any], Any], x: Any, y: Any) -> Any:
    try:
        return fn(x, y)
    except (RuntimeError, IndexError) as error:
        return error


@pytest.mark.parametrize("name", CALLS)
def test_again_and_again(name: str) -> None:
    """Of several dtypes, sizes and strides in turns, so that what was remembered of one is asked for another."""
    for _ in range(3):
        for dtype, rows in ((torch.float32, 4), (torch.float64, 4), (torch.float32, 6), (torch.int64, 4)):
            for turned in (False, True):
                x, y = (t.t() if turned and rows == 4 else t for t in values(dtype, rows))
                got, want = outcome(CALLS[name], from_torch(x), from_torch(y)), outcome(CALLS[name], x, y)
                if isinstance(want, Exception):
                    assert type(got) is type(want) and str(got) == str(want)
                else:
                    assert_same(got, want)


@pytest.mark.parametrize("name", CALLS)
def test_on_the_tape(name: str) -> None:
    for _ in range(3):
        for wanted in ((True, False), (False, True), (True, True)):
            x, y = (t.requires_grad_(w) for t, w in zip(values(torch.float64), wanted, strict=True))
            p, q = (from_torch(t.detach().clone()).requires_grad_(w) for t, w in zip((x, y), wanted, strict=True))
            got, want = CALLS[name](p, q), CALLS[name](x, y)
            assert got.requires_grad == want.requires_grad
            assert_same(got.detach(), want.detach())
            if not want.requires_grad:
                continue
            (want * want).sum().backward()
            (got * got).sum().backward()
            for mine, theirs in ((p, x), (q, y)):
                assert (mine.grad is None) == (theirs.grad is None)
                if theirs.grad is not None:
                    torch.testing.assert_close(mine.grad.torch(), theirs.grad)


def test_views_are_written_through_and_tell_their_base() -> None:
    for _ in range(3):
        x, t = from_torch(torch.zeros(4, 4)).requires_grad_(), torch.zeros(4, 4, requires_grad=True)
        y, u = x * 1, t * 1
        y[1].t()[0].view(-1)[:1].fill_(3), u[1].t()[0].view(-1)[:1].fill_(3)
        y.t()[2].mul_(2), u.t()[2].mul_(2)
        (y * y).sum().backward(), (u * u).sum().backward()
        assert torch.equal(x.grad.torch(), t.grad) and torch.equal(y.detach().torch(), u.detach())
        with pytest.raises(RuntimeError, match="a view of a leaf Variable that requires grad is being used in an in-place"):
            x[0].fill_(1)
        with torch.no_grad():
            assert x[0].requires_grad and x[0].is_leaf


def test_what_is_special_takes_the_whole_way() -> None:
    x = tc.randn(4, 4)
    for _ in range(3):
        x.t(), x[0], x.sum(dim=1)
    with tc.profile() as p:
        x.t(), x[0], x.sum(dim=1)
    assert {"t", "select", "sum"} <= {s.name for s in p.walk()}
    with tc.autocast("cpu"):
        assert F.linear(x, weight=x).dtype is torch.bfloat16
    rows = tc.vmap(lambda r: (r[0], r.sum(dim=0)))(x)
    assert torch.equal(rows[0].torch(), x.torch()[:, 0])
    assert type(x.to("meta").t()) is Tensor and x.to("meta").t().is_meta
    assert torch.equal(
        tc.compile(lambda x: x.t()[0] + x.sum(dim=1), backend="eager")(x).torch(), x.torch().t()[0] + x.torch().sum(1)
    )


def test_what_writes_by_a_keyword_writes_once() -> None:
    x, t = tc.ones(3), torch.ones(3)
    for _ in range(3):
        for inplace in (False, True):
            got, want = (F.threshold(v, 0.0, 0.5, inplace=inplace) for v in (x, t))
            assert (got is x) == (want is t) and torch.equal(got.torch(), want)
            got, want = (F.leaky_relu(v.sub_(2), negative_slope=0.5, inplace=inplace) for v in (x, t))
            assert (got is x) == (want is t) and torch.equal(got.torch(), want) and torch.equal(x.torch(), t)


def test_a_tensor_that_changes_its_shape_is_looked_at_again() -> None:
    x = tc.zeros(2, 6)
    for _ in range(3):
        x.view(3, 4), x[1]
    x.resize_(4, 4)
    assert x[3].shape == (4,) and x.view(2, 8).shape == (2, 8)


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shortcut, "_AT_MOST", 8)
    x = tc.zeros(64)
    for i in range(50):
        assert x[i].offset == i and x.narrow(0, i, 3).offset == i
    assert len(shortcut._INDEXED) <= 8


# --- writes in place -------------------------------------------------------------------------------------------------------------

IN_PLACE: dict[str, Any] = {
    "add_": lambda x, y: x.add_(y),
    "mul_ by a number": lambda x, y: x.mul_(2.5),
    "+=": operator.iadd,
    "torch.relu_": lambda x, y: torch.relu_(x),
    "copy_": lambda x, y: x.copy_(y),
    "zero_": lambda x, y: x.zero_(),
    "clamp_": lambda x, y: x.clamp_(-1, 1),
    "F.relu, third argument": lambda x, y: F.relu(x, True),
    "pow_": lambda x, y: x.pow_(2),
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_writes_in_place_by_the_short_way(name: str) -> None:
    """The same object, value and version as torch's, the first time and later."""
    write = IN_PLACE[name]
    t, other = torch.randn(3, 2), torch.randn(2)
    x, y = from_torch(t.clone()), from_torch(other)
    for _ in range(3):
        write(t, other)
        assert write(x, y) is x
        torch.testing.assert_close(x.torch(), t)
        assert x._version == t._version


def test_writes_in_place_that_torch_refuses() -> None:
    x, y = from_torch(torch.zeros(2, dtype=torch.int64)), from_torch(torch.ones(2))
    for _ in range(3):
        with pytest.raises(RuntimeError, match="can't be cast"):
            x.add_(y)
        assert x.tolist() == [0, 0] and x._version == 0


def test_writes_in_place_under_the_tape_take_the_whole_way() -> None:
    def add(x: Any, y: Any) -> Any:
        return x.add_(y)

    for _ in range(2):  # learnt without a tape
        add(from_torch(torch.zeros(2)), from_torch(torch.ones(2)))
    leaf = from_torch(torch.ones(2)).requires_grad_()
    z = leaf * 2
    add(z, leaf)
    z.sum().backward()
    assert leaf.grad is not None and leaf.grad.tolist() == [3.0, 3.0]
    with pytest.raises(RuntimeError, match="leaf Variable"):
        add(leaf, z)
    with torch.no_grad():
        add(leaf, z)
    assert leaf.is_leaf and leaf.tolist() == [4.0, 4.0]
    plain = from_torch(torch.zeros(2))
    assert add(plain, leaf).requires_grad  # it gets a history


def test_equal_numbers_of_other_types_are_other_calls() -> None:
    x = from_torch(torch.arange(6.0))
    assert x.view((1, 6)).shape == (1, 6)
    for wrong in (1.0, True):
        with pytest.raises(TypeError):
            x.view((wrong, 6))


OUT: dict[str, Any] = {
    "fits": lambda x, y, out: torch.add(x, y, out=out),
    "of one": lambda x, y, out: torch.sin(x, out=out),
    "resized": lambda x, y, out: torch.add(x[0], 1, out=out),
    "a product": lambda x, y, out: torch.mul(x, 2, out=out),
    "itself": lambda x, y, out: torch.add(out, y, out=out),
    "cast": lambda x, y, out: torch.mul(x, y, out=out),
}


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize("name", OUT)
def test_out_by_the_short_way(name: str) -> None:
    call = OUT[name]
    t, other = torch.randn(3, 2), torch.randn(2)
    x, y = from_torch(t.clone()), from_torch(other)
    dtype = torch.float64 if name == "cast" else torch.float32
    for _ in range(3):
        theirs, ours = torch.ones(3, 2, dtype=dtype), from_torch(torch.ones(3, 2, dtype=dtype))
        assert ours.shape == (3, 2)
        call(t, other, theirs)
        assert call(x, y, ours) is ours
        assert_same(ours, theirs)
        assert ours._version == theirs._version


def test_out_that_torch_refuses_or_the_tape_follows() -> None:
    x, y = from_torch(torch.ones(2)), from_torch(torch.zeros(2, dtype=torch.int64))
    for _ in range(3):
        torch.add(x, x, out=from_torch(torch.zeros(2)))
        with pytest.raises(RuntimeError, match="can't be cast"):
            torch.add(x, x, out=y)
    leaf = from_torch(torch.ones(2)).requires_grad_()
    with pytest.raises(RuntimeError, match="don't support automatic differentiation"):
        torch.add(leaf, x, out=from_torch(torch.zeros(2)))


REFUSED_WRITES: dict[str, Callable[[Any, Any], Any]] = {
    "by a number": lambda lib, y: y.add_(1),
    "by itself": lambda lib, y: y.add_(y),
    "at indices": lambda lib, y: y.index_add_(0, lib.tensor([0]), lib.ones(1)),
    "of another function": lambda lib, y: y.cumsum_(0),
    "out": lambda lib, y: torch.add(y, y, out=y),
    "another size": lambda lib, y: torch.add(lib.ones(4), 1, out=y),
    "another size, then an error": lambda lib, y: torch.index_select(lib.ones(3), 0, lib.tensor([0, 9]), out=y),
}


@pytest.mark.parametrize("name", REFUSED_WRITES)
def test_a_refused_write_is_made_once(name: str) -> None:
    """torch writes to an inference tensor, then refuses to count the write."""

    def case(lib: Any) -> Any:
        with torch.inference_mode():
            y = lib.ones(3)
        found = []
        for _ in range(3):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of a resize
                try:
                    REFUSED_WRITES[name](lib, y)
                except (RuntimeError, IndexError) as error:
                    found.append(str(error))
            found.append([y.tolist(), tuple(y.shape)])
        return found

    assert case(tc) == case(torch)


LOSSES: dict[str, Callable[[Any, Any, Any, Any], Any]] = {
    "nll_loss": lambda lib, x, w, p: F.nll_loss(x, lib.tensor([0, 1]), w),
    "nll_loss by keyword": lambda lib, x, w, p: F.nll_loss(x, lib.tensor([0, 1]), weight=w, reduction="sum"),
    "cross_entropy": lambda lib, x, w, p: F.cross_entropy(x, lib.tensor([0, 1]), w),
    "cross_entropy of probabilities": lambda lib, x, w, p: F.cross_entropy(x, p, w),
    "binary_cross_entropy": lambda lib, x, w, p: F.binary_cross_entropy(x.sigmoid(), p, w),
    "with logits": lambda lib, x, w, p: F.binary_cross_entropy_with_logits(x, p, pos_weight=w),
    "multi_margin_loss": lambda lib, x, w, p: F.multi_margin_loss(x, lib.tensor([0, 1]), weight=w),
    "soft_margin_loss": lambda lib, x, w, p: F.soft_margin_loss(x, w.expand(2, 3)),
}


@pytest.mark.parametrize("name", LOSSES)
def test_what_torch_does_not_differentiate_for_is_refused_each_time(name: str) -> None:
    """The call was known by then from tensors that require no grad."""

    def case(lib: Any) -> Any:
        x, p = lib.tensor([[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]], requires_grad=True), lib.ones(2, 3) / 3
        found = []
        for requires_grad in (False, False, True, True, False):
            weight = lib.ones(3, requires_grad=requires_grad)
            try:
                found.append((round(LOSSES[name](lib, x, weight, p).item(), 4), requires_grad))
            except RuntimeError as error:
                found.append((type(error), str(error).split(" with")[0]))
        return found

    assert case(tc) == case(torch)
