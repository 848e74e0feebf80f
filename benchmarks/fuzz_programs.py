"""Random programs: Python source of 5 to 40 torch calls, and inputs of random shapes, strides and dtypes.

Every choice is one call of a ``random.Random``: a seed names a program, and hypothesis (``st.randoms()``) can shrink one.
"""

from __future__ import annotations

import linecache
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
SIZES = (1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 33, 70)
MOST = 2500  # elements of an input
LIMIT = 1e4  # of what floats come to: beyond, a program is about overflow

# Calls that keep the shape, of one tensor ``x`` (``{d}``: one of its dims; ``{t}``: a dtype).
_UNARY = (
    "{x} * 0.5 + 1", "-{x}", "{x}.abs()", "torch.relu({x})", "torch.tanh({x})", "torch.sigmoid({x})", "torch.exp(-{x}.abs())",
    "torch.nn.functional.gelu({x})", "{x}.clamp(-1.5, 2.0)", "torch.where({x} > 0, {x}, {x} * 0.1)", "{x}.softmax({d})",
    "{x} - {x}.mean({d}, keepdim=True)", "{x} / (1 + {x}.abs().amax({d}, keepdim=True))", "{x}.flip({d})", "{x}.roll(1, {d})",
    "{x}.cumsum({d}) * 0.25", "{x}.contiguous()", "{x}.clone()", "torch.square({x}) * 0.3", "{x}.log_softmax({d}) * 0.1",
    "({x}.movedim({d}, -1) + torch.arange({x}.shape[{d}]).to({x}.dtype) * 0.1).movedim(-1, {d})",
    "{x}.masked_fill({x} > 1, 0.5)", "{x} + {x}.sum({d}, keepdim=True) * 0.1", "torch.cummax({x}, {d})[0]",
    "{x}.to(torch.bfloat16).to({x}.dtype)", "{x}.double().to({x}.dtype)", "torch.sin({x})", "torch.nn.functional.silu({x})",
    "{x}.to({t})", "{x}.to({t}) + {x}", "{x} % 3", "{x} // 2", "{x} > 0.5", "{x}.floor()", "{x}.round()", "{x}.trunc()",
    "{x}.sign()", "{x}.isnan()", "torch.rsqrt({x}.abs() + 1)", "torch.log1p({x}.abs())", "torch.erf({x})", "{x}.cumprod({d})",
    "torch.nn.functional.layer_norm({x}, {x}.shape[-1:])", "torch.nn.functional.softplus({x})", "{x}.logcumsumexp({d})",
    "{x}.tril()", "{x}.sort({d})[0]", "{x}.pow(2)", "torch.nn.functional.leaky_relu({x}, 0.2)", "{x}.clamp_min(0)",
    "~({x} > 0)", "{x}.bitwise_not()", "{x} << 1", "{x} >> 1", "{x}.gather({d}, {x}.argsort({d}))", "{x}.fmod(2)",
)  # fmt: skip
# Of two tensors whose shapes broadcast, and whose dtypes may differ.
_BINARY = (
    "{x} + {y}", "{x} - {y}", "{x} * {y} * 0.5", "torch.maximum({x}, {y})", "torch.where({x} > {y}, {x}, {y} * 0.5)",
    "torch.lerp({x}.float(), {y}.float(), 0.25).to({x}.dtype)", "{x} / (2 + {y}.abs())",
    "torch.addcmul({x}, {y}, {x}, value=0.1)", "{x} * {y}", "{x} == {y}", "{x} <= {y}", "{x} & {y}", "{x} | {y}", "{x} ^ {y}",
    "{x} // ({y}.abs() + 1)", "{x} % ({y}.abs() + 1)", "torch.minimum({x}, {y})", "torch.where({y} != 0, {x}, {y})",
    "torch.atan2({x}, {y})", "torch.hypot({x}, {y})", "torch.fmin({x}, {y})", "torch.add({x}, {y}, alpha=2)",
)  # fmt: skip
# That change the shape.
_RESHAPING = (
    "{x}.transpose({d}, -1)", "{x}.reshape(-1)", "{x}.unsqueeze({d})", "{x}.sum({d})", "{x}.amax({d})", "{x}.mean({d})",
    "{x}.narrow({d}, 0, ({x}.shape[{d}] + 1) // 2)", "torch.cat([{x}, {x} * 2], {d})", "torch.stack([{x}, -{x}], {d})",
    "{x}.select({d}, -1)", "{x}.index_select({d}, torch.tensor([0, {x}.shape[{d}] - 1, 0]))", "{x}[..., ::2]",
    "torch.nn.functional.pad({x}, (1, 2))", "{x}.unsqueeze(0).expand(2, *{x}.shape)", "{x}.repeat_interleave(2, {d})",
    "{x}.movedim(0, -1)", "{x}.flatten()", "{x}.unfold({d}, 1, 1)", "{x}.diff(dim={d})", "{x}.std({d}, correction=0)",
    "{x}.argmax({d})", "{x}.argmin({d}, keepdim=True)", "{x}.any({d})", "{x}.all({d}, keepdim=True)", "{x}.prod({d})",
    "{x}.logsumexp({d})", "{x}.var({d}, keepdim=True)", "{x}.sum()", "{x}.sum((0, -1))", "{x}.min({d})[1]", "{x}.max({d})[0]",
    "{x}.squeeze()", "{x}.repeat(2, *([1] * ({x}.dim() - 1)))", "{x}.chunk(2, {d})[-1]", "{x}.diagonal()", "{x}.norm(dim={d})",
    "{x}.view(-1)", "{x}.count_nonzero({d})", "{x}.aminmax(dim={d})[1]", "{x}.mean()", "{x}.tile(2)", "{x}.T",
    "{x}.sum({d}).max()",
)  # fmt: skip
# Writes to a fresh tensor ``x`` (the statement comes after ``x = x + 0``).
_WRITES = (
    "{x}.mul_(0.5)", "{x}.add_({y})", "{x}.copy_({y}.flip({d}))", "{x}.clamp_(min=-1)", "{x}.sub_({x}.roll(1, {d}))",
    "{x}.zero_()", "{x}.select({d}, 0).add_(1)", "{x}.narrow({d}, 0, ({x}.shape[{d}] + 1) // 2).mul_(2)", "{x}.mul_({y})",
    "{x}.scatter_add_({d}, {x}.argsort({d}), {x}.clone())", "{x}.masked_fill_({x} < 0, 1)", "{x}[..., 0] = 1",
    "{x}[..., 1:] = {x}[..., :-1].clone()", "{x}.transpose(0, -1).add_(1)", "{x}.index_add_({d}, torch.tensor([0, 0]), "
    "{x}.index_select({d}, torch.tensor([0, -1 + {x}.shape[{d}]])))", "{x}.neg_()",
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


def make(seed: int, rng: random.Random | None = None) -> Program:
    """The program of a seed: steps are tried on real tensors as they are written, and kept if torch accepts them."""
    rng = rng or random.Random(seed)
    shape, dtype = _shape(rng), rng.choice(FLOATS if rng.random() < 0.75 else INTEGERS)
    inputs = tuple(
        _laid_out(rng, shape if i == 0 else _alike(rng, shape), dtype if rng.random() < 0.6 else rng.choice(FLOATS + INTEGERS))
        for i in range(rng.randint(1, 3))
    )
    names = [f"x{i}" for i in range(len(inputs))]
    scope: dict[str, Any] = {"torch": torch} | {n: t.clone() for n, t in zip(names, inputs, strict=True)}
    lines = [f"def program({', '.join(names)}):"]
    for step in range(rng.randint(5, 40)):
        _step(rng, step, names, scope, lines)
    results = _unused(names[len(inputs) :], lines) or names[:1]
    lines.append(f"    return {', '.join(results)}{',' if len(results) == 1 else ''}")
    return Program(seed, "\n".join(lines) + "\n", inputs)


def _unused(names: Sequence[str], lines: Sequence[str]) -> list[str]:
    """What no later value is made of, the last eight: so nearly all that a program computes is looked at."""
    read = {name for line in lines if " = " in line for name in re.findall(r"\b[vx]\d+\b", line.partition(" = ")[2])}
    return [n for n in names if n not in read][-8:]


def _shape(rng: random.Random) -> tuple[int, ...]:
    shape: tuple[int, ...] = tuple(rng.choice(SIZES) for _ in range(rng.choice((1, 2, 2, 2, 3, 3, 4))))
    while _count(shape) > MOST:
        shape = tuple(max(n // 2, 1) for n in shape)
    return shape


def _alike(rng: random.Random, shape: Sequence[int]) -> tuple[int, ...]:
    """The shape, or one that broadcasts with it."""
    kind = rng.choice(("same", "same", "ones", "fewer"))
    if kind == "ones":
        return tuple(rng.choice((n, n, 1)) for n in shape)
    return tuple(shape[rng.randrange(len(shape)) :]) if kind == "fewer" else tuple(shape)


def _count(shape: Sequence[int]) -> int:
    total = 1
    for n in shape:
        total *= n
    return total


def _laid_out(rng: random.Random, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Values of a few bits, so that sums of them are often exact; memory in one of six ways."""
    generator = torch.Generator().manual_seed(rng.randrange(2**31))

    def data(*size: int) -> torch.Tensor:
        drawn = torch.randint(-16, 17, size, generator=generator)
        return (drawn / 8).to(dtype) if dtype.is_floating_point else (drawn % 9 if dtype == torch.uint8 else drawn).to(dtype)

    kind, d = (
        rng.choice(("dense", "dense", "permuted", "strided", "expanded", "offset", "overlapping")),
        rng.randrange(len(shape)),
    )
    if kind == "permuted":
        order = rng.sample(range(len(shape)), len(shape))
        return data(*(shape[i] for i in order)).permute(tuple(order.index(i) for i in range(len(shape))))
    if kind == "strided":
        every = (slice(None),) * d + (slice(rng.randint(0, 1), None, 2),)
        return data(*(n * 2 if i == d else n for i, n in enumerate(shape)))[every]
    if kind == "expanded":
        return data(*(1 if i == d else n for i, n in enumerate(shape))).expand(tuple(shape))
    if kind == "overlapping":  # windows that share elements
        return data(*shape[:-1], shape[-1] + 2).as_strided(shape, tuple(_dense_strides(shape)))
    return data(shape[0] + 1, *shape[1:])[1:] if kind == "offset" else data(*shape)


def _dense_strides(shape: Sequence[int]) -> list[int]:
    """Of a dense tensor, but each row begins where the last element of the row before is."""
    strides = [1]
    for n in reversed(shape[1:]):
        strides.insert(0, strides[0] * max(n - 1, 1))
    return strides


def _step(rng: random.Random, step: int, names: list[str], scope: dict[str, Any], lines: list[str]) -> None:
    x = rng.choice(names[-6:])
    same = [n for n in names if scope[n].shape == scope[x].shape]
    near = [n for n in names if _broadcast(scope[n].shape, scope[x].shape)]
    form = rng.choice(rng.choice((_UNARY, _UNARY, _BINARY, _RESHAPING, _WRITES)))
    d = rng.randrange(max(scope[x].dim(), 1))
    name, y = f"v{step}", rng.choice(near if form in _BINARY else same)
    dtype = str(rng.choice(FLOATS + INTEGERS))
    if form in _WRITES:
        parts = [f"{name} = {x} + 0", form.format(x=name, y=y, d=d)]
    else:
        parts = [f"{name} = {form.format(x=x, y=y, d=d, t=dtype)}"]
    trial = dict(scope)
    try:
        for part in parts:
            exec(part, trial)  # the fuzzer's own text
    except (RuntimeError, IndexError, ValueError, TypeError):
        return
    if _keep(trial[name], form, scope[x]):
        scope[name] = trial[name]
        names.append(name)
        lines += [f"    {part}" for part in parts]


def _keep(made: torch.Tensor, form: str, x: torch.Tensor) -> bool:
    if not 0 < made.numel() <= 4000 or made.dim() > 5:
        return False
    if "{t}" in form and x.is_floating_point() and bool((x.abs() > 100).any() | ((x < 0).any() & (not made.is_signed()))):
        return False  # C's conversion of what the target can't hold is undefined, and torch's depends on the machine
    return not made.is_floating_point() or (bool(made.isfinite().all()) and float(made.abs().max()) < LIMIT)


def _broadcast(a: Sequence[int], b: Sequence[int]) -> bool:
    return all(m == n or 1 in (m, n) for m, n in zip(reversed(a), reversed(b), strict=False))
