"""Every private call into torch's C extension, each with a public way to the same answer.

Nothing outside this file touches ``torch._C``. A name missing in some torch version means the public way, which is slower
but right; ``doctor`` lists which ways are in use (:func:`in_use`).
"""

from __future__ import annotations

import functools
import operator
import sys
import threading
import types
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.utils._device import DeviceContext


def _find(path: str) -> Callable[..., Any] | None:
    """A function of ``torch._C`` by dotted path, or None where this build of torch lacks it."""
    found: Any = torch._C
    for part in path.split("."):
        found = getattr(found, part, None)
    return found


# --- raw dispatch keys -------------------------------------------------------------------------------------------------------

_dispatch_keys = _find("_dispatch_keys")


def raw_keys(t: torch.Tensor) -> int:
    """An int that differs between tensors which torch dispatches differently (autograd, conjugate bit, vmap, ...)."""
    if _dispatch_keys is None:
        return raw_keys_public(t)
    return _dispatch_keys(t).raw_repr()


def raw_keys_public(t: torch.Tensor) -> int:
    """What public attributes tell: class, device type, layout, conjugate and negative bits, inference mode."""
    facts = (type(t).__name__, t.device.type, str(t.layout), t.is_conj(), t.is_neg(), t.is_inference())
    return hash(facts) & 0x7FFF_FFFF_FFFF_FFFF


_functorch_wrapped = _find("_functorch.is_functorch_wrapped_tensor")


def is_functorch_wrapped(t: torch.Tensor) -> bool:
    """Whether vmap, grad or functionalize wrapped it. The public way can't tell, and says no."""
    return _functorch_wrapped is not None and _functorch_wrapped(t)


_batched_key = _find("DispatchKey.Batched")


def is_wrapped(t: torch.Tensor) -> bool:
    """Whether functorch wrapped it, or the older vmap by which torch's autograd takes batches of gradients. The public way
    looks for what such tensors lack, a storage of their own."""
    if _functorch_wrapped is None or _dispatch_keys is None or _batched_key is None:
        return is_wrapped_public(t)
    return _functorch_wrapped(t) or _dispatch_keys(t).has(_batched_key)


def is_wrapped_public(t: torch.Tensor) -> bool:
    """As ``is_wrapped``."""
    try:
        t.data_ptr()
    except RuntimeError:
        return True
    return False


# --- histories ---------------------------------------------------------------------------------------------------------------

_made_how = _find("_autograd._get_creation_meta")


def refuses_writes(t: torch.Tensor) -> bool:
    """Whether torch lets nobody write to ``t`` in place where gradients are followed: a leaf that requires grad, a view of one,
    one of several views that an op gave, a view made under ``no_grad``. The public way says so of every view."""
    if t.is_leaf and t.requires_grad:  # may be a view, too, of data without gradients
        return True
    if not t._is_view():
        return False
    base = t._base
    if _made_how is None or base is None:
        return refuses_writes_public(t)
    return (base.is_leaf and base.requires_grad) or _made_how(t).value != 0


def refuses_writes_public(t: torch.Tensor) -> bool:
    """As ``refuses_writes``, or more."""
    return t._is_view() or (t.is_leaf and t.requires_grad)


# --- modes -------------------------------------------------------------------------------------------------------------------

_any_autocast = _find("_is_any_autocast_enabled")


def any_autocast_public() -> bool:
    """As ``any_autocast``, for CPU and CUDA."""
    return torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")


any_autocast: Callable[[], bool] = _any_autocast or any_autocast_public
"""``any_autocast()``: whether this thread is in an autocast region of any device type."""
function_modes = _function_modes = _find("_len_torch_function_stack")
_dispatch_modes = _find("_len_torch_dispatch_stack")


_inference_mode = torch.is_inference_mode_enabled


def _ordinary_mode_private() -> bool:  # in every guard: no call of Python, no attribute of a module but one
    return not (
        _any_autocast() or _inference_mode() or _function_modes() or _dispatch_modes() or forward_ad._current_level >= 0  # type: ignore[misc]
    )


def ordinary_mode_public() -> bool:
    """As ``ordinary_mode``, but blind to torch-function and dispatch modes."""
    return not (any_autocast_public() or _inference_mode() or _goes_forward())


ordinary_mode: Callable[[], bool] = (
    ordinary_mode_public if None in (_any_autocast, _function_modes, _dispatch_modes) else _ordinary_mode_private
)
"""``ordinary_mode()``: no autocast, no inference mode, no torch-function or dispatch mode, no forward-mode differentiation is
active in this thread."""


def no_python_modes() -> bool:
    """No torch-function or dispatch mode, no forward-mode differentiation is active in this thread. Of the first two the public
    way can't tell, and says that there are none."""
    return not _goes_forward() and not (
        (_function_modes is not None and _function_modes()) or (_dispatch_modes is not None and _dispatch_modes())
    )


def _goes_forward() -> bool:
    """Whether there may be dual numbers, whose tangents no attribute of a tensor tells of."""
    return forward_ad._current_level >= 0


_function_mode_at = _find("_get_function_stack_at")


def only_default_device() -> bool:
    """Whether the only torch-function modes of this thread are those of a default device (``torch.set_default_device``,
    ``with torch.device(...)``), and no dispatch mode is active. The public way can't tell, and says no."""
    if _function_modes is None or _dispatch_modes is None or _function_mode_at is None or _dispatch_modes() or _goes_forward():
        return False
    modes = [_function_mode_at(i) for i in range(_function_modes())]
    return bool(modes) and all(type(mode) is DeviceContext for mode in modes)


def named_default_device() -> torch.device | None:
    """The default device as it was named. None where none was; the public way can't tell."""
    if _function_modes is None or _function_mode_at is None:
        return None
    modes = [_function_mode_at(i) for i in reversed(range(_function_modes()))]
    return next((mode.device for mode in modes if isinstance(mode, DeviceContext)), None)


def is_innermost_mode(mode: Any) -> bool:
    """Whether it is the torch-function mode that sees this thread's calls first. The public way can't tell, and says no."""
    if _function_modes is None or _function_mode_at is None or not _function_modes():
        return False
    return _function_mode_at(_function_modes() - 1) is mode


_autocast_anchors: dict[str, torch.Tensor] = {}


def autocast_token() -> weakref.ref[torch.Tensor] | None:
    """Inside an autocast region on a CPU or GPU: a reference that dies when torch forgets the casts of weights it has kept.

    It is a reference to such a cast. None where this torch does not show what a node saved: then nothing can be kept."""
    kind = "cuda" if torch.is_autocast_enabled("cuda") else "cpu"
    anchor = _autocast_anchors.get(kind)
    if anchor is None:
        anchor = _autocast_anchors[kind] = torch.zeros(1, 1, requires_grad=True, device=kind)
    with torch.enable_grad():
        made = torch.mm(anchor, anchor)
    kept = getattr(made.grad_fn, "_saved_self", None)
    return None if kept is None or kept.dtype == anchor.dtype else weakref.ref(kept)


# --- allocation --------------------------------------------------------------------------------------------------------------


def empty_strided_public(
    shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """An uninitialised tensor, by torch's public function."""
    return torch.empty_strided(tuple(shape), tuple(strides), dtype=dtype, device=device)


def _empty_cpu_public(shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_strided(tuple(shape), tuple(strides), dtype=dtype)


def _empty_cuda_public(shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_strided(tuple(shape), tuple(strides), dtype=dtype, device="cuda")


# Called as ``fn(shape, strides, dtype)`` with tuples; CUDA's allocates on the current device.
empty_strided_cpu: Callable[..., torch.Tensor] = _find("_dynamo.guards._empty_strided_cpu") or _empty_cpu_public
empty_strided_cuda: Callable[..., torch.Tensor] = _find("_dynamo.guards._empty_strided_cuda") or _empty_cuda_public


# --- streams -----------------------------------------------------------------------------------------------------------------


def _raw_stream_public(device_index: int) -> int:
    return torch.cuda.current_stream(device_index).cuda_stream


raw_stream: Callable[[int], int] = _find("_cuda_getCurrentRawStream") or _raw_stream_public
"""``raw_stream(device_index)``: the current CUDA stream's handle as an int."""


# --- launching cubins --------------------------------------------------------------------------------------------------------

# Loads a cubin and launches its kernels from C++ without a compiled stub. CUDA builds only; the public way is Triton's
# launcher.
static_launcher: Any = getattr(torch._C, "_StaticCudaLauncher", None)


# --- storages ----------------------------------------------------------------------------------------------------------------


def storage_id(storage: torch.UntypedStorage) -> int:
    """An int that two handles share exactly when they are the same storage of torch's."""
    found = getattr(storage, "_cdata", None)
    return storage.data_ptr() if found is None else found


# --- autograd nodes ----------------------------------------------------------------------------------------------------------


_FunctionBase: Any = getattr(torch._C, "_FunctionBase", None)


def function_apply(cls: type[torch.autograd.Function]) -> Callable[..., Any]:
    """``cls.apply`` without the Python in front of it, which looks for functorch transforms: for callers that have guards."""
    if _FunctionBase is None or not issubclass(cls, _FunctionBase):
        return cls.apply
    apply: Callable[..., Any] = super(torch.autograd.Function, cls).apply  # type: ignore[misc]
    return apply


class _HooksOfDefined(OrderedDict[int, Callable[[Any], Any]]):
    """A tensor's hooks, which are not called where there is no gradient. torch's own, of several tensors, count the calls."""

    def __setitem__(self, number: int, hook: Callable[[Any], Any]) -> None:
        counts = getattr(hook, "__module__", None) == "torch.autograd.graph"
        super().__setitem__(number, hook if counts else lambda grad: None if grad is None else hook(grad))


def hooks_of_defined(cls: type[torch.autograd.Function]) -> None:
    """Have hooks on results of ``cls`` called with gradients alone. Its node stands for several of eager's, of which torch
    comes to those that have one; to a node's hooks it says None for each result that nobody asks for."""
    made = getattr(cls, "_backward_cls", None)
    plain = getattr(made, "_register_hook_dict", None)
    if made is None or plain is None:
        return

    def register(node: Any, tensor: torch.Tensor) -> None:
        tensor._backward_hooks = _HooksOfDefined()
        plain(node, tensor)

    made._register_hook_dict = register


# --- what a backward may let go of -------------------------------------------------------------------------------------------


def clear_saved(ctx: Any) -> None:
    """Drop what a Function's context saved, before its backward returns."""
    clear = getattr(ctx, "maybe_clear_saved_tensors", None)
    if clear is not None:
        clear()


def some_saved(ctx: Any, positions: Sequence[int], versions: Sequence[int | None]) -> list[torch.Tensor]:
    """Some of what a Function's context saved; ``versions``: of all of it, when it was saved, None where it may be another now.
    Only what is asked for must be as it was, where the public way checks all. Raises RuntimeError in torch's words."""
    kept = getattr(ctx, "_raw_saved_tensors", None)
    if kept is None or not all(hasattr(kept[i], "unpack_hook") for i in positions):
        return [ctx.saved_tensors[i] for i in positions]
    found: list[torch.Tensor] = []
    for i in positions:
        held, unpack = kept[i].data, kept[i].unpack_hook
        if unpack is None and held._version != versions[i] is not None:
            return [ctx.saved_tensors[i] for i in positions]  # it says so
        found.append(held if unpack is None else unpack(held))
    return found


def edited_saved(ctx: Any, versions: Sequence[int]) -> frozenset[int] | None:
    """Positions of what a Function's context saved and was edited since; ``versions``: of all of it, when it was saved. None:
    the public way can't tell. Raises RuntimeError in torch's words where it is freed."""
    kept = getattr(ctx, "_raw_saved_tensors", None)
    if kept is None or not all(hasattr(k, "unpack_hook") for k in kept):
        return None
    pairs = enumerate(zip(kept, versions, strict=True))
    return frozenset(i for i, (k, version) in pairs if k.unpack_hook is None and k.data._version != version)


# --- many tensors at once ----------------------------------------------------------------------------------------------------

_TensorGuards = _find("_dynamo.guards.TensorGuards")


class BulkCheck:
    """Checks that tensors still have the class, dtype, device, key set, sizes, strides and ``requires_grad`` that they had.

    Made from the tensors as they are now; ``check(*tensors)`` is one call into C++ (13 us for 200 tensors).
    """

    __slots__ = ("check", "private")

    check: Callable[..., bool]

    def __init__(self, tensors: Sequence[torch.Tensor], *, private: bool = True) -> None:
        self.private = private and _TensorGuards is not None
        self.check = _native_check(tensors) if self.private else _public_check(tensors)


def _native_check(tensors: Sequence[torch.Tensor]) -> Callable[..., bool]:
    assert _TensorGuards is not None
    sizes = [list(t.size()) for t in tensors]
    strides = [list(t.stride()) for t in tensors]
    return _TensorGuards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides).check


def _facts(t: Any) -> tuple[Any, ...]:
    return type(t), t.dtype, t.device, raw_keys(t), t.shape, t.stride(), t.requires_grad


def _public_check(tensors: Sequence[torch.Tensor]) -> Callable[..., bool]:
    expected = [_facts(t) for t in tensors]

    def check(*now: Any) -> bool:
        return len(now) == len(expected) and all(
            isinstance(t, torch.Tensor) and _facts(t) == facts for t, facts in zip(now, expected, strict=True)
        )

    return check


_pointers_equal = _find("_tensors_data_ptrs_at_indices_equal")  # in builds with CUDA


class BulkAlignment:
    """Checks that tensors still begin at multiples of 16 bytes, where all did when this was made.

    ``check()`` compares all addresses with those seen last, in one call into C++ where this build of torch has that, and looks
    at each only if one differs."""

    __slots__ = ("_addresses", "_equal", "_places", "_tensors", "check")

    check: Callable[[], bool]

    def __init__(self, tensors: Sequence[torch.Tensor], equal: Callable[..., bool] | None = _pointers_equal) -> None:
        self._tensors, self._places, self._equal = list(tensors), list(range(len(tensors))), equal
        self._addresses: list[int] = [t.data_ptr() for t in tensors]
        self.check = self._by_address if self._is_usable() else self.each

    def _is_usable(self) -> bool:
        """Whether torch's function takes what we give, and says yes of what has not changed."""
        try:
            return self._equal is not None and bool(self._equal(self._tensors, self._addresses, self._places))
        except (TypeError, RuntimeError):  # another signature in some version
            return False

    def _by_address(self) -> bool:
        assert self._equal is not None
        if self._equal(self._tensors, self._addresses, self._places):
            return True
        addresses = [t.data_ptr() for t in self._tensors]
        if any(address & 15 for address in addresses):
            return False
        self._addresses = addresses
        return True

    def each(self) -> bool:
        """The public way."""
        return not functools.reduce(operator.or_, map(torch.Tensor.data_ptr, self._tensors)) & 15


class Addresses:
    """At which multiples of 16 bytes some tensors begin. Where this build of torch has a call for it, they are only compared
    with where those began that were asked about before."""

    __slots__ = ("_equal", "_known")

    def __init__(self, equal: Callable[..., bool] | None = _pointers_equal) -> None:
        self._equal = equal
        self._known: tuple[list[int], list[int], tuple[bool, ...] | None] = [], [], None  # addresses, places, alignment

    def aligned(self, tensors: list[torch.Tensor]) -> tuple[bool, ...] | None:
        """Which begin at a multiple of 16 bytes; None when all do."""
        if self._equal is None:
            return _aligned(map(torch.Tensor.data_ptr, tensors))
        addresses, places, found = self._known
        try:
            if len(places) == len(tensors) and self._equal(tensors, addresses, places):
                return found
        except (TypeError, RuntimeError):  # another signature in some version
            self._equal = None
        addresses = list(map(torch.Tensor.data_ptr, tensors))
        found = _aligned(addresses)
        self._known = addresses, list(range(len(tensors))), found
        return found


def _aligned(addresses: Iterable[int]) -> tuple[bool, ...] | None:
    kept = tuple(addresses)
    return None if not functools.reduce(operator.or_, kept, 0) & 15 else tuple(a % 16 == 0 for a in kept)


# --- versions of dicts -------------------------------------------------------------------------------------------------------

dict_version: Callable[[Any], int] | None = _find("_dynamo.guards.dict_version")
"""``dict_version(mapping)``: a number that is another one after each change of the dict; None where there is no such thing."""


# --- torch's backward --------------------------------------------------------------------------------------------------------

_keep_graph = _find("_autograd._get_current_graph_task_keep_graph")


def keeps_graph() -> bool:
    """Inside torch's backward: whether it was asked to retain the graph. The public way can't tell, and says yes."""
    return True if _keep_graph is None else bool(_keep_graph())


_engine_run = _find("_current_graph_task_id")
_will_run = _find("_will_engine_execute_node")


def engine_run() -> int:
    """Inside torch's backward: which run of the engine it is. The public way knows the thread."""
    return threading.get_ident() if _engine_run is None else int(_engine_run())


def will_run(node: Any) -> bool:
    """Inside torch's backward: whether it will come to a node. The public way can't tell, and says yes."""
    if _will_run is None:
        return True
    try:
        return bool(_will_run(node))
    except RuntimeError:
        if not hasattr(node, "variable"):
            raise
        return True  # a leaf whose gradient is asked for: torch, which says so, takes it before the leaf's node runs


# --- kernels of torch's own dispatcher ---------------------------------------------------------------------------------------

_op_names = _find("_dispatch_get_all_op_names")
_has_kernel = _find("_dispatch_has_kernel_for_dispatch_key")


@cache
def ops_with_kernel(key: str) -> frozenset[str]:
    """ATen ops, without overloads, that have a kernel of their own at one of torch's dispatch keys: ``AutocastCPU``,
    ``CompositeImplicitAutograd``. There is no public way: then none are known."""
    if _op_names is None or _has_kernel is None:
        return frozenset()
    names = (n for n in _op_names() if n.startswith("aten::"))
    return frozenset(n[6:].partition(".")[0] for n in names if _has_kernel(n, key))


def has_kernel(name: str, key: str) -> bool | None:
    """Whether ATen's op (with its overload, if any) has a kernel of its own at one of torch's dispatch keys. There is no public
    way: then it is not known."""
    return None if _has_kernel is None else bool(_has_kernel(f"aten::{name}", key))


# --- torch's profiler ---------------------------------------------------------------------------------------------------------

_profiler_enabled = _find("_autograd._profiler_enabled")


def profiler_runs() -> bool:
    """Whether somebody records with torch's profiler. The public way can't tell, and says no."""
    return _profiler_enabled is not None and bool(_profiler_enabled())


# --- matrix products ---------------------------------------------------------------------------------------------------------


def _addmm_activation_public(bias: torch.Tensor, a: torch.Tensor, b: torch.Tensor, use_gelu: bool) -> torch.Tensor:
    made = torch.addmm(bias, a, b)
    return torch.nn.functional.gelu(made, approximate="tanh") if use_gelu else made.relu_()


_addmm_activation = getattr(torch, "_addmm_activation", None)


def addmm_activation(bias: torch.Tensor, a: torch.Tensor, b: torch.Tensor, use_gelu: bool) -> torch.Tensor:
    """gelu (by tanh) or relu of ``bias + a @ b``, on a GPU in the product's own kernel. On a CPU torch's takes gelu by erf."""
    if _addmm_activation is None or a.device.type != "cuda":
        return _addmm_activation_public(bias, a, b, use_gelu)
    return _addmm_activation(bias, a, b, use_gelu=use_gelu)


def is_end_of_recomputation(error: BaseException) -> bool:
    """Whether this is how ``torch.utils.checkpoint`` leaves a function that it runs again, once all it needs was saved."""
    kind = getattr(sys.modules.get("torch.utils.checkpoint"), "_StopRecomputationError", None)
    return type(error) is kind


def in_use() -> dict[str, bool]:
    """Which private ways this build of torch offers."""
    return {
        "TensorGuards": _TensorGuards is not None,
        "_tensors_data_ptrs_at_indices_equal": _pointers_equal is not None,
        "dict_version": dict_version is not None,
        "_empty_strided_cpu": empty_strided_cpu is not _empty_cpu_public,
        "_empty_strided_cuda": empty_strided_cuda is not _empty_cuda_public,
        "_cuda_getCurrentRawStream": raw_stream is not _raw_stream_public,
        "_dispatch_keys": _dispatch_keys is not None,
        "_StaticCudaLauncher": static_launcher is not None,
        "_FunctionBase": _FunctionBase is not None,
        "_get_current_graph_task_keep_graph": _keep_graph is not None,
        "_current_graph_task_id": _engine_run is not None,
        "_will_engine_execute_node": _will_run is not None,
        "_profiler_enabled": _profiler_enabled is not None,
        "_get_creation_meta": _made_how is not None,
        "_addmm_activation": _addmm_activation is not None,
        "modes": None not in (_any_autocast, _function_modes, _dispatch_modes),
    }


# --- a device of one's own ---------------------------------------------------------------------------------------------------


def give_device_module(name: str) -> None:
    """Make ``torch.<name>`` of a renamed PrivateUse1 backend: torch's random and checkpoint functions ask it for generators, of
    which it has none. A module that is there already stays."""
    register = getattr(torch, "_register_device_module", None)
    if register is None or hasattr(torch, name):
        return
    module = types.ModuleType(f"torch.{name}")
    module.__dict__.update(
        is_available=lambda: False,
        device_count=lambda: 0,
        current_device=lambda: 0,
        manual_seed_all=lambda seed: None,
        get_rng_state=lambda device=0: torch.empty(0, dtype=torch.uint8),
        set_rng_state=lambda state, device=0: None,
        _is_in_bad_fork=lambda: False,
    )
    register(name, module)
