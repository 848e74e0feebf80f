"""Shape arithmetic on dims that are ints or symbolic, and the environment that records what was assumed about symbols.

A comparison that the ranges decide is decided. One that they don't is answered by the *hints* (the sizes of the call
being captured) and recorded as a :class:`Relation`, which becomes a guard. Outside an environment such a question is an error.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import overload

from tinycompile.base import expr as ex
from tinycompile.base.atoms import numeric_range
from tinycompile.base.errors import InternalError
from tinycompile.base.expr import Dim

Shape = tuple[Dim, ...]


@dataclass(frozen=True, slots=True)
class Relation:
    """``expr >= 0`` (``kind`` is ``"ge"``) or ``expr == 0`` (``"eq"``), true or false as ``holds`` says."""

    kind: str
    expr: Dim
    holds: bool = True

    def __str__(self) -> str:
        sign = {("ge", True): ">=", ("ge", False): "<", ("eq", True): "==", ("eq", False): "!="}[self.kind, self.holds]
        return f"{self.expr} {sign} 0"

    def fits(self, sizes: Mapping[str, int]) -> bool:
        """Whether it is so for these values of the symbols."""
        value = ex.evaluate(self.expr, sizes)
        return (value >= 0 if self.kind == "ge" else value == 0) is self.holds


@dataclass
class ShapeEnv:
    """Hints for size symbols (name -> the size seen at capture) and the relations that capture relied on."""

    hints: dict[str, int] = field(default_factory=dict)
    relations: dict[Relation, None] = field(default_factory=dict)
    _settled: dict[Dim, Dim] = field(default_factory=dict)

    def new_size(self, name: str, hint: int, lo: int = 2, stop: Dim | None = None) -> Dim:
        """A fresh size symbol of at least ``lo``."""
        self.hints[name] = hint
        return ex.sym(name, lo, stop)

    def hint(self, d: Dim) -> int:
        """The value of ``d`` in the call being captured."""
        return ex.evaluate(d, self.hints)

    def settle(self, d: Dim) -> Dim:
        """``d``, or the number where it is 0 or 1 in the call being captured; proven by ranges, else decided and guarded."""
        found = self._settled.get(d)
        if found is None:
            found = self._settled[d] = next((n for n in (0, 1) if same(d, n)), d)
        return found

    def settle_size(self, d: Dim) -> Dim:
        """The same of a size, which is guarded not to become negative. Raises RuntimeError, in torch's words, where it is."""
        if d not in self._settled and not at_least(d, 0):
            raise RuntimeError(f"Trying to create tensor with negative dimension {self.hint(d)}")
        return self.settle(d)

    def decide(self, kind: str, d: Dim) -> bool:
        """Answer by hint and record the relation."""
        value = self.hint(d)
        holds = value >= 0 if kind == "ge" else value == 0
        self.relations[Relation(kind, d, holds)] = None
        return holds

    @contextlib.contextmanager
    def active(self) -> Iterator[ShapeEnv]:
        """Make this the environment of the current thread."""
        before = getattr(_local, "env", None)
        _local.env = self
        try:
            yield self
        finally:
            _local.env = before


_local = threading.local()


def current_env() -> ShapeEnv | None:
    """The active environment of this thread."""
    return getattr(_local, "env", None)


def env_with(hints: Iterable[tuple[str, int]]) -> ShapeEnv:
    """The environment of the capture that goes on, or one that knows sizes by their ``hints``."""
    return current_env() or ShapeEnv(dict(hints))


def assume(relations: Iterable[Relation]) -> None:
    """Make conditions of the capture what was decided elsewhere for it: in an environment of its own, or by another process
    whose code is used."""
    env = current_env()
    if env is not None:
        env.relations.update(dict.fromkeys(relations))


def _decide(kind: str, d: Dim) -> bool:
    env = current_env()
    if env is None:
        raise InternalError(f"'{d}' must be decided ({kind} 0), but no shape environment is active")
    return env.decide(kind, d)


def at_least(a: Dim, b: Dim) -> bool:
    """``a >= b``; proven by ranges, else decided by hint and guarded."""
    if isinstance(a, int) and isinstance(b, int):
        return a >= b
    diff = a - b
    if ex.at_least(diff, 0):
        return True
    if ex.at_least(-diff, 1):
        return False
    return _decide("ge", diff)


def same(a: Dim, b: Dim) -> bool:
    """``a == b``; proven by ranges, else decided by hint and guarded."""
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    diff = a - b
    if isinstance(diff, int):
        return diff == 0
    low, high = numeric_range(diff)
    if (low is not None and low > 0) or (high is not None and high < 0) or ex.at_least(diff, 1) or ex.at_least(-diff, 1):
        return False
    return _decide("eq", diff)


def same_shape(a: Sequence[Dim], b: Sequence[Dim]) -> bool:
    """Whether two shapes are equal, size by size; decided and guarded as :func:`same` does."""
    return len(a) == len(b) and all(map(same, a, b))


def settled(shape: Shape, strides: Shape) -> tuple[Shape, Shape]:
    """Sizes and strides of which the symbolic ones are neither 0 nor 1: what is, is a number. Within an environment. Raises
    RuntimeError where a size is negative."""
    env = current_env()
    if env is None or all(isinstance(d, int) for d in (*shape, *strides)):
        return shape, strides
    sizes = tuple(d if isinstance(d, int) else env.settle_size(d) for d in shape)
    return sizes, tuple(d if isinstance(d, int) else env.settle(d) for d in strides)


def hint(d: Dim) -> int:
    """The value of ``d`` in the call being captured (no guard is recorded: for heuristics only)."""
    if isinstance(d, int):
        return d
    env = current_env()
    if env is None:
        raise InternalError(f"no shape environment knows {d}")
    return env.hint(d)


def pinned(d: Dim) -> int:
    """The value of ``d`` in the call being captured, made a condition of it: where a *number* of things depends on a size."""
    if isinstance(d, int):
        return d
    value = hint(d)
    if not same(d, value):
        raise InternalError(f"{d} is not its own hint {value}")
    return value


def pin_symbols(dims: Iterable[Dim]) -> None:
    """Make the value of every symbol in ``dims`` a condition of the capture: what follows is worked out for these alone."""
    for d in dims:
        for symbol in sorted(ex.symbols(d), key=lambda s: s.name):
            pinned(ex.sym(symbol.name, symbol.lo, symbol.stop))


def numel(shape: Sequence[Dim]) -> Dim:
    """The number of elements."""
    return ex.product(shape)


@overload
def reach(shape: Sequence[int], strides: Sequence[int]) -> int: ...
@overload
def reach(shape: Sequence[Dim], strides: Sequence[Dim]) -> Dim: ...
def reach(shape: Sequence[Dim], strides: Sequence[Dim]) -> Dim:
    """Elements of memory from a tensor's first to its last, those between included; none for an empty tensor."""
    if any(n == 0 for n in shape):
        return 0
    return sum(((n - 1) * s for n, s in zip(shape, strides, strict=True)), start=1)


def contiguous_strides(shape: Sequence[Dim]) -> Shape:
    """Row-major strides in elements, as torch gives them (a size of 0 counts as 1)."""
    strides: list[Dim] = []
    step: Dim = 1
    for size in reversed(shape):
        strides.append(step)
        step = step * (1 if isinstance(size, int) and size == 0 else size)
    return tuple(reversed(strides))


def is_contiguous(shape: Sequence[Dim], strides: Sequence[Dim]) -> bool:
    """Whether the strides are row-major, ignoring dims of size 1; an empty tensor is contiguous."""
    if any(isinstance(s, int) and s == 0 for s in shape):
        return True
    step: Dim = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if isinstance(size, int) and size == 1:
            continue
        if not same(stride, step):
            return False
        step = step * size
    return True


def normalize_dim(dim: int, rank: int) -> int:
    """``dim`` in ``[0, rank)``; a 0-d tensor takes 0 and -1. Raises IndexError with torch's wording."""
    span = max(rank, 1)
    if not -span <= dim < span:
        raise IndexError(f"Dimension out of range (expected to be in range of [{-span}, {span - 1}], but got {dim})")
    return dim % span


def normalize_dims(dims: int | Sequence[int] | None, rank: int) -> tuple[int, ...]:
    """Sorted unique dims; None or () means all. Raises RuntimeError when a dim is named twice."""
    if dims is None or (not isinstance(dims, int) and len(dims) == 0):
        return tuple(range(rank))
    named = [normalize_dim(d, rank) for d in ((dims,) if isinstance(dims, int) else dims)]
    for d in named:
        if named.count(d) > 1:
            raise RuntimeError(f"dim {d} appears multiple times in the list of dims")
    return tuple(sorted(named)) if rank else ()


def broadcast_shapes(*shapes: Sequence[Dim]) -> Shape:
    """The common broadcast shape. Raises RuntimeError with torch's wording."""
    rank = max((len(s) for s in shapes), default=0)
    result: list[Dim] = [1] * rank
    for shape in shapes:
        for i in range(-1, -len(shape) - 1, -1):
            size, have = shape[i], result[i]
            if isinstance(size, int) and size == 1:
                continue
            if isinstance(have, int) and have == 1:
                result[i] = size
            elif not same(have, size):
                raise RuntimeError(
                    f"The size of tensor a ({have}) must match the size of tensor b ({size}) "
                    f"at non-singleton dimension {rank + i}"
                )
    return tuple(result)


def broadcasts_to(shape: Sequence[Dim], to: Sequence[Dim]) -> bool:
    """Whether a tensor of ``shape`` expands to ``to``."""
    pairs = zip(reversed(shape), reversed(to), strict=False)
    return len(shape) <= len(to) and all(_is_one(n) or same(n, m) for n, m in pairs)


def expand_strides(shape: Sequence[Dim], strides: Sequence[Dim], to: Sequence[Dim]) -> Shape:
    """Strides of a broadcast view of ``shape`` as ``to``: 0 along expanded dims."""
    if not shape:
        return (0,) * len(to)
    lead = len(to) - len(shape)
    grown: list[Dim] = []
    step: Dim = 1  # the stride that a new leading dim of size 1 gets: it spans what follows
    for i in range(len(to) - 1, -1, -1):
        size, stride = (shape[i - lead], strides[i - lead]) if i >= lead else (1, step)
        stride = 0 if _is_one(size) and not _is_one(to[i]) else stride
        grown.append(stride)
        step = to[i] * stride
    return tuple(reversed(grown))


def infer_size(shape: Sequence[Dim], count: Dim) -> Shape:
    """Replace one ``-1`` so that the product is ``count``. Raises RuntimeError with torch's wording."""
    holes = [i for i, s in enumerate(shape) if isinstance(s, int) and s == -1]
    if len(holes) > 1:
        raise RuntimeError("only one dimension can be inferred")
    for i, s in enumerate(shape):
        if isinstance(s, int) and s < -1:
            raise RuntimeError(f"invalid shape dimension {s} at index {i} of shape {list(shape)}")
    rest = ex.product(s for i, s in enumerate(shape) if i not in holes)
    shown = [int(s) if isinstance(s, int) else s for s in shape]
    if holes:
        empty = isinstance(rest, int) and rest == 0
        if empty and isinstance(count, int) and count == 0:
            raise RuntimeError(
                f"cannot reshape tensor of 0 elements into shape {shown} because the unspecified dimension size "
                "-1 can be any value and is ambiguous"
            )
        if empty or not same(ex.mod(count, rest), 0):
            raise RuntimeError(f"shape '{shown}' is invalid for input of size {count}")
        return tuple(ex.floordiv(count, rest) if i in holes else s for i, s in enumerate(shape))
    if not same(rest, count):
        raise RuntimeError(f"shape '{shown}' is invalid for input of size {count}")
    return tuple(shape)


def view_strides(shape: Sequence[Dim], strides: Sequence[Dim], new_shape: Sequence[Dim]) -> Shape | None:
    """Strides with which ``new_shape`` views the same memory, or None where they forbid it (computeStride of ATen)."""
    if any(isinstance(s, int) and s == 0 for s in shape):
        return tuple(strides) if tuple(shape) == tuple(new_shape) else contiguous_strides(new_shape)
    result: list[Dim] = [0] * len(new_shape)
    view_d = len(new_shape) - 1
    chunk_stride: Dim = strides[-1] if strides else 1
    tensor_count: Dim = 1
    view_count: Dim = 1
    for d in range(len(shape) - 1, -1, -1):
        tensor_count = tensor_count * shape[d]
        last = d == 0 or not (same(strides[d - 1], tensor_count * chunk_stride) or same(shape[d - 1], 1))
        if not last:
            continue
        while view_d >= 0 and (not same(view_count, tensor_count) or same(new_shape[view_d], 1)):
            result[view_d] = view_count * chunk_stride
            view_count = view_count * new_shape[view_d]
            view_d -= 1
        if not same(view_count, tensor_count):
            return None
        if d > 0:
            chunk_stride, tensor_count, view_count = strides[d - 1], 1, 1
    if view_d != -1 and shape:
        return None
    return tuple(result) if shape else contiguous_strides(new_shape)


def _is_one(d: Dim) -> bool:
    return isinstance(d, int) and d == 1
