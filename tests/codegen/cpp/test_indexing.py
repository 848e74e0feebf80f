"""Where kernels read and write: layouts, masks, indirect indices and their bounds, divided indices, symbolic sizes, several stores."""

from __future__ import annotations

import pytest
import torch

from tests.codegen.cpp.harness import Compiled
from tests.codegen.triton.nests import Build, Case
from tinycompile.base import expr as ex
from tinycompile.base.errors import KernelError
from tinycompile.base.expr import sym
from tinycompile.runtime.cpp_build import compiler

pytestmark = [pytest.mark.cpu, pytest.mark.skipif(compiler() is None, reason="no C++ compiler")]

F32, I64 = torch.float32, torch.int64
CASES: dict[str, Case] = {}


def keep(case: Case) -> Case:
    CASES[case.name] = case
    return case


def numbers(*shape: int, dtype: torch.dtype = F32) -> torch.Tensor:
    return (torch.arange(ex.product(shape)).reshape(shape) * 7 % 101 - 50).to(dtype)


def add_layouts(name: str, x: torch.Tensor, y: torch.Tensor, out_strides: tuple[int, ...] | None = None) -> Case:
    """x + 2y in any layout."""
    axes = {f"i{d}": n for d, n in enumerate(x.shape)}
    b = Build(name, **axes)
    b.input("x", x)
    b.input("y", y)
    at = [b.axis(a) for a in axes]
    r = b.op("add", b.load("x", *at), b.op("mul", b.load("y", *at), b.const(2.0)))
    b.output("out", x.shape, F32, out_strides)
    b.store("out", r, *at)
    return b.case()


for n, m in ((64, 64), (100, 37), (1, 50), (50, 1), (129, 257), (7, 5000)):
    keep(add_layouts(f"transposed_{n}_{m}", numbers(m, n).t(), numbers(n, m)))
    keep(add_layouts(f"both_transposed_{n}_{m}", numbers(m, n).t(), numbers(m, n).t()))
    keep(add_layouts(f"strided_{n}_{m}", numbers(n, 2 * m)[:, ::2], numbers(2 * n, m)[::2]))
    keep(add_layouts(f"broadcast_{n}_{m}", numbers(1, m).expand(n, m), numbers(n, 1).expand(n, m)))
    keep(add_layouts(f"into_columns_{n}_{m}", numbers(n, m), numbers(m, n).t(), (1, n)))
keep(add_layouts("channels_last", numbers(2, 5, 6, 17).permute(0, 3, 1, 2), numbers(2, 17, 5, 6)))
keep(add_layouts("permuted", numbers(40, 3, 50).permute(2, 1, 0), numbers(50, 3, 40)))
keep(add_layouts("scalar", torch.tensor(3.0), torch.tensor(4.0)))
keep(add_layouts("long", numbers(1, 300007)[0], numbers(1, 300007)[0]))


def halves_swapped() -> Case:
    """Rotary's rotate_half: cat(-x[32:], x[:32]) by masked loads."""
    b = Build("halves_swapped", r=33, c=64)
    b.input("x", numbers(33, 64))
    r, c = b.axis("r"), b.axis("c")
    high = b.load("x", r, c + 32, mask=(31 - c,), other=0.0)
    low = b.load("x", r, c - 32, mask=(c - 32,), other=0.0)
    b.output("out", (33, 64), F32)
    b.store("out", b.op("sub", low, high), r, c)
    return b.case()


def padded() -> Case:
    b = Build("padded", r=9, c=100)
    b.input("x", numbers(5, 90))
    r, c = b.axis("r"), b.axis("c")
    v = b.load("x", r - 2, c - 4, mask=(r - 2, 6 - r, c - 4, 93 - c), other=-1.5)
    b.output("out", (9, 100), F32)
    b.store("out", v, r, c)
    return b.case()


def embedding(name: str, index: torch.Tensor, width: int) -> Case:
    b = Build(name, i=index.numel(), j=width)
    b.input("table", numbers(50, width))
    b.input("index", index)
    i, j = b.axis("i"), b.axis("j")
    row = b.load("index", i)
    row = row if index.dtype is I64 else b.op("cast", row, dtype=I64)
    b.output("out", (index.numel(), width), F32)
    b.store("out", b.load("table", sym(row, 0, 50), j), i, j)
    return b.case()


def gather() -> Case:
    b = Build("gather", i=40, j=70)
    b.input("x", numbers(40, 200))
    b.input("index", torch.arange(40 * 70).reshape(40, 70) * 13 % 200)
    i, j = b.axis("i"), b.axis("j")
    b.output("out", (40, 70), F32)
    b.store("out", b.load("x", i, sym(b.load("index", i, j), 0, 200)), i, j)
    return b.case()


def masked_gather() -> Case:
    """Indices out of range where the mask is false are nobody's business."""
    b = Build("masked_gather", i=64)
    b.input("x", numbers(1, 32)[0])
    b.input("index", torch.arange(64))
    i = b.axis("i")
    b.output("out", (64,), F32)
    b.store("out", b.load("x", sym(b.load("index", i), 0, 32), mask=(31 - i,), other=9.0), i)
    return b.case()


def scatter_add(width: int) -> Case:
    b = Build(f"scatter_add_{width}", i=300, j=width)
    b.input("x", numbers(300, width))
    b.input("index", torch.arange(300) * 7 % 11)
    i, j = b.axis("i"), b.axis("j")
    row = b.load("index", i)
    b.output("out", (11, width), F32)
    b.store("out", b.load("x", i, j), sym(row, 0, 11), j, mode="atomic_add")
    return b.case()


def empty_table() -> Case:
    b = Build("empty_table", i=3)
    b.input("x", torch.empty(0))
    b.input("index", torch.zeros(3, dtype=I64))
    b.output("out", (3,), F32)
    b.store("out", b.load("x", sym(b.load("index", b.axis("i")), 0, 0)), b.axis("i"))
    return b.case()


def divided(name: str, n: int, k: int) -> Case:
    """x.view(n//k, k).t().reshape(-1)-like indices: i // k and i % k."""
    b = Build(name, i=n)
    b.input("x", numbers(k, n // k))
    i = b.axis("i")
    b.output("out", (n,), F32)
    b.store("out", b.load("x", ex.mod(i, k), ex.floordiv(i, k)), i)
    return b.case()


def undividable() -> Case:
    """Divisions that splitting an axis does not remove, of negative numbers too."""
    b = Build("undividable", i=101)
    b.input("x", numbers(1, 101)[0])
    i = b.axis("i")
    place = ex.mod(i * 3 + 5, 101)
    shifted = b.op("cast", b.index(ex.floordiv(i - 50, 7)), dtype=F32)
    clipped = b.op("cast", b.index(ex.minimum(ex.maximum(i - 9, 4), 60)), dtype=F32)
    b.output("out", (101,), F32)
    b.store("out", b.op("add", b.op("add", b.load("x", place), shifted), clipped), i)
    return b.case()


def two_places() -> Case:
    """Stores at different axes from one nest, and a reduction shared by them."""
    b = Build("two_places", i=30, j=(40, "reduction"), k=20)
    b.input("x", numbers(30, 40))
    b.input("y", numbers(30, 20))
    b.input("z", numbers(1, 20)[0])
    i, j, k = (b.axis(a) for a in "ijk")
    total = b.reduce("sum", b.load("x", i, j), "j")
    b.output("totals", (30,), F32)
    b.output("out", (30, 20), F32)
    b.output("plain", (20,), F32)
    b.store("totals", total, i)
    b.store("out", b.op("mul", total, b.load("y", i, k)), i, k)
    b.store("plain", b.op("neg", b.load("z", k)), k)
    return b.case()


def symbolic(name: str, dims: tuple[str, ...], shape: tuple[int, ...], kind: str | None) -> Case:
    """x*size(0) over symbolic sizes, then reduced over the last dim, or softmax along it."""
    sizes = {d: n for d, n in zip(dims, shape)}
    symbols = [sym(d, 2) for d in dims]
    axes = {f"i{d}": (s, "reduction" if kind and d == len(dims) - 1 else "parallel") for d, s in enumerate(symbols)}
    b = Build(name, sizes, **axes)
    strides: list[ex.Dim] = [ex.product(symbols[d + 1 :]) for d in range(len(dims))]
    b.input("x", numbers(*shape), tuple(symbols), tuple(strides))
    at = [b.axis(a) for a in axes]
    v = b.op("mul", b.load("x", *at), b.const(symbols[0]))
    if kind is None:
        b.output("out", symbols, F32, tuple(strides))
        b.store("out", v, *at)
    elif kind == "online_softmax":
        top, total = b.reduce(kind, v, f"i{len(dims) - 1}")
        b.output("out", symbols, F32, tuple(strides))
        b.store("out", b.op("div", b.op("exp", b.op("sub", v, top)), total), *at)
    else:
        r = b.reduce(kind, v, f"i{len(dims) - 1}")
        b.output("out", symbols[:-1], b.dtypes[r], tuple(ex.product(symbols[d + 1 : -1]) for d in range(len(dims) - 1)))
        b.store("out", r, *at[:-1])
    return b.case()


keep(halves_swapped())
keep(padded())
keep(embedding("embedding", torch.arange(77) * 3 % 50, 24))
keep(embedding("embedding_int32", (torch.arange(77) * 3 % 50).to(torch.int32), 33))
keep(gather())
keep(masked_gather())
keep(scatter_add(17))
keep(scatter_add(1))
keep(divided("divided", 96, 8))
keep(divided("divided_long", 90000, 300))
keep(undividable())
keep(two_places())
for reduced in (None, "sum", "argmax", "online_softmax"):
    keep(symbolic(f"symbolic_{reduced}", ("m", "n"), (6, 50), reduced))
keep(symbolic("symbolic_cube", ("a", "b", "c"), (3, 4, 5), "max"))
EMPTY = empty_table()


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    return Compiled([*CASES.values(), EMPTY], tmp_path_factory.mktemp("indexing"))


@pytest.mark.parametrize("name", CASES)
def test_matches_the_interpreter(kernels: Compiled, name: str) -> None:
    if name.startswith("scatter_add"):
        x, index = CASES[name].inputs
        torch.testing.assert_close(kernels.run(name)[0], torch.zeros(11, x.shape[1]).index_add(0, index, x))
    else:
        kernels.check(name)


@pytest.mark.parametrize("m, n", [(2, 2), (5, 3), (2, 1031), (300, 70), (2, 100000)])
@pytest.mark.parametrize("name", [n for n in CASES if n.startswith("symbolic_") and n != "symbolic_cube"])
def test_one_kernel_for_several_sizes(kernels: Compiled, name: str, m: int, n: int) -> None:
    kernels.check(name, [numbers(m, n).abs() / 9])


@pytest.mark.parametrize("name", ["embedding", "embedding_int32", "gather", "scatter_add_17", "masked_gather"])
@pytest.mark.parametrize("bad", [-1, 10**6, 200])
def test_index_out_of_range_asks_for_eager(kernels: Compiled, name: str, bad: int) -> None:
    x, index = CASES[name].inputs
    index = index.clone()
    index.view(-1)[3] = bad
    with pytest.raises(KernelError, match="out of range"):
        kernels.run(name, [x, index])


def test_reading_an_empty_tensor_asks_for_eager(kernels: Compiled) -> None:
    with pytest.raises(KernelError, match="out of range"):
        kernels.run("empty_table")


def test_rows_that_an_index_leads_to_are_asked_for(kernels: Compiled) -> None:
    """Where each turn has a row of its own, most of whose lines are needed: elements are picked from it, or it is walked."""
    asking = {name for name in CASES if "tc::fetch<" in kernels.sources[name].text}
    assert {"gather", "embedding", "embedding_int32"} <= asking
    assert not asking & {"masked_gather", "scatter_add_17", "two_places"}


def test_stores_go_nowhere_else(kernels: Compiled) -> None:
    """The bytes around an output stay as they were, for lengths around the vector width."""
    for name in ("long", "transposed_129_257", "strided_100_37"):
        source, case = kernels.sources[name], CASES[name]
        n = case.loops.buffers[-1].meta.numel
        memory = torch.full((n + 128,), 5.0)
        out = memory[64 : 64 + n].view(case.loops.buffers[-1].meta.shape)
        arguments = dict(zip(case.loops.inputs, case.inputs)) | {"out": out}
        kernels.launchers[name](0, *(arguments[a.name] for a in source.args))
        assert (memory[:64] == 5).all() and (memory[64 + n :] == 5).all()
        assert torch.equal(out, kernels.run(name)[0])
