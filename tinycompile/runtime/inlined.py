"""Launches in place: the wrapper's ``call`` with each launching function's own expression where the wrapper calls it.

A launcher is one expression over its arguments, so a call of it is a frame for nothing: 0.14 us of a launch's 4.5. The
wrapper's text stays as people read it; this is a second code for the same function.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import CodeType
from typing import Any


@dataclass(frozen=True)
class Launch:
    """What a launching function does: the expression ``text`` over ``stream`` and its ``parameters``; all other names
    stand for ``values``."""

    text: str
    parameters: tuple[str, ...]
    values: Mapping[str, Any]

    def parsed(self) -> ast.expr:
        """The expression, anew."""
        return ast.parse(self.text, mode="eval").body


def inline(wrapper: str, file: str, launches: Mapping[str, Launch], namespace: dict[str, Any]) -> CodeType:
    """The code of the wrapper's function ``call``, which calls none of ``launches`` (by name). What it needs more is put into
    the ``namespace`` in which it is to run."""
    tree = ast.fix_missing_locations(_InPlace(launches, namespace).visit(ast.parse(wrapper)))
    scratch: dict[str, Any] = {}
    exec(compile(tree, file, "exec"), scratch)
    code: CodeType = scratch["call"].__code__
    return code


class _InPlace(ast.NodeTransformer):
    """Statements ``name(stream(), ...)`` -> the launch's own expression."""

    def __init__(self, launches: Mapping[str, Launch], namespace: dict[str, Any]) -> None:
        self.launches, self.namespace = launches, namespace

    def visit_Expr(self, node: ast.Expr) -> ast.Expr:
        call = node.value
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.func.id not in self.launches:
            return node
        name, launch = call.func.id, self.launches[call.func.id]
        simple = all(isinstance(a, (ast.Name, ast.Constant)) for a in call.args[1:])  # an argument may occur more than once
        if call.keywords or not simple or len(call.args) != len(launch.parameters) + 1:
            return node
        given = dict(zip(("stream", *launch.parameters), call.args, strict=True))
        expression = _Substituted(lambda used: given.get(used) or self._value(name, launch, used)).visit(launch.parsed())
        return ast.copy_location(ast.Expr(_located(expression, node)), node)

    def _value(self, name: str, launch: Launch, used: str) -> ast.expr:
        """What a name of the expression stands for, under a name that nothing else has: no program's own has a dot."""
        self.namespace[f"{name}.{used}"] = launch.values[used]
        return ast.Name(f"{name}.{used}", ast.Load())


class _Substituted(ast.NodeTransformer):
    """An expression with others for its names."""

    def __init__(self, given: Callable[[str], ast.expr]) -> None:
        self.given = given

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return copy.deepcopy(self.given(node.id))


def _located(expression: ast.expr, at: ast.stmt) -> ast.expr:
    """All of it at the statement's place: tracebacks name the wrapper's line."""
    for part in ast.walk(expression):
        if isinstance(part, ast.expr):
            ast.copy_location(part, at)
    return expression
