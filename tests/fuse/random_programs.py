"""Random programs of nests. ``pick(n)`` chooses a number below ``n``: hypothesis draws it, so that failures shrink."""

from __future__ import annotations

from collections.abc import Callable

import torch

from tests.fuse.support import BF16, F32, Program
from tinycompile.base import expr as ex
from tinycompile.ir.loops import ExternCall, Loops, TensorView

Pick = Callable[[int], int]

UNARY = ("exp", "neg", "abs", "tanh", "sigmoid", "sqrt", "sin", "floor")
BINARY = ("add", "sub", "mul", "maximum", "minimum")
REDUCTIONS = ("sum", "max", "min", "welford", "online_softmax", "argmax")


class _Maker:
    def __init__(self, pick: Pick) -> None:
        self.pick = pick
        self.p = Program()
        self.extents = [(2, 3, 4), (4, 6), (6, 4), (3, 8), (2, 2, 6), (1, 24)][pick(6)]
        self.full: list[str] = []  # buffers over the whole space
        self.rows: list[str] = []  # buffers without the last dim
        self.serial = 0

    def name(self, stem: str) -> str:
        self.serial += 1
        return f"{stem}_{self.serial}"

    def choose(self, names: list[str]) -> str:
        return names[len(names) - 1 - min(self.pick(len(names)), self.pick(len(names)))]  # rather the newest

    def dtype(self) -> torch.dtype:
        return BF16 if self.pick(4) == 0 else F32

    def program(self) -> Loops:
        for k in range(1 + self.pick(3)):
            self.full.append(self.p.input(f"x{k}", *self.extents, dtype=self.dtype()))
        if self.pick(2):
            self.rows.append(self.p.input("r", *self.extents[:-1]))
        self.p.input("ids", *self.extents[:-1], dtype=torch.int64)
        for _ in range(1 + self.pick(9)):
            steps = (self.unary, self.binary, self.binary, self.with_rows, self.moved, self.reduce, self.reduce, self.row_math,
                     self.cat, self.gather, self.scan, self.overwrite, self.call, self.two_results, self.rows_of_all)  # fmt: skip
            steps[self.pick(len(steps))]()
        made = [b for b in (*self.full, *self.rows) if self.p.buffers[b].role == "temp"]
        outputs = [b for b in made if self.pick(4) == 0] or made[-1:] or [self.full[0]]
        return self.p.loops(*outputs)

    def pointwise(self, stem: str, emit: Callable[..., str]) -> None:
        m = self.p.nest(self.name(stem), *self.extents)
        out = self.p.buffer(m.name, self.extents, self.dtype())
        m.store(out, emit(m), *m.i)
        m.done()
        self.full.append(out)

    def unary(self) -> None:
        x, word = self.choose(self.full), UNARY[self.pick(len(UNARY))]
        self.pointwise(word, lambda m: m.op(word, m.load(x, *m.i)))

    def binary(self) -> None:
        x, y, word = self.choose(self.full), self.choose(self.full), BINARY[self.pick(len(BINARY))]
        self.pointwise(word, lambda m: m.op(word, m.load(x, *m.i), m.load(y, *m.i)))

    def with_rows(self) -> None:
        if self.rows:
            x, r, word = self.choose(self.full), self.choose(self.rows), BINARY[self.pick(len(BINARY))]
            self.pointwise(f"{word}_rows", lambda m: m.op(word, m.load(x, *m.i), m.load(r, *m.i[:-1])))

    def moved(self) -> None:
        """A flip, a roll, a reshape, or every element read from the first column."""
        x, how = self.choose(self.full), self.pick(4)
        n = self.extents[-1]
        total = ex.product(self.extents)

        def emit(m: object) -> str:
            *rest, last = m.i  # type: ignore[attr-defined]
            if how == 0:
                at = (*rest, n - 1 - last)
            elif how == 1:
                at = (*rest, ex.mod(last + 1, n))
            elif how == 2:
                at = (*rest, 0)
            else:  # element k of the flat buffer becomes element total - 1 - k
                flat = 0
                for extent, i in zip(self.extents, m.i, strict=True):  # type: ignore[attr-defined]
                    flat = flat * extent + i
                flat, at = total - 1 - flat, ()
                for extent in reversed(self.extents):
                    at = (ex.mod(flat, extent), *at)
                    flat = ex.floordiv(flat, extent)
            return m.load(x, *at)  # type: ignore[attr-defined]

        self.pointwise("moved", emit)

    def cat(self) -> None:
        """Two halves of the last dim from two buffers, by masks."""
        x, y, half = self.choose(self.full), self.choose(self.full), self.extents[-1] // 2

        def emit(m: object) -> str:
            *rest, last = m.i  # type: ignore[attr-defined]
            a = m.load(x, *rest, last, mask=(half - 1 - last,), other=3.0)  # type: ignore[attr-defined]
            b = m.load(y, *rest, last - half, mask=(last - half,), other=-1.5)  # type: ignore[attr-defined]
            first = m.op("lt", m.index(last), m.const(half, torch.int64))  # type: ignore[attr-defined]
            return m.op("where", first, a, b)  # type: ignore[attr-defined]

        self.pointwise("cat", emit)

    def gather(self) -> None:
        x = self.choose(self.full)

        def emit(m: object) -> str:
            *rest, last = m.i  # type: ignore[attr-defined]
            where = m.op("minimum", m.load("ids", *rest), self.extents[-1] - 1)  # type: ignore[attr-defined]
            picked = m.load(x, *rest, ex.sym(where, 0, self.extents[-1]))  # type: ignore[attr-defined]
            return m.op("add", picked, m.load(x, *rest, last))  # type: ignore[attr-defined]

        self.pointwise("gather", emit)

    def reduce(self) -> None:
        kind = REDUCTIONS[self.pick(len(REDUCTIONS))]
        x = self.choose(self.full)
        m = self.p.nest(self.name(kind), *self.extents)
        last = len(self.extents) - 1
        result = m.reduce(kind, m.load(x, *m.i), last)
        for k, value in enumerate((result,) if isinstance(result, str) else result):
            out = self.p.buffer(f"{m.name}_{k}", self.extents[:-1], F32)
            m.store(out, m.cast(value, F32) if m.dtypes[value] != F32 else value, *m.i[:-1])
            self.rows.append(out)
        m.done()

    def row_math(self) -> None:
        if self.rows:
            a, b, word = self.choose(self.rows), self.choose(self.rows), BINARY[self.pick(len(BINARY))]
            m = self.p.nest(self.name(f"row_{word}"), *self.extents[:-1])
            out = self.p.buffer(m.name, self.extents[:-1], self.dtype())
            m.store(out, m.op(word, m.load(a, *m.i), m.load(b, *m.i)), *m.i)
            m.done()
            self.rows.append(out)

    def rows_of_all(self) -> None:
        """A value of other rows: the first row's."""
        if self.rows:
            r = self.choose(self.rows)
            self.pointwise("first", lambda m: m.op("add", m.load(r, *(0 for _ in m.i[:-1])), 1.0))

    def scan(self) -> None:
        x = self.choose(self.full)
        m = self.p.nest(self.name("scan"), *self.extents)
        out = self.p.buffer(m.name, self.extents, F32)
        m.store(out, m.scan("sum", m.load(x, *m.i), len(self.extents) - 1), *m.i)
        m.done()
        self.full.append(out)

    def two_results(self) -> None:
        x = self.choose(self.full)
        m = self.p.nest(self.name("pair"), *self.extents)
        value = m.load(x, *m.i)
        for k, word in enumerate(("neg", "exp")):
            out = self.p.buffer(f"{m.name}_{k}", self.extents, self.dtype())
            m.store(out, m.op(word, value), *m.i)
            self.full.append(out)
        m.done()

    def overwrite(self) -> None:
        """Write a computed buffer back to an input, as mutations end."""
        y = self.choose(self.full)
        if self.p.buffers[y].meta.dtype is self.p.buffers["x0"].meta.dtype and y != "x0":
            views = tuple(TensorView(b, self.p.buffers[b].meta) for b in ("x0", y))
            name = self.name("copy")
            self.p.steps.append(ExternCall(name, "extern", "torch.Tensor.copy_", views, (), (None,), (name,)))

    def call(self) -> None:
        x = self.choose(self.full)
        if self.p.buffers[x].meta.dtype is F32:
            self.full.append(self.p.extern(self.name("call"), "torch.relu", x, shape=self.extents))


def random_program(pick: Pick) -> Loops:
    """One program; every part of it is chosen by ``pick``."""
    return _Maker(pick).program()
