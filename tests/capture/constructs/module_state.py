"""``state_dict()`` and walks over the state of modules inside captured code."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import nn

from tests.capture.constructs.registry import breaks, case
from tests.capture.corpus import r


class Net(nn.Module):
    _version = 3

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(4, 4), nn.Sequential(nn.BatchNorm1d(4), nn.ReLU())
        self.tied, self.none = self.a, None
        self.register_module("lacking", None)
        self.register_parameter("missing", None)
        self.register_buffer("kept", torch.arange(4.0))
        self.register_buffer("passing", torch.ones(2), persistent=False)


NET, OTHER = Net(), Net()


@case(args=lambda: (NET, r(2, 4)))
def state_dict_of_a_module(m, x):
    state = m.state_dict()
    norms = {name: t.norm() for name, t in state.items() if t.is_floating_point()}
    return list(state), type(state), norms, x @ state["a.weight"], state._metadata["b"], hasattr(state, "other")


@case(args=lambda: (NET, r(2, 4)))
def state_dict_is_detached(m, x):
    state, kept = m.state_dict(), m.state_dict(prefix="net.", keep_vars=True)
    same = kept["net.a.weight"] is m.a.weight, state["a.weight"] is m.a.weight, state["a.weight"].requires_grad
    return same, state["a.weight"].is_set_to(m.a.weight), kept["net.tied.bias"] is m.a.bias, x


@case(args=lambda: (NET, r(2, 4)))
def state_dict_into_another(m, x):
    target = OrderedDict(first=x)
    target._metadata = OrderedDict()
    assert m.b.state_dict(destination=target, prefix="b.") is target
    return list(target), target._metadata, target["b.0.running_mean"] + 1


@case(args=lambda: (NET, r(2, 4)))
def names_of_state(m, x):
    total = sum(p.sum() * len(name) for name, p in m.named_parameters())
    buffers = dict(m.named_buffers())
    children = [*m.children()], [n for n, _ in m.named_children()], [n for n, _ in m.named_modules()]
    return total, list(buffers), children, len([*m.modules()]), len([*m.parameters()]), buffers["kept"] + x


@case(args=lambda: (NET, r(2, 4)))
def parts_by_name(m, x):
    return m.get_parameter("a.weight") is m.a.weight, m.get_buffer("kept") is m.kept, m.get_submodule("b.0") is m.b[0], x


@breaks(args=lambda: (NET, OTHER, r(2, 4)))
def state_is_loaded(m, other, x):
    with torch.no_grad():
        other.a.weight.zero_()
    before = other.a(x)
    found = other.load_state_dict(m.state_dict())
    return before, other.a(x), found.missing_keys, other.a.weight is m.a.weight
