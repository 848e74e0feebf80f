"""``torch.autocast`` under capture. Entering a region sets torch's own state for the rest of the capture, so the dispatcher
records the casts; the state is put back when the capture ends, and the rebuilt code makes the changes that are left."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from tinycompile.capture.breaks import GraphBreak
from tinycompile.capture.sources import Source
from tinycompile.capture.values.base import Kwargs, MethodOf, Value
from tinycompile.capture.values.constant import FALSE
from tinycompile.eager.autocast import RegionState, set_region_state

if TYPE_CHECKING:
    from tinycompile.capture.tracer import Tracer


class Settings(NamedTuple):
    """What a ``torch.autocast`` object sets."""

    device: str
    dtype: torch.dtype
    enabled: bool
    cache_enabled: bool


Before = tuple[bool, torch.dtype, bool]  # what held when a region was entered: enabled, dtype, whether casts are kept


def settings_of(mode: Any) -> Settings:
    """Of an object of the program's."""
    return Settings(mode.device, mode.fast_dtype, mode._enabled, mode._cache_enabled)


def before(mode: Any) -> Before | None:
    """What held when the program entered an object of its own, if it did."""
    return (mode.prev, mode.prev_fastdtype, mode.prev_cache_enabled) if hasattr(mode, "prev") else None


def rebuilt_autocast(settings: Settings, before: Before | None) -> Any:
    """The real object, as if entered where it was."""
    made = torch.autocast(*settings)
    if before is not None:
        made.prev, made.prev_fastdtype, made.prev_cache_enabled = before
    return made


def change_regions(state: RegionState, depth: int) -> None:
    """What entering (``depth`` positive) or leaving so many regions leaves behind. Torch forgets cast weights with the last."""
    set_region_state(state)
    for _ in range(depth):
        torch.autocast_increment_nesting()
    for _ in range(-depth):
        if torch.autocast_decrement_nesting() == 0:
            torch.clear_autocast_cache()


class AutocastMode(Value):
    """A ``torch.autocast`` object, made inside or given from outside: then it is ``obj``."""

    __slots__ = ("before", "given", "obj", "settings")

    def __init__(self, settings: Settings, obj: Any = None, source: Source | None = None) -> None:
        super().__init__(source)
        self.settings, self.obj, self.given = settings, obj, source
        self.before: Before | None = None

    def truth(self, tr: Tracer) -> bool:
        return True

    def get_attr(self, tr: Tracer, name: str) -> Value:
        if name == "__class__":
            return tr.from_python(torch.autocast)
        if not callable(getattr(torch.autocast, name, None)):
            raise GraphBreak("unsupported-value", f"attribute {name!r} of an autocast object")
        return MethodOf(self, name)

    def call_method(self, tr: Tracer, name: str, args: Sequence[Value], kwargs: Kwargs) -> Value:
        device, dtype, enabled, cache_enabled = self.settings
        if name == "__enter__":
            tr.guards.reads_autocast = True
            self.before = (
                torch.is_autocast_enabled(device),
                torch.get_autocast_dtype(device),
                torch.is_autocast_cache_enabled(),
            )
            self.source = None  # left open over a break, it is rebuilt as what was entered here
            self._set(device, enabled, dtype, cache_enabled)
            tr.autocast_depth += 1
            return self
        if name == "__exit__":
            self._set(device, *self._entered(tr))
            self.source, self.before = self.given, None
            tr.autocast_depth -= 1
            return FALSE
        raise GraphBreak("mode", f"method {name!r} of autocast")

    def _entered(self, tr: Tracer) -> Before:
        """What the region goes back to; one that was entered outside has it guarded."""
        if self.before is None and self.given is not None:
            self.before = before(self.obj)
            asked, found = tr.guards.hold(before, "before"), tr.guards.hold(self.before, "state")
            tr.guards.check(
                f"{asked.name}({self.given.text}) == {found.name}", f"{self.given.label} was entered at {self.before}"
            )
        if self.before is None:
            raise GraphBreak("mode", "autocast is left that was not entered")
        return self.before

    @staticmethod
    def _set(device: str, enabled: bool, dtype: torch.dtype, cache_enabled: bool) -> None:
        torch.set_autocast_enabled(device, enabled)
        torch.set_autocast_dtype(device, dtype)
        torch.set_autocast_cache_enabled(cache_enabled)
