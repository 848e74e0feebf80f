"""Choices in the wrapper: a function for each way to compute the same, and a call of the one that was found fastest.

``name_by_library`` makes the library call and launches the kernels around it; ``name_by_<kernel>`` launches one generated
kernel. ``call`` calls ``name``, which is a contest of them until it is settled: see ``runtime/contest.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from tinycompile.ir.plan import Alloc, Choice
from tinycompile.ir.source import ChoiceSource, KernelSource

if TYPE_CHECKING:
    from tinycompile.codegen.wrapper import Wrapper

TF32 = "torch.backends.cuda.matmul.allow_tf32"


def described(choice: Choice, kernels: Sequence[KernelSource]) -> ChoiceSource:
    """The names of a choice's functions."""
    ways = tuple((way_name(k.name), k.name) for k in kernels)
    filled = tuple(i for i, b in enumerate(_buffers(choice)) if b in choice.writes)
    return ChoiceSource(call_name(choice), library_name(choice), ways, filled)


def call_name(choice: Choice) -> str:
    """What the wrapper calls."""
    return f"{choice.name}_or_library"


def library_name(choice: Choice) -> str:
    """The function that takes the library's way."""
    return f"{choice.name}_by_library"


def way_name(kernel: str) -> str:
    """The function that launches one kernel."""
    return f"by_{kernel}"


def write_functions(wrapper: Wrapper, choice: Choice, kernels: Sequence[KernelSource]) -> None:
    """A function for each way, with the buffers and sizes as parameters."""
    out = wrapper.out
    given = ", ".join(["queue", *_given(wrapper, choice)])
    results = ", ".join(wrapper.name(n) for n in choice.lasting)
    with out.block(f"def {library_name(choice)}({given}):"):
        for step in choice.library:
            wrapper.step(step)
        if results:
            out.line(f"return {results}")
    out.lines("", "")
    for kernel in kernels:
        with out.block(f"def {way_name(kernel.name)}({given}):"):
            for name in choice.lasting:
                wrapper.step(Alloc(name))
            out.line(f"{kernel.name}({', '.join(['queue', *(wrapper.kernel_arg(a) for a in kernel.args)])})")
            if results:
                out.line(f"return {results}")
        out.lines("", "")


def write_call(wrapper: Wrapper, choice: Choice, tf32: bool) -> None:
    """The call; a product of float32 whose precision was chosen since takes the library's way."""
    given = ", ".join(["queue", *_given(wrapper, choice)])
    results = ", ".join(wrapper.name(n) for n in choice.lasting)
    name = call_name(choice)
    if any(wrapper.buffers[n].meta.dtype == torch.float32 for n in choice.operands):
        name = f"({name} if {TF32} is {tf32} else {library_name(choice)})"
    wrapper.out.line(f"{results} = {name}({given})" if results else f"{name}({given})")


def _given(wrapper: Wrapper, choice: Choice) -> list[str]:
    """What both ways take: buffers that exist before, memory for results, sizes."""
    return [*map(wrapper.name, _buffers(choice)), *(s.symbol for s in wrapper.plan.sizes)]


def _buffers(choice: Choice) -> list[str]:
    return [b for b in choice.touched if b not in choice.lasting]
