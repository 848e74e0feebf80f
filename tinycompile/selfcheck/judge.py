"""Which of two answers is wrong: compiled code's and eager's, compared with the same graph in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from tinycompile.ir.effects import is_random
from tinycompile.ir.graph import Graph, Node
from tinycompile.ops.record import OPS

SEEDS = "random_seeds"  # what it draws does not depend on the dtype of the arithmetic
_LOOSE = {torch.float16: 1e-3, torch.bfloat16: 1.6e-2, torch.float32: 1.3e-6, torch.float64: 1e-7}


@dataclass(frozen=True)
class Difference:
    """Result number ``result`` differs from eager's by more than float64 excuses. ``what`` says how."""

    result: int
    what: str

    def __str__(self) -> str:
        return f"result {self.result}: {self.what}"


Judge = Callable[[Sequence[Any]], Difference | None]  # of results: what is wrong with them
Norm = Callable[[torch.Tensor], torch.Tensor]
Near = Callable[[], Sequence[tuple[Sequence[Any], Sequence[Any]]]]
"""Eager's results and float64's for inputs that are an ulp off, call by call: worked out only where they are asked for."""


def in_float64(graph: Graph) -> Graph | None:
    """The graph with float64 where it names another float dtype; None where its random numbers would not be the same."""
    if any(is_random(n) and n.target != SEEDS for n in graph.nodes):
        return None
    return replace(graph, nodes=tuple(_widened(n) for n in graph.nodes))


def _widened(node: Node) -> Node:
    if node.kind not in ("call", "extern"):
        return node
    return replace(node, args=wide(node.args), kwargs=tuple((k, wide(v)) for k, v in node.kwargs))


def wide(value: Any) -> Any:
    """Floating tensors and dtypes as float64, in tuples too; anything else as it is."""
    if isinstance(value, torch.Tensor):
        return value.double() if value.is_floating_point() else value
    if isinstance(value, torch.dtype):
        return torch.float64 if value.is_floating_point else value
    return tuple(map(wide, value)) if isinstance(value, tuple) else value


def units(graph: Graph) -> float:
    """The widest bound in ulp of the graph's ops: what a result may be off beside twice eager's error."""
    return max((OPS[n.target].ulp for n in graph.nodes if n.kind == "call"), default=1.0)


def difference(
    got: Sequence[Any], eager: Sequence[Any], exact: Sequence[Any] | None, ulp: float = 4.0, near: Near | None = None
) -> Difference | None:
    """The first result that is not eager's. Values: equal for integers and bools, or what float64 gives; for floats the error
    against ``exact``, as maximum and as RMS over the tensor, is at most twice eager's (here, or what it usually is ``near``)
    and ``ulp`` units. Without ``exact``: close to eager's as torch.testing understands it."""
    if len(got) != len(eager):
        return Difference(0, f"{len(got)} results, eager has {len(eager)}")
    for i, (ours, theirs) in enumerate(zip(got, eager, strict=True)):
        true = None if exact is None else exact[i]
        tensors = isinstance(ours, torch.Tensor) and isinstance(theirs, torch.Tensor)
        what = _differs(ours, theirs, true, ulp) if tensors else _unequal(ours, theirs)
        if isinstance(what, _Far):
            what = "" if near is not None and what.is_usual([(e[i], x[i]) for e, x in near()]) else str(what)
        if what:
            return Difference(i, what)
    return None


def _unequal(ours: Any, theirs: Any) -> str:
    same = (type(ours) is type(theirs) and ours == theirs) or (ours != ours and theirs != theirs)
    return "" if same else f"{ours!r}, eager {theirs!r}"


def _differs(ours: torch.Tensor, theirs: torch.Tensor, true: torch.Tensor | None, ulp: float) -> str | _Far:
    for what in ("shape", "dtype", "device"):
        if getattr(ours, what) != getattr(theirs, what):
            return f"{what} {getattr(ours, what)}, eager {getattr(theirs, what)}"
    if ours.numel() == 0 or ours.layout != torch.strided:
        return ""
    ours, theirs = ours.detach(), theirs.detach()
    true = None if true is None else true.detach()
    if not theirs.is_floating_point():
        wrong = ours != theirs
        if true is not None:
            wrong &= ours != true.to(ours.dtype)
        return f"{int(wrong.sum())} of {wrong.numel()} values differ" if wrong.any() else ""
    return _special(ours, theirs, true) or _far(ours, theirs, true, ulp)


def _special(ours: torch.Tensor, theirs: torch.Tensor, true: torch.Tensor | None) -> str:
    """NaN and infinity stand where eager has them, or where float64 has."""
    odd = ~(ours.isfinite() & theirs.isfinite())
    wrong = odd & ~((ours == theirs) | (ours.isnan() & theirs.isnan()))
    if true is not None:
        rounded = true.to(ours.dtype)
        wrong &= ~((ours == rounded) | (ours.isnan() & rounded.isnan()) | (ours.isfinite() & true.isfinite()))
    return f"{int(wrong.sum())} of {wrong.numel()} values differ in being NaN or infinite" if wrong.any() else ""


_NORMS: tuple[Norm, ...] = (lambda x: x.abs().amax(), lambda x: x.square().mean().sqrt())


@dataclass(frozen=True)
class _Far:
    """An error that eager does not excuse here. By norm: the error, what is allowed, and what of it eager's own error adds."""

    errors: tuple[tuple[float, float, float], ...]

    def is_usual(self, near: Sequence[tuple[Any, Any]]) -> bool:
        """Whether twice the error that eager has in the middle one of these calls is enough. A sum that cancels is exact by
        luck now and then, and whoever adds the same terms in another order is not."""
        for norm, (error, allowed, hers) in zip(_NORMS, self.errors, strict=True):
            found = sorted(_error(norm, *pair) for pair in near)
            usual = found[len(found) // 2] if found else 0.0
            if error > allowed + 2 * max(usual - hers, 0.0):
                return False
        return True

    def __str__(self) -> str:
        error, allowed = next((e, a) for e, a, _ in self.errors if e > a)
        return f"an error of {error:.3g} against float64, allowed is {allowed:.3g}"


def _error(norm: Norm, result: Any, exact: Any) -> float:
    if not isinstance(result, torch.Tensor) or result.shape != exact.shape:
        return 0.0
    error = (result.detach().double() - exact.detach().double())[result.isfinite() & exact.isfinite()]
    return float(norm(error)) if error.numel() else 0.0


def _far(ours: torch.Tensor, theirs: torch.Tensor, true: torch.Tensor | None, ulp: float) -> str | _Far:
    keep = ours.isfinite() & theirs.isfinite()
    if true is not None:
        keep &= true.isfinite()
    mine, hers = ours[keep].double(), theirs[keep].double()
    if not mine.numel():
        return ""
    info = torch.finfo(ours.dtype)
    reference = hers if true is None else true[keep].double()
    units = ulp * info.eps if true is not None else max(_LOOSE[ours.dtype], 16 * info.eps)
    errors = []
    for norm in _NORMS:
        eagers = float(norm(hers - reference))
        allowed = max(2 * eagers + float(norm(reference)) * units, info.tiny)
        errors.append((float(norm(mine - reference)), allowed, eagers))
    return _Far(tuple(errors)) if any(error > allowed for error, allowed, _ in errors) else ""
