"""Runs hand-written nests as C++: all cases of a module in two translation units; and what a right answer is.

A float result is right when its error against the nest in float64 is at most twice that of the numpy interpreter in the nest's own
precision, plus a few units in the last place of the largest value. All else is equal exactly.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.codegen.triton.nests import Case
from tinycompile.base import expr as ex
from tinycompile.base.target import Target
from tinycompile.codegen.cpp.emit import emit_kernel, prelude
from tinycompile.ir.loops import Loops, Reduce, Scan, Store
from tinycompile.ir.loops_reference import run_loops
from tinycompile.ir.source import KernelSource
from tinycompile.runtime import cpp_build
from tinycompile.runtime.cpp_build import Launcher, compile_cpp, cpu_target, launcher, load

# This machine's vector extension, and none: half the width or less, and no fused multiply-add.
TARGETS = {"machine": cpu_target(), "generic": dataclasses.replace(cpu_target(), arch="generic", vector=16)}
_PROMOTE = {torch.float32: torch.float64}


def made_for(monkeypatch: pytest.MonkeyPatch, **facts: Any) -> None:
    """From now on code is made for this machine but for these fields of its Target."""
    target = dataclasses.replace(cpu_target(), **facts)
    monkeypatch.setattr(cpp_build, "cpu_target", lambda: target)


class Compiled:
    """The kernels of some cases, built together, for this machine's target or another that it can run."""

    def __init__(self, cases: Iterable[Case], folder: Path, target: Target | None = None) -> None:
        target = target or cpu_target()
        self.cases = {c.name: c for c in cases}
        self.sources: dict[str, KernelSource] = {}
        for case in self.cases.values():
            self.sources[case.name] = emit_kernel(case.plan.kernels[0], case.plan, target, case.name)
        self.launchers: dict[str, Launcher] = {}
        names = list(self.sources)
        halves = [half for half in (names[::2], names[1::2]) if half]

        def build(half: list[str]) -> None:
            text = "\n\n".join([prelude(target), *(self.sources[n].text for n in half)])
            library = load(compile_cpp(text, target, folder))
            self.launchers.update({n: launcher(self.sources[n], library) for n in half})

        with ThreadPoolExecutor(2) as pool:
            list(pool.map(build, halves))

    def run(self, name: str, inputs: Sequence[torch.Tensor] | None = None, start: float = 0) -> list[torch.Tensor]:
        """The outputs of a case, in order, on its own inputs or others; fresh memory is filled with ``start``."""
        case, source = self.cases[name], self.sources[name]
        inputs = case.inputs if inputs is None else inputs
        memory = dict(zip(case.loops.inputs, inputs, strict=True))
        sizes = {b.symbol: memory[b.input].shape[b.dim] for b in case.loops.sizes if b.dim is not None}
        for b in case.loops.buffers:
            if b.role == "output":
                shape, strides = ([ex.evaluate(d, sizes) for d in dims] for dims in (b.meta.shape, b.meta.strides))
                memory[b.name] = torch.empty_strided(shape, strides, dtype=b.meta.dtype).fill_(start)
        args = [memory[a.name] if a.kind == "pointer" else ex.evaluate(a.value, sizes) for a in source.args]
        self.launchers[name](0, *args)
        return [memory[b.name] for b in case.loops.buffers if b.role == "output"]

    def check(self, name: str, inputs: Sequence[torch.Tensor] | None = None) -> None:
        """Run a case and compare every output."""
        case = self.cases[name]
        inputs = case.inputs if inputs is None else list(inputs)
        got = self.run(name, inputs)
        near = run_loops(case.loops, inputs)
        exact = run_loops(promoted(case.loops), [_promote(t) for t in inputs])
        for i, (g, n, e) in enumerate(zip(got, near, exact, strict=True)):
            assert_right(g, n, e, f"{name}, output {i}\n{self.sources[name].text}")


def promoted(loops: Loops) -> Loops:
    """The same loops with float64 in place of float32; half buffers stay."""

    def statement(s: Any) -> Any:
        if isinstance(s, (Reduce, Scan)):
            return dataclasses.replace(s, dtypes=tuple(_PROMOTE.get(d, d) for d in s.dtypes))
        return s if isinstance(s, Store) else dataclasses.replace(s, dtype=_PROMOTE.get(s.dtype, s.dtype))

    nest = loops.steps[0]
    buffers = tuple(
        dataclasses.replace(b, meta=dataclasses.replace(b.meta, dtype=_PROMOTE.get(b.meta.dtype, b.meta.dtype)))
        for b in loops.buffers
    )
    steps = (dataclasses.replace(nest, body=tuple(statement(s) for s in nest.body)),)
    return dataclasses.replace(loops, buffers=buffers, steps=steps)


def _promote(t: torch.Tensor) -> torch.Tensor:
    if t.dtype not in _PROMOTE:
        return t
    wide = torch.empty_strided(t.shape, t.stride(), dtype=torch.float64)
    return wide.copy_(t) if 0 not in t.stride() else t.to(torch.float64).as_strided(t.shape, t.stride())


def assert_right(got: torch.Tensor, near: torch.Tensor, exact: torch.Tensor, what: str) -> None:
    """See the module's docstring."""
    assert got.shape == near.shape and got.dtype == near.dtype, what
    if not got.dtype.is_floating_point:
        assert torch.equal(got, near), f"{what}\ngot {got}\nwant {near}"
        return
    g, n, e = got.double(), near.double(), exact.double()
    finite = n.isfinite() & e.isfinite()
    assert torch.equal(g.isnan(), n.isnan()), f"NaN differs: {what}\ngot {got}\nwant {near}"
    other = n.isinf() & e.isinf()
    assert torch.equal(g[other], n[other]), f"infinities differ: {what}"
    if not finite.any():
        return
    g, n, e = g[finite], n[finite], e[finite]
    unit = e.abs().max().item() * torch.finfo(got.dtype).eps
    ulps = 64 if got.dtype == torch.float64 else 4  # nothing here is more exact than float64
    worst, allowed = (g - e).abs().max().item(), 2 * (n - e).abs().max().item() + ulps * unit + 1e-300
    assert worst <= allowed, f"error {worst:.3e}, allowed {allowed:.3e}: {what}"


@contextlib.contextmanager
def threads_of(count: int) -> Iterator[None]:
    """torch, and so our kernels, run on so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
