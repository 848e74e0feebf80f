"""``CompiledStep``: the step of torch's SGD, Adam and AdamW over all parameters in a few kernels.

The step is not captured from bytecode: its meaning is known, so its graph is built from ``ops/optimizer_formulas.py`` and takes
the same pipeline as every other. Horizontal fusion makes few launches of it, each of which reads and writes each tensor once.

torch itself runs the first step, which makes the state, and whatever is not covered: other optimizers and classes derived from
these, hooks, closures' gradients aside, ``capturable``, ``fused`` and ``differentiable`` groups, sparse or complex tensors.
"""

from __future__ import annotations

import functools
import threading
import types
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch.autograd.graph import increment_version
from torch.optim import Optimizer

from tinycompile.base import torch_private
from tinycompile.base.address_words import WatchedAddresses
from tinycompile.base.artifacts import Artifacts
from tinycompile.base.collector import without_collections
from tinycompile.base.config import config
from tinycompile.base.device import Device
from tinycompile.base.errors import BackendError
from tinycompile.base.internal_frames import internal_frame
from tinycompile.base.logs import log, warn_once
from tinycompile.base.meta import TensorMeta
from tinycompile.base.tensor_words import WatchedTensors
from tinycompile.compiler import CompiledGraph
from tinycompile.eager.fake import FakeTensor, tracing
from tinycompile.eager.optimizer_inputs import KINDS, Numbers, hooked, optimizer_of
from tinycompile.eager.optimizer_tensors import Counter, Standing, Tensors, covered, gather, why_group_apart
from tinycompile.ir.builder import GraphBuilder
from tinycompile.ir.effects import COPY
from tinycompile.ir.graph import Graph
from tinycompile.ops.calls import ops
from tinycompile.ops.optimizer_formulas import NUMBERS, Choice, choice_of, numbers_of, updated

MOST_PLANS = 16  # of one step: beyond it torch's own runs
CompileFn = Callable[[Graph, Sequence[Any], Artifacts], CompiledGraph]


class _Fit:
    """Which tensors do in the place of some: as many, alike to torch's check, and aligned to 16 bytes as those are."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self._count, self._check = len(tensors), torch_private.BulkCheck(tensors).check
        self._addresses = torch_private.Addresses()  # where they lay at the step before
        self._aligned = self._addresses.aligned(tensors)

    def holds(self, tensors: list[torch.Tensor]) -> bool:
        """Whether these do."""
        return self._count == len(tensors) and self._check(*tensors) and self._addresses.aligned(tensors) == self._aligned


@dataclass(frozen=True)
class StepPlan:
    """A compiled step of one group. ``numbers``: what the kernels read."""

    choice: Choice
    every: _Fit
    grads: _Fit
    compiled: CompiledGraph
    numbers: Numbers

    def fits(self, choice: Choice, tensors: Tensors) -> bool:
        """Whether it is the step of these tensors."""
        return self.choice == choice and self.every.holds(tensors.flat)

    def fits_again(self, choice: Choice, tensors: Tensors) -> bool:
        """The same of tensors of which the gradients alone may be others than those that it fitted."""
        return self.choice == choice and self.grads.holds(tensors.grads)

    def run(self, tensors: Tensors, numbers: Sequence[float]) -> None:
        """Update everything."""
        self.compiled.call(*tensors.flat, self.numbers.set(numbers))
        increment_version(tensors.updated)


class _Updated:
    """The parameters and states that a plan fitted, to be told whether each is still what and where it was."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._addresses, self._signatures = WatchedAddresses.of(tensors), WatchedTensors(tensors)

    def unchanged(self) -> bool:
        """Whether that is so, as far as it can be told."""
        return self._addresses is not None and self._addresses() and self._signatures.check()


@dataclass
class _Group:
    """What a group of an optimizer is known for from the step before."""

    _PATIENCE: ClassVar[int] = 4

    counter: Counter = field(default_factory=Counter)
    standing: Standing | None = None
    plan: StepPlan | None = None
    updated: _Updated | None = None
    looks: int = 0

    def gather(self, optimizer: Optimizer, settings: Mapping[str, Any], names: Sequence[str]) -> Tensors | None:
        """See :func:`~tinycompile.eager.optimizer_tensors.gather`."""
        found = None if self.standing is None else self.standing.now(optimizer, settings, names)
        return gather(optimizer, settings, names) if found is None else found

    def plan_again(self, choice: Choice, tensors: Tensors) -> StepPlan | None:
        """The plan of the step before, where parameters and states are as that found them."""
        if self.standing is None or self.plan is None or self.updated is None or not self.standing.gave(tensors):
            return None
        return self.plan if self.updated.unchanged() and self.plan.fits_again(choice, tensors) else None

    def stand(
        self, optimizer: Optimizer, settings: Mapping[str, Any], names: Sequence[str], tensors: Tensors, plan: StepPlan
    ) -> None:
        """The next step may find all but the gradients as this one did."""
        if self.standing is None or not self.standing.gave(tensors):
            self.standing = Standing.of(optimizer, settings, names, tensors)
        watch = self.standing is not None and self.looks < self._PATIENCE  # what changes again and again is looked at whole
        self.plan, self.updated, self.looks = plan, _Updated(tensors.updated) if watch else None, self.looks + watch


Work = tuple[Mapping[str, Any], Tensors, StepPlan, Counter | None]


def compiled_step(fn: Any, receiver: Any, compile_one: CompileFn) -> Any:
    """The compiled form of an optimizer's step, bound to ``receiver``, or to the optimizer of the scheduler that wrapped it."""
    optimizer = optimizer_of(fn)
    made = CompiledStep(fn if optimizer is None else fn.__wrapped__, compile_one)
    bound = receiver if optimizer is None else optimizer
    return made if bound is None else types.MethodType(made, bound)


class CompiledStep:
    """Called as ``Optimizer.step``: ``step(optimizer, closure=None)``. ``kernels`` of all plans are in :attr:`compiled`."""

    def __init__(self, step: Callable[..., Any], compile_one: CompileFn) -> None:
        functools.update_wrapper(self, step)
        self.original, self._compile_one = step, compile_one
        self._plans: tuple[StepPlan, ...] = ()
        self._groups: weakref.WeakKeyDictionary[Optimizer, dict[int, _Group]] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    @internal_frame
    def __call__(self, optimizer: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        kind = KINDS.get(type(optimizer))
        if kind is None or hooked(optimizer):
            return self.original(optimizer, closure)
        optimizer._opt_called = True  # type: ignore[attr-defined]  # schedulers ask
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with torch.no_grad():
            work = self._work(optimizer, kind)
            if work is None:
                self.original(optimizer)
                return loss
            for group, tensors, plan, counter in work:
                plan.run(tensors, numbers_of(kind, group, 0.0 if counter is None else counter.advance()))
        return loss

    @property
    def compiled(self) -> list[CompiledGraph]:
        """What was compiled, oldest first."""
        return [p.compiled for p in self._plans]

    def _work(self, optimizer: Optimizer, kind: str) -> list[Work] | None:
        """Each group with its tensors and plan, before anything is changed; None where torch's own step is to run."""
        work: list[Work] = []
        groups = self._groups.setdefault(optimizer, {})
        for at, group in enumerate(optimizer.param_groups):
            if why_group_apart(group) is not None:
                return None
            choice = choice_of(kind, group, group.get("decoupled_weight_decay", False))
            known = groups.setdefault(at, _Group())
            tensors = known.gather(optimizer, group, choice.states)
            if tensors is None:
                return None
            if not tensors.parameters:
                continue
            counter = None
            if kind == "adam":
                counter = known.counter
                if not counter.follow(tensors.held):
                    return None
            plan = known.plan_again(choice, tensors)
            if plan is None:
                plan = self._plan(choice, tensors)
                if plan is None:
                    return None
                known.stand(optimizer, group, choice.states, tensors, plan)
            work.append((group, tensors, plan, counter))
        return work

    def _plan(self, choice: Choice, tensors: Tensors) -> StepPlan | None:
        """The plan for these tensors, made if there is none; None where torch's own step is to run."""
        for plan in self._plans:
            if plan.fits(choice, tensors):
                return plan
        if not covered(tensors.flat):
            return None
        if len(self._plans) >= MOST_PLANS:
            warn_once(f"an optimizer's step was compiled {MOST_PLANS} times and runs as torch's own from here on")
            return None
        with self._lock:
            try:
                made = self._make(choice, tensors)
            except BackendError:
                raise
            except Exception as error:  # our fault must not stop a training run
                if config.on_error == "raise":
                    raise
                warn_once(f"an optimizer's step could not be compiled ({type(error).__name__}: {error}); torch's own runs")
                return None
            self._plans = (*self._plans, made)
        return made

    @without_collections
    def _make(self, choice: Choice, tensors: Tensors) -> StepPlan:
        flat = tensors.flat
        numbers = Numbers(choice.kind, any(p.dtype == torch.float64 for p in tensors.parameters), flat[0].device)
        graph = step_graph(choice, [_meta(t) for t in flat], len(tensors.parameters), _meta(numbers.tensor))
        compiled = self._compile_one(graph, [*flat, numbers.tensor], Artifacts())
        log("graph", f"{graph.name}: a step over {len(tensors.parameters)} parameters")
        return StepPlan(choice, _Fit(flat), _Fit(tensors.grads), compiled, numbers)


def step_graph(choice: Choice, metas: Sequence[TensorMeta], count: int, numbers: TensorMeta) -> Graph:
    """The graph of a step over ``count`` parameters: it takes them, their gradients, each kind of state in turn, and the
    numbers; it returns nothing, and writes the parameters and states."""
    builder = GraphBuilder()
    words = ("p", "grad", *choice.states)
    given = [builder.placeholder(f"{words[i // count]}_{i % count}", meta) for i, meta in enumerate(metas)]
    held = builder.placeholder("numbers", numbers)
    writes: list[tuple[FakeTensor, FakeTensor]] = []
    with tracing(builder):
        made: dict[Any, FakeTensor] = {}

        def number(name: str, dtype: torch.dtype) -> FakeTensor:
            if (name, dtype) not in made:
                one = ops.select(held, 0, NUMBERS[choice.kind].index(name))
                made[name, dtype] = one if one.dtype == dtype else ops.to(one, dtype)
            return made[name, dtype]

        for k in range(count):
            p, grad, *states = given[k::count]
            writes += zip((p, *states), updated(choice, number, p, grad, states), strict=True)
        for target, value in writes:
            builder.extern(COPY, (target, value), {}, target.meta)
    return builder.finish(f"{choice.kind}_step", ())


def _meta(t: torch.Tensor) -> TensorMeta:
    return TensorMeta(tuple(t.shape), t.stride(), t.dtype, Device.of(t.device), 0 if t.data_ptr() % 16 == 0 else 1)
