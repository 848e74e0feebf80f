"""The recorder: what the dispatcher and compiled code call in place of their functions while a profile runs.

It writes down a tree of steps for each thread. Everything that can be looked up later (kernels on the device, facts of
generated kernels) is left to ``session.py``.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter_ns
from types import FrameType
from typing import Any

import torch

from tinycompile.base.logs import user_line
from tinycompile.dispatch.dispatcher import Boxed, Choice
from tinycompile.dispatch.keys import BACKENDS, Key, KeySet
from tinycompile.ir.source import KernelSource, Source
from tinycompile.journey import cost
from tinycompile.journey.events import Handler, Step

_COMPILING = KeySet.of(Key.TRACING, Key.FUNCTIONALIZE)
Function = Callable[..., Any]


class _Thread(threading.local):
    """``open``: the steps that are running in this thread, the outermost first, each with the key set of its handler (0 for
    what has none)."""

    def __init__(self) -> None:
        self.open: list[tuple[Step, int]] = []
        self.id = threading.get_native_id()


class Recorder:
    """Collects ``steps``: those that no other step caused. ``events``: mark when work on CUDA devices begins and ends by events
    on its stream, for where the device's own tracer is not to be had; ``marks`` then holds (step, before, after)."""

    def __init__(self, events: bool = False) -> None:
        self.steps: list[Step] = []
        self.marks: list[tuple[Step, torch.cuda.Event, torch.cuda.Event]] = []
        self.events = events
        self._here = _Thread()

    # -- ops -------------------------------------------------------------------------------------------------------------

    def handler(self, op_name: str, keyset: KeySet, choice: Choice) -> Boxed:
        """Runs in place of ``choice``: see :func:`tinycompile.dispatch.dispatcher.watch`. Ops that a compile traces are not
        recorded."""
        run = choice.run
        if keyset & _COMPILING:
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
                        handler.end = perf_counter_ns()
            finally:
                running.pop()
            if leaf:  # what it is given, not what the call was: under vmap that is all examples
                step.moved, step.flops = cost.moved(op_name, args, result), cost.flops(op_name, args, result)
            return result

        def recorded(op_name: str, keyset: KeySet, args: tuple[Any, ...]) -> Any:
            running = self._here.open
            if running and running[-1][0].name == op_name and keyset < running[-1][1]:
                return handle(running[-1][0], keyset, args)  # the next handler on the same route
            step = self._begin("op", op_name)
            step.keyset, step.line, step.operands = str(keyset), user_line(), cost.told(args)
            try:
                result = handle(step, keyset, args)
            finally:
                step.end = perf_counter_ns()
            step.results = cost.told(result)
            return result

        return recorded

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
                step.line = _line_in_wrapper(source) or user_line()
                step.operands = cost.told((args, tuple(kwargs.values())))
                with self._marked(step, True):
                    result = function(*args, **kwargs)
                step.results = cost.told(result)
                step.moved, step.flops = cost.moved(target, args, result), cost.flops(target, args, result)
            return result

        return library

    def _launcher(self, source: Source, kernel: KernelSource, function: Function) -> Function:
        sizes = [(i, a.name) for i, a in enumerate(kernel.args) if a.kind == "size"]

        def launch(stream: int, *args: Any) -> Any:
            with self.step("kernel", kernel.name, source=source) as step:
                step.lines, step.stream = kernel.lines, stream
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
            step.end = perf_counter_ns()
            self._here.open.pop()

    def _begin(self, kind: str, name: str) -> Step:
        here = self._here
        step = Step(kind, name, perf_counter_ns(), thread=here.id)
        (here.open[-1][0].children if here.open else self.steps).append(step)
        return step

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
