"""Settings of every test: our errors raise, IRs are verified, the cache is private, and GPU tests skip without a GPU."""

from __future__ import annotations

import os
import tempfile

import pytest
import torch

# Before the package is imported, for config reads the environment once; and child processes of tests inherit it.
_cache = tempfile.TemporaryDirectory(prefix="tinycompile-tests-")
os.environ["TINYCOMPILE_CACHE_DIR"] = _cache.name
os.environ["TINYCOMPILE_ON_ERROR"] = "raise"
os.environ["TINYCOMPILE_VERIFY"] = "1"
for _name in ("TINYCOMPILE_DUMP", "TINYCOMPILE_LOG"):
    os.environ.pop(_name, None)

from tinycompile.base.config import config  # noqa: E402

config.verify_ir = True  # also where the package was imported before


def pytest_configure(config: pytest.Config) -> None:
    """What we warn of is a fallback: a test that causes one must say so with ``pytest.warns``."""
    config.addinivalue_line("filterwarnings", "error::tinycompile.base.errors.TinycompileWarning")


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
def seed() -> None:
    """Every test starts from the same random numbers."""
    torch.manual_seed(0)
