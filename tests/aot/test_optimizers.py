"""Compiled optimizer steps: equal to torch's, few launches, no recompile for what changes; whole training steps."""

from __future__ import annotations

import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW
from torch.optim.lr_scheduler import OneCycleLR, StepLR

import tinycompile

pytestmark = pytest.mark.cpu
SETTINGS = [
    (SGD, {"lr": 0.1}),
    (SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}),
    (SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.2, "maximize": True}),
    (SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    (Adam, {"lr": 0.01}),
    (Adam, {"lr": 0.01, "weight_decay": 0.1, "amsgrad": True}),
    (AdamW, {"lr": 0.01}),
    (AdamW, {"lr": 0.01, "betas": (0.4, 0.9), "eps": 1e-6, "maximize": True, "amsgrad": True}),
]
X, Y = torch.randn(16, 20, generator=torch.Generator().manual_seed(1)), torch.arange(16) % 7


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 50), nn.LayerNorm(50), nn.GELU(), nn.Linear(50, 7))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 6, scheduler: StepLR | None = None) -> None:
    for _ in range(steps):
        F.cross_entropy(model(X), Y).backward()
        optimizer.step()
        optimizer.zero_grad()
        if scheduler is not None:
            scheduler.step()


def assert_alike(ours: nn.Module, theirs: nn.Module) -> None:
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(p, q, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize(("cls", "settings"), SETTINGS, ids=lambda v: v.__name__ if isinstance(v, type) else "-".join(v))
def test_steps_equal_torchs_and_a_schedule_compiles_nothing(cls: type, settings: dict[str, object]) -> None:
    ours, theirs = network(), network()
    for model in (ours, theirs):
        optimizer = cls(model.parameters(), **settings)
        if model is ours:
            optimizer.step = tinycompile.compile(optimizer.step)
        train(model, optimizer, 6, StepLR(optimizer, 2, gamma=0.5))
        if model is ours:
            (compiled,) = optimizer.step.__wrapped__.compiled
            assert len(compiled.source.kernels) == 1  # six tensors
    assert_alike(ours, theirs)


def test_a_schedule_that_came_first_and_betas_that_cycle() -> None:
    ours, theirs = network(), network()
    for model in (ours, theirs):
        optimizer = Adam(model.parameters())
        scheduler = OneCycleLR(optimizer, 0.1, total_steps=20)
        if model is ours:
            optimizer.step = tinycompile.compile(optimizer.step)
        train(model, optimizer, 6, scheduler)
        assert optimizer._opt_called
    assert_alike(ours, theirs)


def test_groups_missing_gradients_and_state_from_a_checkpoint() -> None:
    ours, theirs = network(), network()
    for model in (ours, theirs):
        groups = [{"params": model[0].parameters(), "lr": 0.05}, {"params": [*model[1].parameters(), *model[3].parameters()]}]
        optimizer = AdamW(groups, lr=0.01)
        if model is ours:
            optimizer.step = tinycompile.compile(optimizer.step)
        train(model, optimizer, 3)
        model[3].requires_grad_(False)
        train(model, optimizer, 3)
        kept = optimizer.state_dict()
        optimizer.load_state_dict(kept)
        model[3].requires_grad_(True)
        train(model, optimizer, 2)
    assert_alike(ours, theirs)


def _exchange_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    held = optimizer.state[model[0].weight]
    held["exp_avg"] = held["exp_avg"] * 0.5


def _exchange_parameter(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    old = model[3].bias
    model[3].bias = nn.Parameter(old.detach() + 1)
    optimizer.param_groups[0]["params"][-1] = model[3].bias
    optimizer.state[model[3].bias] = {k: v.clone() for k, v in optimizer.state.pop(old).items()}


def _exchange_memory(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model[0].weight.data = model[0].weight.data * 2


def _start_anew(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.state.clear()


def _load(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    kept = optimizer.state_dict()
    kept["state"][0]["exp_avg_sq"] = kept["state"][0]["exp_avg_sq"] + 1
    optimizer.load_state_dict(kept)


def _freeze(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model[1].requires_grad_(False)


def _another_group(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    moved = optimizer.param_groups[0]["params"].pop()
    optimizer.add_param_group({"params": [moved], "lr": 0.2})


CHANGES = [_exchange_state, _exchange_parameter, _exchange_memory, _start_anew, _load, _freeze, _another_group]


@pytest.mark.parametrize("change", CHANGES, ids=lambda f: f.__name__.strip("_"))
def test_what_changes_between_steps_is_seen(change) -> None:
    ours, theirs = network(), network()
    for model in (ours, theirs):
        optimizer = AdamW(model.parameters(), lr=0.01)
        if model is ours:
            optimizer.step = tinycompile.compile(optimizer.step)
        train(model, optimizer, 4)
        change(model, optimizer)
        train(model, optimizer, 3)
    assert_alike(ours, theirs)


def test_gradients_die_with_the_step() -> None:
    model = network()
    optimizer = AdamW(model.parameters())
    optimizer.step = tinycompile.compile(optimizer.step)
    train(model, optimizer, 2)
    F.cross_entropy(model(X), Y).backward()
    seen = [weakref.ref(p.grad) for p in model.parameters()]
    optimizer.step()
    optimizer.zero_grad()
    assert not any(ref() is not None for ref in seen)


def test_what_is_not_covered_is_torchs_own() -> None:
    model = network()
    optimizer = AdamW(model.parameters(), amsgrad=False)
    seen = []
    optimizer.step = tinycompile.compile(optimizer.step)
    optimizer.register_step_post_hook(lambda *a: seen.append(1))
    train(model, optimizer, 3)
    assert len(seen) == 3 and not optimizer.step.__func__.compiled

    class Mine(SGD):
        pass

    mine = Mine(model.parameters(), lr=0.1)
    mine.step = tinycompile.compile(mine.step)
    train(model, mine, 2)
    assert not mine.step.__func__.compiled


def test_a_closure_is_called_with_gradients() -> None:
    model = network()
    optimizer = SGD(model.parameters(), lr=0.1)
    step = tinycompile.compile(optimizer.step)

    def closure():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(X), Y)
        loss.backward()
        return loss

    losses = [step(closure).item() for _ in range(3)]
    assert losses[2] < losses[0]


def test_versions_count_up() -> None:
    model = network()
    optimizer = SGD(model.parameters(), lr=0.1)
    optimizer.step = tinycompile.compile(optimizer.step)
    loss = F.cross_entropy(model(X), Y)
    loss.backward(retain_graph=True)
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_dtypes(dtype: torch.dtype) -> None:
    made = []
    for compiled in (True, False):
        torch.manual_seed(3)
        ps = [nn.Parameter(torch.randn(s).to(dtype)) for s in ((33,), (4, 5), (2, 3, 4))]
        optimizer = AdamW(ps, lr=0.01)
        if compiled:
            optimizer.step = tinycompile.compile(optimizer.step)
        for _ in range(4):
            for p in ps:
                p.grad = torch.randn_like(p)
            optimizer.step()
        made.append(ps)
    for p, q in zip(*made, strict=True):
        torch.testing.assert_close(
            p, q, atol=4e-2 if dtype == torch.bfloat16 else 1e-9, rtol=1e-2 if dtype == torch.bfloat16 else 1e-9
        )


def test_a_step_that_is_not_covered_is_compiled_apart() -> None:
    """With a closure a step ends the graph, and is called through its compiled form."""

    def step(model, optimizer, x, y):
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step(lambda: None)
        optimizer.zero_grad()
        return loss.detach()

    ours, theirs = network(), network()
    for model in (ours, theirs):
        optimizer = AdamW(model.parameters(), lr=0.01)
        scheduler = StepLR(optimizer, 2)
        run = tinycompile.compile(step) if model is ours else step
        for _ in range(5):
            run(model, optimizer, X, Y)
            scheduler.step()
        if model is ours:
            assert "optimizer" in {b.id for b in run.breaks}
            assert run.cache_info()["recompiles"] == 0
            (callee,) = run._callees.values()
            assert len(callee.__func__.compiled) == 1
    assert_alike(ours, theirs)


def test_accumulated_clipped_and_scaled() -> None:
    """Gradient accumulation, clipping by norm, and a GradScaler, around compiled pieces."""
    ours, theirs = network(), network()
    for model in (ours, theirs):
        optimizer = AdamW(model.parameters(), lr=0.01)
        scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
        forward = tinycompile.compile(model, fullgraph=True) if model is ours else model
        if model is ours:
            optimizer.step = tinycompile.compile(optimizer.step)
        for _ in range(3):
            for half in (slice(0, 8), slice(8, 16)):
                scaler.scale(F.cross_entropy(forward(X[half]), Y[half]) / 2).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        if model is ours:
            assert optimizer.step.__func__.compiled
    assert_alike(ours, theirs)


def _odd(t: torch.Tensor) -> torch.Tensor:
    """Equal values that begin at no multiple of 16 bytes."""
    return torch.cat([t.new_zeros(1), t.detach().flatten()])[1:].view(t.shape)


BEHIND_BACKWARD = {
    "data not aligned": lambda o, p: setattr(p, "data", _odd(p)),
    "data of another layout": lambda o, p: setattr(p, "data", p.data.t().clone().t() if p.ndim == 2 else p.data.clone()),
    "a state's data": lambda o, p: setattr(o.state[p]["exp_avg"], "data", _odd(o.state[p]["exp_avg"])),
    "a state's values": lambda o, p: o.state[p]["exp_avg_sq"].mul_(2),
    "a gradient not aligned": lambda o, p: setattr(p, "grad", _odd(p.grad)),
    "a gradient expanded": lambda o, p: setattr(p, "grad", torch.ones(()).expand(p.shape)),
    "another state": lambda o, p: o.state[p].update(exp_avg=torch.ones_like(p)),
    "all states loaded": lambda o, p: o.load_state_dict(o.state_dict()),
    "no gradient": lambda o, p: setattr(p, "grad", None),
}


@pytest.mark.parametrize("at", [0, -1])
@pytest.mark.parametrize("change", BEHIND_BACKWARD)
def test_what_is_changed_behind_a_backward_is_seen(change: str, at: int) -> None:
    found = []
    for compiled in (False, True):
        model = network()
        optimizer = AdamW(model.parameters(), lr=0.01)
        step = tinycompile.compile(optimizer.step) if compiled else optimizer.step
        for number in range(8):
            F.cross_entropy(model(X), Y).backward()
            if number in (3, 5, 6):
                BEHIND_BACKWARD[change](optimizer, list(model.parameters())[at])
            step()
            optimizer.zero_grad()
        found.append(model)
    assert_alike(found[1], found[0])
