"""``python -m benchmarks.norms``: norms beside matrix products on a CUDA device: made in the product's kernel, or before it.

Of few rows, as by default, with ``"apart"``: the same without folding. Then whole models of one short text, both ways. Last,
``--large``: three designs for many rows beside a kernel for the norm and the library's product:

* ``whole``: each program reduces its rows and normalises what it multiplies;
* ``scaled``: a kernel reduces the rows, and the product normalises what it multiplies;
* ``behind``: the norm's weight is in the product's already and the rows are scaled behind the sum. It rounds otherwise than
  eager, and stands for what no design can beat: the kernel that reduces rows is not counted.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor

import tinycompile
from benchmarks.accuracy import judge
from benchmarks.contenders import CONTENDERS, OURS, OURS_GRAPHS
from benchmarks.model_suite import Subject, ready
from benchmarks.plain_models import PLAIN
from benchmarks.timing import host_seconds, samples
from tinycompile.base.config import config
from tinycompile.base.target import Target
from tinycompile.codegen import emit
from tinycompile.codegen.triton.products import emit_product
from tinycompile.fuse import products
from tinycompile.fuse.cost import Cost
from tinycompile.ir.loops import Nest
from tinycompile.ir.plan import Kernel, Plan
from tinycompile.ir.source import KernelSource

Call = Callable[..., Any]
LAYERS = ((768, 2304), (1024, 4096), (2048, 2048), (2048, 5632), (3072, 3072))
FEW = [(rows, inner, columns) for inner, columns in LAYERS for rows in (1, 8, 16)]
MANY = [(128, 4096, 4096), (8192, 768, 2304), (8192, 4096, 4096)]
TILES = [("tiled", 128, 256), ("tiled", 128, 128), ("boxed", 128, 256), ("boxed", 128, 128)]


def rms(x: Tensor, g: Tensor, w: Tensor) -> Tensor:
    """An RMS norm and a product."""
    return F.linear(F.rms_norm(x, x.shape[-1:], g), w)


def layer(x: Tensor, g: Tensor, w: Tensor) -> Tensor:
    """A layer norm, a product and gelu."""
    return F.gelu(F.linear(F.layer_norm(x, x.shape[-1:], g, g), w), approximate="tanh")


def scaled(x: Tensor, s: Tensor, g: Tensor, w: Tensor) -> Tensor:
    """An RMS norm whose rows are reduced already, and a product."""
    return F.linear((x.float() * s * g.float()).to(x.dtype), w)


def behind(x: Tensor, s: Tensor, w: Tensor) -> Tensor:
    """A product of which the rows are scaled."""
    return (F.linear(x, w) * s).to(x.dtype)


@contextlib.contextmanager
def apart() -> Iterator[None]:
    """Nothing is folded into products."""
    with mock.patch.object(products, "makes_its_rows", lambda nest, cost: False):
        yield


def emit_in(way: str, rows: int, columns: int) -> Callable[[Kernel, Plan, Target, str], KernelSource]:
    """What generates every product in one way and tile."""

    def make(kernel: Kernel, plan: Plan, target: Target, name: str) -> KernelSource:
        wanted = name if way == "tiled" else f"{name}_{way}"
        found = next(k for k in emit_product(kernel, plan, target, name) if k.name == wanted)
        tile = next(c for c in found.configs if {("ROWS", rows), ("COLS", columns)} <= {*c.constants})
        return replace(found, name=name, text=found.text.replace(wanted, name), configs=(tile,))

    return make


@contextlib.contextmanager
def generated(way: str, rows: int, columns: int) -> Iterator[None]:
    """Every product is generated, with what makes its left operand, in one way and tile."""

    def found(nest: Nest, cost: Cost) -> bool:
        return not isinstance(products.find(nest), str)

    with contextlib.ExitStack() as stack:
        for name in ("is_skinny", "makes_its_rows"):
            stack.enter_context(mock.patch.object(products, name, found))
        stack.enter_context(mock.patch.object(emit, "emit_skinny", emit_in(way, rows, columns)))
        yield


def microseconds(calls: Mapping[str, Call], seconds: float) -> dict[str, float]:
    """Medians, in turns."""
    return {who: statistics.median(t) * 1e6 for who, t in samples(calls, "cuda", seconds).items()}


def of(*shape: int) -> Tensor:
    """Random halves."""
    return torch.randn(shape, device="cuda").mul_(0.5).bfloat16()


def both(fn: Call, mode: str, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
    """Compiled apart and folded, each called once."""
    with apart():
        one = CONTENDERS[mode](fn)
        one(*args, **kwargs)
    other = CONTENDERS[mode](fn)
    other(*args, **kwargs)
    return one, other


def few(fn: Call, rows: int, inner: int, columns: int, seconds: float) -> bool:
    """One row of the table; whether it is right."""
    args = (of(rows, inner), of(inner), of(columns, inner))
    one, other = both(fn, OURS, *args)
    right = judge([other(*args)], [fn(*args)], [fn(*(a.double() for a in args))]).ok
    calls = {"apart": functools.partial(one, *args), "folded": functools.partial(other, *args)}
    card, host = microseconds(calls, seconds), host_seconds(calls, "cuda", seconds / 4)
    shown = f"{card['apart']:9.1f}{card['folded']:9.1f}{card['folded'] / card['apart']:7.2f}"
    shown += f"{host['apart'] * 1e6:9.1f}{host['folded'] * 1e6:9.1f}{len(one.kernels):4} and {len(other.kernels)}"
    print(f"{fn.__name__} {rows}x{inner} -> {columns}".ljust(32) + shown + ("" if right else "  WRONG"), flush=True)
    return right


def model(subject: Subject, mode: str, seconds: float) -> None:
    """A whole model, both ways."""
    module, inputs = ready(subject, "cuda")
    one, other = both(module, mode, **inputs)
    t = microseconds({"apart": functools.partial(one, **inputs), "folded": functools.partial(other, **inputs)}, seconds)
    counts = f"{len(one.kernels)} and {len(other.kernels)} kernels"
    print(
        f"{subject.name}, {mode}: {t['apart']:.1f} and {t['folded']:.1f} us, {t['folded'] / t['apart']:.2f}; {counts}",
        flush=True,
    )


def many(rows: int, inner: int, columns: int, seconds: float) -> None:
    """Many rows: the best tile of each design."""
    x, g, w = of(rows, inner), of(inner), of(columns, inner)
    s = torch.rand(rows, 1, device="cuda") + 0.5
    calls: dict[str, Call] = {"library": functools.partial(F.linear, x, w)}
    calls["norm"] = functools.partial(
        tinycompile.compile(functools.partial(F.rms_norm, normalized_shape=(inner,), weight=g)), x
    )
    for name, fn, args in (("whole", rms, (x, g, w)), ("scaled", scaled, (x, s, g, w)), ("behind", behind, (x, s, w))):
        for tile in TILES:
            with generated(*tile):
                calls[f"{name}, {tile[0]} {tile[1]}x{tile[2]}"] = made = functools.partial(tinycompile.compile(fn), *args)
                made()
    t = microseconds(calls, seconds)
    best = [min((k for k in t if k.startswith(name)), key=t.__getitem__) for name in ("whole", "scaled", "behind")]
    shown = "; ".join(f"{k} {t[k]:.1f}" for k in best)
    print(f"{rows}x{inner} -> {columns}".ljust(24) + f"{t['norm']:9.1f}{t['library']:9.1f}  {shown}", flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables; 0 if all was right."""
    p = argparse.ArgumentParser(prog="python -m benchmarks.norms", description=__doc__)
    p.add_argument("--large", action="store_true", help="only many rows")
    p.add_argument("--seconds", type=float, default=0.4, help="of measuring, a row (%(default)s)")
    options = p.parse_args(argv)
    if not torch.cuda.is_available():
        print("torch sees no CUDA device here", file=sys.stderr)
        return 2
    config.disk_cache, config.on_error = False, "raise"
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}; bfloat16, microseconds, L2 flushed, medians in turns")
    with torch.no_grad():
        if options.large:
            print(f"{'many rows':24}{'norm':>9}{'library':>9}  design, tile, microseconds")
            for shape in MANY:
                many(*shape, options.seconds)
            return 0
        print(f"{'few rows':32}{'apart':>9}{'folded':>9}{'ratio':>7}{'host':>9}{'folded':>9} kernels")
        good = [few(fn, *shape, options.seconds) for fn in (rms, layer) for shape in FEW]
        for subject in (s for s in PLAIN if "short" in s.name):
            for mode in (OURS, OURS_GRAPHS):
                model(subject, mode, options.seconds)
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
