"""Cross-entropy of a linear layer: the spellings that become one call in chunks, with eager's numbers and one chunk in memory."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import tinycompile
from tests.passes.captured import captured
from tinycompile.base import expr as ex
from tinycompile.base.artifacts import Artifacts
from tinycompile.base.config import config
from tinycompile.base.target import H100, Target
from tinycompile.compiler import fuse
from tinycompile.ir.loops import ExternCall
from tinycompile.ir.plan import Alloc, Choice, Free, Plan
from tinycompile.passes import patterns_losses
from tinycompile.passes.patterns_losses import fuse_losses
from tinycompile.runtime.cpp_build import cpu_target

pytestmark = pytest.mark.cpu

ROWS, CLASSES, WIDTH = 90, 50, 16
CALL = "cross_entropy_of_linear"
Fn = Callable[..., Any]
compiled = functools.partial(tinycompile.compile, options={"activation_memory_budget": 0.99})  # training in chunks is asked for


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every layer is large, and a chunk is 16 rows, 800 float32 numbers."""
    monkeypatch.setattr(patterns_losses, "LEAST_BYTES", 1)
    monkeypatch.setattr(patterns_losses, "CHUNK_BYTES", 3200)
    with config.patch(disk_cache=False):  # the graph is the same with other thresholds
        yield


def given(dtype: torch.dtype = torch.float32, ignored: int = -100) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    target = torch.randint(0, CLASSES, (ROWS,))
    target[::7] = ignored
    return torch.randn(ROWS, WIDTH).to(dtype), torch.randn(CLASSES, WIDTH).to(dtype), torch.randn(CLASSES).to(dtype), target


def is_found(fn: Fn, *args: Any) -> bool:
    return any(n.target == CALL for n in fuse_losses(captured(fn, *args)).nodes)


def grown(fn: Fn, args: Sequence[Tensor], dtype: torch.dtype | None = None) -> list[Tensor]:
    """The result of ``fn`` and the gradients of what floats, of ones and of numbers in between."""
    made = [a.detach().to(dtype or a.dtype).requires_grad_() if a.is_floating_point() else a for a in args]
    out = fn(*made)
    out.backward(torch.linspace(0.5, 1.5, out.numel(), dtype=out.dtype).reshape(out.shape))
    return [out.detach(), *(m.grad for m in made if m.grad is not None)]


def check(fn: Fn, *args: Tensor, backend: str = "aot_eager") -> None:
    """Found, and by the contract: at most twice eager's error and an ulp, by the largest error and by the mean square. By
    default the graph that the passes made is run op by op, without a compiler."""
    assert is_found(fn, *args)
    ours = grown(compiled(fn, fullgraph=True, backend=backend), args)
    exact, eager = grown(fn, args, torch.float64), grown(fn, args)
    assert len(exact) == len(eager) == len(ours) > 1
    for x, e, o in zip(exact, eager, ours, strict=True):
        assert (o.shape, o.stride(), o.dtype) == (e.shape, e.stride(), e.dtype)
        assert torch.equal(o.isnan(), e.isnan())
        ulp = torch.finfo(o.dtype).eps
        for norm in (lambda t: t.abs().max(), lambda t: t.square().mean().sqrt()):
            room = 2 * norm(e.double() - x) + ulp * norm(x)
            assert not norm(o.double() - x) > room


# -- spellings ---------------------------------------------------------------------------------------------------------------


def plain(h: Tensor, w: Tensor, b: Tensor, t: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(h, w, b), t)


SPELLINGS: dict[str, Fn] = {
    "linear": lambda h, w, b, t: F.cross_entropy(F.linear(h, w), t),
    "with a bias": plain,
    "a product": lambda h, w, b, t: F.cross_entropy(h @ w.t(), t),
    "mm": lambda h, w, b, t: F.cross_entropy(torch.mm(h, w.T), t),
    "cast to float32": lambda h, w, b, t: F.cross_entropy(F.linear(h, w).float(), t),
    "a batch of sequences": lambda h, w, b, t: F.cross_entropy(
        F.linear(h.view(9, 10, -1), w, b).view(-1, CLASSES), t.view(9, 10).view(-1)
    ),
    "reshape": lambda h, w, b, t: F.cross_entropy((h.view(9, 10, -1) @ w.t()).reshape(90, CLASSES), t),
    "flatten": lambda h, w, b, t: F.cross_entropy(F.linear(h.view(9, 10, -1), w).flatten(0, 1), t),
    "shifted": lambda h, w, b, t: F.cross_entropy(
        F.linear(h.view(9, 10, -1), w)[:, :-1].reshape(-1, CLASSES), t.view(9, 10)[:, 1:].reshape(-1)
    ),
    "shifted and made contiguous": lambda h, w, b, t: F.cross_entropy(
        F.linear(h.view(9, 10, -1), w)[..., :-1, :].contiguous().view(-1, CLASSES), t.view(9, 10)[..., 1:].contiguous().view(-1)
    ),
    "classes second": lambda h, w, b, t: F.cross_entropy(F.linear(h.view(9, 10, -1), w).transpose(1, 2), t.view(9, 10)),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_spellings(name: str) -> None:
    check(SPELLINGS[name], *given())


@pytest.mark.parametrize("name", ["with a bias", "cast to float32", "classes second"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_halves(name: str, dtype: torch.dtype) -> None:
    check(SPELLINGS[name], *given(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_generated_code(dtype: torch.dtype) -> None:
    args = given(dtype)
    check(SPELLINGS["with a bias"], *args, backend="cpp")
    with torch.no_grad():
        torch.testing.assert_close(tinycompile.compile(plain)(*args), plain(*args))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("ignored", [-100, 3])
def test_arguments(reduction: str, smoothing: float, ignored: int) -> None:
    def fn(h: Tensor, w: Tensor, b: Tensor, t: Tensor) -> Tensor:
        made = F.cross_entropy(F.linear(h, w, b), t, ignore_index=ignored, reduction=reduction, label_smoothing=smoothing)
        return made * 1.0

    check(fn, *given(ignored=ignored))


def test_positions_keep_their_shape() -> None:
    def fn(h: Tensor, w: Tensor, b: Tensor, t: Tensor) -> Tensor:
        return F.cross_entropy(F.linear(h.view(9, 10, -1), w).transpose(1, 2), t.view(9, 10), reduction="none") * 2

    check(fn, *given())


def test_nothing_counts() -> None:
    h, w, b, t = given()
    check(plain, h, w, b, torch.full_like(t, -100))


def test_a_module() -> None:
    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(WIDTH, CLASSES, bias=False)

        def forward(self, h: Tensor, t: Tensor) -> Tensor:
            return F.cross_entropy(self.head(h).view(-1, CLASSES), t)

    h, _, _, t = given()
    eager, ours = Head(), Head()
    ours.load_state_dict(eager.state_dict())
    eager(h, t).backward()
    compiled(ours, backend="aot_eager")(h, t).backward()
    torch.testing.assert_close(ours.head.weight.grad, eager.head.weight.grad)


@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (0, 2), (1, 2)], ids=str)
def test_only_what_is_asked_for(wanted: tuple[int, ...]) -> None:
    args = list(given())
    for fn in (compiled(plain, backend="aot_eager"), plain):
        for i in range(3):
            args[i] = args[i].detach().clone().requires_grad_(i in wanted)
        fn(*args).backward()
        got = [args[i].grad for i in wanted]
        if fn is not plain:
            ours = got
    for o, e in zip(ours, got, strict=True):
        torch.testing.assert_close(o, e)


def test_two_losses_in_one_graph_have_memory_of_their_own() -> None:
    def fn(h: Tensor, w: Tensor, b: Tensor, t: Tensor) -> Tensor:
        return F.cross_entropy(F.linear(h, w, b), t) + 2 * F.cross_entropy(F.linear(h * 0.5, w, b), t, reduction="sum")

    check(fn, *given())


def test_a_backward_can_run_twice() -> None:
    """What it sums into is its own."""
    h, w, b, t = given()
    w.requires_grad_()
    loss = compiled(plain, backend="aot_eager")(h, w, b, t)
    first, second = (torch.autograd.grad(loss, w, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second)


def test_second_derivatives() -> None:
    h, w, _, t = (x.double() if x.is_floating_point() else x for x in given())
    small = h[:6, :4].contiguous().requires_grad_(), w[:5, :4].contiguous().requires_grad_()
    fn = compiled(lambda h, w: F.cross_entropy(F.linear(h, w), t[:6] % 5), backend="aot_eager")
    assert torch.autograd.gradcheck(fn, small) and torch.autograd.gradgradcheck(fn, small)


def test_a_whole_step() -> None:
    h, w, b, t = given()

    def step(h: Tensor, w: Tensor, t: Tensor) -> Tensor:
        w = w.detach().requires_grad_()
        loss = F.cross_entropy(F.linear(h, w), t)
        (grad,) = torch.autograd.grad(loss, (w,))
        return grad

    torch.testing.assert_close(compiled(step, backend="aot_eager")(h, w, t), step(h, w, t))


def test_training_is_in_chunks_only_where_memory_is_asked_for() -> None:
    """They cost its backward one more product."""
    for compile, found in ((tinycompile.compile, False), (compiled, True)):
        fn = compile(plain, backend="aot_eager")
        fn(*(a.requires_grad_() if a.is_floating_point() else a for a in given()))
        assert (CALL in fn.source("joint")) is found


# -- what stays --------------------------------------------------------------------------------------------------------------

STAY: dict[str, Fn] = {
    "logits that are read": lambda h, w, b, t: (F.cross_entropy(y := F.linear(h, w), t), y.argmax(1)),
    "scaled logits": lambda h, w, b, t: F.cross_entropy(F.linear(h, w) * 2, t),
    "class weights": lambda h, w, b, t: F.cross_entropy(F.linear(h, w), t, weight=b.abs()),
    "probabilities": lambda h, w, b, t: F.cross_entropy(F.linear(h, w), F.one_hot(t.clamp(0), CLASSES).float()),
    "some of the classes": lambda h, w, b, t: F.cross_entropy(F.linear(h, w)[:, :40], t.clamp(0, 39)),
    "rows across classes": lambda h, w, b, t: F.cross_entropy(F.linear(h, w).view(-1, 25), t.clamp(0, 24).repeat(2)),
    "no layer": lambda h, w, b, t: F.cross_entropy(torch.tanh(h), t % WIDTH),
}


@pytest.mark.parametrize("name", STAY)
def test_what_stays_as_it_is(name: str) -> None:
    args = given()
    assert not is_found(STAY[name], *args)


def test_small_layers_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert patterns_losses.LEAST_BYTES > ROWS * CLASSES * 4 and not is_found(plain, *given())


# -- memory ------------------------------------------------------------------------------------------------------------------


def peak(plan: Plan) -> int:
    """The most bytes that the plan's own buffers take at once."""
    size = {b.name: ex.evaluate(b.meta.numel, {}) * b.meta.dtype.itemsize for b in plan.buffers}
    live: dict[str, int] = {}
    most = 0
    for s in plan.steps:
        assert not isinstance(s, Choice)
        if isinstance(s, Free):
            live.pop(s.buffer, None)
        elif isinstance(s, Alloc):
            live.pop(s.reuses or "", None)
            live[s.buffer] = size[s.buffer]
        elif isinstance(s, ExternCall) and not s.target.endswith("_"):  # others return what they are given
            live |= {o: size[o] for o in s.outputs if o is not None}
        most = max(most, sum(live.values()))
    return most


@pytest.mark.parametrize("target", [H100, None], ids=["triton", "cpp"])
@pytest.mark.parametrize("rows", [90, 900])
def test_one_chunk_is_in_memory_at_a_time(target: Target | None, rows: int) -> None:
    h, w = torch.randn(rows, WIDTH, requires_grad=True), torch.randn(CLASSES, WIDTH, requires_grad=True)
    fn = compiled(lambda h, w, t: F.cross_entropy(F.linear(h, w), t))
    fn(h, w, torch.zeros(rows, dtype=torch.int64))
    made = fn._entries[0].compiled
    forward, backward = (fuse(half.graph, target or cpu_target(), Artifacts(), {}) for half in (made, made.backward))
    few = 512  # one number a row of a chunk, and the like
    assert peak(forward) <= 3200 + 3 * 4 * rows + few  # a chunk; losses, maxima, sums
    assert peak(backward) <= 2 * 3200 + h.nbytes + w.nbytes + 12 * rows + few  # logits and their slopes; gradients
