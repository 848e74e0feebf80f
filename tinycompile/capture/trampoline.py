"""From one compiled piece of a function to the next. A loop calls them in turn, so breaks in a loop don't nest frames.

The state between two pieces lies in a cell, and nowhere else: what plain Python drops while it runs on it dies there."""

from __future__ import annotations

from builtins import len, tuple, type  # a program may replace them while its own code runs
from collections.abc import Callable
from dataclasses import replace
from types import CellType, FunctionType
from typing import Any, Protocol

from tinycompile.base.internal_frames import internal_frame
from tinycompile.capture.captured import Captured
from tinycompile.capture.resume import Outcome, Place, is_trivial, moved, step
from tinycompile.capture.start import Rest, Runner


class Entry(Protocol):
    """Compiled code for some states: ``run`` returns the function's result, or with a ``stop`` the state there."""

    run: Callable[..., Any]
    captured: Captured
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
        self.entries: tuple[int, ...] | None = None  # of the state: those that stay, where that is all that it does
        self.pieces: tuple[Any, ...]
        let_go = moved(place)
        if let_go is not None:
            behind, self.entries = let_go
            self.pieces = (piece_at(behind),)
            return
        if is_trivial(place):  # nothing of it can fail: it belongs to the next piece
            self.pieces = (piece_at(replace(place, followed=False)),)
            return
        code, outcomes = step(place)
        self.step = Runner(function, code)
        self.pieces = tuple(piece_at(o.place) for o in outcomes)

    @internal_frame
    def advance(self, held: CellType) -> tuple[Piece | None, Any]:
        """The next piece, with its state held; None and the function's result, where a handler of the user's ran to the end."""
        if self.entries is not None:
            held.cell_contents = tuple([held.cell_contents[at] for at in self.entries])
        if self.step is None:
            return self.pieces[0], None
        result = self.step(held)
        if type(result) is tuple and len(result) == 2 and type(result[1]) is Outcome:
            held.cell_contents, outcome = result
            return self.pieces[outcome.index], None
        return None, result


@internal_frame
def drive(stop: Stop, held: CellType) -> Any:
    """Run a function on from a break to its end. ``held``: the state there."""
    while True:
        piece, result = stop.advance(held)
        if piece is None:
            return result
        entry = piece.find(held.cell_contents, {})
        run = entry.run
        if type(run) is Rest:
            return run.run(held)
        try:
            result = run(*held.cell_contents)
        except Exception as error:
            if not piece.can_be_redone(entry, error):
                raise
            failure = error
        else:
            if entry.stop is None:
                backwards = entry.captured.backwards
                if backwards is not None:
                    held.cell_contents = backwards(held.cell_contents)
                held.cell_contents = ()  # what the frame held goes in its order
                return result
            stop, held.cell_contents = entry.stop, result
            del result
            continue
        return piece.redo(entry, failure, held.cell_contents, {})
