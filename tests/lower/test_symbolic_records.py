"""Every record with symbolic sizes: lowered once, run at the sizes seen and at others where what was assumed still holds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import tinycompile.ops  # noqa: F401
from tests.lower.support import assert_contract, assert_same_form, bind_sample, leaves, run_eager, to_double
from tinycompile.base.device import Device
from tinycompile.base.expr import evaluate
from tinycompile.base.meta import TensorMeta
from tinycompile.base.shapes import ShapeEnv
from tinycompile.ir.effects import is_random
from tinycompile.ir.graph import Graph, Node, Ref
from tinycompile.ir.loops_reference import run_loops
from tinycompile.ir.verify_loops import verify_loops
from tinycompile.lower.lowering import lower
from tinycompile.ops.record import OPS, Op, Sample, TensorSpec
from tinycompile.passes.pipeline import optimize

pytestmark = [pytest.mark.pure, pytest.mark.filterwarnings("ignore:.*degrees of freedom")]

UNDEFINED = frozenset({"empty", "empty_like"})
SIZES_IN_ARGUMENTS = frozenset({"restride"})  # strides given as numbers fit one size
REFUSALS = (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError)


def _specs(value: Any) -> list[TensorSpec]:
    if isinstance(value, TensorSpec):
        return [value]
    return [s for v in value for s in _specs(v)] if isinstance(value, (list, tuple)) else []


def _resized(value: Any, sizes: dict[int, int]) -> Any:
    if isinstance(value, TensorSpec):
        return replace(value, shape=tuple(sizes.get(n, n) for n in value.shape))
    return type(value)(_resized(v, sizes) for v in value) if isinstance(value, (list, tuple)) else value


def _usable(sample: Sample) -> bool:
    """Row-major tensors of sizes of at least 2 whose data is no index: then any size is as good as another."""
    specs = _specs((*sample.args, *sample.kwargs.values()))
    plain = all(
        s.layout == "contiguous" and not s.fill.startswith("index") and s.fill != "special" and 0 not in s.shape for s in specs
    )
    return bool(specs) and plain and any(n > 1 for s in specs for n in s.shape)


def _symbolic_graph(op: Op, args: tuple[Any, ...], env: ShapeEnv) -> tuple[Graph, list[torch.Tensor]]:
    """As graph_of_call, with a symbol for each size above 1."""
    symbols: dict[int, Any] = {}
    metas: dict[str, TensorMeta] = {}
    inputs: list[torch.Tensor] = []

    def note(a: Any) -> Any:
        if isinstance(a, torch.Tensor):
            for n in a.shape:
                if n > 1 and n not in symbols:
                    symbols[n] = env.new_size(f"s{n}", n)
            name = f"x{len(inputs)}"
            inputs.append(a)
            shape = tuple(symbols.get(n, n) for n in a.shape)
            metas[name] = TensorMeta.contiguous(shape, a.dtype, Device("cpu"))
            return Ref(name)
        return tuple(note(v) for v in a) if isinstance(a, tuple) else a

    def with_metas(a: Any) -> Any:
        if isinstance(a, Ref):
            return metas[a.name]
        return tuple(with_metas(v) for v in a) if isinstance(a, tuple) else a

    refs = note(args)
    result = op.meta(*with_metas(refs))
    nodes = [Node(name, "placeholder", "", meta=m) for name, m in metas.items()]
    nodes.append(Node("y", "call", op.name, refs, (), result))
    outputs = ["y"] if isinstance(result, TensorMeta) else [f"y_{i}" for i in range(len(result))]
    if outputs != ["y"]:
        nodes += [Node(name, "item", "", (Ref("y"), i), meta=result[i]) for i, name in enumerate(outputs)]
    nodes.append(Node("output", "output", "", (tuple(map(Ref, outputs)),)))
    return Graph("f", tuple(nodes), tuple(env.hints.items())), inputs


def _holds(env: ShapeEnv, sizes: dict[str, int]) -> bool:
    """Whether every relation that was decided by the sizes seen also holds at these."""
    for relation in env.relations:
        value = evaluate(relation.expr, sizes)
        if (value >= 0 if relation.kind == "ge" else value == 0) != relation.holds:
            return False
    return True


def _compare(op: Op, args: tuple[Any, ...], got: list[Any], graph: Graph) -> None:
    want = run_eager(op.eager, args)
    try:
        exact = run_eager(op.eager, to_double(args))
    except REFUSALS:
        exact = [None] * len(want)
    undefined = op.name in UNDEFINED or any(is_random(n) for n in graph.nodes)
    for g, w, e in zip(got, want, exact, strict=True):
        if undefined:
            assert_same_form(g, w)
        else:
            assert_contract(g, w, e if isinstance(e, torch.Tensor) and e.shape == w.shape else None, op.ulp)


def _check(op: Op, sample: Sample) -> int:
    """Returns at how many sizes it ran."""
    torch.manual_seed(0)
    args = bind_sample(op, sample)
    try:
        run_eager(op.eager, args)
    except REFUSALS:
        return 0
    env = ShapeEnv()
    with env.active():
        graph, inputs = _symbolic_graph(op, args, env)
        loops = lower(optimize(graph))
        verify_loops(loops)
    _compare(op, args, run_loops(loops, inputs), graph)
    ran = 1
    for step in () if op.name in SIZES_IN_ARGUMENTS else (1, 3):
        sizes = {n: n + step for n in env.hints.values()}
        if not _holds(env, {f"s{n}": m for n, m in sizes.items()}):
            continue
        other = bind_sample(op, Sample(_resized(sample.args, sizes), {k: _resized(v, sizes) for k, v in sample.kwargs.items()}))
        _compare(op, other, run_loops(loops, [a for a in leaves(other) if isinstance(a, torch.Tensor)]), graph)
        ran += 1
    return ran


@pytest.mark.parametrize("name", sorted(OPS))
def test_record(name: str) -> None:
    for sample in OPS[name].samples():
        if not _usable(sample):
            continue
        try:
            _check(OPS[name], sample)
        except Exception as error:
            raise AssertionError(f"{name}: {sample}: {type(error).__name__}: {error}") from error
