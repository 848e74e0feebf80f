"""Writes to the dicts in which a module keeps what it has are seen by whatever reads the module afterwards."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import tinycompile
from tinycompile.base.errors import GraphBreakError

pytestmark = pytest.mark.cpu


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(2), requires_grad=False)
        self.register_buffer("b", torch.ones(2))
        self.inner = nn.Sequential(nn.Tanh(), nn.ReLU())
        self.doubled = nn.Hardtanh(-3, 3)

    def forward(self, x):
        return self.doubled(self.inner(x * self.w + self.b))


NAMES = {"_parameters": "w", "_buffers": "b", "_modules": "inner"}


class Negate(nn.Module):
    def forward(self, x):
        return -x


NEGATE, PARAMETER = Negate(), nn.Parameter(torch.full((2,), 7.0), requires_grad=False)


def put(d, name, value):
    d[name] = value


def add(d, name, value):
    d["other"] = value


def update(d, name, value):
    d.update({name: value})


def merge(d, name, value):
    d |= {name: value}


def set_default(d, name, value):
    d.setdefault("other", value)


def pop(d, name, value):
    d.pop(name)


def delete(d, name, value):
    del d[name]


def pop_item(d, name, value):
    d.popitem()


def clear(d, name, value):
    d.clear()


def clear_and_put(d, name, value):
    d.clear()
    d[name] = value


def by_attribute(m, state, x):
    name = NAMES[state]
    return hasattr(m, name), hasattr(m, "other"), _use(m, name, x), _use(m, "other", x)


def _use(m, name, x):
    found = getattr(m, name, None)
    return None if found is None else found(x) if isinstance(found, nn.Module) else found * x


def by_call(m, state, x):
    try:
        return m(x)
    except AttributeError:
        return "missing"


def by_dict(m, state, x):
    return list(getattr(m, state)), len(getattr(m, state))


def by_walk(m, state, x):
    walks = {"_parameters": m.named_parameters, "_buffers": m.named_buffers, "_modules": m.named_children}
    return [name for name, _ in walks[state]()], [type(v).__name__ for _, v in walks[state]()]


def by_children(m, state, x):
    return [type(c).__name__ for c in m.modules()], len(m.inner) if isinstance(getattr(m, "inner", None), nn.Sequential) else 0


WRITES = [put, add, update, merge, set_default, pop, delete, pop_item, clear, clear_and_put]
READS = [by_attribute, by_call, by_dict, by_walk, by_children]


def _agree(fn, make, **options):
    """Compiled code, a new module each time and then the same one twice, gives what Python gives."""
    x = torch.tensor([0.5, -2.0])
    compiled = tinycompile.compile(fn, **options)
    for _ in range(2):
        ours, theirs = make(), make()
        for _ in range(2):
            answers = []
            for call, m in ((fn, theirs), (compiled, ours)):
                try:
                    answers.append((call(m, x), list(m.__dict__), [list(m.__dict__[s]) for s in NAMES]))
                except (KeyError, AttributeError) as error:
                    answers.append((type(error), str(error)))
            assert str(answers[0]) == str(answers[1])


@pytest.mark.parametrize("state", NAMES)
@pytest.mark.parametrize("write", WRITES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("read", READS, ids=lambda f: f.__name__)
def test_written_and_read(state, write, read):
    def fn(m, x):
        before = read(m, state, x)
        value = x * 5 if state == "_buffers" else PARAMETER if state == "_parameters" else NEGATE
        write(getattr(m, state), NAMES[state], value)
        return before, read(m, state, x)

    _agree(fn, Net)


def hook(m, args):
    return (args[0] * 3,)


def after(m, args, result):
    return result + 1


def ignored(m, args, kwargs):
    return (args[0] - 9,), kwargs


def put_pre_hook(m, x):
    m.inner._forward_pre_hooks[5] = hook
    return m(x)


def put_hook(m, x):
    m.inner._forward_hooks[5] = after
    return m(x)


def hooks_then_none(m, x):
    m._forward_hooks[5] = after
    y = m(x)
    m._forward_hooks.clear()
    return y, m(x)


def update_hooks(m, x):
    m._forward_hooks.update({1: after, 2: after})
    return m(x)


def new_hooks(m, x):
    m._forward_hooks = {1: after}
    return m(x)


def with_kwargs(m, x):
    m._forward_pre_hooks_with_kwargs[5] = True
    m._forward_pre_hooks[5] = ignored
    return m(x)


def new_buffers(m, x):
    m._buffers = {"b": x * 4}
    return m(x), m.b


def by_own_dict(m, x):
    m.__dict__["_buffers"] = {"b": x * 4}
    return m(x), m.b


def inserted(m, x):
    m.inner.insert(0, NEGATE)
    return m(x), len(m.inner), type(m.inner[0]).__name__


def set_child(m, x):
    m.inner[0] = NEGATE
    return m(x)


def deleted_child(m, x):
    del m.inner[0]
    return m(x), len(m.inner)


def put_then_set(m, x):
    m._buffers["c"] = x
    m.c = x * 2
    return m.c, list(m._buffers), m._buffers["c"]


def popped_then_set(m, x):
    m._buffers.pop("b", None)
    m.b = 5
    return m.b, "b" in m.__dict__


def deleted_attribute(m, x):
    m.b = x
    del m.b
    return hasattr(m, "b"), list(m._buffers)


def in_between(m, x):
    d = m._buffers
    y = m(x)
    d["b"] = x + 2
    z = m(x)
    d["b"] = x + 3
    return y, z, m(x), d is m._buffers


def called_with_others(m, x):
    return torch.func.functional_call(m, {"w": x * 5, "b": x + 1}, (x,)), m(x)


OTHERS = [put_pre_hook, put_hook, hooks_then_none, update_hooks, new_hooks, with_kwargs, new_buffers, by_own_dict, inserted]
OTHERS += [set_child, deleted_child, put_then_set, popped_then_set, deleted_attribute, in_between, called_with_others]


@pytest.mark.parametrize("fn", OTHERS, ids=lambda f: f.__name__)
def test_hooks_and_other_ways(fn):
    _agree(fn, Net)


def test_of_a_dict_that_is_given():
    """The dict comes from outside, beside its module."""

    def fn(m, d, x):
        y = m(x)
        d["b"] = x * 5
        return y, m(x), m.b

    def last(d, m, x):
        d.clear()
        return hasattr(m, "b"), len(list(m.buffers()))

    for function, order in ((fn, lambda m: (m, m._buffers)), (last, lambda m: (m._buffers, m))):
        compiled, x = tinycompile.compile(function), torch.ones(2)
        ours, theirs = Net(), Net()
        assert str(compiled(*order(ours), x)) == str(function(*order(theirs), x))


def test_an_object_and_its_dict():
    class Thing:
        pass

    def fn(o, x):
        d = o.__dict__
        o.a = x
        d["a"] = 5
        del d["a"]
        return hasattr(o, "a"), sorted(d)

    def made(x):
        return fn(Thing(), x)

    x = torch.ones(1)
    assert tinycompile.compile(fn)(Thing(), x) == fn(Thing(), x) == (False, [])
    assert tinycompile.compile(made)(x) == (False, [])


@pytest.mark.parametrize("state", NAMES)
def test_a_write_ends_the_graph(state):
    """With ``fullgraph`` it is an error, not a wrong value; reads alone are captured."""

    def write(m, x):
        getattr(m, state)["other"] = None
        return m(x)

    def read(m, x):
        return m(x), list(getattr(m, state)), getattr(m, state)[NAMES[state]] is getattr(m, NAMES[state])

    x = torch.ones(2)
    with pytest.raises(GraphBreakError, match="is written"):
        tinycompile.compile(write, fullgraph=True)(Net(), x)
    assert str(tinycompile.compile(read, fullgraph=True)(Net(), x)) == str(read(Net(), x))
