"""Gradients of each example's own, where an op has no batching rule or a function is compiled as a whole.

Inside ``vmap(grad(f))`` our tape follows one example's tensors. Such a call leaves one node, whose backward is a function of
one example too: ``vjp`` of what was called, run in the same way as that (once an example, or compiled over all of them). It
computes the forward again. So nothing is saved but the arguments, and a gradient of the gradient is a call like any other.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from tinycompile.eager import func
from tinycompile.eager.batched import BatchedTensor, active, call_each, gradients_of_each, level_of, mapped
from tinycompile.eager.batched_random import follow_drawn
from tinycompile.eager.recording import edge_of
from tinycompile.eager.rng import State, cuda_devices, drawn_again
from tinycompile.eager.saved import FREED, SavedTensor
from tinycompile.eager.tape import AUTOGRAD, Edge, Node, set_history
from tinycompile.eager.tensor import Tensor, from_torch


class Way(NamedTuple):
    """Which gradients of a call. Its first ``unnamed`` arguments have no names, the others ``names``. Of the tensors in them,
    in order, ``wanted`` flags those for which it is differentiated; of those in the result, ``outputs`` those with a
    cotangent."""

    unnamed: int
    names: tuple[str, ...]
    wanted: tuple[bool, ...]
    outputs: tuple[bool, ...]


def follows(values: Sequence[Any], level: int) -> bool:
    """Whether the tape of this level follows one of the tensors."""
    return torch.is_grad_enabled() and any(_is_followed(t, level) for t in tensors_in_result(values))


def follow(result: Any, way_back: Callable[[Way], Any], given: Sequence[Any], names: tuple[str, ...], level: int) -> Any:
    """Put the results of a call on the tape. ``given``: its arguments, those called ``names`` last. ``way_back(way)``: a
    function like :func:`pull_back`'s."""
    tensors, made = tensors_in_result(given), tensors_in_result(result)
    edges = [edge_of(t) if _is_followed(t, level) else None for t in tensors]
    has_gradient = (t.dtype.is_floating_point or t.dtype.is_complex for t in made)
    outputs = tuple(has and t._view is None for has, t in zip(has_gradient, made, strict=True))  # a view knows its base
    if any(outputs):
        way = Way(len(given) - len(names), names, tuple(e is not None for e in edges), outputs)
        results = [t for t, has_gradient in zip(made, outputs, strict=True) if has_gradient]
        node = ExampleCall(way, way_back, given, [e for e in edges if e is not None], results)
        for i, t in enumerate(results):
            set_history(t, node, i)
    return result


class ExampleCall(Node):
    """One call on the tape of a vmap's level. ``given``: its arguments, SavedTensors for tensors."""

    __slots__ = ("given", "way", "way_back")
    label = "ExampleCallBackward0"

    def __init__(
        self, way: Way, way_back: Callable[[Way], Any], given: Sequence[Any], edges: Sequence[Edge], results: Sequence[Tensor]
    ) -> None:
        super().__init__(edges, [r.meta for r in results])
        self.way, self.way_back = way, way_back
        self.given: Any = mapped(tuple(given), SavedTensor)

    def run(self, grads: Sequence[Any], create_graph: bool, keep: bool) -> Sequence[Any]:
        """The way back, called in the same way as the call itself was."""
        if self.given is None:
            raise RuntimeError(FREED)
        have = iter([g is not None for g in grads])
        way = self.way._replace(outputs=tuple([o and next(have) for o in self.way.outputs]))
        given = _unpacked(self.given, self, create_graph)
        if not keep:
            self.given = None
        found: Sequence[Any] = self.way_back(way)(*given, *(g for g in grads if g is not None))
        return found


def pull_back(fn: Callable[..., Any], way: Way) -> Callable[..., Any]:
    """A function of one example: ``fn``'s arguments, then the cotangents of its result -> the gradients that are wanted."""
    last = sum(way.outputs)

    def backward(*everything: Any) -> Any:
        given, cotangents = everything[:-last], everything[-last:]

        def of_leaves(*leaves: Any) -> Any:
            full = _replaced(given, iter(way.wanted), iter(leaves))
            result = fn(*full[: way.unnamed], **dict(zip(way.names, full[way.unnamed :], strict=True)))
            return _chosen(result, iter(way.outputs))

        return func.vjp(of_leaves, *_chosen(given, iter(way.wanted)))[1](*cotangents)

    backward.__name__ = f"{getattr(fn, '__name__', 'function')}_backward"
    return backward


# --- once an example ---------------------------------------------------------------------------------------------------------


def each_on_tape(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """A torch function without a rule, called once an example, with a node on the tape."""

    def one(*given: Any, **named: Any) -> Any:
        return Tensor._extern(fn, given, named)

    one.__name__ = getattr(fn, "__name__", "a function")
    return _each(one, (*args, *kwargs.values()), tuple(kwargs))


def _each(one: Callable[..., Any], given: Sequence[Any], names: tuple[str, ...]) -> Any:
    """``one`` of our tensors of a level below, for each example of the highest level."""
    level, count = level_of(given), len(given) - len(names)

    def run(some: Any, _: Any) -> Any:
        before = active.levels
        active.levels = tuple(here for here in before if here.number < level)
        try:
            return one(*some[:count], **dict(zip(names, some[count:], strict=True)))
        finally:
            active.levels = before

    result = call_each(run, one.__name__, tuple(given), {})
    if not follows(given, level):
        return result
    return follow(result, functools.partial(_each_back, one), given, names, level)


def _each_back(one: Callable[..., Any], way: Way) -> Callable[..., Any]:
    back = pull_back(one, way)
    return lambda *everything: _each(back, everything, ())


def follow_call_that_draws(
    result: Any, call: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], states: Sequence[State]
) -> Any:
    """Put what ``call(args, kwargs)`` gave of each example on the tape. The way back calls it again and draws the same numbers:
    where the generators stood, ``states``, is one argument more."""
    given, level = (*args, *kwargs.values()), level_of((*args, *kwargs.values()))
    if not follows(given, level):
        return result
    stood = [torch.stack([host for host, _ in states]), *map(torch.stack, zip(*(cards for _, cards in states), strict=True))]
    devices = cuda_devices(given)

    def again(stood: Any, *some: Any, **named: Any) -> Any:
        host, *cards = (t.raw().clone() for t in stood)  # torch reads a state wrongly that does not begin its storage
        with drawn_again((host, cards), devices):
            return call(some, named)

    again.__name__ = "a function that draws"
    before = tuple([BatchedTensor(from_torch(t), level) for t in stood])
    return follow(result, functools.partial(_each_back, again), (before, *given), tuple(kwargs), level)


gradients_of_each.append(each_on_tape)
follow_drawn.append(follow_call_that_draws)


# --- structures: what is captured with a backward is as plain as can be ------------------------------------------------------


def _chosen(value: Any, flags: Iterator[bool]) -> tuple[Any, ...]:
    """The tensors that are flagged, in order."""
    if isinstance(value, (Tensor, torch.Tensor)):
        return (value,) if next(flags) else ()
    found: tuple[Any, ...] = ()
    if isinstance(value, (tuple, list)):
        for part in value:
            found = (*found, *_chosen(part, flags))
    elif isinstance(value, dict):
        for part in value.values():
            found = (*found, *_chosen(part, flags))
    return found


def _replaced(value: Any, flags: Iterator[bool], leaves: Iterator[Any]) -> Any:
    """With other tensors for those that are flagged."""
    if isinstance(value, (Tensor, torch.Tensor)):
        return next(leaves) if next(flags) else value
    if type(value) is tuple:
        return tuple([_replaced(part, flags, leaves) for part in value])
    if type(value) is list:
        return [_replaced(part, flags, leaves) for part in value]
    if type(value) is dict:
        return {key: _replaced(part, flags, leaves) for key, part in value.items()}
    return value


def tensors_in_result(value: Any) -> list[Any]:
    """All tensors of a structure, in the order of :func:`_chosen`."""
    if isinstance(value, (Tensor, torch.Tensor)):
        return [value]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, (tuple, list)) else ()
    return [t for part in parts for t in tensors_in_result(part)]


def _is_followed(tensor: Any, level: int) -> bool:
    return isinstance(tensor, BatchedTensor) and tensor.level == level and bool(tensor.keys & AUTOGRAD)


def _unpacked(value: Any, node: Node, create_graph: bool) -> Any:
    if isinstance(value, SavedTensor):
        return value.unpack(node, create_graph)
    if type(value) in (tuple, list):
        return type(value)(_unpacked(v, node, create_graph) for v in value)
    return {k: _unpacked(v, node, create_graph) for k, v in value.items()} if type(value) is dict else value
