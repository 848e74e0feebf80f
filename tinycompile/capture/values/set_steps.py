"""What was done to sets, so that it can be done again. A set's order, and what ``pop`` takes, depend on all of it: on what it
was made from and on each change, not on its members alone."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from tinycompile.capture.breaks import NotRebuildable
from tinycompile.capture.values.base import Value
from tinycompile.capture.values.constant import Const, may_be_another
from tinycompile.capture.values.mapping import DictValue, DictView

if TYPE_CHECKING:
    from tinycompile.capture.tracer import Tracer
    from tinycompile.capture.values.sets import SetValue


class Snapshot(NamedTuple):
    """What a set's method was given that is no set: ``kind`` is one of ``member``, ``list``, ``dict``, ``keys`` and ``items``.
    ``parts``: the member, the items, or keys and values in turn."""

    kind: str
    parts: tuple[Any, ...]

    def python(self, part: Callable[[Any], Any]) -> Any:
        """The object, ``part`` giving those that it is made of."""
        parts = [part(p) for p in self.parts]
        if self.kind == "member":
            return parts[0]
        if self.kind == "list":
            return parts
        made = dict(zip(parts[::2], parts[1::2], strict=True))
        return made if self.kind == "dict" else getattr(made, self.kind)()


Operand: TypeAlias = "SetValue | Snapshot"


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """``target`` was made by ``method`` of the operands, or changed by it."""

    target: SetValue
    method: str
    operands: tuple[Operand, ...]


def snapshot(tr: Tracer, operand: Value) -> Snapshot:
    """An operand that is no set, as it is now: a dict, a view of one, or (as a list) the values of another iterable."""
    if isinstance(operand, DictView):
        return Snapshot(operand.what, _pairs(tr, operand.of, operand.what))
    if isinstance(operand, DictValue):
        return Snapshot("dict", _pairs(tr, operand, "dict"))
    return Snapshot("list", tuple(operand.iterate(tr)))


def _pairs(tr: Tracer, of: DictValue, what: str) -> tuple[Any, ...]:
    """Keys and values in turn; the values count in a view of items only."""
    pairs = of.pairs(tr) if what == "items" else [(key, key) for key, _ in of.items.values()]
    return tuple(part for pair in pairs for part in pair)


# --- doing it ----------------------------------------------------------------------------------------------------------------


def _of_the_kind(name: str) -> Callable[..., Any]:
    """A method as the built-in classes have it, past what a class that derives from them defines."""
    return lambda target, *operands: getattr(frozenset if isinstance(target, frozenset) else set, name)(target, *operands)


MAKERS: dict[str, Callable[..., Any]] = {
    "set": set,
    "frozenset": frozenset,
    "held": lambda known: known,
    "|": operator.or_,
    "&": operator.and_,
    "-": operator.sub,
    "^": operator.xor,
    **{how: _of_the_kind(how) for how in ("union", "intersection", "difference", "symmetric_difference")},
}


class Register(NamedTuple):
    """A set that an earlier step made."""

    number: int


class Given(NamedTuple):
    """One of the objects that a program is called with."""

    number: int


@dataclass(frozen=True)
class Program:
    """Steps as plain data. Called with the objects that they are about, it does them and gives the last step's set."""

    steps: tuple[tuple[int, str, tuple[Any, ...]], ...]

    def __call__(self, *given: Any) -> Any:
        return self.onto(None, *given)

    def onto(self, target: Any, *given: Any) -> Any:
        """The same, with an empty set of the program's own class as what the last set begins with."""
        made: dict[int, Any] = {}

        def found(what: Any) -> Any:
            if isinstance(what, Snapshot):
                return what.python(found)
            return given[what.number] if isinstance(what, Given) else made[what.number] if isinstance(what, Register) else what

        for at, method, operands in self.steps:
            objects = [found(o) for o in operands]
            if at == self.steps[-1][0] and at not in made and target is not None:
                made[at] = target
                set.update(target, *objects)
            elif method in MAKERS:
                made[at] = MAKERS[method](*objects)
            else:
                getattr(set, method)(made[at], *objects)
        return made[self.steps[-1][0]]

    def order(self, *given: Any) -> tuple[Any, ...]:
        """The set's order."""
        return tuple(self(*given))


def program(tr: Tracer, value: SetValue, until: int | None = None, *, exact: bool = False) -> tuple[Program, list[Value]]:
    """What makes a set as it is, or was before the step ``until``, and the Values that this is called with: sets from outside,
    as they are when the call begins, and members that are no plain constants. ``exact``: the members are the very objects that
    the program has, not just equal ones, which are in the same order."""
    numbers, given, done = dict[int, Register | Given](), list[Value](), []

    def number(of: Value) -> Register | Given:
        if id(of) not in numbers:
            numbers[id(of)] = Given(len(given))
            given.append(of)
        return numbers[id(of)]

    def argument(of: Operand) -> Any:
        if not isinstance(of, Snapshot):
            return number(of)
        return Snapshot(of.kind, tuple(number(p) if is_given(p) else p.value for p in of.parts))

    def is_given(part: Any) -> bool:
        return not isinstance(part, Const) or (exact and may_be_another(part.value))

    for step in _needed(tr, value, len(tr.set_steps) if until is None else until):
        operands = tuple(map(argument, step.operands))
        at = numbers.setdefault(id(step.target), Register(len(numbers)))
        done.append((at.number, step.method, operands))
    return Program(tuple(done)), given


def _needed(tr: Tracer, value: SetValue, until: int) -> list[Step]:
    """The steps that count for a set, in order: its own, and those of its operands, each up to where it was used."""
    wanted, chosen = {id(value): until}, list[Step]()
    for at in reversed(range(until)):
        step = tr.set_steps[at]
        if at >= wanted.get(id(step.target), 0):
            continue
        if step.target.source is not None:
            raise NotRebuildable(value, f"{value.describe()} is made from {step.target.describe()}, which is changed")
        chosen.append(step)
        for given in step.operands:
            if not isinstance(given, Snapshot):
                wanted.setdefault(id(given), at)
    return chosen[::-1]
