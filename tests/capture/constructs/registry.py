"""Cases: a function, what makes its arguments, and whether it is captured without a break. ``LOG`` counts what user code runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.capture.corpus import r

Args = Callable[[], tuple[Any, ...]]
LOG: list[Any] = []


@dataclass(frozen=True)
class Case:
    """``whole``: no break is needed."""

    fn: Callable[..., Any]
    args: Args
    whole: bool


CASES: dict[str, Case] = {}


def case(fn: Any = None, *, args: Args = lambda: (r(4),), whole: bool = True) -> Any:
    """Register a function; by default it takes one tensor of four elements."""

    def register(fn: Callable[..., Any]) -> Callable[..., Any]:
        assert fn.__name__ not in CASES, fn.__name__
        CASES[fn.__name__] = Case(fn, args, whole)
        return fn

    return register if fn is None else register(fn)


def breaks(fn: Any = None, *, args: Args = lambda: (r(4),)) -> Any:
    """The same for one that breaks the graph."""
    return case(fn, args=args, whole=False)


def log(value: Any) -> None:
    """Something that happens in user code, in order."""
    LOG.append(value)
