"""Operators, functions, modules and factories on our tensors against torch, and what the dispatcher makes of them."""

from __future__ import annotations

import itertools
import math
import operator
import threading
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.eager.test_tensor import assert_same, pair
from tinycompile.base.device import Device
from tinycompile.dispatch import dispatcher
from tinycompile.dispatch.keys import Key, KeySet
from tinycompile.dispatch.local_keys import include
from tinycompile.eager import factories
from tinycompile.eager.tensor import Tensor, from_torch
from tinycompile.ops.calls import ops
from tinycompile.ops.record import CUSTOM, OPS, Decompose

pytestmark = pytest.mark.pure

DTYPES = (torch.bool, torch.uint8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64)
BINARY = (
    operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod, operator.pow, operator.eq,
    operator.ne, operator.lt, operator.le, operator.gt, operator.ge, operator.and_, operator.or_, operator.xor,
)  # fmt: skip


def outcome(fn: Any, *args: Any) -> Any:
    try:
        return fn(*args)
    except Exception as e:
        return e


def assert_same_outcome(ours: Any, theirs: Any) -> None:
    if isinstance(theirs, Exception):
        assert type(ours) is type(theirs) and str(ours) == str(theirs)
    else:
        assert_same(ours, theirs)


@pytest.mark.parametrize("op", BINARY, ids=lambda f: f.__name__)
def test_binary_operators_promote_and_broadcast(op: Any) -> None:
    for a, b in itertools.product(DTYPES, DTYPES):
        (x, tx), (y, ty) = pair(2, 3, dtype=a), pair(3, dtype=b)
        assert_same_outcome(outcome(op, x, y + 1), outcome(op, tx, ty + 1))
    for a, number in itertools.product(DTYPES, (True, 3, 2.5)):
        x, tx = pair(2, 3, dtype=a)
        assert_same_outcome(outcome(op, x, number), outcome(op, tx, number))
        if op is operator.truediv:  # torch multiplies by the reciprocal; the record divides, which rounds once
            torch.testing.assert_close((number / x).torch(), number / tx, rtol=torch.finfo((1 / tx).dtype).eps, atol=0)
        else:
            assert_same_outcome(outcome(op, number, x), outcome(op, number, tx))
    zero_dim, theirs = pair(2, 3, dtype=torch.float16)
    assert_same_outcome(outcome(op, zero_dim, from_torch(torch.tensor(2.0))), outcome(op, theirs, torch.tensor(2.0)))


def test_other_operators() -> None:
    x, tx = pair(3, 3)
    i, ti = pair(3, dtype=torch.int64)
    for got, expected in [
        (-x, -tx), (+x, +tx), (abs(x - 4), abs(tx - 4)), (~i, ~ti), (x @ x, tx @ tx), (i << 2, ti << 2), (64 >> i, 64 >> ti),
        (x.T @ x[0], tx.T @ tx[0]), (2 - x, 2 - tx), (2 / (x + 1), 2 / (tx + 1)), (2**x, 2**tx), (x // 2, tx // 2),
    ]:  # fmt: skip
        assert_same(got, expected)


def test_mixed_with_torch_tensors_the_result_is_ours() -> None:
    x, tx = pair(2, 3)
    for got in (x + tx, tx + x, torch.add(tx, x), torch.where(tx > 2, x, tx), torch.cat([tx, x])):
        assert isinstance(got, Tensor)
    assert_same(tx + x, tx + tx)


def test_in_place_operators_keep_the_object_and_torchs_checks() -> None:
    x, tx = pair(2, 3)
    before = x
    x += 1
    x *= x
    x -= from_torch(torch.ones(3))
    tx += 1
    tx *= tx
    tx -= torch.ones(3)
    assert x is before
    assert_same(x, tx)
    assert x.add_(1) is x and x.clamp_(max=3) is x and x.copy_(torch.zeros(2, 3)) is x
    with pytest.raises(RuntimeError, match=r"output with shape \[3\] doesn't match the broadcast shape \[2, 3\]"):
        factories.ones(3).add_(x)
    with pytest.raises(RuntimeError, match="result type Float can't be cast to the desired output type Long"):
        factories.arange(3).add_(1.5)


def test_out_is_written_and_returned() -> None:
    x, tx = pair(2, 3)
    out = factories.empty(2, 3)
    assert torch.add(x, 1, out=out) is out
    assert_same(out, tx + 1)


FUNCTIONS: dict[str, Any] = {
    "relu": lambda t: torch.relu(t - 3),
    "gelu": lambda t: F.gelu(t),
    "gelu tanh": lambda t: F.gelu(t, approximate="tanh"),
    "softmax": lambda t: torch.softmax(t, -1),
    "layer_norm": lambda t: F.layer_norm(t, (4,), torch.ones(4)),
    "sum": lambda t: t.sum((0, 2), keepdim=True),
    "max with indices": lambda t: t.max(1),
    "max of all": lambda t: torch.max(t),
    "max of two": lambda t: torch.max(t, 5 - t),
    "var_mean": lambda t: torch.var_mean(t, 1),
    "argmax": lambda t: t.argmax(2),
    "sort, no record": lambda t: torch.sort(t, descending=True),
    "fft, no record": lambda t: torch.fft.rfft(t),
    "topk method, no record": lambda t: t.topk(2),
    "cumsum": lambda t: t.cumsum(1),
    "cat": lambda t: torch.cat([t, t], 1),
    "stack": lambda t: torch.stack((t, t)),
    "einsum": lambda t: torch.einsum("bij,bkj->bik", t, t),
    "where": lambda t: torch.where(t > 3, t, 0.0),
    "masked_fill": lambda t: t.masked_fill(t > 3, -1),
    "clamp": lambda t: t.clamp(1, 5),
    "pad": lambda t: F.pad(t, (1, 1)),
    "pow": lambda t: torch.pow(t, 2),
    "view as real": lambda t: torch.complex(t, t).real,
    "interpolate, Python in torch": lambda t: F.interpolate(t, scale_factor=2),
    "multi_head_attention-like": lambda t: F.scaled_dot_product_attention(t, t, t),
    "numel": lambda t: torch.numel(t),
    "is_tensor facts": lambda t: (torch.is_floating_point(t), t.size(0)),
    "allclose": lambda t: torch.allclose(t, t),
    "item": lambda t: t[1, 1, 1].item(),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_torch_functions(name: str) -> None:
    ours, theirs = pair(2, 3, 4)
    got, expected = FUNCTIONS[name](ours), FUNCTIONS[name](theirs)
    if hasattr(expected, "_fields") or "return_types" in str(type(expected)):
        assert type(got) is type(expected)
    assert_same(got, expected)


MODULES: dict[str, Any] = {
    "mlp": lambda: torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.LayerNorm(8), torch.nn.Linear(8, 2)),
    "conv": lambda: torch.nn.Sequential(
        torch.nn.Conv1d(3, 5, 2), torch.nn.BatchNorm1d(5), torch.nn.ReLU(), torch.nn.MaxPool1d(2)
    ),
    "attention": lambda: torch.nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True),
    "lstm": lambda: torch.nn.LSTM(4, 3, batch_first=True),
    "dropout in eval": lambda: torch.nn.Dropout(0.5),
}


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("name", MODULES)
def test_modules(name: str, training: bool) -> None:
    module = MODULES[name]().train(training and "dropout" not in name)
    theirs = torch.randn(2, 3, 4)
    expected = module(theirs)
    got = module(from_torch(theirs.clone()))
    for a, b in zip(_flat(got), _flat(expected), strict=True):
        assert isinstance(a, Tensor) and a.requires_grad == b.requires_grad
        torch.testing.assert_close(a.torch(), b)


def _flat(value: Any) -> list[Any]:
    return [x for v in value for x in _flat(v)] if isinstance(value, tuple) else [value]


def test_gradients_reach_parameters_through_torchs_tape() -> None:
    linear, x = torch.nn.Linear(4, 2), from_torch(torch.ones(3, 4))
    linear(x).transpose(0, 1).sum().torch().backward()
    assert linear.weight.grad is not None and linear.weight.grad.tolist() == [[3.0] * 4] * 2


FACTORIES: dict[str, Any] = {
    "zeros": lambda f: f.zeros(2, 3), "zeros of a tuple": lambda f: f.zeros((2, 3), dtype=torch.int8), "ones": lambda f: f.ones(3),
    "full": lambda f: f.full((2, 2), 7), "full bool": lambda f: f.full((2,), True), "full float": lambda f: f.full([2], 1.5),
    "arange": lambda f: f.arange(5), "arange float": lambda f: f.arange(1, 3, 0.5), "arange down": lambda f: f.arange(5, 1, -2),
    "linspace": lambda f: f.linspace(0, 1, 5), "logspace": lambda f: f.logspace(0, 2, 3), "eye": lambda f: f.eye(2, 3),
    "rand": lambda f: f.rand(2, 3), "randn": lambda f: f.randn((2, 3), dtype=torch.float64), "randint": lambda f: f.randint(3, 9, (4,)),
    "randint high": lambda f: f.randint(9, (4,)), "randperm": lambda f: f.randperm(5), "tensor": lambda f: f.tensor([[1, 2], [3, 4]]),
    "tensor scalar": lambda f: f.tensor(2.5, dtype=torch.float16), "meta": lambda f: f.zeros(2, 3, device="meta"),
    "zeros_like": lambda f: f.zeros_like(torch.ones(2, 3).t()), "full_like": lambda f: f.full_like(torch.ones(2), 3),
    "ones_like to": lambda f: f.ones_like(torch.ones(2), dtype=torch.int64), "randn_like": lambda f: f.randn_like(torch.ones(2)),
    "rand_like": lambda f: f.rand_like(torch.ones(2)), "randint_like": lambda f: f.randint_like(torch.ones(2), 9),
    "meta like": lambda f: f.zeros_like(torch.ones(2), device="meta"), "from meta": lambda f: f.ones_like(torch.ones(2, device="meta"), device="cpu"),
    "as_tensor": lambda f: f.as_tensor([1.0, 2.0]),
}  # fmt: skip


@pytest.mark.parametrize("name", FACTORIES)
def test_factories(name: str) -> None:
    torch.manual_seed(3)
    expected = FACTORIES[name](torch)
    torch.manual_seed(3)
    assert_same(FACTORIES[name](factories), expected)


def test_factories_take_our_device_and_our_tensors() -> None:
    x = factories.zeros(2, device=Device("meta"))
    assert x.is_meta and factories.empty_strided((2, 2), (1, 2)).strides == (1, 2)
    assert factories.ones_like(x, device=Device("cpu")).tolist() == [1.0, 1.0]
    assert factories.tensor(from_torch(torch.ones(2))).tolist() == [1.0, 1.0]
    assert factories.as_tensor(x) is x and factories.empty_like(x).is_meta


# --- meta ---


@pytest.mark.parametrize(
    "name", [n for n in FUNCTIONS if n not in ("is_tensor facts", "allclose", "item", "numel", "layer_norm")]
)
def test_meta_gives_what_cpu_gives_without_data(name: str) -> None:
    ours, theirs = pair(2, 3, 4)
    got, expected = FUNCTIONS[name](ours.to("meta")), FUNCTIONS[name](theirs)
    for a, b in zip(
        _flat(tuple(got) if isinstance(got, tuple) else got),
        _flat(tuple(expected) if isinstance(expected, tuple) else expected),
    ):
        assert a.is_meta and (tuple(a.shape), tuple(a.strides), a.dtype) == (tuple(b.shape), b.stride(), b.dtype)


def test_meta_views_share_their_absent_storage() -> None:
    x = factories.zeros(4, 1 << 40, device="meta")
    assert x.t()[1:].storage is x.storage and x.storage.nbytes == 1 << 44
    assert x.reshape(-1).shape == (1 << 42,)


def test_meta_has_no_values() -> None:
    x, tx = factories.ones(1, device="meta"), torch.ones(1, device="meta")
    assert repr(x) == repr(tx)
    for read in (lambda t: t.item(), bool, lambda t: t.to("cpu"), lambda t: t.numpy(), lambda t: t.tolist()):
        assert_same_outcome(outcome(read, x), outcome(read, tx))
        assert isinstance(outcome(read, tx), Exception)


def test_tensors_on_two_devices_are_refused_with_torchs_message() -> None:
    cpu, meta = factories.ones(2), factories.ones(2, device="meta")
    for fn in (lambda a, b: a + b, lambda a, b: torch.cat([a, b]), lambda a, b: torch.where(a > 0, b, b)):
        for a, b in ((cpu, meta), (meta, cpu)):
            assert_same_outcome(outcome(fn, a, b), outcome(fn, a.torch(), b.torch()))
    with pytest.raises(RuntimeError, match="Tensor on device meta is not on the expected device cpu!"):
        torch.mm(factories.ones(2, 2), factories.ones(2, 2, device="meta"))  # torch 2.13 computes garbage here


# --- dispatch ---


def test_a_kernel_from_outside_takes_over_and_can_be_removed() -> None:
    x, tx = pair(2, 3)
    seen: list[str] = []

    def mine(self: Any, other: Any, alpha: Any) -> Any:
        seen.append("mine")
        return from_torch(torch.add(self.torch(), other, alpha=alpha))

    dispatcher.register("add", Key.CPU, mine)
    try:
        assert dispatcher.resolve("add", x.keys).fn is mine and "kernel" in dispatcher.table("add")
        assert_same(x + 1, tx + 1)
        assert_same(torch.add(x, 1, alpha=2), torch.add(tx, 1, alpha=2))
    finally:
        dispatcher.register("add", Key.CPU, None)
    assert_same(x + 1, tx + 1)
    assert seen == ["mine", "mine"] and dispatcher.resolve("add", x.keys).kind == "fallback"


def test_an_op_from_outside_the_package() -> None:
    dispatcher.define("outside_double(Tensor self) -> Tensor")
    dispatcher.register("outside_double", Key.CPU, lambda t: t * 2)
    try:
        assert ops.outside_double(factories.ones(2)).tolist() == [2.0, 2.0]
    finally:
        dispatcher.undefine("outside_double")


def test_a_key_above_the_backends_sees_every_op() -> None:
    seen: list[str] = []

    def note(name: str, keyset: KeySet, args: Any) -> Any:
        seen.append(name)
        return dispatcher.redispatch(name, keyset.below(Key.FUNCTIONALIZE), args)

    x, tx = pair(2, 3)
    before = dispatcher.fallback(Key.FUNCTIONALIZE, note)
    try:
        with include(Key.FUNCTIONALIZE):
            assert_same((x.t() + 1).sum(), (tx.t() + 1).sum())
    finally:
        dispatcher.fallback(Key.FUNCTIONALIZE, before)
    assert seen == ["t", "add", "sum"]


def test_every_op_can_run_on_cpu_cuda_and_meta() -> None:
    for name in OPS:
        assert {dispatcher.resolve(name, key.bit).kind for key in (Key.CPU, Key.CUDA, Key.META)} == {"fallback"}


def test_records_that_decompose_do_so_where_a_backend_has_nothing() -> None:
    x, tx = pair(2, 3)
    ours = {n: op for n, op in OPS.items() if n not in CUSTOM}  # programs add theirs
    composites = {n for n, op in ours.items() if isinstance(op.lowering, Decompose)}
    assert composites
    for name in composites:
        assert dispatcher.resolve(name, Key.PRIVATEUSE1.bit).kind == "composite"
    run = dispatcher.resolve("glu", Key.PRIVATEUSE1.bit).run
    wide = from_torch(torch.randn(2, 4))
    torch.testing.assert_close(run("glu", KeySet(), (wide, -1)).torch(), F.glu(wide.torch()))
    with pytest.raises(NotImplementedError, match="PRIVATEUSE1"):
        dispatcher.resolve("add", Key.PRIVATEUSE1.bit)


def test_torch_tensors_alone_go_in_and_come_out() -> None:
    got = ops.add(torch.ones(2), 1)
    assert isinstance(got, torch.Tensor) and got.tolist() == [2.0, 2.0]


def test_ops_work_in_any_thread() -> None:
    x, tx = pair(2, 3)
    results: list[Any] = []
    threads = [threading.Thread(target=lambda: results.append((x.t() + 1).sum(0))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 8
    for result in results:
        assert_same(result, (tx.t() + 1).sum(0))


@pytest.mark.parametrize("bounds", [(math.nan,), (None, math.nan), (math.nan, 1.0), (0.0, math.nan)])
def test_bounds_that_are_nan_are_what_they_are_to_the_installed_torch(bounds: tuple[float | None, ...]) -> None:
    x = torch.tensor([1.0, -2.0, 3.0])
    for name in ("clamp", "clip", "clamp_", "clip_"):
        got, want = getattr(from_torch(x.clone()), name)(*bounds), getattr(x.clone(), name)(*bounds)
        torch.testing.assert_close(got.raw(), want, equal_nan=True, rtol=0, atol=0)
