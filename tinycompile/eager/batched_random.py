"""Random numbers under ``vmap``: its ``randomness`` decides whether examples have numbers of their own.

Calls whose tensors differ from example to example come here from ``BatchedTensor`` and from the batching rules. Any other call
that draws (``torch.rand(3)``, ``F.dropout(w)`` of a tensor that is the same for all) is seen by a torch-function mode, which
is active while eager code runs under ``vmap``. Under tracing there is no such mode; there records come from Tracing's fallback.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from tinycompile.base.torch_private import is_innermost_mode
from tinycompile.dispatch import dispatcher
from tinycompile.eager.batched import BatchedTensor, active, call_each, draw_by_level, level_of, mapped, stacked
from tinycompile.eager.rng import State, cuda_devices, rng_state, same_state, set_rng_state
from tinycompile.eager.tensor import Tensor, from_torch, wrap
from tinycompile.ops.calls import ops
from tinycompile.ops.in_place import first_by_position, name_of
from tinycompile.ops.randomness import DRAWS_IN_PLACE, FACTORIES, MAY_DRAW

RANDOMNESS = (
    "vmap: called random operation while in randomness error mode. Please either use the 'same' or 'different' randomness "
    "flags on vmap or perform the randomness operation out of vmap"
)
_NOT_DIFFERENT = (
    "vmap: Cannot ask for different inplace randomness on an unbatched tensor. This will appear like same randomness. "
    "If this is necessary for your usage, please file an issue with functorch."
)
_SIZED = frozenset(("rand", "randint", "randn"))

follow_drawn: list[Callable[..., Any]] = []
"""``follow_drawn[0](result, call, args, kwargs, states)``: what ``call(args, kwargs)`` gave of each example, put on the tape;
``states``: where the generators stood before each. Set by ``example_gradients.py``, which stands above this file."""
Function = Callable[..., Any]


def is_undecided(args: Any) -> bool:
    """Whether a call that draws is inside a vmap at whose level none of its tensors is."""
    return bool(active.levels) and level_of(args) < active.levels[-1].number


class Drawing(TorchFunctionMode):
    """Sees what eager code calls under ``vmap``."""

    def __torch_function__(
        self, fn: Function, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = name_of(fn)
        args, named = first_by_position(args, kwargs or {})
        if name in MAY_DRAW and is_undecided((args, tuple(named.values()))):
            return draw(fn, args, named)
        if name in _CONVERSIONS and args and isinstance(args[0], BatchedTensor):  # torch would read it item by item
            return args[0].raw() if name == "tensor" else ops.to(args[0], named.get("dtype") or args[0].dtype)
        return fn(*args, **named)


class _Watching(threading.local):
    mode: Drawing | None = None


_watching = _Watching()


@contextmanager
def watched() -> Iterator[None]:
    """A :class:`Drawing` sees what the block calls; under another one already it does."""
    if _watching.mode is not None:
        yield
        return
    _watching.mode = Drawing()
    try:
        with _watching.mode:
            yield
    finally:
        _watching.mode = None


@contextmanager
def unwatched() -> Iterator[None]:
    """No :class:`Drawing` sees what the block calls, for compiled code has decided what to draw. One within which the program
    has entered modes of its own stays."""
    mode = _watching.mode
    if mode is None or not is_innermost_mode(mode):
        yield
        return
    mode.__exit__(None, None, None)
    _watching.mode = None
    try:
        yield
    finally:
        _watching.mode = mode
        mode.__enter__()


_CONVERSIONS = frozenset(("as_tensor", "asarray", "tensor"))


@contextmanager
def below(level: int) -> Iterator[None]:
    """The levels below one alone while the block runs."""
    before = active.levels
    active.levels = tuple(here for here in before if here.number < level)
    try:
        yield
    finally:
        active.levels = before


def draw(fn: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A call of a torch function that may draw, by the innermost level's randomness."""
    here, name = active.levels[-1], name_of(fn)
    batched = level_of((args, tuple(kwargs.values()))) == here.number
    if name in DRAWS_IN_PLACE:
        return _fill(fn, args, kwargs)
    if here.randomness == "error" and name in FACTORIES:
        raise RuntimeError(RANDOMNESS)
    with below(here.number):
        if here.randomness == "error":
            return _unless_it_draws(_each if batched else _below, fn, args, kwargs)
        if here.randomness == "same":
            return _each_the_same(fn, args, kwargs) if batched else _below(fn, args, kwargs)
        if (made := _at_once(fn, args, kwargs, here)) is not NotImplemented:
            return made
        if batched:
            return _each(fn, args, kwargs)
        wants_grad = kwargs.pop("requires_grad", False)
        if name in _SIZED or (name == "normal" and not dispatcher.tensors_in(args)):
            made = _of_all(fn, args, kwargs, here)
        else:
            made = stacked([wrap(_below(fn, args, kwargs)) for _ in range(here.size)], here.number)
    return made.requires_grad_() if wants_grad else made


def _below(fn: Function, args: Any, kwargs: dict[str, Any]) -> Any:
    """The call as the levels that are left see it."""
    given = (args, tuple(kwargs.values()))
    if is_undecided(given):
        return draw(fn, args, kwargs)
    ours = any(isinstance(t, Tensor) for t in dispatcher.tensors_in(given))
    return Tensor.__torch_function__(fn, (), args, kwargs) if ours else fn(*args, **kwargs)


def _each(fn: Function, args: Any, kwargs: dict[str, Any], first: State | None = None) -> Any:
    """One call an example; each from the state ``first`` of the generators, if that is given."""
    given = args, tuple(kwargs.values())
    devices, followed = cuda_devices(given), Tensor.tape.follows(args, kwargs)
    states = []

    def once(args: Any, kwargs: Any) -> Any:
        if first is not None:
            set_rng_state(first, devices)
        if followed:
            states.append(rng_state(devices))
        return _below(fn, args, kwargs)

    result = call_each(once, name_of(fn), args, kwargs)
    return follow_drawn[0](result, functools.partial(_below, fn), args, kwargs, states) if followed else result


def _each_the_same(fn: Function, args: Any, kwargs: dict[str, Any]) -> Any:
    return _each(fn, args, kwargs, rng_state(cuda_devices((args, tuple(kwargs.values())))))


def _unless_it_draws(call: Function, fn: Function, args: Any, kwargs: dict[str, Any]) -> Any:
    """Not every call of these functions draws. Raises RuntimeError if this one did."""
    devices = cuda_devices((args, tuple(kwargs.values())))
    state = rng_state(devices)
    result = call(fn, args, kwargs)
    if not same_state(state, rng_state(devices)):
        set_rng_state(state, devices)
        raise RuntimeError(RANDOMNESS)
    return result


_OF_ELEMENTS = frozenset((
    "_sample_dirichlet", "_standard_gamma", "bernoulli", "binomial", "multinomial", "normal", "poisson", "rand_like",
    "randint_like", "randn_like",
))  # fmt: skip


def _at_once(fn: Function, args: Any, kwargs: dict[str, Any], here: Any) -> Any:
    """A function that draws an element for each of its tensors', for all examples in one call, as torch does; NotImplemented
    for another, and where a tape follows: it asks for each example's state."""
    given = dispatcher.tensors_in((args, tuple(kwargs.values())))
    if name_of(fn) not in _OF_ELEMENTS or not given or "out" in kwargs or Tensor.tape.follows(args, kwargs):
        return NotImplemented
    rank = max(len(t.shape) for t in given)
    if level_of(given) == here.number:
        aligned = mapped((args, kwargs), lambda t: _aligned(t, here.number, rank))
    else:
        aligned = mapped((args, kwargs), lambda t: ops.expand(_ours(t), (here.size, *t.shape)))
    if name_of(fn) == "multinomial" and rank == 2:  # its rows, one after the other
        rows, *rest = aligned[0]
        made = wrap(_below(fn, (ops.flatten(rows, 0, 1), *rest), aligned[1]))
        return BatchedTensor(ops.unflatten(made, 0, (here.size, -1)), here.number)
    return BatchedTensor(wrap(_below(fn, *aligned)), here.number)


def _ours(tensor: Any) -> Any:
    return from_torch(tensor) if isinstance(tensor, torch.Tensor) else tensor


def _aligned(tensor: Any, level: int, rank: int) -> Any:
    """With the examples along dim 0, if it has its own for each, and one example's dims last."""
    if not (isinstance(tensor, BatchedTensor) and tensor.level == level):
        return tensor
    value = tensor.value
    for _ in range(rank - len(tensor.shape) if tensor.batched else 0):
        value = ops.unsqueeze(value, 1)
    return value


def _of_all(fn: Function, args: Any, kwargs: dict[str, Any], here: Any) -> Any:
    """Functions of a size: one draw with the examples along dim 0."""
    if "size" in kwargs:
        kwargs = {**kwargs, "size": (here.size, *kwargs["size"])}
    elif args and isinstance(args[-1], (tuple, list)):
        args = (*args[:-1], (here.size, *args[-1]))
    else:
        args = ((here.size, *args),)
    return BatchedTensor(wrap(_below(fn, args, kwargs)), here.number)


def _initialises(fn: Function) -> bool:
    """Whether it is one of ``torch.nn.init``'s, which look at the tensor's sizes, and at no tape."""
    return getattr(fn, "__module__", "") == "torch.nn.init"


def _fill(fn: Function, args: Any, kwargs: dict[str, Any]) -> Any:
    """``x.normal_()`` and its kin."""
    here, target = active.levels[-1], args[0]
    if here.randomness == "error":
        raise RuntimeError(RANDOMNESS)
    if _initialises(fn) and torch.is_grad_enabled():
        with torch.no_grad():
            return _fill(fn, args, kwargs)
    if Tensor.tape.follows(args, kwargs):  # which goes on from numbers that depend on nothing
        made = target.detach().clone()
        _fill(fn, (made, *args[1:]), kwargs)
        return target.copy_(made)
    of_level = isinstance(target, BatchedTensor) and target.level == here.number
    whole = target.value if of_level else target
    by_example = level_of((args[1:], tuple(kwargs.values()))) == here.number or _initialises(fn)
    with below(here.number):
        if not (of_level and target.batched):
            if here.randomness == "different":
                raise RuntimeError(_NOT_DIFFERENT)
            _below(fn, (whole, *args[1:]), kwargs)
        elif by_example and here.randomness == "different" and not _initialises(fn):
            _below(fn, *mapped((args, kwargs), lambda t: _aligned(t, here.number, len(target.shape))))
        elif by_example:
            (_each if here.randomness == "different" else _each_the_same)(fn, args, kwargs)
        elif here.randomness == "different":
            _below(fn, (whole, *args[1:]), kwargs)
        else:
            one = ops.clone(ops.select(whole, 0, 0), memory_format=torch.contiguous_format)
            _below(fn, (one, *args[1:]), kwargs)
            whole.copy_(ops.unsqueeze(one, 0))
    return target


# --- records -----------------------------------------------------------------------------------------------------------------

RECORDS = frozenset(("rand", "randn", "rand_like", "randn_like", "bernoulli", "dropout", "native_dropout"))


def draw_record(name: str, args: tuple[Any, ...]) -> Any:
    """A record that draws, none of whose tensors is of the innermost level, by that level's randomness."""
    if not draws(name, args):
        return dispatcher.call_bound(name, args)
    here = active.levels[-1]
    if here.randomness == "error":
        raise RuntimeError(RANDOMNESS)
    with below(here.number):
        if here.randomness == "same":
            return record_below(name, args)
        first = (here.size, *args[0]) if name in FACTORIES else ops.expand(args[0], (here.size, *args[0].shape))
        made = record_below(name, (first, *args[1:]))
    return mapped(made, functools.partial(BatchedTensor, level=here.number))


def record_below(name: str, args: tuple[Any, ...]) -> Any:
    """A record that draws as the levels that are left see it."""
    return draw_record(name, args) if is_undecided(args) else dispatcher.call_bound(name, args)


def draws(name: str, args: tuple[Any, ...]) -> bool:
    """Whether a call of one of ``RECORDS`` needs random numbers: dropout does in training alone."""
    return name not in ("dropout", "native_dropout") or bool(args[2] and args[1])


draw_by_level.append(draw)
