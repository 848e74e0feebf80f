"""Words of memory are read where they lie, few or many of them."""

from __future__ import annotations

import array

import pytest

from tinycompile.base import words

pytestmark = pytest.mark.pure
NUMBERS = array.array("Q", range(10, 2010))
START = NUMBERS.buffer_info()[0]


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("places", [0, 1, 2, 3, 700])
def test_words_at_some_places(places: int, count: int) -> None:
    indices = [(7 * i) % 1000 for i in range(places)]
    read = words.reader([START + words.WORD * i for i in indices], count)
    for _ in range(2):
        assert list(memoryview(read()).cast("Q")) == [NUMBERS[i + k] for i in indices for k in range(count)]
        NUMBERS[7] += 1


def test_words_from_one_address() -> None:
    assert words.read(START, 5) == list(NUMBERS[:5])
