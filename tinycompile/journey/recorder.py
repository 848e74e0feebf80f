"""The recorder: what the dispatcher and compiled code call in place of their functions while a profile runs.

It writes down a tree of steps for each thread. Everything that can be looked up later (kernels on the device, facts of
generated kernels) is left to ``session.py``.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter_ns
from types import FrameType
from typing import Any

import torch

from tinycompile.base import torch_private
from tinycompile.base.logs import user_line
from tinycompile.dispatch.dispatcher import Boxed, Choice
from tinycompile.dispatch.keys import BACKENDS, Key, KeySet
from tinycompile.eager.torch_calls import TorchsCall
from tinycompile.ir.source import KernelSource, Source
from tinycompile.journey import cost
from tinycompile.journey.events import Handler, Step

# Of ops that are followed and not run: by a compile, for the shapes of their results.
_NOT_RUN = KeySet.of(Key.TRACING, Key.FUNCTIONALIZE, Key.OUTLINE)
Function = Callable[..., Any]


class _Thread(threading.local):
    """``open``: the steps that are running in this thread, the outermost first, each with the key set of its handler (0 for
    what has none). ``aside``: within how many blocks of ``Recorder.aside`` it is."""

    def __init__(self) -> None:
        self.open: list[tuple[Step, int]] = []
        self.aside = 0
        self.id = threading.get_native_id()


class Recorder:
    """Collects ``steps``: those that no other step caused. ``events``: mark when work on CUDA devices begins and ends by events
    on its stream, for where the device's own tracer is not to be had; ``marks`` then holds (step, before, after).

    ``asides``: (thread, start, end) of what is no work of the program's. ``unsure``: steps of functions without tensors among
    their results, which are ops if torch's tracer saw one run. ``threads``: whether the program started any. ``untraced``:
    those where something ran and torch's tracer does not look (it follows a backward to where autograd runs it). ``closed``:
    nothing is written down any more."""

    def __init__(self, events: bool = False) -> None:
        self.steps: list[Step] = []
        self.marks: list[tuple[Step, torch.cuda.Event, torch.cuda.Event]] = []
        self.asides: list[tuple[int, int, int]] = []
        self.unsure: list[Step] = []
        self.events = events
        self.untraced: set[int] = set()
        self.closed = self.threads = False
        self._here = _Thread()

    def close(self, end: int) -> None:
        """Write down no more. What still runs, in other threads, ends here."""
        self.closed = True
        for root in self.steps:
            for step in root.walk():
                step.end = step.end or end
                for handler in step.handlers:
                    handler.start = handler.start or end
                    handler.end = handler.end or end

    def thread_started(self) -> None:
        """The program starts a thread; a compile's are no matter."""
        self.threads |= not self._here.aside

    @contextmanager
    def aside(self) -> Iterator[None]:
        """What runs in the block is ours and not the program's: a compile, torch asked for its words."""
        here = self._here
        start, here.aside = perf_counter_ns(), here.aside + 1
        try:
            yield
        finally:
            here.aside -= 1
            if not self.closed:
                self.asides.append((here.id, start, perf_counter_ns()))

    # -- ops -------------------------------------------------------------------------------------------------------------

    def handler(self, op_name: str, keyset: KeySet, choice: Choice) -> Boxed:
        """Runs in place of ``choice``: see :func:`tinycompile.dispatch.dispatcher.watch`. Ops that a compile traces are not
        recorded."""
        run = choice.run
        if keyset & _NOT_RUN:
            return run
        key, kind = choice.key.name, choice.kind
        fn_name = getattr(choice.fn, "__qualname__", str(choice.fn))
        leaf = choice.key in BACKENDS and kind != "composite"

        def handle(step: Step, keyset: KeySet, args: tuple[Any, ...]) -> Any:
            running = self._here.open
            depth = sum(other is step for other, _ in running)
            handler = Handler(key, kind, fn_name, str(keyset), depth, 0)
            step.handlers.append(handler)
            running.append((step, int(keyset)))
            try:
                with self._marked(step, leaf):
                    handler.start = perf_counter_ns()
                    try:
                        result = run(op_name, keyset, args)
                    finally:
                        self._end(handler)
            finally:
                running.pop()
            if leaf:  # what it is given, not what the call was: under vmap that is all examples
                self._count(step, op_name, args, result)
            return result

        def recorded(op_name: str, keyset: KeySet, args: tuple[Any, ...]) -> Any:
            if self.closed or self._here.aside:
                return run(op_name, keyset, args)
            running = self._here.open
            if running and running[-1][0].name == op_name and keyset < running[-1][1]:
                return handle(running[-1][0], keyset, args)  # the next handler on the same route
            step = self._begin("op", op_name)
            step.keyset, step.line, step.operands = str(keyset), user_line(), cost.told(args)
            try:
                result = handle(step, keyset, args)
            finally:
                self._end(step)
            if not self.closed:
                step.results = cost.told(result)
            return result

        return recorded

    def torchs_call(self, call: TorchsCall, run: Callable[[], Any]) -> Any:
        """Makes a call that goes past the dispatcher: see :func:`tinycompile.eager.torch_calls.watch`."""
        if self.closed or self._here.aside or call.keyset & _NOT_RUN:
            return run()
        with self.step("op", call.name) as step:
            step.keyset, step.line, step.operands = str(call.keyset), user_line(), cost.told(call.args)
            handler = Handler(call.key.name, call.kind, call.name, step.keyset, 0, perf_counter_ns())
            step.handlers.append(handler)
            try:
                with self._marked(step, call.key in BACKENDS):
                    result = run()
            finally:
                self._end(handler)
            if not self.closed:
                written = call.written if result is None else result
                step.results = cost.told(written)
                if not step.results:
                    self.unsure.append(step)
                if not any(child.kind == "op" for child in step.children):  # else those moved the bytes
                    self._count(step, call.name, call.args, result, call.written)
        return result

    def _count(self, step: Step, name: str, args: Any, result: Any, written: Sequence[Any] = ()) -> None:
        """Bytes and operations of a step."""
        if not self.closed:
            with self.aside():
                step.moved = cost.moved(name, args, result, written)
                step.flops = cost.flops(name.removesuffix("_"), args, result)

    # -- compiled code ---------------------------------------------------------------------------------------------------

    def function(self, source: Source, kind: str, name: str, function: Function) -> Function:
        """Runs in place of a launcher or a library function: see :func:`tinycompile.runtime.linked.watch`."""
        if kind == "memory":
            return function
        if kind == "kernel":
            return self._launcher(source, next(k for k in source.kernels if k.name == name), function)
        target = next(target for called, _, target in source.externs if called == name)

        def library(*args: Any, **kwargs: Any) -> Any:
            with self.step("library", target, source=source) as step:
                step.called = user_line()
                step.line = _line_in_wrapper(source) or step.called
                step.operands = cost.told((args, tuple(kwargs.values())))
                with self._marked(step, True):
                    result = function(*args, **kwargs)
                if not self.closed:
                    step.results = cost.told(result)
                self._count(step, target, args, result)
            return result

        return library

    def _launcher(self, source: Source, kernel: KernelSource, function: Function) -> Function:
        sizes = [(i, a.name) for i, a in enumerate(kernel.args) if a.kind == "size"]

        def launch(stream: int, *args: Any) -> Any:
            with self.step("kernel", kernel.name, source=source) as step:
                step.lines, step.stream, step.called = kernel.lines, stream, user_line()
                step.sizes = {name: args[i] for i, name in sizes}
                step.operands = cost.told(args)
                with self._marked(step, True):
                    return function(stream, *args)

        return launch

    # -- steps -----------------------------------------------------------------------------------------------------------

    @contextmanager
    def step(self, kind: str, name: str, source: Source | None = None) -> Iterator[Step]:
        """A step that runs as long as the ``with`` block."""
        step = self._begin(kind, name)
        step.source = source
        self._here.open.append((step, 0))
        step.start = perf_counter_ns()
        try:
            yield step
        finally:
            self._end(step)
            self._here.open.pop()

    def _begin(self, kind: str, name: str) -> Step:
        here = self._here
        step = Step(kind, name, perf_counter_ns(), thread=here.id)
        if not self.closed:
            if not here.open and not torch_private.profiler_runs():
                self.untraced.add(here.id)
            (here.open[-1][0].children if here.open else self.steps).append(step)
        return step

    def _end(self, of: Step | Handler) -> None:
        if not self.closed:
            of.end = perf_counter_ns()

    @contextmanager
    def _marked(self, step: Step, leaf: bool) -> Iterator[None]:
        """Events before and after, on the current stream."""
        if not (leaf and self.events):
            yield
            return
        before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        before.record()
        try:
            yield
        finally:
            after.record()
            self.marks.append((step, before, after))


def _line_in_wrapper(source: Source) -> str:
    """The user's line that the running wrapper's text names where it calls a library; empty where it names none."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename != f"<tinycompile {source.name} wrapper>":
        frame = frame.f_back
    text = "" if frame is None else source.wrapper.splitlines()[frame.f_lineno - 1]
    return text.rpartition("  # ")[2] if "  # " in text else ""
