"""Whatever changes in a module after the first call takes effect, and what does not change is not looked into again."""

from __future__ import annotations

import copy
import os
import types
from collections import OrderedDict

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune

import tinycompile
from tinycompile.base import dict_versions
from tinycompile.capture import guard_entries
from tinycompile.capture.guard_entries import Entry, Watched, watchable
from tinycompile.capture.sources import Held

pytestmark = pytest.mark.cpu

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
FACTOR = 2.0
EVERY = 1 if os.environ.get("TINYCOMPILE_TESTS") == "full" else 4


class Block(nn.Module):
    slope = 0.5

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4, bias=False)
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.tail = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
        self.norm, self.drop = nn.BatchNorm1d(4), nn.Dropout(0.0)
        self.register_buffer("shift", torch.ones(4))
        self.scale = nn.Parameter(torch.ones(1))
        self.maybe = None
        self.power, self.gain, self.name, self.sizes, self.table = 2, 1.5, "gelu", [1, 2], {"a": 1.0}

    def helper(self, x):
        return x * 3

    @staticmethod
    def still(x):
        return x + 0.5

    @property
    def bonus(self):
        return 0.25

    def forward(self, x):
        x = self.first(x) * self.scale + self.shift
        x = F.gelu(x) if self.name == "gelu" else F.relu(x)
        for layer in self.layers:
            x = layer(x) + self.slope
        x = self.drop(self.norm(self.tail(self.second(x))))
        if self.maybe is not None:
            x = x + self.maybe
        if hasattr(self, "extra"):
            x = x * self.extra
        return self.still(self.helper(x)) ** self.power * self.gain * FACTOR + self.sizes[0] + self.table["a"] + self.bonus


def hook(module, args, out):
    return out + 1


def _set(path, value):
    def change(net):
        *parents, name = path.split(".")
        for p in parents:
            net = getattr(net, p) if not p.isdigit() else net[int(p)]
        setattr(net, name, value() if callable(value) else value)

    return change


def _data(make):
    def change(net):
        net.first.weight.data = make(net.first.weight.detach())

    return change


def _replace_hooks_dict(net):
    net.first._forward_hooks = type(net.first._forward_hooks)()
    net.first.register_forward_hook(hook)


def _other_class(net):
    class Other(type(net)):
        def helper(self, x):
            return x * 7

    net.__class__ = Other


def _rename_parameter(net):
    net.first._parameters["weight"], net.first._parameters["bias"] = (
        nn.Parameter(torch.eye(4)),
        net.first._parameters.pop("bias"),
    )


def _swap_state(net):
    net.first._parameters = {k: nn.Parameter(v.detach() * 2) for k, v in net.first._parameters.items()}


def _global_hook(net):
    net.handle = nn.modules.module.register_module_forward_hook(hook)


CHANGES = {
    "data": _data(lambda w: torch.full_like(w, 0.5)),
    "data of another dtype": lambda net: (net.double(), None),
    "data in place": lambda net: net.first.weight.data.zero_(),
    "data transposed": _data(lambda w: torch.randn(4, 4).t()),
    "data not aligned": _data(lambda w: torch.randn(17)[1:].view(4, 4)),
    "requires_grad_": lambda net: net.first.requires_grad_(False),
    "requires_grad_ of all": lambda net: net.requires_grad_(False),
    "another parameter": _set("first.weight", lambda: nn.Parameter(torch.eye(4))),
    "another parameter in the dict": _rename_parameter,
    "another dict of parameters": _swap_state,
    "parameter of one element": _set("scale", lambda: nn.Parameter(torch.ones(1))),
    "a parameter where None was": lambda net: net.register_parameter("maybe", nn.Parameter(torch.ones(4))) if not hasattr(net, "maybe") else (delattr(net, "maybe"), net.register_parameter("maybe", nn.Parameter(torch.ones(4)))),
    "no bias": _set("first.bias", None),
    "tied": lambda net: setattr(net.layers[0], "weight", net.layers[1].weight),
    "another buffer": _set("shift", lambda: torch.full((4,), 3.0)),
    "buffer in place": lambda net: net.shift.add_(1),
    "buffer became a number": lambda net: (delattr(net, "shift"), setattr(net, "shift", 2.0)),
    "another submodule": _set("second", lambda: nn.Linear(4, 4)),
    "submodule became a function": lambda net: (delattr(net, "second"), setattr(net, "second", torch.sin)),
    "list grows": lambda net: net.layers.append(nn.Linear(4, 4)),
    "list shrinks": lambda net: net.layers.__delitem__(0),
    "list item": lambda net: net.layers.__setitem__(0, nn.Linear(4, 4)),
    "sequential grows": lambda net: net.tail.append(nn.Linear(4, 4)),
    "sequential reordered": lambda net: setattr(net, "tail", nn.Sequential(*reversed(list(net.tail)))),
    "forward hook": lambda net: net.first.register_forward_hook(hook),
    "forward hook of the root": lambda net: net.register_forward_hook(hook),
    "forward pre-hook": lambda net: net.first.register_forward_pre_hook(lambda m, args: (args[0] * 2,)),
    "hook with kwargs": lambda net: net.first.register_forward_hook(lambda m, args, kwargs, out: out - 1, with_kwargs=True),
    "hook in a new dict": _replace_hooks_dict,
    "backward hook": lambda net: net.first.register_full_backward_hook(lambda m, gi, go: None),
    "global hook": _global_hook,
    "train": lambda net: net.train(not net.training),
    "train of a child": lambda net: net.norm.train(not net.norm.training),
    "dropout everything": lambda net: setattr(net.drop, "p", 1.0),
    "forward of the object": lambda net: setattr(net, "forward", types.MethodType(lambda self, x: x * 2 + self.shift, net)),
    "forward of a child": lambda net: setattr(net.first, "forward", lambda x: x * 9),
    "method of the object": lambda net: setattr(net, "helper", lambda x: x * 5),
    "method of the class": lambda net: setattr(type(net), "helper", lambda self, x: x * 4),
    "forward of the class": lambda net: setattr(type(net), "forward", lambda self, x: x * 4),
    "static method of the class": lambda net: setattr(type(net), "still", staticmethod(lambda x: x + 9)),
    "property of the class": lambda net: setattr(type(net), "bonus", property(lambda self: 8.0)),
    "attribute of the class": lambda net: setattr(type(net), "slope", -0.5),
    "class attribute hidden": _set("slope", 4.0),
    "another class": _other_class,
    "__call__ of the class": lambda net: setattr(type(net), "__call__", lambda self, x: self.forward(x) + 100),
    "int": _set("power", 3),
    "float": _set("gain", 7.5),
    "text": _set("name", "relu"),
    "list entry": lambda net: net.sizes.__setitem__(0, 11),
    "dict entry": lambda net: net.table.__setitem__("a", 5.0),
    "a new attribute": _set("extra", 3.0),
    "load_state_dict": lambda net: net.load_state_dict({k: torch.ones_like(v) for k, v in net.state_dict().items()}),
    "parametrized": lambda net: parametrize.register_parametrization(net.first, "weight", nn.Softplus()),
    "weight norm": lambda net: parametrizations.weight_norm(net.first),
    "pruned": lambda net: prune.l1_unstructured(net.first, "weight", amount=0.5),
    "vars": lambda net: net.__dict__.update(gain=9.5),
}  # fmt: skip


def fresh():
    """A net of a class of its own, which tests may change."""
    cls = type("Fresh", (Block,), dict(Block.__dict__))
    cls.__init__ = lambda self: Block.__init__(self)
    torch.manual_seed(3)
    net = cls()
    return net.eval()


@pytest.mark.parametrize(("name", "how"), [*((n, "module") for n in CHANGES), *((n, "argument") for n in [*CHANGES][::EVERY])])
def test_a_change_takes_effect(name, how):
    net = fresh()
    if how == "module":
        run = tinycompile.compile(net, backend="eager")
        entries = lambda: run.compiled._entries  # noqa: E731
    else:
        f = tinycompile.compile(lambda m, x: m(x) + 1, backend="eager")
        run = lambda x: f(net, x) - 1  # noqa: E731
        entries = lambda: f._entries  # noqa: E731
    for _ in range(3):
        torch.testing.assert_close(run(X), net(X))
    before = len(entries())
    try:
        CHANGES[name](net)
        x = X.to(next(net.parameters()).dtype)
        twin = copy.deepcopy(net) if net.training or net.norm.training else net
        for _ in range(2):
            got = run(x)
            want = twin(x)
            torch.testing.assert_close(got, want)
            assert got.requires_grad == want.requires_grad
        torch.testing.assert_close(net.norm.running_mean, twin.norm.running_mean)
    finally:
        if "handle" in vars(net):
            net.handle.remove()
    assert before == 1 and len(entries()) <= 3


@pytest.mark.parametrize("name", [*CHANGES][::6])
def test_a_change_takes_effect_without_versions_of_dicts(name, monkeypatch):
    monkeypatch.setattr(dict_versions, "can_tell", lambda: False)
    test_a_change_takes_effect(name, "module")


@pytest.mark.parametrize("change", ["global", "cell", "default", "keyword default", "code"])
def test_what_functions_refer_to(change, monkeypatch):
    net, offset = nn.Linear(4, 4), 1.0

    def f(x, by=2.0, *, more=1.0):
        return net(x) * by + offset + FACTOR * more

    compiled = tinycompile.compile(f, backend="eager")
    assert torch.equal(compiled(X), f(X))
    if change == "global":
        monkeypatch.setitem(globals(), "FACTOR", 5.0)
    elif change == "cell":
        offset, net = 3.0, nn.Linear(4, 4)
    elif change == "default":
        f.__defaults__ = (7.0,)
    elif change == "keyword default":
        f.__kwdefaults__ = {"more": 4.0}
    else:
        f.__code__ = (lambda x, by=2.0, *, more=1.0: (net, offset, x * 3)[-1]).__code__
    assert torch.equal(compiled(X), f(X))


def test_a_module_that_counts_its_calls():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.calls, self.last = nn.Linear(4, 4), 0, None

        def forward(self, x):
            self.calls += 1
            self.last = "x"
            return self.inner(x)

    net = Counting()
    compiled = tinycompile.compile(net, backend="eager")
    for i in range(12):
        assert torch.equal(compiled(X), net.inner(X)) and net.calls == i + 1
    with torch.no_grad():
        net.inner.weight = nn.Parameter(torch.eye(4))
    assert torch.equal(compiled(X), net.inner(X))
    assert len(compiled.compiled._entries) <= 6


def test_many_parameters_are_passed_as_one_tuple():
    net = nn.Sequential(*(nn.Linear(4, 4) for _ in range(6)))
    compiled = tinycompile.compile(lambda x, y: net(x) + y, backend="eager")
    for _ in range(2):
        torch.testing.assert_close(compiled(X, X), net(X) + X)
    assert "(x, *parameters, y)" in compiled.source("python")
    net[3].weight = nn.Parameter(torch.eye(4))
    torch.testing.assert_close(compiled(X, X), net(X) + X)
    net[5].bias.data = torch.ones(4)
    torch.testing.assert_close(compiled(X, X), net(X) + X)


# --- entries ------------------------------------------------------------------------------------------------


def _entries(mapping, name="d"):
    held = Held(name, name, mapping)
    return [Entry("is", held, k, v, k) for k, v in mapping.items()]


@pytest.mark.parametrize("watched", [True, False])
def test_entries_are_checked_in_bulk(watched):
    mapping = {str(i): object() for i in range(5)}
    check = Watched(_entries(mapping)) if watched else guard_entries.every(_entries(mapping))
    assert check() and check()
    mapping["3"], before = object(), mapping["3"]
    assert not check() and not check()
    mapping["3"] = before
    assert check() and check()


def test_a_dict_that_keeps_changing_is_looked_into_at_each_call():
    mapping = {"a": object(), "n": 0}
    check = Watched([Entry("is", Held("d", "d", mapping), "a", mapping["a"], "a")])
    for i in range(10):
        mapping["n"] = i
        assert check()
    assert check._state.dicts == () and check()
    mapping["a"] = object()
    assert not check()


def test_each_kind_of_entry():
    def f():
        return 1

    mapping, held = {"a": 1, "b": None}, Held("d", "d", {})
    held = Held("d", "d", mapping)
    entries = [
        Entry("equal", held, "a", 1, "a"),
        Entry("absent", held, "c", None, "c"),
        Entry("keys", held, "", ("a", "b"), "keys"),
        Entry("code", Held("f", "f", f), "__code__", f.__code__, "code"),
        Entry("is", held, "b", None, "b"),
        Entry("dict", Held("f", "f", f), "", f.__dict__, "dict"),
    ]
    check = guard_entries.every(entries)
    assert check() and all(e.holds() for e in entries)
    for change, broken in (({"a": True}, 0), ({"a": 1.0}, 0), ({"c": 2}, 1), ({"b": 0}, 4)):
        changed = {**mapping, **change}
        before = dict(mapping)
        mapping.clear()
        mapping.update(changed)
        assert not check() and not entries[broken].holds()
        mapping.clear()
        mapping.update(before)
    f.__code__ = (lambda: 2).__code__
    assert not check() and not entries[3].holds()


def test_an_ordered_dict_that_is_put_in_another_order():
    table = OrderedDict((str(i), i) for i in range(9))
    held = Held("t", "t", table)
    entries = [Entry("keys", held, "", tuple(table), "keys"), *(Entry("is", held, k, v, k) for k, v in table.items())]
    assert guard_entries.to_watch(entries) == [None] + [table] * 9
    check = guard_entries.every(entries)
    assert check()
    table.move_to_end("0")
    assert not check()


def test_what_is_watched():
    for watched in ({"a": 1}, nn.Linear(2, 2)._parameters, vars(nn.ReLU())):
        assert watchable(watched) is watched
    assert all(watchable(other) is None for other in ({}, globals(), [1], (), 3))


def test_a_class_is_watched():
    class Some:
        a, b = 1, 2

    behind = watchable(Some.__dict__)
    assert behind is not None and behind == dict(Some.__dict__)
    held = Held("Some", "Some", Some.__dict__)
    check = Watched([Entry("is", held, "a", 1, "a"), Entry("absent", held, "c", None, "c")])
    assert check() and check()
    Some.b = 3
    assert check() and check()
    Some.c = 1
    assert not check() and not check()
    del Some.c
    assert check()
    Some.a = 2
    assert not check()


def test_objects_that_lie_where_others_lay_are_told_apart():
    """On 3.13 an attribute is seen by the address of its value."""

    class Holder:
        def __init__(self):
            self.kind, self.value = "a", 1000.5

    obj = Holder()
    check = Watched([Entry("equal", Held("o", "o", vars(obj)), "value", 1000.5, "value")])
    assert check()
    for i in range(200):
        obj.value = float(f"100{i % 3}.5")  # a new object each time
        assert check() == (i % 3 == 0)


def test_a_module_whose_init_did_not_run_is_used_for_what_it_has() -> None:
    class Bare(nn.Module):
        def __init__(self) -> None:
            object.__setattr__(self, "scale", 2.0)

        def scaled(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.scale + hasattr(self, "scale")

    bare = Bare()
    compiled = tinycompile.compile(lambda x: bare.scaled(x), backend="eager")
    for _ in range(2):
        assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 3.0))
