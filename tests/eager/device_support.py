"""The numpy device, registered for a test and quiet about what falls back to the CPU."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.eager import numpy_device
from tinycompile.base.errors import FallbackWarning
from tinycompile.eager.custom_device import forget_device


@contextmanager
def registered(codegen: Callable[..., Any] | None = numpy_device.codegen) -> Iterator[None]:
    """In the block the slot holds it; behind it nothing."""
    numpy_device.register(codegen)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        yield
    forget_device()
