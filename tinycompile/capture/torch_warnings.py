"""Warnings that torch gives for a call. Kernels of ours give none, and graphs run apart from the program's lines. So rebuilt
code makes such a call again in each call of its own, on tensors without data, in frames that stand for the program's: torch
itself then warns, in its words, from the program's line, as filters say."""

from __future__ import annotations

import functools
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from types import CodeType, FrameType, FunctionType
from typing import TYPE_CHECKING, Any

import torch

from tinycompile.base import shapes
from tinycompile.base.errors import KernelError
from tinycompile.base.internal_frames import internal_frame
from tinycompile.base.overheard import as_if_new, muted, overheard, told_by
from tinycompile.capture import op_numbers
from tinycompile.capture.breaks import GraphBreak
from tinycompile.dispatch import dispatcher
from tinycompile.eager.fake import keywords_without_data, without_data
from tinycompile.eager.no_trace import leaving_no_trace, same_random_numbers

if TYPE_CHECKING:
    from tinycompile.capture.tracer import Tracer

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


# --- a call that warns, again --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """Where a frame of the program's is: its code, with the line as the first, and its module's variables."""

    code: CodeType
    space: dict[str, Any]

    @classmethod
    def at(cls, code: CodeType, line: int, space: dict[str, Any]) -> Place:
        """Stands for a frame that is at a line of its code."""
        as_it = _CALLS.replace(
            co_firstlineno=line, co_filename=code.co_filename, co_name=code.co_name, co_qualname=code.co_qualname
        )
        return cls(as_it, space)


_CALLS = (lambda call: call()).__code__


@dataclass(frozen=True)
class Warned:
    """A call of torch's that warns. ``call``: it, on tensors without data; ``places``: the program's frames, innermost first;
    ``told``: what it warns of."""

    call: Callable[[], Any]
    places: tuple[Place, ...]
    told: tuple[warnings.WarningMessage, ...] = ()

    @internal_frame
    def __call__(self) -> None:
        call = self.call
        for place in self.places:
            call = functools.partial(FunctionType(place.code, place.space), call)
        with torch.no_grad(), same_random_numbers():
            call()

    @property
    def texts(self) -> frozenset[str]:
        """What is told, in words."""
        return words_of(self.told)


class Telling:
    """What some calls warn of, told before rebuilt code runs what it makes of them."""

    def __init__(self, calls: Sequence[Warned]) -> None:
        self._calls = tuple(calls)
        self._categories = {w.category for call in calls for w in call.told}
        self._texts = frozenset[str]().union(*(call.texts for call in calls))

    @internal_frame
    def __call__(self) -> AbstractContextManager[None]:
        """Warn, and return what keeps the graph from doing so again. Where a filter may raise a warning nothing is done, and
        the call is redone eagerly: torch raises at its own place."""
        if any(f[0] == "error" and any(issubclass(c, f[2]) for c in self._categories) for f in warnings.filters):
            raise KernelError("a filter of the program's may raise a warning")
        for call in self._calls:
            call()
        return muted(self._texts)


def tell(tr: Tracer, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> frozenset[str]:
    """Let rebuilt code warn of what torch warns of in this call, and return that in words. Where it can't be from the program's
    lines the graph breaks. Sizes are those of this call, for texts may tell them."""
    args, kwargs = op_numbers.settled(tuple(args)), op_numbers.settled(dict(kwargs))
    with leaving_no_trace():
        call = functools.partial(fn, *map(without_data, args), **keywords_without_data(kwargs))
    texts = tell_by(tr, call)
    if texts:
        for t in dispatcher.tensors_in((args, tuple(kwargs.values()))):
            shapes.pin_symbols((*t.meta.shape, *t.meta.strides))
    return texts


def tell_by(tr: Tracer, call: Callable[[], Any]) -> frozenset[str]:
    """The same for a call that warns as one of the program's does."""
    warned = Warned(call, _places(tr))
    told = tuple(_heard(warned))
    if any(w.filename.startswith((_PACKAGE, "<tinycompile")) for w in told):
        raise GraphBreak("warns", str(told[0].message))
    warned = Warned(call, warned.places, told)
    if told:
        tr.effects.told.append(warned)
    return warned.texts


def tell_of_heard(
    tr: Tracer, heard: Sequence[warnings.WarningMessage], fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> None:
    """:func:`tell` for a call of which torch was ``heard`` to warn. Breaks where it does not warn of the same."""
    try:
        texts = tell(tr, fn, args, kwargs)
    except GraphBreak:
        raise
    except Exception as error:  # a function that needs data, say
        raise GraphBreak("warns", str(heard[0].message)) from error
    if texts != words_of(heard):
        raise GraphBreak("warns", str(heard[0].message))


def words_of(told: Sequence[warnings.WarningMessage]) -> frozenset[str]:
    """What is told."""
    return frozenset(told_by(str(w.message)) for w in told)


@contextmanager
def listening() -> Iterator[list[warnings.WarningMessage]]:
    """What torch warns of in the block, also of what Python has noted to have shown."""
    with as_if_new(_SPACES), overheard() as heard:
        yield heard


_SPACES = tuple(
    vars(m) for m in (torch.functional, torch.nn.functional, torch.nn._reduction, torch._tensor, torch._jit_internal)
)


def _heard(warned: Warned) -> list[warnings.WarningMessage]:
    spaces = (*_SPACES, *(place.space for place in warned.places))
    with as_if_new(spaces), overheard() as heard, leaving_no_trace():
        warned()
    return heard


def _places(tr: Tracer) -> tuple[Place, ...]:
    """The program's frames as they are now, innermost first, with those of ``torch.nn.Module`` that call ``forward``."""
    found: list[Place] = []
    for depth, frame in enumerate(tr.frames):
        if depth in tr.modules_called:
            if tr.modules_called[depth]:
                raise GraphBreak("warns", "a call of torch's, in a module with hooks")
            found += _of_module_calls()
        found.append(Place.at(frame.code, frame.location.line, frame.globals))
    return tuple(reversed(found))


@functools.cache
def _of_module_calls() -> tuple[Place, ...]:
    """Frames of ``torch.nn.Module`` between a call of a module without hooks and its ``forward``, outermost first."""
    found: list[Place] = []

    class Asks(torch.nn.Module):
        def forward(self) -> None:
            frame: FrameType | None = sys._getframe(1)
            while frame is not None and frame.f_globals is vars(sys.modules[torch.nn.Module.__module__]):
                found.insert(0, Place.at(frame.f_code, frame.f_lineno, frame.f_globals))
                frame = frame.f_back

    Asks()()
    return tuple(found)
