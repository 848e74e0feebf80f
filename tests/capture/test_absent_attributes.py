"""An attribute that is not there may come, change and go again, on every kind of object; and torch's setters are not called to
learn what they return."""

from __future__ import annotations

import enum
import functools
import types
from typing import NamedTuple

import pytest
import torch

import tinycompile
from tinycompile.capture.frame import capture

pytestmark = pytest.mark.cpu


def function(x):
    return x


class Plain:
    def method(self, x):
        return x


class Child(Plain):
    pass


class Meta(type):
    pass


class OfMeta(metaclass=Meta):
    pass


class Colour(enum.Enum):
    RED = 1


class Pair(NamedTuple):
    a: int = 1


class Sub(Pair):
    pass


python_module = types.ModuleType("some_module")
tensor, parameter = torch.ones(2), torch.nn.Parameter(torch.ones(2))
plain, pair, sub = Plain(), Pair(), Sub()
bound = plain.method
cached = functools.lru_cache(function)

# What is asked, and what is given the attribute.
KINDS = {
    "function": ("function", function),
    "class": ("Plain", Plain),
    "base": ("Child", Plain),
    "metaclass": ("OfMeta", Meta),
    "class with a metaclass": ("OfMeta", OfMeta),
    "module": ("python_module", python_module),
    "enumeration": ("Colour", Colour),
    "member": ("Colour.RED", Colour.RED),
    "class of a member": ("Colour.RED", Colour),
    "tensor": ("tensor", tensor),
    "parameter": ("parameter", parameter),
    "object": ("plain", plain),
    "class of an object": ("plain", Plain),
    "bound method": ("bound", Plain.method),
    "method": ("plain.method", Plain.method),
    "cached function": ("cached", cached),
    "class of a namedtuple": ("pair", Pair),
    "namedtuple with attributes": ("sub", sub),
}
WAYS = {
    "hasattr": "    value = hasattr({0}, 'extra')\n",
    "getattr": "    value = getattr({0}, 'extra', 0)\n",
    "try": "    try:\n        value = {0}.extra\n    except AttributeError:\n        value = 0\n",
}


def asking(what, way):
    names = dict(globals())
    exec(f"def asks(x):\n{WAYS[way].format(what)}    return x + float(value)\n", names)
    return names["asks"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_an_attribute_comes_and_goes(kind, way):
    what, owner = KINDS[kind]
    eager = asking(what, way)
    compiled = tinycompile.compile(eager)
    x = torch.ones(1)

    def same():
        assert torch.equal(compiled(x), eager(x))

    same()
    try:
        for value in (3, 4):
            owner.extra = value
            same()
    finally:
        del owner.extra
    same()


def test_an_attribute_of_an_argument_comes_and_goes():
    def asks(x):
        return x + (2 if hasattr(x, "extra") else 1)

    compiled, x = tinycompile.compile(asks), torch.ones(1)
    assert compiled(x).item() == 2
    x.extra = 1
    assert compiled(x).item() == 3
    del x.extra
    assert compiled(x).item() == 2


def counter(x):
    return x


def test_a_function_that_counts_its_calls():
    def counts(x):
        counter.n = getattr(counter, "n", 0) + 1
        return x * counter.n

    compiled = tinycompile.compile(counts)
    assert [compiled(torch.ones(1)).item() for _ in range(4)] == [1, 2, 3, 4]
    assert counter.n == 4


@pytest.mark.parametrize("name", ["__name__", "__qualname__", "__doc__", "__module__"])
@pytest.mark.parametrize("kind", ["function", "class"])
def test_texts_change(kind, name):
    def renamed(x):
        return x

    class Renamed:
        pass

    it = renamed if kind == "function" else Renamed

    def asks(x):
        return x + len(getattr(it, name) or "")

    compiled, x = tinycompile.compile(asks), torch.ones(1)
    for text in ("a", "bcd", "ef"):
        assert torch.equal(compiled(x), asks(x))
        setattr(it, name, text)
    assert torch.equal(compiled(x), asks(x))


def test_a_cached_function_is_wrapped_anew():
    once = functools.lru_cache(function)

    def asks(x):
        return x + (1 if hasattr(once, "__wrapped__") else 2)

    compiled = tinycompile.compile(asks)
    assert compiled(torch.ones(1)).item() == 2
    del once.__wrapped__
    assert compiled(torch.ones(1)).item() == 3


@pytest.mark.parametrize("owner", [torch, torch.nn.functional, torch.nn.functional.relu, torch.add])
def test_what_is_torchs_is_not_guarded(owner):
    def asks(x):
        return x + (1 if hasattr(owner, "extra") else 2)

    captured = capture(asks, (torch.ones(1),), {})
    assert captured.graph is not None
    assert not any("extra" in text for _, text in captured.guard_table)


# --- setters ------------------------------------------------------------------------------------------------

SETTERS = {
    "set_default_dtype": (lambda: torch.set_default_dtype(torch.float64), torch.get_default_dtype),
    "C_set_default_dtype": (lambda: torch._C._set_default_dtype(torch.float64), torch.get_default_dtype),
    "matmul precision": (lambda: torch.set_float32_matmul_precision("medium"), torch.get_float32_matmul_precision),
    "threads": (lambda: torch.set_num_threads(torch.get_num_threads() + 1), torch.get_num_threads),
    "deterministic": (lambda: torch.use_deterministic_algorithms(True), torch.are_deterministic_algorithms_enabled),
    "debug mode": (lambda: torch.set_deterministic_debug_mode(1), torch.get_deterministic_debug_mode),
    "cudnn": (lambda: torch._C._set_cudnn_benchmark(True), lambda: torch.backends.cudnn.benchmark),
    "flash": (lambda: torch._C._set_sdp_use_flash(False), lambda: torch.backends.cuda.flash_sdp_enabled()),
    "mkldnn": (lambda: torch._C._set_mkldnn_enabled(False), lambda: torch._C._get_mkldnn_enabled()),
    "jit": (lambda: torch._C._jit_set_profiling_executor(False), lambda: torch._C._jit_set_profiling_executor(True)),
    "seed": (lambda: torch.manual_seed(5), torch.initial_seed),
    "generator": (lambda: torch.default_generator.manual_seed(6), torch.initial_seed),
}


@pytest.fixture
def settings():
    kept = torch.get_default_dtype(), torch.get_float32_matmul_precision(), torch.get_num_threads()
    state = torch.get_rng_state()
    yield
    torch.set_default_dtype(kept[0])
    torch.set_float32_matmul_precision(kept[1])
    torch.set_num_threads(kept[2])
    torch.use_deterministic_algorithms(False)
    torch._C._set_cudnn_benchmark(False)
    torch._C._set_sdp_use_flash(True)
    torch._C._set_mkldnn_enabled(True)
    torch._C._jit_set_profiling_executor(True)
    torch.set_rng_state(state)


@pytest.mark.parametrize("name", SETTERS)
def test_a_setter_is_not_called_by_capture(name, settings):
    setter, getter = SETTERS[name]

    def sets(x):
        y = torch.ones(2) + x
        setter()
        return y

    before = getter()
    captured = capture(sets, (torch.ones(2),), {})
    assert captured.breaks
    assert getter() == before


def test_a_default_dtype_counts_from_where_it_is_set(settings):
    def sets(x):
        y = torch.ones(2)
        torch.set_default_dtype(torch.float64)
        return y, torch.ones(2)

    first, second = tinycompile.compile(sets)(torch.ones(1))
    assert (first.dtype, second.dtype) == (torch.float32, torch.float64)


def test_factories_without_a_record_are_captured_still():
    def makes(x):
        return x + torch.hann_window(4) + torch.tril_indices(4, 4)[0, :4] + torch.blackman_window(4)

    captured = capture(makes, (torch.ones(4),), {})
    assert not captured.breaks, captured.breaks
