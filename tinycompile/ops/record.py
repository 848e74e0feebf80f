"""The op record: everything that an op means, stated once.

Binding on ``Tensor`` and ``tinycompile.<name>``, the table of torch functions for capture, dispatch entries, gradients,
lowering, generated tests and the docs table all derive from these records.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Union

from tinycompile.base.expr import Dim
from tinycompile.base.meta import TensorMeta
from tinycompile.base.shapes import current_env, settled
from tinycompile.dispatch.schema import Schema
from tinycompile.ops.scalar import Value

Metas = Union[TensorMeta, tuple[TensorMeta, ...]]


@dataclass(frozen=True, slots=True)
class Pointwise:
    """``formula(b, *inputs, **attrs)`` at each output coordinate. Inputs broadcast and come as Values of the compute dtype.

    ``promote`` mirrors torch's elementwise kinds: ``default``; ``int_to_float`` (integers compute in the default float dtype);
    ``bool_out`` (inputs promote, the result is bool); ``no_opmath``; ``none`` (each input keeps its own dtype: ``where``'s
    condition, casts). Arguments of type Tensor in the schema are inputs, in schema order (a Python number given for one
    becomes a constant); the rest are ``attrs`` by name.
    """

    formula: Callable[..., Value]
    promote: str = "default"


@dataclass(frozen=True, slots=True)
class Reduction:
    """``kind`` of :data:`~tinycompile.ops.scalar.REDUCTIONS` over the dims that the schema's ``dim`` names (None: all).

    ``prologue(b, x, **attrs)`` maps each element (given in its opmath dtype); ``epilogue(b, *reduced, count, **attrs)`` maps
    the reduced values (``count``: a Value, the number of elements reduced, in the accumulation dtype) and returns one Value
    per output.
    """

    kind: str
    prologue: Callable[..., Value] | None = None
    epilogue: Callable[..., Value | tuple[Value, ...]] | None = None


@dataclass(frozen=True, slots=True)
class Scan:
    """An inclusive scan of ``kind`` along the schema's ``dim``."""

    kind: str


@dataclass(frozen=True, slots=True)
class View:
    """An index map: ``index(coords, meta_in, meta_out, *rest)`` turns output coordinates into input coordinates.

    Whether the op aliases its input follows from the metas: same offset arithmetic, no new storage. ``rest`` are the call's
    other arguments in schema order.
    """

    index: Callable[..., tuple[Dim, ...]]


@dataclass(frozen=True, slots=True)
class Indexed:
    """``formula(b, coords, meta_out, *args)`` computes the element at output ``coords``; tensor arguments come as Operands
    (lists of tensors as lists of Operands). For gathers, padding, concatenation, triangles and creation ops.

    ``library(*args)``: why torch's own kernel serves a call better; "" where it doesn't."""

    formula: Callable[..., Value]
    library: Callable[..., str] = lambda *args: ""


@dataclass(frozen=True, slots=True)
class Scatter:
    """Values brought to places that indices name, in a copy of the first tensor (``from_zeros``: in zeros).

    ``points(meta_out, *args)``: the shape of the values. ``formula(b, coords, meta_out, *args)``: where the value at ``coords``
    goes (one coordinate a dim of the result), and the value. ``adds(*args)``: whether values are added to what is there; else,
    of several for one place, the last in order stays (on a GPU: any one). Tensor arguments come as Operands. ``in_order``:
    torch's own kernel on a GPU sorts before it adds, so its sums repeat to the bit, as atomic additions don't."""

    points: Callable[..., tuple[Dim, ...]]
    formula: Callable[..., tuple[tuple[Dim, ...], Value]]
    adds: Callable[..., bool]
    from_zeros: bool = False
    in_order: bool = False


@dataclass(frozen=True, slots=True)
class Decompose:
    """``fn(*args)`` in terms of other ops, called through the dispatcher (so it works on any tensors and under tracing).
    It may return NotImplemented: then the op stays an extern call."""

    fn: Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Extern:
    """Runs as torch's own kernel at run time."""


Lowering = Union[Pointwise, Reduction, Scan, View, Indexed, Scatter, Decompose, Extern]


@dataclass(frozen=True, slots=True)
class Vjp:
    """The derivative formula, written in terms of ops (so it runs eagerly, under tracing, and can itself be differentiated).

    ``fn(grads, args, results, needs)``: ``grads`` one a result (None where undefined), ``args`` the call's arguments in schema
    order, ``results`` a tuple, ``needs`` one flag an argument (a tuple of flags for a list of tensors). Returns one gradient an
    argument (None for what has none or is not needed; a tuple for a list). ``saves``: the arguments whose *values* the formula
    reads, by schema name, and ``"result"`` (or ``"result0"``, ...) for results; of everything else it may read metadata alone.
    Also those that torch's own formula reads: an edit of them before the backward is its error.
    ``"self?other"``: ``self`` is read for the gradient of ``other`` alone; ``"tensors?others"``: each tensor of the list for
    those of the others."""

    fn: Callable[..., Sequence[Any]]
    saves: tuple[str, ...] = ()
    kept: tuple[str, ...] | None = None
    """Of a program's own formula: what it has torch keep, by the same names, and so frees."""

    def reads(self, schema: Schema, needs: Sequence[Any]) -> frozenset[str]:
        """What the formula reads when these gradients are needed."""
        return read_for(self.saves, schema, needs)


def read_for(saves: Iterable[str], schema: Schema, needs: Sequence[Any]) -> frozenset[str]:
    """Of ``saves`` what counts when these gradients are needed."""
    wanted = {a.name for a, n in zip(schema.args, needs, strict=True) if (any(n) if isinstance(n, tuple) else n)}
    wanted |= {"others"} if any(isinstance(n, tuple) and len(n) > 1 and any(n) for n in needs) else set()
    parts = [s.partition("?") for s in saves]
    return frozenset(name for name, _, target in parts if not target or target in wanted)


@dataclass(frozen=True)
class TensorSpec:
    """How to make one sample input. ``layout``: contiguous, transposed, strided (every second), expanded, offset,
    channels_last. ``fill``: normal, positive, unit (in (-1, 1)), integers, special (adds NaN, infinities, signed zeros),
    index:N (ints in [0, N))."""

    shape: tuple[int, ...]
    dtype: str = "float32"
    layout: str = "contiguous"
    fill: str = "normal"


@dataclass(frozen=True)
class Sample:
    """One call: positional and keyword arguments where TensorSpec stands for a tensor."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""


@dataclass(frozen=True, eq=False)
class Op:
    """One op. ``meta`` takes the call's arguments with TensorMeta for each tensor and returns the outputs' metas, raising what
    torch would raise; ``eager`` takes torch tensors; ``vjp`` None: not differentiable, or through its decomposition.
    ``functions`` are dotted torch names that mean this op ("torch.gelu", "torch.Tensor.add", "operator.add").

    Rules ask of a size whether it is 1, or 0, without a guard: symbolic ones never are, so what ``meta`` gives is settled."""

    schema: Schema
    meta: Callable[..., Metas]
    eager: Callable[..., Any]
    lowering: Lowering
    functions: tuple[str, ...] = ()
    samples: Callable[[], Iterable[Sample]] = tuple
    vjp: Vjp | None = None
    ulp: float = 1.0
    doc: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "meta", _settling(self.meta))

    @property
    def name(self) -> str:
        """ATen's name without overload."""
        return self.schema.name

    @property
    def rule(self) -> Callable[..., Metas]:
        """``meta`` as it was declared."""
        return inspect.unwrap(self.meta)

    @property
    def moves(self) -> bool:
        """Whether it brings values elsewhere, or to another dtype, and computes nothing: what there is for float8."""
        return isinstance(self.lowering, View) or self.name in _MOVES


def _settling(rule: Callable[..., Metas]) -> Callable[..., Metas]:
    @functools.wraps(rule)
    def meta(*args: Any) -> Metas:
        found = rule(*args)
        return found if current_env() is None else _settled(found)

    return meta


def _settled(found: Any) -> Any:
    if isinstance(found, tuple):
        return tuple(map(_settled, found))
    if not isinstance(found, TensorMeta):
        return found
    shape, strides = settled(found.shape, found.strides)
    kept = shape is found.shape and strides is found.strides
    return found if kept else TensorMeta(shape, strides, found.dtype, found.device, found.offset)


_MOVES = frozenset(("to", "clone", "contiguous", "restride"))
OPS: dict[str, Op] = {}
CUSTOM: dict[str, str] = {}  # records of the program's own: a hash of what they were made of, for cache keys


def register(op: Op) -> Op:
    """Add a record; a name can be taken once."""
    if op.name in OPS:
        raise ValueError(f"op {op.name} is registered already")
    OPS[op.name] = op
    return op


@dataclass(frozen=True, slots=True)
class BoundCall:
    """A torch call resolved to a record: arguments positional in schema order, defaults filled in.

    ``inplace``: the result must be written into (and is) the first argument. ``out``: the user's ``out=``, if any. ``sliced``:
    the parts are slices each to torch, which lets them be written to. ``unsafe``: torch's function, whose results share memory
    with its argument and are no views of it to autograd."""

    op: Op
    args: tuple[Any, ...]
    inplace: bool = False
    out: Any = None
    sliced: bool = False
    unsafe: str = ""


BindFn = Callable[[Sequence[Any], Mapping[str, Any]], BoundCall]
