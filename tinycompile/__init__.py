"""tinycompile: a mini compiler stack in the mould of ``torch.compile``.

The module itself is the decorator: ``@tinycompile`` or ``@tinycompile(mode="max-autotune")``; ``tinycompile.compile`` is the
same function.
"""

from __future__ import annotations

import sys
import types
from typing import Any

if sys.version_info < (3, 11):  # noqa: UP036  # in a checkout no installer has looked
    raise ImportError(f"tinycompile needs Python 3.11, 3.12 or 3.13; this is {sys.version.split()[0]}")

from tinycompile import cuda, library
from tinycompile.api import CompiledFunction, CompiledModule, compile, explain, reset
from tinycompile.backends import list_backends, lookup_backend, register_backend
from tinycompile.base import errors
from tinycompile.base.config import config
from tinycompile.base.device import Device
from tinycompile.base.errors import (
    BackendError,
    FallbackWarning,
    GraphBreakError,
    InternalError,
    RecompileLimitWarning,
    TinycompileError,
)
from tinycompile.capture.marks import (
    allow_in_graph,
    assume_constant_result,
    disable,
    graph_break,
    is_compiling,
    mark_dynamic,
    mark_static,
)
from tinycompile.eager import autograd, func
from tinycompile.eager.autocast import autocast
from tinycompile.eager.autograd import enable_grad, inference_mode, is_grad_enabled, no_grad, set_grad_enabled
from tinycompile.eager.checkpoint import checkpoint
from tinycompile.eager.custom_device import register_device
from tinycompile.eager.factories import (
    arange,
    as_tensor,
    empty,
    empty_like,
    empty_strided,
    eye,
    from_dlpack,
    from_numpy,
    full,
    full_like,
    linspace,
    logspace,
    ones,
    ones_like,
    rand,
    rand_like,
    randint,
    randint_like,
    randn,
    randn_like,
    randperm,
    tensor,
    zeros,
    zeros_like,
)
from tinycompile.eager.factories_special import (
    asarray,
    bartlett_window,
    bernoulli,
    blackman_window,
    cartesian_prod,
    complex,
    empty_permuted,
    frombuffer,
    hamming_window,
    hann_window,
    kaiser_window,
    multinomial,
    normal,
    poisson,
    polar,
    scalar_tensor,
    sparse_bsc_tensor,
    sparse_bsr_tensor,
    sparse_compressed_tensor,
    sparse_coo_tensor,
    sparse_csc_tensor,
    sparse_csr_tensor,
    tril_indices,
    triu_indices,
    vander,
)
from tinycompile.eager.memory import StorageInfo, storages
from tinycompile.eager.storage import Storage
from tinycompile.eager.tensor import Tensor, from_torch
from tinycompile.eager.vmap import vmap
from tinycompile.graphs import trace
from tinycompile.ir.editor import GraphEditor
from tinycompile.ir.graph_module import GraphModule
from tinycompile.ir.interpreter import Interpreter
from tinycompile.ir.transformer import Transformer
from tinycompile.journey.session import Profile, profile
from tinycompile.journey.storage_trace import trace_storages
from tinycompile.ops import table as _table
from tinycompile.report import Report

__version__ = "0.1.0"

__all__ = [
    "BackendError", "CompiledFunction", "CompiledModule", "Device", "FallbackWarning", "GraphBreakError", "GraphEditor",
    "GraphModule", "InternalError", "Interpreter", "Profile", "RecompileLimitWarning", "Report", "Storage", "StorageInfo",
    "Tensor", "TinycompileError", "Transformer", "allow_in_graph", "arange", "as_tensor", "asarray", "assume_constant_result",
    "autocast", "autograd", "bartlett_window", "bernoulli", "blackman_window", "cartesian_prod", "checkpoint", "compile",
    "complex", "config", "cuda", "device", "disable", "empty", "empty_like", "empty_permuted", "empty_strided", "enable_grad",
    "errors", "explain", "eye", "from_dlpack", "from_numpy", "from_torch", "frombuffer", "full", "full_like", "func",
    "graph_break", "hamming_window", "hann_window", "inference_mode", "is_compiling", "is_grad_enabled", "kaiser_window",
    "library", "linspace", "list_backends", "logspace", "lookup_backend", "mark_dynamic", "mark_static", "multinomial",
    "no_grad", "normal", "ones", "ones_like", "poisson", "polar", "profile", "rand", "rand_like", "randint", "randint_like",
    "randn", "randn_like", "randperm", "register_backend", "register_device", "reset", "scalar_tensor", "set_grad_enabled",
    "sparse_bsc_tensor", "sparse_bsr_tensor", "sparse_compressed_tensor", "sparse_coo_tensor", "sparse_csc_tensor",
    "sparse_csr_tensor", "storages", "tensor", "trace", "trace_storages", "tril_indices", "triu_indices", "vander",
    "vmap", "zeros", "zeros_like",
]  # fmt: skip


def device(spec: Any) -> Device:
    """A :class:`Device` from a string (``"cuda:1"``), an index, or torch's device."""
    return Device.of(spec)


def __getattr__(name: str) -> Any:
    """``tinycompile.softmax``: every function of torch's that has an op record. It is torch's own, which takes our tensors."""
    found = None if name.startswith("_") else _table.function(name)
    if found is None:
        raise AttributeError(f"module 'tinycompile' has no attribute {name!r}", name=name, obj=tinycompile)
    return found


class _CallableModule(types.ModuleType):
    """Lets ``@tinycompile`` be the module: calling it compiles."""

    def __call__(self, *fn: Any, **options: Any) -> Any:
        return compile(*fn, **options)


sys.modules[__name__].__class__ = _CallableModule
tinycompile = sys.modules[__name__]  # `from tinycompile import tinycompile` is the decorator too
