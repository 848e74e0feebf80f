"""Errors of compiled code, and whether the call that met one can be done again in eager Python."""

from __future__ import annotations

import re
import traceback

from tinycompile.base.errors import KernelError
from tinycompile.compiler import CompiledGraph
from tinycompile.ir.effects import may_refuse, written
from tinycompile.runtime.build import uncounted, wrapper_file


def is_without_effect(error: Exception, compiled: CompiledGraph) -> bool:
    """Whether a graph failed before it wrote to its inputs. What writes waits for whatever may refuse the values that it is
    given: a kernel that checks them, or a library call."""
    if isinstance(error, KernelError) or not any(written(n) for n in compiled.graph.nodes):
        return True
    frames = traceback.extract_tb(error.__traceback__)
    source = compiled.source
    if source is None:  # op by op: writes come last
        return not any(f.name == uncounted.__name__ for f in frames)
    lines = source.wrapper.splitlines()
    failed = [lines[f.lineno - 1] for f in frames if f.filename == wrapper_file(source) and f.lineno is not None]
    called = (target for line in failed for name, _, target in source.externs if re.search(rf"\b{name}\(", line))
    return any(map(may_refuse, called))
