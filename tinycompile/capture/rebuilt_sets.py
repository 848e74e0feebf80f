"""Sets as source: what was done to them is done again, for a set's order depends on all of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from tinycompile.capture.breaks import NotRebuildable
from tinycompile.capture.values.base import Value
from tinycompile.capture.values.set_steps import Operand, Snapshot, program
from tinycompile.capture.values.sets import SetValue

if TYPE_CHECKING:
    from tinycompile.capture.reconstruct import Rebuilder
    from tinycompile.capture.tracer import Tracer


def set_object(r: Rebuilder, value: SetValue) -> str:
    """A set that the program made; one that takes something from outside, before that is changed."""
    if all(v.source is None for v in program(r.tr, value)[1]):
        return set_text(r, value)
    name = r.tr.guards.names.take("members")
    r.statements.append(f"{name} = {set_text(r, value)}")
    r.names[id(value)] = name
    return name


def set_text(r: Rebuilder, value: SetValue, until: int | None = None) -> str:
    """A set as it is, or was before a step: the same is done again, for the order depends on all of it."""
    followed, given = program(r.tr, value, until, exact=True)
    ((_, method, operands),) = followed.steps[:1]
    if len(followed.steps) == 1 and method in ("set", "frozenset") and isinstance(operands[0], Snapshot):
        step = next(s for s in r.tr.set_steps if s.target is value)
        if operands[0].kind == "list":
            return f"{r.held(value.cls, value.cls.__name__)}([{', '.join(map(r.expr, step.operands[0].parts))}])"  # type: ignore[union-attr]
    if method == "held" and len(followed.steps) == 1:
        return r.held(value.real, "set")
    return f"{r.held(followed, 'set_of')}({', '.join(map(r.expr, given))})"


def set_changes(r: Rebuilder, call: Callable[..., str], value: SetValue) -> list[str]:
    """Calls that do to a set from outside what was done. ``call``: gives the text of one."""
    return [
        call(step.method, *(_operand(r, value, o, at) for o in step.operands))
        for at, step in enumerate(r.tr.set_steps)
        if step.target is value
    ]


def _operand(r: Rebuilder, target: SetValue, operand: Operand, at: int) -> str:
    """An operand of the step ``at``. Sets that the program made are made anew, before anything outside is changed."""
    if isinstance(operand, Snapshot):
        texts = [r.expr(p) for p in operand.parts]
        if operand.kind == "member":
            return texts[0]
        if operand.kind == "list":
            return f"[{', '.join(texts)}]"
        pairs = ", ".join(f"{k}: {v}" for k, v in zip(texts[::2], texts[1::2], strict=True))
        return f"{{{pairs}}}" + ("" if operand.kind == "dict" else f".{operand.kind}()")
    if operand is target:
        return r.expr(target)
    if operand.source is not None:
        if r.tr.effects.changes(operand):
            raise NotRebuildable(target, f"{target.describe()} takes over {operand.describe()}, which is changed, too")
        return r.expr(operand)
    name = r.tr.guards.names.take("members")
    r.statements.append(f"{name} = {set_text(r, operand, at)}")
    return name


def parts_of_changes(tr: Tracer, value: SetValue) -> Iterator[Value]:
    """The Values that ``set_changes`` mentions."""
    for at, step in enumerate(tr.set_steps):
        for operand in step.operands if step.target is value else ():
            if isinstance(operand, Snapshot):
                yield from operand.parts
            elif operand.source is None:
                yield from program(tr, operand, at, exact=True)[1]
