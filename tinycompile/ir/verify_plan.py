"""Checks that a Plan keeps its own rules. Raises VerifyError naming the rule, the step and the buffer."""

from __future__ import annotations

from tinycompile.base.errors import VerifyError
from tinycompile.ir.loops import Buffer, ExternCall, Load, Store, views_in
from tinycompile.ir.plan import Alloc, Choice, Free, Kernel, Plan
from tinycompile.ir.verify_loops import verify_nest


def verify_plan(plan: Plan) -> None:
    """Check lifetimes, reuse, that all that is read or returned was written, and every kernel's nest."""
    check = _PlanCheck(plan)
    for step in plan.steps:
        if isinstance(step, Alloc):
            check.alloc(step)
        elif isinstance(step, Free):
            check.free(step)
        elif isinstance(step, Kernel):
            check.kernel(step)
        elif isinstance(step, ExternCall):
            check.extern(step)
        elif isinstance(step, Choice):
            check.choice(step)
        else:
            raise VerifyError(f"{plan.name}: unknown step {step!r}")
    check.outputs()


class _PlanCheck:
    """Walks a plan in order. ``live``: buffers that have memory; ``written``: those that have contents."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.buffers = {b.name: b for b in plan.buffers}
        if len(self.buffers) != len(plan.buffers):
            raise VerifyError(f"{plan.name}: two buffers have one name")
        self.sizes = {s.symbol for s in plan.sizes}
        self.live = {b.name for b in plan.buffers if b.role == "input"}
        self.written = set(self.live)
        self.made = set(self.live)
        self.from_calls: set[str] = set()
        self.names: set[str] = set()
        self.ending: list[str] = []  # buffers whose memory the next kernel takes over while it reads them

    def buffer(self, name: str, step: str) -> Buffer:
        if name not in self.buffers:
            raise VerifyError(f"{step}: unknown buffer {name}")
        return self.buffers[name]

    def alloc(self, step: Alloc) -> None:
        new = self.buffer(step.buffer, "alloc")
        if step.buffer in self.made:
            raise VerifyError(f"alloc: {step.buffer} exists already")
        if step.reuses is not None:
            old = self.buffer(step.reuses, f"alloc {step.buffer}")
            self.reusable(old, new, step.in_place)
            if step.in_place:
                self.ending.append(step.reuses)
            else:
                self.end(step.reuses, f"alloc {step.buffer}")
        self.made.add(step.buffer)
        self.live.add(step.buffer)

    def reusable(self, old: Buffer, new: Buffer, in_place: bool) -> None:
        rule = f"alloc {new.name}: it cannot take over {old.name}: "
        given = old.role == "input" and not (in_place and old.name in self.plan.donated)
        if given or old.name in _returned(self.plan):
            raise VerifyError(f"{rule}that is an {'input' if old.role == 'input' else 'output'}")
        if old.name in self.from_calls:
            raise VerifyError(f"{rule}a library call made it or saw it, and may have kept a view of it")
        a, b = old.meta, new.meta
        same = (a.shape, a.strides) == (b.shape, b.strides) or (in_place and a.numel == b.numel)
        if not same or (a.dtype, a.device) != (b.dtype, b.device):
            raise VerifyError(f"{rule}{a} is not {b}")

    def free(self, step: Free) -> None:
        self.buffer(step.buffer, "free")
        given = self.buffers[step.buffer].role == "input" and step.buffer not in self.plan.donated
        if given or step.buffer in _returned(self.plan):
            raise VerifyError(f"free: {step.buffer} is an input or an output")
        self.end(step.buffer, "free")

    def end(self, name: str, step: str) -> None:
        if name not in self.live:
            raise VerifyError(f"{step}: {name} is not alive")
        self.live.discard(name)
        self.written.discard(name)

    def kernel(self, k: Kernel) -> None:
        name = k.nest.name
        self.unique(name)
        reads = {s.buffer for n in k.nests for s in n.body if isinstance(s, Load)}
        writes = {s.buffer for n in k.nests for s in n.body if isinstance(s, Store)}
        if set(k.reads) != reads or len(set(k.reads)) != len(k.reads):
            raise VerifyError(f"kernel {name}: it says that it reads {list(k.reads)}, but reads {sorted(reads)}")
        if set(k.writes) != writes or len(set(k.writes)) != len(k.writes):
            raise VerifyError(f"kernel {name}: it says that it writes {list(k.writes)}, but writes {sorted(writes)}")
        if not writes:
            raise VerifyError(f"kernel {name}: it writes nothing")
        for b in sorted(reads | writes):
            self.buffer(b, f"kernel {name}")
            if b not in self.live:
                raise VerifyError(f"kernel {name}: {b} has no memory here")
        devices = {self.buffers[b].meta.device for b in writes}
        if len(devices) > 1:
            raise VerifyError(f"kernel {name}: it writes to several devices {sorted(map(str, devices))}")
        empty = {b for b in reads if self.empty(b)}
        for nest in k.nests:
            verify_nest(nest, self.buffers, self.sizes, self.written | empty)
        if k.more and len(writes) != sum(len({s.buffer for s in n.body if isinstance(s, Store)}) for n in k.nests):
            raise VerifyError(f"kernel {name}: two of its nests write to one buffer")
        self.written |= writes
        for old in self.ending:
            if old not in reads:
                raise VerifyError(f"kernel {name}: it takes the memory of {old} in place, which it does not read")
            self.end(old, name)
        self.ending.clear()

    def extern(self, call: ExternCall) -> None:
        self.unique(call.name, buffers_too=False)
        for view in views_in((call.args, tuple(v for _, v in call.kwargs))):
            self.buffer(view.buffer, call.name)
            self.readable(view.buffer, call.name)
            self.from_calls.add(view.buffer)
        for name in call.outputs:
            if name is not None:
                self.buffer(name, call.name)
                if name in self.made:
                    raise VerifyError(f"{call.name}: {name} exists already")
                for held in (self.made, self.live, self.written, self.from_calls):
                    held.add(name)

    def choice(self, choice: Choice) -> None:
        """Both ways write the same: first the one kernel, on a copy of what is known, then the library's steps."""
        before = {name: set(getattr(self, name)) for name in _SETS}
        self.made |= set(choice.lasting)
        self.live |= set(choice.lasting)
        self.kernel(choice.product)
        if set(choice.product.writes) != set(choice.writes) | set(choice.lasting):
            raise VerifyError(f"{choice.name}: its kernel writes {sorted(choice.product.writes)}, its other way something else")
        for name, held in before.items():
            setattr(self, name, held)
        for step in choice.library:
            self.extern(step) if isinstance(step, ExternCall) else self.kernel(step)
        for name in choice.inside:
            self.end(name, choice.name)

    def readable(self, name: str, step: str) -> None:
        if name not in self.live:
            raise VerifyError(f"{step}: {name} has no memory here")
        if name not in self.written and not self.empty(name):
            raise VerifyError(f"{step}: {name} is read before it is written")

    def unique(self, name: str, buffers_too: bool = True) -> None:
        if name in self.names or (buffers_too and name in self.buffers):
            raise VerifyError(f"{self.plan.name}: the name {name} is taken")
        self.names.add(name)

    def empty(self, name: str) -> bool:
        return any(isinstance(n, int) and n == 0 for n in self.buffers[name].meta.shape)

    def outputs(self) -> None:
        for view in views_in(self.plan.outputs):
            self.buffer(view.buffer, "return")
            self.readable(view.buffer, "return")


_SETS = ("live", "written", "made", "from_calls")


def _returned(plan: Plan) -> set[str]:
    return {v.buffer for v in views_in(plan.outputs)}
