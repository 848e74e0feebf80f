"""A launch of alike nests in Triton: a program finds the tensor that it works on, then runs the common body.

The tensors' blocks are numbered through. A tree of comparisons leads from the program's number to one tensor's pointers, so a
launch of thirty-two takes five of them, and the body is compiled once.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tinycompile.base.target import Target
from tinycompile.codegen.alike import Member, alike
from tinycompile.codegen.triton.emit import emit_kernel
from tinycompile.codegen.triton.tiles import OVERLAPPING
from tinycompile.codegen.writer import Writer
from tinycompile.ir.plan import Kernel, Plan
from tinycompile.ir.source import KernelSource

PROGRAM = "tl.program_id(0)"


def emit_horizontal(kernel: Kernel, plan: Plan, target: Target, name: str) -> KernelSource:
    """Generate ``kernel`` as a module whose function is ``name``. Raises BackendError for what is not covered."""
    common = alike(kernel, plan, f"{name}_one")
    one = emit_kernel(common.kernel, common.plan, target, common.kernel.nest.name)
    config = one.configs[0]
    pointers = [a for a in one.args if a.kind == "pointer"]
    places = {b: i for i, b in enumerate(common.members[0].buffers)}
    order = [places[a.name] for a in pointers]
    given = dict.fromkeys(m.buffers[i] for m in common.members for i in order)
    arguments = {a.name: a for a in pointers}
    by_place = {i: arguments[common.members[0].buffers[i]] for i in order}
    args = []
    for buffer in given:
        place = next(i for m in common.members for i in order if m.buffers[i] == buffer)
        args.append(replace(by_place[place], name=buffer))
    block = dict(config.constants).get("BLOCK", 1)
    tree = _Tree(tuple(common.members), tuple(order), block)
    if one.overlaps and tree.starts[-1] > OVERLAPPING * target.units:  # more programs than one of the tensors has
        return emit_horizontal(kernel, plan, replace(target, overlaps=False), name)
    sized = any(a.kind == "size" for a in one.args)
    text = _module(one, name, [f"{b}_ptr" for b in given], tree, sized)
    return replace(
        one, name=name, text=text, args=tuple(args), grid=(tree.starts[-1],), configs=(config,), bytes_moved=kernel.bytes_moved,
        why=f"{len(common.members)} tensors in one launch, each {one.why}. {kernel.why}".strip(),
    )  # fmt: skip


@dataclass(frozen=True)
class _Tree:
    """Which programs work on which member. ``order``: positions of the buffers that the common function takes."""

    members: tuple[Member, ...]
    order: tuple[int, ...]
    block: int

    @property
    def starts(self) -> list[int]:
        """The first program of each member, and the number of all."""
        found = [0]
        for m in self.members:
            found.append(found[-1] + -(-m.numel // self.block))
        return found

    @property
    def varying(self) -> list[int]:
        """The positions at which members have different buffers."""
        return [i for i in self.order if len({m.buffers[i] for m in self.members}) > 1]

    def write(self, out: Writer, low: int, high: int) -> None:
        """Choose among the members from ``low`` to before ``high``."""
        if high - low == 1:
            member = self.members[low]
            for i in self.varying:
                out.line(f"pointer_{i} = {member.buffers[i]}_ptr")
            out.line(f"first = tl.full([], {self.starts[low]}, tl.int32)")
            out.line(f"numel = tl.full([], {member.numel}, tl.int32)")
            return
        middle = (low + high) // 2
        with out.block(f"if program < {self.starts[middle]}:"):
            self.write(out, low, middle)
        with out.block("else:"):
            self.write(out, middle, high)


def _module(one: KernelSource, name: str, parameters: Sequence[str], tree: _Tree, sized: bool) -> str:
    """The common function's module, in which the program's number is a parameter, with the launched function behind it."""
    common = re.sub(rf"def {one.name}\(", f"def {one.name}(program, ", one.text.replace(PROGRAM, "program"), count=1)
    constants = [c for c, _ in one.configs[0].constants]
    out = Writer()
    out.lines("", "", "@triton.jit")
    with out.block(f"def {name}({', '.join([*parameters, *(f'{c}: tl.constexpr' for c in constants)])}):"):
        out.line(f"program = {PROGRAM}")
        tree.write(out, 0, len(tree.members))
        shared = {i: f"{tree.members[0].buffers[i]}_ptr" for i in tree.order if i not in tree.varying}
        taken = [shared.get(i, f"pointer_{i}") for i in tree.order]
        given = ["program - first", *taken, *(["numel"] if sized else []), *constants]
        out.line(f"{one.name}({', '.join(given)})")
    return common.rstrip("\n") + "\n" + out.text()
