"""``Options``: what the decorator was given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType

from tinycompile.backends import Backend, lookup_backend
from tinycompile.selfcheck.checked import Policy, check_policy

MODES = ("default", "reduce-overhead", "max-autotune")


@dataclass(frozen=True)
class Options:
    """What the decorator was given, checked: see :func:`tinycompile.compile`.

    ``resume``: at a graph break, only the instruction that broke runs eagerly; else the whole frame does. ``force``: break
    before these instructions (code object, index) too; for tests."""

    backend: Backend = None
    mode: str = "default"
    fullgraph: bool = False
    dynamic: bool | None = None
    activation_memory_budget: float = 1.0
    verify: Policy = None
    resume: bool = True
    force: Callable[[CodeType, int], bool] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.activation_memory_budget, bool) or not isinstance(self.activation_memory_budget, (int, float)):
            raise TypeError(f"activation_memory_budget must be a number, not {self.activation_memory_budget!r}")
        if self.mode not in MODES:
            raise ValueError(f"mode must be one of {', '.join(MODES)}, not {self.mode!r}")
        if not isinstance(self.fullgraph, bool):
            raise TypeError(f"fullgraph must be True or False, not {self.fullgraph!r}")
        if self.dynamic is not None and not isinstance(self.dynamic, bool):
            raise TypeError(f"dynamic must be None, True or False, not {self.dynamic!r}")
        if not 0 <= self.activation_memory_budget <= 1:
            raise ValueError(f"activation_memory_budget must be between 0 and 1, not {self.activation_memory_budget!r}")
        check_policy(self.verify)
        lookup_backend(self.backend)  # an unknown name is an error where it was written, not at the first call
