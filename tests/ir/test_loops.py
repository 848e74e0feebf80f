"""The Loops IR itself: what the verifier refuses, that the text parses, and what each statement means to the interpreter."""

from __future__ import annotations

import ast
import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from tinycompile.base.device import Device
from tinycompile.base.errors import VerifyError
from tinycompile.base.expr import sym
from tinycompile.base.meta import TensorMeta
from tinycompile.ir.loops import (
    Axis,
    Buffer,
    Const,
    ExternCall,
    Index,
    Load,
    Loops,
    Nest,
    Reduce,
    Scalar,
    Scan,
    SizeBinding,
    Statement,
    Store,
    TensorView,
)  # fmt: skip
from tinycompile.ir.loops_reference import run_loops
from tinycompile.ir.loops_text import print_loops
from tinycompile.ir.verify_loops import verify_loops

pytestmark = pytest.mark.pure

F32, I64, BF16, BOOL = torch.float32, torch.int64, torch.bfloat16, torch.bool
CPU = Device("cpu")
X = TensorMeta.contiguous((4, 6), F32, CPU)
ROW = TensorMeta.contiguous((4,), F32, CPU)
i0, i1 = sym("i0", 0, 4), sym("i1", 0, 6)
LOAD = Load("x", F32, "x", (i0, i1))
NEG = Scalar("y", F32, "neg", ("x",))
STORE = Store("y", (i0, i1), "y")


def program(
    *body: Statement, out: TensorMeta = X, reduced: tuple[str, ...] = (), inputs: dict[str, TensorMeta] | None = None
) -> Loops:
    """One nest over (4, 6) from ``x`` to ``y``."""
    given = inputs or {"x": X}
    axes = tuple(Axis(n, e, "reduction" if n in reduced else "parallel") for n, e in (("i0", 4), ("i1", 6)))
    buffers = (*(Buffer(n, m, "input") for n, m in given.items()), Buffer("y", out, "output"))
    return Loops("f", tuple(given), (), buffers, (Nest("n", axes, body, ("y",)),), (TensorView("y", out),))


def run(loops: Loops, *inputs: Any) -> torch.Tensor:
    verify_loops(loops)
    ast.parse(print_loops(loops))
    return run_loops(loops, inputs)[0]


# --- the verifier ------------------------------------------------------------------------------------------------------------

ACCEPTED = program(LOAD, NEG, STORE)
REFUSED: dict[str, tuple[Loops, str]] = {
    "unknown buffer": (program(replace(LOAD, buffer="z"), NEG, STORE), "unknown buffer z"),
    "rank": (program(replace(LOAD, index=(i0,)), NEG, STORE), "1 index expressions for a buffer of rank 2"),
    "load dtype": (program(replace(LOAD, dtype=I64), NEG, STORE), "the buffer holds torch.float32"),
    "unknown symbol": (program(replace(LOAD, index=(i0, sym("i7", 0, 6))), NEG, STORE), "i7 is no axis, size or earlier value"),
    "axis range": (program(replace(LOAD, index=(sym("i0", 0, 3), i1)), NEG, STORE), "i0 has the range"),
    "out of bounds": (program(replace(LOAD, index=(i0 + 1, i1)), NEG, STORE), "reaches [1, 4], outside a dim of size 4"),
    "negative": (program(replace(LOAD, index=(i0, i1 - 1)), NEG, STORE), "reaches [-1, 4]"),
    "float index": (program(LOAD, replace(LOAD, name="z", index=(sym("x", 0, 4), i1)), NEG, STORE), "used as an index"),
    "defined twice": (program(LOAD, LOAD, NEG, STORE), "the name x is taken"),
    "axis name taken": (program(replace(LOAD, name="i0"), STORE), "the name i0 is taken"),
    "used before": (program(NEG, LOAD, STORE), "x is used before it is defined"),
    "unknown op": (program(LOAD, replace(NEG, op="negate"), STORE), "unknown scalar op negate"),
    "arity": (program(LOAD, replace(NEG, args=("x", "x")), STORE), "neg takes 1 arguments"),
    "result dtype": (program(LOAD, replace(NEG, dtype=I64), STORE), "neg of torch.float32 is not torch.int64"),
    "domain": (program(LOAD, Scalar("y", F32, "and", ("x", "x")), STORE), "and does not take torch.float32"),
    "mixed dtypes": (program(LOAD, Const("c", I64, 1), Scalar("y", F32, "add", ("x", "c")), STORE), "several dtypes"),
    "condition": (program(LOAD, Scalar("y", F32, "where", ("x", "x", "x")), STORE), "the condition is not bool"),
    "half constant": (program(LOAD, Const("c", BF16, 1.0), NEG, STORE), "half types and float8 only occur"),
    "half arithmetic": (
        program(LOAD, Scalar("h", BF16, "cast", ("x",)), Scalar("y", BF16, "neg", ("h",)), STORE, out=TensorMeta.contiguous((4, 6), BF16, CPU)),
        "half types and float8 only occur",
    ),
    "store dtype": (program(LOAD, Scalar("y", BOOL, "isnan", ("x",)), STORE), "a torch.bool value for a buffer of torch.float32"),
    "input added to": (program(LOAD, NEG, replace(STORE, buffer="x", mode="atomic_add")), "an input is added to"),
    "input used after it is written": (
        replace(ACCEPTED, steps=(replace(program(LOAD, NEG, replace(STORE, buffer="x")).steps[0], name="m"), *ACCEPTED.steps)),
        "x was read before an earlier nest overwrote it, and is used again",
    ),
    "store mode": (program(LOAD, NEG, replace(STORE, mode="max")), "unknown mode 'max'"),
    "reduction kind": (program(LOAD, Reduce(("y",), (F32,), "median", ("x",), ("i1",)), STORE, reduced=("i1",)), "median is no reduction"),
    "reduction values": (program(LOAD, Reduce(("y",), (F32,), "welford", ("x",), ("i1",)), STORE, reduced=("i1",)), "welford is no reduction to 1"),
    "reduction axis": (program(LOAD, Reduce(("y",), (F32,), "sum", ("x",), ("i3",)), STORE), "not distinct axes"),
    "no reduction axis": (program(LOAD, Reduce(("y",), (F32,), "sum", ("x",), ()), STORE), "not distinct axes"),
    "reduction dtype": (program(LOAD, Reduce(("y",), (F32,), "argmax", ("x",), ("i1",)), STORE, reduced=("i1",)), "argmax of torch.float32 gives"),
    "unmarked axis": (program(LOAD, Reduce(("y",), (F32,), "sum", ("x",), ("i1",)), STORE), "axes marked reduction"),
    "wrongly marked axis": (program(LOAD, NEG, STORE, reduced=("i0",)), "axes marked reduction"),
    "any of floats": (program(LOAD, Reduce(("y",), (F32,), "any", ("x",), ("i1",)), STORE, reduced=("i1",)), "any takes bool"),
    "scan axis": (program(LOAD, Scan(("y",), (F32,), "sum", ("x",), "i5"), STORE), "i5 is no axis"),
    "scan kind": (program(LOAD, Scan(("y",), (F32,), "any", ("x",), "i1"), STORE, reduced=("i1",)), "any is no scan"),
    "unbound size": (program(LOAD, Const("c", I64, sym("s0", 2)), NEG, STORE), "s0 is no axis, size or earlier value"),
    "output unwritten": (program(LOAD, NEG), "an output is read from y, which is not written yet"),
    "output dtype": (replace(ACCEPTED, outputs=(TensorView("y", replace(X, dtype=I64)),)), "an output is int64"),
    "output of nothing": (replace(ACCEPTED, outputs=(TensorView("q", X),)), "unknown buffer q"),
    "buffer twice": (replace(ACCEPTED, buffers=(*ACCEPTED.buffers, ACCEPTED.buffers[0])), "two buffers have one name"),
    "step twice": (replace(ACCEPTED, steps=ACCEPTED.steps * 2), "two steps are called n"),
    "written twice": (replace(ACCEPTED, steps=(*ACCEPTED.steps, replace(ACCEPTED.steps[0], name="m"))), "written before, in an earlier step"),
    "role": (replace(ACCEPTED, buffers=(*ACCEPTED.buffers, Buffer("q", X, "spare"))), "unknown role"),
    "size of nothing": (replace(ACCEPTED, sizes=(SizeBinding("s0", "q", 0),)), "which is no input"),
    "extern output": (replace(ACCEPTED, steps=(*ACCEPTED.steps, ExternCall("e", "call", "exp", (), (), ("y",)))), "exists already"),
    "extern input": (replace(ACCEPTED, steps=(ExternCall("e", "call", "exp", (TensorView("y", X),), (), ()), *ACCEPTED.steps)), "not written yet"),
    "extern kind": (replace(ACCEPTED, steps=(*ACCEPTED.steps, ExternCall("e", "magic", "exp", (), (), ()))), "unknown kind of call"),
}  # fmt: skip


def test_a_good_program_passes() -> None:
    verify_loops(ACCEPTED)


@pytest.mark.parametrize("case", REFUSED, ids=lambda c: c.replace(" ", "-"))
def test_refused(case: str) -> None:
    loops, message = REFUSED[case]
    with pytest.raises(VerifyError) as caught:
        verify_loops(loops)
    assert message in str(caught.value)


# --- the text ----------------------------------------------------------------------------------------------------------------


def test_every_statement_prints_as_python() -> None:
    loops = program(
        LOAD,
        replace(LOAD, name="edge", index=(i0 - 1, i1), mask=(i0 - 1, 2 - i1), other=-math.inf),
        Const("half", F32, 0.5), Const("lost", F32, math.nan), Const("size", I64, 7), Index("at", I64, i0 * 6 + i1),
        Scalar("big", BOOL, "gt", ("x", "half")), Scalar("no", BOOL, "not", ("big",)), Scalar("n", F32, "neg", ("x",)),
        Scalar("z", F32, "where", ("no", "n", "edge")), Scalar("w", torch.float64, "cast", ("z",)),
        Reduce(("mean", "m2"), (F32, F32), "welford", ("z",), ("i1",)), Reduce(("top",), (F32,), "max", ("z",), ("i0", "i1")),
        Scan(("run",), (F32,), "sum", ("z",), "i1"), Scalar("y", F32, "add", ("run", "mean")), STORE, reduced=("i0", "i1"),
    )  # fmt: skip
    verify_loops(loops)
    text = print_loops(loops)
    ast.parse(text)
    for line in (
        "def f(x):", "buf.x: 'input' = tensor((4, 6), (6, 1), float32, 'cpu')", "for i0, i1 in nest('n', i0=reduction(4), i1=reduction(6)):  # y",
        'edge: float32 = buf.x[i0 - 1, i1] if i0 - 1 >= 0 and -i1 + 2 >= 0 else float("-inf")', 'lost: float32 = float("nan")',
        "at: int64 = index(6*i0 + i1)", "big: bool = x > half", "no: bool = ~big", "z: float32 = where(no, n, edge)", "w: float64 = float64(z)",
        "mean, m2 = welford(z, over=i1)  # float32, float32", "top: float32 = max(z, over=(i0, i1))", "run: float32 = cumulative_sum(z, along=i1)",
        "buf.y[i0, i1] = y", "return (buf.y,)",
    ):  # fmt: skip
        assert line in text, line


# --- the interpreter ---------------------------------------------------------------------------------------------------------


def reduced_over(kind: str, x: torch.Tensor, axes: tuple[str, ...]) -> list[torch.Tensor]:
    """The values of one reduction, each broadcast to where it lives."""
    names = {"welford": ("a", "b"), "online_softmax": ("a", "b")}.get(kind, ("a",))
    dtype = I64 if kind.startswith("arg") else x.dtype
    meta = TensorMeta.contiguous(tuple(1 if f"i{d}" in axes else n for d, n in enumerate(x.shape)), dtype, CPU)
    index = tuple(0 if f"i{d}" in axes else sym(f"i{d}", 0, n) for d, n in enumerate(x.shape))
    spaces = tuple(Axis(f"i{d}", n, "reduction" if f"i{d}" in axes else "parallel") for d, n in enumerate(x.shape))
    load = Load("x", x.dtype, "x", tuple(sym(f"i{d}", 0, n) for d, n in enumerate(x.shape)))
    body = (load, Reduce(names, (dtype,) * len(names), kind, ("x",), axes), *(Store(f"out_{n}", index, n) for n in names))
    buffers = (
        Buffer("x", TensorMeta.contiguous(tuple(x.shape), x.dtype, CPU), "input"),
        *(Buffer(f"out_{n}", meta, "output") for n in names),
    )
    loops = Loops("f", ("x",), (), buffers, (Nest("n", spaces, body),), tuple(TensorView(f"out_{n}", meta) for n in names))
    verify_loops(loops)
    return [t.reshape([n for d, n in enumerate(t.shape) if f"i{d}" not in axes]) for t in run_loops(loops, [x])]


DATA = torch.tensor([[1.0, -2.0, 5.0, 5.0], [math.nan, 1.0, math.nan, 9.0], [-math.inf] * 4, [math.inf, 0.0, 1.0, 2.0]])


@pytest.mark.parametrize(
    ("kind", "torchs"),
    [
        ("sum", torch.sum),
        ("prod", torch.prod),
        ("max", torch.amax),
        ("min", torch.amin),
        ("argmax", torch.argmax),
        ("argmin", torch.argmin),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_reductions_are_torchs(kind: str, torchs: Any) -> None:
    (got,) = reduced_over(kind, DATA, ("i1",))
    assert torch.equal(got.nan_to_num(77.0), torchs(DATA, 1).nan_to_num(77.0))


def test_any_and_all() -> None:
    x = torch.tensor([[True, False], [False, False], [True, True]])
    assert torch.equal(reduced_over("any", x, ("i1",))[0], x.any(1)) and torch.equal(
        reduced_over("all", x, ("i1",))[0], x.all(1)
    )


def test_argmax_counts_along_the_flattened_axes_in_the_order_given() -> None:
    x = torch.randn(3, 4, 5)
    assert torch.equal(reduced_over("argmax", x, ("i0", "i2"))[0], x.transpose(0, 1).flatten(1).argmax(1))
    assert torch.equal(reduced_over("argmax", x, ("i2", "i0"))[0], x.permute(1, 2, 0).flatten(1).argmax(1))


def test_welford_and_online_softmax() -> None:
    x = torch.randn(4, 9)
    mean, m2 = reduced_over("welford", x, ("i1",))
    assert torch.allclose(mean, x.mean(1)) and torch.allclose(m2 / 9, x.var(1, correction=0))
    top, total = reduced_over("online_softmax", x, ("i1",))
    assert torch.equal(top, x.amax(1)) and torch.allclose(top + total.log(), x.logsumexp(1))
    top, total = reduced_over("online_softmax", DATA, ("i1",))
    assert top[2] == -math.inf and total[2] == 0 and total[1].isnan()


def test_a_value_that_lacks_the_axis_is_repeated_along_it() -> None:
    body = (Load("x", F32, "x", (i0, 0)), Reduce(("y",), (F32,), "sum", ("x",), ("i1",)), Store("y", (i0,), "y"))
    x = torch.randn(4, 6)
    assert torch.allclose(run(program(*body, out=ROW, reduced=("i1",)), x), x[:, 0] * 6)


def test_masked_loads_read_nothing_elsewhere() -> None:
    load = Load("x", F32, "x", (i0 - 2, i1), mask=(i0 - 2,), other=9.0)
    x = torch.randn(4, 6)
    got = run(program(load, NEG, STORE), x)
    assert torch.equal(got, -torch.cat([torch.full((2, 6), 9.0), x[:2]]))


def test_indirect_loads_check_their_bounds() -> None:
    where = TensorMeta.contiguous((4,), I64, CPU)
    body = (Load("at", I64, "where", (i0,)), Load("x", F32, "x", (sym("at", 0, 4), i1)), NEG, STORE)
    loops = program(*body, inputs={"x": X, "where": where})
    x = torch.randn(4, 6)
    assert torch.equal(run(loops, x, torch.tensor([3, 0, 0, 1])), -x[[3, 0, 0, 1]])
    for bad in ([0, 1, 2, 4], [-1, 0, 0, 0]):
        with pytest.raises(IndexError, match="out of range"):
            run_loops(loops, [x, torch.tensor(bad)])


def test_half_values_are_rounded_by_casts_and_stores() -> None:
    half = TensorMeta.contiguous((4, 6), BF16, CPU)
    x = torch.randn(4, 6)
    widened = Scalar("y", F32, "cast", ("r",))
    assert torch.equal(run(program(LOAD, Scalar("r", BF16, "cast", ("x",)), widened, STORE), x), x.bfloat16().float())
    assert torch.equal(run(program(LOAD, NEG, STORE, out=half), x), (-x).bfloat16())


def test_strides_of_results_are_the_buffers() -> None:
    turned = TensorMeta((4, 6), (1, 4), F32, CPU)
    assert run(program(LOAD, NEG, STORE, out=turned), torch.randn(4, 6)).stride() == (1, 4)


def test_atomic_add_accumulates() -> None:
    x = torch.randn(4, 6)
    got = run(program(LOAD, NEG, Store("y", (i0,), "y", "atomic_add"), out=ROW), x)
    assert torch.allclose(got, -x.sum(1))


def test_a_nest_without_axes() -> None:
    scalar = TensorMeta.contiguous((), F32, CPU)
    nest = Nest("n", (), (Load("x", F32, "x", ()), Scalar("y", F32, "exp", ("x",)), Store("y", (), "y")))
    loops = Loops(
        "f", ("x",), (), (Buffer("x", scalar, "input"), Buffer("y", scalar, "output")), (nest,), (TensorView("y", scalar),)
    )
    assert torch.allclose(run(loops, torch.tensor(2.0)), torch.tensor(math.exp(2.0)))


def test_scans() -> None:
    x = torch.randn(4, 6)
    for kind, torchs in (("sum", torch.cumsum), ("prod", torch.cumprod), ("max", lambda x, d: torch.cummax(x, d)[0])):
        got = run(program(LOAD, Scan(("y",), (F32,), kind, ("x",), "i1"), STORE, reduced=("i1",)), x)
        assert torch.allclose(got, torchs(x, 1)), kind


def test_symbolic_sizes_and_numbers() -> None:
    rows, n = sym("s0", 2), sym("n", 2)
    meta = TensorMeta.contiguous((rows, 6), F32, CPU)
    at = (sym("i0", 0, rows), i1)
    nest = Nest(
        "k", (Axis("i0", rows), Axis("i1", 6)),
        (Load("x", F32, "x", at), Const("c", F32, rows * n), Index("i", F32, at[0]), Scalar("a", F32, "mul", ("x", "c")),
         Scalar("y", F32, "add", ("a", "i")), Store("y", at, "y")),
    )  # fmt: skip
    sizes = (SizeBinding("s0", "x", 0), SizeBinding("n", "n", None))
    loops = Loops(
        "f",
        ("x", "n"),
        sizes,
        (Buffer("x", meta, "input"), Buffer("y", meta, "output")),
        (nest,),
        (TensorView("y", meta), rows * n),
    )
    verify_loops(loops)
    ast.parse(print_loops(loops))
    for size in (2, 5):
        x = torch.randn(size, 6)
        got, number = run_loops(loops, [x, 3])
        assert torch.allclose(got, x * size * 3 + torch.arange(size)[:, None]) and number == size * 3


def test_extern_calls_take_views_and_may_return_several() -> None:
    turned = TensorMeta((6, 4), (1, 6), F32, CPU)
    values, order = TensorMeta.contiguous((6, 4), F32, CPU), TensorMeta.contiguous((6, 4), I64, CPU)
    call = ExternCall("s", "extern", "torch.sort", (TensorView("x", turned),), (("dim", 0), ("descending", True)), ("v", None))
    buffers = (Buffer("x", X, "input"), Buffer("v", values, "output"), Buffer("o", order, "temp"))
    loops = Loops("f", ("x",), (), buffers, (call,), (TensorView("v", values),))
    x = torch.randn(4, 6)
    assert torch.equal(run(loops, x), x.t().sort(0, descending=True)[0])
    assert run_loops(loops, [x])[0].stride() == (
        4,
        1,
    )  # torch.sort keeps its input's strides; the buffer's are what was promised
