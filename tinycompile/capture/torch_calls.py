"""Calls of torch functions and tensor methods: to an op record where there is one, else to an extern node.

In-place ops become functional: see ``writes.py``.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch

from tinycompile.base import shapes
from tinycompile.base.config import config
from tinycompile.base.errors import DataDependentError
from tinycompile.base.meta import TensorMeta
from tinycompile.base.raised import words
from tinycompile.base.torch_private import any_autocast
from tinycompile.capture import op_numbers
from tinycompile.capture.breaks import GraphBreak, NotRebuildable
from tinycompile.capture.extern_sizes import sized_extern
from tinycompile.capture.externs import check_extern, gives_sparse_gradients, is_of_tensors, makes_new, viewed_by
from tinycompile.capture.provenance import is_the_programs, natively
from tinycompile.capture.torch_warnings import listening, tell_of_heard
from tinycompile.capture.values.base import Kwargs, Value
from tinycompile.capture.values.mapping import DictValue
from tinycompile.capture.values.sequence import SequenceValue, TupleValue
from tinycompile.capture.values.tensor import TensorValue
from tinycompile.capture.views import Step, ViewOf, is_refused_by_now, requires_grad_alone, steps_between
from tinycompile.capture.warning_calls import tell_of_attribute, tell_of_call, tell_of_kernels
from tinycompile.dispatch import dispatcher
from tinycompile.eager.autocast import cast_call, outside, run_outside
from tinycompile.eager.batched import BatchedTensor, active
from tinycompile.eager.batched_random import RECORDS
from tinycompile.eager.fake import FakeTensor, path_of
from tinycompile.eager.probe import refuse, refuses
from tinycompile.eager.recording import is_tracked
from tinycompile.eager.refused_dtypes import seems_refused
from tinycompile.eager.tensor import Tensor as OurTensor
from tinycompile.ir.graph import Node
from tinycompile.ops import table
from tinycompile.ops.gradients import CUT, compared, refused
from tinycompile.ops.in_place import OWN_GRADIENT, names_a_write
from tinycompile.ops.randomness import DRAWS, PROBABILITY
from tinycompile.ops.record import OPS, BoundCall, Op

if TYPE_CHECKING:
    from tinycompile.capture.tracer import Tracer

# Python functions of torch.nn.functional and torch.functional whose code is followed.
INLINED = frozenset(
    {
        "multi_head_attention_forward",
        "_in_projection_packed",
        "_in_projection",
        "_mha_shape_check",
        "_canonical_mask",
        "_none_or_dtype",
        "_check_key_padding_mask",
        "_get_softmax_dim",
        "_verify_batch_size",
        "_verify_spatial_size",
        "triplet_margin_with_distance_loss",
    }
)


# --- calls --------------------------------------------------------------------------------------------------


def call_torch(tr: Tracer, fn: Callable[..., Any], args: Sequence[Value], kwargs: Kwargs) -> Value:
    """A call of a torch function (or an operator) with at least the possibility of tensors in it."""
    made = tr.call_with_scalars(getattr(fn, "__name__", ""), args, kwargs)
    if made is not None:
        return made
    given = [a.argument(tr) for a in args]
    named = {k: v.argument(tr) for k, v in kwargs.items()}
    operands = [*args, *kwargs.values()]
    with asking_torch(tr, fn, given, named):
        bound = table.bind(fn, given, named)
        if bound is not None:
            _check_dtypes(bound, fn, given, named)
            tell_of_call(tr, fn, given, named, bound)
            return run_bound(tr, bound, operands)
    return _extern(tr, fn, given, named, operands)


@contextmanager
def asking_torch(tr: Tracer, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[None]:
    """Torch says itself what is wrong with a call, where the program may read it: records have other words, and symbols for
    sizes. Of an error that no record foresaw, it says whether the call is wrong; else it is a fault of ours."""
    try:
        yield
    except GraphBreak:
        raise
    except Exception as error:
        if tr.has_handler:
            natively(_raise_torchs, fn, args, kwargs)
        if tr.has_handler if is_the_programs(error) else refuses(fn, args, kwargs):
            raise GraphBreak("user-exception", words(error)) from error
        raise


def _check_dtypes(bound: BoundCall, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Records have formulas for more dtypes than torch has kernels for."""
    if not torch.is_autocast_enabled("cuda") and seems_refused(bound.op, bound.args) and refuses(fn, args, kwargs):
        raise RuntimeError(f"torch has no kernel of {bound.op.name} for these dtypes")


def _raise_torchs(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise what torch says of a call, which is about the sizes of this one; return if it says nothing."""
    try:
        refuse(fn, args, kwargs)
    except Exception:
        for t in dispatcher.tensors_in((args, tuple(kwargs.values()))):
            shapes.pin_symbols((*t.meta.shape, *t.meta.strides))
        op_numbers.settled((args, dict(kwargs)))
        raise


def call_method(tr: Tracer, t: TensorValue, name: str, args: Sequence[Value], kwargs: Kwargs) -> Value:
    """``t.name(...)``."""
    made = tr.call_with_scalars(name, [t, *args], kwargs)
    if made is not None:
        return made
    given = [t.fake, *(a.argument(tr) for a in args)]
    named = {k: v.argument(tr) for k, v in kwargs.items()}
    operands = [t, *args, *kwargs.values()]
    fn = getattr(torch.Tensor, name, None)
    with asking_torch(tr, fn or torch.Tensor, given, named):
        bound = table.bind_method(name, given, named)
        if bound is not None:
            _check_dtypes(bound, fn or torch.Tensor, given, named)
            tell_of_call(tr, fn, given, named, bound)
            return run_bound(tr, bound, operands)
    if fn is None:
        raise AttributeError(f"'Tensor' object has no attribute '{name}'")
    return _extern(tr, fn, given, named, operands)


def attribute(tr: Tracer, t: TensorValue, name: str) -> Value:
    """A property that is an op: ``t.T``, ``t.mT``, ``t.real``."""
    bound = table.bind_attribute(name, t.fake)
    tell_of_attribute(tr, t.fake, name)
    if bound is not None:
        return run_bound(tr, bound, [t])
    raise GraphBreak("unsupported-op", f"Tensor.{name}")


def run_bound(tr: Tracer, bound: BoundCall, operands: Sequence[Value]) -> Value:
    """Record an op and wrap its result."""
    if bound.out is not None:
        return _run_into(tr, bound, operands)
    if bound.op.name == "identity":
        return _owner(tr, bound.args[0], operands)
    if bound.sliced:
        return _slices(tr, bound.args, operands)
    if bound.unsafe:
        return _unsafe(tr, bound, operands)
    if not bound.inplace:
        return run_op(tr, bound.op.name, bound.args, operands)
    target = _owner(tr, bound.args[0], operands)
    assert isinstance(target, TensorValue)
    check_places(tr, bound.op.name, target, bound.args[1:], operands)
    if bound.op.name in OWN_GRADIENT and tr.grad_enabled and any(t.requires_grad for t in tensors_in(tr, operands)):
        raise GraphBreak("input-mutation", f"{bound.op.name} in place has another gradient than its result")
    if bound.op.name == "dropout" and config.fallback_random and target.meta.device.type == "cuda":
        raise GraphBreak("random", "torch draws other numbers for a dropout in place")
    return tr.write(target, lambda: run_op(tr, bound.op.name, bound.args, operands), operands)


def _slices(tr: Tracer, args: tuple[Any, ...], operands: Sequence[Value]) -> Value:
    """What ``tensor_split`` and its kin return: views each on its own."""
    whole, lengths, dim = args
    starts = itertools.accumulate(lengths, initial=0)
    return TupleValue([run_op(tr, "narrow", (whole, dim, *at), operands) for at in zip(starts, lengths, strict=False)])


def _unsafe(tr: Tracer, bound: BoundCall, operands: Sequence[Value]) -> Value:
    """What ``unsafe_split`` and its kin return: to torch no views, so it makes those that leave, or are written to."""
    made = run_op(tr, bound.op.name, bound.args, operands)
    for i, part in enumerate(tensors_in(tr, [made])):
        if part.view is not None:
            args = part.view.steps[0].args
            call = Node("", "extern", bound.unsafe, args)
            origin = part.view.origin.replace("several", "")
            part.view = replace(part.view, steps=(Step(bound.unsafe, args, i, call),), origin=origin)
    return made


_PLACING = {"scatter", "scatter_add", "scatter_reduce", "index_add", "index_copy", "index_reduce", "index_put", "put"}


def check_places(tr: Tracer, name: str, target: TensorValue, read: tuple[Any, ...], operands: Sequence[Value]) -> None:
    """What is written may hold neither the values nor the places: torch says what is wrong with ``x.index_add_(0, i, x)``."""
    given = {id(t.fake): t for t in tensors_in(tr, operands)} if name in _PLACING else {}
    if any(tr.is_same_place(target, given[id(fake)]) for fake in dispatcher.tensors_in(read) if id(fake) in given):
        raise GraphBreak("input-mutation", f"{target.describe()} is written in place with what is read there")


def _run_into(tr: Tracer, bound: BoundCall, operands: Sequence[Value]) -> Value:
    """``out=`` of the right shape is a write; torch resizes another, and refuses one where gradients are followed."""
    target = None if isinstance(bound.out, (tuple, list)) else _owner(tr, bound.out, operands)
    given = list(tensors_in(tr, operands))
    followed = tr.grad_enabled and (any(t.requires_grad for t in given) or is_tracked([t.fake for t in given]))
    if not isinstance(target, TensorValue) or followed:
        raise GraphBreak("input-mutation", f"out= of {bound.op.name}")
    check_places(tr, bound.op.name, target, bound.args[1:], operands)
    shape = target.meta.shape

    def compute() -> Value:
        value = run_op(tr, bound.op.name, bound.args, operands)
        if not isinstance(value, TensorValue) or len(value.meta.shape) != len(shape) or value.meta.device != target.meta.device:
            raise GraphBreak("input-mutation", f"out= of {bound.op.name} has another shape or device")
        if not all(map(shapes.same, value.meta.shape, shape)):
            raise GraphBreak("input-mutation", f"out= of {bound.op.name} has another shape")
        if value.meta.dtype != target.meta.dtype:  # some ops cast, some refuse
            raise GraphBreak("input-mutation", f"out= of {bound.op.name} has another dtype")
        return value

    return tr.write(target, compute, operands)


def _owner(tr: Tracer, fake: Any, operands: Sequence[Value]) -> Value:
    """The program's tensor object among the operands that a fake belongs to."""
    for t in tensors_in(tr, operands):
        if t.fake is fake:
            return t
    raise GraphBreak("unsupported-op", "the result is a tensor that is no argument")


def run_op(tr: Tracer, name: str, args: tuple[Any, ...], operands: Sequence[Value]) -> Value:
    """Call a record through the dispatcher, which records the node, and wrap what it returns."""
    if active.levels and name in PROBABILITY and name not in RECORDS and args[OPS[name].schema.positions[PROBABILITY[name]]]:
        raise GraphBreak("unsupported-op", f"{name} under vmap: whose the random numbers are, its randomness decides")
    check_differentiable(tr, OPS[name], args, operands)
    tr.about_to_record()
    result = dispatcher.call_bound(name, op_numbers.taken(name, args))
    views = [bool(r.alias) for r in OPS[name].schema.returns]
    cut = _cuts(tr, name, args, operands) or not dispatcher.tensors_in(args)  # ``x.new_zeros(3)`` is made of no tensor
    if not cut and not any(views):  # torch makes views again where they leave
        check_followed(tr, operands)
    return wrap_result(tr, result, operands, next(iter(tensors_in(tr, operands)), None) if any(views) else None, cut)


def _cuts(tr: Tracer, name: str, args: Sequence[Any], operands: Sequence[Value]) -> bool:
    """Whether no gradient goes through a call, by op or path: to none of its arguments, or not to those that require grad."""
    apart = compared(name, args)
    return name in CUT or (
        apart is not None and not any(t.requires_grad and t.fake is not apart for t in tensors_in(tr, operands))
    )


def check_differentiable(tr: Tracer, op: Op, args: tuple[Any, ...], operands: Sequence[Value]) -> None:
    """Torch says which of its functions is not differentiable in which argument."""
    fakes = refused(op, args) if tr.grad_enabled else ()
    if fakes and (
        is_tracked(fakes) or any(t.requires_grad and any(t.fake is f for f in fakes) for t in tensors_in(tr, operands))
    ):
        raise GraphBreak("user-exception", f"{op.name} has no derivative in an argument that requires grad")


def tensors_in(tr: Tracer, values: Iterable[Value]) -> Iterable[TensorValue]:
    """Tensors among values, also inside sequences and dicts."""
    for v in values:
        if isinstance(v, TensorValue):
            yield v
        elif isinstance(v, SequenceValue):
            yield from tensors_in(tr, v.values(tr))
        elif isinstance(v, DictValue):
            yield from tensors_in(tr, [x for _, x in v.pairs(tr)])


def check_followed(tr: Tracer, operands: Sequence[Value]) -> None:
    """What torch makes as a view under ``no_grad`` requires grad if what it views does, as a leaf whose gradient goes nowhere
    else. Where that matters torch makes it, before the graph that uses it."""
    alone = False
    for t in tensors_in(tr, operands) if tr.grad_enabled else ():
        unfollowed = t.view is not None and requires_grad_alone(t)
        alone |= unfollowed
        if (t.requires_grad or unfollowed) and is_refused_by_now(t):
            how = "made under no_grad" if unfollowed else "one of several views"
            what = f"{t.describe()}, {how}, is used after what it views was written to"
            raise NotRebuildable(t, what, "input-mutation")  # torch's error tells how it was made
    if alone:
        raise GraphBreak("grad-mode", "a view made under no_grad, of what requires grad, is used where gradients are followed")


# --- results ------------------------------------------------------------------------------------------------


def wrap_result(
    tr: Tracer, result: Any, operands: Sequence[Value], base: TensorValue | None = None, cut: bool = False
) -> Value:
    """FakeTensors as Values. ``base``: the operand whose memory they share; ``cut``: no gradient flows through."""
    inputs = list(tensors_in(tr, operands))
    grad = any(t.requires_grad for t in inputs) and not cut
    cls = OurTensor if any(t.cls is OurTensor for t in inputs) else torch.Tensor
    return _wrap(tr, result, cls, grad, base, cut)


def _wrap(tr: Tracer, result: Any, cls: type, grad: bool, base: TensorValue | None, cut: bool, several: bool = False) -> Value:
    if isinstance(result, (FakeTensor, BatchedTensor)):
        floating = result.meta.dtype.is_floating_point or result.meta.dtype.is_complex
        steps = None if base is None else steps_between(tr.builder, base.fake, result)
        silent = not tr.grad_enabled and tr.root_grad_enabled  # under no_grad inside a region with gradients
        if grad and floating and silent:
            result, grad = dispatcher.call("detach", result), False
        made = TensorValue(result, cls, grad and floating and tr.grad_enabled, None if base is None else base.memory)
        if base is not None and steps is not None:
            origin = "no_grad" if silent and not cut else "several" if several else ""
            made.view = ViewOf(base, steps, cut or silent, origin, base.memory.version)
        return made
    if isinstance(result, (tuple, list)):
        kind = type(result) if type(result) is not list else tuple
        return TupleValue([_wrap(tr, r, cls, grad, base, cut, several=True) for r in result], cls=kind)
    raise GraphBreak("unsupported-op", f"a result of type {type(result).__name__}")


# --- extern nodes -------------------------------------------------------------------------------------------


def _extern(
    tr: Tracer, fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any], operands: Sequence[Value], asked: Any = None
) -> Value:
    """Of a function without a record; ``asked``: the one that the program calls, where that writes the result of ``fn``."""
    path = path_of(fn)
    if isinstance(fn, FunctionType) and op_numbers.has_numpys(tr, operands):
        what = f"one of numpy's numbers is given to {path}, which is Python and may see its class"
        raise GraphBreak("unsupported-argument", what)
    functional = _without_write(fn)
    if functional is not None and args and isinstance(operands[0], TensorValue):
        check_places(tr, functional.__name__, operands[0], (*args[1:], *kwargs.values()), operands)
        compute = run_outside(functools.partial(_extern, tr, functional, args, kwargs, operands, fn))  # writes have no policy
        return tr.write(operands[0], compute, operands)
    check_extern(path, fn, args, kwargs)
    if (
        gives_sparse_gradients(path, args, kwargs)
        and tr.grad_enabled
        and any(t.requires_grad for t in tensors_in(tr, operands))
    ):
        raise GraphBreak("unsupported-op", f"{path} has sparse gradients: torch's own backward makes these")
    if not is_of_tensors(path, fn) and (path.startswith("torch._C.") or not any(tensors_in(tr, operands))):
        raise GraphBreak("side-effect", f"{path} may change a setting: it is not called to learn what it returns")
    if not any_autocast():
        return extern(tr, path, fn, args, kwargs, operands, asked)
    cast = cast_call(path, fn, args, kwargs)
    if cast is None:
        raise GraphBreak("mode", f"{path} under autocast: torch composes it of ops that are cast")
    with outside():
        return extern(tr, path, fn, *cast, operands, asked)


def extern(
    tr: Tracer,
    path: str,
    fn: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    operands: Sequence[Value],
    asked: Any = None,
) -> Value:
    """Record a call of torch's own function, known to be free of effects, by path."""
    if kwargs.get("requires_grad"):
        raise GraphBreak("unsupported-argument", f"{path} makes a leaf: requires_grad=True of a tensor that is made inside")
    inputs = list(tensors_in(tr, operands))
    if active.levels and path.rpartition(".")[2] in DRAWS:
        raise GraphBreak("unsupported-op", f"{path} under vmap: whose the random numbers are, its randomness decides")
    if any(isinstance(t.fake, BatchedTensor) for t in inputs):
        raise GraphBreak("unsupported-op", f"{path} has no batching rule: under vmap it is called once an example")
    if torch.is_grad_enabled() and is_tracked([t.fake for t in inputs]):
        raise GraphBreak("unsupported-op", f"{path} under tinycompile.func: torch alone can differentiate it")
    args, kwargs = tuple(args), dict(kwargs)
    if tr.has_handler or not makes_new(path):  # of other numbers it may raise, or return something else than a new tensor
        args, kwargs = op_numbers.settled(args), op_numbers.settled(kwargs)
    tr.about_to_record()
    sizes = [d for t in inputs for d in (*t.meta.shape, *t.meta.strides)]
    try:
        with listening() as heard:
            found, for_others = sized_extern(fn, args, kwargs, sizes)
    except DataDependentError as error:
        raise GraphBreak("data-dependent", f"{path}: {error}") from error
    except Exception as error:
        if refuses(fn, args, kwargs):
            raise GraphBreak("user-exception", f"{path}: {words(error)}") from error
        reason = f"{path} has no record, and its metadata can't be told: {words(error)}"
        raise GraphBreak("unsupported-op", reason) from error
    if tr.has_handler and path.endswith("as_strided"):
        raise GraphBreak("try-block", f"{path}: whether the memory is large enough is told when torch makes the view")
    if not for_others:
        args, kwargs = op_numbers.settled(args), op_numbers.settled(kwargs)
    metas = found.metas
    if not _all_tensors(metas):
        raise GraphBreak("unsupported-op", f"{path} returns something other than tensors")
    if heard:
        tell_of_heard(tr, heard, asked or fn, args, kwargs)
    else:
        tell_of_kernels(tr, fn, args, kwargs)
    check_followed(tr, inputs)
    base = viewed_by(path, found, (args, kwargs), inputs)
    if base is not None and found.same:
        return base
    structure = metas if isinstance(metas, TensorMeta) else tuple(metas)
    value = wrap_result(tr, tr.builder.extern(path, args, kwargs, structure), operands, base, _cuts(tr, path, args, inputs))
    if isinstance(value, TupleValue):
        value.cls = type(metas)
    return value


# In-place methods that are no function of the values, or change more than these.
_NO_FUNCTION = frozenset({
    "bernoulli_", "resize_", "resize_as_", "requires_grad_", "rename_", "as_strided_", "detach_", "squeeze_", "unsqueeze_",
    "t_", "transpose_", "swapaxes_", "swapdims_",
})  # fmt: skip


def _without_write(fn: Any) -> Any:
    """The method that gives the result of an in-place method; None where there is none."""
    name = getattr(fn, "__name__", "")
    if not names_a_write(name) or name in _NO_FUNCTION or getattr(torch.Tensor, name, None) is not fn:
        return None
    return getattr(torch.Tensor, name[:-1], None)


def _all_tensors(metas: Any) -> bool:
    return isinstance(metas, TensorMeta) or (
        isinstance(metas, tuple) and metas != () and all(isinstance(m, TensorMeta) for m in metas)
    )
