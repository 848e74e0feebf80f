"""Whole training steps: forward, backward, the optimizer's step and ``zero_grad`` in one graph, with eager's numbers."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW
from torch.optim.lr_scheduler import StepLR

import tinycompile

pytestmark = pytest.mark.cpu
X, Y = torch.randn(16, 20, generator=torch.Generator().manual_seed(1)), torch.arange(16) % 7
SETTINGS = [
    (SGD, {"lr": 0.1}),
    (SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    (SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.2, "maximize": True}),
    (Adam, {"lr": 0.01, "weight_decay": 0.1, "amsgrad": True}),
    (AdamW, {"lr": 0.01}),
]


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 50), nn.LayerNorm(50), nn.GELU(), nn.Linear(50, 7))


def step(model: nn.Module, optimizer: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss


def zero_last(model: nn.Module, optimizer: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


def alike(a: torch.Tensor, b: torch.Tensor) -> None:
    torch.testing.assert_close(a, b, atol=2e-6, rtol=1e-4)


def states_alike(ours: Any, theirs: Any) -> None:
    a, b = ours.state_dict(), theirs.state_dict()
    assert a["param_groups"] == b["param_groups"]
    assert a["state"].keys() == b["state"].keys()
    for at, state in a["state"].items():
        assert list(state) == list(b["state"][at])
        for name, value in state.items():
            alike(value, b["state"][at][name])


def both(
    fn: Callable[..., Any], cls: type, settings: dict[str, Any], steps: int, *, schedule: bool = False, make: Any = network
) -> Any:
    """Run ``fn(model, optimizer, X, Y)`` compiled and eagerly, and compare everything; returns the compiled function."""
    run = tinycompile.compile(fn)
    sides = []
    for call in (run, fn):
        model = make()
        parameters = list(model.parameters())
        optimizer = cls(parameters, **settings)
        scheduler = StepLR(optimizer, 3, gamma=0.5) if schedule else None
        results = []
        for _ in range(steps):
            results.append(call(model, optimizer, X, Y))
            if scheduler is not None:
                scheduler.step()
        assert all(p is q for p, q in zip(parameters, model.parameters(), strict=True))
        sides.append((model, optimizer, results))
    (ours, mine, got), (theirs, other, wanted) = sides
    for a, b in zip(got, wanted, strict=True):
        assert a.requires_grad == b.requires_grad
        alike(a.detach(), b.detach())
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        alike(p, q)
        assert (p.grad is None) == (q.grad is None)
        if p.grad is not None:
            alike(p.grad, q.grad)
            assert p.grad.stride() == q.grad.stride()
    states_alike(mine, other)
    return run


@pytest.mark.parametrize(("cls", "settings"), SETTINGS, ids=lambda v: v.__name__ if isinstance(v, type) else "-".join(v))
def test_twenty_steps_in_one_graph(cls: type, settings: dict[str, Any]) -> None:
    run = both(step, cls, settings, 20, schedule=True)
    damped = settings.get("dampening", 0) != 0  # torch's own first step makes the velocities
    assert [b.id for b in run.breaks] == (["optimizer"] if damped else [])
    assert run.cache_info()["recompiles"] == len(run.graphs) - 1 == (1 if damped else 0)


def test_the_gradient_is_dropped_behind_the_step() -> None:
    run = both(zero_last, AdamW, {"lr": 0.01}, 4)
    assert not run.breaks and run.cache_info()["recompiles"] == 0
    assert not any("grad" in line and "=" in line for line in run.source("python").splitlines() if ".grad =" in line)


def test_gradients_alone_are_accumulated_in_place() -> None:
    def add(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
        F.cross_entropy(model(x), y).backward()

    ours, theirs = network(), network()
    run = tinycompile.compile(add, fullgraph=True)
    for i in range(4):
        run(ours, X + i, Y)
        add(theirs, X + i, Y)
        if i == 0:
            kept = [p.grad for p in ours.parameters()]
        for p, q, g in zip(ours.parameters(), theirs.parameters(), kept, strict=True):
            assert p.grad is g and not g.requires_grad and g.is_leaf
            alike(p.grad, q.grad)
    pointers = {p.grad.untyped_storage().data_ptr() for p in ours.parameters()}
    assert len(pointers) == len(kept)


def test_micro_batches_within_a_step_and_around_it() -> None:
    def inside(model: nn.Module, optimizer: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        total = torch.zeros(())
        for part, target in zip(x.chunk(4), y.chunk(4), strict=True):
            loss = F.cross_entropy(model(part), target) / 4
            loss.backward()
            total = total + loss.detach()
        optimizer.step()
        return total

    run = both(inside, AdamW, {"lr": 0.01}, 4)
    assert not run.breaks and len(run.graphs) == 1


def test_several_steps_in_one_graph() -> None:
    def twice(model: nn.Module, optimizer: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        return loss

    run = both(twice, AdamW, {"lr": 0.01}, 4)
    assert not run.breaks and len(run.graphs) == 1


def test_gradients_are_read_and_changed_in_between() -> None:
    def changed(model: nn.Module, optimizer: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        F.cross_entropy(model(x), y).backward()
        norm = torch.zeros(())
        for p in model.parameters():
            if p.grad is not None:
                norm = norm + p.grad.pow(2).sum()
                p.grad.mul_(0.5)
        optimizer.step()
        model.zero_grad()
        return norm

    run = both(changed, SGD, {"lr": 0.1, "momentum": 0.9}, 4)
    assert not run.breaks and len(run.graphs) == 1


def test_zeros_in_place_of_none() -> None:
    def zeroed(model: nn.Module, optimizer: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        return loss

    run = both(zeroed, SGD, {"lr": 0.1}, 5)
    assert not run.breaks and run.cache_info()["recompiles"] == 1  # without gradients at first, then with


def test_by_hand_without_an_optimizer() -> None:
    def by_hand(model: nn.Module, optimizer: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = F.cross_entropy(model(x), y)
        grads = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for p, g in zip(model.parameters(), grads, strict=True):
                p -= 0.1 * g
        return loss

    run = both(by_hand, SGD, {"lr": 0.1}, 4)
    assert not run.breaks and len(run.graphs) == 1


def test_unused_and_frozen_parameters_keep_their_gradients() -> None:
    class Partly(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.used, self.frozen, self.unused = nn.Linear(20, 7), nn.Linear(7, 7).requires_grad_(False), nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.frozen(self.used(x))

    run = both(step, AdamW, {"lr": 0.01, "weight_decay": 0.5}, 4, make=Partly)
    assert not run.breaks and len(run.graphs) == 1


def test_state_dict_between_steps_and_settings_that_change() -> None:
    ours, theirs = network(), network()
    run = tinycompile.compile(step)
    sides = [(run, ours, AdamW(ours.parameters(), lr=0.01)), (step, theirs, AdamW(theirs.parameters(), lr=0.01))]
    for call, model, optimizer in sides:
        for _ in range(3):
            call(model, optimizer, X, Y)
        saved, weights = copy.deepcopy(optimizer.state_dict()), copy.deepcopy(model.state_dict())
        for _ in range(2):
            call(model, optimizer, X, Y)
        model.load_state_dict(weights)
        optimizer.load_state_dict(saved)
        for _ in range(2):
            call(model, optimizer, X, Y)
        optimizer.param_groups[0].update(lr=0.003, weight_decay=0.2, betas=(0.8, 0.9))
        call(model, optimizer, X, Y)
    assert run.cache_info()["recompiles"] == 0
    optimizer_states = [s[2] for s in sides]
    states_alike(*optimizer_states)
    sides[0][2].param_groups[0]["maximize"] = True  # another formula
    run(ours, sides[0][2], X, Y)
    assert run.cache_info()["recompiles"] == 1


def test_a_second_backward_is_torchs_error() -> None:
    model = network()
    optimizer = SGD(model.parameters(), lr=0.1)
    for call in (tinycompile.compile(step), step):
        loss = call(model, optimizer, X, Y)
        with pytest.raises(RuntimeError, match="Trying to backward through the graph a second time"):
            loss.backward()


def test_errors_of_backward_are_torchs() -> None:
    def vector(w: torch.Tensor) -> None:
        (w * 2).backward()

    def constant(w: torch.Tensor) -> None:
        w.detach().sum().backward()

    def again(w: torch.Tensor) -> None:
        loss = (w * w).sum()
        loss.backward()
        loss.backward()

    def shape(w: torch.Tensor) -> None:
        (w * 2).backward(torch.ones(2))

    for fn in (vector, constant, again, shape):
        w = torch.randn(3, requires_grad=True)
        with pytest.raises(RuntimeError) as wanted:
            fn(w.detach().requires_grad_())
        with pytest.raises(RuntimeError) as got:
            tinycompile.compile(fn)(w)
        assert str(got.value) == str(wanted.value)


def test_what_torchs_engine_must_run_breaks() -> None:
    def hooked(w: torch.Tensor) -> None:
        (w * w).sum().backward()

    def kept(w: torch.Tensor) -> torch.Tensor:
        loss = (w * w).sum()
        loss.backward(retain_graph=True)
        return loss

    def created(w: torch.Tensor) -> None:
        (w * w * w).sum().backward(create_graph=True)

    def outside(w: torch.Tensor) -> None:
        (w * w).sum().backward()

    seen: list[torch.Tensor] = []
    leaf = torch.randn(3, requires_grad=True)
    leaf.register_hook(seen.append)
    inputs = {hooked: leaf, kept: torch.randn(3, requires_grad=True), created: torch.randn(3, requires_grad=True)}
    root = torch.randn(3, requires_grad=True)
    for fn, w in {**inputs, outside: root.exp()}.items():
        run = tinycompile.compile(fn)
        result = run(w)
        assert {b.id for b in run.breaks} == {"backward"}, fn.__name__
        if fn is kept:
            result.backward()
            alike(w.grad, 4 * w.detach())
        with pytest.raises(tinycompile.errors.GraphBreakError, match="backward"):
            tinycompile.compile(fn, fullgraph=True)(w if fn is not outside else root.exp())
    assert len(seen) == 1
    assert root.grad is not None


def test_one_tensor_by_two_names() -> None:
    def two(a: torch.Tensor, b: torch.Tensor) -> None:
        (a * 2 + b * 3).sum().backward()

    run = tinycompile.compile(two, fullgraph=True)
    a, b = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    run(a, b)
    assert a.grad.tolist() == [2.0] * 3 and b.grad.tolist() == [3.0] * 3
    a.grad = None
    run(a, a)
    assert a.grad.tolist() == [5.0] * 3
    run(b, a)
    assert a.grad.tolist() == [8.0] * 3


def test_a_model_that_is_dropped_takes_its_code_along() -> None:
    run = tinycompile.compile(step)
    for _ in range(3):
        model = network()
        run(model, SGD(model.parameters(), lr=0.1), X, Y)
    del model
    gc.collect()
    assert run.cache_info()["entries"] == 0


def test_a_scaler_skips_steps() -> None:
    def scaled(model: nn.Module, optimizer: Any, scaler: Any, x: torch.Tensor) -> None:
        optimizer.zero_grad()
        scaler.scale(F.cross_entropy(model(x), Y)).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()

    sides, run = [], tinycompile.compile(scaled)
    for call in (run, scaled):
        model = network()
        optimizer = AdamW(model.parameters(), lr=0.01)
        scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=4)
        told = []
        for i in range(50):
            call(model, optimizer, scaler, X * float("inf") if i in (0, 3, 4, 20, 49) else X + 0.01 * i)
            told.append(scaler.state_dict())
        sides.append((model, optimizer, told))
    (ours, mine, a), (theirs, other, b) = sides
    assert a == b
    assert {b.id for b in run.breaks} == {"data-dependent"}  # whether to skip is asked of the device; all else is captured
    assert run.cache_info()["recompiles"] <= 1  # the scale is made by the first step; its values compile nothing
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        alike(p, q)
    states_alike(mine, other)
