"""What libraries of models do around their tensors: outputs that are dicts and dataclasses, configurations with aliases,
decorators that look at signatures, assertions as functions."""

from __future__ import annotations

import functools
import inspect
from collections import OrderedDict
from dataclasses import dataclass, fields

import pytest
import torch
from torch import nn

import tinycompile

pytestmark = pytest.mark.cpu


class Config:
    """Reads and writes an attribute by either of two names."""

    attribute_map = {"n_embd": "hidden_size"}

    def __init__(self, hidden_size=8, use_cache=None, scale=2.0):
        self.hidden_size = hidden_size
        self.use_cache = use_cache
        self.scale = scale

    def __setattr__(self, key, value):
        if key in super().__getattribute__("attribute_map"):
            key = super().__getattribute__("attribute_map")[key]
        super().__setattr__(key, value)

    def __getattribute__(self, key):
        if key != "attribute_map" and key in super().__getattribute__("attribute_map"):
            key = super().__getattribute__("attribute_map")[key]
        return super().__getattribute__(key)


class Output(OrderedDict):
    """A dict of what is not None, and a dataclass."""

    def __post_init__(self):
        for field in fields(self):
            value = self.__dict__.get(field.name)
            if value is not None:
                self[field.name] = value

    def __getitem__(self, key):
        return dict(self.items())[key] if isinstance(key, str) else self.to_tuple()[key]

    def __setattr__(self, name, value):
        if name in {f.name for f in fields(self)} and value is not None:
            super().__setitem__(name, value)
        super().__setattr__(name, value)

    def to_tuple(self):
        return tuple(self[k] for k in self.keys())


@dataclass
class BaseOutput(Output):
    last: torch.Tensor | None = None
    hidden: torch.Tensor | None = None


def with_defaults(fn):
    """Arguments that the function has and the call does not give come from the configuration."""

    @functools.wraps(fn)
    def wrapper(self, *args, **kwargs):
        if "use_cache" in fn.__code__.co_varnames and kwargs.get("use_cache") is None:
            kwargs["use_cache"] = getattr(self.config, "use_cache", None)
        return fn(self, *args, **kwargs)

    return wrapper


def in_chunks(fn, x):
    assert len(inspect.signature(fn).parameters) == 1
    return fn(x)


class Model(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.proj = nn.Linear(config.n_embd, config.hidden_size)
        self.pool = nn.AdaptiveAvgPool2d(1)

    def chunk(self, x):
        return self.proj(x) * self.config.scale

    @with_defaults
    def forward(self, x, use_cache=None):
        torch._assert(x.shape[-1] == self.config.n_embd, "wrong width")
        h = in_chunks(self.chunk, x)
        return BaseOutput(last=h, hidden=self.pool(h[None]) if use_cache else None)


@pytest.mark.parametrize("use_cache", [None, True])
def test_a_model_of_a_library(use_cache: bool | None) -> None:
    model = Model(Config(use_cache=use_cache))
    compiled = tinycompile.compile(model, fullgraph=True)
    x = torch.randn(3, 4, 8)
    got, want = compiled(x), model(x)
    assert type(got) is BaseOutput and list(got) == list(want)
    assert got.__dict__.keys() == want.__dict__.keys()
    assert (got.hidden is None) == (want.hidden is None)
    for a, b in zip(got.to_tuple(), want.to_tuple(), strict=True):
        torch.testing.assert_close(a, b)
    assert compiled.compiled.cache_info()["entries"] == 1


def test_what_is_read_through_getattribute_is_guarded() -> None:
    config = Config()

    @tinycompile(fullgraph=True)
    def f(x):
        return x * config.n_embd * config.scale

    x = torch.ones(2)
    assert torch.equal(f(x), x * 16)
    config.n_embd = 3
    assert config.hidden_size == 3 and torch.equal(f(x), x * 6)
    config.scale = 5.0
    assert torch.equal(f(x), x * 15)
    Config.attribute_map = {"n_embd": "scale"}
    try:
        assert torch.equal(f(x), x * 25)
    finally:
        Config.attribute_map = {"n_embd": "hidden_size"}


def test_an_attribute_that_getattribute_does_not_find() -> None:
    class Odd:
        def __getattribute__(self, name):
            if name == "width":
                raise AttributeError(name)
            return object.__getattribute__(self, name)

        def __getattr__(self, name):
            return len(name)

    odd = Odd()

    @tinycompile(fullgraph=True)
    def f(x):
        return x * odd.width + odd.depths, hasattr(odd, "anything"), getattr(odd, "height", 2)

    got, want = f(torch.ones(2)), f.original(torch.ones(2))
    assert torch.equal(got[0], want[0]) and got[1:] == want[1:]


def test_the_dict_of_a_new_object_is_live_and_only_read() -> None:
    class Box:
        def __init__(self, x):
            self.x = x

    @tinycompile(fullgraph=True)
    def f(x):
        box = Box(x + 1)
        attributes = box.__dict__
        box.y = x * 2
        return sum(attributes.values()), sorted(attributes), len(attributes), "y" in attributes

    @tinycompile
    def g(x):
        box = Box(x + 1)
        box.__dict__["y"] = x * 2
        return box.y, box.__dict__

    x = torch.randn(3)
    got, want = f(x), f.original(x)
    torch.testing.assert_close(got[0], want[0])
    assert got[1:] == want[1:] == (["x", "y"], 2, True)
    got, want = g(x), g.original(x)
    torch.testing.assert_close(got[0], want[0])
    assert list(got[1]) == list(want[1]) == ["x", "y"]


def test_assert_as_a_function() -> None:
    @tinycompile(fullgraph=True)
    def f(x, n):
        torch._assert(x.shape[0] == n, f"{n} rows, please")
        return x + 1

    assert torch.equal(f(torch.ones(2), 2), torch.full((2,), 2.0))
    with pytest.raises(AssertionError, match="3 rows, please"):
        f(torch.ones(2), 3)


@pytest.mark.parametrize("backend", ["eager", "cpp"])
def test_one_size_for_all_dims(backend: str) -> None:
    @tinycompile(fullgraph=True, backend=backend)
    def f(x):
        pools = nn.functional.adaptive_avg_pool2d(x, 1), nn.functional.adaptive_max_pool2d(x, 2)
        return *pools, nn.functional.interpolate(x, scale_factor=2), nn.functional.interpolate(x, 5, mode="bilinear")

    x = torch.randn(2, 3, 8, 8)
    for a, b in zip(f(x), f.original(x), strict=True):
        torch.testing.assert_close(a, b)


def test_the_programs_getattribute_of_what_a_module_holds_is_followed_and_never_called_by_guards() -> None:
    asked: list[str] = []

    class Counting(Config):
        def __getattribute__(self, key):
            asked.append(key)
            return super().__getattribute__(key)

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.config = Counting()

        def forward(self, x):
            return x * self.config.n_embd * self.config.scale

    net, x = Net(), torch.ones(2)
    asked.clear()
    want = net(x)
    once = list(asked)
    compiled = tinycompile.compile(net, backend="eager")
    for _ in range(3):
        asked.clear()
        assert torch.equal(compiled(x), want)
        assert asked == once
    assert not compiled.compiled.breaks
    net.config.scale = 5.0
    assert torch.equal(compiled(x), x * 40)
    assert not compiled.compiled.breaks
    net.config = Counting(hidden_size=2)
    assert torch.equal(compiled(x), x * 4)
