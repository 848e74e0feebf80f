"""Contests: the library's way against generated kernels that do the same, timed at the first call on its own arguments.

The library's way runs first, and its results are what the others must give: a kernel whose results differ by more than rounding
is out, whatever its time, and so is one that doesn't compile or launch. One that wins must be faster by more than the noise
of the measurement. What won is kept in the disk cache as other tunings are, so a second process does not time again.
"""

from __future__ import annotations

import ast
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tinycompile.base.errors import BackendError
from tinycompile.base.logs import log
from tinycompile.ir.source import ChoiceSource, Config, KernelSource, Source
from tinycompile.runtime.autotune import CHOICE, Launcher, Timer, Tuner, describe, time_on_device
from tinycompile.runtime.cache import DiskCache, Entry
from tinycompile.runtime.twins import canonical_text, renumbered, signature

LIBRARY = "the library"
MARGIN = 0.97  # of the library's time: less gain than this is noise
# What rounding may do to a product's result, as a share of the largest: sums are taken in another order, and in TF32 perhaps.
ROUNDING = {torch.bfloat16: 2.0**-6, torch.float16: 2.0**-9, torch.float32: 2.0**-9}


class Slot:
    """A kernel's place in the wrapper: launches the configuration that is set."""

    def __init__(self) -> None:
        self.launcher: Launcher | None = None

    def __call__(self, stream: int, *args: Any) -> Any:
        assert self.launcher is not None
        return self.launcher(stream, *args)


@dataclass(frozen=True)
class Entrant:
    """One configuration of one kernel: ``way`` is the wrapper's function that launches what is in ``slot``. ``place``: the
    number of the kernel among the choice's, and of the configuration among the kernel's."""

    kernel: KernelSource
    config: Config
    launcher: Launcher
    slot: Slot
    way: Callable[..., Any]
    place: tuple[int, int]

    def __call__(self, queue: int, *given: Any) -> Any:
        self.slot.launcher = self.launcher
        return self.way(queue, *given)

    def __str__(self) -> str:
        return f"{self.kernel.name} {describe(self.config)}"


class Contest:
    """What the wrapper calls until it is settled. ``settled(function, entrant)`` is told the winner (None: the library's way);
    ``keep(entrant, seconds)`` writes it down, with each one's time by name; ``tell`` gets the reason in words."""

    def __init__(
        self,
        choice: ChoiceSource,
        library: Callable[..., Any],
        entrants: Sequence[Entrant],
        settled: Callable[[Callable[..., Any], Entrant | None], None],
        keep: Callable[[Entrant | None, Mapping[str, float]], None],
        tell: Callable[[str], None],
        timer: Timer | None = None,
    ) -> None:
        self.choice, self.library, self.entrants = choice, library, tuple(entrants)
        self.settled, self.keep, self.tell = settled, keep, tell
        self.timer = timer or time_on_device
        self.winner: Callable[..., Any] | None = None
        self._lock = threading.Lock()

    def __call__(self, queue: int, *given: Any) -> Any:
        if self.winner is None:
            if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
                return self.library(queue, *given)  # nothing can be timed inside a capture
            self._hold(queue, given)
        assert self.winner is not None
        return self.winner(queue, *given)

    def _hold(self, queue: int, given: Sequence[Any]) -> None:
        with self._lock:
            if self.winner is not None:
                return
            fit = self._fit(queue, given)
            seconds = self.timer([self.library, *fit], queue, given)
            best = min(range(len(seconds)), key=seconds.__getitem__)
            entrant = fit[best - 1] if best and seconds[best] < MARGIN * seconds[0] else None
            self.winner = self.library if entrant is None else entrant.way
            if entrant is not None:
                entrant.slot.launcher = entrant.launcher
            named = dict(zip([LIBRARY, *map(str, fit)], seconds, strict=True))
            told = ", ".join(f"{n} {s * 1e6:.1f} us" for n, s in named.items())
            self.tell(f"{LIBRARY if entrant is None else entrant} is used, as timed at the first call: {told}")
            self.keep(entrant, named)
            self.settled(self.winner, entrant)

    def _fit(self, queue: int, given: Sequence[Any]) -> list[Entrant]:
        """The entrants that run and agree with the library."""
        expected = self._results(self.library, queue, given)
        fit = []
        for entrant in self.entrants:
            try:
                found = self._results(entrant, queue, given)
            except (RuntimeError, BackendError) as error:
                log("kernels", f"{entrant}: out of the contest, it does not run: {error}")
                continue
            if all(agree(f, e) for f, e in zip(found, expected, strict=True)):
                fit.append(entrant)
            else:
                log("kernels", f"{entrant}: out of the contest, its results differ from the library's")
        return fit

    def _results(self, run: Callable[..., Any], queue: int, given: Sequence[Any]) -> list[torch.Tensor]:
        """Copies of what a way fills and returns."""
        for i in self.choice.writes:
            given[i].zero_()
        made = run(queue, *given)
        returned = made if isinstance(made, tuple) else () if made is None else (made,)
        return [t.clone() for t in (*(given[i] for i in self.choice.writes), *returned)]


def agree(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether results are the same but for rounding; integers exactly."""
    if not found.dtype.is_floating_point:
        return torch.equal(found, expected)
    found, wide = found.float(), expected.float()
    finite = wide.isfinite()
    if not torch.equal(found.isnan(), wide.isnan()) or not torch.equal(found.isfinite(), finite):
        return False
    if not bool(finite.any()):
        return True
    difference, size = (found[finite] - wide[finite]).abs().max(), wide[finite].abs().max()
    return bool(difference <= ROUNDING.get(expected.dtype, 2.0**-9) * size)


# --- setting up ------------------------------------------------------------------------------------------------------------


def parts(choice: ChoiceSource, source: Source, tuner: Tuner) -> dict[str, str]:
    """All that a decision depends on, by name; names of variables, kernels and buffers don't count."""
    by_name = {k.name: k for k in source.kernels}
    ways = [by_name[kernel] for _, kernel in choice.ways]
    described = {name: _described(k) for name, k in by_name.items()}
    tree = ast.parse(source.wrapper)
    library = next(f for f in tree.body if isinstance(f, ast.FunctionDef) and f.name == choice.library)
    return {
        "choice": renumbered(library, described),
        "kernels": "\n".join(described[k.name] for k in ways),
        "candidates": repr([k.configs for k in ways]),
        **tuner.about,
    }


def _described(kernel: KernelSource) -> str:
    return f"{canonical_text(kernel)} {signature(kernel)} {tuple(map(str, kernel.grid))}"


@dataclass(frozen=True)
class Recalled:
    """What an earlier contest found: the place of the winner (None: the library), what it was called, and the entry with its
    binary."""

    place: tuple[int, int] | None
    name: str
    entry: Entry


def recall(choice: ChoiceSource, source: Source, tuner: Tuner) -> Recalled | None:
    """The decision of an earlier process or graph; None where there is none that can be read."""
    entry = tuner.disk.get(DiskCache.key(parts(choice, source, tuner))) if tuner.disk is not None else None
    if entry is None:
        return None
    found = json.loads(entry.text(CHOICE))
    place = found["place"]
    return Recalled(None if place is None else (place[0], place[1]), found["winner"], entry)


def keep(
    choice: ChoiceSource, source: Source, tuner: Tuner, entrant: Entrant | None, seconds: Mapping[str, float],
    files: Mapping[str, bytes],
) -> None:  # fmt: skip
    """Write a decision down, for people too."""
    if tuner.disk is not None:
        about = parts(choice, source, tuner)
        place, winner = (None, LIBRARY) if entrant is None else (entrant.place, str(entrant))
        times = {name: round(s * 1e6, 2) for name, s in seconds.items()}
        told = json.dumps({"winner": winner, "place": place, "microseconds": times}, indent=1)
        tuner.disk.put(DiskCache.key(about), {CHOICE: told, **files}, about)
