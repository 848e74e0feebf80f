"""``python -m benchmarks.fuzz``: random programs of 5 to 40 torch calls through a backend, compared with eager.

A program is Python source, made from a seed: views, pointwise ops, reductions, scans, joins, look-ups and writes to fresh
tensors, over random shapes, strides and dtypes. Many are built as one translation unit. What differs is printed with its seed
and source; ``--seed N --programs 1`` runs it again.
"""

from __future__ import annotations

import argparse
import linecache
import random
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

import tinycompile
from benchmarks.opinfo_backends import BACKENDS
from benchmarks.opinfo_judge import Call, DifferenceError, Judge, compare, run
from tinycompile.base.config import config

FLOATS = (torch.float32, torch.float64, torch.bfloat16)
SHAPES = ((4, 6), (3, 5, 2), (7,), (2, 1, 4), (6, 6), (1, 9), (2, 3, 4, 2), (33, 5), (5, 70))

# Calls that keep the shape, of one tensor ``x`` (``{d}``: one of its dims).
_UNARY = (
    "{x} * 0.5 + 1", "-{x}", "{x}.abs()", "torch.relu({x})", "torch.tanh({x})", "torch.sigmoid({x})", "torch.exp(-{x}.abs())",
    "torch.nn.functional.gelu({x})", "{x}.clamp(-1.5, 2.0)", "torch.where({x} > 0, {x}, {x} * 0.1)", "{x}.softmax({d})",
    "{x} - {x}.mean({d}, keepdim=True)", "{x} / (1 + {x}.abs().amax({d}, keepdim=True))", "{x}.flip({d})", "{x}.roll(1, {d})",
    "{x}.cumsum({d}) * 0.25", "{x}.contiguous()", "{x}.clone()", "torch.square({x}) * 0.3", "{x}.log_softmax({d}) * 0.1",
    "({x}.movedim({d}, -1) + torch.arange({x}.shape[{d}]).to({x}.dtype) * 0.1).movedim(-1, {d})",
    "{x}.masked_fill({x} > 1, 0.5)", "{x} + {x}.sum({d}, keepdim=True) * 0.1", "torch.cummax({x}, {d})[0]",
    "{x}.to(torch.bfloat16).to({x}.dtype)", "{x}.double().to({x}.dtype)", "torch.sin({x})", "torch.nn.functional.silu({x})",
)  # fmt: skip
# Of two tensors of one shape.
_BINARY = (
    "{x} + {y}", "{x} - {y}", "{x} * {y} * 0.5", "torch.maximum({x}, {y})", "torch.where({x} > {y}, {x}, {y} * 0.5)",
    "torch.lerp({x}.float(), {y}.float(), 0.25).to({x}.dtype)", "{x} / (2 + {y}.abs())",
    "torch.addcmul({x}, {y}, {x}, value=0.1)",
)  # fmt: skip
# That change the shape.
_RESHAPING = (
    "{x}.transpose({d}, -1)", "{x}.reshape(-1)", "{x}.unsqueeze({d})", "{x}.sum({d})", "{x}.amax({d})", "{x}.mean({d})",
    "{x}.narrow({d}, 0, ({x}.shape[{d}] + 1) // 2)", "torch.cat([{x}, {x} * 2], {d})", "torch.stack([{x}, -{x}], {d})",
    "{x}.select({d}, -1)", "{x}.index_select({d}, torch.tensor([0, {x}.shape[{d}] - 1, 0]))", "{x}[..., ::2]",
    "torch.nn.functional.pad({x}, (1, 2))", "{x}.unsqueeze(0).expand(2, *{x}.shape)", "{x}.repeat_interleave(2, {d})",
    "{x}.movedim(0, -1)", "{x}.flatten()", "{x}.unfold({d}, 1, 1)", "{x}.diff(dim={d})", "{x}.std({d}, correction=0)",
)  # fmt: skip
# Writes to a fresh tensor ``x`` (the statement comes after ``x = x + 0``).
_WRITES = (
    "{x}.mul_(0.5)", "{x}.add_({y})", "{x}.copy_({y}.flip({d}))", "{x}.clamp_(min=-1)", "{x}.sub_({x}.roll(1, {d}))",
)  # fmt: skip


@dataclass
class Program:
    """Source of ``program(*inputs)``, and the inputs."""

    seed: int
    source: str
    inputs: tuple[torch.Tensor, ...]
    fn: Callable[..., Any] = field(init=False)

    def __post_init__(self) -> None:
        name = f"<program {self.seed}>"
        linecache.cache[name] = (len(self.source), None, self.source.splitlines(True), name)
        scope: dict[str, Any] = {"torch": torch}
        exec(compile(self.source, name, "exec"), scope)  # the fuzzer's own text
        self.fn = scope["program"]


def _laid_out(rng: random.Random, shape: Sequence[int], dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Values of a few bits, so that sums of them are often exact; memory in one of five ways."""
    generator = torch.Generator().manual_seed(seed)

    def data(*size: int) -> torch.Tensor:
        return (torch.randint(-16, 17, size, generator=generator) / 8).to(dtype)

    kind = rng.choice(("dense", "dense", "transposed", "strided", "expanded", "offset"))
    if kind == "transposed":
        return data(*reversed(shape)).permute(tuple(reversed(range(len(shape)))))
    if kind == "strided":
        return data(*shape[:-1], shape[-1] * 2)[..., ::2]
    if kind == "expanded":
        return data(1, *shape[1:]).expand(shape)
    return data(shape[0] + 1, *shape[1:])[1:] if kind == "offset" else data(*shape)


def make(seed: int) -> Program:
    """The program of a seed: steps are tried on real tensors as they are written, and kept if torch accepts them."""
    rng = random.Random(seed)
    shape, dtype = rng.choice(SHAPES), rng.choice(FLOATS)
    inputs = tuple(_laid_out(rng, shape, dtype, seed * 4 + i) for i in range(rng.randint(1, 3)))
    names = [f"x{i}" for i in range(len(inputs))]
    scope: dict[str, Any] = {"torch": torch} | {n: t.clone() for n, t in zip(names, inputs, strict=True)}
    lines = [f"def program({', '.join(names)}):"]
    for step in range(rng.randint(5, 40)):
        _step(rng, step, names, scope, lines)
    results = names[len(inputs) :][-3:] or names[:1]
    lines.append(f"    return {', '.join(results)}{',' if len(results) == 1 else ''}")
    return Program(seed, "\n".join(lines) + "\n", inputs)


def _step(rng: random.Random, step: int, names: list[str], scope: dict[str, Any], lines: list[str]) -> None:
    x = rng.choice(names[-6:])
    same = [n for n in names if scope[n].shape == scope[x].shape and scope[n].dtype == scope[x].dtype]
    form = rng.choice(rng.choice((_UNARY, _UNARY, _BINARY, _RESHAPING, _WRITES)))
    d = rng.randrange(max(scope[x].dim(), 1))
    name = f"v{step}"
    if form in _WRITES:
        parts = [f"{name} = {x} + 0", form.format(x=name, y=rng.choice(same), d=d)]
    else:
        parts = [f"{name} = {form.format(x=x, y=rng.choice(same), d=d)}"]
    trial = dict(scope)
    try:
        for part in parts:
            exec(part, trial)  # the fuzzer's own text
    except (RuntimeError, IndexError, ValueError, TypeError):
        return
    made = trial[name]
    if 0 < made.numel() <= 4000 and made.dim() <= 5 and bool(made.isfinite().all()) and made.abs().max() < 1e4:
        scope[name] = made
        names.append(name)
        lines += [f"    {part}" for part in parts]


def check(programs: Sequence[Program], backend: str) -> list[tuple[Program, str]]:
    """Programs that differ from eager, and how."""
    wrong: list[tuple[Program, str]] = []
    waiting = []
    the_backend = BACKENDS[backend]() if backend in BACKENDS else None
    for p in programs:
        call = Call(p.inputs, {})
        want = run(p.fn, theirs := call.copy(), 0)
        compiled = tinycompile.compile(p.fn, backend=the_backend or backend, fullgraph=True, dynamic=False)
        try:
            compiled.explain(*call.copy().args)
        except Exception as error:  # noqa: BLE001  # a finding
            wrong.append((p, f"{type(error).__name__}: {error}"))
            continue
        waiting.append((p, call, want, theirs, compiled))
    if the_backend is not None:
        the_backend.finish()
    for p, call, want, theirs, compiled in waiting:
        got = run(compiled, mine := call.copy(), 0)
        try:
            compare(got, want, mine, theirs, Judge(p.fn, call, 0))
        except DifferenceError as difference:
            wrong.append((p, str(difference)))
    return wrong


def main(argv: Sequence[str] | None = None) -> int:
    """Run programs batch by batch; 0 if none differs."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fuzz", description=__doc__)
    parser.add_argument("--backend", choices=[*BACKENDS, "triton"], default="loops")
    parser.add_argument("--programs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="of the first program")
    parser.add_argument("--batch", type=int, default=50, help="programs a translation unit")
    options = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    found, start = 0, time.perf_counter()
    with config.patch(on_error="raise", disk_cache=False):
        for first in range(options.seed, options.seed + options.programs, options.batch):
            last = min(first + options.batch, options.seed + options.programs)
            for p, what in check([make(s) for s in range(first, last)], options.backend):
                found += 1
                print(f"--- seed {p.seed}: {what[:600]}\n{p.source}", flush=True)
            print(
                f"{last - options.seed} programs, {found} differ, {time.perf_counter() - start:.0f} s",
                file=sys.stderr,
                flush=True,
            )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
