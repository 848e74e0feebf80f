"""``capture``: one function, one call's arguments -> a Graph, guards, and Python source that runs the rest."""

from __future__ import annotations

import dis
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import CodeType, FunctionType, MethodType
from typing import Any

import torch

from tinycompile.base import torch_private
from tinycompile.base.errors import InternalError
from tinycompile.base.shapes import ShapeEnv
from tinycompile.capture.breaks import Break, GraphBreak
from tinycompile.capture.execute import Frame, run
from tinycompile.capture.guards import HELPERS, CompiledGuards, define, signature_text
from tinycompile.capture.reconstruct import Rebuilder
from tinycompile.capture.sources import Attr, Held, Local
from tinycompile.capture.tracer import Tracer
from tinycompile.capture.values.base import Lazy, Value
from tinycompile.capture.values.function import FunctionValue
from tinycompile.eager.fake import tracing
from tinycompile.ir.builder import identifier
from tinycompile.ir.graph import Graph, Location


@dataclass(frozen=True)
class CaptureOptions:
    """``dynamic``: True makes every size symbolic, False none, None those that were seen to change in ``earlier`` captures.

    ``dynamic_dims``: more of them, ``(source text, dim)``; dim None for an integer argument."""

    dynamic: bool | None = None
    earlier: tuple[Captured, ...] = ()
    dynamic_dims: Mapping[tuple[str, int | None], Any] = field(default_factory=dict)

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

    def _earlier_shapes(self, text: str, rank: int) -> list[tuple[int, ...]]:
        found = [e.shapes_seen.get(text) for e in self.earlier]
        return [s for s in found if s is not None and len(s) == rank]

    def symbolic_int(self, text: str, value: int) -> bool:
        """Whether the integer argument at ``text`` is to be symbolic."""
        if (text, None) in self.dynamic_dims:
            return True
        seen = [e.constants_seen.get(text) for e in self.earlier]
        return self.dynamic is not False and any(type(s) is int and s != value for s in seen)


@dataclass(frozen=True)
class Captured:
    """What capture found. ``graph`` None: the frame must run eagerly, and ``breaks`` says why.

    ``guard`` has the function's own parameters. ``bind(graph_fn)`` gives the rebuilt function, whose source is ``python``;
    ``graph_fn(*inputs)`` returns the tuple of the graph's outputs. ``input_aligned``: whether each input's
    data starts at a multiple of 16 bytes (guarded)."""

    graph: Graph | None
    guard: Callable[..., bool]
    guard_source: str
    guards: tuple[str, ...]
    python: str
    breaks: tuple[Break, ...]
    size_hints: Mapping[str, int]
    example_inputs: tuple[Any, ...]
    inputs_require_grad: tuple[bool, ...]
    input_aligned: tuple[bool, ...]
    shapes_seen: Mapping[str, tuple[int, ...]]
    constants_seen: Mapping[str, Any]
    code: CodeType
    env: ShapeEnv
    _guards: CompiledGuards = field(repr=False)
    _bind: Callable[[Any], Callable[..., Any]] = field(repr=False)
    _recompile: Callable[[], CompiledGuards] = field(repr=False)
    _relations: int = field(repr=False)

    def explain_failure(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """The first guard that a call's arguments fail, in words; empty when they pass."""
        return self._guards.explain_failure(args, kwargs)

    def bind(self, graph_fn: Callable[..., tuple[Any, ...]]) -> Callable[..., Any]:
        """The rebuilt function around a way to run the graph."""
        if self.graph is None:
            raise InternalError("there is no graph to bind: the frame runs eagerly")
        return self._bind(graph_fn)

    def guarded_by_later_stages(self) -> Captured:
        """The same with guards for the relations between sizes that stages after capture relied on (under ``env``)."""
        if len(self.env.relations) == self._relations:
            return self
        guards = self._recompile()
        return replace(self, guard=guards.guard, guard_source=guards.source, guards=guards.labels, _guards=guards)

    @property
    def user_exception(self) -> bool:
        """Whether the function itself raised during capture."""
        return any(b.id == "user-exception" for b in self.breaks)

    @cached_property
    def bytecode(self) -> str:
        """CPython's listing of the function."""
        return dis.Bytecode(self.code).dis()


def capture(
    fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], options: CaptureOptions | None = None
) -> Captured:
    """Follow a call of ``fn`` symbolically.

    Raises TypeError for something that is no Python function or method. What the function itself raises is a break, and so is
    whatever can't be captured: the frame then runs in eager Python."""
    function, skip = _python_function(fn)
    parameters = list(inspect.signature(function, follow_wrapped=False).parameters)[skip:]
    tr = Tracer(options or CaptureOptions(), [*function.__code__.co_varnames, *function.__code__.co_freevars])
    signature = signature_text(function, skip)
    rebuilder = Rebuilder(tr)
    graph: Graph | None = None
    breaks: tuple[Break, ...] = ()
    result = ""
    with tr.env.active(), tracing(tr.builder):
        try:
            result, graph = _trace(tr, rebuilder, function, fn, args, kwargs, parameters)
        except GraphBreak as b:
            breaks = (Break(b.kind, b.reason, _where(tr, b, function)),)
        except RecursionError:
            breaks = (Break("recursion", "Python's recursion limit was reached", _where(tr, None, function)),)
        except Exception as error:
            if _is_ours(error):
                raise
            reason = f"{type(error).__name__}: {error}"
            breaks = (Break("user-exception", reason, _where(tr, error, function)),)
    return _finish(tr, rebuilder, graph, breaks, result, function, signature, skip)


def _python_function(fn: Callable[..., Any]) -> tuple[FunctionType, int]:
    """The function, and how many leading parameters are bound already."""
    if isinstance(fn, MethodType) and isinstance(fn.__func__, FunctionType):
        return fn.__func__, 1
    if not isinstance(fn, FunctionType):
        raise TypeError(f"only Python functions and methods can be captured, not {type(fn).__name__}")
    return fn, 0


def _trace(
    tr: Tracer,
    rebuilder: Rebuilder,
    function: FunctionType,
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    parameters: Sequence[str],
) -> tuple[str, Graph]:
    _guard_modes(tr)
    clash = set(parameters) & set(HELPERS)
    if clash:
        raise GraphBreak("unsupported-value", f"a parameter named {clash.pop()}, which guards use themselves")
    value = tr.from_callable(function)
    assert isinstance(value, FunctionValue)
    frame = Frame(function.__code__, function.__globals__, _arguments(tr, function, fn, args, kwargs), function.__qualname__)
    for name, cell in zip(function.__code__.co_freevars, value.closure, strict=True):
        frame.slots[name] = cell
    if function.__code__.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
        raise GraphBreak("generator", f"{function.__qualname__} is a generator or a coroutine")
    returned = run(tr, frame)
    if tr.grad_enabled != tr.root_grad_enabled:
        raise GraphBreak("grad-mode", "the gradient mode is another at the end of the function")
    return _outputs(tr, rebuilder, returned, function)


def _outputs(tr: Tracer, rebuilder: Rebuilder, returned: Value, function: FunctionType) -> tuple[str, Graph]:
    result = rebuilder.result(returned)
    return result, tr.builder.finish(identifier(function.__name__), [t.fake for t in rebuilder.outputs], tr.env.hints)


def _guard_modes(tr: Tracer) -> None:
    if not torch_private.ordinary_mode():
        raise GraphBreak("mode", "autocast, inference mode, or a torch function or dispatch mode is active")
    tr.guards.state_check(f"_grad_enabled() is {tr.grad_enabled}", f"grad mode is {'on' if tr.grad_enabled else 'off'}")
    tr.guards.state_check("_ordinary_mode()", "no autocast, inference mode, torch function or dispatch mode")
    dtype = tr.guards.hold(torch.get_default_dtype(), str(torch.get_default_dtype()).removeprefix("torch."))
    tr.guards.state_check(f"_default_dtype() is {dtype.name}", f"the default dtype is {dtype.value}")


def _arguments(
    tr: Tracer, function: FunctionType, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Parameters by name, not looked at yet. Raises TypeError as the call itself would."""
    bound = inspect.signature(fn, follow_wrapped=False).bind(*args, **kwargs)
    given = set(bound.arguments)
    bound.apply_defaults()
    slots: dict[str, Any] = {name: Lazy(value, Local(name)) for name, value in bound.arguments.items()}
    if isinstance(fn, MethodType):
        receiver = function.__code__.co_varnames[0]
        slots[receiver] = Lazy(fn.__self__, tr.guards.hold(fn.__self__, receiver))
    if function.__defaults__ and set(bound.arguments) - given:
        _guard_defaults(tr, function)
    return slots


def _guard_defaults(tr: Tracer, function: FunctionType) -> None:
    held: Held = tr.guards.hold(function, function.__name__)
    defaults = tr.guards.hold(function.__defaults__, "defaults")
    tr.guards.check(f"{Attr(held, '__defaults__').text} is {defaults.name}", "the function's own defaults")


def _where(tr: Tracer, error: BaseException | None, function: FunctionType) -> Location:
    """The user's line where an error came up."""
    if tr.failure is not None and (error is None or tr.failure[0] is error):
        return tr.failure[1]
    code = function.__code__
    return Location(code.co_filename, code.co_firstlineno, code.co_name)


def _is_ours(error: Exception) -> bool:
    """Whether an error shows a fault of capture rather than of the function that is captured."""
    if isinstance(error, (InternalError, AssertionError, UnboundLocalError)) and not str(error).startswith(
        "cannot access local"
    ):
        return True
    culprit = getattr(error, "obj", None)
    module = type(culprit).__module__ if not isinstance(culprit, type) else culprit.__module__
    return isinstance(error, (AttributeError, NameError)) and culprit is not None and module.startswith("tinycompile.")


def _finish(
    tr: Tracer,
    rebuilder: Rebuilder,
    graph: Graph | None,
    breaks: tuple[Break, ...],
    result: str,
    function: FunctionType,
    signature: str,
    skip: int,
) -> Captured:
    python, call = "", ""
    if graph is not None:
        python, call = rebuilder.function(identifier(function.__name__), signature, result, graph)

    def compile_guards() -> CompiledGuards:
        for relation in tr.env.relations:
            tr.guards.late_check(str(relation), f"sizes: {relation}")
        made = tr.guards.compile(signature, function, skip)
        _rename(made.guard, function)
        return made

    guards = compile_guards()

    def bind(graph_fn: Callable[..., tuple[Any, ...]]) -> Callable[..., Any]:
        made = define(python, identifier(function.__name__), {**tr.guards.held, call: graph_fn}, function, skip)
        _rename(made, function)
        return made

    return Captured(
        graph=graph,
        guard=guards.guard,
        guard_source=guards.source,
        guards=guards.labels,
        python=python,
        breaks=breaks,
        size_hints=dict(tr.env.hints),
        example_inputs=tuple(i.value.torch() if i.ours else i.value for i in tr.inputs),
        inputs_require_grad=tuple(bool(getattr(i.value, "requires_grad", False)) for i in tr.inputs),
        input_aligned=tuple(i.aligned for i in tr.inputs),
        shapes_seen=tr.shapes_seen,
        constants_seen=tr.constants_seen,
        code=function.__code__,
        env=tr.env,
        _guards=guards,
        _bind=bind,
        _recompile=compile_guards,
        _relations=len(tr.env.relations),
    )


def _rename(fn: Callable[..., Any], like: FunctionType) -> None:
    """A wrong call is reported under the user's name."""
    fn.__name__, fn.__qualname__ = like.__name__, like.__qualname__
