"""What one step of torch's optimizers does to one parameter, as ops: the formulas of torch's single-tensor code.

Every number that may change from step to step (the learning rate, what the step count makes of the betas) is a value of a
small tensor of the dtype in which torch computes: so a scheduler causes no recompile. ``Choice`` holds what does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tinycompile.ops.calls import ops, widen
from tinycompile.ops.meta_rules import opmath


@dataclass(frozen=True, slots=True)
class Choice:
    """The parts of a group's settings that choose code. ``lerp_low``: how torch words ``lerp`` for a weight below 0.5."""

    kind: str  # "sgd" or "adam"
    decay: bool = False
    decoupled: bool = False
    maximize: bool = False
    amsgrad: bool = False
    momentum: bool = False
    nesterov: bool = False
    lerp_low: bool = True

    @property
    def states(self) -> tuple[str, ...]:
        """The tensors of a parameter's state that are updated, by their names in ``optimizer.state[p]``."""
        if self.kind == "sgd":
            return ("momentum_buffer",) if self.momentum else ()
        return ("exp_avg", "exp_avg_sq", *(("max_exp_avg_sq",) if self.amsgrad else ()))


# The numbers that the formulas read, in the order in which they lie in memory.
NUMBERS: Mapping[str, tuple[str, ...]] = {
    "sgd": ("lr", "decay", "momentum", "undampened"),
    "adam": ("step_size", "decay", "shrink", "beta1", "one_minus_beta1", "beta2", "one_minus_beta2", "root_correction2", "eps"),
}


def choice_of(kind: str, group: Mapping[str, Any], decoupled: bool) -> Choice:
    """What a parameter group's settings choose."""
    decay = group["weight_decay"] != 0
    if kind == "sgd":
        momentum = group["momentum"] != 0
        return Choice("sgd", decay, False, group["maximize"], False, momentum, momentum and group["nesterov"])
    low = abs(1 - group["betas"][0]) < 0.5
    return Choice("adam", decay, decay and decoupled, group["maximize"], group["amsgrad"], lerp_low=low)


def numbers_of(kind: str, group: Mapping[str, Any], step: float) -> tuple[float, ...]:
    """:data:`NUMBERS` for the step with this count (1 at the first), in Python's own arithmetic, as torch has them."""
    lr = float(group["lr"])
    if kind == "sgd":
        return lr, group["weight_decay"], group["momentum"], 1 - group["dampening"]
    beta1, beta2 = (float(b) for b in group["betas"])
    return (
        lr / (1 - beta1**step), group["weight_decay"], 1 - lr * group["weight_decay"], beta1, 1 - beta1, beta2, 1 - beta2,
        (1 - beta2**step) ** 0.5, group["eps"],
    )  # fmt: skip


def updated(choice: Choice, number: Callable[[str, Any], Any], p: Any, grad: Any, states: Sequence[Any]) -> tuple[Any, ...]:
    """The new parameter and states. ``number(name, dtype)``: one of :data:`NUMBERS` as a tensor of no dims."""
    wide = opmath(p.dtype)

    def value(name: str) -> Any:
        return number(name, wide)

    weight, g = widen(p), widen(grad)
    if choice.maximize:
        g = ops.neg(g)
    if choice.decay and choice.decoupled:
        weight = ops.mul(weight, value("shrink"))
    elif choice.decay:
        g = ops.add(g, ops.mul(weight, value("decay")))
    found = (_sgd if choice.kind == "sgd" else _adam)(choice, value, weight, g, [widen(s) for s in states])
    return tuple(x if x.dtype == like.dtype else ops.to(x, like.dtype) for x, like in zip(found, (p, *states), strict=True))


def _sgd(choice: Choice, value: Callable[[str], Any], p: Any, g: Any, states: Sequence[Any]) -> tuple[Any, ...]:
    """Sutskever et al., 2013, in torch's form: the velocity is not multiplied by the learning rate."""
    if not choice.momentum:
        return (ops.sub(p, ops.mul(g, value("lr"))),)
    velocity = ops.add(ops.mul(states[0], value("momentum")), ops.mul(g, value("undampened")))
    ahead = ops.add(g, ops.mul(velocity, value("momentum"))) if choice.nesterov else velocity
    return ops.sub(p, ops.mul(ahead, value("lr"))), velocity


def _adam(choice: Choice, value: Callable[[str], Any], p: Any, g: Any, states: Sequence[Any]) -> tuple[Any, ...]:
    """Kingma and Ba, 2015; with decoupled decay Loshchilov and Hutter, 2019; ``amsgrad`` after Reddi et al., 2018."""
    first, second, *most = states
    apart = ops.sub(g, first)
    if choice.lerp_low:
        first = ops.add(first, ops.mul(apart, value("one_minus_beta1")))
    else:
        first = ops.sub(g, ops.mul(apart, value("beta1")))
    second = ops.add(ops.mul(second, value("beta2")), ops.mul(ops.mul(g, g), value("one_minus_beta2")))
    if most:
        most = [ops.maximum(most[0], second)]
    root = ops.sqrt(most[0] if most else second)
    scale = ops.add(ops.div(root, value("root_correction2")), value("eps"))
    return ops.sub(p, ops.mul(value("step_size"), ops.div(first, scale))), first, second, *most
