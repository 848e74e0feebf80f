"""Key sets."""

from __future__ import annotations

import itertools

import pytest

from tinycompile.dispatch.keys import ALL, BACKENDS, Key, KeySet, backend_key

pytestmark = pytest.mark.pure


def test_priority() -> None:
    order = "OUTLINE AUTOCAST AUTOGRAD BATCHED FUNCTIONALIZE TRACING CPU CUDA META PRIVATEUSE1".split()
    assert [key.name for key in ALL] == order


def test_set_operations_agree_with_sets_of_keys() -> None:
    for keys in itertools.chain.from_iterable(itertools.combinations(Key, n) for n in range(4)):
        keyset = KeySet.of(*keys)
        assert set(keyset) == set(keys) and len(keyset) == len(keys)
        assert list(keyset) == sorted(keys, reverse=True)
        for key in Key:
            assert (key in keyset) == (key in keys)
            assert set(keyset.add(key)) == set(keys) | {key}
            assert set(keyset.remove(key)) == set(keys) - {key}
            assert set(keyset.below(key)) == {k for k in keys if k < key}
        if keys:
            assert keyset.highest() is max(keys)


def test_an_empty_set_has_no_highest_key() -> None:
    with pytest.raises(ValueError, match="empty"):
        KeySet().highest()


def test_prints_by_priority() -> None:
    assert str(KeySet.of(Key.CPU, Key.AUTOGRAD)) == "{AUTOGRAD, CPU}"


def test_backends() -> None:
    assert [backend_key(t) for t in ("cpu", "cuda", "meta", "mps")] == [Key.CPU, Key.CUDA, Key.META, Key.PRIVATEUSE1]
    assert set(BACKENDS) == {Key.CPU, Key.CUDA, Key.META, Key.PRIVATEUSE1}
