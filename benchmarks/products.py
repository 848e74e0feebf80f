"""``python -m benchmarks.products``: matrix products with what follows them, on a CUDA device: the library and one fused kernel
(default mode), what max-autotune found, and ``torch.compile``'s max-autotune, in turns.

``--only TEXT`` takes rows with this in their name; ``--details`` prints what each way took in our contest. Without a GPU
nothing is measured.
"""

from __future__ import annotations

import argparse
import math
import re
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.accuracy import judge
from benchmarks.contenders import CONTENDERS, EAGER, INDUCTOR_MAX, OURS, OURS_MAX
from benchmarks.timing import samples

WHO = (EAGER, OURS, OURS_MAX, INDUCTOR_MAX)


@dataclass(frozen=True)
class Row:
    """``shapes`` of the arguments; ``flops`` of the products alone. ``dtypes``: of the first arguments, the rest is float32
    (none: all is bfloat16). ``exact``: the same in float64, where ``fn`` is not defined there."""

    name: str
    fn: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    flops: int
    dtypes: tuple[torch.dtype, ...] = ()
    exact: Callable[..., Any] | None = None

    def arguments(self, device: str) -> list[Tensor]:
        """Random ones."""
        rest = [torch.float32 if self.dtypes else torch.bfloat16] * len(self.shapes)
        made = [torch.randn(s, device=device) * (8 if self.dtypes else 1) for s in self.shapes]
        return [x.to(d) for x, d in zip(made, [*self.dtypes, *rest], strict=False)]


def gelu(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.gelu(F.linear(x, w, b))


def silu(x: Tensor, w: Tensor) -> Tensor:
    return F.silu(F.linear(x, w))


def residual(x: Tensor, w: Tensor, b: Tensor, r: Tensor) -> Tensor:
    return r + F.linear(x, w, b)


def swiglu(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    return F.silu(F.linear(x, w)) * F.linear(x, v)


def scaled_transposed(x: Tensor, w: Tensor) -> Tensor:
    return torch.relu(x.transpose(1, 2) @ w) * 0.125


def silu_float8(x: Tensor, w: Tensor, s: Tensor, t: Tensor) -> Tensor:
    return F.silu(torch._scaled_mm(x, w.t(), s, t, out_dtype=torch.bfloat16))


def silu_exact(x: Tensor, w: Tensor, s: Tensor, t: Tensor) -> Tensor:
    return F.silu((x @ w.t()) * s * t)


def scaled_int8(x: Tensor, w: Tensor, s: Tensor) -> Tensor:
    return torch._int_mm(x, w.t()) * s


def scaled_exact(x: Tensor, w: Tensor, s: Tensor) -> Tensor:
    return (x @ w.t()) * s


def float8(rows: int, inner: int, columns: int) -> Row:
    """silu of a product of float8 with a scale for each operand."""
    shapes, dtypes = ((rows, inner), (columns, inner), (), ()), (torch.float8_e4m3fn,) * 2
    return Row(f"silu float8 {rows}x{inner} -> {columns}", silu_float8, shapes, 2 * rows * inner * columns, dtypes, silu_exact)


def int8(rows: int, inner: int, columns: int) -> Row:
    """A product of int8 with a scale for each row."""
    shapes, dtypes = ((rows, inner), (columns, inner), (rows, 1)), (torch.int8,) * 2
    return Row(
        f"scaled int8 {rows}x{inner} -> {columns}", scaled_int8, shapes, 2 * rows * inner * columns, dtypes, scaled_exact
    )


def linear(fn: Callable[..., Any], rows: int, inner: int, columns: int, products: int = 1) -> Row:
    """A layer; ``fn`` says what else it takes."""
    more = {gelu: ((columns,),), residual: ((columns,), (rows, columns)), swiglu: ((columns, inner),), silu: ()}[fn]
    name = f"{fn.__name__} {rows}x{inner} -> {columns}"
    return Row(name, fn, ((rows, inner), (columns, inner), *more), 2 * products * rows * inner * columns)


ROWS = (
    linear(gelu, 8192, 768, 3072),
    linear(gelu, 8192, 4096, 16384),
    linear(residual, 8192, 3072, 768),
    linear(residual, 4096, 4096, 4096),
    linear(swiglu, 8192, 2048, 5632, 2),
    linear(swiglu, 2048, 4096, 11008, 2),
    linear(silu, 1000, 1000, 1000),
    linear(silu, 1, 4096, 11008),
    linear(silu, 16, 8192, 11008),
    linear(swiglu, 64, 8192, 11008, 2),
    linear(silu, 64, 32768, 512),
    float8(8192, 4096, 4096),
    float8(16, 8192, 11008),
    int8(8192, 4096, 4096),
    Row("relu batch 64x(512x256)' @ 512x1024", scaled_transposed, ((64, 512, 256), (64, 512, 1024)), 2 * 64 * 512 * 256 * 1024),
)


def measure(row: Row, seconds: float, contenders: Sequence[str]) -> tuple[dict[str, float], str, bool]:
    """Median seconds by contender, what our contest found, and whether our result is right."""
    args = row.arguments("cuda")
    compiled = {who: CONTENDERS[who](row.fn) for who in contenders}
    with torch.no_grad():
        exact = (row.exact or row.fn)(*(a.double() for a in args))
        right = judge([compiled[OURS_MAX](*args)], [row.fn(*args)], [exact]).ok
        del exact
        calls = {who: (lambda fn=fn: fn(*args)) for who, fn in compiled.items()}
        times = {who: statistics.median(taken) for who, taken in samples(calls, "cuda", seconds).items()}
    told = [k.why for k in compiled[OURS_MAX].kernels if "as timed" in k.why or "earlier contest" in k.why]
    return times, told[0] if told else "not offered", right


def winner(told: str) -> str:
    """The one that is used, of what the contest said."""
    found = re.search(r": ([^:]*) is used", told)
    return found.group(1) if found else told


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; 0 if everything of ours was right."""
    p = argparse.ArgumentParser(prog="python -m benchmarks.products", description=__doc__)
    p.add_argument("--only", default="", metavar="TEXT")
    p.add_argument("--details", action="store_true")
    p.add_argument("--ours", action="store_true", help="without torch.compile, whose contests take most of the time")
    p.add_argument("--seconds", type=float, default=0.5, help="of measuring, a row (%(default)s)")
    options = p.parse_args(argv)
    if not torch.cuda.is_available():
        print("torch sees no CUDA device here", file=sys.stderr)
        return 2
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}; microseconds, L2 flushed, medians in turns")
    print(f"{'':44}{'eager':>9}{'default':>9}{'max':>9}{'tc max':>9}{'/default':>9}{'/tc max':>9}{'TFLOP/s':>9}  used")
    good = True
    for row in (r for r in ROWS if options.only in r.name):
        times, told, right = measure(row, options.seconds, WHO[:3] if options.ours else WHO)
        good &= right
        ours = times[OURS_MAX]
        shown = "".join(f"{times.get(who, math.nan) * 1e6:9.1f}" for who in WHO)
        ratios = f"{ours / times[OURS]:9.2f}{ours / times.get(INDUCTOR_MAX, math.nan):9.2f}{row.flops / ours / 1e12:9.0f}"
        print(f"{row.name:44}{shown}{ratios}  {winner(told)}{'' if right else '  WRONG'}", flush=True)
        if options.details:
            print(f"    {told}")
        torch._dynamo.reset()
        torch.cuda.empty_cache()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
