"""Which helpers a kernel's text mentions. Reads library.py as text: generating code must not need Triton."""

from __future__ import annotations

import ast
import functools
import re
import textwrap
from pathlib import Path

_WORD = re.compile(r"(?<![\w.])[A-Za-z_]\w*")  # a name behind a dot is somebody else's


@functools.cache
def helper_names() -> frozenset[str]:
    """The functions that library.py defines, and ``libdevice``."""
    tree = ast.parse(Path(__file__).with_name("library.py").read_text())
    return frozenset(n.name for n in tree.body if isinstance(n, ast.FunctionDef)) | {"libdevice"}


def import_lines(body: str, kernel: str) -> tuple[list[str], str]:
    """Imports for a kernel's body, and the body; a helper hidden by the kernel's own name is reached by its module."""
    nodes = [n for n in ast.walk(ast.parse(textwrap.dedent(body))) if isinstance(n, ast.Name)]
    local = {n.id for n in nodes if isinstance(n.ctx, ast.Store)}
    used = sorted(({n.id for n in nodes} & helper_names()) - local)
    lines = []
    if kernel in used:
        used.remove(kernel)
        lines.append("from tinycompile.codegen.triton import library")
        body = _WORD.sub(lambda m: f"library.{kernel}" if m.group() == kernel else m.group(), body)
    if used:
        lines.append(f"from tinycompile.codegen.triton.library import {', '.join(used)}")
    return lines, body
