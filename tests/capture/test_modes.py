"""Modes around a call: each is guarded, and what eager gives under it is given."""

from __future__ import annotations

import contextlib

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import tinycompile

pytestmark = pytest.mark.cpu

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
W = nn.Parameter(torch.randn(4, 4, generator=torch.Generator().manual_seed(1)))


@contextlib.contextmanager
def default_dtype(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


class Doubling(TorchFunctionMode):
    """Doubles what relu gives."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        return out * 2 if getattr(func, "__name__", "") == "relu" else out


MODES = {
    "none": contextlib.nullcontext,
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "autocast of another device": lambda: torch.autocast("cuda", torch.float16, enabled=torch.cuda.is_available()),
    "default dtype": lambda: default_dtype(torch.float64),
    "default device": lambda: torch.device("cpu"),
    "another default device": lambda: torch.device("meta"),
    "two default devices": lambda: _both(torch.device("meta"), torch.device("cpu")),
    "function mode": Doubling,
    "no_grad in inference": lambda: _both(torch.inference_mode(), torch.no_grad()),
    "autocast in inference": lambda: _both(torch.inference_mode(), torch.autocast("cpu", torch.bfloat16)),
}


# An entry that runs eagerly serves all modes that make it do so; what is off in a mode is no difference.
ALIKE = (
    {"none", "autocast of another device"},
    {"inference", "no_grad in inference"},
    {"default device", "two default devices"},
)


@contextlib.contextmanager
def _both(first, second):
    with first, second:
        yield


def facts(t):
    return t.dtype, t.shape, t.device, t.requires_grad, t.is_inference()


def work(x, w):
    h = torch.relu(x @ w)
    return h * 2, F.softmax(h, -1), h.view(-1), torch.is_grad_enabled(), torch.is_inference_mode_enabled()


def make(x):
    made = (
        torch.ones(2, 3),
        torch.arange(3) / 2,
        torch.zeros_like(x),
        torch.full((2,), 1.5),
        torch.eye(2),
        torch.linspace(0, 1, 3),
    )
    return (
        *made,
        torch.tensor([1.0, 2.0]),
        torch.hann_window(4),
        torch.zeros(2, device="cpu"),
        x.new_ones(2),
        torch.tril_indices(2, 2),
    )


@pytest.mark.parametrize("fn", [work, make], ids=["work", "make"])
@pytest.mark.parametrize("backend", ["eager", "cpp"])
def test_a_call_in_each_mode_and_back(fn, backend, monkeypatch):
    monkeypatch.setattr(tinycompile.config, "recompile_limit", len(MODES))
    compiled = tinycompile.compile(fn, backend=backend)
    args = (X, W) if fn is work else (X,)
    for _ in range(2):
        for name, mode in MODES.items():
            if backend == "cpp" and name == "another default device":
                continue  # C++ is for tensors with data
            with mode():
                got, want = compiled(*args), fn(*args)
            for a, b in zip(got, want, strict=True):
                if isinstance(b, torch.Tensor):
                    assert facts(a) == facts(b)
                    if b.device.type != "meta":
                        torch.testing.assert_close(a, b)
                else:
                    assert a == b
    assert len(compiled._entries) <= len(MODES) - 1
    assert {b.id for b in compiled.breaks} <= {"mode", "unsupported-op"} and len(
        [b for b in compiled.breaks if b.id == "mode"]
    ) == 1


@pytest.mark.parametrize("first", MODES)
def test_code_of_one_mode_serves_no_other(first):
    compiled = tinycompile.compile(work, backend="eager")
    with MODES[first]():
        compiled(X, W)
        assert len(compiled._entries) == 1 and compiled._entries[0].guard(X, W)
    for name, mode in MODES.items():
        with mode():
            served = compiled._entries[0].guard(X, W)
        alike = any({name, first} <= kin for kin in ALIKE)
        assert served == (name == first) or (alike and served)


class Watching(TorchDispatchMode):
    """Counts what it sees."""

    seen = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("others", ["", "a constant", "an inference tensor"])
def test_a_dispatch_mode_sees_what_runs(others):
    """Whichever of the tensors' signatures tell of it, or the guard itself asks."""
    with torch.inference_mode():
        inside = torch.ones(4)
    given = () if others == "" else (torch.arange(4.0),) if others == "a constant" else (inside,)

    def fn(*args):
        return torch.ones(4) + sum(args)

    compiled = tinycompile.compile(fn)
    for _ in range(2):
        compiled(*given)
        with Watching() as mode:
            compiled(*given)
        assert mode.seen


def test_what_a_program_reads_of_autocast_for_another_device_is_guarded():
    """The tensors' signatures tell of autocast for their own device alone."""

    def fn(x):
        return x + 1, torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")

    compiled, before = tinycompile.compile(fn), torch.is_autocast_enabled("cuda")
    for enabled in (False, True, False):
        torch.set_autocast_enabled("cuda", enabled)
        try:
            assert compiled(X)[1:] == fn(X)[1:]
        finally:
            torch.set_autocast_enabled("cuda", before)


def test_autocast_for_the_device_of_what_is_made_inside_is_guarded():
    def fn(x):
        w = torch.ones(3, 3, device="cpu")
        return (w @ w).dtype, x

    there = torch.ones(2, device="meta")
    compiled = tinycompile.compile(fn, backend="eager")
    for _ in range(2):
        assert compiled(there)[0] is torch.float32
        with torch.autocast("cpu", torch.bfloat16):
            assert compiled(there)[0] is torch.bfloat16


def test_a_mode_is_named_where_the_signature_alone_told_of_it():
    compiled = tinycompile.compile(lambda x: x + 1)
    compiled(X)
    with torch.autocast("cpu", torch.bfloat16):
        compiled(X)
    assert "autocast" in compiled.recompiles[-1]


def test_inference_tensors():
    compiled = tinycompile.compile(lambda x: (x + 1, x[0]), backend="eager")
    with torch.inference_mode():
        inside = torch.ones(3, 4)
        for x in (X, inside, X, inside):
            for got, want in zip(compiled(x), (x + 1, x[0]), strict=True):
                assert torch.equal(got, want) and got.is_inference() == want.is_inference()
    assert len(compiled._entries) == 2 and not compiled.breaks
    assert torch.equal(compiled(inside)[0], inside + 1)  # outside the mode it runs eagerly
    assert compiled.breaks[0].id == "tensor-kind"


def test_writes_under_inference_mode():
    def step(x, total, seen):
        total.add_(x)
        seen.append(x.is_inference())
        return total.sum()

    compiled = tinycompile.compile(step, backend="cpp")
    for make_total in (lambda: torch.zeros(3, 4), lambda: torch.inference_mode()(torch.zeros)(3, 4)):
        with torch.inference_mode():
            total, seen = make_total(), []
            for i in range(3):
                torch.testing.assert_close(compiled(X, total, seen), (X * (i + 1)).sum())
            assert seen == [False] * 3
    assert not [b for b in compiled.breaks if b.id == "mode"]


def test_a_module_under_inference_mode_is_one_graph():
    net = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Dropout(), nn.Linear(8, 4)).eval()
    compiled = tinycompile.compile(net, fullgraph=True)
    with torch.inference_mode():
        for x in (X, net(X)):
            torch.testing.assert_close(compiled(x), net(x))
    torch.testing.assert_close(compiled(X), net(X))


def test_gradients_switched_on_within_inference_mode() -> None:
    def fn(x):
        with torch.enable_grad():
            y = x * 2
        return y, y.requires_grad

    f = tinycompile.compile(fn, backend="eager")
    x = torch.ones(3, requires_grad=True)
    for _ in range(2):
        with torch.inference_mode():
            y, required = f(x)
        assert y.is_inference() and not y.requires_grad and not required
    y, required = f(x)
    assert y.requires_grad and required


def test_forward_mode_differentiation_is_eagers() -> None:
    """A dual number looks like its primal: what is compiled would lose the tangent."""
    fwd = torch.autograd.forward_ad

    def f(x: torch.Tensor) -> torch.Tensor:
        return x * x + 1

    compiled = tinycompile.compile(f)
    compiled(X)
    for _ in range(2):
        with fwd.dual_level():
            made = fwd.unpack_dual(compiled(fwd.make_dual(X, torch.ones(3, 4))))
            torch.testing.assert_close((made.primal, made.tangent), (f(X), 2 * X))
    assert compiled.cache_info()["entries"] == 2
    torch.testing.assert_close(torch.func.jvp(compiled, (X,), (torch.ones(3, 4),))[1], 2 * X)


def test_constants_under_a_default_device() -> None:
    """What the stages work out of numbers they work out on the CPU."""
    x = torch.ones(2, 3)
    for fn in (
        lambda a: a + torch.ones(3, device="cpu") * 2,
        lambda a: torch.where(a > 0, a * 2.5, 0.1).half() + 1,
        lambda a: torch.nn.functional.pad(a, (1, 1)).softmax(1),
    ):
        with torch.device("meta"):
            made = tinycompile.compile(fn)(x)
        torch.testing.assert_close(made, fn(x))


def in_a_block(x):
    with torch.device("meta"):
        made = torch.zeros(2), torch.empty(3), torch.arange(3), torch.tensor([1.0]), torch.ones_like(x)
    return *made, torch.ones(2)


def broken_in_a_block(x):
    with torch.device("meta"):
        y = torch.zeros(2)
        tinycompile.graph_break()
        z = torch.ones(2)
    return y, z, torch.ones(2), x + 1


def entered_by_hand(x):
    device = torch.device("meta")
    device.__enter__()
    try:
        return torch.zeros(1), x + 1
    finally:
        device.__exit__(None, None, None)


def set_for_a_while(x):
    torch.set_default_device("meta")
    try:
        return torch.zeros(2), x * 2
    finally:
        torch.set_default_device(None)


@pytest.mark.parametrize("fn", [in_a_block, broken_in_a_block, entered_by_hand, set_for_a_while], ids=lambda f: f.__name__)
def test_the_default_device_changes_inside(fn):
    """It was entered for good while capture ran, and not when the graph did."""
    compiled, x = tinycompile.compile(fn, backend="eager"), torch.ones(2)
    for _ in range(2):
        assert [t.device for t in compiled(x)] == [t.device for t in fn(x)]
        assert torch.zeros(1).device == torch.device("cpu")
