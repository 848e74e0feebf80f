"""When tinycompile itself fails: one warning that names a folder with what was made until then, and eager's answer."""

from __future__ import annotations

import itertools
import os
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from types import CodeType
from typing import Any

from tinycompile.base.artifacts import Artifacts
from tinycompile.base.errors import InternalError, TinycompileError
from tinycompile.base.logs import warn, warn_once
from tinycompile.base.raised import formatted, is_a, trace_of, words
from tinycompile.capture.breaks import Break
from tinycompile.capture.captured import uncaptured
from tinycompile.entries import CacheEntry
from tinycompile.ir.graph import Location

serial = itertools.count()  # of folders, so that none is written twice


def tell_of_fault(name: str, artifacts: Artifacts, what: str, then: str) -> None:
    """One warning, with the folder of what was made until then."""
    folder = write_artifacts(artifacts, Path(tempfile.gettempdir()) / f"tinycompile-error-{os.getpid()}-{next(serial)}")
    where = f"Artifacts: {folder}" if folder else "Its artifacts could not be written"
    warn(f"tinycompile failed on {name} ({what}); {then}. {where}")


def write_artifacts(artifacts: Artifacts, folder: Path) -> Path | None:
    """Write them for people; a folder that can't be written, or a text that can't be made, is one warning, not the user's
    problem."""
    try:
        return artifacts.write(folder)
    except Exception as error:  # noqa: BLE001  # lazy texts are made here, by any stage
        warn_once(f"artifacts can't be written to {folder.parent}: {error}")
        return None


def uncompiled(name: str, code: CodeType, eagerly: Callable[..., Any], error: Exception) -> CacheEntry:
    """Tell of an error that came up outside the graph's own stages, and run eagerly whatever no other code is for."""
    what = words(error)
    location = Location(code.co_filename, code.co_firstlineno, code.co_name)
    captured = uncaptured(code, Break("internal-error", what, location))
    artifacts = Artifacts()
    artifacts["error.txt"] = formatted(error)
    tell_of_fault(name, artifacts, what, "it runs eagerly")
    return CacheEntry(captured.guard, eagerly, captured, None, artifacts)


def is_the_users(error: Exception) -> bool:
    """Whether an error is meant for the user: a break under ``fullgraph``, a backend that can't work, a warning turned into an
    error."""
    return is_a(error, TinycompileError, Warning) and not is_a(error, InternalError)


def is_wrong_call(error: Exception) -> bool:
    """Whether a guard was never entered, for the arguments don't fit the function: Python's own TypeError."""
    frames = (frame for frame, _ in traceback.walk_tb(trace_of(error)))
    return is_a(error, TypeError) and all(frame.f_code.co_name != "guard" for frame in frames)
