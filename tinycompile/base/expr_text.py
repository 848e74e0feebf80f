"""Text -> integer expression, the inverse of ``str()``."""

from __future__ import annotations

import ast
from collections.abc import Callable

from tinycompile.base.expr import Dim, floordiv, maximum, minimum, mod, sym


def parse(text: str) -> Dim:
    """The inverse of ``str()``. Symbols come back with ``lo=0`` and no stop. Raises ValueError on anything else."""
    return _from_ast(ast.parse(text, mode="eval").body)


_BINARY: dict[type[ast.operator], Callable[[Dim, Dim], Dim]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.FloorDiv: floordiv,
    ast.Mod: mod,
}


def _from_ast(node: ast.expr) -> Dim:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.Name):
        return sym(node.id)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_from_ast(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        return _BINARY[type(node.op)](_from_ast(node.left), _from_ast(node.right))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("min", "max"):
        return (minimum if node.func.id == "min" else maximum)(_from_ast(node.args[0]), _from_ast(node.args[1]))
    raise ValueError(f"not an integer expression: {ast.unparse(node)}")
