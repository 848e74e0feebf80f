"""``Checked``: a compiled graph that is compared with eager now and then, and is eager from the first difference on."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from tinycompile.base.errors import KernelError
from tinycompile.base.logs import log, warn
from tinycompile.compiler import CompiledGraph
from tinycompile.ir.graph import Graph
from tinycompile.selfcheck.blame import blame
from tinycompile.selfcheck.repro import write_repro
from tinycompile.selfcheck.trial import Fn, Trial, compare

Policy = str | float | None


def check_policy(policy: Policy) -> None:
    """Raises ValueError for what ``options={"verify": ...}`` does not take."""
    number = isinstance(policy, (int, float)) and not isinstance(policy, bool) and 0 <= policy <= 1
    if policy is not None and policy not in ("first", "always") and not number:
        raise ValueError(f'verify must be "first", "always" or a share of calls between 0 and 1, not {policy!r}')


class Checked:
    """Called like the compiled graph. ``policy``: compare the ``first`` call, ``always``, or this share of calls (the first
    among them). ``eager``: makes what runs the captured graph by torch, attached to autograd as the compiled code is.

    A compared call runs the compiled code and the captured graph on clones of its inputs, gradients included, with the same
    random numbers; the program's own function is not run. At a difference that float64 does not excuse there is one warning,
    with the stage at fault and a script that shows it."""

    def __init__(self, compiled: CompiledGraph, graph: Graph, policy: Policy, eager: Callable[[], Fn]) -> None:
        self.compiled, self.graph, self.policy = compiled, graph, policy
        self._make_eager = eager
        self.checks = 0
        self.refuted: str = ""
        self._eager: Fn | None = None
        self._draw = random.Random()  # not the program's own sequence

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        if not self.refuted and self._due():
            self._check(inputs)
        if not self.refuted:
            return self.compiled.call(*inputs)
        if self._eager is None:
            self._eager = self._make_eager()
        return self._eager(*inputs)

    def _due(self) -> bool:
        if self.policy == "always" or self.checks == 0:
            return True
        return not isinstance(self.policy, str) and self._draw.random() < float(self.policy or 0)

    def _check(self, inputs: Sequence[Any]) -> None:
        self.checks += 1
        trial = Trial(inputs, torch.is_grad_enabled())
        try:
            found, judge = compare(trial, self.graph, self.compiled.call)
        except KernelError:
            return  # the call itself will meet it, and be redone eagerly
        log("verify", f"{self.graph.name}: {found or 'as eager'}")
        if found is None:
            return
        where = blame(self.graph, self.compiled, trial, judge)
        self.refuted = f"{found}; at fault: {where}"
        folder = write_repro(
            Path(tempfile.mkdtemp(prefix="tinycompile-verify-")), self.graph, trial, self.compiled, self.refuted
        )
        warn(
            f"compiled {self.graph.name} is not eager's: {self.refuted}. It runs eagerly from here on. To see it again: "
            f"python {folder / 'repro.py'}"
        )
