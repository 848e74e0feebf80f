"""Settings of every test: our errors raise, IRs are verified, the cache is private, and GPU tests skip without a GPU."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator

import pytest
import torch

# Before the package is imported: config reads the environment once. Child processes of tests inherit it.
_cache = tempfile.TemporaryDirectory(prefix="tinycompile-tests-")
os.environ["TINYCOMPILE_CACHE_DIR"] = _cache.name
for _name in ("TINYCOMPILE_DUMP", "TINYCOMPILE_LOG"):
    os.environ.pop(_name, None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests marked ``gpu`` where torch sees no CUDA device."""
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs a CUDA device")
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(skip)


def pytest_unconfigure() -> None:
    """Remove the session's cache folder."""
    _cache.cleanup()


@pytest.fixture(autouse=True)
def seed() -> Iterator[None]:
    """Every test starts from the same random numbers."""
    torch.manual_seed(0)
    yield
