"""Changes of torch's settings, of torch's own functions, and of tensors."""

from __future__ import annotations

import copy
import ctypes
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.capture.changes.stories import ANYHOW, AS_BEFORE, UNRELATED, Story, patched, story
from tests.capture.corpus import r

X = r(2, 3)


# --- settings that a program reads ---


@story
def gradient_mode() -> Story:
    x = r(2, 3).requires_grad_()
    yield lambda x: (x * 2, torch.is_grad_enabled()), x
    with torch.no_grad():
        yield
        with torch.inference_mode():
            yield ANYHOW
    yield AS_BEFORE


@story
def default_dtype() -> Story:
    yield lambda x: (x + torch.ones(3), torch.zeros(1)), X
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)
    yield AS_BEFORE


@story
def default_device() -> Story:
    yield lambda x: torch.zeros(3).device.type, X
    torch.set_default_device("meta")
    try:
        yield
    finally:
        torch.set_default_device(None)
    yield AS_BEFORE


@story
def deterministic_algorithms() -> Story:
    yield lambda x: x * torch.are_deterministic_algorithms_enabled(), X
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)
    yield AS_BEFORE


@story
def memory_filled_for_determinism() -> Story:
    yield lambda x: torch.empty(2, 3, dtype=torch.float32).isnan().all() | (x.sum() > 1e9), X
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@story
def allow_tf32() -> Story:
    before = torch.backends.cuda.matmul.allow_tf32
    yield lambda x: x * torch.backends.cuda.matmul.allow_tf32, X
    torch.backends.cuda.matmul.allow_tf32 = not before
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    yield AS_BEFORE


@story
def matmul_precision() -> Story:
    before = torch.get_float32_matmul_precision()
    yield lambda x: x * len(torch.get_float32_matmul_precision()), X
    torch.set_float32_matmul_precision("high" if before == "highest" else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
    yield AS_BEFORE


@story
def cudnn_enabled() -> Story:
    yield lambda x: x * torch.backends.cudnn.enabled * (1 + torch.backends.cudnn.benchmark), X
    with torch.backends.cudnn.flags(enabled=True, benchmark=True):
        yield
    with torch.backends.cudnn.flags(enabled=False):
        yield
    yield AS_BEFORE


@story
def anomaly_mode() -> Story:
    yield lambda x: x * torch.is_anomaly_enabled(), X
    with torch.autograd.set_detect_anomaly(True):
        yield
    yield AS_BEFORE


@story
def threads() -> Story:
    before = torch.get_num_threads()
    yield lambda x: x * torch.get_num_threads(), X
    torch.set_num_threads(before + 1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
    yield AS_BEFORE


@story
def autocast() -> Story:
    yield lambda x: (x @ x.t()).dtype, X
    with torch.autocast("cpu", torch.bfloat16):
        yield
    with torch.autocast("cpu", torch.float16):
        yield
    yield AS_BEFORE


# --- torch's own functions ---


@story
def function_of_torch() -> Story:
    yield lambda x: torch.relu(x) + F.gelu(x), X
    with patched(torch, "relu", lambda x: x * 10):
        yield
    with patched(F, "gelu", lambda x: x * 100):
        yield
    with patched(torch, "relu", torch.sin):
        yield
    with patched(torch, "selu", lambda x: x * 10), patched(F, "elu", lambda x: x):
        yield UNRELATED
    yield AS_BEFORE


@story
def function_that_a_module_of_torch_calls() -> Story:
    net = nn.Sequential(nn.Linear(3, 3), nn.GELU())
    yield lambda x: net(x), X
    with patched(F, "linear", lambda x, w, b: x * 3):
        yield
    with patched(F, "gelu", lambda x, approximate="none": x * 3):
        yield
    yield AS_BEFORE


@story
def function_patched_from_the_start() -> Story:
    with patched(torch, "relu", lambda x: x * 10):
        yield lambda x: torch.relu(x), X
    yield


@story
def method_of_tensors() -> Story:
    yield lambda x: x.relu() + x.sum(), X
    with patched(torch.Tensor, "relu", lambda x: x * 10):
        yield
    with patched(torch.Tensor, "sum", torch.Tensor.prod):
        yield
    with patched(torch.Tensor, "selu", lambda x: x * 10):
        yield UNRELATED
    yield AS_BEFORE


@story
def method_of_tensors_patched_from_the_start() -> Story:
    with patched(torch.Tensor, "relu", lambda x: x * 10):
        yield lambda x: x.relu(), X
    yield


@story
def method_that_tensors_lacked() -> Story:
    with patched(torch.Tensor, "tripled", lambda x: x * 3):
        yield lambda x: x.tripled(), X
        with patched(torch.Tensor, "tripled", lambda x: x * 30):
            yield
    with patched(torch.Tensor, "tripled", property(lambda x: lambda: x * 7)):
        yield


@story
def operator_of_tensors() -> Story:
    yield lambda x: (x + 1) * 2 - x / 3, X
    with patched(torch.Tensor, "__add__", lambda x, y: x - y):
        yield
    with patched(torch.Tensor, "__truediv__", lambda x, y: x):
        yield
    with patched(torch.Tensor, "__matmul__", lambda x, y: x):
        yield UNRELATED
    yield AS_BEFORE


@story
def operator_with_the_tensor_on_the_right() -> Story:
    yield lambda x: 2 - x, X
    with patched(torch.Tensor, "__rsub__", lambda x, y: x):
        yield


@story
def operator_in_place() -> Story:
    def f(x: Any) -> Any:
        y = x * 2
        y += 1
        return y

    yield f, X
    with patched(torch.Tensor, "__iadd__", lambda x, y: x.mul_(5)):
        yield


@contextmanager
def as_no_sequence(cls: type) -> Iterator[None]:
    """CPython fills a class's ``sq_item`` when ``__getitem__`` is assigned, and leaves it filled when that is taken away again.
    ``torch.tensor([t, 1.0])`` would then fail, in this process and for good: it takes a 0-d ``t`` for a sequence."""
    sequence = ctypes.c_void_p.from_address(id(cls) + _TP_AS_SEQUENCE).value or 0
    item = ctypes.c_void_p.from_address(sequence + _SQ_ITEM)
    before = item.value
    try:
        yield
    finally:
        item.value = before


_TP_AS_SEQUENCE, _SQ_ITEM = 24 + 10 * 8, 3 * 8  # where these lie in PyTypeObject and PySequenceMethods, 3.11 to 3.13


@story
def comparison_index_and_negation() -> Story:
    yield lambda x: (-x)[0], X
    with patched(torch.Tensor, "__neg__", lambda x: x * 3):
        yield
    with as_no_sequence(torch.Tensor), patched(torch.Tensor, "__getitem__", lambda x, key: torch.Tensor.sum(x)):
        yield
    with patched(torch.Tensor, "__gt__", lambda x, y: x):
        yield UNRELATED


@story
def special_methods_that_builtins_ask_of_tensors() -> Story:
    yield lambda x: (abs(x), copy.copy(x), copy.deepcopy(x), list(x), [*x][0] * 2), X
    for name, patch in {
        "__abs__": lambda x: x - 1,
        "__copy__": lambda x: x * 2,
        "__deepcopy__": lambda x, memo: x * 3,
        "__reduce_ex__": lambda x, protocol: (torch.zeros, (2,)),
        "unbind": lambda x, dim=0: [x, x],
        "__iter__": lambda x: iter([x]),
    }.items():
        with patched(torch.Tensor, name, patch):
            yield
    yield AS_BEFORE


@story
def attribute_of_tensors() -> Story:
    yield lambda x: x.T * x.ndim, X
    with patched(torch.Tensor, "T", property(lambda x: torch.sin(x))):
        yield
    with patched(torch.Tensor, "ndim", property(lambda x: 70)):
        yield


# --- arguments ---


class Tagged(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            made = func(*args, **(kwargs or {}))
        return made * 2 if func is torch.sin else made


@story
def subclass_appears() -> Story:
    box = types.SimpleNamespace(x=r(2, 3))
    yield lambda y: torch.sin(box.x) + y, X
    box.x = box.x.as_subclass(Tagged)
    yield ANYHOW
    box.x = box.x.as_subclass(torch.Tensor)
    yield AS_BEFORE


@story
def two_names_of_one_tensor() -> Story:
    box = types.SimpleNamespace(a=r(2, 3), b=r(2, 3))

    def f(x: Any) -> Any:
        a = box.a * 1
        return a + box.b, box.a is box.b

    yield f, X
    box.b = box.a
    yield
    box.b = box.a.clone()
    yield AS_BEFORE


@story
def memory_shared_by_what_is_written() -> Story:
    box = types.SimpleNamespace(a=r(4), b=r(4))

    def f(x: Any) -> Any:
        box.a.fill_(1)
        box.b.copy_(box.a.view(box.b.shape) * 2)
        box.a.add_(1)
        return box.a * 1, box.b * 1

    yield f, X
    box.b = box.a
    yield
    box.b = box.a.view(2, 2)
    yield
    box.b = r(4)
    yield


@story
def requires_grad_of_a_tensor() -> Story:
    box = types.SimpleNamespace(t=r(2, 3))
    yield lambda x: (x * box.t, box.t.requires_grad, box.t.is_leaf), X
    box.t.requires_grad_()
    yield
    box.t = box.t * 2
    yield
