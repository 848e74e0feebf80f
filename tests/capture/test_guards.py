"""Whatever a capture relied on is guarded, nothing more, and a failing guard is named."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tinycompile.api import CompiledFunction
from tinycompile.capture.frame import capture
from tinycompile.ir.interpreter import run_graph
from tinycompile.options import Options

pytestmark = pytest.mark.pure


def check(fn, args, other, named=None, kwargs=None):
    """The guard accepts ``args`` and refuses ``other``; the explanation names the culprit."""
    captured = capture(fn, args, kwargs or {})
    assert captured.graph is not None, str(captured.breaks[0])
    assert captured.guard(*args, **(kwargs or {}))
    assert captured.explain_failure(args, kwargs or {}) == ""
    assert not captured.guard(*other)
    why = captured.explain_failure(other, {})
    assert why and (named is None or named in why), why
    return captured


def base(x):
    return x + 1


X = torch.arange(12.0).view(3, 4)


@pytest.mark.parametrize(
    "other",
    [
        torch.zeros(3, 5),
        torch.zeros(3, 4, 1),
        torch.zeros(3, 4, dtype=torch.float64),
        torch.zeros(4, 3).t(),
        torch.zeros(3, 4, requires_grad=True),
        torch.zeros(3, 4, device="meta"),
        nn.Parameter(torch.zeros(3, 4), requires_grad=False),
        torch.zeros(13)[1:].view(3, 4),
        torch.zeros(3, 4).to_sparse(),
        None,
        3,
        [1],
    ],
    ids=["size", "rank", "dtype", "stride", "grad", "device", "class", "alignment", "layout", "none", "int", "list"],
)
def test_signature(other):
    check(base, (X,), (other,))


def test_unaligned_is_a_variant():
    y = torch.zeros(13)[1:].view(3, 4)
    captured = check(base, (y,), (X,))
    assert captured.input_aligned == (False,)
    assert capture(base, (X,), {}).input_aligned == (True,)


def test_the_same_tensor_twice_passes():
    captured = capture(lambda x, y: x + y, (X, X.clone()), {})
    assert captured.guard(X, X)
    captured = capture(lambda x, y: x + y, (X, X), {})
    assert captured.guard(X, X) and captured.guard(X, X.clone())


def test_identity_of_arguments_is_guarded_only_when_asked():
    check(lambda x, y: x if x is y else x + y, (X, X), (X, X.clone()))
    check(lambda x, y: x if x is y else x + y, (X, X.clone()), (X, X))


@pytest.mark.parametrize(
    ("value", "other"),
    [(3, 4), (3, 3.0), (1, True), (True, False), (0.5, 0.25), (0.0, -0.0), ("a", "b"), (None, 0), (2, None), (float("nan"), 1.0), (b"a", b"b"),
     (torch.float32, torch.float64), (slice(1, 2), slice(1, 3)), (range(3), range(4)), ((1, 2), (2, 2)), ((1,), (1, 2)), ({"a": 1}, {"a": 2}),
     ({"a": 1}, {"b": 1}), ([1], [2]), ({1}, {2})],
    ids=str,
)  # fmt: skip
def test_python_values(value, other):
    def use(x, v):
        if isinstance(v, (tuple, list)):
            return x, v[0], v
        if isinstance(v, dict):
            return x, v.get("a")
        if isinstance(v, slice):
            return x[v]
        if isinstance(v, set):
            return x, 1 in v
        return x * 2, v

    check(use, (X, value), (X, other), "v")


def test_unused_values_are_not_guarded():
    captured = capture(lambda x, unused, d: x + d["a"], (X, 3, {"a": 1, "b": 5}), {})
    assert captured.guard(X, 4, {"a": 1, "b": 6})
    assert captured.guard(X, "anything", {"a": 1, "b": None})
    assert not captured.guard(X, 3, {"a": 2, "b": 5})


SCALE = 2


def test_globals_and_closures():
    global SCALE
    factor = 3

    def f(x):
        return x * SCALE * factor

    captured = capture(f, (X,), {})
    assert captured.guard(X)
    SCALE = 5
    assert not captured.guard(X) and "SCALE" in captured.explain_failure((X,), {})
    SCALE = 2
    assert captured.guard(X)
    factor = 4
    assert not captured.guard(X) and "factor" in captured.explain_failure((X,), {})


def helper(x):
    return x + 1


def test_functions_called_are_guarded():
    global helper
    captured = capture(lambda x: helper(x), (X,), {})
    assert captured.guard(X)
    old = helper
    helper = lambda x: x + 2
    try:
        assert not captured.guard(X)
    finally:
        helper = old
    assert captured.guard(X)


def test_a_global_that_hides_a_builtin():
    captured = capture(lambda x: x + len([1]), (X,), {})
    assert captured.guard(X)
    globals()["len"] = lambda v: 7
    try:
        assert not captured.guard(X)
    finally:
        del globals()["len"]


class Box:
    kind = 1

    def __init__(self):
        self.a, self.b = 1, 2

    def get(self):
        return self.a


def test_objects():
    box = Box()
    captured = capture(lambda x, o: x * o.get() + o.kind, (X, box), {})
    same, other = Box(), Box()
    other.a = 5
    assert captured.guard(X, same) and not captured.guard(X, other)
    same.b = 100
    assert captured.guard(X, same)
    same.get = lambda: 3
    assert not captured.guard(X, same)
    Box.kind = 2
    try:
        assert not captured.guard(X, box)
    finally:
        Box.kind = 1
    old = Box.get
    Box.get = lambda self: 9
    try:
        assert not captured.guard(X, box)
    finally:
        Box.get = old
    assert captured.guard(X, box)


def test_defaults():
    def f(x, k=2, *, j=3):
        return x * k + j

    captured = capture(f, (X,), {})
    assert captured.guard(X) and captured.guard(X, 2) and captured.guard(X, j=3) and not captured.guard(X, 3)
    assert torch.equal(captured.bind(lambda *a: run_graph(captured.graph, a))(X), f(X))
    f.__defaults__ = (7,)
    assert not captured.guard(X)


def test_grad_mode_and_default_dtype():
    captured = capture(base, (X,), {})
    with torch.no_grad():
        assert not captured.guard(X)
        assert "grad mode" in captured.explain_failure((X,), {})
    torch.set_default_dtype(torch.float64)
    try:
        assert not captured.guard(X)
    finally:
        torch.set_default_dtype(torch.float32)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.scale = 0.5
        self.act = F.relu
        self.register_buffer("shift", torch.zeros(4))

    def forward(self, x):
        x = self.act(self.fc(x)) * self.scale + self.shift
        for layer in self.layers:
            x = layer(x)
        return x * 2 if self.training else x


def _set_data(m):
    m.fc.weight.data = torch.zeros(4, 4, dtype=torch.float64)


def _set_unaligned(m):
    m.fc.weight.data = torch.zeros(17)[1:].view(4, 4)


CHANGES = {
    "parameter replaced": lambda m: setattr(m.fc, "weight", nn.Parameter(torch.zeros(4, 4))),
    "parameter data of another dtype": _set_data,
    "parameter data unaligned": _set_unaligned,
    "parameter frozen": lambda m: m.fc.weight.requires_grad_(False),
    "parameter None": lambda m: setattr(m.fc, "bias", None),
    "buffer replaced": lambda m: setattr(m, "shift", torch.ones(4)),
    "double": lambda m: m.double(),
    "submodule replaced": lambda m: setattr(m, "fc", nn.Linear(4, 4)),
    "layer replaced": lambda m: m.layers.__setitem__(1, nn.Linear(4, 4)),
    "layer added": lambda m: m.layers.append(nn.Linear(4, 4)),
    "layer removed": lambda m: m.layers.__delitem__(2),
    "attribute": lambda m: setattr(m, "scale", 0.25),
    "function attribute": lambda m: setattr(m, "act", F.gelu),
    "training": lambda m: m.eval(),
    "hook": lambda m: m.fc.register_forward_hook(lambda *a: None),
    "pre hook": lambda m: m.layers[0].register_forward_pre_hook(lambda *a: None),
    "own forward": lambda m: setattr(m.fc, "forward", lambda x: x),
    "global hook": lambda m: nn.modules.module.register_module_forward_hook(lambda *a: None),
}


@pytest.mark.parametrize("change", list(CHANGES))
def test_modules(change):
    m = Net()
    x = torch.ones(2, 4)
    captured = capture(lambda x: m(x), (x,), {})
    assert captured.graph is not None, str(captured.breaks[0])
    assert captured.guard(x), captured.explain_failure((x,), {})
    undo = CHANGES[change](m)
    try:
        assert not captured.guard(x)
        assert captured.explain_failure((x,), {})
    finally:
        if change == "global hook":
            undo.remove()


def test_module_class_changes():
    m, x = Net(), torch.ones(2, 4)
    captured = capture(lambda x: m(x), (x,), {})
    old = Net.forward
    Net.forward = lambda self, x: x
    try:
        assert not captured.guard(x)
    finally:
        Net.forward = old
    assert captured.guard(x)


def test_in_place_update_of_parameters_passes():
    m, x = Net(), torch.ones(2, 4)
    captured = capture(lambda x: m(x), (x,), {})
    with torch.no_grad():
        m.fc.weight.add_(1.0)
    assert captured.guard(x)
    got = captured.bind(lambda *a: run_graph(captured.graph, a))(x)
    torch.testing.assert_close(got, m(x))


def test_wrong_calls_are_reported_under_the_users_name():
    def compute(x, *, k):
        return x * k

    captured = capture(compute, (X,), {"k": 2})
    with pytest.raises(TypeError, match="compute"):
        captured.guard(X)


def test_awkward_parameter_names():
    def f(type, map, torch, graph, guard, /, list, *all, str=1, **any):
        return type * map + torch + graph * str + guard + len(list)

    args = (X, 2, 3, 4, 5, [1])
    captured = capture(f, args, {})
    assert captured.guard(*args) and captured.guard(*args, str=1)
    assert torch.equal(captured.bind(lambda *a: run_graph(captured.graph, a))(*args), f(*args))


def test_the_guard_source_is_readable_python():
    captured = capture(lambda x, k: x * k, (X, 3), {})
    compile(captured.guard_source, "guard", "exec")
    assert "k == 3" in captured.guard_source and any("float32[3, 4]" in g for g in captured.guards)


def test_compiled_functions_inside_are_followed():
    import tinycompile

    inner = tinycompile.compile(lambda x: x * 2, backend="eager")
    module = tinycompile.compile(nn.Linear(4, 4), backend="eager")

    def f(x):
        return inner(x) + module(x)

    captured = capture(f, (X,), {})
    assert captured.graph is not None and captured.guard(X)
    torch.testing.assert_close(captured.bind(lambda *a: run_graph(captured.graph, a))(X), f(X))


@pytest.mark.parametrize("keep", ["base", "view"])
def test_a_view_made_by_an_extern_call_is_not_written(keep):
    def f(x):
        y = x * 2
        v = y.unfold(0, 2, 2)
        v += 1
        return y if keep == "base" else v

    assert capture(f, (X,), {}).breaks[0].id == "input-mutation"


def inlined(x):
    return x + 5


@pytest.mark.parametrize("which", ["called", "compiled"])
def test_code_replaced_in_place(which):
    """As tools do that reload a module under running programs."""

    def f(x):
        return inlined(x) * 2

    captured = capture(f, (X,), {})
    changed = inlined if which == "called" else f
    old = changed.__code__
    changed.__code__ = (lambda x: x * 77).__code__
    try:
        assert not captured.guard(X)
        assert "code of" in captured.explain_failure((X,), {})
    finally:
        changed.__code__ = old
    assert captured.guard(X)


def _adders():
    first, second, third, fourth = (lambda x: x + 1), (lambda x: x + 2), (lambda x: x + 3), (lambda x: x + 4)
    return first, second, third, fourth


def test_code_of_many_functions_is_checked_at_once():
    functions = _adders()

    def f(x):
        for fn in functions:
            x = fn(x)
        return x

    captured = capture(f, (X,), {})
    assert captured.guard(X)
    functions[2].__code__ = (lambda x: x - 1).__code__
    assert not captured.guard(X) and "code of" in captured.explain_failure((X,), {})


def test_a_method_of_torch_replaced():
    m = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    captured = capture(lambda x: m(x), (X,), {})
    old = nn.Tanh.forward
    nn.Tanh.forward = lambda self, x: x * 7
    try:
        assert not captured.guard(X) and "Tanh.forward" in captured.explain_failure((X,), {})
    finally:
        nn.Tanh.forward = old
    assert captured.guard(X)


class Derived(Box):
    pass


class DerivedNet(Net):
    pass


@pytest.mark.parametrize(
    ("cls", "name"), [(Derived, "get"), (Derived, "kind"), (DerivedNet, "forward"), (DerivedNet, "__call__")]
)
def test_a_subclass_comes_to_define_what_it_inherited(cls, name):
    made, x = cls(), torch.ones(2, 4)
    f = (lambda x: x * made.get() + made.kind) if cls is Derived else (lambda x: made(x))
    captured = capture(f, (x,), {})
    assert captured.graph is not None and captured.guard(x)
    setattr(cls, name, 3 if name == "kind" else lambda self, *args: x)
    try:
        assert not captured.guard(x) and name in captured.explain_failure((x,), {})
    finally:
        delattr(cls, name)
    assert captured.guard(x)


@pytest.mark.parametrize("state", ["_parameters", "_buffers", "_modules"])
def test_a_dict_of_a_module_replaced(state):
    m, x = Net(), torch.ones(2, 4)
    captured = capture(lambda x: m(x), (x,), {})
    changed = m.fc if state == "_parameters" else m
    changed.__dict__[state] = dict(changed.__dict__[state])
    assert not captured.guard(x) and state in captured.explain_failure((x,), {})


def test_the_forward_of_a_compiled_modules_class_replaced():
    import tinycompile

    class Plus(nn.Module):
        def forward(self, x):
            return x + 1

    module = Plus()
    compiled = tinycompile.compile(module, backend="eager")
    assert torch.equal(compiled(X), X + 1)
    Plus.forward = lambda self, x: x - 1
    assert torch.equal(compiled(X), module(X))
    Plus.forward.__code__ = (lambda self, x: x * 3).__code__
    assert torch.equal(compiled(X), X * 3)


class _Tagged(torch.Tensor):
    pass


@pytest.mark.parametrize(
    "odd",
    [
        lambda: torch.eye(3).to_sparse(),
        lambda: torch.eye(3).as_subclass(_Tagged),
        lambda: torch.ones(3, dtype=torch.complex64).conj(),
        lambda: torch.inference_mode()(torch.ones)(3, 3),
        lambda: torch.quantize_per_tensor(torch.eye(3), 0.1, 0, torch.qint8),
        lambda: type("Weird", (list,), {})([1]),
        lambda: (i for i in range(3)),
        lambda: ValueError("no"),
    ],
    ids=["sparse", "subclass", "conjugate", "inference", "quantised", "list subclass", "generator", "exception"],
)
@pytest.mark.parametrize("resume", [True, False])
def test_what_broke_for_one_kind_does_not_break_for_another(odd, resume):
    def f(x):
        return x + 1 if type(x) is torch.Tensor and x.layout is torch.strided and not x.is_quantized else type(x)

    compiled = CompiledFunction(f, Options(backend="eager", resume=resume))
    for _ in range(2):
        value = odd()
        got, want = compiled(value), f(value)
        assert got is want if isinstance(want, type) else torch.equal(got, want)
    assert torch.equal(compiled(X), X + 1)
    first = compiled._entries[0]
    assert first.compiled is not None and not first.captured.breaks and first.guard(X)


class WithHook:
    def __getattr__(self, name: str) -> int:
        if name == "absent":
            raise AttributeError(name)
        return len(name)


def reads_through_a_hook(x, obj):
    return x * obj.number, hasattr(obj, "absent"), getattr(obj, "absent", 9)


def test_an_attribute_that_getattr_answered_for_comes_to_exist() -> None:
    x, obj = torch.ones(3), WithHook()
    f = CompiledFunction(reads_through_a_hook, Options(backend="eager"))

    def answer() -> list[float | bool]:
        product, there, absent = f(x, obj)
        return [product[0].item(), there, absent]

    assert answer() == [6, False, 9]
    obj.number = 100
    assert answer() == [100, False, 9]
    obj.absent = 1
    assert answer() == [100, True, 1]
    del obj.number
    WithHook.number = 7
    try:
        assert answer() == [7, True, 1]
    finally:
        del WithHook.number
    assert answer() == [6, True, 1]
