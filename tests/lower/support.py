"""Graphs for tests: one op from a record's sample, or a function traced on fake tensors; and the judge of results."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from tinycompile.base.device import Device
from tinycompile.base.expr import Expr, evaluate, sym
from tinycompile.base.meta import TensorMeta
from tinycompile.base.shapes import ShapeEnv
from tinycompile.ir.builder import map_refs
from tinycompile.ir.graph import Graph, Node, Ref
from tinycompile.ir.interpreter import torch_function
from tinycompile.ir.loops_reference import run_loops
from tinycompile.ir.loops_text import print_loops
from tinycompile.ir.verify_loops import verify_loops
from tinycompile.lower.lowering import lower
from tinycompile.ops.record import OPS, Op, Sample, TensorSpec
from tinycompile.passes.pipeline import optimize

HALF_OR_FLOAT_EPS = {torch.float16: 2**-10, torch.bfloat16: 2**-7, torch.float32: 2**-23, torch.float64: 2**-52}


def make_tensor(spec: TensorSpec) -> torch.Tensor:
    """A CPU tensor as the spec describes it."""
    dtype = getattr(torch, spec.dtype)
    shape = spec.shape
    if spec.layout == "transposed" and len(shape) >= 2:
        return fill((*shape[:-2], shape[-1], shape[-2]), dtype, spec.fill).transpose(-1, -2)
    if spec.layout == "strided" and shape:
        return fill((*shape[:-1], shape[-1] * 2), dtype, spec.fill)[..., ::2]
    if spec.layout == "expanded" and shape:
        return fill((1, *shape[1:]), dtype, spec.fill).expand(shape)
    if spec.layout == "offset" and shape:
        return fill((shape[0] + 1, *shape[1:]), dtype, spec.fill)[1:]
    made = fill(shape, dtype, spec.fill)
    return made.contiguous(memory_format=torch.channels_last) if spec.layout == "channels_last" else made


def fill(shape: Sequence[int], dtype: torch.dtype, kind: str) -> torch.Tensor:
    """Data of one of TensorSpec's kinds."""
    if kind.startswith("index:"):
        stop = int(kind[6:])
        return torch.randint(min(0, stop), max(0, stop), tuple(shape)).to(dtype)
    if dtype is torch.bool:
        return torch.rand(tuple(shape)) < 0.5
    if kind == "positive":
        data = torch.rand(tuple(shape), dtype=torch.float64) * 3 + 0.1
        return data.to(dtype) if dtype.is_floating_point else torch.randint(1, 7, tuple(shape)).to(dtype)
    if kind == "unit":
        return (torch.rand(tuple(shape), dtype=torch.float64) * 1.98 - 0.99).to(dtype)
    if kind == "integers" or not (dtype.is_floating_point or dtype.is_complex):
        low = 0 if dtype is torch.uint8 else -9
        return torch.randint(low, 10, tuple(shape)).to(dtype)
    data = torch.randn(tuple(shape), dtype=torch.complex128 if dtype.is_complex else torch.float64)
    if kind == "special" and data.numel():
        odd = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1e30, -1e-30], dtype=torch.float64)
        flat = data.view(-1)
        at = torch.randperm(flat.numel())[: len(odd)]
        flat[at] = odd[: len(at)].to(flat.dtype)
    return data.to(dtype)


def meta_of(t: torch.Tensor) -> TensorMeta:
    """Metadata of a real tensor."""
    return TensorMeta(tuple(t.shape), t.stride(), t.dtype, Device.of(t.device), t.storage_offset())


def bind_sample(op: Op, sample: Sample) -> tuple[Any, ...]:
    """The sample's arguments in schema order, with tensors made; lists become tuples."""
    args = op.schema.bind([_made(a) for a in sample.args], {k: _made(v) for k, v in sample.kwargs.items()})
    return tuple(tuple(a) if isinstance(a, list) else a for a in args)


def _made(arg: Any) -> Any:
    if isinstance(arg, TensorSpec):
        return make_tensor(arg)
    if isinstance(arg, (list, tuple)):
        return tuple(_made(a) for a in arg)
    return Device.of(arg) if isinstance(arg, torch.device) else arg


def graph_of_call(op: Op, args: tuple[Any, ...]) -> tuple[Graph, list[torch.Tensor]]:
    """A graph of one call; each tensor among the arguments is an input, and every result an output."""
    inputs: dict[int, tuple[str, torch.Tensor]] = {}

    def note(a: Any) -> Any:
        if isinstance(a, torch.Tensor):
            name, _ = inputs.setdefault(id(a), (f"x{len(inputs)}", a))
            return Ref(name)
        return tuple(note(v) for v in a) if isinstance(a, tuple) else a

    def metas(a: Any) -> Any:
        if isinstance(a, torch.Tensor):
            return meta_of(a)
        return tuple(metas(v) for v in a) if isinstance(a, tuple) else a

    refs = note(args)
    result = op.meta(*metas(args))
    nodes = [Node(name, "placeholder", "", meta=meta_of(t)) for name, t in inputs.values()]
    nodes.append(Node("y", "call", op.name, refs, (), result))
    outputs = ["y"]
    if isinstance(result, tuple):
        outputs = [f"y_{i}" for i in range(len(result))]
        nodes += [Node(name, "item", "", (Ref("y"), i), meta=result[i]) for i, name in enumerate(outputs)]
    nodes.append(Node("output", "output", "", (tuple(Ref(o) for o in outputs),)))
    return Graph("f", tuple(nodes)), [t for _, t in inputs.values()]


def to_double(args: Any) -> Any:
    """The same arguments with floats in float64: what the judge computes with."""
    if isinstance(args, torch.Tensor):
        return args.double() if args.is_floating_point() else args
    if isinstance(args, torch.dtype) and args.is_floating_point:
        return torch.float64
    return tuple(to_double(a) for a in args) if isinstance(args, tuple) else args


def leaves(result: Any) -> Iterator[Any]:
    """Flat results."""
    if isinstance(result, (tuple, list)):
        for r in result:
            yield from leaves(r)
    else:
        yield result


def run_eager(fn: Callable[..., Any], args: tuple[Any, ...]) -> list[Any]:
    """Torch's own answer, flat."""
    return list(leaves(fn(*(a.torch() if isinstance(a, Device) else a for a in args))))


def assert_same_form(got: torch.Tensor, want: torch.Tensor) -> None:
    """Shape, dtype and strides."""
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    assert got.stride() == want.stride() or want.numel() == 0, f"strides {got.stride()}, torch's are {want.stride()}"


def assert_contract(got: torch.Tensor, want: torch.Tensor, exact: torch.Tensor | None, ulp: float = 1.0) -> None:
    """The contract of results: equal where exact; else as close to float64's answer as twice eager's error plus ``ulp``."""
    assert_same_form(got, want)
    if not want.is_floating_point():
        assert torch.equal(got, want), f"{got}\n{want}"
        return
    mended = _lost_by_torch(got, want, exact)
    if exact is not None and mended.any():
        assert torch.equal(got[mended], exact[mended].to(want.dtype)), f"{got}\n{exact}"
        got, want, exact = got[~mended], want[~mended], exact[~mended]
    special = ~torch.isfinite(want)
    assert torch.equal(got[special].double(), want[special].double()) or _same_special(got[special], want[special]), (
        f"{got}\n{want}"
    )
    keep = torch.isfinite(want) & torch.isfinite(got)
    assert torch.equal(torch.isfinite(got), torch.isfinite(want)), f"{got}\n{want}"
    judge = (want if exact is None else exact).double()[keep]
    error, eager_error = (got.double()[keep] - judge).abs(), (want.double()[keep] - judge).abs()
    unit = HALF_OR_FLOAT_EPS[want.dtype] * judge.abs().clamp(min=torch.finfo(want.dtype).tiny)
    if error.numel():
        bound = 2 * eager_error.max() + ulp * unit.max()
        assert error.max() <= bound, f"off by {error.max():.3g}, allowed {bound:.3g}\n{got}\n{want}"


def _lost_by_torch(got: torch.Tensor, want: torch.Tensor, exact: torch.Tensor | None) -> torch.Tensor:
    """Where torch's answer is NaN and neither float64's nor ours is: some of its vector loops lose infinities (gelu's)."""
    if exact is None or not exact.is_floating_point():
        return torch.zeros_like(want, dtype=torch.bool)
    return want.isnan() & ~exact.isnan() & ~got.isnan()


def _same_special(a: torch.Tensor, b: torch.Tensor) -> bool:
    return bool(((a == b) | (a.isnan() & b.isnan())).all())


class GraphMaker:
    """Builds a graph call by call; beside each node it keeps torch's value and the value in float64."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.metas: dict[str, Any] = {}
        self.values: dict[str, Any] = {}
        self.exact: dict[str, Any] = {}
        self.inputs: list[Any] = []
        self.env = ShapeEnv()

    def input(self, value: torch.Tensor, name: str = "", symbolic: bool = False) -> Ref:
        """A tensor input; ``symbolic``: its sizes become symbols (equal sizes the same one), its strides row-major in them."""
        meta = meta_of(value)
        if symbolic:
            shape = tuple(self._symbol(n) if n > 1 else n for n in value.shape)
            meta = TensorMeta.contiguous(shape, value.dtype, meta.device)
        self.inputs.append(value)
        return self._add(Node(name or f"x{len(self.nodes)}", "placeholder", "", meta=meta), value, to_double(value))

    def call(self, op_name: str, *args: Any, name: str = "", **kwargs: Any) -> Ref:
        """A call of a record with one result."""
        op = OPS[op_name]
        bound = tuple(tuple(a) if isinstance(a, list) else a for a in op.schema.bind(args, kwargs))
        with self.env.active():
            meta = op.meta(*self._with(self.metas, bound))
        node = Node(name or f"v{len(self.nodes)}", "call", op_name, bound, (), meta)
        value = op.eager(*self._numbers(self._with(self.values, bound)))
        return self._add(node, value, op.eager(*to_double(self._numbers(self._with(self.exact, bound)))))

    def extern(self, path: str, meta: TensorMeta, *args: Any, name: str = "") -> Ref:
        """A call of a torch function by path."""
        value = torch_function(path)(*self._with(self.values, args))
        return self._add(Node(name or f"v{len(self.nodes)}", "extern", path, args, (), meta), value, to_double(value))

    def graph(self, *outputs: Any) -> Graph:
        """The graph as built."""
        return Graph("f", (*self.nodes, Node("output", "output", "", (tuple(outputs),))), tuple(self.env.hints.items()))

    def _symbol(self, size: int) -> Any:
        name = f"s{size}"
        return sym(name, 2) if name in self.env.hints else self.env.new_size(name, size)

    def _add(self, node: Node, value: Any, exact: Any) -> Ref:
        self.nodes.append(node)
        self.metas[node.name], self.values[node.name], self.exact[node.name] = node.meta, value, exact
        return Ref(node.name)

    def _with(self, table: dict[str, Any], args: Any) -> Any:
        return map_refs(args, lambda r: table[r.name])

    def _numbers(self, args: Any) -> Any:
        if isinstance(args, tuple):
            return tuple(self._numbers(a) for a in args)
        if isinstance(args, Device):
            return args.torch()
        return evaluate(args, self.env.hints) if isinstance(args, Expr) else args


def run_lowered(graph: Graph, inputs: Sequence[Any], passes: bool = True) -> list[Any]:
    """Optimize, lower, verify, print and run."""
    loops = lower(optimize(graph) if passes else graph)
    verify_loops(loops)
    ast.parse(print_loops(loops))
    return run_loops(loops, inputs)
