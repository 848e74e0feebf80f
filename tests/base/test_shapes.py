"""Shape arithmetic against torch on concrete sizes, and against the hints on symbolic ones."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from tinycompile.base import expr as ex
from tinycompile.base import shapes
from tinycompile.base.errors import InternalError

pytestmark = pytest.mark.pure
hypothesis = pytest.importorskip("hypothesis")
st = pytest.importorskip("hypothesis.strategies")
check = hypothesis.settings(max_examples=150, deadline=None, derandomize=True)

sizes = st.lists(st.integers(0, 4), max_size=4).map(tuple)


@st.composite
def strided(draw: Any) -> torch.Tensor:
    """A tensor with permuted, sliced, expanded and size-1 dims."""
    t = torch.empty(draw(st.lists(st.integers(0, 4), max_size=4)), device="meta")
    t = t.permute(draw(st.permutations(range(t.dim()))))
    for d in range(t.dim()):
        change = draw(st.sampled_from(["keep", "step", "narrow", "expand", "keep"]))
        if change == "step":
            t = t[(slice(None),) * d + (slice(None, None, 2),)]
        elif change == "narrow":
            t = t.narrow(d, 0, min(1, t.shape[d]))
        elif change == "expand" and t.shape[d] == 1:
            t = t.expand(*t.shape[:d], 3, *t.shape[d + 1 :])
    return t


@st.composite
def reshaped(draw: Any, count: int) -> tuple[int, ...]:
    """A shape with ``count`` elements."""
    result: list[int] = []
    if count == 0:
        return tuple(draw(st.permutations([0, *draw(st.lists(st.integers(0, 3), max_size=2))])))
    while count > 1:
        d = draw(st.sampled_from([k for k in range(1, count + 1) if count % k == 0]))
        result.append(d)
        count //= d
    return tuple(result + [1] * draw(st.integers(0, 2)))


def outcome(fn: Any, *args: Any) -> Any:
    try:
        return fn(*args)
    except (RuntimeError, IndexError) as e:
        return type(e), str(e)


@check
@hypothesis.given(sizes)
def test_contiguous_strides(shape: tuple[int, ...]) -> None:
    assert shapes.contiguous_strides(shape) == torch.empty(shape, device="meta").stride()


@check
@hypothesis.given(strided())
def test_is_contiguous(t: torch.Tensor) -> None:
    assert shapes.is_contiguous(t.shape, t.stride()) == t.is_contiguous()


@check
@hypothesis.given(strided(), st.data())
def test_view_strides(t: torch.Tensor, data: Any) -> None:
    new = data.draw(reshaped(t.numel()))
    got = shapes.view_strides(tuple(t.shape), t.stride(), new)
    try:
        expected = t.view(new).stride()
    except RuntimeError:
        expected = None
    assert got == expected, (tuple(t.shape), t.stride(), new)


@check
@hypothesis.given(st.lists(sizes, min_size=2, max_size=2))
def test_broadcast_shapes(given: list[tuple[int, ...]]) -> None:
    def real(*s: tuple[int, ...]) -> tuple[int, ...]:
        return tuple((torch.empty(s[0]) + torch.empty(s[1])).shape)

    assert outcome(shapes.broadcast_shapes, *given) == outcome(real, *given)


@check
@hypothesis.given(strided(), sizes)
def test_expand_strides(t: torch.Tensor, lead: tuple[int, ...]) -> None:
    to = (*lead, *(3 if s == 1 else s for s in t.shape))
    assert shapes.expand_strides(t.shape, t.stride(), to) == t.expand(to).stride()


@check
@hypothesis.given(sizes, st.lists(st.integers(-2, 4), max_size=3))
def test_infer_size(shape: tuple[int, ...], new: list[int]) -> None:
    t = torch.empty(shape)
    assert outcome(shapes.infer_size, new, t.numel()) == outcome(lambda: tuple(t.view(new).shape))


@check
@hypothesis.given(st.integers(-5, 5), st.integers(0, 4))
def test_normalize_dim(dim: int, rank: int) -> None:
    def real() -> int:
        t = torch.empty((2,) * rank)
        t.softmax(dim)
        return dim % max(rank, 1)

    assert outcome(shapes.normalize_dim, dim, rank) == outcome(real)


@check
@hypothesis.given(st.lists(st.integers(-3, 3), max_size=3), st.integers(0, 3))
def test_normalize_dims(dims: list[int], rank: int) -> None:
    def real() -> tuple[int, ...]:
        kept = torch.empty((2,) * rank).sum(dims, keepdim=True)
        return tuple(i for i, s in enumerate(kept.shape) if s == 1)

    assert outcome(shapes.normalize_dims, dims, rank) == outcome(real)


# --- symbolic sizes ---


def env_with(**hints: int) -> tuple[shapes.ShapeEnv, list[Any]]:
    env = shapes.ShapeEnv()
    return env, [env.new_size(name, value) for name, value in hints.items()]


@check
@hypothesis.given(st.lists(st.integers(2, 4), min_size=1, max_size=3), st.data())
def test_symbolic_views_agree_with_their_hints(concrete: list[int], data: Any) -> None:
    """Whatever is decided symbolically is what the hints say, for every op on shapes at once."""
    env = shapes.ShapeEnv()
    symbolic = [env.new_size(f"s{i}", v) if data.draw(st.booleans()) else v for i, v in enumerate(concrete)]
    cuts = data.draw(st.integers(1, len(concrete)))
    merged = (ex.product(symbolic[:cuts]), *symbolic[cuts:])
    with env.active():
        strides = shapes.contiguous_strides(symbolic)
        got = shapes.view_strides(tuple(symbolic), strides, merged)
        wide = shapes.broadcast_shapes(symbolic, symbolic[-1:], (1,))
        inferred = shapes.infer_size((-1, *symbolic[cuts:]), shapes.numel(symbolic))
    t = torch.empty(concrete)
    flat = t.flatten(0, cuts - 1)
    assert got is not None
    assert tuple(map(env.hint, strides)) == t.stride()
    assert tuple(map(env.hint, got)) == flat.stride()
    assert wide == tuple(symbolic)
    assert tuple(map(env.hint, inferred)) == tuple(flat.shape)
    assert env.relations == {}, "sizes that are equal by construction need no guard"


def test_an_undecided_question_is_answered_by_hint_and_recorded() -> None:
    env, (n, m) = env_with(n=4, m=4)
    with env.active():
        assert shapes.same(n, m)
        assert not shapes.at_least(n, m + 1)
        assert shapes.broadcast_shapes((n,), (m,)) == (n,)
    assert [str(r) for r in env.relations] == ["-m + n == 0", "-m + n - 1 < 0"]


def test_a_proven_question_records_nothing() -> None:
    env, (n,) = env_with(n=4)
    with env.active():
        assert not shapes.same(n, 1)
        assert shapes.at_least(n, 2)
        assert not shapes.same(n * 2, n * 2 + 1)
        assert shapes.same(n + n, n * 2)
    assert env.relations == {}


def test_a_question_without_an_environment_is_our_fault() -> None:
    with pytest.raises(InternalError, match="no shape environment"):
        shapes.same(ex.sym("n", 2), ex.sym("m", 2))


def test_environments_nest_and_belong_to_a_thread() -> None:
    outer, inner = shapes.ShapeEnv(), shapes.ShapeEnv()
    seen: list[Any] = []
    with outer.active():
        with inner.active():
            assert shapes.current_env() is inner
            thread = threading.Thread(target=lambda: seen.append(shapes.current_env()))
            thread.start()
            thread.join()
        assert shapes.current_env() is outer
    assert shapes.current_env() is None and seen == [None]


def test_a_view_that_strides_forbid_for_all_sizes_needs_no_guard() -> None:
    env, (n, m) = env_with(n=4, m=6)
    with env.active():
        assert shapes.view_strides((n, m), (1, n), (n * m,)) is None
    assert env.relations == {}


def test_a_view_that_only_these_sizes_forbid_is_guarded() -> None:
    env, (n, m) = env_with(n=4, m=6)
    with env.active():
        assert shapes.view_strides((n, m), (m, 1), (m, n)) == (n, 1)
        assert shapes.view_strides((2, m), (n, 1), (2 * m,)) is None
    assert [str(r) for r in env.relations] == ["-m + n != 0"]
