"""From one compiled piece of a function to the next. A loop calls them in turn, so breaks in a loop don't nest frames."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any, Protocol

from tinycompile.capture.resume import Outcome, Place, is_trivial, step
from tinycompile.capture.start import Runner

State = tuple[Any, ...]


class Entry(Protocol):
    """Compiled code for some states: ``run`` returns the function's result, or with a ``stop`` the state there."""

    run: Callable[..., Any]
    stop: Stop | None


class Piece(Protocol):
    """All compiled code that starts at one place."""

    def find(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Entry:
        """The entry for a state, compiled if need be."""

    def can_be_redone(self, entry: Any, error: Exception) -> bool:
        """Whether compiled code failed in a way that eager Python may not, and before any effect."""

    def redo(self, entry: Any, failure: Exception, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run eagerly to the end what failed."""


class Stop:
    """A break at one place of a function: does the instruction that broke in plain Python, and knows what follows."""

    def __init__(self, function: FunctionType, place: Place, piece_at: Callable[[Place], Any]) -> None:
        self.place = place
        self.step: Runner | None = None
        self.pieces: tuple[Any, ...]
        if is_trivial(place):  # nothing of it can fail: it belongs to the next piece
            self.pieces = (piece_at(place),)
            return
        code, outcomes = step(place)
        self.step = Runner(function, code)
        self.pieces = tuple(piece_at(o.place) for o in outcomes)

    def advance(self, state: State) -> tuple[Piece | None, Any]:
        """The next piece and its state; None and the function's result, where a handler of the user's ran to the end."""
        if self.step is None:
            return self.pieces[0], state
        result = self.step(state)
        if type(result) is tuple and len(result) == 2 and type(result[1]) is Outcome:
            pushed, outcome = result
            return self.pieces[outcome.index], state[: outcome.keep] + pushed
        return None, result


def drive(stop: Stop, state: State) -> Any:
    """Run a function on from a break to its end."""
    while True:
        piece, state = stop.advance(state)
        if piece is None:
            return state
        entry = piece.find(state, {})
        try:
            result = entry.run(*state)
        except Exception as error:
            if not piece.can_be_redone(entry, error):
                raise
            failure = error
        else:
            if entry.stop is None:
                return result
            stop, state = entry.stop, result
            continue
        return piece.redo(entry, failure, state, {})
