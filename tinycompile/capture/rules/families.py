"""Every family of rules: they register when they are imported."""

from __future__ import annotations

from types import ModuleType

from tinycompile.capture.rules import (
    autograd,
    backward,
    batch_norm,
    checkpoint,
    copies,
    factories,
    foreach,
    functions_of,
    grad_scaler,
    graph_modules,
    grids,
    iterators,
    memory,
    namespaces,
    numpy_functions,
    objects,
    operators,
    optimizers,
    regexes,
    torch_functions,
    types,
)

FAMILIES: tuple[ModuleType, ...] = (
    autograd,
    backward,
    batch_norm,
    checkpoint,
    copies,
    factories,
    foreach,
    functions_of,
    grad_scaler,
    graph_modules,
    grids,
    iterators,
    memory,
    namespaces,
    numpy_functions,
    objects,
    operators,
    optimizers,
    regexes,
    torch_functions,
    types,
)
