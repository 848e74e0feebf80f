"""Generated Triton text -> importable modules. Triton reads a kernel's source back from its file, so each text is a file."""

from __future__ import annotations

import atexit
import functools
import hashlib
import importlib.util
import os
import shutil
import tempfile
import threading
from types import ModuleType

from tinycompile.base.errors import BackendError

_loading = threading.Lock()


@functools.cache
def _folder() -> str:
    """A private folder of this process, removed at exit."""
    path = tempfile.mkdtemp(prefix="tinycompile-")
    atexit.register(_remove, path, os.getpid())
    return path


def _remove(path: str, pid: int) -> None:
    if os.getpid() == pid:  # not in forked children
        shutil.rmtree(path, ignore_errors=True)


def load_module(text: str, name: str) -> ModuleType:
    """Import ``text`` as a module, once; threads may ask at once. Raises BackendError when it is not valid Python."""
    with _loading:
        return _load(text, name)


@functools.lru_cache(maxsize=4096)
def _load(text: str, name: str) -> ModuleType:
    key = hashlib.sha256(text.encode()).hexdigest()[:16]
    path = os.path.join(_folder(), f"{name}_{key}.py")
    with open(path, "w") as f:
        f.write(text)
    spec = importlib.util.spec_from_file_location(f"tinycompile_kernel_{name}_{key}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise BackendError(f"generated kernel {name} is not valid Python: {error}") from error
    return module
