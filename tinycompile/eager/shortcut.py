"""The short way of small calls: straight to torch's own function, or to a view, where nothing else would run.

A call's whole way is: which record is meant (``ops/table.py``), its key set and what that chooses (``dispatcher``), the kernel.
Most of it comes out the same for every call of a function with arguments of the same types. So it is remembered by these, and
a call whose key set the dispatcher knows to end in torch (:func:`~tinycompile.dispatch.dispatcher.leaves`) is made at once; one
that the tape follows leaves its node behind it. Where more than the types decides what is meant (numbers that become a list of
dims, keywords, a view's sizes), that is remembered too: numbers by value, tensors by their metadata. Whatever is special takes
the whole way, and so does an error, to be worded.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from tinycompile.base.holdings import tell_holdings
from tinycompile.base.meta import TensorMeta
from tinycompile.base.torch_private import any_autocast
from tinycompile.dispatch import dispatcher
from tinycompile.dispatch.keys import BACKENDS, Key
from tinycompile.dispatch.local_keys import LOCAL
from tinycompile.ops import table
from tinycompile.ops.gradients import has_plain_formula
from tinycompile.ops.outline import Outlined
from tinycompile.ops.record import OPS, BoundCall, Op

_AUTOGRAD = Key.AUTOGRAD.bit
_PLAIN = int(BACKENDS) | _AUTOGRAD
_SIMPLE = frozenset((int, float, bool, torch.dtype, type(None)))
_BY_VALUE = frozenset((int, bool, torch.dtype, type(None), str))
_LEARNT = _SIMPLE | {str, tuple, list}
_AT_MOST = 4096  # calls that differ in values, of one function
_NEW: Any = object()
_NOTHING: dict[str, Any] = {}


class ViewStep(NamedTuple):
    """One op of a view: its further arguments, and the metadata before and after."""

    name: str
    rest: tuple[Any, ...]
    of: TensorMeta
    made: TensorMeta
    op: Op


class ShortView(NamedTuple):
    """A view of a tensor with certain metadata. ``chain``: as of ``ViewInfo``; ``leaves``: one set an op."""

    meta: TensorMeta
    steps: tuple[ViewStep, ...]
    chain: tuple[tuple[str, tuple[Any, ...]], ...]
    leaves: tuple[set[int], ...]


class Known(NamedTuple):
    """What calls with arguments of these types mean: the op, its further arguments, and the key sets that end in torch.
    ``has_node``: the tape follows the op by its own formula. ``reads``: what that reads (``saved.py``), by which arguments need
    gradients. ``places``: where each of the op's arguments comes from: a number is a place in the call, its arguments and then
    its keywords' values, a tuple holds the argument itself; None: in order, with the defaults in ``rest`` behind them.
    ``view``: the view that the call makes."""

    leaves: set[int]
    op: Op
    rest: tuple[Any, ...]
    has_node: bool
    reads: dict[tuple[Any, ...], Any]
    places: tuple[Any, ...] | None = None
    view: ShortView | None = None

    def arguments(self, args: Sequence[Any]) -> tuple[Any, ...]:
        """The op's, in schema order."""
        if self.places is None:
            return (*args, *self.rest)
        return tuple([args[p] if type(p) is int else p[0] for p in self.places])


class Choices(dict[Any, Any]):
    """What calls with arguments of these types mean by their values; with ``by_meta`` also by their tensors' metadata. Held are
    (the metadata, Known), the first so that its ``id`` is nobody else's."""

    __slots__ = ("by_meta",)

    def __init__(self, by_meta: bool) -> None:
        super().__init__()
        self.by_meta = by_meta


WRITES = "writes"
"""What is known of calls that write their first argument in place, or ``out=``."""

Ends = dict[tuple[Any, ...], "Known | Choices | str | None"]

on_tape: list[Callable[..., Any]] = []
"""``on_tape[0](known, fn, args, raws)``: the call and its node; ``on_tape[1](view, base, followed)``: a view, followed by the
tape or not. Set by ``recording.py``, which stands above this file."""


def short_call(ends: Ends, key: tuple[Any, ...], fn: Callable[..., Any], args: Sequence[Any]) -> Any:
    """The result of ``fn``, as ours; None where the whole way must be taken."""
    known = ends.get(key)
    if known is None:
        return None
    if not isinstance(known, Known):
        return _written(fn, args) if isinstance(known, str) else by_value(known, fn, args, {})
    mask = 0
    raws = []
    for arg in args:
        if type(arg) not in _SIMPLE:
            mask |= arg.keys
            arg = arg._handle
            if arg is None:
                return None
        raws.append(arg)
    if mask not in known.leaves or LOCAL.changed or any_autocast():
        return None
    try:
        if mask & _AUTOGRAD and torch.is_grad_enabled():
            return on_tape[0](known, fn, args, raws) if mask & ~_AUTOGRAD in known.leaves else None
        return sibling(fn(*raws), args, raws)
    except RuntimeError:
        return None


def _written(fn: Callable[..., Any], args: Sequence[Any]) -> Any:
    """``x.add_(y)`` where no tape follows: torch's function writes. None where the whole way must be taken."""
    raws = _to_write(args)
    try:
        return args[0] if raws is not None and fn(*raws) is raws[0] else None
    except RuntimeError as error:  # torch may have written before it refused
        tell_holdings(error)
        raise


def written_out(fn: Callable[..., Any], args: Sequence[Any], out: Any) -> Any:
    """The same for ``torch.add(x, y, out=z)``, which may resize ``z``."""
    raws = _to_write((*args, out))
    try:
        if raws is None or fn(*raws[:-1], out=raws[-1]) is not raws[-1]:
            return None
    except RuntimeError as error:
        tell_holdings(error)
        raise
    finally:
        if raws is not None:
            out._meta = out._storage = None
    return out


def _to_write(args: Sequence[Any]) -> list[Any] | None:
    """Arguments as torch's, where torch's function alone has to run."""
    mask = 0
    raws = []
    for arg in args:
        if type(arg) not in _SIMPLE:
            mask |= arg.keys
            arg = arg._handle
            if arg is None:
                return None
        raws.append(arg)
    return None if mask not in _WRITABLE or LOCAL.changed or any_autocast() else raws


_WRITABLE = {Key.CPU.bit, Key.CUDA.bit}


def take_whole_way(whole: bool) -> None:
    """Whether writes, too, are for somebody to see. (What is not written ends here while the dispatcher is watched.)"""
    _WRITABLE.clear()
    if not whole:
        _WRITABLE.update((Key.CPU.bit, Key.CUDA.bit))


def by_value(choices: Choices, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The same, where the values of numbers have a say."""
    mask, viewed = 0, False
    values: list[Any] = []
    raws: list[Any] = []
    every = (*args, *kwargs.values()) if kwargs else args
    for arg in every:
        kind = type(arg)
        if kind in _BY_VALUE:
            values.append(arg)
        elif kind is tuple or kind is list:
            for v in arg:
                if type(v) is not int:  # 1.0 equals 1
                    return None
            values.append(tuple(arg))
        elif kind is not float:
            mask |= arg.keys
            if choices.by_meta:
                values.append(id(arg._meta or arg.meta))
            arg = arg._handle
            viewed |= arg is None
        raws.append(arg)
    found = choices.get(tuple(values))
    if found is None or LOCAL.changed or any_autocast():
        return None
    known: Known = found[1]
    if known.op.name == "identity":
        return args[0] if not mask & ~_PLAIN else None
    if mask not in known.leaves:
        return None
    tracked = mask & _AUTOGRAD
    if tracked and mask & ~_AUTOGRAD not in known.leaves:
        return None
    if known.view is not None:
        return on_tape[1](known.view, args[0], tracked)
    if viewed:  # views make their handles when they are asked
        raws = [_raw(a) for a in every]
    call = functools.partial(fn, *raws[: len(args)], **dict(zip(kwargs, raws[len(args) :], strict=True)))
    try:
        if not tracked or not torch.is_grad_enabled():
            return sibling(call(), args, raws)
        meant = known.arguments(every)
        return on_tape[0](known, lambda *_: call(), meant, [_raw(a) for a in meant])
    except RuntimeError:
        return None


def _raw(value: Any) -> Any:
    if not hasattr(value, "_handle"):  # a number, or what a record's own arguments are: layouts, dtypes, devices
        return value
    handle = value._handle
    return value.raw() if handle is None else handle


def sibling(result: Any, args: Sequence[Any], raws: Sequence[Any]) -> Any:
    """torch's result as ours, on the device of the first tensor; None if it is one of the arguments, or no single tensor."""
    if type(result) is not torch.Tensor:
        return None
    for raw in raws:
        if raw is result:
            return None
    first = args[0]
    if not hasattr(first, "_handle"):  # a number stands first: 1 - x
        first = next(a for a in args if hasattr(a, "_handle"))
    return first._sibling(result)


def learn(
    ends: Ends,
    key: tuple[Any, ...],
    bound: BoundCall | None,
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] = _NOTHING,
) -> None:
    """After the whole way was found for a call: note what such calls mean, if it can be told from their arguments."""
    known = ends.get(key, _NEW)
    if known is None or type(known) is Known or known is WRITES:
        return
    if bound is not None and _names_a_device(bound):
        return
    every = (*args, *kwargs.values())
    if known is _NEW:
        kind = type(args[0])
        plain = hasattr(args[0], "_handle") and all(type(a) is kind or type(a) in _LEARNT for a in every)
        if bound is None or bound.inplace or bound.out is not None or not plain or not _has_one_result(bound.op):
            ends[key] = WRITES if bound is not None and plain and _writes_alone(bound, args, kwargs) else None
            return
        by_name = table.names_one_op(fn) and not _is_view(bound.op) and not isinstance(bound.op.meta, Outlined)
        if by_name and not kwargs and all(type(a) is kind or type(a) in _SIMPLE for a in args) and _in_order(args, bound.args):
            ends[key] = _known(bound.op, bound.args[len(args) :], None)
            return
        known = ends[key] = Choices(not by_name)
    assert isinstance(known, Choices)
    if bound is not None and not bound.inplace and bound.out is None and _has_one_result(bound.op):
        _learn_values(known, bound, every)


def _names_a_device(bound: BoundCall) -> bool:
    at = bound.op.schema.device_arg
    return at is not None and bound.args[at] is not None


def _writes_alone(bound: BoundCall, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether the call is torch's function of its tensors and numbers that writes in place, or ``out=``, and nothing else."""
    if not all(type(a) in _SIMPLE or hasattr(a, "_handle") for a in args):
        return False
    if kwargs:
        return not bound.inplace and list(kwargs) == ["out"] and bound.out is kwargs["out"] and hasattr(bound.out, "_handle")
    return bound.inplace and bound.out is None and bound.args[0] is args[0]


def _learn_values(choices: Choices, bound: BoundCall, every: Sequence[Any]) -> None:
    places: list[Any] = []
    tensors = [a for a in every if hasattr(a, "_handle")]
    if not all(type(a) in _BY_VALUE or type(a) is float or _are_numbers(a) for a in every if not hasattr(a, "_handle")):
        return
    if any(type(a) is float for a in every) and choices.by_meta:  # the very value may decide
        return
    values = tuple([_value(a) for a in every if type(a) is not float and (choices.by_meta or not hasattr(a, "_handle"))])
    if values in choices:
        return
    for a in bound.args:
        if not hasattr(a, "_handle") and type(a) is not float:
            places.append((a,))
            continue
        found = [i for i, given in enumerate(every) if given is a]
        if len(found) != 1:  # made of something else; or given twice, so that it can't be told which is which
            return
        places += found
    view = None
    if _is_view(bound.op):
        if places[0] != 0 or any(type(p) is int for p in places[1:]):
            return
        view = _view(every[0].meta, ((bound.op.name, bound.args[1:]),))
    metas = [t.meta for t in tensors] if choices.by_meta else []
    if len(choices) >= _AT_MOST:
        choices.clear()
    choices[values] = metas, _known(bound.op, (), tuple(places), view)


def _value(arg: Any) -> Any:
    """What an argument is remembered by: see :func:`by_value`."""
    return tuple(arg) if type(arg) is list else id(arg.meta) if hasattr(arg, "_handle") else arg


def _view(meta: TensorMeta, chain: tuple[tuple[str, tuple[Any, ...]], ...]) -> ShortView:
    steps = []
    for name, rest in chain:
        made: Any = OPS[name].meta(meta, *rest)
        steps.append(ViewStep(name, rest, meta, made, OPS[name]))
        meta = made
    return ShortView(meta, tuple(steps), chain, tuple([dispatcher.leaves(name) for name, _ in chain]))


def _are_numbers(value: Any) -> bool:
    return type(value) in (tuple, list) and all(type(v) is int for v in value)


def _has_one_result(op: Op) -> bool:
    return [r.type for r in op.schema.returns] == ["Tensor"]


def _is_view(op: Op) -> bool:
    return op.name in VIEWS


def _in_order(args: Sequence[Any], bound: Sequence[Any]) -> bool:
    return len(bound) >= len(args) and all(a is b for a, b in zip(args, bound, strict=False))


def _known(op: Op, rest: tuple[Any, ...], places: tuple[Any, ...] | None, view: Any = None) -> Known:
    return Known(dispatcher.leaves(op.name), op, rest, has_plain_formula(op), {}, places, view)


# --- basic indices -----------------------------------------------------------------------------------------------------------

_INDEXED: dict[tuple[int, Any], tuple[TensorMeta, ShortView]] = {}


def short_index(base: Any, index: Any) -> Any:
    """The view that a basic index names; None where the whole way must be taken."""
    key = _index_key(index)
    if key is None:
        return None
    found = _INDEXED.get((id(base._meta or base.meta), key))
    if found is None or LOCAL.changed:
        return None
    view, mask = found[1], base.keys
    for leaves in view.leaves:
        if mask not in leaves or mask & ~_AUTOGRAD not in leaves:
            return None
    return on_tape[1](view, base, mask & _AUTOGRAD)


def learn_index(base: Any, index: Any, made: Any) -> None:
    """After the whole way was gone: note which view it is."""
    key = _index_key(index)
    if key is None or made._view is None:
        return
    known = 0 if base._view is None else len(base._view.chain)
    view = _view(base.meta, made._view.chain[known:])
    if view.meta == made.meta:
        if len(_INDEXED) >= _AT_MOST:
            _INDEXED.clear()
        _INDEXED[id(base.meta), key] = base.meta, view


def _index_key(index: Any) -> tuple[Any, ...] | None:
    """A basic index as something with a hash, by value; None for any other."""
    key: list[Any] = []
    for part in index if type(index) is tuple else (index,):
        kind = type(part)
        if kind is slice:
            part = part.start, part.stop, part.step
            for bound in part:
                if bound is not None and type(bound) is not int:
                    return None
        elif kind is not int and part is not None and part is not ...:
            return None
        key.append(part)
    return tuple(key)


VIEWS: set[str] = set()
"""Ops that make a view at backends: filled by ``backends.py``, which stands above this file."""
