"""Optimizers that the compiled function edits before their step: the step sees what was written, as in eager."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim import SGD, AdamW

import tinycompile

pytestmark = pytest.mark.cpu
CLASSES = [(SGD, {"lr": 0.1, "momentum": 0.9}), (AdamW, {"lr": 0.1})]


def rate(w: torch.Tensor, o: Any, i: int, lr: float) -> None:
    for group in o.param_groups:
        group["lr"] = lr


def updated(w: torch.Tensor, o: Any, i: int, lr: float) -> None:
    o.param_groups[0].update(lr=lr)


def by_first_weight(w: torch.Tensor, o: Any, i: int, lr: float) -> None:
    o.param_groups[0]["lr"] *= 0.5


def decay(w: torch.Tensor, o: Any, i: int, lr: float) -> None:
    o.param_groups[0]["weight_decay"] = lr


def maximized(w: torch.Tensor, o: Any, i: int, lr: float) -> None:
    o.param_groups[0]["maximize"] = i % 2 == 0


def slowed(w: torch.Tensor, o: Any, i: int, lr: float) -> None:
    if "betas" in o.param_groups[0]:
        o.param_groups[0]["betas"] = (lr / 2, 0.9)
    else:
        o.param_groups[0]["momentum"] = lr / 2


def sharpened(w: torch.Tensor, o: Any, i: int, lr: float) -> None:
    if "eps" in o.param_groups[0]:
        o.param_groups[0]["eps"] = 1e-8 * (i + 1)
    else:
        o.param_groups[0]["dampening"] = 0.1 * i


def switched_on(w: torch.Tensor, o: Any, i: int, lr: float) -> None:
    """The decay's value chooses the formula."""
    o.param_groups[0]["weight_decay"] = 0.0 if i % 2 else lr


def named(w: torch.Tensor, o: Any, i: int, lr: float) -> None:
    """A key that no step reads."""
    o.param_groups[0]["initial_lr"] = lr


def other_groups(w: torch.Tensor, o: Any, i: int, lr: float) -> None:
    o.param_groups = [{**g, "lr": lr} for g in o.param_groups]


def no_parameters(w: torch.Tensor, o: Any, i: int, lr: float) -> None:
    if i == 2:
        o.param_groups[0]["params"] = []


def restarted(w: torch.Tensor, o: Any, i: int, lr: float) -> None:
    for name in ("momentum_buffer", "exp_avg"):
        if name in o.state[w]:
            o.state[w][name] = torch.zeros(3)


def restarted_in_place(w: torch.Tensor, o: Any, i: int, lr: float) -> None:
    for name in ("momentum_buffer", "exp_avg"):
        if name in o.state[w]:
            o.state[w][name].zero_()


def forgotten(w: torch.Tensor, o: Any, i: int, lr: float) -> None:
    o.state.clear()


EDITS = [
    rate, updated, by_first_weight, decay, maximized, slowed, sharpened, switched_on, named, other_groups, no_parameters, restarted, restarted_in_place, forgotten
]  # fmt: skip


def first(edit: Callable[..., None]) -> Callable[..., None]:
    def step(w: torch.Tensor, o: Any, i: int, lr: float) -> None:
        edit(w, o, i, lr)
        (w * w).sum().backward()
        o.step()
        o.zero_grad()

    return step


def between(edit: Callable[..., None]) -> Callable[..., None]:
    def step(w: torch.Tensor, o: Any, i: int, lr: float) -> None:
        (w * w).sum().backward()
        o.step()
        edit(w, o, i, lr)
        o.step()
        o.zero_grad()

    return step


@pytest.mark.parametrize("order", [first, between], ids=lambda f: f.__name__)
@pytest.mark.parametrize("edit", EDITS, ids=lambda f: f.__name__)
@pytest.mark.parametrize(("cls", "settings"), CLASSES, ids=["SGD", "AdamW"])
def test_the_step_sees_the_edit(cls: type, settings: dict[str, Any], edit: Any, order: Any) -> None:
    fn = order(edit)
    sides = []
    for call in (fn, tinycompile.compile(fn)):
        w = torch.tensor([1.0, -2.0, 3.0], requires_grad=True)
        o, seen = cls([w], **settings), []
        for i in range(4):
            call(w, o, i, 0.8 / (i + 1))
            settings_now = [{k: v for k, v in g.items() if k != "params"} for g in o.param_groups]
            seen.append((w.detach().clone(), w.grad, copy.deepcopy(settings_now), copy.deepcopy([*o.state.values()])))
        sides.append(seen)
    torch.testing.assert_close(sides[1], sides[0], atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("order", [first, between], ids=lambda f: f.__name__)
@pytest.mark.parametrize("edit", [rate, updated, by_first_weight, decay, slowed], ids=lambda f: f.__name__)
@pytest.mark.parametrize(("cls", "settings"), CLASSES, ids=["SGD", "AdamW"])
def test_numbers_that_change_are_inputs_of_one_graph(cls: type, settings: dict[str, Any], edit: Any, order: Any) -> None:
    run = tinycompile.compile(order(edit), fullgraph=True)
    w = torch.ones(3, requires_grad=True)
    o = cls([w], **settings)
    for i in range(3):
        run(w, o, 1, 0.1 / (i + 1))
    known = run.cache_info()["recompiles"]
    for i in range(3, 9):
        run(w, o, 1, 0.1 / (i + 1))
    assert run.cache_info()["recompiles"] == known <= 2
    assert not run.breaks and all("copy" in str(g) for g in run.graphs)


def test_a_loop_over_groups_and_a_scheduler_in_the_step() -> None:
    """As scripts write it: the rate set in every group before the step, gradients dropped behind it; or a scheduler's step."""

    def scripted(w: torch.Tensor, o: Any, s: Any, lr: float) -> None:
        for group in o.param_groups:
            group["lr"] = lr * group["scale"]
        (w[0] * w[1]).square().sum().backward()
        o.step()
        o.zero_grad(set_to_none=True)

    def scheduled(w: torch.Tensor, o: Any, s: Any, lr: float) -> None:
        (w[0] * w[1]).square().sum().backward()
        o.step()
        s.step()
        o.zero_grad(set_to_none=True)

    for fn in (scripted, scheduled):
        sides = []
        for call in (fn, tinycompile.compile(fn)):
            w = [torch.tensor(v, requires_grad=True) for v in ([1.0, -2.0], [0.5, 0.25])]
            o = AdamW([{"params": [w[0]], "scale": 1.0}, {"params": [w[1]], "scale": 0.1}], lr=0.1)
            s = torch.optim.lr_scheduler.StepLR(o, 2, gamma=0.5)
            for i in range(6):
                call(w, o, s, 0.1 / (i + 1))
            sides.append([t.detach().clone() for t in w])
        torch.testing.assert_close(sides[1], sides[0], atol=2e-6, rtol=1e-5)
        assert isinstance(call, type(tinycompile.compile(fn)))
        if fn is scripted:
            assert not call.breaks and call.cache_info()["recompiles"] <= 1


def test_gradients_are_dropped_for_the_groups_that_were_written() -> None:
    def drop(w: torch.Tensor, o: Any) -> None:
        o.param_groups[0]["params"] = []
        o.zero_grad()

    w = torch.ones(3, requires_grad=True)
    w.grad = torch.ones(3)
    o = SGD([w], lr=0.1)
    tinycompile.compile(drop)(w, o)
    assert w.grad is not None and o.param_groups[0]["params"] == []
