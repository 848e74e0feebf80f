"""The table of instruction handlers, gathered from the families."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tinycompile.capture.opcodes import building, calling, control, exceptions, imports, matching, names, operators, stack

Handler = Callable[[Any, Any, Any], None]

HANDLERS: dict[str, Handler] = {
    **stack.HANDLERS,
    **names.HANDLERS,
    **imports.HANDLERS,
    **operators.HANDLERS,
    **building.HANDLERS,
    **control.HANDLERS,
    **calling.HANDLERS,
    **exceptions.HANDLERS,
    **matching.HANDLERS,
}
