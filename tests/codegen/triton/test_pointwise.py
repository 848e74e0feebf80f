"""Pointwise nests: layouts, broadcasting, masks, indirect loads, symbolic sizes, in-place and atomic stores."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from tests.codegen.triton.harness import check, emitted, interpret, offline_ok
from tests.codegen.triton.nests import F32, Build, Case
from tinycompile.base import expr as ex
from tinycompile.base.errors import BackendError, KernelError
from tinycompile.base.expr import sym

pytestmark = pytest.mark.cpu


def add(name: str, *operands: torch.Tensor, out_strides: tuple[int, ...] | None = None, dtype: torch.dtype = F32) -> Case:
    """The broadcast sum of some tensors."""
    shape = torch.broadcast_shapes(*(o.shape for o in operands))
    b = Build(name, **{f"i{d}": n for d, n in enumerate(shape)})
    index = [b.axis(f"i{d}") for d in range(len(shape))]
    total = ""
    for k, o in enumerate(operands):
        b.input(f"x{k}", o)
        lead = len(shape) - o.dim()
        value = b.load(f"x{k}", *(0 if o.shape[d] == 1 else index[lead + d] for d in range(o.dim())))
        total = b.op("add", total, value) if total else value
    b.output("out", shape, dtype, out_strides)
    b.store("out", total, *index)
    return b.case()


def rand(*shape: int) -> torch.Tensor:
    torch.manual_seed(sum(shape))
    return torch.randn(shape)


LAYOUTS = {
    "contiguous": lambda: (rand(37, 53), rand(37, 53)),
    "scalar": lambda: (rand(37, 53), torch.tensor(2.0)),
    "zero_dim": lambda: (torch.tensor(1.0), torch.tensor(2.0)),
    "one": lambda: (rand(1, 1), rand(1, 1)),
    "empty": lambda: (rand(0, 5), rand(5)),
    "bias": lambda: (rand(37, 53), rand(53)),
    "column": lambda: (rand(37, 53), rand(37, 1)),
    "outer": lambda: (rand(37, 1), rand(53)),
    "transposed": lambda: (rand(53, 37).t(), rand(37, 53)),
    "transposed_large": lambda: (rand(130, 70).t(), rand(70, 130)),
    "both_transposed": lambda: (rand(53, 37).t(), rand(53, 37).t()),
    "transposed_batch": lambda: (rand(3, 40, 33).transpose(1, 2), rand(3, 33, 40)),
    "permuted": lambda: (rand(4, 20, 33).permute(1, 2, 0), rand(20, 33, 4)),
    "strided": lambda: (rand(37, 106)[:, ::2], rand(74, 53)[::2]),
    "offset": lambda: (rand(100)[1:98], rand(97)),
    "expanded": lambda: (rand(1, 53).expand(37, 53), rand(37, 53)),
    "channels_last": lambda: (rand(2, 5, 7, 8).contiguous(memory_format=torch.channels_last), rand(5, 1, 1)),
    "middle": lambda: (rand(3, 5, 7), rand(5, 1)),
    "tiny_inner": lambda: (rand(100, 3), rand(3)),
    "exact_blocks": lambda: (rand(64, 1024), rand(1024)),
    "prime": lambda: (rand(1000003), rand(1000003)),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout: str) -> None:
    check(add(layout, *LAYOUTS[layout]()))


def test_output_in_another_order() -> None:
    check(add("channels_last_out", rand(2, 5, 7, 8), out_strides=(280, 1, 40, 5)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_rounds_once(dtype: torch.dtype) -> None:
    source = check(add("half", rand(33, 65).to(dtype), rand(65).to(dtype), dtype=dtype), rtol=0.0)
    assert ".to(tl.float32)" in source.text


def test_contiguous_operands_need_one_dimension_and_no_division() -> None:
    text = emitted(add("flat", rand(8, 128, 64), rand(8, 128, 64))).text
    assert "//" not in text and "%" not in text and "mask" not in text


def test_rows_by_columns_divide_only_the_program_id() -> None:
    text = emitted(add("rows", rand(512, 4096), rand(4096))).text
    assert text.count("//") == 1 and "mask" not in text


def test_masked_loads() -> None:
    """out = cat(a, b) padded by two zeros on the left."""
    for n in (5, 64):
        b = Build("cat_pad", i0=7, i1=2 * n + 2)
        b.input("a", rand(7, n))
        b.input("b", rand(7, n))
        b.output("out", (7, 2 * n + 2), F32)
        i, j = b.axis("i0"), b.axis("i1")
        a = b.load("a", i, j - 2, mask=(j - 2, n + 1 - j))
        c = b.load("b", i, j - n - 2, mask=(j - n - 2,), other=0.5)
        b.store("out", b.op("add", a, c), i, j)
        check(b.case())


def test_masks_on_other_axes_than_the_index() -> None:
    b = Build("triangle", i0=33, i1=40)
    b.input("v", rand(40))
    b.output("out", (33, 40), F32)
    i, j = b.axis("i0"), b.axis("i1")
    b.store("out", b.load("v", j, mask=(i - j,), other=-1.0), i, j)
    check(b.case())


def test_negative_numerators_divide_as_python_does() -> None:
    b = Build("floors", i0=50)
    b.output("q", (50,), torch.int64)
    b.output("r", (50,), torch.int64)
    i = b.axis("i0")
    b.store("q", b.index(ex.floordiv(i - 20, 7)), i)
    b.store("r", b.index(ex.mod(i * 3 - 20, 7)), i)
    check(b.case())


def test_index_values() -> None:
    b = Build("arange", i0=9, i1=11)
    b.output("out", (9, 11), torch.int64)
    b.output("low", (9, 11), torch.float32)
    i, j = b.axis("i0"), b.axis("i1")
    b.store("out", b.index(ex.minimum(i * 100 + j, 300)), i, j)
    b.store("low", b.index(ex.maximum(i - j, 0), torch.float32), i, j)
    check(b.case())


def embedding(ids: torch.Tensor, table: torch.Tensor) -> Case:
    b = Build("embedding", i0=len(ids), i1=table.shape[1])
    b.input("ids", ids)
    b.input("table", table)
    b.output("out", (len(ids), table.shape[1]), F32)
    i, j = b.axis("i0"), b.axis("i1")
    row = b.load("ids", i)
    b.store("out", b.load("table", sym(row, 0, table.shape[0]), j), i, j)
    return b.case()


@pytest.mark.parametrize("width", [64, 37])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32], ids=str)
def test_indirect_loads(width: int, dtype: torch.dtype) -> None:
    check(embedding(torch.randint(0, 19, (45,), dtype=dtype), rand(19, width)))


@pytest.mark.parametrize("index", [-5, 4, 1 << 40])
def test_indirect_loads_out_of_bounds_are_refused(index: int) -> None:
    case = embedding(torch.tensor([0, 3, index, 2]), rand(4, 8))
    with pytest.raises(KernelError, match="an index is out of range"):
        interpret(case, emitted(case))


def test_gather_along_the_last_axis() -> None:
    b = Build("gather", i0=6, i1=5)
    b.input("x", rand(6, 100))
    b.input("index", torch.randint(0, 100, (6, 5)))
    b.output("out", (6, 5), F32)
    i, j = b.axis("i0"), b.axis("i1")
    b.store("out", b.load("x", i, sym(b.load("index", i, j), 0, 100)), i, j)
    check(b.case())


def test_atomic_add_of_one_value() -> None:
    b = Build("atomic_one", i0=1)
    b.input("x", rand(1))
    b.input("index", torch.tensor([2]))
    b.output("out", (7,), F32)
    b.store("out", b.load("x", 0), sym(b.load("index", 0), 0, 7), mode="atomic_add")
    check(b.case())
    offline_ok(emitted(b.case()), 90)


def test_atomic_add_scatters() -> None:
    b = Build("scatter_add", i0=200)
    b.input("index", torch.randint(0, 7, (200,)))
    b.input("x", rand(200))
    b.output("out", (7,), F32)
    i = b.axis("i0")
    b.store("out", b.load("x", i), sym(b.load("index", i), 0, 7), mode="atomic_add")
    assert len(check(b.case(), rtol=1e-5, atol=1e-5).configs) == 1


def test_in_place() -> None:
    b = Build("in_place", i0=100)
    b.input("x", rand(100))
    b.output("old", (100,), F32)
    v = b.load("x", b.axis("i0"))
    b.store("old", v, b.axis("i0"))
    b.store("x", b.op("mul", v, b.const(2.0)), b.axis("i0"))
    assert len(check(b.case()).configs) == 1


def symbolic(sizes: dict[str, int], *shape_of_x: str) -> Case:
    """x * 2 + bias, all extents symbolic."""
    symbols = {n: sym(n, 2) for n in sizes}
    b = Build("symbolic", sizes, **{f"i{d}": symbols[n] for d, n in enumerate(shape_of_x)})
    x = rand(*(sizes[n] for n in shape_of_x))
    shape = tuple(symbols[n] for n in shape_of_x)
    strides = [ex.product(shape[d + 1 :]) for d in range(len(shape))]
    b.input("x", x, shape, tuple(strides))
    b.input("bias", rand(sizes[shape_of_x[-1]]), shape[-1:], (1,))
    b.output("out", shape, F32)
    index = [b.axis(f"i{d}") for d in range(len(shape))]
    b.store("out", b.op("add", b.op("mul", b.load("x", *index), b.const(2.0)), b.load("bias", index[-1])), *index)
    return b.case()


def test_one_kernel_serves_several_sizes() -> None:
    texts = {check(symbolic({"s0": m, "s1": n}, "s0", "s1")).text for m, n in ((5, 300), (64, 300), (31, 257))}
    assert len(texts) <= 2
    check(symbolic({"s0": 3, "s1": 4, "s2": 50}, "s0", "s1", "s2"))


def test_symbolic_flat_size_branches_to_an_unmasked_body() -> None:
    s = sym("s0", 2)
    b = Build("dynamic", {"s0": 5000}, i0=s)
    b.input("x", rand(5000), (s,), (1,))
    b.output("out", (s,), F32)
    b.store("out", b.op("mul", b.load("x", b.axis("i0")), b.const(3.0)), b.axis("i0"))
    source = check(b.case())
    assert "if (tl.program_id(0) + 1) * BLOCK <= s0:" in source.text
    assert [a.name for a in source.args if a.kind == "size"] == ["s0"]


def test_symbolic_reduction() -> None:
    s, t = sym("s0", 2), sym("s1", 2)
    for rows, cols in ((5, 3000), (300, 20), (2, 7)):
        b = Build("dynamic_sum", {"s0": rows, "s1": cols}, i0=s, i1=(t, "reduction"))
        b.input("x", rand(rows, cols), (s, t), (t, 1))
        b.output("out", (s,), F32)
        b.output("best", (s,), torch.int64)
        b.output("mean", (s,), F32)
        x = b.load("x", b.axis("i0"), b.axis("i1"))
        b.store("out", b.reduce("sum", x, "i1"), b.axis("i0"))
        b.store("best", b.reduce("argmax", x, "i1"), b.axis("i0"))
        b.store(
            "mean", b.op("div", b.reduce("welford", x, "i1")[0], b.op("cast", b.const(t, torch.int64), dtype=F32)), b.axis("i0")
        )
        check(b.case(), rtol=1e-4, atol=1e-4)


def test_far_offsets_use_64_bit_indices() -> None:
    b = Build("far", i0=3, i1=64)
    b.input("x", torch.empty_strided((3, 64), (64, 1)), strides=(2**31, 1))
    b.output("out", (3, 64), F32)
    b.store("out", b.load("x", b.axis("i0"), b.axis("i1")), b.axis("i0"), b.axis("i1"))
    assert ".to(tl.int64)" in emitted(b.case()).text
    near = emitted(add("near", rand(3, 64)))
    assert "int64" not in near.text


def test_unsupported_reductions_are_refused_by_name() -> None:
    b = Build("two_sets", i0=(4, "reduction"), i1=(5, "reduction"))
    b.input("x", rand(4, 5))
    b.output("out", (4,), F32)
    x = b.load("x", b.axis("i0"), b.axis("i1"))
    b.store("out", b.reduce("sum", x, "i1"), b.axis("i0"))
    with pytest.raises(BackendError, match="two_sets: one Triton kernel reduces over one set of axes"):
        emitted(b.case())


def test_a_kernel_may_have_the_name_of_a_helper() -> None:
    for name in ("tanh", "exp"):
        b = Build(name, i0=40)
        b.input("x", rand(40))
        b.output("out", (40,), F32)
        b.store("out", b.op("tanh", b.op("exp", b.load("x", b.axis("i0")))), b.axis("i0"))
        check(b.case())


def test_buffers_may_have_the_names_of_index_variables() -> None:
    for name in ("i", "row", "col", "program", "i_mask"):
        b = Build("gather", i0=6, i1=5)
        b.input("x", rand(6, 100))
        b.input(name, torch.randint(0, 100, (6, 5)))
        b.output("out", (6, 5), F32)
        i, j = b.axis("i0"), b.axis("i1")
        index = b.load(name, i, j)
        b.body[-1] = dataclasses.replace(b.body[-1], name=name)
        b.store("out", b.load("x", i, sym(name, 0, 100)), i, j)
        check(b.case())


def test_half_results_are_approximated_only_where_nothing_jumps() -> None:
    x = torch.arange(1, 400).bfloat16()
    for jump in (True, False):
        b = Build("half_floor", i0=len(x))
        b.input("x", x)
        b.output("out", x.shape, torch.bfloat16)
        q = b.op("div", b.load("x", b.axis("i0")), b.const(3.0))
        b.store("out", b.op("floor", q) if jump else q, b.axis("i0"))
        assert ("div_rn" in check(b.case(), rtol=0.0).text) == jump
