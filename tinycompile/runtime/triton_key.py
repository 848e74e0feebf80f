"""Triton's own key of itself, without reading half a gigabyte.

Triton names its cache entries after a hash of its own files, compiled library included: on an idle machine that is half of what
our first compile takes. Here files are told apart by name, size and time of change. Triton's own helper processes set the key
in the same way.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

# What Triton's key covers, below its package folder.
PARTS = ("compiler", "backends", "language", "runtime", "_C")


def install(triton: Any) -> None:
    """Replace the function that computes the key, where this Triton has it; the key is computed once."""
    cache = triton.runtime.cache
    if hasattr(cache, "triton_key"):
        key = f"{triton.__version__}-{files_key(Path(triton.__file__).parent)}"
        cache.triton_key = lambda: key


def files_key(package: Path) -> str:
    """sha256 over name, size and time of change (ns) of each source and library file of a Triton package."""
    digest = hashlib.sha256()
    for part in PARTS:
        for folder, folders, names in os.walk(package / part):
            folders.sort()
            for name in sorted(names):
                if name.endswith((".py", ".so", ".pyd")):
                    path = Path(folder) / name
                    found = path.stat()
                    digest.update(f"{path.relative_to(package)} {found.st_size} {found.st_mtime_ns}\n".encode())
    return digest.hexdigest()
