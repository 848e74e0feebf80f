"""What a capture is asked for and what it gives: ``CaptureOptions`` and ``Captured``."""

from __future__ import annotations

import dis
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import itemgetter
from types import CodeType, FunctionType
from typing import Any

import numpy as np
import torch

from tinycompile.base.errors import InternalError
from tinycompile.base.shapes import ShapeEnv
from tinycompile.capture.breaks import Break
from tinycompile.capture.guard_code import CompiledGuards, guarded, no_guards
from tinycompile.capture.resume import Place
from tinycompile.capture.sources import strides_of
from tinycompile.ir.effects import EditedValue, is_random, written
from tinycompile.ir.graph import Graph

_VARYING = (int, float, complex, str, bytes)


@dataclass(frozen=True)
class CaptureOptions:
    """``dynamic``: True makes every size symbolic, False none, None those that were seen to change in ``earlier`` captures.

    ``dynamic_dims``: more of them, ``(source text, dim)``; dim None for an integer argument. ``resume``: a break ends the
    graph, and the frame goes on behind the instruction that broke; else the whole frame runs eagerly. ``redo``: an error of the
    graph makes the caller run the frame eagerly, so that the program's own handlers see it: tensor ops in try blocks may be
    captured. ``force``: also break before these instructions (code, index). ``compile_callee``: makes the wrapper through which
    a callee that breaks is called."""

    dynamic: bool | None = None
    earlier: tuple[Captured, ...] = ()
    dynamic_dims: Mapping[tuple[str, int | None], Any] = field(default_factory=dict)
    resume: bool = False
    redo: bool = False
    force: Callable[[CodeType, int], bool] | None = None
    compile_callee: Callable[[FunctionType], Callable[..., Any]] | None = None

    def symbolic_dims(self, text: str, t: torch.Tensor) -> set[int]:
        """Dims of the tensor at ``text`` that are to be symbolic."""
        marked: set[int] = set(getattr(t, "_tinycompile_dynamic", ()))
        static: set[int] = set(getattr(t, "_tinycompile_static", ()))
        chosen = marked | {d for (at, d) in self.dynamic_dims if at == text and d is not None}
        if self.dynamic:
            chosen |= set(range(t.ndim)) - static
        elif self.dynamic is None:
            chosen |= {
                d for shape in self._earlier_shapes(text, t.ndim) for d in range(t.ndim) if shape[d] != t.shape[d]
            } - static
        return chosen

    def symbolic_strides(self, text: str, t: torch.Tensor) -> set[int]:
        """Dims of the tensor at ``text`` whose stride is to be symbolic, where it does not follow from the sizes."""
        if self.dynamic is not None:
            return set(range(t.ndim)) if self.dynamic else set()
        seen = self._earlier_shapes(strides_of(text), t.ndim)
        return {d for strides in seen for d in range(t.ndim) if strides[d] != t.stride(d)}

    def _earlier_shapes(self, text: str, rank: int) -> list[tuple[int, ...]]:
        found = [e.shapes_seen.get(text) for e in self.earlier]
        return [s for s in found if s is not None and len(s) == rank]

    def symbolic_int(self, text: str, value: int) -> bool:
        """Whether the integer argument at ``text`` is to be symbolic."""
        if (text, None) in self.dynamic_dims:
            return True
        seen = [e.constants_seen.get(text) for e in self.earlier]
        return self.dynamic is not False and any(type(s) is int and s != value for s in seen)

    def symbolic_number(self, text: str, value: float) -> bool:
        """Whether the float at ``text``, or the int that is no size, had another value before. 0 and 1 are never symbolic."""
        if self.dynamic is False or (type(value) is int and value in (0, 1)):
            return False
        seen = [e.constants_seen.get(text) for e in self.earlier]
        others = [s for s in seen if type(s) is type(value) and (type(s) is float or s not in (0, 1))]
        return any(repr(s) != repr(value) for s in others)

    def varies(self, text: str, now: Any) -> bool:
        """Whether two others were seen of what ``text`` says: the length of a container, or its members."""
        return len({e.constants_seen[text] for e in self.earlier if text in e.constants_seen} - {now}) >= 2

    def replaces(self, text: str, identity: int) -> bool:
        """Whether another object was at ``text`` before."""
        return any(e.constants_seen.get(text, identity) != identity for e in self.earlier)

    def unstable(self, text: str, value: Any) -> bool:
        """Whether the number or text at ``text`` had other values before, and no symbol can stand for it."""
        if type(value) not in _VARYING and not isinstance(value, np.generic):
            return False
        if self.dynamic is not False and (type(value) is float or (type(value) is int and value not in (0, 1))):
            return False
        seen = {e.constants_seen[text] for e in self.earlier if type(e.constants_seen.get(text)) is type(value)}
        return len(seen - {value}) >= 2


@dataclass(frozen=True)
class Captured:
    """What capture found. ``graph`` None: the frame must run eagerly, and ``breaks`` says why. With a ``place`` the frame is
    left there: the rebuilt function returns its state, and ``breaks`` says why.

    ``guard`` has the function's own parameters, and is compiled when first asked for. ``bind(graph_fn)`` gives the rebuilt
    function, whose source is ``python``; ``graph_fn(*inputs)`` returns the tuple of the graph's outputs. ``input_aligned``:
    whether each input's data starts at a multiple of 16 bytes (guarded). ``overwritten``: the inputs that the rebuilt function
    writes to behind the graph. ``exposed``: those that may be written to through others, or behind a break.
    ``edits``: values of the graph that were in memory which was written to later. ``taken_over``:
    those that lie at the end in the memory of each tensor that the rebuilt function writes to. ``asks_inside``: whether
    gradients of the graph's values are asked for, there or behind the break. ``remakes``: whether the rebuilt function
    makes or writes tensors with a history behind the graph. ``calls_graph``: whether it needs the graph. ``redo_on_error``: an
    error of the graph may be one that the program catches. ``shapes_seen``: sizes and strides of tensors, by expression.
    ``identities``: arguments guarded to be these very objects. ``owner``: the module with which the code should die.
    ``changes_outside``: whether the rebuilt function changes objects or modes. ``held``: the entries of a state with which the
    frame went on, in the order in which its end lets go of them."""

    graph: Graph | None
    python: str
    breaks: tuple[Break, ...]
    size_hints: Mapping[str, int]
    example_inputs: tuple[Any, ...]
    inputs_require_grad: tuple[bool, ...]
    input_aligned: tuple[bool, ...]
    overwritten: frozenset[int]
    exposed: frozenset[int]
    edits: tuple[EditedValue, ...]
    taken_over: tuple[frozenset[str], ...]
    shapes_seen: Mapping[str, tuple[int, ...]]
    constants_seen: Mapping[str, Any]
    code: CodeType
    env: ShapeEnv
    place: Place | None
    asks_inside: bool
    remakes: bool
    calls_graph: bool
    redo_on_error: bool
    identities: Mapping[str, Any]
    owner: torch.nn.Module | None
    changes_outside: bool
    held: tuple[int, ...]
    _bind: Callable[[Any], FunctionType] = field(repr=False)
    _compile_guards: Callable[[Collection[int] | None], CompiledGuards] = field(repr=False)
    _forget: Callable[[], None] = field(repr=False)
    _relied_on: Collection[int] | None = None

    @cached_property
    def backwards(self) -> Callable[[Sequence[Any]], tuple[Any, ...]] | None:
        """Gives a state with what goes last first, as a tuple lets go of its entries; None where there is no order."""
        return itemgetter(*reversed(self.held)) if len(self.held) > 1 else None

    @cached_property
    def _guards(self) -> CompiledGuards:
        return self._compile_guards(self._relied_on)

    @property
    def guard(self) -> Callable[..., bool]:
        """Takes the function's arguments; whether the capture is valid for them."""
        return self._guards.guard

    @property
    def guard_source(self) -> str:
        """The guard as Python."""
        return self._guards.source

    @property
    def guards(self) -> tuple[str, ...]:
        """The guards in words."""
        return tuple(label for _, label in self.guard_table)

    @property
    def guard_table(self) -> tuple[tuple[str, str], ...]:
        """The same, each with what it is about: an argument, a tensor, a mode, a value, a size, an object, a parameter ..."""
        return self._guards.table

    def explain_failure(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """The first guard that a call's arguments fail, in words; empty when they pass."""
        return self._guards.explain_failure(args, kwargs)

    def bind(self, graph_fn: Callable[..., tuple[Any, ...]]) -> Callable[..., Any]:
        """The rebuilt function around a way to run the graph."""
        if self.graph is None:
            raise InternalError("there is no graph to bind: the frame runs eagerly")
        return self._bind(graph_fn)

    def behind_guards(self, run: FunctionType) -> FunctionType | None:
        """The function that :meth:`bind` gave, behind :attr:`guard`: see :func:`guard_code.guarded`."""
        return guarded(self._guards, self.python, run)

    def binder(self) -> Callable[[Callable[..., tuple[Any, ...]]], FunctionType]:
        """:meth:`bind`, to be kept for long: what the capture was made from is let go of."""
        self.let_go()
        return self._bind

    def let_go(self) -> None:
        """Of what the capture was made from: where there are no guards yet, none can be made from here on."""
        self._forget()

    def concerns(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Whether a call has the objects for which this is: of the arguments that are guarded by identity."""
        if not self.identities:
            return True
        given = self._guards.read(*args, **kwargs)
        return all(given[name] is obj for name, obj in self.identities.items())

    def guarded_for(self, relied_on: Collection[int] | None) -> Captured:
        """The same with guards for what later stages did: for the relations between sizes that they decided under ``env``, and
        for the alignment of those inputs (by position; None: of all) on which generated code relies."""
        return replace(self, _relied_on=relied_on)

    def released(self) -> Captured:
        """The same without the arguments it was captured with, to be kept for long."""
        guards = self._guards
        self.let_go()
        kept = replace(self, example_inputs=(), _bind=_released, _compile_guards=_released, _forget=_released)
        kept.__dict__["_guards"] = guards
        return kept

    @property
    def only_computes(self) -> bool:
        """Whether there is nothing to it but the graph's results, which are the same each time."""
        if self.graph is None or self.changes_outside:
            return False
        return not any(written(n) or is_random(n) for n in self.graph.nodes)

    @property
    def user_exception(self) -> bool:
        """Whether the function itself raised during capture, and the whole frame must run eagerly for that."""
        return self.graph is None and any(b.id == "user-exception" for b in self.breaks)

    @property
    def bytecode(self) -> str:
        """CPython's listing of the function."""
        return listing(self.code)


def listing(code: CodeType) -> str:
    """CPython's listing of a function: it takes longer than many a capture."""
    return dis.Bytecode(code).dis()


def uncaptured(code: CodeType, reason: Break) -> Captured:
    """Stands for a capture that failed: for any arguments there is no graph."""
    return Captured(
        graph=None,
        python="",
        breaks=(reason,),
        size_hints={},
        example_inputs=(),
        inputs_require_grad=(),
        input_aligned=(),
        overwritten=frozenset(),
        exposed=frozenset(),
        edits=(),
        taken_over=(),
        shapes_seen={},
        constants_seen={},
        code=code,
        env=ShapeEnv(),
        place=None,
        asks_inside=False,
        remakes=False,
        calls_graph=False,
        redo_on_error=False,
        identities={},
        owner=None,
        changes_outside=False,
        held=(),
        _bind=_released,
        _compile_guards=lambda relied_on: no_guards(),
        _forget=_released,
    )


def _released(*_: Any) -> Any:
    """Stands for what a capture can no longer do."""
    raise InternalError("this capture has let go of what it was made from")
