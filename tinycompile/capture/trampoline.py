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

    def recover(self, entry: Any, failure: BaseException, held: CellType) -> Any:
        """Run to the end in plain Python what failed: from the state again, or from the error, raised in the frame there.
        ``entry``: None where there is no code for the state."""


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
        entry: Any = None
        failure: BaseException | None = None
        try:
            entry = piece.find(held.cell_contents, {})
            run = entry.run
            result = None if type(run) is Rest else run(*held.cell_contents)
        except BaseException as error:  # noqa: BLE001  # what the frame has entered is left, also when it is interrupted
            failure = error
        if failure is not None:
            try:
                return piece.recover(entry, failure, held)
            finally:
                del failure  # which its traceback leads to
        if type(run) is Rest:
            return run.run(held)
        if entry.stop is None:
            backwards = entry.captured.backwards
            if backwards is not None:
                held.cell_contents = backwards(held.cell_contents)
            held.cell_contents = ()  # what the frame held goes in its order
            return result
        stop, held.cell_contents = entry.stop, result
        del result
