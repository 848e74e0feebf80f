"""Nothing outlives what it was compiled for: tensors, modules and compiled code go when the program lets them go."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import weakref

import pytest
import torch
from torch import nn

import tinycompile
from tinycompile.base.errors import RecompileLimitWarning

pytestmark = pytest.mark.cpu

X = torch.ones(2, 4)
GLOBAL: list[nn.Module] = []


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.k = nn.Linear(4, 4), 2

    def forward(self, x):
        return self.inner(x) * self.k


class Decorated(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.inner = nn.Linear(4, width)

    @tinycompile.compile(backend="eager")
    def forward(self, x):
        return self.inner(x) + 1


def _module():
    net = Net()
    compiled = tinycompile.compile(net, backend="eager")
    compiled(X)
    return [net, net.inner.weight, compiled, compiled.compiled], None


def _argument():
    net, f = Net(), tinycompile.compile(lambda m, x: m(x), backend="eager")
    f(net, X)
    return [net, net.inner.weight, f._entries[0]()], f


def _argument_behind_a_break():
    def f(m, x):
        x = x + 1
        tinycompile.graph_break()
        return m(x)

    net, compiled = Net(), tinycompile.compile(f, backend="eager")
    compiled(net, X)
    return [net, net.inner.weight], compiled


def _method():
    net = Decorated()
    net(X)
    return [net, net.inner.weight], Decorated


def _closure():
    net = Net()

    def f(x):
        return net(x)

    compiled = tinycompile.compile(f, backend="eager")
    compiled(X)
    before, net = net, Net()
    compiled(X)
    return [before, before.inner.weight], compiled


def _global():
    f = tinycompile.compile(lambda x: GLOBAL[0](x), backend="eager")
    GLOBAL[:] = [Net()]
    f(X)
    before, GLOBAL[:] = GLOBAL[0], [Net()]
    f(X)
    return [before, before.inner.weight], f


def _tensors(backend="eager"):
    f = tinycompile.compile(lambda a, b: (a * b).relu() + 1, backend=backend)
    a, b = torch.randn(3, requires_grad=True), torch.randn(3)
    out = f(a, b)
    out.sum().backward()
    return [a, b, out, a.grad], f


def _tensors_over_a_break():
    def f(a, b):
        c = a + b
        if c.sum() > 1e9:
            return c
        return c * a

    compiled = tinycompile.compile(f, backend="eager")
    a, b = torch.randn(3), torch.randn(3)
    return [a, b, compiled(a, b)], compiled


def _containers():
    f = tinycompile.compile(lambda seq, table: seq[0] + table["k"] + 1, backend="eager")
    seq, table = [torch.randn(3)], {"k": torch.randn(3)}
    f(seq, table)
    return [seq[0], table["k"]], f


def _functions():
    f = tinycompile.compile(lambda fn, x: fn(x) + 1, backend="eager")
    big = torch.randn(4)

    def scaled(x):
        return x * big

    f(scaled, X)
    return [scaled, big], f


def _objects():
    class Config:
        pass

    f, config = tinycompile.compile(lambda o, x: o.t + x + o.n, backend="eager"), Config()
    config.t, config.n = torch.randn(4), 3
    f(config, X)
    return [config, config.t], f


def _failing():
    f = tinycompile.compile(lambda a, b: a @ b, backend="eager")
    a, b = torch.randn(3), torch.randn(4)
    with pytest.raises(RuntimeError, match="inconsistent tensor size"):
        f(a, b)
    return [a, b], f


def _traced():
    net = Net()
    module = tinycompile.trace(net, X)
    compiled = tinycompile.compile(module, backend="eager")
    compiled(X)
    return [net, net.inner.weight, module], None


SCENES = {
    name[1:]: fn for name, fn in list(globals().items()) if name.startswith("_") and callable(fn) and fn.__module__ == __name__
}


@pytest.mark.parametrize("name", SCENES)
def test_all_is_let_go(name):
    things, kept = SCENES[name]()
    refs = [weakref.ref(t) for t in things]
    del things
    gc.collect()
    assert [r() for r in refs] == [None] * len(refs), kept
    if isinstance(kept, tinycompile.CompiledFunction) and name in ("argument", "argument_behind_a_break"):
        assert not any(e.captured.owner for e in kept.all_entries)
        assert [p._entries for p in (kept, *kept.resumed.values())][-1] == ()
        net = Net()
        assert torch.equal(kept(net, X if name == "argument" else X - 1), net(X))


def _alive() -> int:
    gc.collect()
    return sum(issubclass(type(o), (torch.Tensor, nn.Module)) for o in gc.get_objects())


@pytest.mark.parametrize("name", ["module", "function", "break", "gradients"])
def test_a_thousand_calls_leave_nothing_behind(name):
    net = Net()
    if name == "module":
        call = tinycompile.compile(net, backend="eager")
    elif name == "function":
        call = tinycompile.compile(lambda x: [x + 1, {"a": x * 2}], backend="eager")
    elif name == "break":

        def broken(x):
            y = x + 1
            tinycompile.graph_break()
            return y * 2

        call = tinycompile.compile(broken, backend="eager")
    else:
        inner = tinycompile.compile(lambda x: (net(x) ** 2).sum())

        def call(x):
            net.zero_grad()
            inner(x).backward()

    for _ in range(3):
        call(torch.randn(2, 4))
    before = _alive()
    for _ in range(1000):
        call(torch.randn(2, 4))
    assert _alive() <= before


def test_modules_that_come_and_go_are_no_recompiles():
    f = tinycompile.compile(lambda m, x: m(x), backend="eager")
    for _ in range(10):
        net = Net()
        assert torch.equal(f(net, X), net(X)) and torch.equal(f(net, X), net(X))
        del net
        gc.collect()
    assert len(f._entries) == 0 and not f.recompiles


def test_each_module_of_a_class_has_its_own_limit():
    Decorated.forward.reset()
    nets = [Decorated() for _ in range(20)]
    for _ in range(2):
        for net in nets:
            assert torch.equal(net(X), net.inner(X) + 1)
    assert len(Decorated.forward._entries) == 20


def test_a_loop_over_layers_behind_breaks_has_its_own_limit_too():
    layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(12)])

    def f(x):
        for layer in layers:
            x = layer(x)
            tinycompile.graph_break()
        return x

    compiled = tinycompile.compile(f, backend="eager")
    for _ in range(2):
        torch.testing.assert_close(compiled(X), f(X))


def test_the_limit_warns_once_and_names_the_guard():
    f = tinycompile.compile(lambda m, x, k: m(x) * 2 if k else x, backend="eager")
    net = Net()
    with pytest.warns(RecompileLimitWarning, match=r"8 times.*k == 'v\d'") as caught:
        for i in range(12):
            assert torch.equal(f(net, X, f"v{i}"), net(X) * 2)
    assert len([w for w in caught if issubclass(w.category, RecompileLimitWarning)]) == 1
    other = Net()
    assert torch.equal(f(other, X, "v20"), other(X) * 2) and len(f._entries) == 9  # another module may be compiled for


def test_all_modules_together_have_a_limit(monkeypatch):
    monkeypatch.setattr(tinycompile.config, "recompile_limit", 1)
    f = tinycompile.compile(lambda m, x: m(x), backend="eager")
    nets = [Net() for _ in range(10)]
    with pytest.warns(RecompileLimitWarning, match="m is m"):
        for net in nets:
            assert torch.equal(f(net, X), net(X))
    assert len(f._entries) == 8
    del nets, net
    gc.collect()
    assert f._entries == ()
    net = Net()
    assert torch.equal(f(net, X), net(X)) and len(f._entries) == 1


def test_reset_forgets_what_modules_own():
    f, net = tinycompile.compile(lambda m, x: m(x), backend="eager"), Net()
    f(net, X)
    entry = weakref.ref(f._entries[0]())
    f.reset()
    gc.collect()
    assert entry() is None and torch.equal(f(net, X), net(X))


def test_copies_and_pickles_come_without_compiled_code():
    net, f = Net(), tinycompile.compile(lambda m, x: m(x), backend="eager")
    names = set(vars(net))
    f(net, X)
    assert set(vars(net)) == names
    stream = io.BytesIO()
    torch.save(net, stream)
    stream.seek(0)
    for twin in (copy.deepcopy(net), pickle.loads(pickle.dumps(net)), torch.load(stream, weights_only=False)):
        assert torch.equal(f(twin, X), net(X))
        with torch.no_grad():
            twin.inner.weight.zero_()
        assert torch.equal(f(twin, X), twin(X)) and not torch.equal(f(net, X), twin(X))
        assert b"tinycompile" not in pickle.dumps(net).replace(b"_tinycompile_owned", b"")
    shallow = copy.copy(net)
    assert torch.equal(f(shallow, X), net(X))


def test_many_modules_code_is_found_by_the_first_argument():
    Decorated.forward.reset()
    nets = [Decorated() for _ in range(6)]
    for net in nets:
        net(X)
    function = Decorated.forward
    for net in nets:
        (entry,) = function._candidates((net, X))
        assert entry.guard(net, X)
        assert torch.equal(function(self=net, x=X), net.inner(X) + 1)  # by name too
    other = nets.pop()
    assert torch.equal(other(X[:1]), other.inner(X[:1]) + 1) and len(function._candidates((other, X))) == 2
    del other, net, entry
    gc.collect()
    assert len(function._entries) == 5 and len(function._of_first) == 5
