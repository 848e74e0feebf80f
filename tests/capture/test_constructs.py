"""Each construct and kind of value: compiled does what eager does, the second call hits the cache, and most need no break."""

from __future__ import annotations

import pytest

from tests.capture.constructs import (  # noqa: F401
    caching,
    class_state,
    classes,
    comparing,
    containers,
    contexts,
    exceptions,
    generators,
    introspection,
    keys,
    matching,
    module_state,
    numpy_use,
    odd_classes,
    odd_exceptions,
    odd_library,
    odd_namespaces,
    odd_objects,
    one_object,
    overriding,
    own_iterators,
    rebinding,
    sorting,
    stdlib,
    tensor_memory,
    unmodelled,
)
from tests.capture.constructs.compare import alike, observed
from tests.capture.constructs.registry import CASES, Case
from tinycompile.api import CompiledFunction
from tinycompile.options import Options

pytestmark = pytest.mark.pure


@pytest.mark.parametrize("name", list(CASES))
def test_compiled_does_what_eager_does(name: str) -> None:
    check(CASES[name])


def check(case: Case) -> None:
    """What a case's function does."""
    compiled = CompiledFunction(case.fn, Options(backend="eager"))
    want = observed(case.fn, case, 3)
    first = observed(compiled, case)
    alike(first, want[:1])
    entries = len(compiled.all_entries)
    alike(observed(compiled, case, 2), want[1:])
    assert len(compiled.all_entries) == entries or not case.whole, compiled.recompiles
    if case.whole:
        assert not compiled.breaks, str(compiled.breaks[0])
