"""Which of its pointer arguments a Triton kernel writes to, read off its source.

``tl.store`` and the atomics write where their first argument points. Names are followed from parameters through assignments:
an expression points to what the names in it point to; what is loaded is data. A function that the kernel calls is looked into;
what can't be (a function of another kind, assembly) is taken to write to all that it is given.
"""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Iterator
from typing import Any

from tinycompile.capture.trust import module_of

_WRITES = ("store", "atomic", "asm")  # parts of the names of Triton's functions and methods that write
_PLAIN = frozenset({"range", "static_range", "min", "max", "len", "print", "int", "float", "isinstance", "tuple"})


def is_kernel(obj: Any) -> bool:
    """Whether an object is a function of Triton's, perhaps autotuned."""
    kind = type(obj)
    return module_of(kind).startswith("triton.runtime.") and hasattr(kind, "run") and hasattr(obj, "arg_names")


def layers(kernel: Any) -> Iterator[Any]:
    """The kernel and what it is made of: an autotuner, heuristics, and last the Python function."""
    yield kernel
    while hasattr(kernel, "fn"):
        kernel = kernel.fn
        yield kernel


def source_of(kernel: Any) -> str:
    """The text of the kernel's Python function; empty where there is none to read."""
    *_, fn = layers(kernel)
    try:
        return textwrap.dedent(inspect.getsource(fn))
    except (OSError, TypeError):
        return ""


def written_parameters(kernel: Any) -> frozenset[str] | None:
    """The names of parameters through which a kernel may write; None where its source can't tell."""
    *_, fn = layers(kernel)
    return _written(fn)


@functools.lru_cache(maxsize=512)
def _written(fn: Any) -> frozenset[str] | None:
    text = source_of(fn)
    if not text or "pointer_type" in text:  # pointers among what is loaded
        return None
    function = next((n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef)), None)
    return None if function is None else _Reader(fn, function).read()


class _Reader:
    """Reads one function. ``points``: name -> the parameters that it may point into."""

    def __init__(self, fn: Any, function: ast.FunctionDef) -> None:
        self.fn, self.function = fn, function
        a = function.args
        self.parameters = [p.arg for p in (*a.posonlyargs, *a.args, *a.kwonlyargs)]
        self.points: dict[str, frozenset[str]] = {p: frozenset({p}) for p in self.parameters}

    def read(self) -> frozenset[str]:
        before = None
        while before != self.points:  # a loop may carry a pointer to a line before
            before = dict(self.points)
            for node in ast.walk(self.function):
                self.assign(node)
        return frozenset().union(*(self.writes(n) for n in ast.walk(self.function) if isinstance(n, ast.Call)))

    def assign(self, node: ast.AST) -> None:
        if isinstance(node, ast.Assign):
            targets, value = node.targets, node.value
        elif isinstance(node, (ast.AugAssign, ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
            targets, value = [node.target], node.value
        elif isinstance(node, ast.For):
            targets, value = [node.target], node.iter
        else:
            return
        for name in (n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)):
            self.points[name] = self.points.get(name, frozenset()) | self.pointed(value)

    def pointed(self, node: ast.AST) -> frozenset[str]:
        """What the value of an expression may point into."""
        if isinstance(node, ast.Name):
            return self.points.get(node.id, frozenset())
        if isinstance(node, ast.Call) and _called(node) in ("load", "atomic_add", "program_id", "arange"):
            return frozenset()
        return frozenset().union(*(self.pointed(child) for child in ast.iter_child_nodes(node)))

    def writes(self, call: ast.Call) -> frozenset[str]:
        name = _called(call)
        owner = call.func.value if isinstance(call.func, ast.Attribute) else None
        every = frozenset[str]().union(*(self.pointed(a) for a in (*call.args, *(k.value for k in call.keywords))))
        if owner is not None and self.pointed(owner):  # a method of a descriptor or of a block
            return self.pointed(owner) if any(w in name for w in _WRITES) else frozenset()
        if owner is not None:
            if not any(w in name for w in _WRITES):
                return frozenset()
            if name == "store" or name.startswith("atomic_"):
                first = call.args[0] if call.args else next((k.value for k in call.keywords if k.arg == "pointer"), None)
                return every if first is None else self.pointed(first)
            return every
        return frozenset() if name in _PLAIN else self.through(call, name, every)

    def through(self, call: ast.Call, name: str, every: frozenset[str]) -> frozenset[str]:
        """A function that is called by its name."""
        callee = getattr(self.fn, "__globals__", {}).get(name)
        *_, inner = layers(callee)
        found = _written(inner) if inspect.isfunction(inner) and inner is not self.fn else None
        if found is None or any(isinstance(a, ast.Starred) for a in call.args) or any(k.arg is None for k in call.keywords):
            return every
        names = list(inspect.signature(inner).parameters)
        given = {**dict(zip(names, call.args, strict=False)), **{str(k.arg): k.value for k in call.keywords}}
        return frozenset().union(*(self.pointed(value) for at, value in given.items() if at in found))


def _called(call: ast.Call) -> str:
    """The last part of the name that is called."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else call.func.id if isinstance(call.func, ast.Name) else ""
