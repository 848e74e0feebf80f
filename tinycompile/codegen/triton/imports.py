"""Which helpers a kernel's text mentions. Reads library.py as text: generating code must not need Triton."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path


@functools.cache
def helper_names() -> frozenset[str]:
    """The functions that library.py defines, and ``libdevice``."""
    tree = ast.parse(Path(__file__).with_name("library.py").read_text())
    return frozenset(n.name for n in tree.body if isinstance(n, ast.FunctionDef)) | {"libdevice"}


def used_in(text: str) -> list[str]:
    """The helpers that ``text`` mentions, sorted; names behind a dot are somebody else's."""
    return sorted(set(re.findall(r"(?<![\w.])[A-Za-z_]\w*", text)) & helper_names())
