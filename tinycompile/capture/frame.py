"""``capture``: one function, one call's arguments -> a Graph, guards, and Python source that runs the rest."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from types import FunctionType
from typing import Any

import torch

from tinycompile.base.config import config
from tinycompile.base.raised import is_a, text_of, words
from tinycompile.capture.breaks import Break, GraphBreak, KnownBehind, NotRebuildable
from tinycompile.capture.callers import may_look_up
from tinycompile.capture.captured import Captured, CaptureOptions
from tinycompile.capture.endings import check_contents, held_at_end
from tinycompile.capture.execute import Frame, run_outermost
from tinycompile.capture.guard_code import CompiledGuards, compile_guards, define
from tinycompile.capture.modes import guard_modes
from tinycompile.capture.opcodes.stack import NULL, callee_at
from tinycompile.capture.pins import guard_kind
from tinycompile.capture.provenance import declines, is_the_programs
from tinycompile.capture.reconstruct import Rebuilder
from tinycompile.capture.resume import TRIVIAL, NotResumableError, Place, Slot, is_resumable, is_trivial, outcomes
from tinycompile.capture.rules.namespaces import leaves_showing, may_show_again
from tinycompile.capture.sources import is_argument
from tinycompile.capture.start import FunctionStart, Start
from tinycompile.capture.tracer import Tracer
from tinycompile.capture.values.function import Cell
from tinycompile.eager.autocast import run_outside
from tinycompile.eager.fake import tracing
from tinycompile.ir.effects import EditedValue
from tinycompile.ir.graph import Graph, Location


def capture(
    fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], options: CaptureOptions | None = None
) -> Captured:
    """Follow a call of ``fn`` symbolically.

    Raises TypeError for something that is no Python function or method. What the function itself raises is a break, and so is
    whatever can't be captured: then the frame runs in eager Python, or with ``options.resume`` only the instruction does."""
    found = capture_from(FunctionStart(fn), args, kwargs, options or CaptureOptions())
    _ = found.guard  # made now, for torch's checks of tensors remember the modes they were made under
    return found


def capture_from(start: Start, args: Sequence[Any], kwargs: Mapping[str, Any], options: CaptureOptions) -> Captured:
    """The same from any start. A capture that breaks is done again up to the instruction that broke."""
    attempt = _Attempt(start, options)
    attempt.follow(args, kwargs)
    if attempt.graph is None and options.resume and is_resumable(start.function.__code__):
        stopped = _stopped(attempt, args, kwargs)
        if stopped is not None:
            attempt.release()
            return stopped.finish()
    return attempt.finish()


def _stopped(broken: _Attempt, args: Sequence[Any], kwargs: Mapping[str, Any]) -> _Attempt | None:
    """A capture that ends before the instruction that broke, or earlier, where something was made that can't be carried over
    the break. None: the frame can't be left here."""
    stop = broken.leave_at
    while stop is not None:
        attempt = _Attempt(broken.start, broken.options)
        as_broken = stop == broken.leave_at
        attempt.breaks, attempt.callee_broke = broken.breaks, broken.callee_broke and as_broken
        attempt.callee_asks = broken.callee_asks and as_broken
        attempt.asks_inside = broken.asks_inside
        attempt.follows = broken.follows and as_broken
        attempt.follow(args, kwargs, stop)
        if attempt.place is not None:
            for obj, source in broken.tr.guards.odd:  # why the graph ends here
                if is_argument(source):
                    guard_kind(attempt.tr, obj, source)
            for label, reason in broken.tr.guards.reasons:
                held = attempt.tr.guards.hold(reason, "reason")
                attempt.tr.guards.check(f"{held.name}.lasts()", label)
            return attempt
        attempt.release()
        earlier = attempt.leave_at
        stop = earlier if earlier is not None and earlier < stop else None
    return None


class _Attempt:
    """One run of the symbolic interpreter, to the end of the function or up to an instruction."""

    def __init__(self, start: Start, options: CaptureOptions) -> None:
        self.start, self.options = start, options
        self.tr = Tracer(options, start.taken)
        self.tr.resumed = start.resumed
        self.rebuilder = Rebuilder(self.tr)
        self.frame: Frame | None = None
        self.graph: Graph | None = None
        self.result = ""
        self.ending = False  # whether all of the program has been followed: what fails from here on is ours
        self.edits: tuple[EditedValue, ...] = ()
        self.taken_over: tuple[frozenset[str], ...] = ()
        self.place: Place | None = None
        self.breaks: tuple[Break, ...] = ()
        self.asks_inside = False  # whether gradients of values on the way were asked for
        self.callee_broke = False
        self.callee_asks = False  # whether it broke in a callee that asks for the frame
        self.follows = False  # whether the instruction at which it broke is followed behind the break
        self.held: tuple[int, ...] = ()  # entries of the state that is left at the frame's end, in the order of their going
        self.leave_at: int | None = None  # the instruction, by count, at which the frame may be left

    def follow(self, args: Sequence[Any], kwargs: Mapping[str, Any], stop: int | None = None) -> None:
        """Run; afterwards there is a graph, or there are breaks."""
        tr = self.tr
        with tr.env.active(), tracing(tr.builder), tr.own_regions(), tr.looking_up():
            try:
                guard_modes(tr)
                self.frame = self.start.frame(tr, args, kwargs)
                returned = run_outermost(tr, self.frame, stop)
                self.ending = True
                if returned:
                    self._returned(self.frame)
                else:
                    self._stopped(self.frame)
            except GraphBreak as b:
                self._broke(b, b.kind, b.reason)
            except RecursionError as error:
                self._broke(error, "recursion", "Python's recursion limit was reached")
            except Exception as error:
                if declines(error):
                    self._broke(error, "unsupported-op", text_of(error))
                    return
                if is_a(error, MemoryError) and not is_the_programs(error):
                    self._broke(error, "memory", "memory ran out")
                    return
                if self.ending or not is_the_programs(error):
                    if config.on_error == "raise":
                        raise
                    self._broke(error, "internal-error", words(error))
                    return
                self._broke(error, "user-exception", words(error))

    def _broke(self, error: Exception, kind: str, reason: str) -> None:
        self.graph = self.place = None
        self.asks_inside |= self.tr.effects.gradients.asks_inside
        if not self.breaks:
            self.breaks = (Break(kind, reason, self._where(error)),)
        failure = self.tr.failure
        if is_a(error, NotRebuildable):
            births = [self.tr.births[id(v)][1] for v in error.holders if id(v) in self.tr.births]
            self.leave_at = births[0] if births else None
        elif kind == "frame" and (failure is None or failure.depth == 1):
            self.leave_at = None
        elif self.frame is not None and self.frame.result is None and failure is not None and failure.error is error:
            self.follows = is_a(error, KnownBehind) and self.frame.count > 0  # (else it would break there again)
            inlined = failure.depth > 1 and not may_look_up(error, failure.codes[1:])
            self.callee_broke = not self.follows and (inlined or kind == "optimizer")
            self.callee_asks = kind == "frame"
            trivial = self.frame.current.op in TRIVIAL and kind not in ("forced", "finalizer")
            self.leave_at = None if trivial else self.frame.count

    def _where(self, error: Exception) -> Location:
        """The user's line where an error came up."""
        failure, code = self.tr.failure, self.start.function.__code__
        if failure is not None and failure.error is error:
            return failure.location
        if self.frame is not None and self.frame.at:
            return self.frame.location
        return Location(code.co_filename, code.co_firstlineno, code.co_name)

    # --- how it ends ---

    def _returned(self, frame: Frame) -> None:
        assert frame.result is not None
        if self.tr.grad_enabled != self.tr.root_grad_enabled and not self.options.resume:
            raise GraphBreak("grad-mode", "the gradient mode is another at the end of the function")
        if self.tr.changes_regions() and not self.options.resume:
            raise GraphBreak("mode", "autocast is another at the end of the function")
        self._finish_graph(self.rebuilder.result(frame.result))
        self._all_closed()
        if self.start.resumed:
            self.held = held_at_end(frame, self.start.parameters)

    def _all_closed(self) -> None:
        check_contents(self.tr)
        if any(g.must_be_closed for g in self.tr.asleep):
            raise GraphBreak("generator", "one is dropped asleep in a try or with block, whose end Python runs then")

    def _stopped(self, frame: Frame) -> None:
        """Carry the frame's variables and operand stack over the break."""
        code = frame.code
        if self.tr.handled is not None:
            raise NotRebuildable(self.tr.handled, "an exception handler is left")
        if may_show_again(self.tr, frame):
            raise GraphBreak("frame", "the dict that locals() gives is one in all of a function")
        if leaves_showing(frame, self.callee_asks):  # the rest runs in one frame
            if frame.count == 0:
                raise GraphBreak("frame", "the dict of a frame's variables is one in all of a function")
            self.follows, self.callee_broke = True, False
        order = {name: i for i, name in enumerate((*code.co_varnames, *code.co_cellvars))}
        variables = sorted((n for n in frame.slots if n in order and n not in code.co_freevars), key=order.__getitem__)
        stack = list.copy(frame.stack)
        values = [*(frame.slots[n] for n in variables), *(v for v in stack if v is not NULL)]
        place = Place(
            code,
            frame.at,
            tuple(Slot(n, isinstance(frame.slots[n], Cell)) for n in variables),
            tuple(v is not NULL for v in stack),
            self.follows,
        )
        if not is_trivial(place):
            try:
                outcomes(place)
            except NotResumableError as error:
                raise GraphBreak("unsupported-instruction", str(error)) from error
        callee = self._compiled_callee(frame) if self.callee_broke else None
        state = self.rebuilder.state(values, {} if callee is None else {len(variables) + callee[0]: callee[1]})
        self._finish_graph(state)
        self._all_closed()
        self.place = place

    def _compiled_callee(self, frame: Frame) -> tuple[int, str] | None:
        """A callee that broke is called through a compiled wrapper of its own: its place among the stack's values, and an
        expression for the wrapper. Whatever else names the callee keeps it as it is. One that calls too deep runs in plain
        Python, with all that it calls where it is compiled itself: wrappers would take of the stack, too."""
        compile_callee, at = self.options.compile_callee, callee_at(frame)
        if compile_callee is None or at is None:
            return None
        if self.breaks[0].id == "recursion":
            text = self.rebuilder.uncompiled(frame.stack[at])
        else:
            text = self.rebuilder.compiled(frame.stack[at], compile_callee)
        return None if text is None else (sum(v is not NULL for v in list.copy(frame.stack)[:at]), text)

    def _finish_graph(self, result: str) -> None:
        tr = self.tr
        self.result = result
        tr.effects.record_writes(tr)
        graph = tr.builder.finish(self.start.name, [t.fake for t in self.rebuilder.outputs], tr.env.hints)
        names = tr.builder.final_names
        self.edits, self.taken_over = tr.effects.edits(names), tr.effects.taken_over(names)
        self.rebuilder.look_at(graph)
        self.graph = dataclasses.replace(graph, recomputed=tr.effects.again(names))

    def release(self) -> None:
        """Let go of the objects of the call: they die when the program drops them, not when the collector comes by."""
        self.tr.forget()
        self.frame = None

    def finish(self) -> Captured:
        """The product."""
        return _finish(self)


def _finish(attempt: _Attempt) -> Captured:
    tr, start, graph = attempt.tr, attempt.start, attempt.graph
    signature, function = start.signature, start.function
    python, call = "", ""
    if graph is not None:
        python, call = attempt.rebuilder.function(start.name, signature, attempt.result, graph)
        if attempt.place is not None:
            python = f"{python}    # then {_described(attempt.place)}\n"

    def guards(relied_on: Collection[int] | None) -> CompiledGuards:
        for relation in tr.env.relations:
            tr.guards.late_check(str(relation), f"sizes: {relation}")
        if graph is not None and (relied_on is None or relied_on or _asks_tensors(attempt, graph)):
            tr.guards.state_check("_tensors_are_torchs()", "torch's tensors say themselves what they are")
        aligned = None if relied_on is None else {tr.inputs[i].source.text for i in relied_on}
        devices = None if graph is None else graph.device_types
        made = compile_guards(tr.guards, signature, start.like, start.skip, aligned, devices)
        _rename(made.guard, function)
        return made

    def bind(graph_fn: Callable[..., tuple[Any, ...]]) -> FunctionType:
        if tr.root_regions is not None:  # the casts are in the graph
            graph_fn = run_outside(graph_fn)
        held = {**tr.guards.held, call: attempt.rebuilder.around(graph_fn)}
        made = define(python, start.name, held, start.like, start.skip)
        _rename(made, function)
        return made

    return Captured(
        graph=graph,
        python=python,
        breaks=attempt.breaks,
        size_hints=dict(tr.env.hints),
        example_inputs=tuple(i.value.torch() if i.ours else i.value for i in tr.inputs),
        inputs_require_grad=tuple(bool(getattr(i.value, "requires_grad", False)) for i in tr.inputs),
        input_aligned=tuple(i.aligned for i in tr.inputs),
        edits=attempt.edits,
        taken_over=attempt.taken_over,
        overwritten=tr.effects.copied_into(tr.inputs),
        exposed=_exposed(attempt),
        shapes_seen=tr.shapes_seen,
        constants_seen=tr.constants_seen,
        code=function.__code__,
        env=tr.env,
        place=attempt.place,
        asks_inside=attempt.asks_inside,
        remakes=attempt.rebuilder.remakes,
        calls_graph=attempt.rebuilder.calls_graph,
        redo_on_error=tr.op_in_try,
        identities={name: held.value for name, held in tr.guards.identities.items()},
        owner=_owner(tr),
        changes_outside=bool(attempt.rebuilder.commits),
        held=attempt.held,
        _bind=bind,
        _compile_guards=guards,
        _forget=tr.forget,
    )


def _exposed(attempt: _Attempt) -> frozenset[int]:
    """The tensors among the inputs, where one of them may be written before the backward runs: through another by the graph, or
    in any way by what the function does behind it."""
    writes = attempt.tr.effects.shares_storage or attempt.place is not None
    return frozenset(i for i, given in enumerate(attempt.tr.inputs) if writes and isinstance(given.value, torch.Tensor))


def _asks_tensors(attempt: _Attempt, graph: Graph) -> bool:
    """Whether guards, or compiled code, read attributes of tensors in Python."""
    tr, rebuilder = attempt.tr, attempt.rebuilder
    if tr.env.hints or rebuilder.commits or rebuilder.remakes or attempt.place is not None:
        return True
    tracked = tr.root_grad_enabled and any(getattr(i.value, "requires_grad", False) for i in tr.inputs)
    return tracked or any(n.kind == "extern" for n in graph.nodes)


def _owner(tr: Tracer) -> torch.nn.Module | None:
    """The module that the code is for, and lives with: an argument, or else the first that was met."""
    held = [*(h.value for h in tr.guards.identities.values()), *tr.guards.held.values()]
    return next((m for m in held if issubclass(type(m), torch.nn.Module)), None)  # isinstance may ask the program


def _described(place: Place) -> str:
    ins = place.instruction
    text = repr(ins.arg) if isinstance(ins.arg, str) and not ins.arg.isidentifier() else str(ins.arg)  # in one line
    return f"line {ins.line}, {ins.op}" + (f" {text}" if isinstance(ins.arg, (int, str)) else "")


def _rename(fn: Callable[..., Any], like: FunctionType) -> None:
    """A wrong call is reported under the user's name."""
    fn.__name__, fn.__qualname__ = like.__name__, like.__qualname__
