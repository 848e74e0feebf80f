"""Producers computed inside their readers: index maps, masks, indirect indices, rounding, and what stays out."""

from __future__ import annotations

import pytest
import torch

from tests.fuse.support import BF16, CPU, F32, Program, check, kernel_names, rules
from tinycompile.base import expr as ex
from tinycompile.base.device import Device
from tinycompile.base.target import H100
from tinycompile.fuse.planner import plan
from tinycompile.ir.loops import Const, Load, Scalar

pytestmark = pytest.mark.pure


def loads(p: object, buffer: str) -> list[Load]:
    return [s for k in p.kernels for s in k.nest.body if isinstance(s, Load) and s.buffer == buffer]  # type: ignore[attr-defined]


def casts(p: object, dtype: torch.dtype) -> int:
    body = [s for k in p.kernels for s in k.nest.body]  # type: ignore[attr-defined]
    return sum(isinstance(s, Scalar) and s.op == "cast" and s.dtype is dtype for s in body)


def test_a_chain_becomes_one_flat_kernel() -> None:
    p = Program()
    p.input("x", 4, 6)
    for k in range(5):
        p.map(f"y{k}", "exp" if k % 2 else "neg", f"y{k - 1}" if k else "x")
    found = check(p.loops("y4"))
    (kernel,) = found.kernels
    assert [a.extent for a in kernel.nest.axes] == [24]
    assert (kernel.reads, kernel.writes) == (("x",), ("y4",))
    assert kernel.bytes_moved == found.bytes_minimum == 2 * 24 * 4


def test_a_long_chain_needs_no_deep_recursion() -> None:
    p = Program()
    p.input("x", 3)
    for k in range(1200):
        p.map(f"y{k}", "neg", f"y{k - 1}" if k else "x")
    assert len(check(p.loops("y1199")).kernels) == 1


def test_a_flipped_read_moves_into_the_producer() -> None:
    p = Program()
    p.input("x", 4, 6)
    p.map("e", "exp", "x")
    m = p.nest("flip", 4, 6)
    p.buffer("flip", (4, 6))
    m.store("flip", m.load("e", m.i[0], 5 - m.i[1]), *m.i)
    m.done()
    found = check(p.loops("flip"))
    assert len(found.kernels) == 1
    assert loads(found, "e") == []


def test_a_masked_read_masks_the_producers_loads_and_selects_the_value() -> None:
    p = Program()
    p.input("x", 4, 6)
    p.map("e", "exp", "x")  # exp(0) is not the 7.0 that the mask asks for
    m = p.nest("pad", 4, 8)
    p.buffer("pad", (4, 8))
    m.store("pad", m.load("e", m.i[0], m.i[1] - 1, mask=(m.i[1] - 1, 6 - m.i[1]), other=7.0), *m.i)
    m.done()
    found = check(p.loops("pad"))
    assert len(found.kernels) == 1
    (load,) = loads(found, "x")
    assert len(load.mask) == 2


def test_masks_nest() -> None:
    p = Program()
    p.input("x", 4)
    for source, name, grown in (("x", "a", 6), ("a", "b", 8), ("b", "c", 10)):
        m = p.nest(name, grown)
        p.buffer(name, (grown,))
        inner = p.buffers[source].meta.shape[0]
        padded = m.load(source, m.i[0] - 1, mask=(m.i[0] - 1, inner - m.i[0]), other=1.0)
        m.store(name, m.op("exp", padded), *m.i)
        m.done()
    found = check(p.loops("c"))
    assert len(found.kernels) == 1


def test_indirect_indices_move_along() -> None:
    p = Program()
    p.input("table", 10, 6)
    p.input("ids", 4, dtype=torch.int64)
    p.map("scaled", "mul", "table", 2.0)
    p.map("next", "add", "ids", 1)
    m = p.nest("rows", 4, 6)
    p.buffer("rows", (4, 6))
    at = m.load("next", m.i[0])
    m.store("rows", m.load("scaled", ex.sym(at, 0, 10), m.i[1]), *m.i)
    m.done()
    found = check(p.loops("rows"))
    assert len(found.kernels) == 1
    assert found.kernels[0].bytes_moved == 4 * 8 + 24 * 4 + 24 * 4  # ids, the rows touched, the result


def test_equal_statements_are_shared() -> None:
    p = Program()
    p.input("x", 4, 6)
    p.map("e", "exp", "x")
    p.map("a", "neg", "e")
    p.map("b", "abs", "e")
    p.map("y", "add", "a", "b")
    (kernel,) = check(p.loops("y")).kernels
    assert [s.op for s in kernel.nest.body if isinstance(s, Scalar)].count("exp") == 1


def test_numbers_that_are_equal_but_not_the_same_stay_apart() -> None:
    p = Program()
    p.input("x", 4)
    p.map("a", "div", "x", 0.0)
    p.map("b", "div", "x", -0.0)
    p.map("y", "sub", "a", "b")
    check(p.loops("y"), [torch.tensor([1.0, 2.0, -3.0, 4.0])])


class TestHalf:
    def test_a_value_in_registers_is_not_rounded(self) -> None:
        p = Program()
        p.input("x", 64, dtype=BF16)
        p.map("a", "mul", "x", 1.01)
        p.map("y", "mul", "a", 1.01)
        found = check(p.loops("y"))
        assert casts(found, BF16) == 0
        assert casts(found, F32) == 1

    def test_a_value_that_is_stored_and_used_is_used_as_rounded(self) -> None:
        p = Program()
        p.input("x", 64, dtype=BF16)
        p.map("a", "mul", "x", 1.01)
        p.map("y", "mul", "a", 1.01)
        found = check(p.loops("a", "y"))
        assert len(found.kernels) == 1
        assert casts(found, BF16) == 1

    def test_a_copy_of_a_vanished_half_is_stored_unrounded_once(self) -> None:
        p = Program()
        p.input("x", 64, dtype=BF16)
        p.map("a", "mul", "x", 1.01)
        m = p.nest("copy", 64)
        p.buffer("copy", (64,), BF16)
        m.put(Load("v", BF16, "a", (63 - m.i[0],)), BF16)
        m.store("copy", "v", *m.i)
        m.done()
        assert casts(check(p.loops("copy")), BF16) == 0

    def test_a_cast_that_the_program_asks_for_stays(self) -> None:
        p = Program()
        p.input("x", 64)
        m = p.nest("y", 64)
        p.buffer("y", (64,))
        m.store("y", m.cast(m.cast(m.load("x", *m.i), BF16), F32), *m.i)
        m.done()
        p.map("z", "mul", "y", 3.0)
        assert casts(check(p.loops("z")), BF16) == 1

    def test_a_masked_half_is_selected_in_float32(self) -> None:
        p = Program()
        p.input("x", 6, dtype=BF16)
        p.map("a", "exp", "x", dtype=BF16)
        m = p.nest("pad", 8)
        p.buffer("pad", (8,), BF16)
        m.store("pad", m.op("neg", m.load("a", m.i[0], mask=(5 - m.i[0],), other=2.0)), *m.i)
        m.done()
        check(p.loops("pad"))
        check(p.loops("a", "pad"))


def test_constants_are_inlined_even_when_they_are_outputs() -> None:
    p = Program()
    p.input("x", 8, dtype=BF16)
    m = p.nest("third", 8)
    p.buffer("third", (8,), BF16)
    m.store("third", m.const(1 / 3), *m.i)
    m.done()
    p.map("y", "add", "x", "third")
    found = check(p.loops("third", "y"))
    assert loads(found, "third") == []
    rounded = torch.tensor(1 / 3, dtype=BF16).item()  # third is stored as bfloat16: it is used as rounded
    assert rounded in [s.value for k in found.kernels for s in k.nest.body if isinstance(s, Const)]


def test_a_heavy_producer_is_not_computed_again_for_each_row() -> None:
    p = Program()
    p.input("b", 4096)
    p.input("x", 8192, 4096)
    last = "b"
    for k in range(5):
        last = p.map(f"g{k}", "lgamma", last)
    p.map("y", "add", "x", last)
    found = plan(p.loops("y"), H100)
    assert len(found.kernels) == 2
    assert "recompute-cost" in rules(found, fused=False)


def test_what_memory_traffic_hides_is() -> None:
    p = Program()
    p.input("b", 4096)
    p.input("x", 8192, 4096)
    p.map("g", "lgamma", "b")
    p.map("y", "add", "x", "g")
    assert len(plan(p.loops("y"), H100).kernels) == 1


def test_doubling_reads_stop_before_the_code_explodes() -> None:
    p = Program()
    p.input("x", 64)
    last = "x"
    for k in range(12):
        m = p.nest(f"y{k}", 64)
        p.buffer(f"y{k}", (64,))
        m.store(f"y{k}", m.op("add", m.load(last, *m.i), m.load(last, 63 - m.i[0] if k % 2 else ex.mod(m.i[0] + 1, 64))), *m.i)
        m.done()
        last = f"y{k}"
    found = check(p.loops(last), rounding=1e-3)
    assert "too-many-copies" in rules(found, fused=False)
    assert max(len(k.nest.body) for k in found.kernels) < 200


def test_an_integer_division_is_not_run_on_points_that_a_mask_excludes() -> None:
    p = Program()
    p.input("a", 6, dtype=torch.int64)
    p.input("b", 6, dtype=torch.int64)
    p.map("q", "floordiv", "a", "b")
    m = p.nest("pad", 8)
    p.buffer("pad", (8,), torch.int64)
    m.store("pad", m.load("q", m.i[0], mask=(5 - m.i[0],)), *m.i)
    m.done()
    found = check(p.loops("pad"), [torch.arange(6), torch.arange(1, 7)])
    assert len(found.kernels) == 2
    assert "masked-fault" in rules(found, fused=False)


def test_what_is_read_before_an_overwrite_is_not_computed_after_it() -> None:
    from tinycompile.ir.loops import ExternCall, TensorView

    p = Program()
    p.input("x", 6)
    p.input("z", 6)
    p.map("y", "add", "x", 1.0)
    views = tuple(TensorView(b, p.buffers[b].meta) for b in ("x", "z"))
    p.steps.append(ExternCall("copy", "extern", "torch.Tensor.copy_", views, (), (None,), ("copy",)))
    m = p.nest("w", 6)
    p.buffer("w", (6,))
    m.store("w", m.load("y", 5 - m.i[0]), *m.i)
    m.done()
    found = check(p.loops("w"))
    assert "overwritten" in rules(found, fused=False)
    assert kernel_names(found)[0].startswith("y")


def test_devices_do_not_mix() -> None:
    p = Program()
    p.input("x", 6)
    p.map("y", "add", "x", 1.0)
    m = p.nest("z", 6)
    p.buffer("z", (6,), device=Device("cuda", 0))
    m.store("z", m.op("neg", m.load("y", *m.i)), *m.i)
    m.done()
    found = plan(p.loops("z"), H100)
    assert len(found.kernels) == 2
    assert "devices-differ" in rules(found, fused=False)
    assert found.device == Device("cuda", 0) != CPU
