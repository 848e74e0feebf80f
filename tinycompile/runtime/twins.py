"""Kernels that differ in names alone: the layers of a model give many of them, and one compile serves all.

Two kernels are twins when their code is the same after local variables are numbered in order of appearance and docstrings and
comments are gone, and their arguments have the same types. Grid and argument values may differ: the launcher has those.
Kernels are compared as words; of C++ every name is numbered that means nothing outside the function.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Mapping

from tinycompile.ir.source import KernelSource

TwinKey = tuple[str, str]


def twin_key(source: KernelSource) -> TwinKey:
    """Equal for twins."""
    return canonical_text(source), signature(source)


def signature(source: KernelSource) -> str:
    """The types of the arguments, as the compiler sees them."""
    return " ".join(f"{'*' if a.is_tensor else ''}{a.dtype}{'/16' if a.aligned else ''}" for a in source.args)


def canonical_text(source: KernelSource) -> str:
    """The kernel's module with names that don't matter numbered."""
    return _canonical(source.text, source.name)


# A word that may be a variable (no attribute, and no name of an argument: the emitter writes ``mask=m``, but ``x = y``), or
# what words may stand in.
_PART = re.compile(r"""(?<![\w.])[A-Za-z_]\w*(?!\w)(?!=(?!=))|#[^\n]*|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'""")
_TEXT = re.compile(r'^ *"""[^\n]*"""$', re.MULTILINE)
_ASSIGNED = re.compile(r"^ *(?:for )?(\w+(?:, \w+)*)(?: in| (?:[-+*/%&|^]|//|<<|>>)?=) ", re.MULTILINE)
_DEFINED = re.compile(r"^def \w+\((.*)\):$", re.MULTILINE)


@functools.lru_cache(maxsize=1024)
def _canonical(text: str, name: str) -> str:
    """By words, not by syntax: layers give hundreds, and a tree of each took a tenth of a compile. A variable that is not seen
    to be one keeps its name, so two kernels are never taken for twins for that."""
    given = {p for found in _DEFINED.findall(text) for p in found.split(", ") if ":" not in p}
    own = given.union(*(found.split(", ") for found in _ASSIGNED.findall(text)))
    numbers = {name: "kernel"}

    def number(found: re.Match[str]) -> str:
        part = found[0]
        if part in own:
            return numbers.setdefault(part, f"_{len(numbers)}")
        return "" if part[0] == "#" else "kernel" if part == name else part

    lines = _PART.sub(number, _TEXT.sub("", text)).splitlines()
    return "\n".join(line.rstrip() for line in lines if line.strip())


def renumbered(function: ast.FunctionDef, others: Mapping[str, str]) -> str:
    """A function of a wrapper with its variables numbered and without its own name; functions among ``others`` that it calls
    are spelt as those say."""
    _number(function)
    function.name = "function"
    for n in ast.walk(function):
        if isinstance(n, ast.Name):
            n.id = others.get(n.id, n.id)
    return ast.unparse(function)


def _is_text(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant) and isinstance(statement.value.value, str)
    )


def _number(function: ast.FunctionDef) -> None:
    """Rename parameters (constants aside: configurations name those) and local variables in order of appearance."""
    function.body = [s for s in function.body if not _is_text(s)]
    parameters = [a for a in function.args.args if a.annotation is None]
    names = [n for n in ast.walk(function) if isinstance(n, ast.Name)]
    names.sort(key=lambda n: (n.lineno, n.col_offset))
    stored = {n.id for n in names if isinstance(n.ctx, ast.Store)} | {a.arg for a in parameters}
    numbers: dict[str, str] = {}
    for a in parameters:
        a.arg = numbers.setdefault(a.arg, f"_{len(numbers)}")
    for n in names:
        if n.id in stored:
            n.id = numbers.setdefault(n.id, f"_{len(numbers)}")


# What generated C++ says besides names: the language's own words and OpenMP's. The rest is in the prelude.
_CPP_TEXT = """
    auto bool break case char class const constexpr continue default define do double else enum extern false float for goto if
    inline int long namespace new operator or and not return short signed sizeof static struct switch template this true
    typedef typename union unsigned using void volatile while xor
    pragma omp parallel simd reduction schedule dynamic guided runtime num_threads collapse private firstprivate lastprivate
    shared none simdlen safelen aligned linear ordered critical atomic barrier single master nowait declare max min
    include ifdef ifndef endif C GCC ivdep unroll
"""
_CPP_WORDS = frozenset(_CPP_TEXT.split())
_WORD = re.compile(r"//[^\n]*|(?<![\w.])[A-Za-z_]\w*")


def canonical_cpp(text: str, prelude: str) -> str:
    """A C++ function without comments, its own names numbered in order of appearance. Equal for functions that do the same."""
    kept, numbers = _words(prelude), dict[str, str]()

    def number(found: re.Match[str]) -> str:
        word = found[0]
        if word.startswith("//"):
            return ""
        if word in kept or word.startswith(("__", "omp_")):
            return word
        return numbers.setdefault(word, f"_{len(numbers)}")

    return _WORD.sub(number, text)


@functools.lru_cache(maxsize=4)
def _words(prelude: str) -> frozenset[str]:
    return _CPP_WORDS | frozenset(re.findall(r"[A-Za-z_]\w*", prelude))
