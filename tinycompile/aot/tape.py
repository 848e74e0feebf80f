"""``Tape``: a GraphBuilder that also notes, for each op that a gradient flows through, what its reverse needs.

Records without a formula are recorded as the ops through which they are differentiated, mostly their parts. What has
neither formula nor parts becomes an opaque pair: torch's own autograd runs both halves (see ``opaque.py``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from tinycompile.aot import opaque
from tinycompile.base import shapes
from tinycompile.base.device import Device
from tinycompile.base.expr import Expr
from tinycompile.base.meta import TensorMeta
from tinycompile.eager.fake import FakeTensor
from tinycompile.ir.builder import GraphBuilder
from tinycompile.ir.graph import Location, Ref
from tinycompile.ir.requires_grad import CUT, dense, has_gradient
from tinycompile.ops.gradients import compared, differentiable_form, keeps_arguments_alone
from tinycompile.ops.record import Metas, Op, Vjp


@dataclass(frozen=True, slots=True)
class Step:
    """One op with a formula. ``needs`` as :class:`~tinycompile.ops.record.Vjp` takes them."""

    name: str
    vjp: Vjp
    args: tuple[Any, ...]
    results: tuple[FakeTensor, ...]
    needs: tuple[Any, ...]
    location: Location | None


@dataclass(frozen=True, slots=True)
class PartsStep:
    """One op of which torch keeps arguments alone, but that is differentiated through others (``form``): in the backward these
    are recorded again, of what the arguments are by then."""

    name: str
    form: Callable[..., Any]
    args: tuple[Any, ...]
    results: tuple[FakeTensor, ...]
    location: Location | None


@dataclass(frozen=True, slots=True)
class OpaqueStep:
    """One call that torch differentiates. ``inputs``: the tensors that want a gradient."""

    token: FakeTensor
    inputs: tuple[FakeTensor, ...]
    results: tuple[FakeTensor, ...]
    location: Location | None


AnyStep = Step | PartsStep | OpaqueStep


class Tape(GraphBuilder):
    """``live`` names the values that require grad. After ``close()`` ops are recorded, and noted no more. ``exposed``: inputs
    may be written to before the reverse runs; then ``past`` names the calls that stand for what a value was before."""

    def __init__(self, exposed: bool = False) -> None:
        super().__init__()
        self.exposed = exposed
        self.past: set[str] = set()
        self.steps: list[AnyStep] = []
        self.live: set[str] = set()
        self._open = True

    def close(self) -> None:
        """The forward is over: what comes is its reverse."""
        self._open = False

    def reopen(self) -> None:
        """A reverse in the middle of a program is over: the program goes on."""
        self._open = True

    @property
    def count(self) -> int:
        """How many nodes were made so far: a mark in time for :meth:`is_newer`."""
        return self._serial

    @staticmethod
    def is_newer(ref: Ref, mark: int) -> bool:
        """Whether a node was made since ``count`` was ``mark``."""
        return int(ref.name[1:]) >= mark

    def requires_grad(self, ref: Ref) -> bool:
        """Whether a gradient is wanted of a value: what its fake tensor says of itself."""
        return ref.name in self.live

    def as_it_was(self, value: FakeTensor) -> FakeTensor:
        """A value as it was when the forward ran."""
        if not self.exposed:
            return value
        ref = self._append(f"{self.wish(value.ref)}_then", "call", "identity", (value.ref,), meta=value.meta)
        self.past.add(ref.name)
        return FakeTensor(value.meta, self, ref)

    def needs(self, value: Any) -> Any:
        """Whether a tensor requires grad; for a list, one flag an item."""
        if isinstance(value, FakeTensor):
            return value.ref.name in self.live
        return tuple(self.needs(v) for v in value) if isinstance(value, (tuple, list)) else False

    # --- records ---

    def record(self, op: Op, args: tuple[Any, ...], metas: Metas) -> Ref | tuple[Ref, ...]:
        """A call of a record, or of its parts."""
        needs = tuple(self.needs(a) for a in args)
        if not self._open or op.name in CUT or not any(_flat(needs)) or not _differentiable(metas):
            return super().record(op, args, metas)
        if op.vjp is not None:
            refs = super().record(op, args, metas)
            results = self._fakes(refs, metas)
            self.steps.append(Step(op.name, op.vjp, args, results, needs, self.location))
            self._enliven(results)
            return refs
        form = differentiable_form(op)
        if form is not None:
            before = len(self.steps)
            refs_of_parts = self._expand(form, args, metas)
            if refs_of_parts is not None:
                torchs = any(isinstance(s, OpaqueStep) for s in self.steps[before:])
                if self.exposed and not torchs and keeps_arguments_alone(op, args):
                    results = self._fakes(refs_of_parts, metas)
                    self.steps[before:] = [PartsStep(op.name, form, args, results, self.location)]
                return refs_of_parts
        return self._opaque("call", op.name, args, {}, metas)

    @contextlib.contextmanager
    def again(self, step: PartsStep) -> Iterator[tuple[tuple[FakeTensor, ...], list[AnyStep]]]:
        """The parts of a call recorded once more: their results, and the steps that lead to them. What their formulas take of
        the forward is of this one."""
        outer, exposed = self.steps, self.exposed
        self.steps, self._open, self.exposed = [], True, False
        made = step.form(*step.args)
        inner, self.steps, self._open = self.steps, outer, False
        yield tuple(made) if isinstance(made, (tuple, list)) else (made,), inner
        self.exposed = exposed

    def _fakes(self, refs: Any, metas: Any) -> tuple[FakeTensor, ...]:
        if isinstance(refs, Ref):
            return (FakeTensor(metas, self, refs),)
        return tuple(FakeTensor(m, self, r) for m, r in zip(metas, refs, strict=True))

    def _enliven(self, results: tuple[FakeTensor, ...]) -> None:
        self.live.update(r.ref.name for r in results if _differentiable(r.meta))

    def _expand(self, form: Callable[..., Any], args: tuple[Any, ...], metas: Metas) -> Any:
        """The refs of the results of other ops that mean the same. None, with nothing recorded, when they decline or give
        other metadata."""
        nodes, steps = len(self.nodes), len(self.steps)
        made = form(*args)
        if made is not NotImplemented:
            results = tuple(made) if isinstance(metas, tuple) else (made,)
            if tuple(r.meta for r in results) == (metas if isinstance(metas, tuple) else (metas,)):
                refs = tuple(r.ref for r in results)
                return refs if isinstance(metas, tuple) else refs[0]
        for name in list(self.nodes)[nodes:]:
            del self.nodes[name]
            self.live.discard(name)
        del self.steps[steps:]
        return None

    # --- calls that torch differentiates ---

    def call_extern(self, path: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], metas: Any) -> Any:
        """An extern node: plain where no gradient flows, else the forward half of an opaque pair. Returns refs."""
        reached = any(_flat(tuple(self.needs(a) for a in (*args, *kwargs.values()))))
        if self._open and reached and path not in CUT and _differentiable(metas):
            return self._opaque("extern", path, args, kwargs, metas)
        return self._append_results(path.rpartition(".")[2], "extern", path, args, kwargs, metas)

    def _opaque(self, kind: str, target: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], metas: Any) -> Any:
        tensors = list(tensors_in((args, tuple(kwargs.values()))))
        flags = opaque.differentiable_results(
            kind, target, self._specs(args), tuple((k, self._specs(v)) for k, v in kwargs.items())
        )
        several = metas if isinstance(metas, tuple) else (metas,)
        if flags is not None and not any(flags):
            return self._append_results(target.rpartition(".")[2], kind, target, args, kwargs, metas)
        apart = compared(target, args)
        wanted = tuple(t is not apart and self.needs(t) for t in tensors)
        token = TensorMeta.contiguous((0,), torch.uint8, several[0].device)
        given = (kind, target, wanted, args, tuple(kwargs.items()))
        hint = f"{target.rpartition('.')[2]}_forward"
        refs = self._append_results(hint, "extern", opaque.FORWARD, given, {}, (*several, token))
        assert isinstance(refs, tuple)
        results = self._fakes(refs[:-1], several)
        inputs = tuple(t for t, w in zip(tensors, wanted, strict=True) if w)
        self.steps.append(OpaqueStep(FakeTensor(token, self, refs[-1]), inputs, results, self.location))
        self.live.update(r.ref.name for i, r in enumerate(results) if _differentiable(r.meta) and (flags is None or flags[i]))
        return refs[:-1] if isinstance(metas, tuple) else refs[0]

    def _specs(self, value: Any) -> Any:
        """Arguments as :func:`opaque.differentiable_results` takes them."""
        if isinstance(value, FakeTensor):
            sizes, strides = (tuple(map(shapes.hint, d)) for d in (value.meta.shape, value.meta.strides))
            return opaque.Spec(sizes, strides, value.meta.dtype, self.needs(value))
        if isinstance(value, (tuple, list)):
            return tuple(self._specs(v) for v in value)
        if isinstance(value, Device):
            return torch.device("meta")
        return shapes.hint(value) if isinstance(value, Expr) else value

    def pull_back(self, step: OpaqueStep, grads: tuple[FakeTensor | None, ...]) -> tuple[FakeTensor, ...]:
        """The backward half of an opaque pair: one gradient an input."""
        metas = tuple(dense(t.meta) for t in step.inputs)
        made = self._append_results(
            "backward", "extern", opaque.BACKWARD, (step.token, *grads), {}, metas if len(metas) > 1 else metas[0]
        )
        return self._fakes(made, metas if len(metas) > 1 else metas[0])


def _flat(flags: Any) -> Iterator[bool]:
    for f in flags:
        if isinstance(f, tuple):
            yield from _flat(f)
        else:
            yield f


def tensors_in(value: Any) -> Iterator[FakeTensor]:
    """Every tensor in an argument, in order."""
    if isinstance(value, FakeTensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for v in value:
            yield from tensors_in(v)


def _differentiable(metas: Any) -> bool:
    """Whether some result has a dtype that gradients have."""
    if isinstance(metas, tuple):
        return any(_differentiable(m) for m in metas)
    return isinstance(metas, TensorMeta) and has_gradient(metas)
