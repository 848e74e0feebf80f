"""``tinycompile.func`` inside a compiled function: ``grad``, ``grad_and_value``, ``vjp``, ``jacrev``, ``hessian``; torch's too.

The eager functions themselves run, on fakes: our tape follows the fakes of the arguments through what the function calls, and
its backward calls ops on fakes, so that the graph has the gradient written out.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from tinycompile.base.errors import DataDependentError
from tinycompile.capture import torch_calls
from tinycompile.capture.breaks import GraphBreak
from tinycompile.capture.rules.registry import Args, rule
from tinycompile.capture.values.base import Kwargs, Value
from tinycompile.capture.values.constant import Const
from tinycompile.capture.values.mapping import DictValue
from tinycompile.capture.values.sequence import ListValue, SequenceValue, TupleValue
from tinycompile.capture.values.tensor import TensorValue
from tinycompile.eager import func
from tinycompile.eager.recording import NestedNoGradError
from tinycompile.eager.tensor import Tensor

if TYPE_CHECKING:
    from tinycompile.capture.tracer import Tracer


class FunctionOf(Value):
    """What ``grad(fn)`` gives. ``eager``: ours, which runs on fakes; ``made_by``: the one that the program called."""

    __slots__ = ("eager", "fn", "made_by", "options")

    def __init__(self, made_by: Any, eager: Callable[..., Any], fn: Value, options: dict[str, Any]) -> None:
        super().__init__()
        self.made_by, self.eager, self.fn, self.options = made_by, eager, fn, options

    def truth(self, tr: Tracer) -> bool:
        return True

    def call(self, tr: Tracer, args: Sequence[Value], kwargs: Kwargs) -> Value:
        reached: list[Value] = [*args, *kwargs.values()]
        made = self.eager(_on_fakes(tr, self.fn, reached), **self.options)
        return _run(tr, made, args, kwargs, reached)


class PullBack(Value):
    """The second result of ``vjp``."""

    __slots__ = ("pull_back", "reached")

    def __init__(self, pull_back: Callable[..., Any], reached: Sequence[Value]) -> None:
        super().__init__()
        self.pull_back, self.reached = pull_back, reached

    def truth(self, tr: Tracer) -> bool:
        return True

    def call(self, tr: Tracer, args: Sequence[Value], kwargs: Kwargs) -> Value:
        return _run(tr, self.pull_back, args, kwargs, [*self.reached, *args])


def _run(tr: Tracer, made: Callable[..., Any], args: Sequence[Value], kwargs: Kwargs, reached: Sequence[Value]) -> Value:
    """An eager function on the fakes of the arguments. ``reached``: what its results depend on, when it has returned."""
    before, mode = tr.on_tape, torch.is_grad_enabled()
    tr.on_tape = True
    tr.about_to_record()
    try:
        found = made(*(_fakes(tr, a) for a in args), **{k: _fakes(tr, v) for k, v in kwargs.items()})
    except (DataDependentError, NestedNoGradError) as error:  # the first: a function that torch alone can differentiate
        raise GraphBreak("unsupported-op", f"under tinycompile.func: {error}") from error
    finally:
        tr.on_tape = before
        torch.set_grad_enabled(mode)
    return _values(tr, found, reached)


def _on_fakes(tr: Tracer, fn: Value, reached: list[Value]) -> Callable[..., Any]:
    """The program's function, as the eager one calls it. What it returns is noted: it may depend on more than its arguments."""

    def called(*args: Any, **kwargs: Any) -> Any:
        given, named = [_values(tr, a, []) for a in args], {k: _values(tr, v, []) for k, v in kwargs.items()}
        for lent in torch_calls.tensors_in(tr, [*given, *named.values()]):
            lent.memory.lent = True
        result = fn.call(tr, given, named)
        reached.append(result)
        return _fakes(tr, result)

    called.__name__ = fn.describe()
    return called


def _fakes(tr: Tracer, value: Value) -> Any:
    """A structure of values with fakes for tensors; what is neither stays a Value."""
    if isinstance(value, TensorValue):
        return value.fake
    if isinstance(value, DictValue) and all(k.is_constant for k, _ in value.pairs(tr)):
        return {k.constant(tr): _fakes(tr, v) for k, v in value.pairs(tr)}
    if isinstance(value, SequenceValue) and value.cls in (tuple, list):
        return value.cls(_fakes(tr, v) for v in value.values(tr))
    return value


def _values(tr: Tracer, value: Any, operands: Sequence[Value]) -> Value:
    """The way back. ``operands``: what the results depend on."""
    if isinstance(value, Value):
        return value
    if isinstance(value, Tensor):
        return torch_calls.wrap_result(tr, value, operands)
    if isinstance(value, dict):
        return DictValue(tr, [(tr.from_python(k), _values(tr, v, operands)) for k, v in value.items()])
    if isinstance(value, tuple):
        return TupleValue([_values(tr, v, operands) for v in value])
    if isinstance(value, list):
        return ListValue([_values(tr, v, operands) for v in value])
    if callable(value):
        return PullBack(value, operands)
    return tr.from_python(value)


# --- rules -------------------------------------------------------------------------------------------------------------------


def _options(tr: Tracer, given: Kwargs, known: Sequence[str]) -> dict[str, Any]:
    """The options that ours have too; those of torch's that change nothing but memory are left out, others refused."""
    options = {k: v.constant(tr) for k, v in given.items()}
    for name, default in (("chunk_size", None), ("_preallocate_and_copy", False), ("has_aux", False)):
        if name not in known and name in options and (options[name] == default or _is_chunk(name, options[name])):
            del options[name]
    if options.keys() - set(known):
        raise GraphBreak("unsupported-argument", f"tinycompile.func with {', '.join(sorted(options.keys() - set(known)))}")
    return options


def _is_chunk(name: str, value: Any) -> bool:
    """Whether it is a number of rows at once: a graph takes memory as it is planned."""
    return name == "chunk_size" and isinstance(value, int) and value > 0


def _register(made_by: Any, eager: Callable[..., Any], names: Sequence[str]) -> None:
    @rule(made_by)
    def made(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
        given = {**dict(zip(("func", *names), args, strict=False)), **kwargs}
        fn = given.pop("func", given.pop("fn", given.pop("f", None)))
        if fn is None:
            raise GraphBreak("unsupported-argument", f"{made_by.__name__} without a function")
        return FunctionOf(made_by, eager, fn, _options(tr, given, names))


for _name, _names in (
    ("grad", ("argnums", "has_aux")),
    ("grad_and_value", ("argnums", "has_aux")),
    ("jacrev", ("argnums", "has_aux")),
    ("hessian", ("argnums",)),
):
    for _home in (func, torch.func):
        _register(getattr(_home, _name), getattr(func, _name), _names)


@rule(func.vjp, torch.func.vjp)
def _vjp(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    fn, *primals = args
    has_aux = kwargs.get("has_aux", Const(False)).constant(tr)
    reached: list[Value] = list(primals)
    return _run(tr, functools.partial(func.vjp, _on_fakes(tr, fn, reached), has_aux=has_aux), primals, {}, reached)
