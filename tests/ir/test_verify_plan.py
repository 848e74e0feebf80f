"""The plan verifier: a good plan passes, each broken rule is named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from tinycompile.base import expr as ex
from tinycompile.base.device import Device
from tinycompile.base.errors import VerifyError
from tinycompile.base.meta import TensorMeta
from tinycompile.ir.loops import Axis, Buffer, ExternCall, Load, Nest, Scalar, Store, TensorView
from tinycompile.ir.plan import Alloc, Decision, Free, Kernel, Plan
from tinycompile.ir.plan_text import bytes_text, moved_text, print_plan
from tinycompile.ir.verify_plan import verify_plan

pytestmark = pytest.mark.pure

CPU, F32 = Device("cpu"), torch.float32
META = TensorMeta.contiguous((4,), F32, CPU)


def kernel(name: str, source: str, target: str) -> Kernel:
    i = ex.sym("i0", 0, 4)
    body = (Load("v", F32, source, (i,)), Scalar("w", F32, "exp", ("v",)), Store(target, (i,), "w"))
    return Kernel(Nest(name, (Axis("i0", 4),), body), (source,), (target,))


def good() -> Plan:
    buffers = (Buffer("x", META, "input"), *(Buffer(n, META) for n in "abc"), Buffer("y", META, "output"))
    call = ExternCall("call", "extern", "torch.relu", (TensorView("b", META),), (), ("c",))
    steps = (
        Alloc("a"), kernel("k0", "x", "a"), Alloc("b"), kernel("k1", "a", "b"), call, Free("b"),
        Alloc("y", reuses="a"), kernel("k2", "c", "y"), Free("c"),
    )  # fmt: skip
    decision = Decision("k0", "k1", False, "cycle", "because")
    return Plan("f", CPU, ("x",), (), buffers, steps, (TensorView("y", META),), (decision,))


def swapped(p: Plan, **at: object) -> Plan:
    """The plan with steps replaced by position: ``s3=...``; None drops the step."""
    steps = [at.get(f"s{k}", s) for k, s in enumerate(p.steps)]
    return replace(p, steps=tuple(s for s in steps if s is not None))  # type: ignore[arg-type]


def with_buffer(p: Plan, name: str, meta: TensorMeta) -> Plan:
    return replace(p, buffers=tuple(replace(b, meta=meta) if b.name == name else b for b in p.buffers))


BROKEN: dict[str, tuple[Callable[[Plan], Plan], str]] = {
    "written before it is made": (lambda p: swapped(p, s0=None, s6=Alloc("y")), "has no memory"),
    "read before it is written": (lambda p: swapped(p, s1=None), "a"),
    "used after free": (lambda p: swapped(p, s2=Alloc("b", reuses="a")), "no memory"),
    "made twice": (lambda p: swapped(p, s2=Alloc("a")), "exists already"),
    "freed twice": (lambda p: swapped(p, s8=Free("b")), "not alive"),
    "an output freed": (lambda p: swapped(p, s8=Free("y")), "input or an output"),
    "an input freed": (lambda p: swapped(p, s8=Free("x")), "input or an output"),
    "an input reused": (lambda p: swapped(p, s6=Alloc("y", reuses="x")), "input"),
    "a call's memory reused": (lambda p: swapped(p, s5=None, s6=Alloc("y", reuses="b")), "library call"),
    "another layout reused": (lambda p: with_buffer(p, "y", replace(META, strides=(2,))), "is not"),
    "an output not written": (lambda p: swapped(p, s7=None), "before it is written"),
    "wrong reads": (lambda p: swapped(p, s1=replace(kernel("k0", "x", "a"), reads=())), "says that it reads"),
    "wrong writes": (lambda p: swapped(p, s1=replace(kernel("k0", "x", "a"), writes=("b",))), "says that it writes"),
    "a name used twice": (lambda p: swapped(p, s3=kernel("k0", "a", "b")), "taken"),
    "a kernel called as a buffer": (lambda p: swapped(p, s3=kernel("x", "a", "b")), "taken"),
    "an unknown buffer": (lambda p: swapped(p, s8=Free("nothing")), "unknown buffer"),
    "a bad nest": (lambda p: swapped(p, s1=_bad_nest()), "used before"),
    "an unknown step": (lambda p: swapped(p, s8="step"), "unknown step"),
}  # fmt: skip


def _bad_nest() -> Kernel:
    k = kernel("k0", "x", "a")
    load, scalar, store = k.nest.body
    return replace(k, nest=replace(k.nest, body=(scalar, load, store)))


def test_a_good_plan_passes() -> None:
    verify_plan(good())


@pytest.mark.parametrize("case", BROKEN)
def test_broken(case: str) -> None:
    break_it, message = BROKEN[case]
    with pytest.raises(VerifyError, match=message):
        verify_plan(break_it(good()))


def test_print_is_python_and_says_why() -> None:
    text = print_plan(good())
    compile(text, "plan", "exec")
    for part in ("alloc(buf.y, reuses=buf.a)", "free(buf.c)", "torch.relu(buf.b)", "k0 + k1: not fused [cycle] because"):
        assert part in text


@pytest.mark.parametrize(
    ("moved", "text"),
    [
        ((1000, 0, 1000), "moved: 1 kB by kernels; inputs once and outputs once: 1 kB (1.00x)"),
        ((500, 1000, 1000), "moved: 500 bytes by kernels, 1 kB by library calls; inputs once and outputs once: 1 kB (1.50x)"),
        ((8, 0, 0), "moved: 8 bytes by kernels; inputs once and outputs once: 0 bytes"),
        ((ex.sym("s"), 4, 8), "moved: s bytes by kernels, 4 bytes by library calls; inputs once and outputs once: 8 bytes"),
    ],
)
def test_moved_text(moved: tuple[ex.Dim, ex.Dim, ex.Dim], text: str) -> None:
    assert moved_text(*moved) == text


def test_library_calls_move_operands_and_results_once() -> None:
    assert good().library_bytes == 2 * 4 * F32.itemsize  # relu reads b and makes c


@pytest.mark.parametrize(
    ("count", "text"), [(12, "12 bytes"), (4096, "4.1 kB"), (12_600_000, "12.6 MB"), (ex.sym("s") * 4, "4*s bytes")]
)
def test_bytes_text(count: ex.Dim, text: str) -> None:
    assert bytes_text(count) == text
