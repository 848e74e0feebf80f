"""Changes of modules: parameters, hooks, attributes, and their classes."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrize

import tinycompile
from tests.capture.changes.stories import AS_BEFORE, UNRELATED, Story, patched, story
from tests.capture.corpus import r

X = r(2, 3)


@story
def forward_of_a_module_of_torch() -> Story:
    net = nn.Linear(3, 3)
    yield lambda x: net(x), X
    with patched(nn.Linear, "forward", lambda self, x: x * 9):
        yield
    with patched(nn.Module, "__call__", lambda self, x: x * 8):
        yield
    yield AS_BEFORE


@story
def state_of_a_module() -> Story:
    net = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.0), nn.Linear(3, 3))
    yield lambda x: (net(x), [p.requires_grad for p in net.parameters()]), X
    net[0].bias.requires_grad_(False)
    yield
    net[2].weight = net[0].weight
    yield
    net[2].weight = nn.Parameter(net[0].weight.detach() * 3)
    yield
    parametrize.register_parametrization(net[0], "weight", nn.Softplus())
    yield
    parametrize.remove_parametrizations(net[0], "weight", leave_parametrized=False)
    yield
    net.unread = 5  # type: ignore[assignment]
    yield UNRELATED


class Gain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gain, self.act = 2.0, functools.partial(F.leaky_relu, negative_slope=0.1)
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x: Any) -> Any:
        return self.act(x * self.gain) * self.weight + getattr(self, "absent", 1)


def of_its_own() -> Any:
    """A module of a class that a story may change."""
    cls = type("Own", (Gain,), {})
    return cls()


@story
def property_over_an_attribute_of_a_module() -> Story:
    net = of_its_own()
    yield lambda x: net(x), X
    type(net).gain = property(lambda self: 7.0)
    yield
    type(net).weight = property(lambda self: 5.0)
    yield
    del type(net).gain, type(net).weight
    yield AS_BEFORE


@story
def hooks_for_attributes_of_a_module() -> Story:
    net = of_its_own()
    yield lambda x: net(x), X
    type(net).__getattr__ = lambda self, name: 8.0 if name == "absent" else nn.Module.__getattr__(self, name)
    yield
    type(net).__getattribute__ = lambda self, name: 3.0 if name == "gain" else object.__getattribute__(self, name)
    yield
    del type(net).__getattr__, type(net).__getattribute__
    yield AS_BEFORE


@story
def whole_dict_of_a_module() -> Story:
    net = of_its_own()
    yield lambda x: net(x), X
    net.__dict__ = {**vars(net), "gain": 9.0}
    yield


@story
def partial_of_a_module() -> Story:
    net = of_its_own()
    yield lambda x: net(x), X
    net.act.keywords["negative_slope"] = 0.7
    yield
    net.act = functools.partial(F.leaky_relu, negative_slope=0.3)
    yield


@story
def weights_tied_and_untied() -> Story:
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    second.weight = first.weight
    yield lambda x: (first(x) + second(x), first.weight is second.weight), X
    second.weight = nn.Parameter(first.weight.detach().clone())
    yield
    second.weight = first.weight
    yield AS_BEFORE


@story
def hooks_of_every_kind() -> Story:
    net = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    x = r(2, 3)
    yield lambda x: net(x), x
    handles = [net[0].register_forward_hook(lambda m, a, out: out + 1)]
    yield
    handles.append(net.register_forward_pre_hook(lambda m, a: (a[0] * 2,)))
    yield
    handles.append(nn.modules.module.register_module_forward_hook(lambda m, a, out: out * 2))
    yield
    handles.append(nn.modules.module.register_module_forward_pre_hook(lambda m, a: (a[0] - 1,)))
    yield
    handles.append(net[0].register_forward_hook(lambda m, a, out: out * 3, always_call=True))
    yield
    for handle in handles:
        handle.remove()
    yield AS_BEFORE


def _ways_of_being_called(net: nn.Module, part: nn.Module) -> Story:
    """Whatever stands between a call of ``part``, of a class of its own, and its class's forward."""
    x = r(2, 3)
    cls = type(part)
    yield lambda x: net(x) + 1, x
    for owner, name, value in [
        (cls, "forward", lambda self, x: x - 1),
        (cls, "__call__", lambda self, x: x - 2),
        (cls, "_call_impl", lambda self, x: x - 3),
        (cls, "__getattribute__", lambda self, k: torch.neg if k == "forward" else nn.Module.__getattribute__(self, k)),
        (nn.Module, "_call_impl", lambda self, x: x - 5),
        (nn.Module, "__call__", lambda self, x: x - 6),
        (part, "_call_impl", lambda x: x - 7),
        (part, "_compiled_call_impl", lambda x: x - 8),
        (part, "forward", lambda x: x - 9),
    ]:
        with patched(owner, name, value):
            yield
        yield AS_BEFORE
    del cls.forward
    yield


@story
def ways_in_which_a_module_is_called() -> Story:
    part = of_its_own()
    type(part).forward = lambda self, x: Gain.forward(self, x) * 2
    yield from _ways_of_being_called(nn.Sequential(part), part)


@story
def ways_in_which_a_module_that_breaks_is_called() -> Story:
    class Breaks(Gain):
        def forward(self, x: Any) -> Any:
            tinycompile.graph_break()
            return x * 2

    part = Breaks()
    yield from _ways_of_being_called(nn.Sequential(part), part)
