"""The Autocast key: mixed precision. Inside a region each op first casts its tensors by its policy (``autocast_policy.py``).

The regions are torch's own: ``tinycompile.autocast`` is ``torch.autocast``, so that either spelling holds for both kinds of
tensors. The key is the highest: the casts are ops themselves, so the tape follows them, and captures have them in their graphs.
What runs below an op is outside the region, as in torch.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from tinycompile.base import torch_private
from tinycompile.dispatch import dispatcher
from tinycompile.dispatch.keys import Key, KeySet
from tinycompile.eager.autocast_policy import BANNED_MESSAGE, COMPOSED, POLICIES, Policy, policy_under_vmap
from tinycompile.eager.autocast_policy import policy as policy_of_record
from tinycompile.eager.no_trace import aside
from tinycompile.eager.probe import ops_of
from tinycompile.eager.tensor import Tensor
from tinycompile.ops.calls import cast

autocast = torch.autocast

_PROMOTION = "Unexpected floating ScalarType in at::autocast::prioritize"


_Casts = dict[tuple[int, torch.dtype], tuple[Any, Any]]  # (id of a weight, dtype) -> the weight, its cast


class _Weights(threading.local):
    """Casts of leaves that require grad, kept until the outermost region ends: a weight that is used twice is cast once."""

    token: Any = None
    casts: _Casts | None = None


_weights = _Weights()


parts_under_vmap: dict[str, Callable[..., Any]] = {}
"""Records that are parts on a CPU under vmap, each of which is cast alone; set by ``batched_autocast.py``, which stands above
this file."""


def run_autocast(op_name: str, keyset: KeySet, args: tuple[Any, ...]) -> Any:
    """The Autocast key's fallback: cast as the policy of the call's device says, then go on with the region switched off."""
    kind = "cuda" if keyset >> Key.CUDA & 1 else "cpu" if keyset >> Key.CPU & 1 else ""
    if not kind or not torch.is_autocast_enabled(kind):
        return dispatcher.redispatch(op_name, keyset.below(Key.AUTOCAST), args)
    if kind == "cpu" and keyset >> Key.BATCHED & 1 and op_name in parts_under_vmap:
        return parts_under_vmap[op_name](*args)
    lower = torch.get_autocast_dtype(kind)
    policy = (policy_under_vmap if keyset >> Key.BATCHED & 1 else policy_of_record)(op_name, args, kind)
    keep = _cache(lower) if policy is Policy.LOWER and not keyset >> Key.TRACING & 1 else None
    torch.set_autocast_enabled(kind, False)
    try:
        if policy is not None:
            args = cast_arguments(policy, args, kind, lower, keep)
            if policy is Policy.FP32_RESULT:
                args = _with_dtype(op_name, args, kind)
        return dispatcher.redispatch(op_name, keyset.below(Key.AUTOCAST), args)
    finally:
        torch.set_autocast_enabled(kind, True)


# --- casts -------------------------------------------------------------------------------------------------------------------


def cast_arguments(
    policy: Policy, args: Sequence[Any], kind: str, lower: torch.dtype, keep: _Casts | None = None
) -> tuple[Any, ...]:
    """A call's arguments as ``policy`` casts them on devices of type ``kind``. Raises RuntimeError for what torch refuses.

    ``keep``: casts of weights made so far in this region."""
    if policy is Policy.BANNED:
        raise RuntimeError(BANNED_MESSAGE)
    if policy is Policy.FP32_RESULT:
        return tuple(args)
    to = lower if policy is Policy.LOWER else torch.float32
    if policy is Policy.PROMOTE:
        to = _widest(args, kind, lower)
    return tuple(_cast(a, kind, to, keep) for a in args)


def is_eligible(value: Any, kind: str) -> bool:
    """Whether autocast may cast it: a floating-point tensor, not float64, on such a device."""
    dtype = getattr(value, "dtype", None)
    return (
        dtype is not None
        and dtype.is_floating_point
        and dtype is not torch.float64
        and getattr(getattr(value, "device", None), "type", "") == kind
    )


def _cast(value: Any, kind: str, to: torch.dtype, keep: _Casts | None) -> Any:
    if type(value) in (tuple, list):
        return type(value)(_cast(v, kind, to, keep) for v in value)
    if not is_eligible(value, kind):
        return value
    if keep is None or value.dtype is not torch.float32 or not _is_weight(value):
        return cast(value, to)
    known = keep.get((id(value), to))
    if known is None:
        known = keep[id(value), to] = value, cast(value, to)  # the weight is held, so that its id stays its own
    return known[1]


def _widest(args: Sequence[Any], kind: str, lower: torch.dtype) -> torch.dtype:
    """float32 if any tensor is; doubles don't count."""
    widest = lower
    for tensor in dispatcher.tensors_in(args):
        if is_eligible(tensor, kind):
            if tensor.dtype is torch.float32 or widest is torch.float32:
                widest = torch.float32
            elif tensor.dtype is not lower:
                raise RuntimeError(_PROMOTION)
    return widest


def _with_dtype(op_name: str, args: tuple[Any, ...], kind: str) -> tuple[Any, ...]:
    """With the op's ``dtype`` argument set to float32, unless the caller gave one; without such an argument, cast."""
    at = dispatcher.schema_of(op_name).positions.get("dtype")
    if at is None:
        return tuple(_cast(a, kind, torch.float32, None) for a in args)
    if args[at] is not None or not is_eligible(args[0], kind):
        return args
    return (*args[:at], torch.float32, *args[at + 1 :])


# --- the cache of weights ----------------------------------------------------------------------------------------------------


def _cache(lower: torch.dtype) -> _Casts | None:
    """The casts kept in this region, with torch's lifetime: until its outermost region ends. None: nothing may be kept."""
    if not torch.is_autocast_cache_enabled() or not torch.is_grad_enabled():
        return None
    if _weights.token is None or _weights.token() is None:
        with aside():
            _weights.token, _weights.casts = torch_private.autocast_token(), {}
    return None if _weights.token is None else _weights.casts


def _is_weight(tensor: Any) -> bool:
    """A leaf that requires grad, and no view: what torch keeps the cast of."""
    if isinstance(tensor, Tensor):
        return bool(tensor.keys & Key.AUTOGRAD.bit) and tensor._view is None and tensor.is_leaf
    return bool(tensor.requires_grad and tensor.is_leaf and not tensor._is_view())


# --- functions without a record ----------------------------------------------------------------------------------------------


def policy_of(path: str, kind: str) -> Policy | None:
    """The policy of a torch function by its dotted path: ``torch.nn.functional.conv_transpose2d``, ``torch.fft.rfft``."""
    parts = path.removeprefix("torch.ops.aten.").split(".")
    names = (parts[-1], "_".join(parts[-2:]), parts[0])
    return next((POLICIES[kind][n] for n in names if n in POLICIES.get(kind, {})), None)


def cast_call(
    path: str, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """The arguments of a torch function without a record as this region casts them: for a call that will run outside of it.

    None where torch composes the function of ops with a policy: then only torch can tell. Raises RuntimeError as torch does."""
    tensors = dispatcher.tensors_in((args, tuple(kwargs.values())))
    kind = next((k for k in POLICIES if torch.is_autocast_enabled(k) and any(is_eligible(t, k) for t in tensors)), None)
    if kind is None:
        return tuple(args), dict(kwargs)
    policy = policy_of(path, kind)
    if policy is None:
        return None if _is_composed(path, fn, args, kwargs, kind) else (tuple(args), dict(kwargs))
    if policy is Policy.FP32_RESULT and kwargs.get("dtype") is None:  # sums in float32 of what was cast are the same
        policy = Policy.FP32
    lower = torch.get_autocast_dtype(kind)
    with outside():
        cast_args = cast_arguments(policy, (*args, *kwargs.values()), kind, lower)
    return cast_args[: len(args)], dict(zip(kwargs, cast_args[len(args) :], strict=True))


def _is_composed(path: str, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], kind: str) -> bool:
    """Whether ops with a policy are, or may be, among those that torch composes a function of."""
    if path.rpartition(".")[2] in COMPOSED:
        return True
    with outside():
        called = ops_of(fn, args, kwargs)
    inside = (
        op
        for op in called
        if any(torch_private.has_kernel(op, key) for key in _COMPOSITE) and not torch_private.has_kernel(op, kind.upper())
    )
    return any(op.partition(".")[0] in POLICIES[kind] for op in called) or any(inside)


_COMPOSITE = ("CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")  # kernels that call other ops


# --- regions -----------------------------------------------------------------------------------------------------------------

RegionState = tuple[Any, ...]


def region_state() -> RegionState:
    """What regions set, as one value: (enabled, dtype) for CPU and CUDA, and whether casts of weights are kept."""
    kinds = tuple((torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in POLICIES)
    return (*kinds, torch.is_autocast_cache_enabled())


def set_region_state(state: RegionState) -> None:
    """Back to what ``region_state`` gave."""
    *kinds, cache_enabled = state
    for kind, (enabled, dtype) in zip(POLICIES, kinds, strict=True):
        torch.set_autocast_enabled(kind, enabled)
        torch.set_autocast_dtype(kind, dtype)
    torch.set_autocast_cache_enabled(cache_enabled)


@contextmanager
def outside() -> Iterator[None]:
    """Outside every region: compilers work here, and so does what was captured with its casts in it."""
    on = [kind for kind in POLICIES if torch.is_autocast_enabled(kind)]
    for kind in on:
        torch.set_autocast_enabled(kind, False)
    try:
        yield
    finally:
        for kind in on:
            torch.set_autocast_enabled(kind, True)


def run_outside(fn: Callable[..., Any]) -> Callable[..., Any]:
    """``fn`` that runs outside every region."""

    def run(*args: Any) -> Any:
        with outside():
            return fn(*args)

    return run


dispatcher.fallback(Key.AUTOCAST, run_autocast)
