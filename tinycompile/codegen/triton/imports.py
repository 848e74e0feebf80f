"""Which helpers a kernel's text mentions. Reads the library's files as text: generating code must not need Triton."""

from __future__ import annotations

import ast
import functools
import re
import textwrap
from collections.abc import Mapping
from pathlib import Path

_WORD = re.compile(r"(?<![\w.])[A-Za-z_]\w*")  # a name behind a dot is somebody else's
_PACKAGE = "tinycompile.codegen.triton"
_MODULES = ("library", "library_float8", "library_overlap", "library_products", "library_reductions")


@functools.cache
def helpers() -> Mapping[str, str]:
    """The module of each function that the library defines, and of ``libdevice``."""
    found = {"libdevice": "library"}
    for module in _MODULES:
        tree = ast.parse(Path(__file__).with_name(f"{module}.py").read_text())
        found |= {n.name: module for n in tree.body if isinstance(n, ast.FunctionDef)}
    return found


def import_lines(body: str, kernel: str) -> tuple[list[str], str]:
    """Imports for a kernel's body, and the body; a helper hidden by the kernel's own name is reached by its module."""
    if helpers().keys().isdisjoint(_WORD.findall(body)):
        return [], body
    nodes = [n for n in ast.walk(ast.parse(textwrap.dedent(body))) if isinstance(n, ast.Name)]
    local = {n.id for n in nodes if isinstance(n.ctx, ast.Store)}
    used = sorted(({n.id for n in nodes} & helpers().keys()) - local)
    lines = []
    if kernel in used:
        used.remove(kernel)
        module = helpers()[kernel]
        lines.append(f"from {_PACKAGE} import {module}")
        body = _WORD.sub(lambda m: f"{module}.{kernel}" if m.group() == kernel else m.group(), body)
    for module in _MODULES:
        if names := [name for name in used if helpers()[name] == module]:
            lines.append(f"from {_PACKAGE}.{module} import {', '.join(names)}")
    return lines, body
