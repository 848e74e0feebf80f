"""Torch functions that are no ops: questions about tensors and modes, and gradient modes."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import overrides

from tinycompile.base.overheard import overheard
from tinycompile.capture import torch_calls
from tinycompile.capture.breaks import GraphBreak
from tinycompile.capture.provenance import natively
from tinycompile.capture.rules.registry import RULES, Args, rule
from tinycompile.capture.torch_warnings import tell
from tinycompile.capture.values.autocast import AutocastMode, settings_of
from tinycompile.capture.values.base import Kwargs, Value
from tinycompile.capture.values.constant import FALSE, NONE, TRUE, Const, boolean
from tinycompile.capture.values.context import GradMode
from tinycompile.capture.values.sequence import size_value
from tinycompile.capture.values.tensor import TensorValue

if TYPE_CHECKING:
    from tinycompile.capture.tracer import Tracer


def _find(path: str) -> Any:
    found: Any = torch
    for part in path.split("."):
        found = getattr(found, part, None)
    return found


def _answers(value: Value, *paths: str) -> None:
    """Functions of torch that always give the same answer under capture."""
    for path in paths:
        fn = _find(path)
        if fn is not None:
            RULES[fn] = lambda tr, args, kwargs: value


_answers(
    FALSE,
    "jit.is_scripting",
    "jit.is_tracing",
    "_C._get_tracing_state",
    "_jit_internal.is_scripting",
    "overrides.has_torch_function",
    "overrides.has_torch_function_unary",
    "overrides.has_torch_function_variadic",
    "_C._is_tracing",
    "nn.functional.has_torch_function",
    "nn.functional.has_torch_function_unary",
    "nn.functional.has_torch_function_variadic",
    "compiler.is_exporting",
    "_C._is_torch_function_mode_enabled",
)
# Under these modes calls aren't captured.
_answers(Const(0), "_C._len_torch_dispatch_stack", "_C._len_torch_dispatch_stack_pre_dispatch", "_C._len_torch_function_stack")
_answers(TRUE, "compiler.is_compiling", "compiler.is_dynamo_compiling", "_utils.is_compiling")
for _name in ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic"):
    RULES[getattr(overrides, _name)] = lambda tr, args, kwargs: FALSE


@rule(torch._assert)
def _assert(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    """``assert`` as a function."""
    given = [*args, *kwargs.values()]
    if not given[0].truth(tr):
        raise AssertionError(given[1].constant(tr))
    return NONE


def _of_tensor(method: str) -> Callable[..., Value]:
    return lambda tr, args, kwargs: args[0].call_method(tr, method, args[1:], kwargs)


for _name in (
    "is_floating_point",
    "is_complex",
    "numel",
    "is_signed",
    "is_nonzero",
    "equal",
    "allclose",
    "is_conj",
    "is_neg",
    "is_inference",
):
    RULES[getattr(torch, _name)] = _of_tensor(_name)


@rule(torch.is_tensor)
def _is_tensor(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    return boolean(isinstance(args[0], TensorValue) and issubclass(args[0].cls, torch.Tensor))


@rule(torch.is_grad_enabled)
def _is_grad_enabled(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    return boolean(tr.grad_enabled)


@rule(torch.is_inference_mode_enabled)
def _is_inference_mode(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    return boolean(torch.is_inference_mode_enabled())  # the mode of the call; a change of it is a break


@rule(torch.get_default_dtype)
def _default_dtype(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    return Const(torch.get_default_dtype())


@rule(torch.broadcast_shapes)
def _broadcast_shapes(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    return size_value(natively(torch.broadcast_shapes, *(a.constant(tr) for a in args)))


@rule(torch.split)
def _split(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    """The tensor's method, which it calls."""
    given = dict(zip(("tensor", "split_size_or_sections", "dim"), args, strict=False)) | kwargs
    tensor, size = given.pop("tensor"), given.pop("split_size_or_sections")
    return tensor.get_attr(tr, "split").call(tr, [size], given)


def _on_constants(fn: Any) -> None:
    RULES[fn] = lambda tr, args, kwargs: tr.computed(
        natively(fn, *(a.constant(tr) for a in args), **{k: v.constant(tr) for k, v in kwargs.items()})
    )


for _fn in (torch.promote_types, torch.can_cast, torch.finfo, torch.iinfo, torch.device, torch.cuda.is_available):
    _on_constants(_fn)


@rule(torch.result_type)
def _result_type(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    plain = [torch.empty([1] * a.meta.rank, dtype=a.meta.dtype) if isinstance(a, TensorValue) else a.constant(tr) for a in args]
    return Const(natively(torch.result_type, *plain))


# --- gradient modes -----------------------------------------------------------------------------------------


@rule(torch.no_grad)
def _no_grad(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    return _mode(tr, args, mode=False)


@rule(torch.enable_grad)
def _enable_grad(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    return _mode(tr, args, mode=True)


def _mode(tr: Tracer, args: Args, mode: bool) -> Value:
    made = GradMode(mode, now=False, before=tr.grad_enabled)
    return made.call(tr, args, {}) if args else made


@rule(torch.set_grad_enabled)
def _set_grad_enabled(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    mode = kwargs.get("mode", args[0] if args else NONE).truth(tr)
    made = GradMode(mode, now=True, before=tr.grad_enabled)
    tr.set_grad(mode)
    return made


def _autocast(cls: type, tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    """A region's object: torch's own checks its arguments, here and now."""
    given, named = [a.constant(tr) for a in args], {k: v.constant(tr) for k, v in kwargs.items()}
    try:
        made = natively(cls, *given, **named)
    except GraphBreak:  # it warns
        tell(tr, cls, given, named)
        with overheard():
            made = cls(*given, **named)
    return AutocastMode(settings_of(made))


for _cls in (torch.autocast, torch.cuda.amp.autocast, torch.cpu.amp.autocast):
    RULES[_cls] = functools.partial(_autocast, _cls)


def _autocast_state(fn: Any, tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    """Torch's state is that of the captured program."""
    tr.guards.reads_autocast = True
    return tr.from_python(natively(fn, *(a.constant(tr) for a in args), **{k: v.constant(tr) for k, v in kwargs.items()}))


for _name in ("is_autocast_enabled", "is_autocast_cpu_enabled", "is_autocast_cache_enabled", "get_autocast_dtype"):
    RULES[getattr(torch, _name)] = functools.partial(_autocast_state, getattr(torch, _name))


def _as_library_calls(*fns: Any) -> None:
    """Functions written in Python whose code is not followed: one node each."""
    for fn in fns:
        RULES[fn] = functools.partial(_library_call, fn)


def _library_call(fn: Any, tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    return torch_calls.call_torch(tr, fn, args, kwargs)


_as_library_calls(
    torch.svd_lowrank,
    torch.pca_lowrank,
    *(getattr(torch.masked, n) for n in torch.masked._ops.__all__),
    torch.masked._ops.logaddexp,
)


def _refuse(kind: str, *fns: Any) -> None:
    for fn in fns:
        name = getattr(fn, "__qualname__", str(fn))

        def handler(tr: Tracer, args: Args, kwargs: Kwargs, name: str = name) -> Value:
            raise GraphBreak(kind, name)

        RULES[fn] = handler


_refuse("mode", torch.inference_mode)
_refuse("random", torch.manual_seed, torch.seed, torch.get_rng_state, torch.set_rng_state)
_refuse("side-effect", contextlib.redirect_stdout, contextlib.redirect_stderr)
