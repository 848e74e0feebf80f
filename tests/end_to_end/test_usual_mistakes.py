"""Usual mistakes: each gives one clear line that says what to do, and what only looks like one works."""

from __future__ import annotations

import functools
import operator
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tinycompile
from tinycompile import BackendError, GraphBreakError

pytestmark = pytest.mark.cpu
X = torch.arange(4.0)


class Doubled:
    """Methods of each kind, compiled above the decorator and below it."""

    factor = 2

    @tinycompile.compile
    @staticmethod
    def static(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    @tinycompile.compile
    def static_below(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @tinycompile.compile
    @classmethod
    def of_class(cls, x: torch.Tensor) -> torch.Tensor:
        return x * cls.factor

    @classmethod
    @tinycompile.compile
    def of_class_below(cls, x: torch.Tensor) -> torch.Tensor:
        return x * cls.factor


@pytest.mark.parametrize("name", ["static", "static_below", "of_class", "of_class_below"])
def test_static_and_class_methods_in_either_order(name: str) -> None:
    assert torch.equal(getattr(Doubled, name)(X), X * 2) and torch.equal(getattr(Doubled(), name)(X), X * 2)


CALLABLES = {
    "torch.sin": torch.sin,
    "Tensor.sin": torch.Tensor.sin,
    "silu": torch.nn.functional.silu,
    "operator": operator.neg,
    "itemgetter": operator.itemgetter(1),
    "bound": X.add,
    "len": len,
    "partial": functools.partial(torch.add, X),
    "lru_cache": functools.lru_cache(torch.exp),
    "vmap": torch.vmap(torch.sin),
    "lambda": lambda x: x + 1,
}


@pytest.mark.parametrize("name", CALLABLES)
def test_whatever_can_be_called_can_be_compiled(name: str) -> None:
    fn = CALLABLES[name]
    for _ in range(2):
        found = tinycompile.compile(fn)(X)
        assert found == fn(X) if isinstance(found, int) else torch.allclose(found, fn(X))


def test_a_function_of_numpys_can_be_compiled() -> None:
    assert np.array_equal(tinycompile.compile(np.sin)(X.numpy()), np.sin(X.numpy()))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (torch.nn.Linear, "make a Linear and compile that"),
        (property(lambda self: 1), "decorate the function first, and put @property above"),
        ("cpp", "backend='cpp'"),
        (X, "not tensor"),
        (None, "not None"),
    ],
    ids=["class", "property", "string", "tensor", "None"],
)
def test_what_can_not_be_compiled_is_told(given: Any, told: str) -> None:
    with pytest.raises(TypeError, match=told):
        tinycompile.compile(given)


def test_a_misspelt_name_is_answered_by_the_nearest() -> None:
    with pytest.raises(BackendError, match="unknown backend 'tritn'; there are .*Did you mean 'triton'"):
        tinycompile.compile(torch.sin, backend="tritn")
    with pytest.raises(AttributeError) as raised:
        tinycompile.compil  # noqa: B018
    assert raised.value.name == "compil" and raised.value.obj is tinycompile  # of these Python makes its own suggestion


def returning(results: Any) -> Any:
    return lambda graph_module, inputs: lambda *_: results


@pytest.mark.parametrize("results", [X, (), (X, X), None], ids=["no tuple", "too few", "too many", "None"])
def test_a_backends_code_that_returns_something_else(results: Any) -> None:
    with pytest.raises(BackendError, match="must give a tuple of the graph's 1 output"):
        tinycompile.compile(lambda x: x + 1, backend=returning(results))(X)


def test_a_backend_that_raises_is_named_and_its_error_is_the_cause() -> None:
    def careless(graph_module, inputs):
        return inputs[7]

    with pytest.raises(BackendError, match="backend 'careless' raised IndexError for lambda_: ") as raised:
        tinycompile.compile(lambda x: x + 1, backend=careless)(X)
    assert isinstance(raised.value.__cause__, IndexError)
    with pytest.raises(BackendError, match="returned None for lambda_, which can't be called"):
        tinycompile.compile(lambda x: x + 1, backend=lambda g, i: None)(X)


def test_an_error_of_the_programs_that_reads_like_one_of_unpacking_is_its_own() -> None:
    @tinycompile(backend=lambda graph_module, inputs: graph_module)
    def f(x):
        (a,) = [x, x]
        return a

    with pytest.raises(ValueError, match="too many values to unpack"):
        f(X)


@pytest.mark.parametrize(
    ("args", "kwargs", "told"),
    [
        ((), {}, "missing 1 required positional"),
        ((X, X), {}, "takes 1 positional argument"),
        ((X,), {"j": 2}, "unexpected keyword"),
    ],
    ids=["missing", "too many", "misspelt"],
)
@pytest.mark.parametrize("fullgraph", [False, True])
def test_a_first_call_with_wrong_arguments_is_pythons_error(args: Any, kwargs: Any, told: str, fullgraph: bool) -> None:
    """And nobody says that tinycompile had failed: warnings are errors here."""

    def f(x, *, k=1):
        return x + k

    with tinycompile.config.patch(on_error="eager"), pytest.raises(TypeError, match=told):
        tinycompile.compile(f, fullgraph=fullgraph)(*args, **kwargs)


def generated(x):
    yield x + 1


async def awaited(x):
    return x + 1


@pytest.mark.parametrize("fn", [generated, awaited], ids=["generator", "coroutine"])
def test_generators_and_coroutines_run_and_are_refused_under_fullgraph(fn: Any) -> None:
    made, plain = tinycompile.compile(fn)(X), fn(X)
    assert type(made) is type(plain)
    made.close(), plain.close()
    with pytest.raises(GraphBreakError, match="hint: Compile the functions that it calls"):
        tinycompile.compile(fn, fullgraph=True)(X)


SCRIPT = "import torch, tinycompile\nx = torch.arange(4.0)\nprint(tinycompile.compile(lambda x: torch.relu(x) * 2)(x))\n"


@pytest.mark.parametrize("where", ["compiler", "folder"])
def test_a_toolchain_that_does_not_work_is_one_line_with_its_words(tmp_path: Path, where: str) -> None:
    """A compiler that fails, and a temporary folder that can't be written to."""
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "TINYCOMPILE_CACHE_DIR": str(tmp_path / "cache")}
    env |= {"TINYCOMPILE_ON_ERROR": "eager"}
    if where == "compiler":
        compiler = tmp_path / "g++"
        compiler.write_text("#!/bin/sh\necho no space for spills >&2\nexit 1\n")
        compiler.chmod(0o755)
        env["CXX"] = str(compiler)
        words = "no space for spills"
    else:
        code = "from tinycompile.runtime import cpp_build\ncpp_build._folder = lambda _: cpp_build.Path('/proc/absent')\n"
        words = "no library can be made in /proc/absent"
    script = SCRIPT if where == "compiler" else code + SCRIPT
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=env, timeout=120)
    assert done.stdout == "tensor([0., 2., 4., 6.])\n", done.stderr
    assert done.stderr.count("Warning:") == 1 and words in done.stderr and "its graph runs op by op" in done.stderr


def test_explain_with_wrong_arguments_leaves_the_function_compiled() -> None:
    f = tinycompile.compile(lambda x, w: x + w, backend="eager")
    x = torch.ones(2)
    f(x, x)
    for wrong in ((x,), (x, x, x)):
        with pytest.raises(TypeError, match="argument"):
            f.explain(*wrong)
        with pytest.raises(TypeError, match="argument"):
            f(*wrong)
    f(x, x)
    assert f.cache_info()["entries"] == 1 and not f.breaks
