"""Errors of compiled code, and whether the call that met one can be done again in eager Python."""

from __future__ import annotations

import re
import traceback

from tinycompile.backends import Backend
from tinycompile.base.errors import BackendError, KernelError
from tinycompile.base.raised import is_a, text_of, trace_of
from tinycompile.compiler import CompiledGraph
from tinycompile.ir.effects import may_refuse, written
from tinycompile.ir.graph import Graph
from tinycompile.runtime.build import uncounted
from tinycompile.runtime.linked import wrapper_file


def is_without_effect(error: Exception, compiled: CompiledGraph) -> bool:
    """Whether a graph failed before it wrote to its inputs. What writes waits for whatever may refuse the values that it is
    given: a kernel that checks them, or a library call."""
    if is_a(error, KernelError) or not any(written(n) for n in compiled.graph.nodes):
        return True
    frames = traceback.extract_tb(trace_of(error))
    source = compiled.source
    if source is None:  # op by op: writes come last
        return not any(f.name == uncounted.__name__ for f in frames)
    lines = source.wrapper.splitlines()
    failed = [lines[f.lineno - 1] for f in frames if f.filename == wrapper_file(source) and f.lineno is not None]
    called = (target for line in failed for name, _, target in source.externs if re.search(rf"\b{name}\(", line))
    return any(map(may_refuse, called))


_UNPACKING = re.compile(r"(too many|not enough) values to unpack|cannot unpack non-iterable")


def tell_of_misfit(error: Exception, backend: Backend, graph: Graph | None) -> None:
    """Raises BackendError where the code of the program's own backend did not return what the graph does."""
    if backend is None or graph is None or not _UNPACKING.match(text_of(error)):
        return
    if traceback.extract_tb(trace_of(error))[-1].filename.startswith("<tinycompile"):
        name, count = getattr(backend, "__name__", backend), len(graph.output.args[0])
        outputs = "1 output" if count == 1 else f"{count} outputs"
        raise BackendError(
            f"what backend {name!r} returned for {graph.name} must give a tuple of the graph's {outputs}: {error}"
        ) from error
