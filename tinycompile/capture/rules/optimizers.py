"""Steps of torch's optimizers: known as such, and written as formulas rather than followed.

A step adds nodes to the graph: it reads parameters, gradients and states, and they take over new values. What is not covered
ends the graph before it; the call is then made through the compiled form that ``compile_callee`` gives for it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import SGD, Adam, AdamW, Optimizer

from tinycompile.base.meta import TensorMeta
from tinycompile.capture import signature
from tinycompile.capture.breaks import GraphBreak
from tinycompile.capture.guards import is_aligned
from tinycompile.capture.pins import guard_one_object, pin
from tinycompile.capture.rules.registry import Args, rule
from tinycompile.capture.sources import Attr, Computed, Held, Item
from tinycompile.capture.values.base import Kwargs, Value
from tinycompile.capture.values.constant import NONE, TRUE, Const
from tinycompile.capture.values.function import FunctionValue
from tinycompile.capture.values.object import ObjectValue
from tinycompile.capture.values.scalar import operand
from tinycompile.capture.values.sequence import TupleValue
from tinycompile.capture.values.tensor import TensorValue
from tinycompile.dispatch import dispatcher, local_keys
from tinycompile.dispatch.keys import Key
from tinycompile.eager.fake import FakeTensor
from tinycompile.eager.optimizer_inputs import (
    CHOOSING,
    NUMERIC,
    SWITCHES,
    GroupInputs,
    ParameterGroups,
    StepInputs,
    Uncovered,
    optimizer_of,
    parts_of,
    why_apart,
)
from tinycompile.eager.optimizer_tensors import APART
from tinycompile.ops.calls import ops
from tinycompile.ops.optimizer_formulas import NUMBERS, updated

if TYPE_CHECKING:
    from tinycompile.capture.tracer import Tracer

OPTIMIZERS: tuple[type[torch.optim.Optimizer], ...] = (SGD, Adam, AdamW)


@functools.cache
def _steps() -> frozenset[Any]:
    return frozenset(inspect.unwrap(cls.step) for cls in OPTIMIZERS)


def is_step(fn: Any) -> bool:
    """Whether a function is the ``step`` of an optimizer that is known here, also as hooks and schedulers wrap it."""
    return isinstance(fn, FunctionType) and "__wrapped__" in fn.__dict__ and inspect.unwrap(fn) in _steps()


@dataclass(frozen=True)
class Settings:
    """What the program wrote to a group: ``values`` in this call, ``text`` as keyword arguments over ``names``. ``chosen``:
    some that formulas depend on may be others in another call."""

    values: dict[str, Any] = field(default_factory=dict)
    text: str = ""
    names: frozenset[str] = frozenset()
    chosen: bool = False


@dataclass
class Stepped:
    """An optimizer whose step is in the graph. ``states``: one list a group, in the order of its inputs. ``written``: settings
    of each group that the program wrote before the step at hand."""

    held: Held
    inputs: StepInputs
    states: list[list[TensorValue]]
    written: Sequence[Settings] = ()
    steps: int = 0
    numbers: dict[tuple[int, int], TensorValue] = field(default_factory=dict)  # by group and step

    def number(self, tr: Tracer, at: int, name: str, dtype: torch.dtype) -> FakeTensor:
        """One of a group's numbers, a tensor of no dims."""
        found = self.numbers.get((at, self.steps))
        if found is None:
            written = self.written[at]
            made = self.inputs.numbers(at, self.steps, **written.values)
            source = Computed(f"{self.held.name}.numbers({at}, {self.steps}{written.text})")
            meta = TensorMeta.contiguous(tuple(made.shape), made.dtype, signature.Device.of(made.device))
            found = self.numbers[at, self.steps] = tr.add_computed(source, made, meta, written.names)
        one: FakeTensor = ops.select(found.fake, 0, NUMBERS[self.inputs.groups[at].kind].index(name))
        return one if one.dtype == dtype else ops.to(one, dtype)


def step(tr: Tracer, fn: FunctionValue, args: Args, kwargs: Kwargs) -> Value:
    """``optimizer.step()``."""
    what = f"{inspect.unwrap(fn.fn).__qualname__}()"  # type: ignore[arg-type]
    optimizer, given = _receiver(tr, fn, args)
    if any(v is not NONE for v in (*given, *kwargs.values())):
        raise GraphBreak("optimizer", f"{what} with a closure")
    written = _written(tr, optimizer, what)
    reason = why_apart(optimizer)
    if reason is not None:
        raise GraphBreak("optimizer", f"{what}: {reason}")
    grads = [[_grad(tr, p) for p in group["params"]] for group in optimizer.param_groups]
    if not all(g is NONE or isinstance(g, TensorValue) for found in grads for g in found):
        raise GraphBreak("optimizer", f"{what} with gradients that no graph can have: sparse ones, or of a class of their own")
    updated_ones = [
        [p for p, g in zip(group["params"], found, strict=True) if g is not NONE]
        for group, found in zip(optimizer.param_groups, grads, strict=True)
    ]
    stepped = _stepped(tr, optimizer, updated_ones, written, what)
    mode, tr.grad_enabled = tr.grad_enabled, False
    try:
        with local_keys.exclude(Key.AUTOCAST):
            for at, (group, found) in enumerate(zip(stepped.inputs.groups, grads, strict=True)):
                _update(tr, stepped, at, group, [g for g in found if isinstance(g, TensorValue)])
    finally:
        tr.grad_enabled = mode
    stepped.steps += 1
    tr.effects.calls[stepped.held.name] = f"{stepped.held.name}.advance({stepped.steps})"
    return NONE


def _receiver(tr: Tracer, fn: FunctionValue, args: Args) -> tuple[Optimizer, Args]:
    """The optimizer, and the arguments without it."""
    assert fn.fn is not None
    bound = optimizer_of(fn.fn)
    if bound is not None:
        return bound, args
    if not args or not isinstance(args[0], ObjectValue) or args[0].source is None:
        raise GraphBreak("optimizer", "a step of something that is no optimizer from outside")
    pin(tr, args[0].obj, args[0].source)
    return args[0].obj, args[1:]


def _written(tr: Tracer, optimizer: Optimizer, what: str) -> list[Settings]:
    """The numbers and switches that the capture has written to each group. Everything else is read from the optimizer itself,
    which a capture's writes have not reached yet: where such was written the graph ends, and the writes are replayed first."""
    found = [Settings() for _ in optimizer.param_groups]
    if not tr.effects:
        return found
    stepped = tr.optimizers.get(id(optimizer))
    own = set() if stepped is None else {id(t.obj) for ts in stepped.states for t in ts}  # follow each other in the graph
    groups = {id(g): i for i, g in enumerate(optimizer.param_groups)}
    for part in parts_of(optimizer):
        value = tr.find(part) if isinstance(part, torch.Tensor) else tr.known(part)
        if value is None or value.source is None or id(part) in own or not tr.effects.changes(value):
            continue
        settings = _settings(tr, value) if id(part) in groups else None
        if settings is None:
            raise GraphBreak("optimizer", f"{what}, and {value.source.label} was written before")
        found[groups[id(part)]] = settings
    return found


def _settings(tr: Tracer, group: Value) -> Settings | None:
    """What was written to a group, if that is numbers, switches, or nothing that a step reads."""
    items = tr.effects.items_set(group)
    if items is None or not items.keys().isdisjoint(("params", *APART)):
        return None
    values, texts, names, chosen = dict[str, Any](), list[str](), frozenset[str](), False
    for name, entry in items.items():
        if name not in NUMERIC and name not in SWITCHES:
            continue
        shown = _shown(tr, tr.force(entry), name in SWITCHES)
        if shown is None:
            return None
        text, values[name], more = shown
        texts.append(f", {name}={text}")
        names, chosen = names | more, chosen or (name in CHOOSING and bool(more))
    return Settings(values, "".join(texts), names, chosen)


def _shown(tr: Tracer, value: Value, switch: bool) -> tuple[str, Any, frozenset[str]] | None:
    """A setting as text, as it is in this call, and the names in the text; None for what is no number, pair of numbers or
    switch."""
    if switch:
        plain = isinstance(value, Const) and isinstance(value.value, bool)
        return (repr(value.value), value.value, frozenset()) if plain else None  # type: ignore[attr-defined]
    if not isinstance(value, TupleValue):
        return operand(tr, value)
    parts = [operand(tr, v) for v in value.values(tr)]
    known = [p for p in parts if p is not None]
    if value.cls is not tuple or len(known) < len(parts):
        return None
    texts, values = "".join(f"{text}, " for text, _, _ in known), tuple(v for _, v, _ in known)
    return f"({texts})", values, frozenset().union(*(names for _, _, names in known))


def _grad(tr: Tracer, p: torch.Tensor) -> Value:
    gradients = tr.effects.gradients
    grad = gradients.read(tr, gradients.slot(tr, p, tr.guards.hold(p, "param")))
    if isinstance(grad, TensorValue) and (grad.meta.dtype != p.dtype or not p.dtype.is_floating_point):
        raise GraphBreak("optimizer", f"a gradient of dtype {grad.meta.dtype} for a parameter of dtype {p.dtype}")
    return grad


def _stepped(
    tr: Tracer, optimizer: Optimizer, parameters: Sequence[Sequence[torch.Tensor]], written: Sequence[Settings], what: str
) -> Stepped:
    """What is known of an optimizer, guarded."""
    found = tr.optimizers.get(id(optimizer))
    if found is None:
        found = _first_step(tr, optimizer, parameters, written, what)
    elif [list(map(id, g.parameters)) for g in found.inputs.groups] != [list(map(id, ps)) for ps in parameters]:
        raise GraphBreak("optimizer", f"{what}, whose second step updates other parameters")
    found.written = written
    for at, settings in enumerate(written):
        if not found.inputs.groups[at].go_on(optimizer, found.steps, settings.values):
            raise GraphBreak("optimizer", f"{what}, whose second step has other states")
        if settings.chosen:
            choice = f"{found.held.name}.chooses({at}, {found.steps}{settings.text})"
            tr.guards.late_check(choice, f"settings written to the {type(optimizer).__name__}")
    return found


def _first_step(
    tr: Tracer, optimizer: Optimizer, parameters: Sequence[Sequence[torch.Tensor]], written: Sequence[Settings], what: str
) -> Stepped:
    inputs = StepInputs(optimizer, parameters, [s.values for s in written])
    if not inputs.covered:
        tr.guards.reasons.append((f"the states of the {type(optimizer).__name__}", Uncovered(inputs)))
        raise GraphBreak("optimizer", f"{what}: its states are missing, differ in their counts, or share memory")
    held = tr.guards.hold(inputs, "optimizer_step", f"the step of {type(optimizer).__name__}")
    tr.guards.check(f"{held.name}.holds()", f"settings and states of the {type(optimizer).__name__}")
    given = [
        tr.add_tensor(Item(Attr(held, "states"), i), t, signature.symbolic_meta(tr, t, ()), is_aligned(t))
        for i, t in enumerate(inputs.states)
    ]
    states: list[list[TensorValue]] = []
    for group in inputs.groups:
        count = len(group.parameters) * len(group.choice.states)
        states.append(given[:count])
        del given[:count]
    made = tr.optimizers[id(optimizer)] = Stepped(held, inputs, states)
    return made


def _update(tr: Tracer, stepped: Stepped, at: int, group: GroupInputs, grads: Sequence[TensorValue]) -> None:
    """The parameters and states of a group take over their new values."""
    count, states = len(group.parameters), stepped.states[at]
    number = functools.partial(stepped.number, tr, at)
    tr.about_to_record()
    for k, (p, grad) in enumerate(zip(group.parameters, grads, strict=True)):
        targets = [_parameter(tr, p), *states[k::count]]
        before = [dispatcher.call("detach", targets[0].fake), *(t.fake for t in targets[1:])]
        made = updated(group.choices[stepped.steps], number, before[0], grad.fake, before[1:])
        for target, value in zip(targets, made, strict=True):
            tr.write(target, functools.partial(TensorValue, value, torch.Tensor, False))


def _parameter(tr: Tracer, p: torch.Tensor) -> TensorValue:
    held = tr.guards.hold(p, "param")
    found = tr.find(p)
    if found is not None:
        guard_one_object(tr, found, held)
        return found
    made = tr.wrap(p, held)
    assert isinstance(made, TensorValue)
    return made


# --- zero_grad --------------------------------------------------------------------------------------------------------------


@rule(Optimizer.zero_grad)
def _zero_grad(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    receiver = args[0]
    if not isinstance(receiver, ObjectValue) or receiver.source is None:
        raise GraphBreak("optimizer", f"zero_grad() of {receiver.describe()}")
    optimizer = receiver.obj
    pin(tr, optimizer, receiver.source)
    _written(tr, optimizer, "zero_grad()")
    groups = ParameterGroups(optimizer)
    held = tr.guards.hold(groups, "groups", f"the parameters of {type(optimizer).__name__}")
    tr.guards.check(f"{held.name}.hold()", held.shown)
    _forget(tr, [p for group in groups.groups for p in group], args[1:], kwargs)
    return NONE


@rule(torch.nn.Module.zero_grad)
def _module_zero_grad(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    parameters = list(args[0].call_method(tr, "parameters", [], {}).iterate(tr))
    if not all(isinstance(p, TensorValue) and isinstance(p.source, Held) for p in parameters):
        raise GraphBreak("unsupported-value", f"zero_grad() of {args[0].describe()}")
    _forget(tr, [p.obj for p in parameters if isinstance(p, TensorValue)], args[1:], kwargs)
    return NONE


def _forget(tr: Tracer, parameters: Sequence[torch.Tensor], args: Args, kwargs: Kwargs) -> None:
    """Drop the gradients, or fill them with zeros."""
    gradients = tr.effects.gradients
    if kwargs.get("set_to_none", args[0] if args else TRUE).truth(tr):
        gradients.forget(tr, parameters)
        return
    for p in parameters:
        grad = gradients.read(tr, gradients.slot(tr, p, tr.guards.hold(p, "param")))
        if isinstance(grad, TensorValue):
            zeros = dispatcher.call("full_like", grad.fake, 0.0)
            tr.write(grad, functools.partial(TensorValue, zeros, torch.Tensor, False))
