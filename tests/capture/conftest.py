"""Fixtures that several files of tests here ask for."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Nothing ends but by its count."""
    gc.disable()
    yield
    gc.enable()
