"""numpy arrays: what is guarded of one from outside, memory that tensors and arrays share, what is made anew in each call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from tinycompile.api import CompiledFunction
from tinycompile.options import Options

pytestmark = pytest.mark.pure
TABLE = np.arange(6, dtype=np.float32).reshape(2, 3)


def compiled(fn: Callable[..., Any]) -> CompiledFunction:
    return CompiledFunction(fn, Options(backend="eager"))


def reads(a: np.ndarray, x: torch.Tensor) -> Any:
    return x * a[0], a.sum()


def test_contents_that_were_read_are_guarded() -> None:
    f, a, x = compiled(reads), np.array([2.0, 3.0]), torch.ones(2)
    assert f(a, x)[0].tolist() == [2.0, 2.0] and not f.breaks
    f(a.copy(), x)
    assert len(f.all_entries) == 1  # another array that holds the same
    a[0] = 5.0
    assert f(a, x)[0].tolist() == [5.0, 5.0]
    a[0] = 6.0
    assert f(a, x)[0].tolist() == [6.0, 6.0] and f(a, x)[1] == 9.0
    assert len([b for b in f.breaks if b.id == "data-dependent"]) >= 1  # it changes: no code for each of its contents
    for k in range(12):
        if k == 5:
            entries = len(f.all_entries)
        a[0] = k
        assert f(a, x)[0].tolist() == [k, k]
    assert len(f.all_entries) == entries


@pytest.mark.parametrize("other", [np.array([-0.0, 1.0]), np.array([0.0, np.nan]), np.array([0, 1]), np.array([[0.0, 1.0]])])
def test_another_sign_or_dtype_or_shape_is_seen(other: np.ndarray) -> None:
    def fn(a: np.ndarray, x: torch.Tensor) -> Any:
        return a.copy(), a.dtype, a.shape, x + 1

    f, x = compiled(fn), torch.ones(2)
    f(np.array([0.0, 1.0]), x)
    got, want = f(other, x), fn(other, x)
    assert got[0].tobytes() == want[0].tobytes() and got[1:3] == want[1:3]


def test_a_tensor_of_an_array_is_an_input_of_the_graph() -> None:
    def fn(a: np.ndarray, x: torch.Tensor) -> Any:
        return torch.from_numpy(a) * x, torch.tensor(a) + x, torch.as_tensor(a, dtype=torch.float64)

    f, a, x = compiled(fn), np.ones(3, dtype=np.float32), torch.ones(3)
    for k in range(4):
        a[:] = k
        for got, want in zip(f(a, x), fn(a, x), strict=True):
            assert torch.equal(got, want) and got.dtype == want.dtype
    assert len(f.all_entries) == 1 and not f.breaks


def test_from_numpy_shares_memory_and_tensor_copies() -> None:
    def fn(a: np.ndarray) -> Any:
        t = torch.from_numpy(a)
        return t, t, torch.tensor(a), torch.as_tensor(a)

    f, a = compiled(fn), np.ones((2, 3), dtype=np.float32)
    for _ in range(2):
        shared, same, copied, also = f(a)
        assert not f.breaks and shared is same
        a[1, 0] += 7
        assert shared[1, 0] == also[1, 0] == a[1, 0] == copied[1, 0] + 7


def test_views_of_an_array_from_outside_are_views_of_it() -> None:
    def fn(a: np.ndarray) -> Any:
        return a[1:], a.T, a.reshape(-1)[::-1]

    f, a = compiled(fn), np.ones((2, 3), dtype=np.float32)
    for part, turned, back in (f(a), f(a)):
        assert not f.breaks
        a[1, 0] = 7
        assert part[0, 0] == turned[0, 1] == back[2] == 7 and part.strides == a.strides
        assert part.flags.writeable and back.flags.writeable and not np.broadcast_to(a, (2, 2, 3)).flags.writeable
        a[1, 0] = 1


def test_arrays_that_were_made_are_new_in_each_call_and_keep_their_views() -> None:
    def fn(x: torch.Tensor) -> Any:
        a = np.arange(6)
        b = a.reshape(2, 3)[1]
        b[0] = 100
        return a, b, x + 1

    f, x = compiled(fn), torch.ones(2)
    first, second = f(x), f(x)
    assert not f.breaks and len(f.all_entries) == 1
    assert first[0] is not second[0] and not np.shares_memory(first[0], second[0])
    first[0][3] = 5
    assert first[1][0] == 5 and second[1][0] == 100


def test_a_made_array_and_its_tensor_share_memory() -> None:
    def fn(x: torch.Tensor) -> Any:
        a = np.zeros(3, dtype=np.float32)
        return a, torch.from_numpy(a), x + 1

    f, x = compiled(fn), torch.ones(2)
    f(x)
    a, t, _ = f(x)
    t[0] = 4
    assert a.tolist() == [4, 0, 0] and not f.breaks


def test_a_write_to_a_tensor_on_the_array_is_seen() -> None:
    def fn(t: torch.Tensor, a: np.ndarray) -> Any:
        t.add_(1)
        return a[0] * 2

    a, b = np.ones(3, dtype=np.float32), np.ones(3, dtype=np.float32)
    f = compiled(fn)
    for _ in range(2):
        assert f(torch.from_numpy(a), a) == 2 * a[0]
        assert f(torch.from_numpy(b.copy()), b) == 2  # not the same memory


def test_a_write_in_the_other_order_of_calls() -> None:
    def fn(t: torch.Tensor, a: np.ndarray) -> Any:
        t.add_(1)
        return a[0] * 2

    f, a = compiled(fn), np.ones(3, dtype=np.float32)
    assert f(torch.ones(3), a) == 2
    assert f(torch.from_numpy(a), a) == 4


def test_a_global_array_that_is_replaced() -> None:
    space: dict[str, Any] = {"table": np.array([1.0, 2.0]), "np": np, "__name__": "made_for_a_test"}
    exec("def fn(x):\n    return x * table[1], len(table), np.sin(table)", space)
    f, x = compiled(space["fn"]), torch.ones(2)
    assert f(x)[0].tolist() == [2.0, 2.0] and not f.breaks
    space["table"] = np.array([1.0, 3.0, 4.0])
    assert f(x)[0].tolist() == [3.0, 3.0] and f(x)[1] == 3


def test_large_arrays_are_not_compared() -> None:
    def fn(a: np.ndarray, x: torch.Tensor) -> Any:
        return torch.from_numpy(a)[:2] + x, a[0]

    f, a, x = compiled(fn), np.ones(1 << 17), torch.ones(2)
    for k in range(3):
        a[0] = k
        assert f(a, x)[1] == k
    assert any("too large" in b.reason for b in f.breaks)


def test_functions_of_numpy_that_were_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    def fn(x: torch.Tensor) -> Any:
        return x * np.prod([2, 3])

    f, x = compiled(fn), torch.ones(1)
    assert f(x).item() == 6
    monkeypatch.setattr(np, "prod", lambda values: 10)
    assert f(x).item() == 10


@pytest.mark.parametrize(
    "scalar", [np.float16(2), np.float32(2), np.float64(2), np.int8(2), np.int64(2), np.uint8(2), np.bool_(True)]
)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.bool, torch.float16, torch.float32, torch.float64])
def test_scalars_and_tensors_promote_as_torch_has_it(scalar: Any, dtype: torch.dtype) -> None:
    uses: list[Callable[[Any, Any], Any]] = [
        lambda x, s: x * s, lambda x, s: s * x, lambda x, s: x + s, lambda x, s: s - x, lambda x, s: x / s, lambda x, s: x > s,
        lambda x, s: x == s, lambda x, s: s != x, lambda x, s: torch.tensor(s), lambda x, s: torch.full((2,), s),
        lambda x, s: torch.where(x > 0, x, s), lambda x, s: torch.add(x, s), lambda x, s: torch.tensor([s, s]),
        lambda x, s: torch.as_tensor(s), lambda x, s: x.new_full((2,), s), lambda x, s: x.clamp(max=s), lambda x, s: x**s,
        lambda x, s: torch.maximum(x, torch.tensor(s)), lambda x, s: torch.full_like(x, s),
        lambda x, s: x.masked_fill(x > 0, s),
    ]  # fmt: skip
    x = torch.tensor([1, 0, 1]).to(dtype)
    for use in uses:
        try:
            want = use(x, scalar)
        except Exception as error:  # noqa: BLE001
            with pytest.raises(type(error)):
                compiled(use)(x, scalar)
            continue
        got = compiled(use)(x, scalar)
        assert type(got) is type(want) and got.dtype == want.dtype, uses.index(use)
        torch.testing.assert_close(got, want, msg=str(uses.index(use)))
