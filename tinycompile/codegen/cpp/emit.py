"""``emit_kernel``: one Kernel of a plan as one C++ function; ``prelude``: the text that all functions of a plan share.

    extern "C" int kernel_<name>(void** pointers, const int64_t* sizes, int threads)

``pointers`` are the buffers' first elements and ``sizes`` the size symbols' values, both in the order of
``KernelSource.args``. It returns 0, or bits that say why torch itself must redo the call (``tc::INDEX_OUT_OF_RANGE``, ...).
The prefix keeps a kernel called ``exp`` or ``long`` from being C's.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from pathlib import Path

from tinycompile.base import expr as ex
from tinycompile.base.target import Target
from tinycompile.codegen.cpp.analysis import FlatNest, defined, expressions, flatten, locate, loops_of, operands
from tinycompile.codegen.cpp.loopnest import LoopNest
from tinycompile.codegen.cpp.names import Names
from tinycompile.codegen.cpp.scalars import MEMORY_TYPES
from tinycompile.codegen.cpp.schedule import schedule
from tinycompile.codegen.cpp.statements import Statements
from tinycompile.codegen.writer import Writer
from tinycompile.ir.loops import Const, Statement, Store
from tinycompile.ir.plan import Kernel, Plan
from tinycompile.ir.source import KernelArg, KernelSource

_PRELUDE = ("base.h", "float8.h", "math.h")


@functools.cache
def prelude(target: Target) -> str:
    """The shared header text: conversions, integer arithmetic, vector math. It includes <stdint.h> and <omp.h> alone."""
    folder = Path(__file__).parent / "prelude"
    return f"// for {target.arch}\n" + "\n".join((folder / name).read_text(encoding="utf-8") for name in _PRELUDE)


def emit_kernel(kernel: Kernel, plan: Plan, target: Target, name: str) -> KernelSource:
    """Generate ``kernel`` as the function ``kernel_<name>``. Raises BackendError for a nest that this backend can't do."""
    return _Function(kernel, plan, target, name).source()


class _Function:
    def __init__(self, kernel: Kernel, plan: Plan, target: Target, name: str) -> None:
        self.kernel, self.plan, self.target, self.name = kernel, plan, target, name
        self.buffers = plan.named
        self.flat: FlatNest = flatten(kernel.nest, self.buffers)
        self.names, self.out = Names(), Writer("//")
        self.lines = plan.places
        self.pointers = tuple(dict.fromkeys((*kernel.reads, *kernel.writes)))
        self.sizes = self._size_symbols()

    def _size_symbols(self) -> tuple[str, ...]:
        """Size symbols that the code mentions, in the plan's order."""
        axes = {a.name for a in self.flat.axes}
        dims = [a.extent for a in self.flat.axes]
        for s in self.flat.body:
            dims += [*expressions(s), *([s.value] if isinstance(s, Const) and isinstance(s.value, ex.Expr) else [])]
        found = {t.name for d in dims for t in ex.symbols(d)} - axes
        found |= {t.name for d in dims for s in ex.symbols(d) if s.stop is not None for t in ex.symbols(s.stop)}
        return tuple(b.symbol for b in self.plan.sizes if b.symbol in found)

    def source(self) -> KernelSource:
        out = self.out
        for origin in self.kernel.nest.origins:
            out.comment(self._place(origin))
        with out.block(f'extern "C" int kernel_{self.name}(void** pointers, const int64_t* sizes, int threads) {{', "}"):
            self._parameters()
            out.line("int fault = 0;")
            self._groups()
            out.line("return fault;")
        return KernelSource(
            self.name,
            "cpp",
            out.text(),
            self._args(),
            bytes_moved=self.kernel.bytes_moved,
            lines=tuple(f"{loc.file}:{loc.line}" for o in self.kernel.nest.origins if (loc := self.lines.get(o)) is not None),
            why=self.kernel.why,
        )

    def _place(self, origin: str) -> str:
        loc = self.lines.get(origin)
        return origin if loc is None else f"{origin}: {Path(loc.file).name}:{loc.line}"

    def _args(self) -> tuple[KernelArg, ...]:
        pointers = (KernelArg(b, "pointer", str(self.buffers[b].meta.dtype).removeprefix("torch.")) for b in self.pointers)
        sizes = (KernelArg(s, "size", "int64", ex.sym(s, 2)) for s in self.sizes)
        return (*pointers, *sizes)

    def _parameters(self) -> None:
        for i, buffer in enumerate(self.pointers):
            kind = MEMORY_TYPES[self.buffers[buffer].meta.dtype]
            const = "" if buffer in self.kernel.writes else "const "
            variable = self.names.buffer(buffer)
            self.out.line(f"{const}{kind}* __restrict {variable} = ({const}{kind}*)pointers[{i}];")
        for i, size in enumerate(self.sizes):
            self.out.line(f"const int64_t {self.names.value(size)} = sizes[{i}];")

    def _groups(self) -> None:
        """One set of loops for the stores at each set of parallel axes; the first statement of a group decides its place."""
        flat, body = self.flat, self.flat.body
        axes = frozenset(a.name for a in flat.axes)
        parallel = frozenset(a.name for a in flat.axes if a.kind == "parallel")
        at = locate(body, axes)
        groups: dict[frozenset[str], list[int]] = {}
        for i, s in enumerate(body):
            if isinstance(s, Store):
                groups.setdefault(loops_of(s, at, axes) & parallel, []).append(i)
        dtypes = {n: self.buffers[n].meta.dtype for n in self.pointers}
        for here, roots in groups.items():
            text = Statements(flat, dtypes, self.lines, self.names, self.out)
            plan = schedule(flat, self._closure(roots), here, dict(self.plan.hints), self.target)
            with self.out.block("{", "}") if len(groups) > 1 else contextlib.nullcontext():
                LoopNest(flat, plan, text, self.names, self.out).write(roots)

    def _closure(self, roots: Sequence[int]) -> list[Statement]:
        """The statements that a group needs."""
        body = self.flat.body
        wanted: set[str] = set()
        found = []
        for i in range(len(body) - 1, -1, -1):
            s = body[i]
            from_here = i in roots or (not isinstance(s, Store) and any(n in wanted for n in defined(s)))
            if from_here:
                found.append(s)
                wanted |= set(operands(s)) | {t.name for d in expressions(s) for t in ex.symbols(d)}
        return found[::-1]
