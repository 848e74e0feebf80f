"""Custom ops: ``tinycompile.library.custom_op`` makes an op record of a function of yours.

It is then what every record is: callable on torch's tensors and ours, one node of a captured graph, differentiable if you say
how, and lowered if you say what it means; else it is a library call, around which everything else still fuses. (Ops made with
``torch.library`` need nothing: they are library calls too.)
"""

from __future__ import annotations

import functools
import hashlib
import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch

from tinycompile.base import shapes
from tinycompile.base.meta import TensorMeta
from tinycompile.dispatch import dispatcher
from tinycompile.dispatch import schema as schemas
from tinycompile.eager.fake import fake_extern_meta
from tinycompile.ops import table
from tinycompile.ops.record import CUSTOM, OPS, Decompose, Extern, Indexed, Lowering, Op, Pointwise, Reduction, Vjp, register

Fn = Callable[..., Any]


def custom_op(name: str, fn: Fn | None = None, *, mutates_args: Iterable[str] = (), schema: str | None = None) -> Any:
    """An op of your own, made of the function that computes it; usable as a decorator.

    ``name``: ``"namespace::name"``. The schema is inferred from annotations (Tensor, int, float, bool, str, dtype, device,
    their Optional, and Sequence of int, float or Tensor; a Tensor or a tuple of them is returned), or given in ATen's notation
    without the name: ``"(Tensor x, float s=1.0) -> Tensor"``. The function gets torch tensors, and must return fresh ones.
    ``mutates_args`` must be empty: an op that writes to its arguments is made with ``torch.library``.

    Returns a :class:`CustomOp`. Raises ValueError for a bad or taken name and for what can't be inferred.
    """
    if fn is None:
        return functools.partial(custom_op, name, mutates_args=mutates_args, schema=schema)
    if tuple(mutates_args):
        raise ValueError(f"{name}: ops of tinycompile.library write to no argument; make it with torch.library.custom_op")
    return CustomOp(name, fn, schema or torch.library.infer_schema(fn, mutates_args=()))


class CustomOp(table.OpObject):
    """A custom op. Calling it runs the kernel of the first tensor's device type, else the function it was made of.

    Each ``register_*`` is a decorator, and returns the function it was given. The record is ``tinycompile.ops.record.OPS[
    "namespace_name"]``."""

    def __init__(self, name: str, fn: Fn, signature: str) -> None:
        space, _, short = name.partition("::")
        if not (space.isidentifier() and short.isidentifier()):
            raise ValueError(f'the name of an op is "namespace::name", not {name!r}')
        self.name, self.record = name, f"{space}_{short}"
        self._fn, self._kernels = fn, dict[str, Fn]()
        self._fake: Fn | None = None
        self._texts = {"function": _text(fn)}
        parsed = schemas.parse(f"{self.record}{signature}")
        _check(parsed, name)
        register(Op(parsed, self._meta, self._run, Extern(), (), tuple, None, 4.0, inspect.getdoc(fn) or ""))
        dispatcher.define(parsed)
        CUSTOM[self.record] = self._fingerprint()
        functools.update_wrapper(self, fn)
        table.add(self, table.SchemaBinder(OPS[self.record]))

    # -- what it does ----------------------------------------------------------------------------------------------------

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        op = OPS[self.record]
        bound = tuple(tuple(a) if isinstance(a, list) else a for a in op.schema.bind(args, kwargs))
        tensors = dispatcher.tensors_in(bound)
        if not all(isinstance(t, torch.Tensor) for t in tensors):
            return dispatcher.call_bound(self.record, bound)
        if op.vjp is not None and torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
            return _Differentiated.apply(self.record, *bound)
        return op.eager(*bound)

    def __repr__(self) -> str:
        return f"<custom op {OPS[self.record].schema}>"

    def register_kernel(self, device_type: str, fn: Fn | None = None) -> Any:
        """Run ``fn`` for tensors of this device type (``"cpu"``, ``"cuda"``)."""
        if fn is None:
            return functools.partial(self.register_kernel, device_type)
        self._kernels[device_type] = fn
        return self._changed(f"kernel {device_type}", fn)

    def register_fake(self, fn: Fn) -> Fn:
        """The shape rule: ``fn`` gets the op's arguments with torch tensors on the meta device, and returns what the results
        look like (``torch.empty_like(x)``). Without one, the function itself is run on meta tensors."""
        self._fake = fn
        return self._changed("fake", fn)

    def register_autograd(self, backward: Fn, *, setup_context: Fn | None = None) -> None:
        """The gradient: ``backward(ctx, *grads)`` returns one gradient an argument (None for what has none), in torch
        functions; ``setup_context(ctx, inputs, output)`` may keep tensors with ``ctx.save_for_backward`` and anything else on
        ``ctx``, and reads ``ctx.needs_input_grad``."""
        schema = OPS[self.record].schema
        tensors = [a.name for a in schema.args if a.base == "Tensor"]
        several = len(schema.returns) > 1
        results = [f"result{i}" for i in range(len(schema.returns))] if several else ["result"]

        def vjp(grads: Sequence[Any], args: Sequence[Any], found: Sequence[Any], needs: Sequence[Any]) -> tuple[Any, ...]:
            ctx = Context(tuple(needs))
            if setup_context is not None:
                setup_context(ctx, tuple(args), tuple(found) if several else found[0])
            given = backward(ctx, *grads)
            gradients = tuple(given) if isinstance(given, (tuple, list)) else (given,)
            if len(gradients) != len(args):
                raise RuntimeError(f"the backward of {self.name} returned {len(gradients)} gradients for {len(args)} arguments")
            return gradients

        self._replace(vjp=Vjp(vjp, (*tensors, *results)))
        self._changed("backward", backward)
        if setup_context is not None:
            self._changed("setup_context", setup_context)

    def register_lowering(self, lowering: Lowering | Fn) -> Any:
        """What the op means, so that it is fused: a function of the op's arguments in torch functions that have records (a
        decomposition), or one of the record's forms: :class:`~tinycompile.ops.record.Pointwise`, ``Reduction``, ``Indexed``."""
        fn: Any = lowering
        if isinstance(lowering, (Pointwise, Reduction, Indexed)):
            fn = lowering.formula if not isinstance(lowering, Reduction) else (lowering.prologue or lowering.epilogue)
            self._replace(lowering=lowering)
        else:
            by_parts = functools.partial(self._decompose, fn)
            self._replace(lowering=Decompose(by_parts))
            dispatcher.composite(self.record, by_parts)
        if callable(fn):
            self._changed(f"lowering {type(lowering).__name__}", fn)
        return lowering

    # -- the record's parts ----------------------------------------------------------------------------------------------

    def _run(self, *args: Any) -> Any:
        first = next(iter(dispatcher.tensors_in(args)), None)
        kernel = self._kernels.get(first.device.type) if first is not None else None
        given, named = self._split(args)
        return (kernel or self._fn)(*given, **named)

    def _split(self, args: tuple[Any, ...]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments in schema order as the user's function takes them: some by keyword alone."""
        schema = OPS[self.record].schema
        named = zip(schema.args[schema.positional :], args[schema.positional :], strict=True)
        return args[: schema.positional], {argument.name: value for argument, value in named}

    def _decompose(self, lowering: Fn, *args: Any) -> Any:
        given, named = self._split(args)
        return lowering(*given, **named)

    def _meta(self, *args: Any) -> Any:
        _specialise(args)
        lowering = OPS[self.record].lowering
        if self._fake is None and isinstance(lowering, Decompose):
            return fake_extern_meta(lowering.fn, args, {})
        return fake_extern_meta(self._fake or self._fn, *self._split(args))

    def _replace(self, **parts: Any) -> None:
        OPS[self.record] = replace(OPS[self.record], **parts)
        table.add(self, table.SchemaBinder(OPS[self.record]))

    def _changed(self, part: str, fn: Fn) -> Fn:
        self._texts[part] = _text(fn)
        CUSTOM[self.record] = self._fingerprint()
        return fn

    def _fingerprint(self) -> str:
        return hashlib.sha256(repr(sorted(self._texts.items())).encode()).hexdigest()


class Context:
    """``ctx`` of a custom op's backward."""

    def __init__(self, needs: tuple[Any, ...]) -> None:
        self.needs_input_grad = needs
        self.saved_tensors: tuple[Any, ...] = ()

    def save_for_backward(self, *tensors: Any) -> None:
        """Keep tensors for the backward, which finds them in ``saved_tensors``."""
        self.saved_tensors = tensors


class _Differentiated(torch.autograd.Function):
    """The op on torch's tape."""

    @staticmethod
    def forward(ctx: Any, record: str, *args: Any) -> Any:
        ctx.record = record
        found = OPS[record].eager(*args)
        several = isinstance(found, (tuple, list))
        ctx.tensors = [i for i, a in enumerate(args) if isinstance(a, torch.Tensor)]
        ctx.rest = [None if isinstance(a, torch.Tensor) else a for a in args]
        ctx.several = several
        ctx.save_for_backward(*(args[i] for i in ctx.tensors), *(found if several else (found,)))
        return tuple(found) if several else found

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        vjp = OPS[ctx.record].vjp
        assert vjp is not None
        args, saved = list(ctx.rest), ctx.saved_tensors
        for i, t in zip(ctx.tensors, saved, strict=False):
            args[i] = t
        return (None, *vjp.fn(grads, tuple(args), saved[len(ctx.tensors) :], ctx.needs_input_grad[1:]))


def _check(schema: schemas.Schema, name: str) -> None:
    if schema.mutates:
        raise ValueError(f"{name}: ops of tinycompile.library write to no argument; make it with torch.library.custom_op")
    if not schema.returns or any(r.type != "Tensor" for r in schema.returns):
        raise ValueError(f"{name} must return a Tensor or a tuple of Tensors")


def _specialise(args: Any) -> None:
    """A shape rule in torch is worked out for the sizes at hand: guard that they stay."""
    flat = [m for a in args for m in (a if isinstance(a, (tuple, list)) else (a,))]
    for meta in (m for m in flat if isinstance(m, TensorMeta)):
        shapes.pin_symbols((*meta.shape, *meta.strides))


def _text(fn: Fn) -> str:
    """What tells one function from an edited one: its source, or its code."""
    try:
        return inspect.getsource(fn)
    except (OSError, TypeError):
        code = getattr(fn, "__code__", None)
        return repr((code.co_code.hex(), code.co_consts, code.co_names)) if code is not None else repr(fn)
