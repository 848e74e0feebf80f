"""Settings of an optimizer that are no numbers: a compiled step says what torch's says, and leaves all as it leaves it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

import tinycompile

pytestmark = pytest.mark.cpu

Optimizers = Callable[..., torch.optim.Optimizer]
OPTIMIZERS: dict[str, tuple[Optimizers, dict[str, Any]]] = {
    "sgd": (torch.optim.SGD, {}),
    "momentum": (torch.optim.SGD, {"momentum": 0.5, "weight_decay": 0.1}),
    "adam": (torch.optim.Adam, {}),
    "adamw": (torch.optim.AdamW, {"weight_decay": 0.1}),
}
VALUES: list[Any] = ["x", None, [1.0], (1,), {}, 1j, torch.ones(2)]
NUMBERS: list[Any] = [True, 0, np.float32(0.25), np.int64(1), Fraction(1, 4), torch.tensor(0.25)]


def run(step: Callable[[], None]) -> Any:
    try:
        step()
    except Exception as error:
        return type(error), str(error)
    return None


def outcome(wrap: str, kind: str, before: int, change: Callable[[dict[str, Any]], None], inside: bool) -> Any:
    """What a step raises after ``change`` of a group, made within the program or before it, and the parameter it leaves."""
    cls, options = OPTIMIZERS[kind]
    p = torch.nn.Parameter(torch.linspace(0.5, 1.5, 3))
    optimizer = cls([p], lr=0.1, **options)

    def step() -> None:
        optimizer.zero_grad()
        (p * p).sum().backward()
        if inside:
            change(optimizer.param_groups[0])
        optimizer.step()

    def gradient_and_update() -> None:
        p.grad = 2 * p.detach()
        update()

    update = tinycompile.compile(optimizer.step) if wrap == "alone" else optimizer.step
    whole = tinycompile.compile(step) if wrap == "whole" else gradient_and_update if wrap == "alone" else step
    if not inside:
        for _ in range(before):
            whole()
        change(optimizer.param_groups[0])
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)  # a fault of ours would be one
        return run(whole), p.tolist()


def check(wrap: str, kind: str, before: int, change: Callable[[dict[str, Any]], None], inside: bool = False) -> None:
    (mine, left), (theirs, wanted) = (outcome(w, kind, before, change, inside) for w in (wrap, "eager"))
    assert mine == theirs
    assert left == pytest.approx(wanted, nan_ok=True)


@pytest.mark.parametrize("value", VALUES, ids=repr)
@pytest.mark.parametrize("name", ["lr", "weight_decay", "momentum", "dampening", "eps", "betas"])
@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("wrap", ["whole", "alone"])
def test_what_is_no_number(wrap: str, kind: str, name: str, value: Any) -> None:
    cls, options = OPTIMIZERS[kind]
    if name not in cls([torch.nn.Parameter(torch.ones(1))], lr=0.1, **options).param_groups[0]:
        return
    for before in (0, 2):
        check(wrap, kind, before, lambda group: group.update({name: value}))


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_one_that_the_program_writes(kind: str) -> None:
    def change(group: dict[str, Any]) -> None:
        group["lr"] = "x"

    check("whole", kind, 0, change, inside=True)


@pytest.mark.parametrize("betas", [("x", 0.9), (0.9, None), (0.9,), (0.1, 0.2, 0.3), [0.9, 0.99]], ids=repr)
@pytest.mark.parametrize("wrap", ["whole", "alone"])
def test_betas(wrap: str, betas: Any) -> None:
    check(wrap, "adam", 2, lambda group: group.update(betas=betas))


@pytest.mark.parametrize("value", NUMBERS, ids=repr)
@pytest.mark.parametrize("name", ["lr", "weight_decay"])
@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("wrap", ["whole", "alone"])
def test_numbers_of_other_kinds(wrap: str, kind: str, name: str, value: Any) -> None:
    check(wrap, kind, 2, lambda group: group.update({name: value}))
