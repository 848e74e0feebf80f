"""The decorator, ``CompiledFunction`` and ``CompiledModule``."""

from __future__ import annotations

import copy
import functools
import itertools
import tempfile
import threading
import time
import types
import warnings
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from tinycompile.backends import Backend, lookup_backend, takes_halves
from tinycompile.base.artifacts import Artifacts
from tinycompile.base.config import config
from tinycompile.base.errors import BackendError, FallbackWarning, GraphBreakError, KernelError, RecompileLimitWarning
from tinycompile.base.logs import log, warn_once
from tinycompile.capture.breaks import Break
from tinycompile.capture.frame import Captured, CaptureOptions, capture
from tinycompile.compiler import CompiledGraph
from tinycompile.ir.effects import written
from tinycompile.ir.graph import Graph
from tinycompile.ir.graph_text import print_graph
from tinycompile.report import KernelInfo, Report, kernel_infos, make_report, stage_text
from tinycompile.training import compile_training

MODES = ("default", "reduce-overhead", "max-autotune")
_serial = itertools.count()


@dataclass(frozen=True)
class Options:
    """What the decorator was given, checked: see :func:`compile`."""

    backend: Backend = None
    mode: str = "default"
    fullgraph: bool = False
    dynamic: bool | None = None
    activation_memory_budget: float = 1.0

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"mode must be one of {', '.join(MODES)}, not {self.mode!r}")
        if self.mode == "reduce-overhead":
            warn_once("mode='reduce-overhead' has no CUDA graphs yet: it runs as mode='default'")
        if not 0 <= self.activation_memory_budget <= 1:
            raise ValueError(f"activation_memory_budget must be between 0 and 1, not {self.activation_memory_budget!r}")
        lookup_backend(self.backend)  # an unknown name is an error where it was written, not at the first call


@dataclass
class CacheEntry:
    """One specialisation of a function. ``compiled`` is None where the frame runs eagerly; ``captured.breaks`` says why."""

    guard: Callable[..., bool]
    run: Callable[..., Any]
    captured: Captured
    compiled: CompiledGraph | None
    artifacts: Artifacts
    times: dict[str, float] = field(default_factory=dict)


class CompiledFunction:
    """A function that is captured, compiled and cached per shape signature; called exactly like the original.

    It has the original's name, docstring and signature. The rest is for inspection: :attr:`graphs`, :attr:`kernels`,
    :meth:`source`, :attr:`guards`, :meth:`explain`, :meth:`cache_info`.
    """

    def __init__(self, fn: Callable[..., Any], options: Options) -> None:
        functools.update_wrapper(self, fn)
        self.__name__: str = fn.__name__
        self.original = fn
        self.options = options
        self.recompiles: list[str] = []
        self._entries: tuple[CacheEntry, ...] = ()
        self._eager = False
        self._lock = threading.RLock()
        _live.add(self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        for entry in self._entries:
            if entry.guard(*args, **kwargs):
                break
        else:
            entry = self._miss(args, kwargs)
        try:
            return entry.run(*args, **kwargs)
        except Exception as error:
            if not self._can_be_redone(entry, error):
                raise
            failure = error
        return self._redo(failure, args, kwargs)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __repr__(self) -> str:
        return f"<tinycompile of {self.original!r}>"

    # -- inspection ------------------------------------------------------------------------------------------------------

    @property
    def graphs(self) -> list[Graph]:
        """The captured graphs, newest last."""
        return [e.captured.graph for e in self._entries if e.compiled is not None and e.captured.graph is not None]

    @property
    def kernels(self) -> list[KernelInfo]:
        """The kernels of the newest specialisation."""
        return kernel_infos(self._latest().compiled) if self._entries else []

    @property
    def guards(self) -> list[str]:
        """The guards of the newest specialisation, in words."""
        return list(self._latest().captured.guards)

    @property
    def breaks(self) -> list[Break]:
        """Every graph break met so far."""
        return [b for e in self._entries for b in e.captured.breaks]

    @property
    def stage_times(self) -> dict[str, float]:
        """Seconds by stage, of the newest specialisation."""
        return dict(self._latest().times)

    def source(self, stage: str) -> str:
        """The text of a stage of the newest specialisation: ``bytecode, python, guards, graph, joint,
        forward, backward, optimized, loops, plan, triton, cpp, wrapper, ptx, sass``; from ``optimized`` on, forward then
        backward. Raises ValueError for a name that is none, RuntimeError before the first call."""
        return stage_text(self._latest(), stage)

    def explain(self, *args: Any, **kwargs: Any) -> Report:
        """Compile for these arguments (without running the function) and report what happened and why."""
        for entry in self._entries:
            if entry.guard(*args, **kwargs):
                return make_report(self, entry)
        return make_report(self, self._compile(args, kwargs, keep=True))

    def cache_info(self) -> dict[str, int]:
        """``entries``, ``recompiles``, ``from_disk``."""
        from_disk = sum(e.compiled is not None and e.compiled.from_disk for e in self._entries)
        return {"entries": len(self._entries), "recompiles": len(self.recompiles), "from_disk": from_disk}

    def reset(self) -> None:
        """Forget every specialisation."""
        with self._lock:
            self._entries, self._eager = (), False
            self.recompiles.clear()

    def _latest(self) -> CacheEntry:
        if not self._entries:
            raise RuntimeError(f"{self.__name__} has not been called yet: nothing is compiled")
        return self._entries[0]

    # -- compiling -------------------------------------------------------------------------------------------------------

    def _can_be_redone(self, entry: CacheEntry, error: Exception) -> bool:
        """Whether compiled code failed, before any effect: a kernel that met a bad index, say, or a library function."""
        if entry.compiled is None or callable(self.options.backend):
            return isinstance(error, KernelError)
        return isinstance(error, KernelError) or not any(written(n) for n in entry.compiled.graph.nodes)

    def _redo(self, failure: Exception, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run eagerly what failed compiled: torch raises its own error, at the user's line."""
        log("kernels", f"{self.__name__}: {failure}; the call is redone eagerly")
        result = self.original(*args, **kwargs)
        if not isinstance(failure, KernelError):
            if config.on_error == "raise":
                raise failure
            what = f"{type(failure).__name__}: {failure}"
            warn_once(f"compiled {self.__name__} failed where eager does not ({what}); it was run eagerly")
        return result

    def _miss(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> CacheEntry:
        if self._eager:
            return replace(self._entries[0], run=self.original, compiled=None)
        with self._lock:
            entry = next((e for e in self._entries if e.guard(*args, **kwargs)), None)  # another thread may have made it
            if entry is None:
                if len(self._entries) >= config.recompile_limit:
                    return self._give_up(args, kwargs)
                entry = self._compile(args, kwargs, keep=True)
        return entry

    def _give_up(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> CacheEntry:
        self._eager = True
        reason = self._entries[0].captured.explain_failure(args, kwargs)
        warnings.warn(
            f"{self.__name__} was compiled {len(self._entries)} times (config.recompile_limit) and runs eagerly for other "
            f"inputs from here on. The guard that failed last: {reason}",
            RecompileLimitWarning,
            stacklevel=4,
        )
        return replace(self._entries[0], run=self.original, compiled=None)

    def _compile(self, args: tuple[Any, ...], kwargs: dict[str, Any], keep: bool) -> CacheEntry:
        if self._entries:
            reason = self._entries[0].captured.explain_failure(args, kwargs)
            self.recompiles.append(reason)
            log("recompiles", f"{self.__name__}: {reason}")
        start = time.perf_counter()
        options = CaptureOptions(dynamic=self.options.dynamic, earlier=tuple(e.captured for e in self._entries))
        captured = capture(self.original, args, kwargs, options)
        times = {"capture": time.perf_counter() - start}
        entry = self._eager_entry(captured, times)
        self._log_capture(captured)
        if captured.graph is not None:
            try:
                with captured.env.active():  # what later stages decide about sizes is guarded too
                    self._fill(entry, captured.graph, captured)
                entry.captured = captured.guarded_by_later_stages()
                entry.guard = entry.captured.guard
                entry.artifacts["1_guards.py"] = entry.captured.guard_source
            except BackendError:
                raise
            except Exception as error:  # noqa: BLE001  # whatever went wrong in us must not reach the user's program
                self._internal_error(entry, error)
        elif self.options.fullgraph and not captured.user_exception:
            raise GraphBreakError("\n".join(str(b) for b in captured.breaks))
        if keep and not captured.user_exception:
            self._entries = (entry, *self._entries)
        if config.dump_dir:
            entry.artifacts.write(Path(config.dump_dir) / f"{next(_serial):03d}_{self.__name__}")
        return entry

    def _eager_entry(self, captured: Captured, times: dict[str, float]) -> CacheEntry:
        artifacts = Artifacts()
        artifacts["0_bytecode.txt"] = captured.bytecode
        artifacts["1_guards.py"] = captured.guard_source
        artifacts["1_python.py"] = captured.python
        return CacheEntry(captured.guard, self.original, captured, None, artifacts, times)

    def _fill(self, entry: CacheEntry, graph: Graph, captured: Captured) -> None:
        backend = lookup_backend(self.options.backend)
        if any(captured.inputs_require_grad) and torch.is_grad_enabled():
            compiled = compile_training(
                graph,
                captured.example_inputs,
                captured.inputs_require_grad,
                backend,
                entry.artifacts,
                budget=self.options.activation_memory_budget,
                joint=takes_halves(self.options.backend),
            )
        else:
            compiled = backend(graph, captured.example_inputs, entry.artifacts)
        entry.compiled = compiled
        entry.times.update(compiled.times)
        entry.run = captured.bind(compiled.call)

    def _internal_error(self, entry: CacheEntry, error: Exception) -> None:
        if config.on_error == "raise":
            raise error
        folder = entry.artifacts.write(tempfile.mkdtemp(prefix="tinycompile-error-"))
        warnings.warn(
            f"tinycompile failed on {self.__name__} ({type(error).__name__}: {error}); it runs eagerly. Artifacts: {folder}",
            FallbackWarning,
            stacklevel=5,
        )

    def _log_capture(self, captured: Captured) -> None:
        for b in captured.breaks:
            log("breaks", str(b))
        log("guards", captured.guard_source)
        if captured.graph is not None:
            log("graph", print_graph(captured.graph))


class CompiledModule(torch.nn.Module):
    """An ``nn.Module`` whose ``forward`` is compiled.

    It shares the original's ``__dict__``: parameters, buffers, submodules, hooks, ``training`` and ``state_dict`` are the
    original's own, and its class derives from the original's class. ``copy.deepcopy`` and pickling copy the original and
    compile again.
    """

    __slots__ = ("_tinycompile_forward", "original")
    original: torch.nn.Module
    _tinycompile_forward: CompiledFunction

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The original's forward, compiled."""
        return self._tinycompile_forward(self.original, *args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return _compile_module(copy.deepcopy(self.original, memo), self._tinycompile_forward.options)

    def __reduce__(self) -> Any:
        return _compile_module, (self.original, self._tinycompile_forward.options)

    def explain(self, *args: Any, **kwargs: Any) -> Report:
        """As :meth:`CompiledFunction.explain`, for ``forward``."""
        return self._tinycompile_forward.explain(self.original, *args, **kwargs)

    @property
    def compiled(self) -> CompiledFunction:
        """The compiled forward: graphs, kernels, source, guards."""
        return self._tinycompile_forward


def _compile_module(module: torch.nn.Module, options: Options) -> CompiledModule:
    cls = type(module)
    made = types.new_class(f"Compiled{cls.__name__}", (CompiledModule, cls), {}, lambda ns: ns.update(__slots__=()))
    self: CompiledModule = object.__new__(made)
    object.__setattr__(self, "__dict__", module.__dict__)
    _set_slot(self, "original", module)
    _set_slot(self, "_tinycompile_forward", CompiledFunction(cls.forward, options))
    return self


def _set_slot(module: CompiledModule, name: str, value: Any) -> None:
    """Past ``nn.Module.__setattr__``, which would register a submodule in the shared ``__dict__``."""
    CompiledModule.__dict__[name].__set__(module, value)


_live: weakref.WeakSet[CompiledFunction] = weakref.WeakSet()


def reset() -> None:
    """Forget every specialisation of every compiled function; the disk cache stays."""
    for function in list(_live):
        function.reset()


def explain(fn: Any, **options: Any) -> Callable[..., Report]:
    """``explain(fn)(*args)``: compile ``fn`` (a function, method, module, or something compiled already) for these
    arguments and report."""
    return _compile(fn, Options(**options)).explain  # type: ignore[no-any-return]


def compile(
    fn: Any = None,
    *,
    backend: Backend = None,
    mode: str = "default",
    fullgraph: bool = False,
    dynamic: bool | None = None,
    options: dict[str, Any] | None = None,
) -> Any:
    """Compile a function, method or ``nn.Module``; without ``fn``, a decorator.

    ``backend``: None (Triton for CUDA tensors, C++ for CPU tensors), ``"triton"``, ``"cpp"``, ``"eager"``, ``"aot_eager"``
    or a callable ``backend(graph_module, example_inputs) -> callable``. ``mode``: ``"default"``, ``"max-autotune"``,
    ``"reduce-overhead"``. ``fullgraph``: a graph break raises :class:`GraphBreakError`. ``dynamic``: None (a size seen to
    change becomes symbolic), True, False. ``options``: ``activation_memory_budget`` (0 to 1, default 1): how much of what a
    training graph would save for its backward it may save; the rest is computed again. Any other key raises ValueError.
    Raises TypeError for what can't be compiled.
    """
    budget = dict(options or {})
    chosen = Options(backend, mode, fullgraph, dynamic, budget.pop("activation_memory_budget", 1.0))
    if budget:
        raise ValueError(f"unknown options {sorted(budget)}; there is activation_memory_budget")
    if fn is None:
        return functools.partial(_compile, options=chosen)
    return _compile(fn, chosen)


def _compile(fn: Any, options: Options) -> Any:
    if isinstance(fn, (CompiledFunction, CompiledModule)):
        return fn
    if isinstance(fn, torch.nn.Module):
        return _compile_module(fn, options)
    if isinstance(fn, types.MethodType):
        return types.MethodType(CompiledFunction(fn.__func__, options), fn.__self__)
    if isinstance(fn, types.FunctionType):
        return CompiledFunction(fn, options)
    raise TypeError(f"tinycompile takes a Python function, a method or an nn.Module, not {type(fn).__name__}")
