"""Every exception and warning that tinycompile raises for reasons of its own."""

from __future__ import annotations


class TinycompileError(Exception):
    """Base of our own errors; a user's error keeps its own type."""


class GraphBreakError(TinycompileError):
    """Capture could not go on under ``fullgraph=True``."""


class BackendError(TinycompileError):
    """A backend could not build or load its code."""


class InternalError(TinycompileError):
    """A fault of ours. The frame runs eagerly unless ``config.on_error`` is ``"raise"``."""


class KernelError(TinycompileError):
    """A kernel refused its input (an index out of range, an integer division by zero); the call is redone eagerly."""


class VerifyError(InternalError):
    """An IR breaks its own rules; the message names the rule and the statement."""


class TinycompileWarning(UserWarning):
    """Base of our warnings."""


class RecompileLimitWarning(TinycompileWarning):
    """A function was compiled too often; it runs eagerly from here on."""


class FallbackWarning(TinycompileWarning):
    """Something was missing or failed; the answer is eager's."""


class DataDependentError(TinycompileError):
    """A program asked a tensor without data (fake or meta) for a value."""
