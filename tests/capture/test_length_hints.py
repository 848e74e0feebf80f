"""Lists and tuples ask an iterable how long it will be before they are filled from it; nothing else does."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from tinycompile.api import CompiledFunction
from tinycompile.options import Options

pytestmark = pytest.mark.pure


class Sized:
    def __init__(self, log: list[str]) -> None:
        self.log = log

    def __len__(self) -> int:
        self.log.append("len")
        return 3

    def __iter__(self) -> Iterator[int]:
        self.log.append("iter")
        return iter([1, 2, 3])


class Hinting(Sized):
    def __len__(self) -> int:
        raise TypeError("not known")

    def __length_hint__(self) -> Any:
        self.log.append("hint")
        return 2


class Silent(Hinting):
    def __length_hint__(self) -> Any:
        self.log.append("hint")
        return NotImplemented


class Failing(Sized):
    def __len__(self) -> int:
        raise ValueError("no length")


class Negative(Hinting):
    def __length_hint__(self) -> Any:
        return -1


class Wordy(Hinting):
    def __length_hint__(self) -> Any:
        return "two"


class Listed(list[int]):
    """A list whose length the program tells."""

    def __init__(self, log: list[str]) -> None:
        super().__init__([1, 2, 3])
        self.log = log

    def __len__(self) -> int:
        self.log.append("len")
        return 3

    def __iter__(self) -> Iterator[int]:
        self.log.append("iter")
        return iter([1, 2, 3])


def extended(o: Any) -> Any:
    made = [0]
    made.extend(o)
    return made


def added(o: Any) -> Any:
    made = [0]
    made += o
    return made


def queued(o: Any) -> Any:
    made = deque([0])
    made.extend(o)
    return list(made)


def called(o: Any) -> Any:
    return (lambda *args: args)(*o)


def unpacked(o: Any) -> Any:
    a, b, c = o
    return a, b, c


USES: dict[str, Callable[[Any], Any]] = {
    "list": list,
    "tuple": tuple,
    "extend": extended,
    "+=": added,
    "[*o]": lambda o: [*o],
    "(*o, 1)": lambda o: (*o, 1),
    "f(*o)": called,
    "sorted": lambda o: sorted(o),
    "set": lambda o: sorted(set(o)),
    "deque": queued,
    "sum": lambda o: sum(o),
    "a, b, c": unpacked,
    "for": lambda o: [v for v in o],  # noqa: C416  # which asks nothing
    "zip": lambda o: [*zip(o, o, strict=True)],
    "enumerate": lambda o: [*enumerate(o)],
}


@pytest.mark.parametrize("use", USES)
def test_who_asks_for_the_length(use: str) -> None:
    for kind in (Sized, Hinting, Silent, Failing, Negative, Wordy, Listed):

        def program(x: torch.Tensor, kind: Any = kind) -> Any:
            log: list[str] = []
            try:
                result = USES[use](kind(log))
            except (TypeError, ValueError) as error:
                result = type(error).__name__, str(error)
            return log, result, x + 1

        expected, got = program(torch.ones(2)), CompiledFunction(program, Options(backend="eager"))(torch.ones(2))
        assert got[:2] == expected[:2], kind
