"""The decorator, ``CompiledFunction`` and ``CompiledModule``."""

from __future__ import annotations

import copy
import functools
import itertools
import sys
import types
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import CellType
from typing import Any

import torch

from tinycompile import batched_calls, batched_gradients
from tinycompile.backends import Backend, generates_code, lookup_backend
from tinycompile.base.internal_frames import internal_frame
from tinycompile.base.logs import warn_once
from tinycompile.base.raised import trace_of
from tinycompile.base.stack_room import RoomForOurs, has_room
from tinycompile.capture.breaks import Break
from tinycompile.capture.bytecode import SUPPORTED, VERSION
from tinycompile.capture.guard_code import MISS
from tinycompile.capture.marks import Switch, SwitchedOff, before_torch_compile, is_disabled, mark_of
from tinycompile.capture.rules.optimizers import is_step
from tinycompile.capture.trampoline import drive
from tinycompile.eager import example_gradients
from tinycompile.eager.batched import active
from tinycompile.eager.transforms import Transform, compile_whole, transform_of
from tinycompile.entries import CacheEntry, OwnedEntry
from tinycompile.failures import tell_of_misfit
from tinycompile.ir.graph import Graph
from tinycompile.ir.graph_module import GraphModule
from tinycompile.optimizer_step import compiled_step
from tinycompile.options import Options
from tinycompile.pieces import FirstPiece
from tinycompile.report import KernelInfo, Report, kernel_infos, make_report, stage_text, with_later


class CompiledFunction(FirstPiece):
    """A function that is captured, compiled and cached per shape signature; called exactly like the original.

    It has the original's name, docstring and signature. The rest is for inspection: :attr:`graphs`, :attr:`kernels`,
    :meth:`source`, :attr:`guards`, :meth:`explain`, :meth:`cache_info`.
    """

    def __init__(self, fn: Callable[..., Any], options: Options) -> None:
        functools.update_wrapper(self, fn)
        super().__init__(fn, options)
        self.batched: dict[Any, CompiledFunction] = {}
        """Under ``vmap``: the function over all examples at once, by what is batched."""
        self.backwards: dict[example_gradients.Way, CompiledFunction] = {}
        """Under ``vmap``, where each example has a gradient: the function of one example that gives it."""
        self.transformed: dict[Any, CompiledFunction] = {}
        """``grad(f)`` and the like, by what was called."""
        _live.add(self)

    @internal_frame
    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        entry = self._only
        if entry is None or kwargs or Switch.off:
            if Switch.off and is_disabled():
                return self.original(*args, **kwargs) if has_room() else self._plainly(args, kwargs)
            return self._found(args, kwargs)
        try:
            result = entry.guarded(*args)  # type: ignore[misc]  # the only entry has it
        except Exception as error:
            if (trace := trace_of(error)) is None or trace.tb_next is None:  # the arguments don't fit: it says so there
                return self._found(args, kwargs)
            if not self.can_be_redone(entry, error):
                tell_of_misfit(error, self.options.backend, entry.captured.graph)
                raise
            failure = error
        else:
            return self._found(args, kwargs) if result is MISS else result
        return self.redo(entry, failure, args, kwargs)

    @internal_frame
    def _found(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The call, by whichever entry's guards hold: ``__call__`` knows the commonest case alone."""
        entry: CacheEntry | None = None
        try:
            kept: Any
            for kept in self._candidates(args) if self._of_first else self._entries:
                entry = kept() if type(kept) is OwnedEntry else kept
                if entry is not None and entry.guard(*args, **kwargs):
                    break
            else:
                entry = None
        except Exception as error:  # noqa: BLE001  # a guard's: see there
            entry = self.without_guards(error)
        if entry is None:
            if active.levels and (spread := self._under_vmap(args, kwargs)) is not NotImplemented:
                return spread
        if (entry is None or entry.stop is not None) and not self.options.fullgraph and not has_room():
            return self._plainly(args, kwargs)
        if entry is None:
            entry = self._miss(args, kwargs)
        try:
            result = entry.run(*args, **kwargs)
        except Exception as error:
            if not self.can_be_redone(entry, error):
                tell_of_misfit(error, self.options.backend, entry.captured.graph)
                raise
            failure = error
        else:
            if entry.stop is None:
                return result
            held = CellType(result)
            del result  # whatever the program drops from here on dies there
            return drive(entry.stop, held)
        return self.redo(entry, failure, args, kwargs)

    @internal_frame
    def _plainly(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The call in plain Python, with all that it calls, where the stack is nearly used up: as deep as Python does it."""
        with SwitchedOff(), RoomForOurs():
            return self.original(*args, **kwargs)

    def _under_vmap(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        call = self._spread(args, kwargs)
        if call is None:
            return NotImplemented
        given = (*args, *kwargs.values())
        if not example_gradients.follows(given, call.level):
            return call.run()
        result = batched_gradients.record(call, self._way_back, given, tuple(kwargs))
        return self.original(*args, **kwargs) if result is NotImplemented else result

    def _spread(self, args: Sequence[Any], kwargs: dict[str, Any]) -> batched_calls.Spread | None:
        return batched_calls.spread(self.original, self.batched, self._twin, args, kwargs)

    def _twin(self, fn: Callable[..., Any]) -> CompiledFunction:
        return CompiledFunction(fn, self.options)

    def _way_back(self, way: example_gradients.Way) -> CompiledFunction:
        found = self.backwards.get(way)
        if found is None:
            made = example_gradients.pull_back(self.original, way)
            found = self.backwards[way] = CompiledFunction(made, replace(self.options, fullgraph=False))
        return found

    def only_computes(self, args: Sequence[Any]) -> bool:
        """Whether a call is one graph that neither draws random numbers nor changes anything; it is compiled if need be."""
        if active.levels and (call := self._spread(args, {})) is not None:
            return call.only_computes()
        entry = self.find(tuple(args), {})
        return entry.stop is None and entry.compiled is not None and entry.captured.only_computes

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __copy__(self) -> CompiledFunction:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> CompiledFunction:
        return self  # as functions do

    def __reduce__(self) -> Any:
        """By name, as functions do; one that does not stand under its function's name is compiled again."""
        found: Any = sys.modules.get(self.__module__)
        for part in self.original.__qualname__.split("."):
            found = getattr(found, part, None)
        return self.original.__qualname__ if found is self else (CompiledFunction, (self.original, self.options))

    def __repr__(self) -> str:
        return f"<tinycompile of {self.original!r}>"

    # -- inspection ------------------------------------------------------------------------------------------------------

    @property
    def all_entries(self) -> list[CacheEntry]:
        """Every specialisation, oldest first: of the function's beginning, then of what follows each break."""
        pieces = [self, *self.resumed.values()]
        return list(itertools.chain.from_iterable(reversed(p._entries) for p in pieces))

    @property
    def graphs(self) -> list[Graph]:
        """The captured graphs, newest last; those behind breaks after those before."""
        return [e.captured.graph for e in self.all_entries if e.compiled is not None and e.captured.graph is not None]

    @property
    def kernels(self) -> list[KernelInfo]:
        """The kernels of the newest specialisation, and of the newest ones of what follows its break."""
        return [k for e in self._newest() for k in kernel_infos(e.compiled)] if self._entries else []

    @property
    def guards(self) -> list[str]:
        """The guards of the newest specialisation, in words."""
        return list(self._latest().captured.guards)

    @property
    def breaks(self) -> list[Break]:
        """Every graph break met so far."""
        return [b for e in self.all_entries for b in e.captured.breaks]

    @property
    def stage_times(self) -> dict[str, float]:
        """Seconds by stage, of the newest specialisation."""
        return dict(self._latest().times)

    def source(self, stage: str) -> str:
        """The text of a stage of the newest specialisation, then of the newest ones of what follows its break: ``bytecode,
        python, guards, graph, joint, forward, backward, optimized, loops, plan, triton, cpp, wrapper, ptx, sass``; from
        ``optimized`` on, forward then backward. Raises ValueError for a name that is none, RuntimeError before the first
        call."""
        return "\n\n".join(text for e in self._newest() if (text := stage_text(e, stage)))

    def explain(self, /, *args: Any, **kwargs: Any) -> Report:
        """Compile for these arguments and report what happened and why. The function is run only if there is a graph break:
        what follows a break depends on what happened there."""
        entry = self.find(args, kwargs)
        if entry.stop is not None:
            self(*args, **kwargs)
        return make_report(self, entry)

    def cache_info(self) -> dict[str, int]:
        """``entries``, ``recompiles``, ``from_disk``."""
        from_disk = sum(e.compiled is not None and e.compiled.from_disk for e in self.all_entries)
        return {"entries": len(self._entries), "recompiles": len(self.recompiles), "from_disk": from_disk}

    def _newest(self) -> list[CacheEntry]:
        return list(with_later(self, self._latest()))

    def _latest(self) -> CacheEntry:
        if not self._entries:
            raise RuntimeError(f"{self.__name__} has not been called yet: nothing is compiled")
        return self._entries[0]


class CompiledModule(torch.nn.Module):
    """An ``nn.Module`` whose ``forward`` is compiled.

    It shares the original's ``__dict__``: parameters, buffers, submodules, hooks, ``training`` and ``state_dict`` are the
    original's own, and its class derives from the original's class. ``copy.deepcopy`` and pickling copy the original and
    compile again. What inspects a compiled function (``kernels``, ``source``, ``breaks``, ...) is on :attr:`compiled`, and on
    the module too where it has no attribute of that name itself.
    """

    __slots__ = ("_tinycompile_forward", "_tinycompile_source", "original")
    original: torch.nn.Module
    _tinycompile_forward: CompiledFunction
    _tinycompile_source: Callable[..., Any]

    @internal_frame
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The original's forward, compiled; the class's present one, should somebody have replaced it."""
        if type(self.original).forward is not self._tinycompile_source:
            _compile_forward(self, self._tinycompile_forward.options)
        return self._tinycompile_forward(self.original, *args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return _compile_module(copy.deepcopy(self.original, memo), self._tinycompile_forward.options)

    def __reduce__(self) -> Any:
        return _compile_module, (self.original, self._tinycompile_forward.options)

    def explain(self, /, *args: Any, **kwargs: Any) -> Report:
        """As :meth:`CompiledFunction.explain`, for ``forward``."""
        return self._tinycompile_forward.explain(self.original, *args, **kwargs)

    @property
    def compiled(self) -> CompiledFunction:
        """The compiled forward: graphs, kernels, source, guards."""
        return self._tinycompile_forward

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name not in _INSPECTION:
                raise
        return getattr(self._tinycompile_forward, name)


_INSPECTION = frozenset(("breaks", "cache_info", "graphs", "guards", "kernels", "recompiles", "source", "stage_times"))


def _compile_module(module: torch.nn.Module, options: Options) -> CompiledModule:
    cls = type(module)
    made = types.new_class(f"Compiled{cls.__name__}", (CompiledModule, cls), {}, lambda ns: ns.update(__slots__=()))
    self: CompiledModule = object.__new__(made)
    object.__setattr__(self, "__dict__", module.__dict__)
    _set_slot(self, "original", module)
    _compile_forward(self, options)
    return self


def _compile_forward(module: CompiledModule, options: Options) -> None:
    """Compile what the class has now for ``forward``."""
    forward = type(module.original).forward
    _set_slot(module, "_tinycompile_source", forward)
    compiled = forward if isinstance(forward, CompiledFunction) else CompiledFunction(forward, options)
    _set_slot(module, "_tinycompile_forward", compiled)


def _set_slot(module: CompiledModule, name: str, value: Any) -> None:
    """Past ``nn.Module.__setattr__``, which would register a submodule in the shared ``__dict__``."""
    CompiledModule.__dict__[name].__set__(module, value)


_live: weakref.WeakSet[CompiledFunction] = weakref.WeakSet()


def compiled_functions() -> list[CompiledFunction]:
    """All that are alive, in no order: of functions, of methods and of modules' forwards."""
    return list(_live)


def reset() -> None:
    """Forget every specialisation of every compiled function; the disk cache stays."""
    for function in list(_live):
        function.reset()


def explain(fn: Any, **options: Any) -> Callable[..., Report]:
    """``explain(fn)(*args)``: compile ``fn`` (a function, method, module, or something compiled already) for these
    arguments and report."""
    return _explainer(_compile(fn, Options(**options)))


def _explainer(fn: Any) -> Callable[..., Report]:
    """``explain`` of something compiled, with what a method or a partial gives on."""
    if isinstance(fn, types.MethodType):
        return functools.partial(_explainer(fn.__func__), fn.__self__)
    if isinstance(fn, functools.partial):
        return functools.partial(_explainer(fn.func), *fn.args, **fn.keywords)
    explainer: Callable[..., Report] = fn.explain
    return explainer


_OPTIONS = ("activation_memory_budget", "verify")


_ABSENT: Any = object()  # no function was given: the call makes a decorator


def compile(
    fn: Any = _ABSENT,
    *,
    backend: Backend = None,
    mode: str | None = None,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    options: dict[str, Any] | None = None,
) -> Any:
    """Compile a function, method, ``nn.Module``, :class:`GraphModule`, ``functools.partial`` or an object with ``__call__``;
    called with options alone, a decorator.

    ``backend``: None (Triton for CUDA tensors, C++ for CPU tensors), ``"triton"``, ``"cpp"``, ``"eager"``, ``"aot_eager"``
    or a callable ``backend(graph_module, example_inputs) -> callable``. ``mode``: ``"default"`` (or None),
    ``"max-autotune"``, ``"reduce-overhead"``. ``fullgraph``: a graph break raises :class:`GraphBreakError`. ``dynamic``: None
    (a size seen to
    change becomes symbolic), True, False. ``options``: ``activation_memory_budget`` (0 to 1, default 1): how much of what a
    training graph would save for its backward it may save; the rest is computed again. ``verify`` (``"first"``, ``"always"``,
    or a share of calls): run the captured graph by torch beside the compiled code, with float64 as the judge; at a difference
    warn, naming the stage at fault, and run eagerly from then on. Any other key raises ValueError. Raises TypeError for what
    can't be compiled.
    """
    if options is not None and not isinstance(options, dict):
        raise TypeError(f"options must be a dict, not {options!r}")
    if unknown := set(options or {}) - set(_OPTIONS):
        raise ValueError(f"unknown options {sorted(unknown)}; there are {' and '.join(_OPTIONS)}")
    chosen = Options(backend, mode or "default", fullgraph, dynamic, **(options or {}))
    if fn is _ABSENT:
        return functools.partial(_compile, options=chosen)
    return _compile(fn, chosen)


def _compile(fn: Any, options: Options) -> Any:
    if isinstance(fn, (CompiledFunction, CompiledModule)) or mark_of(fn) == "disable":
        return fn
    if VERSION not in SUPPORTED:
        versions = ", ".join(f"{major}.{minor}" for major, minor in SUPPORTED)
        warn_once(f"tinycompile reads the bytecode of Python {versions}, not {VERSION[0]}.{VERSION[1]}: functions stay eager")
        return fn
    if isinstance(fn, torch.nn.Module):
        return _compile_module(fn, options)
    if isinstance(fn, GraphModule):
        return CompiledFunction(fn.function, options)
    if is_step(bound := fn.__func__ if isinstance(fn, types.MethodType) else fn):
        return compiled_step(bound, getattr(fn, "__self__", None), lookup_backend(options.backend, mode=options.mode))
    if isinstance(fn, types.MethodType):
        return types.MethodType(_compile(fn.__func__, options), fn.__self__)
    if (made := transform_of(fn)) is not None:
        return CompiledFunction(_transformed(made), options)
    if isinstance(fn, types.FunctionType):
        return CompiledFunction(before_torch_compile(fn), options)
    if isinstance(fn, (staticmethod, classmethod)):
        return type(fn)(_compile(fn.__func__, options))
    if isinstance(fn, functools.partial):
        return functools.partial(_compile(fn.func, options), *fn.args, **fn.keywords)
    if callable(fn) and not isinstance(fn, type):
        if isinstance(call := type(fn).__call__, (types.FunctionType, CompiledFunction)):
            return types.MethodType(_compile(call, options), fn)
        return CompiledFunction(_in_python(fn), options)
    raise TypeError(
        f"tinycompile takes a Python function, a method, an nn.Module or an object that can be called, not {fn!r}{_advice(fn)}"
    )


def _advice(fn: Any) -> str:
    """What was probably meant by something that can't be compiled."""
    if isinstance(fn, type):
        return f": make a {fn.__name__} and compile that, or decorate its methods"
    if isinstance(fn, property):
        return ": decorate the function first, and put @property above"
    return f": a backend is given by name, backend={fn!r}" if isinstance(fn, str) else ""


def _transformed(made: Transform) -> Callable[..., Any]:
    """A function that makes ``vmap(f)`` or ``grad(f)`` and calls it, which capture follows."""
    transform, fn, options = made

    def call(*args: Any, **kwargs: Any) -> Any:
        return transform(fn, **options)(*args, **kwargs)

    call.__name__, call.__doc__ = getattr(fn, "__name__", transform.__name__), fn.__doc__
    return call


def _whole(chain: Sequence[Transform], fn: Any) -> CompiledFunction | None:
    """``grad(f)`` and the like of a compiled ``f``: one graph of all, forward and backward, is better than two."""
    if not isinstance(fn, CompiledFunction) or not generates_code(fn.options.backend):
        return None
    key = tuple((transform, repr(options)) for transform, _, options in chain)
    found = fn.transformed.get(key)
    if found is None:
        made: Any = fn.original
        for transform, _, options in reversed(chain[1:]):
            made = transform(made, **options)
        outermost = Transform(chain[0].made_by, made, chain[0].options)
        found = fn.transformed[key] = CompiledFunction(_transformed(outermost), replace(fn.options, fullgraph=False))
    return found


compile_whole.append(_whole)


def _in_python(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A Python function that calls one written in C (``torch.relu``, ``numpy.sin``, ``operator.itemgetter(0)``)."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    call.__name__, call.__doc__ = getattr(fn, "__name__", type(fn).__name__), fn.__doc__
    return call
