"""``lower``: Graph -> Loops. One nest a graph node that computes; views fold into index maps; the rest are library calls.

Each record's lowering picks the function here. Reading order: values.py (tensors as buffer + index map), nest.py (formulas
become statements), then pointwise.py, reduction.py, indexed.py, scatter.py, writes.py, extern.py.
"""

from __future__ import annotations

from typing import Any

from tinycompile.base.dtypes import FLOAT8
from tinycompile.base.errors import InternalError
from tinycompile.base.expr import Expr, sym, symbols
from tinycompile.base.meta import TensorMeta
from tinycompile.base.shapes import env_with
from tinycompile.ir.builder import dims_in
from tinycompile.ir.graph import Graph, Node, Ref
from tinycompile.ir.loops import Loops
from tinycompile.lower.extern import as_output, lower_extern
from tinycompile.lower.indexed import lower_indexed
from tinycompile.lower.pointwise import lower_pointwise
from tinycompile.lower.program import COMPUTABLE, Program, results_of
from tinycompile.lower.reduction import lower_reduction, lower_scan
from tinycompile.lower.scatter import is_lowered, lower_scatter
from tinycompile.lower.values import TensorValue, ViewStep
from tinycompile.lower.writes import is_plain_write, lower_write
from tinycompile.ops.ranges import out_of_range
from tinycompile.ops.record import OPS, Indexed, Pointwise, Reduction, Scan, Scatter, View


def lower(graph: Graph, products: bool = False) -> Loops:
    """Lower a whole graph. Records that still carry a Decompose lowering run as library calls. ``products``: matrix products
    also say what they compute, for a target that may generate them.

    Raises InternalError for a graph that breaks its rules; run ``verify_graph`` for a better message."""
    program = Program(graph, products)
    env = env_with(graph.hints)
    with env.active():
        for node in graph.nodes[:-1]:
            program.values[node.name] = _lower_node(program, node)
        outputs = tuple(as_output(program, program.number(o)) for o in graph.output.args[0])
    return program.finish(outputs)


def _lower_node(program: Program, node: Node) -> Any:
    if node.kind == "placeholder":
        return _lower_placeholder(program, node)
    if node.kind == "item":
        return program.values[node.args[0].name][node.args[1]]
    if node.kind == "extern":
        return lower_write(program, node) if is_plain_write(program, node) else lower_extern(program, node)
    if node.kind != "call":
        raise InternalError(f"a node of kind {node.kind!r} in the middle of a graph")
    op = OPS[node.target]
    lowering = op.lowering
    if isinstance(lowering, View) and isinstance(node.meta, TensorMeta):
        return _lower_view(program, node, lowering)
    if not _computable(program, node):
        return lower_extern(program, node)
    if isinstance(lowering, Pointwise):
        return lower_pointwise(program, node, op, lowering)
    if isinstance(lowering, Reduction):
        return lower_reduction(program, node, op, lowering)
    if isinstance(lowering, Scan):
        return lower_scan(program, node, op, lowering)
    if isinstance(lowering, Indexed) and not lowering.library(*node.args):
        return lower_indexed(program, node, lowering)
    if isinstance(lowering, Scatter) and is_lowered(node, lowering):
        return lower_scatter(program, node, lowering)
    return lower_extern(program, node)


def _lower_placeholder(program: Program, node: Node) -> Any:
    if node.target == "size":
        return _size_symbol(program.graph, node.name)
    if node.meta is None:
        raise InternalError(f"the input {node.name} is a {node.target}: only sizes can be numeric inputs of generated code")
    program.metas[node.name] = node.meta
    program.roles[node.name] = "input"
    return TensorValue(node.meta, node.name)


def _size_symbol(graph: Graph, name: str) -> Expr:
    """The symbol of a numeric input, with the range that the graph's own dims give it."""
    used = (s for n in graph.nodes for d in dims_in((n.args, n.kwargs, n.meta)) for s in symbols(d) if s.name == name)
    known = next(used, None)
    return sym(name, 2) if known is None else sym(name, known.lo, known.stop)


def _lower_view(program: Program, node: Node, lowering: View) -> TensorValue:
    source = program.value(node.args[0])
    rest = tuple(program.number(a) for a in node.args[1:])
    return program.view(node, source, ViewStep(lowering.index, source.meta, node.meta, rest))


def _computable(program: Program, node: Node) -> bool:
    """Whether generated code has all the dtypes of a call, and its numbers are such that it may compute with them."""
    op = OPS[node.target]
    dtypes = COMPUTABLE | FLOAT8 if op.moves else COMPUTABLE
    return all(
        m.dtype in dtypes for m in (*results_of(node), *_tensor_metas(program, node.args)) if isinstance(m, TensorMeta)
    ) and not out_of_range(op, node.args, node.meta)


def _tensor_metas(program: Program, arg: Any) -> list[TensorMeta]:
    if isinstance(arg, Ref):
        value = program.values[arg.name]
        return [value.meta] if isinstance(value, TensorValue) else []
    return [m for a in arg for m in _tensor_metas(program, a)] if isinstance(arg, tuple) else []
