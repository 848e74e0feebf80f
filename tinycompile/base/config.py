"""``config``: the settings of the process, with their defaults from the environment."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

CHANNELS: frozenset[str] = frozenset({"graph", "guards", "breaks", "fusion", "kernels", "recompiles", "cache", "verify"})


def _unheeded(variable: str, what: str) -> None:
    """A wrong word in the environment is no reason to fail an import."""
    warnings.warn(f"{variable} names {what}: it is not heeded", stacklevel=2)


def _channels() -> frozenset[str]:
    """``TINYCOMPILE_LOG``: names separated by commas, or ``all``."""
    named = frozenset(filter(None, (part.strip() for part in os.environ.get("TINYCOMPILE_LOG", "").split(","))))
    if unknown := named - CHANNELS - {"all"}:
        _unheeded("TINYCOMPILE_LOG", f"unknown channels {sorted(unknown)}; there are {sorted(CHANNELS)} and all")
    return CHANNELS if "all" in named else named & CHANNELS


def _cache_dir() -> str:
    return os.environ.get("TINYCOMPILE_CACHE_DIR") or str(Path("~/.cache/tinycompile").expanduser())


def _on_error() -> Any:
    named = os.environ.get("TINYCOMPILE_ON_ERROR") or "eager"
    if named in ("eager", "raise"):
        return named
    _unheeded("TINYCOMPILE_ON_ERROR", f"{named!r}; there are 'eager' and 'raise'")
    return "eager"


def _verify() -> bool:
    """``TINYCOMPILE_VERIFY``: 1 or true turns it on."""
    return os.environ.get("TINYCOMPILE_VERIFY", "").lower() in ("1", "true", "yes", "on")


# Entries that change the code we generate: they are part of every cache key.
_CODE_CHANGING = ("dynamic", "max_autotune")


@dataclass
class Config:
    """``on_error``: what an internal error does: run the frame eagerly, or raise.

    ``cache_dir``, ``disk_cache``: where compiled code is kept, and whether it is. ``dump_dir``: a folder for the artifacts of
    every compile. ``log``: channels that print to stderr. ``recompile_limit``: entries a function may have before it stays
    eager. ``verify_ir``: run the verifier after every stage; off but in our tests and with ``TINYCOMPILE_VERIFY=1``, for it
    costs 16 to 37% of the time that our own stages take. ``dynamic``: sizes are static first (None), always symbolic (True),
    never (False). ``max_autotune``: time candidate configurations of each kernel. ``fallback_random``: random calls are
    torch's own, so compiled code draws the numbers that eager draws; else kernels draw them where they use them.
    """

    on_error: Literal["eager", "raise"] = field(default_factory=_on_error)
    cache_dir: str = field(default_factory=_cache_dir)
    disk_cache: bool = True
    dump_dir: str | None = field(default_factory=lambda: os.environ.get("TINYCOMPILE_DUMP") or None)
    log: frozenset[str] = field(default_factory=_channels)
    recompile_limit: int = 8
    verify_ir: bool = field(default_factory=_verify)
    dynamic: bool | None = None
    max_autotune: bool = False
    fallback_random: bool = False

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in _CHECKS:
            raise AttributeError(f"config has no entry {name!r}; it has {', '.join(_CHECKS)}")
        check, what = _CHECKS[name]
        if not check(value):
            raise ValueError(f"config.{name} can't be {value!r}: it is {what}")
        object.__setattr__(self, name, frozenset(value) if name == "log" else value)

    @contextlib.contextmanager
    def patch(self, **changes: Any) -> Iterator[Config]:
        """Change entries for the length of a ``with`` block."""
        before = {name: getattr(self, name) for name in changes}
        try:
            for name, value in changes.items():
                setattr(self, name, value)
            yield self
        finally:
            for name, value in before.items():
                setattr(self, name, value)

    def codegen_key(self) -> str:
        """The code-changing entries as text, for cache keys."""
        return " ".join(f"{name}={getattr(self, name)!r}" for name in _CODE_CHANGING)

    def __str__(self) -> str:
        return "\n".join(f"{f.name} = {getattr(self, f.name)!r}" for f in fields(self))


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def _are_channels(value: Any) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, str) and frozenset(value) <= CHANNELS


_FLAG = _is_bool, "True or False"
_CHECKS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "on_error": (lambda v: v in ("eager", "raise"), "'eager' or 'raise'"),
    "cache_dir": (lambda v: isinstance(v, str), "a path, as text"),
    "disk_cache": _FLAG,
    "dump_dir": (lambda v: v is None or isinstance(v, str), "a path, as text, or None"),
    "log": (_are_channels, f"a set of names out of {', '.join(sorted(CHANNELS))}"),
    "recompile_limit": (lambda v: isinstance(v, int) and not isinstance(v, bool) and v >= 1, "a whole number from 1 on"),
    "verify_ir": _FLAG,
    "dynamic": (lambda v: v is None or isinstance(v, bool), "None, True or False"),
    "max_autotune": _FLAG,
    "fallback_random": _FLAG,
}

config = Config()
