"""What a sceptical user tries: objects and grad flags of results, errors of library calls."""

from __future__ import annotations

import os
import subprocess
import sys
import traceback
from collections import UserDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import tinycompile
from tinycompile.base.errors import InternalError
from tinycompile.capture.execute import HANDLERS
from tinycompile.capture.guard_code import MISS

pytestmark = pytest.mark.cpu

BACKENDS = (None, "eager", "triton")

WHOLE_VIEWS: dict[str, Callable[..., Any]] = {
    "detach": lambda x: x.detach(),
    "view_as": lambda x: x.view_as(x),
    "expand": lambda x: x.expand(4, 6),
    "squeeze": lambda x: x.squeeze(),
    "view": lambda x: x.view(4, 6),
    "slice": lambda x: x[:],
    "transpose twice": lambda x: x.t().t(),
    "to": lambda x: x.to(torch.float32),
    "contiguous": lambda x: x.contiguous(),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", WHOLE_VIEWS)
def test_a_view_of_all_of_a_tensor_is_another_object(name: str, backend: str | None) -> None:
    fn = WHOLE_VIEWS[name]
    f = tinycompile.compile(lambda x: (fn(x), x + 1), backend=backend)
    g = tinycompile.compile(lambda x: (lambda y: (y, fn(y)))(x + 1), backend=backend)
    x = torch.randn(4, 6)
    got, want = f(x)[0], fn(x)
    assert (got is x) == (want is x)
    assert (got._base is x) == (want._base is x)
    assert got.data_ptr() == x.data_ptr()
    first, second = g(x)
    assert (first is second) == (want is x)
    assert first.data_ptr() == second.data_ptr()


@pytest.mark.parametrize("backend", BACKENDS)
def test_detached_results_do_not_require_grad(backend: str | None) -> None:
    cases = (
        lambda x: x.detach(),
        lambda x: x.detach()[1],
        lambda x: (x.detach()[1], x * 2),
        lambda x: (x[1].detach().t(), x[1]),
        lambda x: (x @ x).detach(),
        lambda x: (x @ x).detach() @ x.detach(),
        lambda x: (x.t(), x > 0),
    )
    for fn in cases:
        x = torch.randn(4, 4, requires_grad=True)
        got, want = tinycompile.compile(fn, backend=backend)(x), fn(x)
        pairs = zip(got, want, strict=True) if isinstance(want, tuple) else [(got, want)]
        for g, w in pairs:
            assert (g.requires_grad, g.stride(), g is x) == (w.requires_grad, w.stride(), w is x)
            torch.testing.assert_close(g, w)


@pytest.mark.parametrize("backend", [None, "eager"])
@pytest.mark.parametrize(
    ("fn", "args"),
    [
        (lambda x, i: x[i] * 2, (torch.randn(5, 3), torch.tensor([-6, 2]))),
        (lambda x, i: x.gather(0, i) * 2, (torch.randn(5, 3), torch.tensor([[7, 0, 1]]))),
        (lambda x, i: x // i, (torch.arange(5), torch.zeros(5, dtype=torch.int64))),
        (lambda x, i: torch.linalg.cholesky(x) + i, (-torch.eye(3), torch.ones(3))),
    ],
)
def test_errors_at_run_time_name_the_users_line(fn: Callable[..., Any], args: tuple[Any, ...], backend: str | None) -> None:
    with pytest.raises(Exception) as want:  # noqa: PT011  # whatever torch raises
        fn(*args)
    f = tinycompile.compile(fn, backend=backend)
    for _ in range(2):
        with pytest.raises(type(want.value)) as got:
            f(*args)
        assert str(got.value) == str(want.value)
        assert got.value.__context__ is None
        lines = [(e.filename, e.lineno) for e in traceback.extract_tb(got.value.__traceback__)]
        assert (__file__, fn.__code__.co_firstlineno) in lines


def test_a_fault_of_compiled_code_gives_eagers_answer() -> None:
    f = tinycompile.compile(lambda x: torch.linalg.inv(x) + 1)
    x = torch.eye(3)
    f(x)

    def broken(*inputs: Any) -> Any:
        raise AssertionError("a fault of ours")

    f._entries[0].guarded = broken
    with tinycompile.config.patch(on_error="eager"), pytest.warns(Warning, match="a fault of ours"):
        assert torch.equal(f(x), torch.linalg.inv(x) + 1)
    with tinycompile.config.patch(on_error="raise"), pytest.raises(AssertionError, match="a fault of ours"):
        f(x)


@pytest.mark.parametrize("source", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_a_cast_to_integers_and_back_is_not_trunc(source: torch.dtype) -> None:
    """GCC makes one of the two casts unless it is stopped: then -0.5 gives -0.0 and values out of range stay what they were."""
    x = torch.tensor([-0.3, 0.3, -0.0, -1.5, 1e10, -1e10, float("nan"), float("inf")] * 5).to(source)
    for middle in (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64):
        for target in (torch.float32, torch.float64):
            fn = lambda x: x.to(middle).to(target)  # noqa: E731, B023
            got, want = tinycompile.compile(fn)(x), fn(x)
            assert torch.equal(got, want)
            assert torch.equal(got.signbit(), want.signbit())


@pytest.mark.parametrize("fn", [torch.relu, torch.nn.functional.relu6, torch.nn.functional.hardtanh])
def test_minus_zero_stays_minus_zero(fn: Callable[..., Any]) -> None:
    x = torch.tensor([-0.0, 0.0, -1.0, float("nan"), 7.0] * 8)
    got, want = tinycompile.compile(lambda x: fn(x))(x), fn(x)
    assert torch.equal(got.nan_to_num(9.0), want.nan_to_num(9.0))
    assert torch.equal(got.signbit(), want.signbit())


@pytest.mark.parametrize("fn", [lambda x: x**2, torch.square, lambda x: torch.lerp(x, x, 0.3), lambda x: x * 2, torch.exp])
def test_strides_of_size_one_dims(fn: Callable[..., Any]) -> None:
    x = torch.randn(2).as_strided((1, 2, 1), (1, 1, 2))
    assert tinycompile.compile(lambda x: fn(x), dynamic=False)(x).stride() == fn(x).stride()


@pytest.mark.parametrize("strides", [(1, 2, 2), (1, 8, 2)])
def test_a_view_of_a_whole_input_keeps_strides_of_size_one(strides: tuple[int, ...]) -> None:
    x = torch.randn(16).as_strided((2, 1, 4), strides)
    for fn in (lambda x: x.narrow(1, 0, 1), lambda x: x[:], lambda x: (x, x.transpose(0, 1).transpose(0, 1))[1]):
        got, want = tinycompile.compile(fn, dynamic=False)(x), fn(x)
        assert got.stride() == want.stride()
        assert got._base is want._base


def test_the_square_of_a_bool_is_an_integer() -> None:
    x = torch.tensor([True, False])
    got = tinycompile.compile(lambda x: torch.square(x))(x)
    assert got.dtype == torch.int64
    assert got.tolist() == [1, 0]


def test_a_compiler_that_fails_is_worked_around_with_one_warning(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import torch, tinycompile\n"
        "for n in (2.0, 3.0):\n"
        "    f = tinycompile.compile(lambda x: x * n)\n"
        "    assert torch.equal(f(torch.ones(3)), torch.full((3,), n))\n"
        "print('right')\n"
    )
    env = {
        **os.environ,
        "TINYCOMPILE_CACHE_DIR": str(tmp_path),
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "CXX": "/bin/false",
    }
    env.pop("TINYCOMPILE_ON_ERROR", None)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, env=env, timeout=300, check=False)
    assert done.stdout == "right\n", done.stderr
    assert done.stderr.count("Warning") == 1


@pytest.mark.parametrize("kind", ["function", "module"])
def test_warnings_point_at_the_users_call(kind: str) -> None:
    class Inverse(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.linalg.inv(x) + 1

    f = tinycompile.compile(Inverse() if kind == "module" else lambda x: torch.linalg.inv(x) + 2)
    compiled = f.compiled if kind == "module" else f
    f(torch.eye(3))

    entry = compiled._entries[0]

    def broken(*inputs: Any) -> Any:
        if not entry.guard(*inputs):
            return MISS
        raise AssertionError(f"another fault of ours, in a {kind}")

    entry.guarded = broken
    with tinycompile.config.patch(on_error="eager"), pytest.warns(tinycompile.FallbackWarning) as caught:
        f(torch.eye(3))
    with tinycompile.config.patch(recompile_limit=1), pytest.warns(tinycompile.RecompileLimitWarning) as limited:
        f(torch.eye(4))
    assert caught[0].filename == limited[0].filename == __file__


@pytest.mark.parametrize("index", [[0, 2], [1]])
def test_an_index_into_an_expanded_dim(index: list[int]) -> None:
    """No address depends on it, but it is checked."""
    x, i = torch.tensor([[1.0], [2.0]]).expand(2, 3), torch.tensor(index)
    f = tinycompile.compile(lambda x, i: x.index_select(-1, i) * 2, backend="triton")
    assert torch.equal(f(x, i), x[:, index] * 2)
    with pytest.raises(RuntimeError, match="out of"):
        f(x, i + 5)


@pytest.mark.parametrize("divisor", [1.5, -2.5])
def test_remainders_by_a_number(divisor: float) -> None:
    x = torch.tensor([-1.0, 2.0, 7.25])
    for fn in (lambda x: x % divisor, lambda x: x // divisor, lambda x: torch.remainder(x, divisor)):
        assert torch.equal(tinycompile.compile(fn, backend="triton")(x), fn(x))


class _Mapping:
    def keys(self) -> list[str]:
        return ["a", "b"]

    def __getitem__(self, key: str) -> str:
        return key * 2


def _takes_keywords(x: torch.Tensor, **kw: Any) -> tuple[torch.Tensor, dict[str, Any]]:
    return x + len(kw), kw


@pytest.mark.parametrize("given", [({}, {"s": 2}, {"z": 1, "s": 4}), (UserDict(a=1), _Mapping(), {"a": 1})])
def test_keywords_of_any_mapping(given: tuple[Any, ...]) -> None:
    f = tinycompile.compile(lambda x, kw: _takes_keywords(x, **kw), backend="eager")
    for kw in given:
        made, got = f(torch.zeros(1), kw)
        assert (made.item(), list(got.items())) == (len(kw.keys()), [(k, kw[k]) for k in kw.keys()])


def test_keywords_of_what_is_no_mapping() -> None:
    f = tinycompile.compile(lambda x, kw: _takes_keywords(x, **kw), backend="eager")
    with pytest.raises(TypeError, match=r"argument after \*\* must be a mapping, not int"):
        f(torch.zeros(1), 3)


@pytest.mark.parametrize("reentrant", [False, True])
def test_compiled_code_in_a_checkpoint(reentrant: bool) -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (torch.tanh(x * w) ** 2).sum(1)

    f = tinycompile.compile(fn)
    for _ in range(3):
        grads = []
        x, w = torch.randn(4, 3), torch.randn(3)
        for g in (fn, f):
            leaves = [t.clone().requires_grad_() for t in (x, w)]
            checkpoint(g, *leaves, use_reentrant=reentrant).sum().backward()
            grads.append([t.grad for t in leaves])
        torch.testing.assert_close(*grads)


def test_a_fault_of_capture_gives_eagers_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def faulty(*_: Any) -> None:
        raise InternalError("a fault of capture's")

    def fn(x: torch.Tensor) -> list[torch.Tensor]:
        y = x + 1
        return [y * 2, x[0:1]]

    monkeypatch.setitem(HANDLERS, "BUILD_LIST", faulty)
    f = tinycompile.compile(fn)
    x = torch.ones(3)
    with tinycompile.config.patch(on_error="eager"), pytest.warns(tinycompile.FallbackWarning, match="a fault of capture's"):
        torch.testing.assert_close(f(x), fn(x))
    assert f.breaks[0].id == "internal-error"
    torch.testing.assert_close(f(x), fn(x))
    with tinycompile.config.patch(on_error="raise"), pytest.raises(InternalError, match="a fault of capture's"):
        tinycompile.compile(fn)(x)


@pytest.mark.parametrize("block", ["try", "with"])
def test_a_generator_that_is_dropped_in_a_block_is_closed(block: str) -> None:
    ended: list[str] = []

    class Noting:
        def __enter__(self) -> None: ...

        def __exit__(self, *_: object) -> None:
            ended.append("with")

    def tries(x: torch.Tensor) -> Iterator[torch.Tensor]:
        try:
            yield x
            yield x + 1
        finally:
            ended.append("try")

    def enters(x: torch.Tensor) -> Iterator[torch.Tensor]:
        with Noting():
            yield x
            yield x + 1

    def fn(x: torch.Tensor) -> torch.Tensor:
        for y in tries(x) if block == "try" else enters(x):
            if y is not x:
                break
        return y * 2

    f = tinycompile.compile(fn, backend="eager")
    for calls in (1, 2):
        assert f(torch.ones(2)).tolist() == [4.0, 4.0]
        assert ended == [block] * calls
