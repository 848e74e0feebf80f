"""``Piece``: the compiled code of a function that starts at one place: at its beginning, or behind a graph break."""

from __future__ import annotations

import functools
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import CellType, FunctionType
from typing import Any

import torch

from tinycompile.aot.refusals import refusals, refuse
from tinycompile.backends import Backend, generates_code, lookup_backend, takes_halves, touches_registered
from tinycompile.base import torch_private
from tinycompile.base.artifacts import Artifacts
from tinycompile.base.collector import without_collections
from tinycompile.base.config import config
from tinycompile.base.errors import BackendError, GraphBreakError, KernelError, RecompileLimitWarning
from tinycompile.base.holdings import tell_holdings
from tinycompile.base.internal_frames import internal_frame
from tinycompile.base.known_builtins import builtins_are_replaced, under_known_builtins
from tinycompile.base.known_tensors import tensors_are_torchs
from tinycompile.base.logs import log, warn, warn_once
from tinycompile.base.raised import formatted, is_a, is_committed, text_of, words
from tinycompile.base.stack_room import has_room
from tinycompile.capture.breaks import Break
from tinycompile.capture.captured import Captured, CaptureOptions, listing, uncaptured
from tinycompile.capture.frame import capture_from
from tinycompile.capture.resume import Place
from tinycompile.capture.rules.optimizers import is_step
from tinycompile.capture.start import FunctionStart, ResumeStart, Start
from tinycompile.capture.trampoline import Stop
from tinycompile.compiler import CompiledGraph
from tinycompile.eager import autocast
from tinycompile.entries import CacheEntry, OwnedEntry, by_first_argument, give, itself
from tinycompile.failures import is_without_effect, tell_of_misfit
from tinycompile.faults import is_the_users, is_wrong_call, serial, tell_of_fault, uncompiled, write_artifacts
from tinycompile.ir.graph import Graph, Location
from tinycompile.ir.graph_text import print_graph
from tinycompile.ir.requires_grad import asks_for_gradients
from tinycompile.optimizer_step import compiled_step
from tinycompile.options import Options
from tinycompile.passes.draw import draw_in_kernels
from tinycompile.passes.patterns_attention import recognise_attention
from tinycompile.refused import without_refused, without_remade, without_unseen_edits
from tinycompile.selfcheck.checked import Checked
from tinycompile.training import compile_training, compile_whole, on_torchs_tape

_FEW = 3  # entries that are tried one by one


class Piece:
    """The specialisations of one piece of a function, found by their guards and compiled when none holds."""

    __name__: str
    options: Options

    def __init__(self, name: str, options: Options, lock: threading.RLock) -> None:
        self.__name__ = name
        self.options = options
        self.recompiles: list[str] = []
        self._entries: tuple[CacheEntry, ...] = ()  # newest first
        self._only: CacheEntry | None = None  # where there is one alone, for good, that is one function with its guards
        self._of_first: dict[
            int, tuple[CacheEntry, ...]
        ] = {}  # by id of the first argument, where that is guarded to be one object
        self._warned = False
        self._lock = lock

    # -- what kinds of pieces differ in ----------------------------------------------------------------------------------

    def start(self) -> Start:
        """Where it begins."""
        raise NotImplementedError

    @property
    def eagerly(self) -> Callable[..., Any]:
        """Runs it, and all that follows, in plain Python."""
        raise NotImplementedError

    def stop_at(self, place: Place) -> Stop:
        """What goes on from a break at ``place``."""
        raise NotImplementedError

    def callee(self, fn: FunctionType) -> Callable[..., Any]:
        """The wrapper through which a function is called that broke when it was followed."""
        raise NotImplementedError

    # -- running ---------------------------------------------------------------------------------------------------------

    def find(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> CacheEntry:
        """The entry whose guards hold, compiled if there is none."""
        try:
            entry = self._valid(self._candidates(args) if self._of_first else self._entries, args, kwargs)
        except Exception as error:  # noqa: BLE001  # a guard's: see there
            return self.without_guards(error)
        return self._miss(args, kwargs) if entry is None else entry

    @staticmethod
    def _valid(entries: Sequence[CacheEntry], args: tuple[Any, ...], kwargs: dict[str, Any]) -> CacheEntry | None:
        """The first of some entries whose guards hold."""
        for kept in entries:
            entry = itself(kept)
            if entry is not None and entry.guard(*args, **kwargs):
                return entry
        return None

    def without_guards(self, error: Exception) -> CacheEntry:
        """What runs eagerly where a guard itself failed; what is meant for the user is raised."""
        if config.on_error == "raise" or is_the_users(error) or is_wrong_call(error):
            raise error
        entry = uncompiled(self.__name__, self.start().function.__code__, self.eagerly, error)
        self._keep((entry,))
        return entry

    def _candidates(self, args: tuple[Any, ...]) -> tuple[CacheEntry, ...]:
        """The entries to try: of many modules' code, that of the first argument. (A miss looks at all again.)"""
        return self._of_first.get(id(args[0]), self._entries) if args else self._entries

    def _keep(self, entries: tuple[CacheEntry, ...]) -> None:
        """These are the entries from here on."""
        self._entries = entries
        alone = len(entries) == 1 and type(entries[0]) is CacheEntry and entries[0].guarded is not None
        self._only = entries[0] if alone else None
        self._of_first = by_first_argument(entries, self.start().parameters) if len(entries) > _FEW else {}

    def can_be_redone(self, entry: CacheEntry, error: Exception) -> bool:
        """Whether compiled code failed, before any effect: a kernel that met a bad index, say, or a library function."""
        tell_holdings(error)
        if is_committed(error) or torch_private.is_end_of_recomputation(error):
            return False
        if entry.compiled is None or callable(self.options.backend):
            return is_a(error, KernelError)
        return is_without_effect(error, entry.compiled)

    @internal_frame
    def redo(self, entry: CacheEntry, failure: Exception, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run eagerly what failed compiled: torch raises its own error, at the user's line."""
        log("kernels", f"{self.__name__}: {text_of(failure)}; the call is redone eagerly")
        try:
            result = self.eagerly(*args, **kwargs)
        except RuntimeError as error:
            tell_holdings(error)
            raise
        if not is_a(failure, KernelError) and not entry.captured.redo_on_error:
            if config.on_error == "raise":
                raise failure
            what = words(failure)
            warn_once(f"compiled {self.__name__} failed where eager does not ({what}); it was run eagerly")
        return result

    def _miss(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> CacheEntry:
        if builtins_are_replaced():
            return under_known_builtins(functools.partial(self._without_capture, "builtins"))
        if not has_room():
            return self._without_capture("recursion")
        if not tensors_are_torchs():
            return self._without_capture("tensor-attributes")
        if self._is_full(args, kwargs):
            return self._without_code(args, kwargs)
        with self._lock:
            entry = self._valid(self._entries, args, kwargs)  # another thread may have made it
            if entry is None:
                if self._is_full(args, kwargs):
                    return self._without_code(args, kwargs)
                entry = self._compile(args, kwargs)
        return entry

    def _kin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[CacheEntry]:
        """The entries made for the same modules as this call's, newest first."""
        living = map(itself, self._entries)
        return [e for e in living if e is not None and e.captured.concerns(args, kwargs)]

    def _is_full(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Each module that a function is called with may have ``config.recompile_limit`` entries, all together eight times
        that: a method of many modules is not compiled too often, nor is a loop over a model's layers."""
        count, limit = len(self._entries), config.recompile_limit
        return count >= limit * 8 or (count >= limit and len(self._kin(args, kwargs)) >= limit)

    def _without_code(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> CacheEntry:
        """An entry that runs eagerly; with a warning the first time."""
        kin = self._kin(args, kwargs)
        newest = kin[0] if kin else next(e for e in map(itself, self._entries) if e is not None)
        if not self._warned:
            self._warned = True
            times, reason = len(kin) or len(self._entries), newest.captured.explain_failure(args, kwargs)
            warn(
                f"{self.__name__} was compiled {times} times (config.recompile_limit) and runs eagerly for other inputs from "
                f"here on. The guard that failed last: {reason}",
                RecompileLimitWarning,
            )
        return replace(newest, run=self.eagerly, compiled=None, stop=None, guarded=None)

    def _without_capture(self, kind: str) -> CacheEntry:
        """An entry that runs eagerly, for now: nothing can be captured while builtins, or attributes of tensors, that our own
        code asks are others, or where the stack is nearly used up."""
        code = self.start().function.__code__
        why = Break(kind, f"{self.__name__} is entered", Location(code.co_filename, code.co_firstlineno, code.co_name))
        if self.options.fullgraph:
            raise GraphBreakError(str(why))
        log("breaks", str(why))
        captured = uncaptured(code, why)
        return CacheEntry(captured.guard, self.eagerly, captured, None, Artifacts())

    def _gone(self, owned: Any) -> None:
        """A module has died, and an entry with it. Without a lock, for this comes at any time; what is lost is made again."""
        self._keep(tuple(e for e in self._entries if e is not owned))

    # -- compiling -------------------------------------------------------------------------------------------------------

    @without_collections
    def _compile(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> CacheEntry:
        """A new entry; one that runs eagerly where we fail outside what ``_compiled`` itself looks after."""
        try:
            return self._compiled(args, kwargs)
        except Exception as error:
            if config.on_error == "raise" or is_the_users(error):
                raise
            entry = uncompiled(self.__name__, self.start().function.__code__, self.eagerly, error)
            self._keep((*self._entries, entry))
            return entry

    def _compiled(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> CacheEntry:
        kin = self._kin(args, kwargs)
        if kin:
            reason = kin[0].captured.explain_failure(args, kwargs)
            self.recompiles.append(reason)
            log("recompiles", f"{self.__name__}: {reason}")
        start = time.perf_counter()
        captured = without_unseen_edits(capture_from(self.start(), args, kwargs, self._capture_options(kin)))
        try:
            return self._made_of(captured, {"capture": time.perf_counter() - start})
        finally:
            captured.let_go()  # also where this raises

    def _made_of(self, captured: Captured, times: dict[str, float]) -> CacheEntry:
        whole = captured.graph is not None
        captured = without_remade(without_refused(captured))
        entry = self._eager_entry(captured, times)
        self._log_capture(captured)
        if captured.graph is not None:
            try:
                with captured.env.active(), autocast.outside():  # what later stages decide about sizes is guarded too
                    self._fill(entry, captured.graph, captured)
            except BackendError:
                raise
            except Exception as error:  # noqa: BLE001  # whatever went wrong in us must not reach the user's program
                self._internal_error(entry, error)
        elif self.options.fullgraph and not whole and not captured.user_exception:
            raise GraphBreakError("\n".join(str(b) for b in captured.breaks))
        for b in captured.breaks:
            if b.id == "internal-error":
                tell_of_fault(self.__name__, entry.artifacts, b.reason, f"what failed, at {b.location}, runs eagerly")
        entry.captured = captured.guarded_for(entry.compiled.aligned_inputs if entry.compiled else ()).released()
        entry.guard = entry.captured.guard
        if isinstance(entry.run, FunctionType) and entry.compiled is not None and entry.stop is None:
            entry.guarded = entry.captured.behind_guards(entry.run)
        entry.artifacts["1_guards.py"] = entry.captured.guard_source
        log("guards", entry.captured.guard_source)
        if not captured.user_exception:
            owner = entry.captured.owner
            kept = entry if owner is None else give(entry, owner, self._gone)
            self._keep((kept, *self._entries))
        if config.dump_dir:
            write_artifacts(entry.artifacts, Path(config.dump_dir) / f"{next(serial):03d}_{self.__name__}")
        return entry

    def _capture_options(self, kin: Sequence[CacheEntry]) -> CaptureOptions:
        return CaptureOptions(
            dynamic=self.options.dynamic,
            earlier=tuple(e.captured for e in kin),
            resume=self.options.resume and not self.options.fullgraph,
            redo=not callable(self.options.backend),
            force=self.options.force,
            compile_callee=self.callee,
        )

    def _eager_entry(self, captured: Captured, times: dict[str, float]) -> CacheEntry:
        artifacts = Artifacts()
        artifacts.lazy("0_bytecode.txt", functools.partial(listing, captured.code))
        artifacts["1_python.py"] = captured.python
        return CacheEntry(_not_yet, self.eagerly, captured, None, artifacts, times)

    def _fill(self, entry: CacheEntry, whole: Graph, captured: Captured) -> None:
        graph = whole
        stop = None if captured.place is None else self.stop_at(captured.place)
        if not captured.calls_graph:
            entry.run, entry.stop = captured.bind(_no_graph), stop
            return
        if generates_code(self.options.backend) and not config.fallback_random:
            graph = draw_in_kernels(graph if any(captured.inputs_require_grad) else recognise_attention(graph))
            graph = replace(graph, recomputed=whole.recomputed)
        given = captured.example_inputs, captured.inputs_require_grad
        if stop is not None and captured.asks_inside and not asks_for_gradients(whole):
            entry.compiled = on_torchs_tape(whole, entry.artifacts)
            entry.run, entry.stop = captured.bind(entry.compiled.call), stop
            return
        later: dict[str, Any] = {n: getattr(captured, n) for n in ("overwritten", "taken_over", "exposed")}
        compiled = self._compile_graph(graph, *given, entry.artifacts, self.options.backend, **later)
        if self.options.verify is not None and compiled.source is not None:
            eager = functools.partial(self._compile_graph, graph, (), given[1], Artifacts(), "eager", **later)
            checked = Checked(compiled, graph, self.options.verify, lambda: eager().call)
            compiled = replace(compiled, call=checked)
        attached = torch.is_grad_enabled() and not asks_for_gradients(whole)
        if attached and (refused := refusals(whole, given[1], captured.edits)):
            compiled = replace(compiled, call=refuse(compiled.call, refused))
        entry.compiled = compiled
        entry.times.update(compiled.times)
        entry.run, entry.stop = captured.bind(compiled.call), stop

    def _compile_graph(
        self,
        graph: Graph,
        inputs: Sequence[Any],
        require_grad: Sequence[bool],
        artifacts: Artifacts,
        backend: Backend,
        overwritten: frozenset[int],
        taken_over: Sequence[frozenset[str]],
        exposed: frozenset[int],
    ) -> CompiledGraph:
        compile_one = lookup_backend(backend, mode=self.options.mode)
        if asks_for_gradients(graph):
            return compile_whole(graph, inputs, compile_one, artifacts, budget=self.options.activation_memory_budget)
        if touches_registered(graph) or not (any(require_grad) and torch.is_grad_enabled()):
            return compile_one(graph, inputs, artifacts)
        return compile_training(
            graph,
            inputs,
            require_grad,
            compile_one,
            artifacts,
            budget=self.options.activation_memory_budget,
            joint=takes_halves(backend),
            overwritten=overwritten,
            taken_over=taken_over,
            exposed=exposed,
        )

    def _internal_error(self, entry: CacheEntry, error: Exception) -> None:
        if config.on_error == "raise":
            raise error
        entry.run, entry.compiled, entry.stop = self.eagerly, None, None
        entry.artifacts["error.txt"] = formatted(error)
        tell_of_fault(self.__name__, entry.artifacts, words(error), "it runs eagerly")

    def _log_capture(self, captured: Captured) -> None:
        for b in captured.breaks:
            log("breaks", str(b))
        if captured.graph is not None:
            log("graph", print_graph(captured.graph))


def _not_yet(*_: Any, **__: Any) -> bool:
    """The guard of an entry that is being made."""
    return False


def _no_graph() -> tuple[Any, ...]:
    """Stands for a graph that the code before a break does not need."""
    return ()


class ResumedPiece(Piece):
    """What follows a break in ``first``'s function."""

    def __init__(self, first: FirstPiece, function: FunctionType, place: Place) -> None:
        super().__init__(f"{first.__name__} at line {place.instruction.line}", first.options, first._lock)
        self.first = first
        self._start = ResumeStart(function, place)

    def start(self) -> ResumeStart:
        return self._start

    @property
    def eagerly(self) -> Callable[..., Any]:
        return self._start.eager

    def stop_at(self, place: Place) -> Stop:
        return self.first.stop_at(place)

    def callee(self, fn: FunctionType) -> Callable[..., Any]:
        return self.first.callee(fn)

    @internal_frame
    def recover(self, entry: CacheEntry | None, failure: BaseException, held: CellType) -> Any:
        """Redo what can be redone; any other error (a backend's, an interrupt) is raised in the program's frame, so that its
        handlers see it, and the blocks that it has entered are left."""
        try:
            if entry is not None and is_a(failure, Exception):
                if self.can_be_redone(entry, failure):
                    return self.redo(entry, failure, held.cell_contents, {})
                try:
                    tell_of_misfit(failure, self.options.backend, entry.captured.graph)
                except BackendError as told:
                    failure = told
            if is_committed(failure):  # who knows how far it has come
                raise failure
            held.cell_contents = (*held.cell_contents, failure)
            return self._start.thrower(held)
        finally:
            del failure  # which its traceback leads to


class FirstPiece(Piece):
    """The beginning of a function. It owns the pieces behind breaks."""

    def __init__(self, fn: Callable[..., Any], options: Options) -> None:
        super().__init__(fn.__name__, options, threading.RLock())
        self.original = fn
        self.resumed: dict[Place, ResumedPiece] = {}
        self._stops: dict[Place, Stop] = {}
        self._callees: dict[FunctionType, Callable[..., Any]] = {}

    def start(self) -> FunctionStart:
        return FunctionStart(self.original)

    @property
    def eagerly(self) -> Callable[..., Any]:
        return self.original

    def stop_at(self, place: Place) -> Stop:
        found = self._stops.get(place)
        if found is None:
            function = self.start().function
            found = self._stops[place] = Stop(function, place, self._piece_at)
        return found

    def _piece_at(self, place: Place) -> ResumedPiece:
        found = self.resumed.get(place)
        if found is None:
            found = self.resumed[place] = ResumedPiece(self, self.start().function, place)
        return found

    def callee(self, fn: FunctionType) -> Callable[..., Any]:
        if fn is self.original:
            return self  # type: ignore[return-value]  # which kinds that people call define __call__
        found: Any = self._callees.get(fn)
        if found is None:
            backend = lookup_backend(self.options.backend, mode=self.options.mode)
            made: Any = compiled_step(fn, None, backend) if is_step(fn) else type(self)(fn, self.options)
            found = self._callees[fn] = made
        return found

    def reset(self) -> None:
        """Forget every specialisation."""
        with self._lock:
            for entry in itertools.chain(self._entries, *(p._entries for p in self.resumed.values())):
                if isinstance(entry, OwnedEntry):
                    entry.drop()
            self._keep(())
            self._warned = False
            self.recompiles.clear()
            for forgotten in (self.resumed, self._stops, self._callees):
                forgotten.clear()
