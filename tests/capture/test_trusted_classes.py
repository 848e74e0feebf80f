"""Classes of torch's, and those that only say that they are the standard library's: what a program gives them takes effect."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import tinycompile

pytestmark = pytest.mark.cpu

LAYER, ACTIVATION = nn.Linear(1, 1), nn.ReLU()
CHILDREN = nn.ModuleList([ACTIVATION])


class Reads(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.flag + self.settings["k"]


READS = Reads()
MADE = types.new_class("MADE", (), {}, lambda names: names.update(k=1))
FIELDS = dataclasses.make_dataclass("FIELDS", [("a", int, 1)], namespace={"q": 5})
_names: dict[str, Any] = {}
exec("class X:\n k=1\n p=property(lambda s: 2)\n c=classmethod(lambda cls: cls.k)\nclass Y: pass", _names)
X, Y = _names["X"], _names["Y"]
IT = Y()

# By name: the function, and what is given to which class in turn (None takes it away again).
CASES: dict[str, tuple[Callable[[torch.Tensor], Any], list[tuple[type, str, Any]]]] = {
    "data of nn.Module": (lambda x: READS(x), [(nn.Module, "flag", 2), (nn.Module, "settings", {"k": 3})]),
    "a property": (lambda x: x + LAYER.extra, [(nn.Linear, "extra", property(lambda self: 4)), (nn.Linear, "extra", 7)]),
    "data of a layer": (lambda x: ACTIVATION(x) + ACTIVATION.kind, [(nn.ReLU, "kind", 5)]),
    "data of a container": (lambda x: x + CHILDREN.tag, [(nn.ModuleList, "tag", 5)]),
    "hasattr": (lambda x: x + hasattr(LAYER, "lora"), [(nn.Linear, "lora", 1), (nn.Linear, "lora", None)]),
    "hasattr of the class": (lambda x: x + hasattr(nn.Linear, "lora"), [(nn.Module, "lora", 1)]),
    "getattr": (lambda x: x + getattr(LAYER, "scale", 1), [(nn.Linear, "scale", 3)]),
    "new_class": (lambda x: x + MADE.k, [(MADE, "k", 2)]),
    "make_dataclass": (lambda x: x + FIELDS(2).a + FIELDS.q, [(FIELDS, "q", 7)]),
    "exec": (
        lambda x: x + X.k + X().p + X.c(),
        [(X, "k", 2), (X, "p", property(lambda self: 9)), (X, "c", classmethod(lambda cls: 100))],
    ),
    "exec, truth": (lambda x: x if IT else -x, [(Y, "__bool__", lambda self: False)]),
    "exec, hasattr": (lambda x: x + hasattr(IT, "z"), [(Y, "z", 1)]),
}
FIRST = {"flag": (nn.Module, 1), "settings": (nn.Module, {"k": 1}), "extra": (nn.Linear, property(lambda self: 3))}
FIRST |= {"kind": (nn.ReLU, 1), "tag": (nn.ModuleList, 1)}


@pytest.fixture(autouse=True)
def as_they_were() -> Iterator[None]:
    changed = {(cls, name) for _, changes in CASES.values() for cls, name, _ in changes} | {
        (c, n) for n, (c, _) in FIRST.items()
    }
    before = {(cls, name): vars(cls).get(name) for cls, name in changed}
    for name, (cls, value) in FIRST.items():
        setattr(cls, name, value)
    yield
    for (cls, name), value in before.items():
        give(cls, name, value)


def give(cls: type, name: str, value: Any) -> None:
    if value is not None:
        setattr(cls, name, value)
    elif name in vars(cls):
        delattr(cls, name)


@pytest.mark.parametrize("name", CASES)
def test_what_a_class_is_given_takes_effect(name: str) -> None:
    fn, changes = CASES[name]
    compiled, x = tinycompile.compile(fn, backend="eager"), torch.ones(1)
    assert torch.equal(compiled(x), fn(x))
    for cls, attribute, value in changes:
        give(cls, attribute, value)
        assert torch.equal(compiled(x), fn(x)), (cls, attribute)
