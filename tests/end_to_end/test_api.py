"""What people do with compiled functions, methods and modules: decorate, nest, recurse, copy, save, share between threads."""

from __future__ import annotations

import copy
import functools
import inspect
import io
import pickle
import threading

import pytest
import torch
from torch import nn

import tinycompile

pytestmark = pytest.mark.cpu

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
eager = functools.partial(tinycompile.compile, backend="eager")


# --- functions and methods --------------------------------------------------------------------------------------


class Point:
    factor = 2.0

    def __init__(self, shift):
        self.shift = shift

    @tinycompile.compile(backend="eager")
    def method(self, x, *, k=1.0):
        """Doc."""
        return x * self.factor + self.shift * k

    @staticmethod
    @tinycompile.compile(backend="eager")
    def still(x, y=2.0):
        return x - y

    @classmethod
    @tinycompile.compile(backend="eager")
    def made(cls, x):
        return x * cls.factor

    @property
    @tinycompile.compile(backend="eager")
    def value(self):
        return X + self.shift

    @tinycompile.compile(backend="eager")
    def __call__(self, x):
        return x / self.shift

    @tinycompile.compile(backend="eager")
    def __add__(self, x):
        return x + self.shift


class Child(Point):
    factor = 3.0

    @tinycompile.compile(backend="eager")
    def method(self, x, *, k=1.0):
        return super().method(x, k=k) + 1


def test_methods_decorated_in_a_class():
    for cls in (Point, Child, Point):
        for shift in (1.0, 2.5):
            p = cls(shift)
            extra = 1 if cls is Child else 0
            assert torch.equal(p.method(X, k=2.0), X * cls.factor + shift * 2.0 + extra)
            assert torch.equal(cls.method(p, X), X * cls.factor + shift + extra)
            assert torch.equal(p.still(X), X - 2.0) and torch.equal(cls.still(X, y=5.0), X - 5.0)
            assert torch.equal(p.made(X), X * cls.factor) and torch.equal(cls.made(X), X * cls.factor)
            assert torch.equal(p.value, X + shift) and torch.equal(p(X), X / shift) and torch.equal(p + X, X + shift)
    assert Point.method.__name__ == "method" and Point.method.__doc__ == "Doc."
    assert list(inspect.signature(Point.method).parameters) == ["self", "x", "k"]


def test_a_bound_method_is_compiled():
    p = Point(2.0)
    bound = eager(types_method := p.still)
    assert torch.equal(bound(X), types_method(X))

    class Plain:
        def __init__(self):
            self.n = 3

        def f(self, x):
            return x * self.n

    a, b = Plain(), Plain()
    compiled = eager(a.f)
    b.n = 5
    assert torch.equal(compiled(X), X * 3) and compiled.__self__ is a
    a.n = 4
    assert torch.equal(compiled(X), X * 4)


def test_what_can_be_called():
    class Scale:
        def __init__(self, by):
            self.by = by

        def __call__(self, x):
            return x * self.by

    scale = Scale(2.0)
    compiled = eager(scale)
    assert torch.equal(compiled(X), X * 2.0)
    scale.by = 3.0
    assert torch.equal(compiled(X), X * 3.0)
    part = eager(functools.partial(lambda x, y, k=1: x * y + k, y=2.0, k=3))
    assert torch.equal(part(X), X * 2.0 + 3) and torch.equal(part(X, k=0), X * 2.0)
    sine = eager(torch.sin)
    assert torch.equal(sine(X), torch.sin(X)) and sine.__name__ == "sin"
    for thing in (3, Scale, "text", [1]):
        with pytest.raises(TypeError, match="takes a Python function"):
            tinycompile.compile(thing)


def test_disable_switches_off_what_is_called():
    seen = []

    @tinycompile.compile(backend="eager")
    def inner(x):
        seen.append(tinycompile.is_compiling())
        return x + 1

    for recursive, inside in ((True, False), (False, True)):
        seen.clear()
        around = tinycompile.disable(lambda x: inner(x) * 2, recursive=recursive)
        assert torch.equal(around(X), (X + 1) * 2) and seen == [inside]
        outer = eager(lambda x, f=around: f(x) + 1)
        seen.clear()
        assert torch.equal(outer(X), (X + 1) * 2 + 1) and seen == [inside]
    with pytest.raises(ZeroDivisionError):
        tinycompile.disable(lambda: 1 / 0)()
    seen.clear()
    inner(X)
    assert seen == [True]


def test_torchs_own_disable_is_kept():
    seen = []

    @torch.compiler.disable
    def inner(x):
        seen.append(tinycompile.is_compiling())
        return x + 1

    outer = eager(lambda x: inner(x * 2) * 3)
    for _ in range(2):
        assert torch.equal(outer(X), (X * 2 + 1) * 3)
    assert seen == [False, False] and outer.breaks[0].id == "disabled" and tinycompile.compile(inner) is inner


def test_recursion_compiled():
    @tinycompile.compile(backend="eager")
    def power(x, n):
        return x if n == 0 else power(x, n - 1) * 2

    assert torch.equal(power(X, 5), X * 32)

    @tinycompile.compile(backend="eager")
    def down(x, n):
        if n == 0:
            return x
        tinycompile.graph_break()
        return down(x, n - 1) + 1

    torch.testing.assert_close(down(X, 4), X + 4)

    @tinycompile.compile(backend="eager")
    def odd(x, n):
        return x if n == 0 else even(x + 1, n - 1)

    @tinycompile.compile(backend="eager")
    def even(x, n):
        return x if n == 0 else odd(x * 2, n - 1)

    torch.testing.assert_close(odd(X, 4), ((X + 1) * 2 + 1) * 2)


def test_endless_recursion_is_pythons_error():
    @tinycompile.compile(backend="eager")
    def forever(x):
        return forever(x + 1)

    with pytest.raises(RecursionError):
        forever(X)


def test_compiled_inside_compiled():
    @tinycompile.compile(backend="eager")
    def inner(x):
        return x + 1

    @tinycompile.compile(backend="eager", fullgraph=True)
    def outer(x):
        return inner(x) * 2

    assert torch.equal(outer(X), (X + 1) * 2) and len(outer.graphs) == 1
    net = eager(nn.Linear(4, 4))
    through = eager(lambda x: net(x) + 1)
    torch.testing.assert_close(through(X), net.original(X) + 1)


def test_is_compiling_in_both_spellings():
    def f(x):
        inside = tinycompile.is_compiling(), torch.compiler.is_compiling()
        return x + (1 if all(inside) else 0), inside

    assert f(X)[1] == (False, False)
    assert eager(f)(X)[1] == (True, True)
    assert not tinycompile.is_compiling() and not torch.compiler.is_compiling()


def test_arguments_of_every_kind():
    def f(a, /, b, c=2.0, *rest, d, e=3.0, **more):
        return a + b * c + sum(rest) * d + e + sum(more.values())

    compiled = eager(f)
    for args, kwargs in (
        ((X, 1.0), {"d": 2.0}),
        ((X, 1.0, 3.0, X, X), {"d": 1.0, "e": 0.0}),
        ((X,), {"b": X, "d": 1.0, "z": X, "y": 2.0}),
    ):
        torch.testing.assert_close(compiled(*args, **kwargs), f(*args, **kwargs))
    for args, kwargs in (((), {}), ((X,), {}), ((X, 1.0), {}), ((X, 1.0), {"d": 1.0, "a": 2})):
        outcome = []
        for fn in (f, compiled):
            try:
                outcome.append(fn(*args, **kwargs).shape)
            except TypeError as error:
                outcome.append(str(error).replace("test_arguments_of_every_kind.<locals>.", ""))
        assert outcome[0] == outcome[1]


# --- what arguments are to each other -----------------------------------------------------------------------------


def test_arguments_that_are_one_tensor_or_overlap():
    def f(x, y):
        x.add_(1)
        return x * y, x is y

    compiled = eager(f)
    whole = torch.arange(8.0)
    for make in (
        lambda: (torch.ones(4), torch.ones(4)),
        lambda: (t := torch.ones(4), t),
        lambda: (torch.ones(4), torch.ones(4)),
        lambda: ((w := whole.clone())[:4], w[4:]),
        lambda: ((w := whole.clone())[:4], w[2:6]),
        lambda: ((w := whole.clone())[::2], w[1::2]),
        lambda: (t := torch.ones(4), t.view(4)),
    ):
        given, other = make(), make()
        got, want = compiled(*given), f(*other)
        assert got[1] == want[1] and torch.equal(got[0], want[0])
        assert torch.equal(given[0], other[0]) and torch.equal(given[1], other[1])


def test_lists_that_are_one_list():
    def f(a, b):
        a.append(1)
        return len(b), a is b

    compiled = eager(f)
    for _ in range(2):
        same, other = [0], [0]
        assert compiled(same, same) == (2, True) and same == [0, 1]
        same = [0]
        assert compiled(same, other) == (1, False) and other == [0]


# --- modules --------------------------------------------------------------------------------------------------


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.norm, self.drop = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)
        self.register_buffer("steps", torch.zeros(()))
        self.note = "hello"

    def forward(self, x):
        return self.drop(self.norm(self.inner(x)))

    def describe(self):
        return f"{self.note} {self.training}"


def test_a_compiled_module_is_its_original():
    net = Net()
    compiled = eager(net)
    assert isinstance(compiled, Net) and isinstance(compiled, nn.Module) and compiled.original is net
    assert compiled.state_dict().keys() == net.state_dict().keys()
    assert all(a is b for a, b in zip(compiled.parameters(), net.parameters(), strict=True))
    assert [n for n, _ in compiled.named_modules()] == [n for n, _ in net.named_modules()]
    assert compiled.note == "hello" and compiled.describe() == "hello True" and compiled.inner is net.inner
    compiled.note = "bye"
    assert net.note == "bye" and repr(compiled).startswith("CompiledNet(")
    compiled.eval()
    assert not net.training and not net.norm.training and compiled.describe() == "bye False"
    torch.testing.assert_close(compiled(X), net(X))
    net.train()
    torch.manual_seed(1)
    got = compiled(X)
    net.norm.reset_running_stats()
    torch.manual_seed(1)
    torch.testing.assert_close(got, net(X))
    compiled.double()
    assert net.inner.weight.dtype == torch.float64
    compiled.load_state_dict({k: torch.zeros_like(v) for k, v in net.state_dict().items()})
    compiled.eval()
    assert not compiled(X.double()).any()
    compiled.new_child = nn.Linear(4, 4)
    assert net.new_child is compiled.new_child
    del compiled.new_child
    assert not hasattr(net, "new_child")


def test_a_compiled_module_shows_what_its_forward_came_to():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.guards = torch.nn.Linear(3, 3), "the program's own"

        def forward(self, x):
            return torch.relu(self.linear(x))

    m = tinycompile.compile(Model())
    m(torch.ones(2, 3))
    assert len(m.kernels) == len(m.compiled.kernels) and m.cache_info()["entries"] == 1
    assert "linear" in m.source("graph") and m.breaks == [] and m.recompiles == []
    assert m.guards == "the program's own"
    with pytest.raises(AttributeError, match="nothing"):
        m.nothing  # noqa: B018


def test_hooks_of_a_compiled_module_run_once():
    net, calls = Net().eval(), []
    compiled = eager(net)
    handle = compiled.register_forward_hook(lambda m, args, out: calls.append("hook"))
    compiled.inner.register_forward_pre_hook(lambda m, args: calls.append("pre"))
    for _ in range(2):
        calls.clear()
        compiled(X)
        assert calls == ["pre", "hook"]
    handle.remove()
    calls.clear()
    compiled(X)
    assert calls == ["pre"]


def test_optimizers_train_a_compiled_module():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    twin = copy.deepcopy(net)
    for model, run in ((net, tinycompile.compile(net)), (twin, twin)):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(5):
            optimizer.zero_grad()
            run(X).square().mean().backward()
            optimizer.step()
    for p, q in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(p, q)


def test_copies_and_pickles_of_a_compiled_module():
    compiled = eager(Net().eval())
    want = compiled(X)
    copied = copy.deepcopy(compiled)
    with torch.no_grad():
        copied.inner.weight.zero_()
    assert torch.equal(compiled(X), want) and not torch.equal(copied(X), want) and type(copied).__name__ == "CompiledNet"
    for twin in (pickle.loads(pickle.dumps(compiled)), _saved(compiled), pickle.loads(pickle.dumps(compiled.original))):
        assert torch.equal(twin(X), want)
    stream = io.BytesIO()
    torch.save(compiled.state_dict(), stream)
    stream.seek(0)
    other = Net().eval()
    other.load_state_dict(torch.load(stream))
    assert torch.equal(other(X), want)


def _saved(module):
    stream = io.BytesIO()
    torch.save(module, stream)
    stream.seek(0)
    return torch.load(stream, weights_only=False)


def plain_function(x):
    return x * 2


@tinycompile.compile(backend="eager")
def at_module_level(x):
    return x + 1


def test_copies_and_pickles_of_a_compiled_function():
    for twin in (pickle.loads(pickle.dumps(at_module_level)), copy.deepcopy(at_module_level), copy.copy(at_module_level)):
        assert torch.equal(twin(X), X + 1)
    assert pickle.loads(pickle.dumps(at_module_level)) is at_module_level
    again = pickle.loads(pickle.dumps(eager(plain_function)))
    assert torch.equal(again(X), X * 2) and again.original is plain_function and again.options.backend == "eager"


class Decorated(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    @tinycompile.compile(backend="eager")
    def forward(self, x):
        return self.inner(x) * 2


def test_a_decorated_forward():
    a, b = Decorated(), Decorated()
    for net in (a, b, a, b, copy.deepcopy(a), pickle.loads(pickle.dumps(b))):
        torch.testing.assert_close(net(X), net.inner(X) * 2)
    a.register_forward_hook(lambda m, args, out: out + 1)
    torch.testing.assert_close(a(X), a.inner(X) * 2 + 1)
    whole = eager(nn.Sequential(a, b))
    torch.testing.assert_close(whole(X), b(a(X)))


# --- threads --------------------------------------------------------------------------------------------------


def _in_threads(count, work):
    start, faults = threading.Barrier(count), []

    def run(i):
        try:
            start.wait()
            work(i)
        except BaseException as error:  # noqa: BLE001  # told to the test, whatever it is
            faults.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
        assert not t.is_alive()
    if faults:
        raise faults[0]


def test_code_from_disk_shows_every_stage():
    f = tinycompile.compile(lambda x: torch.softmax(x, 0) * 1.25)
    f(X)
    assert not f.cache_info()["from_disk"]
    stages = ("graph", "optimized", "loops", "plan", "cpp", "triton", "wrapper")
    before = [f.source(stage) for stage in stages]
    page = [name for name, _ in f.explain(X).artifacts.items() if name.startswith("3_")]
    f.reset()
    f(X)
    assert f.cache_info()["from_disk"] == 1
    assert [f.source(stage) for stage in stages] == before and all(before)
    assert page == [name for name, _ in f.explain(X).artifacts.items() if name.startswith("3_")]


@pytest.mark.parametrize("backend", ["eager", "cpp"])
def test_many_threads_compile_and_call(backend):
    f = tinycompile.compile(lambda x, k: torch.relu(x) * k + x.shape[0], backend=backend)

    def work(i):
        for n in (2, 3, 5 + i % 3, 2):
            x = torch.randn(n, 4)
            torch.testing.assert_close(f(x, 2.0), torch.relu(x) * 2.0 + n)

    _in_threads(8, work)
    assert len(f._entries) <= 4


def test_threads_with_their_own_modes_and_modules():
    f = eager(lambda m, x: m(x) if torch.is_grad_enabled() else m(x) + 1)
    nets = [nn.Linear(4, 4) for _ in range(4)]

    def work(i):
        for _ in range(5):
            with torch.set_grad_enabled(i % 2 == 0):
                got = f(nets[i % 4], X)
                torch.testing.assert_close(got, nets[i % 4](X) + (i % 2))
                assert got.requires_grad == (i % 2 == 0)

    _in_threads(8, work)


def test_threads_over_breaks_and_gradients():
    @tinycompile.compile(backend="cpp")
    def f(x):
        y = x * 2
        tinycompile.graph_break()
        return (y + 1).square().sum()

    def work(i):
        for _ in range(3):
            x = torch.full((4,), float(i), requires_grad=True)
            f(x).backward()
            torch.testing.assert_close(x.grad, 4 * (2 * x.detach() + 1))

    _in_threads(6, work)


def test_a_reset_while_others_call():
    f = eager(lambda x: x + 1)

    def work(i):
        for _ in range(20):
            if i == 0:
                f.reset()
            assert torch.equal(f(X), X + 1)

    _in_threads(4, work)


# --- explain --------------------------------------------------------------------------------------------------


def test_explain_has_a_table_of_breaks_and_of_guards():
    def f(x, k):
        y = x + k
        print(end="")
        if y.sum() > 0:
            return y * 2
        return y

    text = str(eager(f).explain(X, 3))
    assert "breaks: 2\n" in text and text.index("breaks: 2") < text.index("graph break:")
    table = text[text.index("breaks: 2") : text.index("graph break:")].splitlines()
    assert table[1].split() == ["id", "where", "reason"]
    assert [row.split()[0] for row in table[3:5]] == ["print", "data-dependent"] and "test_api.py:" in table[3]
    rows = [line.split(maxsplit=1) for line in text.splitlines() if line.startswith("  ")]
    for about, guard in (("tensor", "x: float32[3, 4] cpu"), ("value", "k == 3"), ("mode", "grad mode is on")):
        assert [about, guard] in rows


def test_explain_of_a_model_is_short():
    net = nn.Sequential(*(nn.Linear(4, 4) for _ in range(40)))
    report = eager(net).explain(X)
    assert len(report.guards) > 200 and len(report.guard_table) == len(report.guards)
    assert str(report).count("\n  parameter ") == 13 and "more, in .guards" in str(report)


def test_kernels_and_source_are_of_every_piece() -> None:
    """As those of ``explain``: what follows a break was left out."""

    def f(x):
        y = torch.sin(x) + 1
        tinycompile.graph_break()
        z = torch.cos(y) * 2
        tinycompile.graph_break()
        return z - 3

    compiled = tinycompile.compile(f)
    compiled(torch.randn(4))
    report = compiled.explain(torch.randn(4))
    behind = [report, *report.then, *report.then[0].then]
    assert [k.name for k in compiled.kernels] == [k.name for one in behind for k in one.kernels] and len(compiled.kernels) == 3
    assert all(compiled.source("graph").count(f"ops.{op}(") == 1 for op in ("sin", "cos", "sub"))
    assert compiled.source("triton").count("@triton.jit") == compiled.source("wrapper").count("def call(") == 3
