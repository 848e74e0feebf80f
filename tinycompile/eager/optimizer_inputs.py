"""What a captured step of an optimizer takes from outside the graph: states, and the numbers of this call.

The step's formulas are nodes of a graph. Which of them hold is guarded here: the settings of each group, the parameters in
it, and what kind of tensors their states are. Learning rates, betas and counts of steps are no guards but numbers, read at each
call."""

from __future__ import annotations

import itertools
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from types import FunctionType
from typing import Any

import torch
from torch.optim import SGD, Adam, AdamW, Optimizer

from tinycompile.base import torch_private
from tinycompile.eager.optimizer_tensors import SCALARS, Counter, alignment, covered, same_objects, why_group_apart
from tinycompile.ops.optimizer_formulas import NUMBERS, Choice, choice_of, numbers_of

KINDS: Mapping[type[Optimizer], str] = {SGD: "sgd", Adam: "adam", AdamW: "adam"}
NUMERIC = frozenset((*SCALARS, "betas"))  # settings that are numbers
CHOOSING = frozenset(("weight_decay", "momentum", "betas"))  # those of them on whose values formulas depend
SWITCHES = frozenset(("nesterov", "maximize", "amsgrad", "decoupled_weight_decay"))
NOTHING: Mapping[str, Any] = types.MappingProxyType({})


def optimizer_of(fn: FunctionType) -> Optimizer | None:
    """The optimizer to which a learning rate scheduler bound a step that it wrapped; None for a plain method."""
    if not hasattr(fn, "_wrapped_by_lr_sched"):
        return None
    cells = dict(zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True))
    found: Optimizer | None = cells["opt_ref"].cell_contents() if "opt_ref" in cells else None
    return found


def hooked(optimizer: Any) -> bool:
    """Whether hooks see the step."""
    module = sys.modules[Optimizer.__module__]
    everywhere = (module._global_optimizer_pre_hooks, module._global_optimizer_post_hooks)
    return any((*everywhere, optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks))


def parts_of(optimizer: Optimizer) -> Iterator[Any]:
    """The optimizer, and what it holds that can be written: its dicts and lists, and the tensors among settings and states.
    Not the parameters."""
    module = sys.modules[Optimizer.__module__]
    yield from (module._global_optimizer_pre_hooks, module._global_optimizer_post_hooks)
    yield from (optimizer, vars(optimizer), *(v for v in vars(optimizer).values() if isinstance(v, (list, dict))))
    for group in optimizer.param_groups:
        yield group
        for value in group.values():
            yield value
            if isinstance(value, tuple):  # betas may be tensors
                yield from value
    for state in optimizer.state.values():
        yield state
        if isinstance(state, dict):
            yield from state.values()


def why_apart(optimizer: Optimizer) -> str | None:
    """Why a step's formulas are not those known here, in words; None when they are."""
    if type(optimizer) not in KINDS:
        return f"{type(optimizer).__qualname__} is no optimizer that is known"
    if hooked(optimizer):
        return "hooks see it"
    for group in optimizer.param_groups:
        found = why_group_apart(group)
        if found is not None:
            return found
    return None


class ParameterGroups:
    """The parameters of an optimizer, group by group, as a guard."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self.groups = [list(g["params"]) for g in optimizer.param_groups]

    def hold(self) -> bool:
        """Whether they are the same tensors."""
        groups = self.optimizer.param_groups
        return len(groups) == len(self.groups) and all(map(same_objects, (g["params"] for g in groups), self.groups))


class Numbers:
    """The memory in which a graph finds the numbers of a step. One is written only when it changed: on a GPU that is a
    launch."""

    def __init__(self, kind: str, wide: bool, device: torch.device) -> None:
        dtype = torch.float64 if wide else torch.float32
        self.tensor = torch.zeros(len(NUMBERS[kind]), dtype=dtype, device=device)
        self._values: list[float | None] = [None] * len(self.tensor)
        self._each = self.tensor.unbind()

    def set(self, numbers: Sequence[float]) -> torch.Tensor:
        """The tensor, with these in it."""
        for i, value in enumerate(numbers):
            if value != self._values[i]:
                self._each[i].fill_(value)
                self._values[i] = value
        return self.tensor


class GroupInputs:
    """One group: the parameters that are updated, and the tensors of their states, one list a name. ``given``: settings that
    the program writes to the group before its step, as they were at capture; they count instead of what the group holds."""

    def __init__(
        self, optimizer: Optimizer, at: int, parameters: Sequence[torch.Tensor], given: Mapping[str, Any] = NOTHING
    ) -> None:
        group = optimizer.param_groups[at]
        self.at, self.kind, self.given = at, KINDS[type(optimizer)], dict(given)
        self.everything, self.parameters = list(group["params"]), list(parameters)
        self.choices = [self._choice({**group, **given})]  # one a step within the graph
        self.counter = Counter() if self.kind == "adam" else None
        self._numbers: list[Numbers] = []  # one a step within the graph
        self._wide = any(p.dtype == torch.float64 for p in parameters)

    @property
    def choice(self) -> Choice:
        """That of the first step. Every step has its states."""
        return self.choices[0]

    def _choice(self, group: Mapping[str, Any]) -> Choice:
        return choice_of(self.kind, group, group.get("decoupled_weight_decay", False))

    def held(self, optimizer: Optimizer) -> list[dict[str, Any]]:
        """The state of each parameter."""
        return [optimizer.state[p] for p in self.parameters]

    def states(self, optimizer: Optimizer) -> list[torch.Tensor] | None:
        """The tensors of the states, all of one name before those of the next; None where some are missing."""
        if not self.choice.states:
            return []
        held = self.held(optimizer)
        wanted = [s.get(name) for name in self.choice.states for s in held]
        found = [t for t in wanted if isinstance(t, torch.Tensor)]
        return found if len(found) == len(wanted) else None

    def same_settings(self, optimizer: Optimizer) -> bool:
        """Whether the group is as it was, but for its numbers."""
        group = optimizer.param_groups[self.at]
        return same_objects(group["params"], self.everything) and self.chooses(optimizer, 0, self.given)

    def chooses(self, optimizer: Optimizer, step: int, given: Mapping[str, Any]) -> bool:
        """Whether a step's formulas are the same with these settings written to the group."""
        return self._choice({**optimizer.param_groups[self.at], **given}) == self.choices[step]

    def go_on(self, optimizer: Optimizer, step: int, given: Mapping[str, Any]) -> bool:
        """Settle the formulas of another step, with these settings; False where it has other states than the first."""
        choice = self._choice({**optimizer.param_groups[self.at], **given})
        self.choices[step:] = [choice]
        return choice.states == self.choice.states

    def follows(self, optimizer: Optimizer) -> bool:
        """Whether the counts of steps are known."""
        return self.counter is None or self.counter.follow(self.held(optimizer))

    def numbers(self, optimizer: Optimizer, ahead: int, given: Mapping[str, Any] = NOTHING) -> torch.Tensor:
        """The numbers of the next step but ``ahead``, before which the settings in ``given`` are written to the group."""
        while len(self._numbers) <= ahead:
            self._numbers.append(Numbers(self.kind, self._wide, self.parameters[0].device))
        count = 0.0 if self.counter is None else self.counter.value + 1 + ahead
        return self._numbers[ahead].set(numbers_of(self.kind, {**optimizer.param_groups[self.at], **given}, count))


class StepInputs:
    """All groups. :attr:`states` are the graph's inputs, found anew by each :meth:`holds`, which is the guard. ``given``: see
    :class:`GroupInputs`, one mapping a group."""

    def __init__(
        self, optimizer: Optimizer, parameters: Sequence[Sequence[torch.Tensor]], given: Sequence[Mapping[str, Any]]
    ) -> None:
        self.optimizer, self.moves = optimizer, 0  # how often states were exchanged
        self.groups = [GroupInputs(optimizer, i, ps, given[i]) for i, ps in enumerate(parameters)]
        for group in self.groups:
            make_states(optimizer, group)
        self.states = self._gathered() or []
        self._check = torch_private.BulkCheck(self.states).check if self.states else None
        self._aligned = alignment(self.states)

    @property
    def covered(self) -> bool:
        """Whether everything is there, counted, and each tensor lies in memory of its own."""
        updated = [*itertools.chain.from_iterable(g.parameters for g in self.groups), *self.states]
        wanted = sum(len(g.parameters) * len(g.choice.states) for g in self.groups)
        complete = len(self.states) == wanted and all(g.follows(self.optimizer) for g in self.groups if g.parameters)
        return complete and (not updated or covered(updated))

    def holds(self) -> bool:
        """Whether the formulas in the graph are those of a step now."""
        optimizer = self.optimizer
        if len(optimizer.param_groups) != len(self.groups) or why_apart(optimizer) is not None:
            return False
        if not all(g.same_settings(optimizer) for g in self.groups):
            return False
        found = self._gathered()
        if found is None or not all(g.follows(optimizer) for g in self.groups if g.parameters):
            return False
        moved = not same_objects(found, self.states)
        if self._check is not None and not self._check(*found):
            return False
        if alignment(found) != self._aligned or (moved and not self._apart(found)):
            return False
        self.moves += moved
        self.states = found
        return True

    def _gathered(self) -> list[torch.Tensor] | None:
        made: list[torch.Tensor] = []
        for group in self.groups:
            found = group.states(self.optimizer)
            if found is None:
                return None
            made += found
        return made

    def _apart(self, states: Sequence[torch.Tensor]) -> bool:
        return covered([*itertools.chain.from_iterable(g.parameters for g in self.groups), *states])

    def numbers(self, group: int, ahead: int, **given: Any) -> torch.Tensor:
        """An input of the graph: see :meth:`GroupInputs.numbers`."""
        return self.groups[group].numbers(self.optimizer, ahead, given)

    def chooses(self, group: int, step: int, **given: Any) -> bool:
        """A guard: see :meth:`GroupInputs.chooses`."""
        return self.groups[group].chooses(self.optimizer, step, given)

    def advance(self, steps: int) -> None:
        """Count the steps that the graph has done."""
        self.optimizer._opt_called = True  # type: ignore[attr-defined]  # schedulers ask
        for group in self.groups:
            if group.counter is not None and group.parameters:
                for _ in range(steps):
                    group.counter.advance()


class Uncovered:
    """Why a step breaks that is not covered: its states, as long as they are as they were."""

    def __init__(self, inputs: StepInputs) -> None:
        self.optimizer, self.parameters = inputs.optimizer, [p for g in inputs.groups for p in g.parameters]
        self.states = self._now()

    def _now(self) -> list[Any]:
        return [t for p in self.parameters for t in self.optimizer.state.get(p, {}).values()]

    def lasts(self) -> bool:
        """Whether no state was made or exchanged."""
        return same_objects(self._now(), self.states)


def make_states(optimizer: Optimizer, group: GroupInputs) -> None:
    """Make the states that are missing, as torch does before the first step. A velocity of zeros is as good as none, unless the
    first gradient is damped: then it stays missing, for torch's own first step to make."""
    settings = {**optimizer.param_groups[group.at], **group.given}
    for p in group.parameters:
        if group.kind == "adam":
            state = optimizer.state[p]
            if not state:
                wide = torch.get_default_dtype() == torch.float64
                state["step"] = torch.tensor(0.0, dtype=torch.float64 if wide else torch.float32)
                for name in group.choice.states:
                    state[name] = torch.zeros_like(p, memory_format=torch.preserve_format)
        elif group.choice.momentum and settings["dampening"] == 0 and optimizer.state[p].get("momentum_buffer") is None:
            optimizer.state[p]["momentum_buffer"] = torch.zeros_like(p, memory_format=torch.preserve_format)
